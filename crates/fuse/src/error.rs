//! Errors of mounting, serving and unmounting.

use homenode_engine::CpuId;
use std::io;
use std::path::PathBuf;

/// A mount could not be made, served or taken down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be opened.
    #[error("cannot open /dev/fuse: {source}; {}", device_remedy(source))]
    OpenDevice {
        /// The errno of open(2).
        #[source]
        source: io::Error,
    },
    /// mount(2) failed.
    #[error("cannot mount on {}: {source}; {}", dir.display(), mount_remedy(source))]
    Mount {
        /// Where it should have been mounted.
        dir: PathBuf,
        /// The errno of mount(2), or of finding the directory.
        #[source]
        source: io::Error,
    },
    /// A further descriptor of the mount could not be made.
    #[error("cannot clone the FUSE descriptor for a further thread: {source}")]
    Clone {
        /// The errno of open(2) or ioctl(2).
        #[source]
        source: io::Error,
    },
    /// The kernel's first request did not come or could not be answered.
    #[error("the kernel and the server could not agree on the FUSE protocol: {source}")]
    Negotiate {
        /// The error of the device.
        #[source]
        source: io::Error,
    },
    /// The kernel's protocol is too old.
    #[error("the kernel speaks FUSE {major}.{minor}, but 7.36 is needed: use Linux 6.1 or newer")]
    TooOld {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// All slots of the pool are taken by other threads.
    #[error("no free slot for server thread {thread}: start fewer threads")]
    Slots {
        /// Number of the thread that got none.
        thread: usize,
    },
    /// The rings that were asked for cannot be had.
    #[error("cannot serve through rings: {0}")]
    Rings(#[source] RingError),
    /// Files of the kernel that were asked for cannot be had.
    #[error("the chosen storage of files' bytes is not available: {reason}")]
    Passthrough {
        /// Why not.
        reason: String,
    },
    /// A server thread could not be started.
    #[error("cannot start server thread {thread}: {source}")]
    Spawn {
        /// Number of the thread.
        thread: usize,
        /// The errno of clone(2).
        #[source]
        source: io::Error,
    },
    /// A server thread ended although the filesystem is mounted.
    #[error("a server thread stopped reading requests: {source}")]
    Serve {
        /// The error of the device.
        #[source]
        source: io::Error,
    },
    /// umount2(2) failed.
    #[error("cannot unmount {}: {source}; {}", dir.display(), unmount_remedy(source))]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// The errno of umount2(2).
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Linux's number for the failure, where a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::OpenDevice { source }
            | Self::Mount { source, .. }
            | Self::Clone { source }
            | Self::Negotiate { source }
            | Self::Spawn { source, .. }
            | Self::Serve { source }
            | Self::Unmount { source, .. } => source.raw_os_error(),
            Self::Rings(ring) => ring.errno(),
            Self::TooOld { .. } | Self::Slots { .. } | Self::Passthrough { .. } => None,
        }
    }
}

/// Why a mount cannot be served through rings, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel has no such thing.
    #[error("this kernel has no FUSE over io_uring (Linux 6.14 and newer have it)")]
    Absent,
    /// The kernel has it, switched off.
    #[error(
        "FUSE over io_uring is switched off in this kernel; to switch it on: \
         echo Y > /sys/module/fuse/parameters/enable_uring"
    )]
    Off,
    /// The kernel has it and did not offer it.
    #[error("the kernel did not offer FUSE over io_uring for this mount")]
    NotOffered,
    /// Too little memory is allowed for the buffers.
    #[error(
        "{queues} CPUs need buffers of {least_bytes} bytes at least, but only {bytes} are allowed: allow more, or use the classic transport"
    )]
    Buffers {
        /// Bytes allowed for the buffers.
        bytes: u64,
        /// Queues, one for each possible CPU.
        queues: usize,
        /// Least bytes that the queues need.
        least_bytes: u64,
    },
    /// The memory of a ring's buffers could not be mapped.
    #[error("cannot map the buffers of CPU {}'s ring: {source}", cpu.0)]
    Map {
        /// Whose ring.
        cpu: CpuId,
        /// The errno of mmap(2).
        #[source]
        source: io::Error,
    },
    /// A ring could not be made.
    #[error("cannot make CPU {}'s ring: {source}; {}", cpu.0, ring_remedy(source))]
    Make {
        /// Whose ring.
        cpu: CpuId,
        /// The errno of io_uring_setup(2).
        #[source]
        source: io::Error,
    },
    /// The kernel refused a ring.
    #[error("the kernel refused CPU {}'s ring: {source}", cpu.0)]
    Register {
        /// Whose ring.
        cpu: CpuId,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl RingError {
    fn errno(&self) -> Option<i32> {
        match self {
            Self::Map { source, .. } | Self::Make { source, .. } | Self::Register { source, .. } => {
                source.raw_os_error()
            }
            Self::Absent | Self::Off | Self::NotOffered | Self::Buffers { .. } => None,
        }
    }
}

fn ring_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l, LimitMEMLOCK= of a unit)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n, LimitNOFILE= of a unit)",
        Some(libc::EPERM) => "io_uring is forbidden here: see /proc/sys/kernel/io_uring_disabled and seccomp filters",
        Some(libc::EINVAL | libc::ENOSYS) => "this kernel's io_uring is too old or left out",
        _ => "see that io_uring works here",
    }
}

fn device_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "run as root",
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            "load the kernel's fuse module (modprobe fuse), or give the container /dev/fuse"
        }
        _ => "see that /dev/fuse can be opened for reading and writing",
    }
}

fn mount_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "run as root",
        Some(libc::ENOENT) => "create the directory first",
        Some(libc::ENOTDIR) => "give a directory",
        Some(libc::ENOTCONN) => "a dead mount lies there: unmount it first",
        Some(libc::ENODEV) => "the kernel has no FUSE: load its module (modprobe fuse)",
        _ => "see that nothing else is mounted there",
    }
}

fn unmount_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "a process has files open or its working directory there: end it (fuser -m finds it) or detach"
        }
        Some(libc::EINVAL) => "nothing is mounted there any more",
        Some(libc::EPERM) => "run as root",
        _ => "see that the path still leads to the mount",
    }
}
