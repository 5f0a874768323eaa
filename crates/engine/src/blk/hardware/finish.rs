//! Handling of requests that the driver has finished, or is late with.

use super::{Hardware, STARTED_SHIFT, units};
use crate::blk::driver::{DriverQueue, Late, is_transient};
use crate::blk::request::{Errno, Outcome};
use crate::blk::slot::{OWN, Slot, State, Tag};

impl<Q: DriverQueue> Hardware<Q> {
    #[inline]
    pub(super) fn finish(&mut self, head: Tag, outcome: Outcome, finished: &mut impl FnMut(Tag, &Slot, Outcome)) {
        let slot = self.slots.at_mut(head);
        assert!(slot.state == State::Started, "a driver gives each tag once");
        self.in_flight -= 1;
        if let Ok(got) = outcome
            && slot.is_plain()
            && got == slot.request.bytes - slot.done
            && slot.link == OWN
        {
            slot.state = State::Free;
            return finished(head, slot, Ok(slot.request.bytes));
        }
        match outcome {
            Ok(got) => self.advance(head, got, finished),
            Err(errno) => self.fail(head, errno, finished),
        }
    }

    /// Less than all of it is done, or it is a chain, or there is more to do for it.
    fn advance(&mut self, head: Tag, got: u32, finished: &mut impl FnMut(Tag, &Slot, Outcome)) {
        let asked = self.slots.bytes(head);
        assert!(got <= asked, "a driver does no more than it is asked for");
        let slot = self.slots.at_mut(head);
        let bytes = slot.request.bytes;
        if slot.request.durability.has_flush_before() {
            slot.request.durability = slot.request.durability.flushed();
            return self.again(head);
        }
        if slot.done == bytes {
            return self.leave(head, Ok(bytes), finished);
        }
        if got == 0 && asked > 0 {
            return self.fail(head, Errno::IO, finished);
        }
        if got < asked {
            self.counts.short += 1;
        }
        let mut left = got;
        let mut next = head;
        while next != Tag::NONE {
            let tag = next;
            let slot = self.slots.at_mut(tag);
            next = std::mem::replace(&mut slot.next, Tag::NONE);
            let bytes = slot.request.bytes;
            let step = left.min(bytes - slot.done);
            left -= step;
            slot.done += step;
            let is_to_flush = slot.request.durability.is_forced() && !self.limits.can_force;
            if slot.done < bytes || is_to_flush {
                self.again(tag);
            } else {
                self.leave(tag, Ok(bytes), finished);
            }
        }
    }

    fn fail(&mut self, head: Tag, errno: Errno, finished: &mut impl FnMut(Tag, &Slot, Outcome)) {
        self.counts.errors += 1;
        if self.slots.at(head).next != Tag::NONE {
            // Only one of them may be at fault: each is tried alone.
            let mut next = head;
            while next != Tag::NONE {
                let tag = next;
                next = std::mem::replace(&mut self.slots.at_mut(tag).next, Tag::NONE);
                self.again(tag);
            }
            return;
        }
        let slot = self.slots.at_mut(head);
        if is_transient(errno) && slot.retries < self.patience.retries_max {
            slot.retries += 1;
            self.counts.retries += 1;
            return self.again(head);
        }
        self.leave(head, Err(errno), finished);
    }

    fn again(&mut self, tag: Tag) {
        self.slots.at_mut(tag).state = State::Waiting;
        self.waiting.push_back(tag);
    }

    #[inline]
    fn leave(&mut self, tag: Tag, outcome: Outcome, finished: &mut impl FnMut(Tag, &Slot, Outcome)) {
        let slot = self.slots.at_mut(tag);
        slot.state = State::Free;
        if slot.link == OWN {
            finished(tag, slot, outcome);
        } else {
            let link = &mut self.links[usize::from(slot.link)];
            link.as_mut()
                .expect("a link stays until its requests have left")
                .give_back(tag, outcome);
        }
    }

    pub(super) fn look_for_late(&mut self, now: u64, finished: &mut impl FnMut(Tag, &Slot, Outcome)) {
        self.next_look_ns = now.saturating_add(self.patience.timeout_ns / 4);
        let limit = u32::try_from(self.patience.timeout_ns >> STARTED_SHIFT)
            .unwrap_or(u32::MAX)
            .max(1);
        for tag in (0..self.slots.tags()).map(Tag) {
            let slot = self.slots.at(tag);
            if slot.state != State::Started || units(now).wrapping_sub(slot.started) < limit {
                continue;
            }
            self.counts.timeouts += 1;
            match self.queue.timeout(tag, &mut self.slots) {
                Late::Wait => self.slots.at_mut(tag).started = units(now),
                Late::GivenUp => self.finish(tag, Err(Errno::TIMED_OUT), finished),
            }
        }
    }
}
