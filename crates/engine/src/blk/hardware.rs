//! The hardware queue: what the driver has, what it has refused, and what other cores have sent.
//!
//! Invariants: one thread owns it; the driver has at most `depth` requests; a request that was refused, or is to be tried
//! again, is on the dispatch list, and that is served before anything new. A request leaves it once: to the core that
//! submitted it.

mod finish;

use super::accounts::HardwareCounts;
use super::driver::{Done, DriverQueue, Limits};
use super::link::Inbound;
use super::request::Outcome;
use super::slot::{Slot, Slots, State, Tag};
use std::collections::VecDeque;

/// Requests given to the driver, or taken from another core, at a time.
pub(super) const BATCH: usize = 32;

/// Units of [`Slot::started`]: about a millisecond.
const STARTED_SHIFT: u32 = 20;

#[expect(
    clippy::cast_possible_truncation,
    reason = "it wraps, and is only compared with others of the same weeks"
)]
const fn units(now: u64) -> u32 {
    (now >> STARTED_SHIFT) as u32
}

/// Timeout of requests that are late, and retries of requests that fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) timeout_ns: u64,
    pub(super) retries_max: u8,
}

#[derive(Debug)]
pub(super) struct Hardware<Q> {
    queue: Q,
    pub(super) slots: Slots,
    limits: Limits,
    patience: Patience,
    /// The dispatch list.
    waiting: VecDeque<Tag>,
    in_flight: usize,
    /// Requests in flight that the driver has finished.
    done: Done,
    /// Cores that send their requests here. Some have gone.
    links: Vec<Option<Inbound>>,
    /// Whether requests of other cores have been left where they are, for want of room.
    pub(super) is_contended: bool,
    /// Whose turn it is.
    turn: usize,
    next_look_ns: u64,
    pub(super) counts: HardwareCounts,
}

impl<Q: DriverQueue> Hardware<Q> {
    pub(super) fn new(queue: Q, limits: Limits, tags: u16, patience: Patience) -> Self {
        Self {
            queue,
            slots: Slots::new(tags, limits.transfer_bytes_max),
            limits,
            patience,
            waiting: VecDeque::with_capacity(usize::from(tags)),
            in_flight: 0,
            done: Done::new(limits.depth),
            links: Vec::new(),
            is_contended: false,
            turn: 0,
            next_look_ns: 0,
            counts: HardwareCounts::default(),
        }
    }

    /// How many more requests it takes without putting them on the dispatch list.
    #[inline]
    pub(super) fn room(&self) -> usize {
        usize::from(self.limits.depth).saturating_sub(self.in_flight + self.waiting.len())
    }

    /// Whether nothing is in it.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting.is_empty() && self.links.iter().flatten().all(Inbound::is_empty)
    }

    /// See [`DriverQueue::bell`]; `None` too where it may get requests from other cores, or has some to give to the driver.
    pub(super) fn bell(&self) -> Option<i32> {
        let is_all_with_driver = self.waiting.is_empty() && self.links.iter().all(Option::is_none);
        self.queue.bell().filter(|_| is_all_with_driver && self.in_flight > 0)
    }

    /// Looks whether other cores' requests are left.
    #[inline]
    pub(super) fn end_turns(&mut self) {
        self.is_contended = self.links.iter().flatten().any(|link| !link.is_empty());
    }

    pub(super) fn link(&mut self, link: Inbound) {
        match self.links.iter().position(Option::is_none) {
            Some(free) => self.links[free] = Some(link),
            None => self.links.push(Some(link)),
        }
    }

    /// Gives requests to the driver, behind those it has refused.
    #[inline]
    pub(super) fn start(&mut self, batch: &[Tag], now: u64) {
        self.serve_waiting(now);
        let taken = if self.waiting.is_empty() {
            self.give(batch, now)
        } else {
            0
        };
        if taken < batch.len() {
            self.put_off(&batch[taken..]);
        }
    }

    #[cold]
    fn put_off(&mut self, refused: &[Tag]) {
        for tag in refused {
            self.slots.at_mut(*tag).state = State::Waiting;
        }
        self.waiting.extend(refused);
    }

    /// Gives the driver what it has refused before.
    #[inline]
    pub(super) fn serve_waiting(&mut self, now: u64) {
        if !self.waiting.is_empty() {
            self.serve_some(now);
        }
    }

    #[cold]
    fn serve_some(&mut self, now: u64) {
        while !self.waiting.is_empty() {
            let mut batch = [Tag::NONE; BATCH];
            let mut count = 0;
            for (to, tag) in batch.iter_mut().zip(&self.waiting) {
                *to = *tag;
                count += 1;
            }
            let taken = self.give(&batch[..count], now);
            self.waiting.drain(..taken);
            if taken < count {
                return;
            }
        }
    }

    /// How many of them the driver has taken.
    #[inline]
    fn give(&mut self, batch: &[Tag], now: u64) -> usize {
        let room = usize::from(self.limits.depth) - self.in_flight;
        let batch = &batch[..batch.len().min(room)];
        if batch.is_empty() {
            return 0;
        }
        let started = units(now);
        for tag in batch {
            let slot = self.slots.at_mut(*tag);
            slot.state = State::Started;
            slot.started = started;
        }
        let taken = self.queue.queue_batch(batch, &mut self.slots, now, &mut self.done);
        assert!(taken <= batch.len(), "a driver takes no more than it is given");
        for tag in &batch[taken..] {
            self.slots.at_mut(*tag).state = State::Waiting;
        }
        self.in_flight += taken;
        self.counts.batches += 1;
        self.counts.requests += taken as u64;
        self.counts.refused += (batch.len() - taken) as u64;
        taken
    }

    /// How many cores have turns: the one that owns it, and those that are linked to it.
    pub(super) fn sources(&self) -> usize {
        self.links.len() + 1
    }

    /// Whose turn it is: a link's, or that of the core itself.
    pub(super) fn next_turn(&mut self) -> Option<usize> {
        let turn = self.turn % self.sources();
        self.turn = (turn + 1) % self.sources();
        turn.checked_sub(1)
    }

    /// Starts requests of another core, at most a batch. Whether there were any.
    pub(super) fn take_from_link(&mut self, index: usize, now: u64) -> bool {
        let room = self.room().min(BATCH);
        let Some(link) = &mut self.links[index] else {
            return false;
        };
        let mut batch = [Tag::NONE; BATCH];
        let origin = u16::try_from(index).expect("a device has fewer than 2^16 cores");
        let taken = link.take(&mut batch[..room], &mut self.slots, origin);
        if link.is_over() {
            self.links[index] = None;
        }
        self.start(&batch[..taken], now);
        taken > 0
    }

    /// Takes what the driver has finished. `finished` gets requests of this core: what is in its slot, and what became of it;
    /// other cores are sent theirs.
    #[inline]
    pub(super) fn poll(&mut self, now: u64, finished: &mut impl FnMut(Tag, &Slot, Outcome)) {
        if self.in_flight == 0 {
            return;
        }
        self.queue.poll(&mut self.slots, now, &mut self.done);
        let mut done = std::mem::take(&mut self.done);
        for (tag, outcome) in done.all() {
            self.finish(*tag, *outcome, finished);
        }
        done.clear();
        self.done = done;
        if now >= self.next_look_ns {
            self.look_for_late(now, finished);
        }
    }

    /// Sends the other cores what is finished of theirs.
    pub(super) fn publish(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.publish();
        }
    }

    /// Checks the conditions that must hold between two calls.
    pub(super) fn check_invariants(&self) {
        let with = |state| {
            (0..self.slots.tags())
                .filter(|tag| self.slots.at(Tag(*tag)).state == state)
                .count()
        };
        assert_eq!(with(State::Started), self.in_flight);
        assert_eq!(with(State::Waiting), self.waiting.len());
        assert!(self.in_flight <= usize::from(self.limits.depth));
        for tag in &self.waiting {
            assert_eq!(self.slots.at(*tag).state, State::Waiting);
        }
        for (index, (tag, _)) in self.done.all().iter().enumerate() {
            assert_eq!(self.slots.at(*tag).state, State::Started);
            let is_it = |(earlier, _): &(Tag, Outcome)| earlier == tag;
            assert!(!self.done.all()[..index].iter().any(is_it), "each tag once");
        }
    }
}
