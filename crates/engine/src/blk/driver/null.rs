//! A device that is done with everything at once and keeps nothing: the paper's no-op driver (section 5). Reads leave
//! their buffer as it is.

use super::{Done, Driver, DriverQueue, Late, Limits};
use crate::blk::slot::{Slots, Tag};
use homenode_policy::NodeId;

/// The no-op device.
#[derive(Clone, Debug)]
pub struct Null {
    limits: Limits,
    homes: Vec<Option<NodeId>>,
}

impl Null {
    /// With these limits and a hardware queue for each of `homes`.
    #[must_use]
    pub fn new(limits: Limits, homes: &[Option<NodeId>]) -> Self {
        Self {
            limits,
            homes: homes.to_vec(),
        }
    }
}

impl Driver for Null {
    type Queue = NullQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        self.homes.clone()
    }

    fn queue(&self, _index: usize) -> std::io::Result<NullQueue> {
        let depth = usize::from(self.limits.depth);
        Ok(NullQueue {
            taken: Vec::with_capacity(depth),
            depth,
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct NullQueue {
    taken: Vec<Tag>,
    depth: usize,
}

impl DriverQueue for NullQueue {
    #[inline]
    fn queue_batch(&mut self, batch: &[Tag], _slots: &mut Slots, _now: u64) -> usize {
        let count = batch.len().min(self.depth - self.taken.len());
        self.taken.extend_from_slice(&batch[..count]);
        count
    }

    #[inline]
    fn poll(&mut self, slots: &mut Slots, _now: u64, done: &mut Done) {
        let count = self.taken.len().min(done.room());
        for tag in self.taken.drain(..count) {
            done.push(tag, Ok(slots.bytes(tag)));
        }
    }

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}
