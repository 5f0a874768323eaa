//! Stands on another driver and holds back what that has finished: latency by a distribution, repeatable by its seed.

use super::{Done, Driver, DriverQueue, Late, Limits};
use crate::blk::request::Outcome;
use crate::blk::slot::{Slots, Tag};
use homenode_policy::NodeId;

/// How long requests take, ns. All draw from the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// All alike.
    Constant(u64),
    /// From the first to the second, evenly.
    Uniform(u64, u64),
    /// `usual`, but one in `every` takes `rare`: a tail.
    Tail {
        /// Most requests.
        usual: u64,
        /// The others.
        rare: u64,
        /// Number of requests of which one takes `rare`, on average; at least 1.
        every: u64,
    },
}

/// Any driver, later.
#[derive(Clone, Debug)]
pub struct Delay<D> {
    inner: D,
    distribution: Distribution,
    seed: u64,
}

impl<D> Delay<D> {
    /// Each request of `inner` takes as long as `distribution` says, at least.
    pub fn new(inner: D, distribution: Distribution, seed: u64) -> Self {
        Self {
            inner,
            distribution,
            seed,
        }
    }
}

impl<D: Driver> Driver for Delay<D> {
    type Queue = DelayQueue<D::Queue>;

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        self.inner.queue_homes()
    }

    fn queue(&self, index: usize) -> std::io::Result<Self::Queue> {
        let depth = self.limits().depth;
        Ok(DelayQueue {
            inner: self.inner.queue(index)?,
            distribution: self.distribution,
            random: Random::new(self.seed.wrapping_add(index as u64)),
            due_ns: Vec::new(),
            held: Vec::with_capacity(usize::from(depth)),
            fresh: Done::new(depth),
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct DelayQueue<Q> {
    inner: Q,
    distribution: Distribution,
    random: Random,
    /// When each tag's request may be finished.
    due_ns: Vec<u64>,
    /// Finished below, and not due yet.
    held: Vec<(Tag, Outcome)>,
    fresh: Done,
}

impl<Q> DelayQueue<Q> {
    /// Tells what is due of what is finished below.
    fn tell(&mut self, now: u64, done: &mut Done) {
        self.held.extend(self.fresh.all());
        self.fresh.clear();
        let mut index = 0;
        while index < self.held.len() {
            let (tag, outcome) = self.held[index];
            if self.due_ns[usize::from(tag.0)] <= now {
                let _ = self.held.swap_remove(index);
                done.push(tag, outcome);
            } else {
                index += 1;
            }
        }
    }
}

impl<Q: DriverQueue> DriverQueue for DelayQueue<Q> {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, now: u64, done: &mut Done) -> usize {
        let taken = self.inner.queue_batch(batch, slots, now, &mut self.fresh);
        // Once: the number of tags does not change.
        self.due_ns.resize(usize::from(slots.tags()), 0);
        for tag in &batch[..taken] {
            self.due_ns[usize::from(tag.0)] = now.saturating_add(self.distribution.draw(&mut self.random));
        }
        self.tell(now, done);
        taken
    }

    fn poll(&mut self, slots: &mut Slots, now: u64, done: &mut Done) {
        self.inner.poll(slots, now, &mut self.fresh);
        self.tell(now, done);
    }

    fn timeout(&mut self, tag: Tag, slots: &mut Slots) -> Late {
        match self.held.iter().position(|(held, _)| *held == tag) {
            Some(index) => {
                let _ = self.held.swap_remove(index);
                Late::GivenUp
            }
            None => self.inner.timeout(tag, slots),
        }
    }
}

impl Distribution {
    fn draw(self, random: &mut Random) -> u64 {
        match self {
            Self::Constant(delay) => delay,
            Self::Uniform(least, most) => least + random.below(most.saturating_sub(least).saturating_add(1)),
            Self::Tail { usual, every, .. } if random.below(every) > 0 => usual,
            Self::Tail { rare, .. } => rare,
        }
    }
}

/// Numbers that look random and depend on the seed alone (splitmix64, Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `limit`, which is at least 1.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % limit.max(1)
    }
}
