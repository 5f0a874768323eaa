//! Stands on another driver and goes wrong: the ways devices fail, repeatable by a seed.
//!
//! What it does is within the contract: it refuses requests, tells errors (of which some pass when they are tried again), does less
//! than it is asked for, and keeps requests until they are given up.

use super::delay::Random;
use super::{Done, Driver, DriverQueue, Late, Limits};
use crate::blk::request::Errno;
use crate::blk::slot::{Slots, Tag};
use homenode_policy::NodeId;

/// How many requests in a thousand go wrong, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Refused for now, with all behind them.
    pub refused: u16,
    /// Finished with [`Errno::IO`].
    pub failed: u16,
    /// Finished with [`Errno::AGAIN`].
    pub busy: u16,
    /// Done in part.
    pub short: u16,
    /// Never finished: only given up.
    pub silent: u16,
}

/// Any driver, with faults.
#[derive(Clone, Debug)]
pub struct Faults<D> {
    inner: D,
    rates: Rates,
    seed: u64,
}

impl<D> Faults<D> {
    /// Requests of `inner` go wrong at these rates.
    pub fn new(inner: D, rates: Rates, seed: u64) -> Self {
        Self { inner, rates, seed }
    }
}

impl<D: Driver> Driver for Faults<D> {
    type Queue = FaultsQueue<D::Queue>;

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        self.inner.queue_homes()
    }

    fn queue(&self, index: usize) -> std::io::Result<Self::Queue> {
        let limits = self.limits();
        Ok(FaultsQueue {
            inner: self.inner.queue(index)?,
            rates: self.rates,
            random: Random::new(self.seed.wrapping_add(index as u64)),
            fresh: Done::new(limits.depth),
            silent: Vec::with_capacity(usize::from(limits.depth)),
            block_bytes: limits.block_bytes,
            in_flight: 0,
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct FaultsQueue<Q> {
    inner: Q,
    rates: Rates,
    random: Random,
    fresh: Done,
    /// Finished below, but never told.
    silent: Vec<Tag>,
    block_bytes: u32,
    /// Requests that it has.
    in_flight: usize,
}

impl<Q> FaultsQueue<Q> {
    fn happens(&mut self, rate: u16) -> bool {
        rate > 0 && self.random.below(1000) < u64::from(rate)
    }

    /// Tells what is finished below, or something else.
    fn tell(&mut self, slots: &Slots, done: &mut Done) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for &(tag, outcome) in fresh.all() {
            let outcome = match outcome {
                Ok(_) if self.happens(self.rates.failed) => Err(Errno::IO),
                Ok(_) if self.happens(self.rates.busy) => Err(Errno::AGAIN),
                Ok(_) if self.happens(self.rates.silent) => {
                    self.silent.push(tag);
                    continue;
                }
                Ok(bytes)
                    if bytes > self.block_bytes
                        && slots.operation(tag).has_data()
                        && self.happens(self.rates.short) =>
                {
                    let part = 1 + self.random.below(u64::from(bytes / self.block_bytes) - 1);
                    Ok(u32::try_from(part).expect("the part is less than the blocks of a request") * self.block_bytes)
                }
                outcome => outcome,
            };
            self.in_flight -= 1;
            done.push(tag, outcome);
        }
        fresh.clear();
        self.fresh = fresh;
    }
}

impl<Q: DriverQueue> DriverQueue for FaultsQueue<Q> {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, now: u64, done: &mut Done) -> usize {
        let all = batch.len();
        let accepted = (0..all).find(|_| self.happens(self.rates.refused)).unwrap_or(all);
        // With nothing to do it takes one at least.
        let accepted = accepted.max(usize::from(self.in_flight == 0)).min(all);
        let taken = self.inner.queue_batch(&batch[..accepted], slots, now, &mut self.fresh);
        self.in_flight += taken;
        self.tell(slots, done);
        taken
    }

    fn poll(&mut self, slots: &mut Slots, now: u64, done: &mut Done) {
        self.inner.poll(slots, now, &mut self.fresh);
        self.tell(slots, done);
    }

    fn timeout(&mut self, tag: Tag, slots: &mut Slots) -> Late {
        let late = match self.silent.iter().position(|silent| *silent == tag) {
            Some(index) => {
                self.silent.swap_remove(index);
                Late::GivenUp
            }
            None => self.inner.timeout(tag, slots),
        };
        self.in_flight -= usize::from(late == Late::GivenUp);
        late
    }
}
