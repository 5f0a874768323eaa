//! The classic transport: descriptors of /dev/fuse.
//!
//! One read gives one request, one write takes one answer. A cloned descriptor has a list of its own for requests under
//! way, so threads with one each do not contend for it; an answer must go through the descriptor its request came from.

use crate::wire::{Field, NotifyInvalInodeOut, OutHeader};
use homenode_engine::fs::Ino;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::thread;
use std::time::Duration;

/// The code of a notification that an inode has changed.
const NOTIFY_INVAL_INODE: i32 = 2;

const DEVICE_PATH: &str = "/dev/fuse";

/// Pause after a read for which the process had no memory.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// `_IOR(229, 0, uint32_t)`.
const IOC_CLONE: libc::c_ulong = 0x8004_e500;
/// `_IOW(229, 1, struct fuse_backing_map)`.
const IOC_BACKING_OPEN: libc::c_ulong = 0x4010_e501;
/// `_IOW(229, 2, uint32_t)`.
const IOC_BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

/// The kernel's `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// A descriptor of a FUSE connection.
#[derive(Debug)]
pub(crate) struct Device(File);

/// Result of one read of the device.
#[derive(Debug)]
pub(crate) enum Received {
    /// A request of that many bytes.
    Request(usize),
    /// The filesystem is unmounted, or its connection was aborted.
    Unmounted,
}

/// Result of sending an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has it.
    Taken,
    /// Nobody waits for it any more.
    Unwanted,
}

impl Device {
    /// A descriptor without a connection; mount(2) or [`Self::duplicate`] gives it one.
    pub(crate) fn open() -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(DEVICE_PATH).map(Self)
    }

    /// A further descriptor of this one's connection.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        let new = Self::open()?;
        let fd: u32 = self
            .0
            .as_raw_fd()
            .try_into()
            .expect("an open descriptor is not negative");
        // SAFETY: the request reads the u32 behind the pointer, which lives until the call returns.
        let result = unsafe { libc::ioctl(new.0.as_raw_fd(), IOC_CLONE, &raw const fd) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(new)
        }
    }

    /// Registers a file that the kernel may read and write for one of the connection; returns the number it is known by.
    pub(crate) fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let map = BackingMap {
            fd: file.as_raw_fd(),
            flags: 0,
            padding: 0,
        };
        // SAFETY: the request reads the structure behind the pointer, which lives until the call returns.
        let id = unsafe { libc::ioctl(self.raw(), IOC_BACKING_OPEN, &raw const map) };
        if id > 0 {
            Ok(id)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Gives a number of [`Device::open_backing`] back.
    pub(crate) fn close_backing(&self, id: i32) -> io::Result<()> {
        // SAFETY: the request reads the u32 behind the pointer, which lives until the call returns.
        let result = unsafe { libc::ioctl(self.raw(), IOC_BACKING_CLOSE, &raw const id) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Has the kernel forget the attributes of an inode, and those of answers that are on their way.
    pub(crate) fn forget_attributes(&self, ino: Ino) -> io::Result<Sent> {
        const BYTES: usize = OutHeader::BYTES + NotifyInvalInodeOut::BYTES;
        let mut message = [0; BYTES];
        let mut to = &mut message[..];
        let header = OutHeader {
            len: u32::try_from(BYTES).expect("BYTES is 40"),
            error: NOTIFY_INVAL_INODE,
            unique: 0,
        };
        let body = NotifyInvalInodeOut {
            ino: ino.0,
            off: -1,
            len: 0,
        };
        header
            .put(&mut to)
            .and_then(|()| body.put(&mut to))
            .expect("the message has room for both");
        // Unwanted: the kernel does not know the inode.
        self.send(&message)
    }

    /// Whether a request waits to be read.
    pub(crate) fn has_request(&self) -> bool {
        self.is(PollFlags::IN)
    }

    /// Whether the filesystem is unmounted, or the connection was aborted.
    pub(crate) fn has_ended(&self) -> bool {
        self.is(PollFlags::ERR)
    }

    fn is(&self, flag: PollFlags) -> bool {
        let mut looks = [PollFd::new(&self.0, flag)];
        let at_once = Timespec::default();
        poll(&mut looks, Some(&at_once)).is_ok() && looks[0].revents().contains(flag)
    }

    /// Waits for the next request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match (&self.0).read(buffer) {
                Ok(0) => return Ok(Received::Unmounted),
                Ok(bytes) => return Ok(Received::Request(bytes)),
                Err(error) => match error.raw_os_error() {
                    // A signal; another thread was faster; the request was given up between wake-up and read.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                    // No page for the buffer: one caller got an error, and the others go on.
                    Some(libc::ENOMEM) => thread::sleep(MEMORY_PAUSE),
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(Received::Unmounted),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Answers a request with a whole message: header and payload.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<Sent> {
        loop {
            match (&self.0).write(message) {
                // The device takes a message whole or not at all.
                Ok(bytes) if bytes == message.len() => return Ok(Sent::Taken),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::ENOENT | libc::ENODEV | libc::EPERM | libc::ECONNABORTED) => return Ok(Sent::Unwanted),
                    _ => return Err(error),
                },
            }
        }
    }
}
