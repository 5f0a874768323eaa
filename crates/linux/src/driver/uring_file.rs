//! Files and disks by io_uring: a ring for each hardware queue, the file and the requests' memory registered with it.
//!
//! Cost: a system call for each batch; taking what is finished is one only when the kernel has something to do for it, which
//! it tells in memory.

mod error;
mod queue;
mod target;

pub use error::{OpenError, RingError};
pub use queue::UringQueue;

use super::Arena;
use homenode_engine::NodeId;
use homenode_engine::blk::{Driver, Limits};
use std::io;
use std::path::Path;
use std::sync::Arc;
use target::Target;

/// How a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringOptions {
    /// Past the page cache. Requests' memory then begins at multiples of the device's blocks, or they fail (`EINVAL`).
    pub direct: bool,
    /// It is opened for reading, which also those give that take no writes. Writes fail (`EBADF`); discards and zeros
    /// are not supported.
    pub read_only: bool,
    /// Completions are polled for, without interrupts, where the disk has queues for that. Only with `direct`.
    pub poll: bool,
    /// Its hardware queues: at least 1.
    pub queues: usize,
    /// Requests that each works on at a time: 1 to 4096.
    pub depth: u16,
}

impl Default for UringOptions {
    fn default() -> Self {
        Self {
            direct: false,
            read_only: false,
            poll: false,
            queues: 1,
            depth: 128,
        }
    }
}

/// The most requests that a ring is made for.
const DEPTH_MAX: u16 = 4096;

/// A file or a disk as a device.
#[derive(Clone, Debug)]
pub struct UringFile {
    target: Arc<Target>,
    buffers: Arc<Arena>,
    limits: Limits,
    options: UringOptions,
}

impl UringFile {
    /// Opens the file or disk at `path`, which exists, for requests that name memory of `buffers`. Its size is what it is now,
    /// in whole blocks. A disk is opened for this use alone.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing of it has changed.
    ///
    /// # Panics
    /// When the options are not within their ranges.
    pub fn open(path: &Path, buffers: Arc<Arena>, options: UringOptions) -> Result<Self, OpenError> {
        assert!(options.queues > 0, "a device has a hardware queue");
        assert!(
            (1..=DEPTH_MAX).contains(&options.depth),
            "1 to {DEPTH_MAX} requests at a time"
        );
        let target = Target::open(path, options.direct, options.read_only)?;
        let limits = Limits {
            block_bytes: target.block_bytes,
            depth: options.depth,
            has_cache: true,
            can_force: true,
            can_discard: target.discard.is_some(),
            can_zero: target.zero.is_some(),
            ..Limits::of_bytes(target.bytes)
        };
        Ok(Self {
            options: UringOptions {
                poll: options.poll && options.direct && target.can_poll,
                ..options
            },
            target: Arc::new(target),
            buffers,
            limits,
        })
    }
}

impl Driver for UringFile {
    type Queue = UringQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        vec![self.target.home; self.options.queues]
    }

    fn queue(&self, _index: usize) -> io::Result<UringQueue> {
        UringQueue::new(
            Arc::clone(&self.target),
            Arc::clone(&self.buffers),
            self.limits,
            self.options.poll,
        )
    }
}

#[cfg(test)]
mod tests;
