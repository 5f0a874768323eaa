//! Schedulers: in which order a software queue's requests go to the hardware queue, when that has no room for all of them.
//!
//! They take nothing from the heap: lists run through the slots, and what is sorted has room for every tag.

mod deadline;
mod fair;

pub(super) use fair::Waiting;
pub use fair::{Shares, Stream};

use super::slot::{Slots, State, Tag};
use deadline::Deadline;
use fair::Fair;
use std::collections::VecDeque;
use std::sync::Arc;

/// Which scheduler a device has.
#[derive(Clone, Debug, Default)]
pub enum Scheduling {
    /// First come, first served. The fastest, and right for devices that are fast themselves.
    #[default]
    None,
    /// Order by offset, reads first; but no request waits for much longer than its deadline. Merges neighbours that have not come one
    /// after the other.
    Deadline,
    /// Streams get shares of the bytes by their weights, and no more than their limits.
    Fair(Vec<Stream>, Arc<Shares>),
}

#[derive(Debug)]
pub(super) enum Scheduler {
    None(VecDeque<Tag>),
    Deadline(Box<Deadline>),
    Fair(Box<Fair>),
}

/// Limits of a device on merged requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merging {
    pub(super) segments_max: u16,
    pub(super) bytes_max: u32,
}

impl Scheduler {
    pub(super) fn new(scheduling: &Scheduling, tags: usize, merging: Merging, waiting: &Arc<Waiting>) -> Self {
        match scheduling {
            Scheduling::None => Self::None(VecDeque::with_capacity(tags)),
            Scheduling::Deadline => Self::Deadline(Box::new(Deadline::new(tags, merging))),
            Scheduling::Fair(streams, shares) => Self::Fair(Box::new(Fair::new(streams, shares, waiting))),
        }
    }

    /// Whether requests can go past it.
    #[inline]
    pub(super) fn is_transparent(&self) -> bool {
        matches!(self, Self::None(waiting) if waiting.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::None(waiting) => waiting.is_empty(),
            Self::Deadline(deadline) => deadline.is_empty(),
            Self::Fair(fair) => fair.is_empty(),
        }
    }

    /// Takes a request; how many requests were merged by that.
    pub(super) fn insert(&mut self, tag: Tag, slots: &mut Slots, now: u64) -> u64 {
        debug_assert!(slots.at(tag).state == State::Staged);
        match self {
            Self::None(waiting) => waiting.push_back(tag),
            Self::Deadline(deadline) => return deadline.insert(tag, slots),
            Self::Fair(fair) => fair.insert(tag, slots, now),
        }
        0
    }

    /// The next ones, at most as many as `batch` has room for; how many.
    pub(super) fn take(&mut self, batch: &mut [Tag], slots: &Slots, now: u64) -> usize {
        match self {
            Self::None(waiting) => {
                let count = batch.len().min(waiting.len());
                for (to, tag) in batch.iter_mut().zip(waiting.drain(..count)) {
                    *to = tag;
                }
                count
            }
            Self::Deadline(deadline) => deadline.take(batch, now),
            Self::Fair(fair) => fair.take(batch, slots, now),
        }
    }
}
