//! How a filesystem is mounted and served.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Choices of a mount; `Options::default()` is what `homenode up` takes, but for `data`, which is auto there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Name of the mounted thing in /proc/mounts.
    pub source: String,
    /// Device and inode of the directory to mount on, if it was looked at before: another one in its place is refused.
    pub directory: Option<(u64, u64)>,
    /// It is served, and no path leads to it, until [`Server::attach`](crate::Server::attach).
    pub attached_later: bool,
    /// Nothing on the mount can be changed.
    pub read_only: bool,
    /// Set-uid and set-gid programs run with their caller's rights.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Reading moves no access times.
    pub noatime: bool,
    /// Reading directories moves no access times.
    pub nodiratime: bool,
    /// How requests travel.
    pub transport: Transport,
    /// Storage of the bytes of regular files.
    pub data: Data,
    /// Threads of the classic transport; `None`: one for each CPU this process may use, and at least two, so that one
    /// long request does not hold up the rest.
    pub threads: Option<usize>,
    /// Most bytes of memory for the payloads of all rings together. Decides how many requests a CPU may have under way.
    pub buffer_bytes: u64,
    /// How long a ring's thread looks for the next request before it sleeps. Zero: it sleeps at once; anything else burns
    /// that much of its CPU after each request.
    pub spin: Duration,
    /// Whether the server takes set-uid bits and capabilities from files that are written. Otherwise the kernel asks for them
    /// before each buffered write: off only to measure what that costs.
    #[doc(hidden)]
    pub kill_privileges: bool,
    /// How long the kernel may keep names and attributes.
    pub attribute_timeout: Duration,
    /// How far the kernel reads ahead of a sequential reader, in bytes (0: the kernel's default of 128 KiB).
    pub read_ahead_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "homenode".to_owned(),
            directory: None,
            attached_later: false,
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            nodiratime: false,
            transport: Transport::Auto,
            data: Data::Pool,
            threads: None,
            buffer_bytes: 256 << 20,
            spin: Duration::ZERO,
            kill_privileges: true,
            attribute_timeout: Self::ATTRIBUTE_TIMEOUT,
            read_ahead_bytes: 1 << 20,
        }
    }
}

impl Options {
    /// A year: for ever as far as a mount goes. Everything that changes files goes through the kernel, so what it keeps
    /// stays right.
    pub const ATTRIBUTE_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// Classic threads to start.
    pub(crate) fn thread_count(&self) -> usize {
        const THREADS_MIN: usize = 2;
        let allowed = || {
            std::thread::available_parallelism()
                .map_or(THREADS_MIN, usize::from)
                .max(THREADS_MIN)
        };
        self.threads.unwrap_or_else(allowed).max(1)
    }
}

/// How requests travel between the kernel and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Rings where the kernel has them and allows them, else the classic device.
    #[default]
    Auto,
    /// FUSE over io_uring: a ring for each CPU. Linux 6.14 and newer, with `enable_uring` of the fuse module set.
    Uring,
    /// read(2) and write(2) of /dev/fuse.
    Classic,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Uring, Self::Classic];

    /// Name of the transport on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Classic => "classic",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No transport has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no transport {0:?}, only auto, uring and classic")]
pub struct UnknownTransport(String);

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        let found = Self::ALL.into_iter().find(|transport| transport.name() == name);
        found.ok_or_else(|| UnknownTransport(name.to_owned()))
    }
}

/// Storage of the bytes of a mount's regular files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Data {
    /// Files of the kernel where it can pass reads and writes through, else blocks of the pool.
    Auto,
    /// Files of the kernel: it reads, writes and maps their bytes itself. Linux 6.9 and newer; a pool that has no files yet.
    Kernel,
    /// Blocks of the pool: the server moves all bytes.
    #[default]
    Pool,
}

impl Data {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Kernel, Self::Pool];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Pool => "pool",
        }
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Nothing of this name holds bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no storage {0:?}, only auto, kernel and pool")]
pub struct UnknownData(String);

impl FromStr for Data {
    type Err = UnknownData;

    fn from_str(name: &str) -> Result<Self, UnknownData> {
        let found = Self::ALL.into_iter().find(|data| data.name() == name);
        found.ok_or_else(|| UnknownData(name.to_owned()))
    }
}

/// Storage chosen for the bytes of regular files, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChosenData {
    /// [`Data::Kernel`] or [`Data::Pool`].
    pub data: Data,
    /// Why, and where the other would have been better, what it lacks. A sentence without its full stop.
    pub reason: String,
}

/// The transport in use, and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// [`Transport::Uring`] or [`Transport::Classic`].
    pub transport: Transport,
    /// Why, and where the other would have been better, what it lacks and how to get it. A sentence without its full stop.
    pub reason: String,
}
