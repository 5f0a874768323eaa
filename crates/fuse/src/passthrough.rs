//! Files whose bytes the kernel moves itself: registered once an inode, named in each answer to an open.
//!
//! A number lives as long as its inode, or the connection if that ends first. It is given back when the engine drops it.

use crate::device::Device;
use crate::prepared::Prepared;
use homenode_engine::backing::Registration;
use homenode_engine::fs::{Error, Fs, Inode, PreparedFile, Result};
use homenode_engine::{Clock, Memory};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A connection that passes reads and writes through.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Told from other connections of the process.
    number: u64,
    device: Weak<Device>,
    /// Only one connection registers a pool's files at a time.
    _claim: Arc<()>,
    /// Files that it knows before they are created.
    pub(crate) prepared: Prepared,
}

/// A number that the kernel knows a file by.
#[derive(Debug)]
struct Registered {
    connection: u64,
    device: Weak<Device>,
    id: i32,
}

impl Connection {
    pub(crate) fn new(device: &Arc<Device>, claim: Arc<()>, prepared: Prepared) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            // Relaxed: only that no two are equal.
            number: LAST.fetch_add(1, Ordering::Relaxed),
            device: Arc::downgrade(device),
            _claim: claim,
            prepared,
        }
    }

    /// The kernel's number for the inode's backing file; `None` when it has none.
    pub(crate) fn id_of(&self, inode: &Inode) -> Option<Result<i32>> {
        inode.backing_id(self.number, |file| self.register(&file))
    }

    /// Whether the kernel has requests that no thread has read yet: with rings, what it forgets.
    pub(crate) fn has_request(&self) -> bool {
        self.device.upgrade().is_some_and(|device| device.has_request())
    }

    /// Makes a file that the kernel knows already.
    pub(crate) fn prepare<M: Memory, C: Clock>(&self, fs: &Fs<M, C>) -> Result<PreparedFile> {
        fs.prepare_file(self.number, |file| self.register(&file))
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
