//! Errors of opening a file as a device, with messages for a person.

use std::io;
use std::path::PathBuf;

/// Why a file or disk cannot be a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel does not open it.
    #[error("cannot open {path} for {purpose}: {source}{}", advice(source))]
    Open {
        /// It.
        path: PathBuf,
        /// Purpose of opening: `reading`, or `reading and writing`.
        purpose: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// It is a directory.
    #[error("{0} is a directory: name a file in it, or a disk")]
    Directory(PathBuf),
    /// It is a pipe, a socket, a terminal.
    #[error("{0} is neither a file nor a disk: name one of these")]
    Kind(PathBuf),
    /// The disk takes no writes.
    #[error("{0} is read-only: `blockdev --setrw` changes that where the disk allows it")]
    ReadOnly(PathBuf),
    /// It has no block.
    #[error("{path} has {bytes} bytes, less than a block of {block_bytes}: make it larger first (`truncate --size`)")]
    Small {
        /// It.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Bytes of a block, the least that can be read or written at once.
        block_bytes: u32,
    },
    /// Its filesystem knows the page cache only.
    #[error("the filesystem of {0} has no direct I/O: use the file without it, or put the file on another filesystem")]
    NotDirect(PathBuf),
    /// A property of the file or disk cannot be found out.
    #[error("{doing} of {path}: {source}")]
    Inspect {
        /// It.
        path: PathBuf,
        /// Property that was asked for: `the size`, for example.
        doing: &'static str,
        /// The errno.
        source: io::Error,
    },
}

/// Returns advice for an errno; empty where there is none.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) => ": check the name, or make it first (`truncate --size`)",
        Some(libc::EACCES | libc::EPERM) => ": ask for permission to do so",
        Some(libc::EBUSY) => ": it is mounted, or another program uses it; choose another one, or end that use",
        Some(libc::EROFS) => ": it lies where nothing can be written",
        _ => "",
    }
}

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The kernel does not make it.
    #[error("io_uring cannot be used: {source}{}", ring_advice(source))]
    Make {
        /// The errno.
        source: io::Error,
    },
    /// The kernel does not keep the file with it.
    #[error("cannot register files with a ring of io_uring: {source}{}", ring_advice(source))]
    Files {
        /// The errno.
        source: io::Error,
    },
}

impl From<RingError> for io::Error {
    fn from(error: RingError) -> Self {
        let (RingError::Make { source } | RingError::Files { source }) = &error;
        Self::new(source.kind(), error)
    }
}

fn ring_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => ": the setting kernel.io_uring_disabled, or the container, forbids it",
        Some(libc::ENOSYS) => ": this kernel has none, or the container forbids it",
        Some(libc::EINVAL) => ": it needs Linux 6.1 or later",
        Some(libc::EMFILE) => ": this process has too many files open (`ulimit -n`)",
        Some(libc::ENOMEM) => ": this user may lock too little memory (`ulimit -l`)",
        _ => "",
    }
}
