//! Whether a driver keeps the contract of [`DriverQueue`]: one suite for all of them.

mod harness;

use super::driver::{Done, Driver, DriverQueue, Limits};
use super::request::{Operation, Outcome, Request};
use super::slot::{Slots, State, Tag};

/// The memory that a driver's requests name.
pub trait Buffers {
    /// How many bytes there are, from 0 on.
    fn bytes(&self) -> u64;
    /// Puts `from` at `buffer`.
    fn fill(&self, buffer: u64, from: &[u8]);
    /// Copies what is at `buffer`.
    fn copy(&self, buffer: u64, to: &mut [u8]);
}

/// Whether a device has what was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Sentence 7 is checked.
    Kept,
    /// It is a no-op device: all but sentence 7 is checked.
    Forgotten,
}

/// Checks hardware queue 0 of a driver whose device may be overwritten. `settle` is called where a device may need time:
/// it lets some pass and gives the present, ns. The device needs room for twice its depth of its largest transfers, and as
/// much memory; a smaller `transfer_bytes_max` will do for the suite. What is durable cannot be seen from here: of sentence 8 it
/// is checked that flushes end.
///
/// # Errors
/// The driver cannot make its queue.
///
/// # Panics
/// With the sentence that does not hold.
pub fn check<D: Driver>(
    driver: &D,
    buffers: &impl Buffers,
    data: Data,
    settle: impl FnMut() -> u64,
) -> std::io::Result<()> {
    let limits = driver.limits();
    limits.check();
    assert!(!driver.queue_homes().is_empty(), "a device has a hardware queue");
    let tags = limits.depth.saturating_mul(2).min(u16::MAX - 1);
    let mut suite = Suite {
        queue: driver.queue(0)?,
        slots: Slots::new(tags, limits.transfer_bytes_max),
        done: Done::new(limits.depth),
        limits,
        buffers,
        data,
        settle,
        seen: Vec::new(),
    };
    suite.writes_are_read();
    suite.segments_are_in_order();
    suite.the_last_block_is_there();
    suite.refused_requests_are_untouched();
    suite.buffers_are_left_alone();
    suite.flushes();
    suite.zeros();
    suite.nothing_to_do();
    Ok(())
}

struct Suite<'a, Q, B, S> {
    queue: Q,
    slots: Slots,
    limits: Limits,
    buffers: &'a B,
    data: Data,
    settle: S,
    done: Done,
    /// Finished requests, until the suite asks for them.
    seen: Vec<(Tag, Outcome)>,
}

impl<Q: DriverQueue, B: Buffers, S: FnMut() -> u64> Suite<'_, Q, B, S> {
    fn writes_are_read(&mut self) {
        let piece = self.piece();
        let place = |tag: u16| u64::from(tag) * u64::from(piece);
        let tags: Vec<Tag> = (0..self.depth()).map(Tag).collect();
        for operation in [Operation::Write, Operation::Read] {
            for tag in &tags {
                let bytes = Self::pattern(piece, u64::from(tag.0) + 1);
                let request = match operation {
                    Operation::Write => Request::write(place(tag.0), piece, place(tag.0)),
                    // Each into the memory of another one.
                    _ => Request::read(place(tag.0), piece, place(self.depth() - 1 - tag.0)),
                };
                match operation {
                    Operation::Write => self.buffers.fill(request.buffer, &bytes),
                    _ => self.buffers.fill(request.buffer, &vec![0xa5; bytes.len()]),
                }
                self.prepare(*tag, &request);
            }
            self.carry_out(&tags);
        }
        for tag in &tags {
            let expected = Self::pattern(piece, u64::from(tag.0) + 1);
            self.check_buffer(place(self.depth() - 1 - tag.0), &expected, "7: written bytes are read");
        }
    }

    fn segments_are_in_order(&mut self) {
        let count = self.limits.segments_max.min(self.depth());
        let block = self.limits.block_bytes;
        if self.limits.transfer_bytes_max < u32::from(count) * block {
            return;
        }
        let all = Self::pattern(u32::from(count) * block, 77);
        for index in 0..count {
            // Memory in another order than the device's bytes.
            let buffer = u64::from(count - 1 - index) * u64::from(block);
            let at = usize::from(index) * block as usize;
            self.buffers.fill(buffer, &all[at..at + block as usize]);
            let offset = u64::from(index) * u64::from(block);
            self.prepare(Tag(index), &Request::write(offset, block, buffer));
            if index > 0 {
                self.slots.at_mut(Tag(index - 1)).next = Tag(index);
                self.slots.at_mut(Tag(index)).state = State::Merged;
            }
        }
        self.carry_out(&[Tag(0)]);
        self.slots.at_mut(Tag(0)).next = Tag::NONE;
        for index in 0..count {
            let at = usize::from(index) * block as usize;
            let offset = u64::from(index) * u64::from(block);
            let expected = &all[at..at + block as usize];
            self.read_back(
                offset,
                expected,
                "the segments of a request are in the order of its bytes",
            );
        }
    }

    fn the_last_block_is_there(&mut self) {
        let block = self.limits.block_bytes;
        let offset = self.limits.device_bytes - u64::from(block);
        let bytes = Self::pattern(block, 5);
        self.buffers.fill(0, &bytes);
        self.prepare(Tag(0), &Request::write(offset, block, 0));
        self.carry_out(&[Tag(0)]);
        self.read_back(offset, &bytes, "7: the last block");
    }

    fn refused_requests_are_untouched(&mut self) {
        let block = self.limits.block_bytes;
        let place = |tag: u16| u64::from(tag) * u64::from(block);
        let tags: Vec<Tag> = (0..self.depth()).map(Tag).collect();
        for salt in [100, 200] {
            for tag in &tags {
                self.buffers
                    .fill(place(tag.0), &Self::pattern(block, salt + u64::from(tag.0)));
                self.prepare(*tag, &Request::write(place(tag.0), block, place(tag.0)));
            }
            if salt == 100 {
                self.carry_out(&tags);
                continue;
            }
            let taken = self.give(&tags);
            self.finish(&tags[..taken]);
            for tag in &tags {
                let salt = if usize::from(tag.0) < taken { 200 } else { 100 };
                let expected = Self::pattern(block, salt + u64::from(tag.0));
                self.read_back(place(tag.0), &expected, "2: only taken requests are done");
            }
        }
    }

    fn buffers_are_left_alone(&mut self) {
        let block = self.limits.block_bytes;
        self.prepare(Tag(0), &Request::read(0, block, 0));
        self.carry_out(&[Tag(0)]);
        let mine = Self::pattern(block, 9);
        self.buffers.fill(0, &mine);
        for _ in 0..3 {
            self.poll();
        }
        let mut found = vec![0; mine.len()];
        self.buffers.copy(0, &mut found);
        assert!(found == mine, "1: a completed buffer belongs to the submitter");
    }

    fn flushes(&mut self) {
        if !self.limits.has_cache {
            return;
        }
        self.prepare(Tag(0), &Request::flush());
        self.carry_out(&[Tag(0)]);
        assert!(self.seen.is_empty(), "1: each tag once");
    }

    fn zeros(&mut self) {
        let block = self.limits.block_bytes;
        let bytes = Self::pattern(3 * block, 3);
        self.buffers.fill(0, &bytes);
        self.prepare(Tag(0), &Request::write(0, 3 * block, 0));
        self.carry_out(&[Tag(0)]);
        if self.limits.can_zero {
            self.prepare(Tag(0), &Request::write_zeroes(u64::from(block), block));
            self.carry_out(&[Tag(0)]);
            let mut expected = bytes.clone();
            expected[block as usize..2 * block as usize].fill(0);
            self.read_back(0, &expected, "zeros are where they were asked for");
        }
        if self.limits.can_discard {
            self.prepare(Tag(0), &Request::discard(0, block));
            self.carry_out(&[Tag(0)]);
            let last = &bytes[2 * block as usize..];
            self.read_back(2 * u64::from(block), last, "other bytes were discarded");
        }
    }

    fn nothing_to_do(&mut self) {
        let now = (self.settle)();
        assert_eq!(self.queue.queue_batch(&[], &mut self.slots, now, &mut self.done), 0);
        self.poll();
        assert!(self.seen.is_empty(), "1: each tag once");
    }
}
