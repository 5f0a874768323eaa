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
        Ok(NullQueue)
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct NullQueue;

impl DriverQueue for NullQueue {
    #[inline]
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        for tag in batch {
            done.push(*tag, Ok(slots.bytes(*tag)));
        }
        batch.len()
    }

    fn poll(&mut self, _slots: &mut Slots, _now: u64, _done: &mut Done) {}

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}
