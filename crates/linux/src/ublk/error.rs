//! Why there is no device, said to a person.

use crate::driver::{ArenaError, RingError};
use std::io;
use std::path::PathBuf;

/// Error of serving a block device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no such driver.
    #[error(
        "this kernel has no driver for block devices that programs serve (there is no {}): load it with \
         `modprobe ublk_drv` (CONFIG_BLK_DEV_UBLK); Homenode needs the driver of Linux 6.9 or newer",
        super::CONTROL_PATH
    )]
    NoDriver,
    /// It has one of the first of them.
    #[error(
        "the ublk driver of Linux {release} is too old: 6.9 is the first that ends a device without waiting for its users"
    )]
    TooOld {
        /// The kernel's release.
        release: String,
    },
    /// It cannot be talked to.
    #[error("cannot open {path}: {source}{}", open_advice(source))]
    Open {
        /// The driver's file, or the device's.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// io_uring, by which it is talked to, cannot be had.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// It refused a command.
    #[error("the kernel does not {doing}: {source}{}", command_advice(source))]
    Command {
        /// Action that was refused, with its object.
        doing: String,
        /// The errno.
        source: io::Error,
    },
    /// It cannot be noted for the next server which volume a device is of.
    #[error("cannot record in {} the volume of {}: {source}", path.display(), device.display())]
    Record {
        /// The block device.
        device: PathBuf,
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// A device waits for no server any more: it has one.
    #[error("{} has a server again", .0.display())]
    Served(PathBuf),
    /// There is no memory for the data of requests.
    #[error(transparent)]
    Buffers(#[from] ArenaError),
    /// A queue cannot be served (any more).
    #[error("queue {queue} of {} cannot be served: {source}", device.display())]
    Queue {
        /// Its number.
        queue: usize,
        /// The block device.
        device: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// A queue's thread met a bug.
    #[error("the thread of queue {queue} of {} panicked", device.display())]
    Panicked {
        /// Its number.
        queue: usize,
        /// The block device.
        device: PathBuf,
    },
}

impl Error {
    /// Linux's number, the one a system call has set.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let source = match self {
            Self::NoDriver | Self::TooOld { .. } => return libc::ENODEV,
            Self::Panicked { .. } => return libc::EIO,
            Self::Buffers(_) => return libc::ENOMEM,
            Self::Served(_) => return libc::EBUSY,
            Self::Ring(RingError::Make { source } | RingError::Files { source })
            | Self::Open { source, .. }
            | Self::Command { source, .. }
            | Self::Record { source, .. }
            | Self::Queue { source, .. } => source,
        };
        source.raw_os_error().unwrap_or(libc::EIO)
    }
}

fn open_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => ": run the server as root, and let its container have the device",
        Some(libc::ENOENT) => ": /dev is not what the kernel fills (devtmpfs), or the container's lacks it",
        Some(libc::EBUSY) => ": another program serves it",
        Some(libc::EMFILE) => ": this process has too many files open (`ulimit -n`)",
        _ => "",
    }
}

fn command_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => ": run the server as root (CAP_SYS_ADMIN)",
        Some(libc::ENOSYS) => ": its io_uring has no commands, or the container forbids them",
        Some(libc::EOPNOTSUPP | libc::EINVAL) => ": its ublk driver may be older than Linux 6.9",
        Some(libc::ENOMEM) => ": it has no memory for the device's queues",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn each_error_names_operation_object_and_remedy() {
        let open = |errno| Error::Open {
            path: super::super::CONTROL_PATH.into(),
            source: os(errno),
        };
        let command = |errno| Error::Command {
            doing: "add a device".to_owned(),
            source: os(errno),
        };
        let ring = |errno| Error::Ring(RingError::Make { source: os(errno) });
        let expected: [(Error, &[&str], i32); 6] = [
            (
                Error::NoDriver,
                &["/dev/ublk-control", "modprobe ublk_drv"],
                libc::ENODEV,
            ),
            (open(libc::EACCES), &["open /dev/ublk-control", "root"], libc::EACCES),
            (open(libc::ENOENT), &["/dev/ublk-control", "devtmpfs"], libc::ENOENT),
            (command(libc::EPERM), &["add a device", "root"], libc::EPERM),
            (command(libc::EOPNOTSUPP), &["add a device", "6.9"], libc::EOPNOTSUPP),
            (ring(libc::ENOSYS), &["io_uring", "container"], libc::ENOSYS),
        ];
        for (error, parts, errno) in expected {
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            assert!(!text.contains('\n') && !text.contains("  "), "{text}");
            assert_eq!(error.errno(), errno);
        }
    }
}
