//! How a core's requests get to a hardware queue that another core owns, and back: two rings, one each way.
//!
//! Messages carry all that the driver needs, so that no slot is shared: a cache line moves for two or three requests one
//! way, for eight the other. Tags bound both rings: a ring is full only when nobody takes out of it any more.

use super::request::{Durability, Errno, Operation, Outcome, Request};
use super::slot::{Slots, State, Tag};
use homenode_shared::{Receiver, Sender, ring};

/// The submitting core's end.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) slots: Slots,
    requests: Sender<3>,
    completions: Receiver<1>,
}

/// The hardware queue's end.
#[derive(Debug)]
pub(super) struct Inbound {
    requests: Receiver<3>,
    completions: Sender<1>,
    /// A message that was taken out of the ring, and for which there was no room.
    next: Option<[u64; 3]>,
    /// Requests taken and not given back.
    pending: usize,
    /// Whether room of messages may not have gone back to the other core.
    has_taken: bool,
}

pub(super) fn link(tags: u16, piece_bytes: u32) -> (Outbound, Inbound) {
    let (requests, requests_in) = ring(usize::from(tags));
    let (completions, completions_in) = ring(usize::from(tags));
    let outbound = Outbound {
        slots: Slots::new(tags, piece_bytes),
        requests,
        completions: completions_in,
    };
    let inbound = Inbound {
        requests: requests_in,
        completions,
        next: None,
        pending: 0,
        has_taken: false,
    };
    (outbound, inbound)
}

// The third word of a request: bytes in the low half, then the tag, the operation and three flags.
const TAG_SHIFT: u32 = 32;
const OPERATION_SHIFT: u32 = 48;
const FLUSH_BEFORE: u64 = 1 << 56;
const FORCED: u64 = 1 << 57;
/// The next message is merged into this one.
const MORE: u64 = 1 << 58;

impl Outbound {
    /// Sends a request and those that were merged into it; how many these are.
    pub(super) fn send(&mut self, head: Tag) -> usize {
        let mut count = 0;
        let mut next = head;
        while next != Tag::NONE {
            let tag = next;
            let slot = self.slots.at_mut(tag);
            slot.state = State::Sent;
            next = slot.next;
            let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
            let request = &slot.request;
            let word = u64::from(request.bytes)
                | u64::from(tag.0) << TAG_SHIFT
                | (request.operation as u64) << OPERATION_SHIFT
                | flag(request.durability.has_flush_before(), FLUSH_BEFORE)
                | flag(request.durability.is_forced(), FORCED)
                | flag(next != Tag::NONE, MORE);
            // There is room for as many requests as there are tags, unless the hardware queue is gone: then it is among the lost.
            let _ = self.requests.push([request.offset, request.buffer, word]);
            count += 1;
        }
        count
    }

    pub(super) fn publish(&mut self) {
        self.requests.publish();
    }

    /// The next one that has come back.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<(Tag, Outcome)> {
        let [word] = self.completions.pop()?;
        let (tag, outcome) = outcome_of(word);
        self.slots.at_mut(tag).state = State::Free;
        Some((tag, outcome))
    }

    /// A request that will not come back, because the hardware queue is gone.
    pub(super) fn lost(&mut self) -> Option<Tag> {
        if !self.completions.is_closed() {
            return None;
        }
        let mut tags = (0..self.slots.tags()).map(Tag);
        let lost = tags.find(|tag| self.slots.at(*tag).state == State::Sent)?;
        self.slots.at_mut(lost).state = State::Free;
        Some(lost)
    }
}

impl Inbound {
    /// Takes requests, as many as `batch` has room for, and chains what is merged. Gives how many.
    pub(super) fn take(&mut self, batch: &mut [Tag], slots: &mut Slots, origin: u16) -> usize {
        let mut count = 0;
        while count < batch.len() {
            let Some(mut message) = self.next.take().or_else(|| self.requests.pop()) else {
                break;
            };
            let head = self.enter(message, slots, origin);
            let mut tail = head;
            while message[2] & MORE != 0 {
                // They were published together.
                message = self.requests.pop().expect("a chain is sent whole");
                let tag = self.enter(message, slots, origin);
                slots.at_mut(tag).state = State::Merged;
                slots.at_mut(tail).next = tag;
                tail = tag;
            }
            batch[count] = head;
            count += 1;
        }
        if self.next.is_none() {
            self.next = self.requests.pop();
        }
        self.has_taken |= count > 0;
        count
    }

    fn enter(&mut self, message: [u64; 3], slots: &mut Slots, origin: u16) -> Tag {
        let [offset, buffer, word] = message;
        let operation = Operation::ALL[usize::try_from(word >> OPERATION_SHIFT & 0xff).expect("a masked byte")];
        let request = Request {
            operation,
            durability: match (word & FLUSH_BEFORE != 0, word & FORCED != 0) {
                (false, false) => Durability::Later,
                (true, false) => Durability::FlushBefore,
                (false, true) => Durability::Forced,
                (true, true) => Durability::FlushBeforeAndForced,
            },
            stream: 0,
            bytes: low(word),
            offset,
            buffer,
            user: 0,
        };
        let tag = Tag(tag_of(word >> TAG_SHIFT));
        slots.at_mut(tag).fill(&request, 0, origin);
        self.pending += 1;
        tag
    }

    /// Whether nothing has come that was not taken. As of the last look.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    /// Whether the other core has gone and has all of its requests back.
    pub(super) fn is_over(&self) -> bool {
        self.pending == 0 && self.next.is_none() && self.requests.is_closed()
    }

    #[inline]
    pub(super) fn give_back(&mut self, tag: Tag, outcome: Outcome) {
        self.pending -= 1;
        // A core that has gone does not want it any more.
        let _ = self.completions.push([word_of(tag, outcome)]);
    }

    /// First the room of requests, then their ends: whoever has a tag back has the room for its next request too.
    pub(super) fn publish(&mut self) {
        if std::mem::take(&mut self.has_taken) {
            self.requests.release();
        }
        self.completions.publish();
    }
}

/// Packs a tag and an outcome into a word: the bytes, or the number of the error with bit 31 set.
fn word_of(tag: Tag, outcome: Outcome) -> u64 {
    let result = match outcome {
        Ok(bytes) => u64::from(bytes),
        Err(Errno(number)) => u64::from(number.unsigned_abs()) | 1 << 31,
    };
    result | u64::from(tag.0) << TAG_SHIFT
}

fn outcome_of(word: u64) -> (Tag, Outcome) {
    let result = low(word);
    let number = i32::try_from(result & !(1 << 31)).expect("bit 31 is cleared");
    let outcome = if result & 1 << 31 == 0 {
        Ok(result)
    } else {
        Err(Errno(number))
    };
    (Tag(tag_of(word >> TAG_SHIFT)), outcome)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low(word: u64) -> u32 {
    word as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the low quarter is meant")]
const fn tag_of(word: u64) -> u16 {
    word as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(outbound: &mut Outbound, tags: [u16; 2]) {
        let [head, tail] = tags.map(Tag);
        for tag in [head, tail] {
            let request = Request::read(u64::from(tag.0) * 512, 512, 0);
            outbound.slots.at_mut(tag).fill(&request, 0, 0);
        }
        outbound.slots.at_mut(head).next = tail;
        assert_eq!(outbound.send(head), 2);
        outbound.publish();
    }

    /// The hardware queue takes one chain of two while another waits; its tags come back and are sent again.
    #[test]
    fn a_returned_tag_has_room_in_the_ring() {
        let (mut outbound, mut inbound) = link(4, 1 << 20);
        let mut slots = Slots::new(4, 1 << 20);
        send(&mut outbound, [0, 1]);
        send(&mut outbound, [2, 3]);
        let mut order = Vec::new();
        for _ in 0..3 {
            let mut batch = [Tag::NONE; 1];
            assert_eq!(inbound.take(&mut batch, &mut slots, 0), 1);
            let [head] = batch;
            let tail = slots.at(head).next;
            order.extend([head, tail]);
            for tag in [head, tail] {
                inbound.give_back(tag, Ok(512));
            }
            inbound.publish();
            assert_eq!(outbound.receive(), Some((head, Ok(512))));
            assert_eq!(outbound.receive(), Some((tail, Ok(512))));
            send(&mut outbound, [head.0, tail.0]);
        }
        assert_eq!(order, [0, 1, 2, 3, 0, 1].map(Tag));
    }

    #[test]
    fn messages_to_a_dropped_receiver_are_lost() {
        let (mut outbound, inbound) = link(4, 1 << 20);
        drop(inbound);
        for _ in 0..4 {
            send(&mut outbound, [0, 1]);
            assert_eq!(outbound.receive(), None);
            assert_eq!(
                [outbound.lost(), outbound.lost(), outbound.lost()],
                [Some(Tag(0)), Some(Tag(1)), None]
            );
        }
    }
}
