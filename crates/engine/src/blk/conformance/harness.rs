//! How the suite gives requests to a driver and takes them back, and what must hold of each.

use super::{Buffers, Data, Suite};
use crate::blk::driver::DriverQueue;
use crate::blk::hardware::BATCH;
use crate::blk::request::Request;
use crate::blk::slot::{OWN, State, Tag};

impl<Q: DriverQueue, B: Buffers, S: FnMut() -> u64> Suite<'_, Q, B, S> {
    /// A length that both memory and device have room for `depth` of.
    pub(super) fn piece(&self) -> u32 {
        let room = self.buffers.bytes().min(self.limits.device_bytes) / u64::from(self.limits.depth) / 2;
        let piece = u32::try_from(room)
            .unwrap_or(u32::MAX)
            .min(self.limits.transfer_bytes_max)
            .min(64 << 10);
        let piece = piece & !(self.limits.block_bytes - 1);
        assert!(piece > 0, "the suite needs more room");
        piece
    }

    pub(super) fn depth(&self) -> u16 {
        self.limits.depth
    }

    pub(super) fn prepare(&mut self, tag: Tag, request: &Request) {
        self.slots.at_mut(tag).fill(request, 0, OWN);
    }

    /// Gives all of `tags` to the driver, which may need several attempts, and waits until they are finished.
    pub(super) fn carry_out(&mut self, tags: &[Tag]) {
        let mut left = tags;
        while !left.is_empty() {
            left = &left[self.give(left)..];
            self.poll();
        }
        self.finish(tags);
    }

    /// Gives requests to the driver, as many as it takes.
    pub(super) fn give(&mut self, tags: &[Tag]) -> usize {
        let now = (self.settle)();
        for tag in tags {
            self.slots.at_mut(*tag).state = State::Started;
        }
        let in_flight = self.in_flight() - tags.len();
        let room = usize::from(self.limits.depth) - in_flight;
        let batch = &tags[..tags.len().min(room).min(BATCH)];
        let taken = self.queue.queue_batch(batch, &mut self.slots, now, &mut self.done);
        assert!(taken <= batch.len(), "2: a driver takes at most the given requests");
        assert!(
            taken > 0 || in_flight > 0 || batch.is_empty(),
            "2: when it has none, it takes one"
        );
        for tag in &tags[taken..] {
            self.slots.at_mut(*tag).state = State::Waiting;
        }
        taken
    }

    fn in_flight(&self) -> usize {
        (0..self.slots.tags())
            .filter(|tag| self.slots.at(Tag(*tag)).state == State::Started)
            .count()
    }

    pub(super) fn poll(&mut self) {
        let now = (self.settle)();
        self.queue.poll(&mut self.slots, now, &mut self.done);
        for (tag, outcome) in self.done.all() {
            let slot = self.slots.at(*tag);
            assert!(slot.state == State::Started, "1: each tag once");
            let asked = self.slots.bytes(*tag);
            if let Ok(bytes) = outcome {
                assert!(*bytes <= asked, "4: no more than it is asked for");
                assert!(bytes.is_multiple_of(self.limits.block_bytes), "4: whole blocks");
            }
            self.slots.at_mut(*tag).state = State::Free;
            self.seen.push((*tag, *outcome));
        }
        self.done.clear();
    }

    /// Waits for these requests, which are to go well.
    pub(super) fn finish(&mut self, tags: &[Tag]) {
        for tag in tags {
            let found = loop {
                if let Some(found) = self.seen.iter().position(|(seen, _)| seen == tag) {
                    break self.seen.swap_remove(found);
                }
                self.poll();
            };
            let (_, outcome) = found;
            let bytes = outcome.unwrap_or_else(|errno| panic!("a request in its limits failed: {errno}"));
            let asked = self.slots.bytes(*tag);
            if bytes < asked {
                assert!(bytes > 0, "4: a read within the device returned no bytes");
                self.ask_again(*tag, bytes);
            }
        }
    }

    /// Carries out the rest of a request or chain with `bytes` bytes done; each request of a chain alone.
    fn ask_again(&mut self, head: Tag, bytes: u32) {
        let (mut left, mut next) = (bytes, head);
        while next != Tag::NONE {
            let tag = next;
            let slot = self.slots.at_mut(tag);
            next = std::mem::replace(&mut slot.next, Tag::NONE);
            let step = left.min(slot.request.bytes - slot.done);
            left -= step;
            slot.done += step;
            if slot.done < slot.request.bytes {
                slot.state = State::Waiting;
                self.carry_out(&[tag]);
            }
        }
    }

    /// Bytes that depend on `salt`.
    pub(super) fn pattern(bytes: u32, salt: u64) -> Vec<u8> {
        let word = |index: u64| {
            (index.wrapping_add(salt << 32))
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .to_le_bytes()
        };
        (0..u64::from(bytes) / 8).flat_map(word).collect()
    }

    pub(super) fn check_buffer(&self, buffer: u64, expected: &[u8], what: &str) {
        let mut found = vec![0; expected.len()];
        self.buffers.copy(buffer, &mut found);
        assert!(found == expected || self.data == Data::Forgotten, "{what}");
    }

    pub(super) fn read_back(&mut self, offset: u64, expected: &[u8], what: &str) {
        let bytes = u32::try_from(expected.len()).expect("a piece has less than 4 GiB");
        self.buffers.fill(0, &vec![0xa5; expected.len()]);
        self.prepare(Tag(0), &Request::read(offset, bytes, 0));
        self.carry_out(&[Tag(0)]);
        self.check_buffer(0, expected, what);
    }
}
