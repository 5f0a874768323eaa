//! A pool mounted and served by a process of its own, as in life: the bench's side of [`super::serve`].
//!
//! The process has a group of its own, so that Ctrl-C reaches the bench only; it ends when its standard input does, so it
//! outlives nobody. Should it die first, what it left mounted is taken away here.

use crate::cpu_time::CpuTime;
use crate::error::{During, Error};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How a pool is mounted and served: as by `homenode up`, but with all memory populated ahead, and without the mover, the sampler and
/// the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Rings, everything else by default.
    Uring,
    /// The device, everything else by default.
    Classic,
    /// Rings, and files of the kernel hold the bytes. Not among [`Variant::ALL`]: it has cases of its own.
    Kernel,
    /// Everything by default. Not among [`Variant::ALL`] either: only names are measured on it.
    Auto,
    /// Rings, and the kernel takes set-uid bits and capabilities from written files, for which it has to ask each time.
    NoKillPrivileges,
}

impl Variant {
    /// The first is what the cases are about; the others are its peers.
    pub(crate) const ALL: [Self; 3] = [Self::Uring, Self::Classic, Self::NoKillPrivileges];

    /// Name in tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Classic => "classic",
            Self::Kernel => "kernel",
            Self::Auto => "auto",
            Self::NoKillPrivileges => "no-killpriv",
        }
    }

    /// Name of its row in a case: the case's own for the variant the cases are about.
    pub(crate) fn case(self, case: &str) -> String {
        match self {
            Self::Uring => case.to_owned(),
            other => format!("{case}/{}", other.name()),
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Uring => &["--transport=uring"],
            Self::Classic => &["--transport=classic"],
            Self::Kernel => &["--transport=uring", "--data=kernel"],
            Self::Auto => &["--transport=auto", "--data=auto"],
            Self::NoKillPrivileges => &["--transport=uring", "--no-killpriv"],
        }
    }
}

/// Time for a server to unmount and give its memory back.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_POLL: Duration = Duration::from_millis(5);

/// A serving process.
#[derive(Debug)]
pub(crate) struct Served {
    variant: Variant,
    /// Made anew under a name that nobody could foresee; the server removes it.
    directory: PathBuf,
    child: Child,
    /// Closing it ends the process.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Served {
    /// Starts it with so many bytes of `node`, or of each node; when this returns the mount works.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this machine has no rings for it; others are failures.
    pub(crate) fn start(variant: Variant, node_bytes: u64, node: Option<u16>) -> Result<Self, Error> {
        let directory = tempfile::Builder::new()
            .prefix("homenode-bench-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .during("making a temporary directory to mount on")?;
        let program = std::env::current_exe().during("finding this program")?;
        let mut child = Command::new(program)
            .args(["serve-mount", &format!("--node-bytes={node_bytes}")])
            .args(node.map(|node| format!("--node={node}")))
            .args(variant.arguments())
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .during("starting a server of this program")?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("the stream is piped"));
        let mut served = Self {
            variant,
            directory: directory.keep(),
            child,
            to,
            from,
        };
        let line = served.line()?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ready", _) => Ok(served),
            ("unavailable", reason) => Err(Error::Unavailable {
                contestant: variant.name(),
                reason: reason.to_owned(),
            }),
            (_, reason) => Err(served.failed(io::Error::other(reason.to_owned()))),
        }
    }

    pub(crate) fn variant(&self) -> Variant {
        self.variant
    }

    /// Where it is mounted.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens its root.
    pub(crate) fn open(&self) -> Result<OwnedFd, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open(&self.directory, flags, Mode::empty()).during(format_args!("opening {}", self.directory.display()))
    }

    /// CPU time of the process so far.
    pub(crate) fn cpu_time(&self) -> Result<CpuTime, Error> {
        CpuTime::of(self.child.id())
    }

    /// Requests served so far.
    pub(crate) fn requests(&mut self) -> Result<u64, Error> {
        let to = self.to.as_mut().expect("the stream is closed on drop only");
        let asked = to.write_all(b"requests\n");
        asked.map_err(|error| self.failed(error))?;
        let line = self.line()?;
        line.parse().map_err(|error| self.failed(io::Error::other(error)))
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err(self.failed(io::Error::other("it has ended"))),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::system(format!("the server of the {} mount", self.variant.name()), error)
    }

    /// Whether the process has ended by itself within the timeout.
    fn ends(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < END_TIMEOUT {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            thread::sleep(END_POLL);
        }
        false
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.to = None;
        if !self.ends() {
            eprintln!(
                "homenode-bench: {}",
                self.failed(io::Error::other("it does not end: it is killed"))
            );
            // Fails only if it has ended after all.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // ENOENT when the server has removed it, as it does unless it was killed; EINVAL when it was not mounted.
        let flags = UnmountFlags::DETACH | UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
        let _ = unmount(&self.directory, flags);
        match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!("homenode-bench: removing {}: {error}", self.directory.display());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_variant_has_the_name_of_the_case() {
        assert_eq!(Variant::ALL[0].case("4k/a"), "4k/a");
        assert_eq!(Variant::Classic.case("4k/a"), "4k/a/classic");
    }
}
