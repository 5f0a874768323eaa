//! The software queue: where one core's requests for one hardware queue accumulate (the paper's staging area), are merged
//! and put in order. One thread owns it, and there is nothing atomic in it but its tags' common rest.

use super::accounts::SoftwareCounts;
use super::hardware::BATCH;
use super::link::Outbound;
use super::request::{Completion, Durability, Outcome, Request};
use super::scheduler::{Merging, Scheduler};
use super::slot::{Slot, Slots, State, Tag};
use homenode_shared::Tags;

#[derive(Debug)]
pub(super) struct SoftwareQueue {
    /// Index of the hardware queue in the device.
    pub(super) queue: usize,
    pub(super) outlet: Outlet,
    pub(super) tags: Tags,
    pub(super) stage: Stage,
    /// Requests that are on their way to another core, or in its hardware queue.
    pub(super) sent: usize,
    /// Requests that it has taken and that are not finished.
    pub(super) pending: usize,
}

/// The staging area.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) plug: Vec<Tag>,
    last: Last,
    pub(super) scheduler: Scheduler,
    merging: Merging,
    /// Requests that are in it.
    pub(super) count: usize,
}

/// The way to the hardware queue.
#[derive(Debug)]
pub(super) enum Outlet {
    /// It is this core's: by index among those.
    Own(usize),
    /// It is another core's.
    Link(Box<Outbound>),
}

/// Request plugged last, if the next request may continue it.
#[derive(Clone, Copy, Debug)]
struct Last {
    tail: Tag,
    segments: u16,
    bytes: u32,
}

impl Last {
    const NONE: Self = Self {
        tail: Tag::NONE,
        segments: 0,
        bytes: 0,
    };
}

impl Stage {
    pub(super) fn new(plug: usize, scheduler: Scheduler, merging: Merging) -> Self {
        Self {
            plug: Vec::with_capacity(plug),
            last: Last::NONE,
            scheduler,
            merging,
            count: 0,
        }
    }

    /// Takes a request whose slot is filled; whether it was merged into the one before it.
    #[inline(always)]
    pub(super) fn add(&mut self, tag: Tag, request: &Request, slots: &mut Slots) -> bool {
        self.count += 1;
        let can_merge = request.operation.has_data() && request.durability == Durability::Later;
        if can_merge && self.last.tail != Tag::NONE && self.continues(request, slots) {
            let last = &mut self.last;
            slots.at_mut(last.tail).next = tag;
            slots.at_mut(tag).state = State::Merged;
            last.tail = tag;
            last.bytes += request.bytes;
            last.segments += 1;
            return true;
        }
        self.plug.push(tag);
        self.last = Last {
            tail: if can_merge { tag } else { Tag::NONE },
            bytes: request.bytes,
            segments: 1,
        };
        false
    }

    /// Whether a request begins where the last one ends, and can be one with it.
    #[inline(always)]
    fn continues(&self, request: &Request, slots: &Slots) -> bool {
        let last = slots.at(self.last.tail);
        last.end() == request.offset
            && last.request.operation == request.operation
            && last.request.stream == request.stream
            && self.last.segments < self.merging.segments_max
            && self.last.bytes.saturating_add(request.bytes) <= self.merging.bytes_max
    }

    /// Forgets the plugged requests after they were started; the stage holds no others.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.plug.clear();
        self.last = Last::NONE;
        self.count = 0;
    }

    /// Puts what is plugged into the scheduler; how many requests were merged by that.
    pub(super) fn schedule(&mut self, slots: &mut Slots, now: u64) -> u64 {
        self.last = Last::NONE;
        let scheduler = &mut self.scheduler;
        self.plug.drain(..).map(|tag| scheduler.insert(tag, slots, now)).sum()
    }

    /// The next ones of the scheduler.
    pub(super) fn take(&mut self, batch: &mut [Tag], slots: &Slots, now: u64) -> usize {
        let count = self.scheduler.take(batch, slots, now);
        for tag in &batch[..count] {
            self.count -= slots.segments(*tag).count();
        }
        count
    }
}

impl SoftwareQueue {
    /// Requests beyond it.
    #[inline]
    pub(super) fn begun(&self) -> usize {
        self.pending - self.stage.count
    }

    /// Ends a request: its tag is free again.
    #[inline]
    pub(super) fn end(
        &mut self,
        tag: Tag,
        slot: &Slot,
        outcome: Outcome,
        took_ns: u64,
        counts: &mut SoftwareCounts,
    ) -> Completion {
        let of_operation = &mut counts.operations[slot.request.operation as usize];
        of_operation.requests += 1;
        of_operation.time_ns = of_operation.time_ns.wrapping_add(took_ns);
        match outcome {
            Ok(bytes) => of_operation.bytes += u64::from(bytes),
            Err(_) => of_operation.errors += 1,
        }
        self.tags.put(tag.0);
        self.pending -= 1;
        Completion {
            user: slot.request.user,
            outcome,
        }
    }

    /// Sends the next ones, at most `count`, to the core that owns the hardware queue. Gives how many requests, merged ones
    /// counted.
    pub(super) fn send(&mut self, count: usize, now: u64) -> usize {
        let Outlet::Link(outbound) = &mut self.outlet else {
            return 0;
        };
        let mut batch = [Tag::NONE; BATCH];
        let count = self.stage.scheduler.take(&mut batch[..count], &outbound.slots, now);
        let sent: usize = batch[..count].iter().map(|tag| outbound.send(*tag)).sum();
        outbound.publish();
        self.stage.count -= sent;
        self.sent += sent;
        sent
    }
}
