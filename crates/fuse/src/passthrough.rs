//! Files whose bytes the kernel moves itself: registered once an inode, named in each answer to an open.
//!
//! A number lives as long as its inode, or the connection if that ends first. It is given back when the engine drops it.

use crate::device::Device;
use homenode_engine::backing::Registration;
use homenode_engine::fs::{Error, Inode, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A connection that passes reads and writes through.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Told from other connections of the process.
    number: u64,
    device: Weak<Device>,
}

/// A number that the kernel knows a file by.
#[derive(Debug)]
struct Registered {
    connection: u64,
    device: Weak<Device>,
    id: i32,
}

impl Connection {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            // Relaxed: only that no two are equal.
            number: LAST.fetch_add(1, Ordering::Relaxed),
            device: Arc::downgrade(device),
        }
    }

    /// The kernel's number for the inode's backing file; `None` when it has none.
    pub(crate) fn id_of(&self, inode: &Inode) -> Option<Result<i32>> {
        inode.backing_id(self.number, |file| self.register(&file))
    }

    fn register(&self, file: &OwnedFd) -> Result<Box<dyn Registration>> {
        // The connection has ended, and nobody waits for the answer.
        let device = self.device.upgrade().ok_or(Error::Io)?;
        let id = device.open_backing(file.as_fd()).map_err(|error| {
            tracing::warn!(%error, "the kernel refused a backing file");
            match error.raw_os_error() {
                Some(libc::ENOMEM) => Error::NoMemory,
                Some(libc::ENOSPC) => Error::NoDescriptor,
                Some(libc::EPERM) => Error::NotPermitted,
                _ => Error::Io,
            }
        })?;
        Ok(Box::new(Registered {
            connection: self.number,
            device: Weak::clone(&self.device),
            id,
        }))
    }
}

impl Registration for Registered {
    fn id_on(&self, connection: u64) -> Option<i32> {
        (connection == self.connection).then_some(self.id)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A connection that has ended took its numbers along.
        if let Some(device) = self.device.upgrade()
            && let Err(error) = device.close_backing(self.id)
        {
            tracing::debug!(%error, id = self.id, "the kernel keeps a backing file");
        }
    }
}
