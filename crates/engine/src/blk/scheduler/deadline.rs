//! Scheduler by offset, with deadlines, as Linux's mq-deadline. Batches of one direction go upwards over the device; reads go
//! before writes, but writes are not passed over for ever; a request beyond its deadline is where the next batch begins.

use super::Merging;
use crate::blk::request::{Durability, Operation};
use crate::blk::slot::{Slot, Slots, State, Tag};

/// Requests of a direction in a row.
const BATCH_MAX: u32 = 16;
/// Batches of reads while writes wait.
const READ_BATCHES_MAX: u32 = 2;
/// How long a request may wait before it is next, ns.
const READ_WAIT_NS: u64 = 500_000_000;
const WRITE_WAIT_NS: u64 = 5_000_000_000;

#[derive(Debug)]
pub(crate) struct Deadline {
    reads: Direction,
    /// And everything else.
    writes: Direction,
    /// Which one a batch is taken from.
    reads_now: bool,
    /// Requests left of that batch.
    batch_left: u32,
    /// Batches of reads since writes had their turn.
    read_batches: u32,
    merging: Merging,
}

/// The requests of a direction by offset.
#[derive(Debug)]
struct Direction {
    sorted: Vec<Entry>,
    /// Where the last one ended.
    position: u64,
    wait_max_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    end: u64,
    since_ns: u64,
    head: Tag,
    tail: Tag,
    segments: u16,
    can_merge: bool,
}

impl Deadline {
    pub(crate) fn new(tags: usize, merging: Merging) -> Self {
        let direction = |wait_max_ns| Direction {
            sorted: Vec::with_capacity(tags),
            position: 0,
            wait_max_ns,
        };
        Self {
            reads: direction(READ_WAIT_NS),
            writes: direction(WRITE_WAIT_NS),
            reads_now: true,
            batch_left: 0,
            read_batches: 0,
            merging,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reads.sorted.is_empty() && self.writes.sorted.is_empty()
    }

    pub(crate) fn insert(&mut self, tag: Tag, slots: &mut Slots) -> u64 {
        let merging = self.merging;
        let direction = match slots.at(tag).request.operation {
            Operation::Read => &mut self.reads,
            _ => &mut self.writes,
        };
        direction.insert(Entry::new(tag, slots), slots, merging)
    }

    pub(crate) fn take(&mut self, batch: &mut [Tag], now: u64) -> usize {
        let mut count = 0;
        while count < batch.len() && !self.is_empty() {
            if self.batch_left == 0 || self.direction().sorted.is_empty() {
                self.begin_batch(now);
            }
            batch[count] = self.direction().next().head;
            self.batch_left = self.batch_left.saturating_sub(1);
            count += 1;
        }
        count
    }

    fn direction(&mut self) -> &mut Direction {
        if self.reads_now {
            &mut self.reads
        } else {
            &mut self.writes
        }
    }

    fn begin_batch(&mut self, now: u64) {
        let are_late = [&self.reads, &self.writes].map(|direction| direction.oldest_late(now).is_some());
        let writes_are_late = match are_late {
            // By turns.
            [true, true] => self.reads_now,
            [_, writes] => writes,
        };
        let writes_are_due = self.read_batches >= READ_BATCHES_MAX || writes_are_late;
        self.reads_now = match (self.reads.sorted.is_empty(), self.writes.sorted.is_empty()) {
            (false, false) => !writes_are_due,
            (is_without_reads, _) => !is_without_reads,
        };
        self.read_batches = match self.reads_now {
            true if self.writes.sorted.is_empty() => 0,
            true => self.read_batches + 1,
            false => 0,
        };
        self.batch_left = BATCH_MAX;
        let direction = self.direction();
        if let Some(late) = direction.oldest_late(now) {
            direction.position = late;
        }
    }
}

impl Entry {
    /// Makes the entry of a request and of the requests merged into it already.
    fn new(head: Tag, slots: &Slots) -> Self {
        let first = slots.at(head);
        let (mut tail, mut segments) = (head, 1);
        while slots.at(tail).next != Tag::NONE {
            tail = slots.at(tail).next;
            segments += 1;
        }
        Self {
            offset: first.request.offset,
            end: slots.at(tail).end(),
            since_ns: first.since_ns,
            head,
            tail,
            segments,
            can_merge: is_mergeable(first),
        }
    }
}

fn is_mergeable(slot: &Slot) -> bool {
    slot.request.operation.has_data() && slot.request.durability == Durability::Later
}

impl Direction {
    fn insert(&mut self, entry: Entry, slots: &mut Slots, merging: Merging) -> u64 {
        let at = self.sorted.partition_point(|other| other.offset <= entry.offset);
        let fits = |first: &Entry, second: &Entry| {
            first.can_merge
                && second.can_merge
                && first.end == second.offset
                && first.segments + second.segments <= merging.segments_max
                && second.end - first.offset <= u64::from(merging.bytes_max)
        };
        let mut join = |first: Entry, second: Entry| {
            slots.at_mut(first.tail).next = second.head;
            slots.at_mut(second.head).state = State::Merged;
            Entry {
                end: second.end,
                since_ns: first.since_ns.min(second.since_ns),
                tail: second.tail,
                segments: first.segments + second.segments,
                ..first
            }
        };
        if at > 0 && fits(&self.sorted[at - 1], &entry) {
            let joined = join(self.sorted[at - 1], entry);
            self.sorted[at - 1] = joined;
            if at < self.sorted.len() && fits(&joined, &self.sorted[at]) {
                let next = self.sorted.remove(at);
                self.sorted[at - 1] = join(joined, next);
                return 2;
            }
            return 1;
        }
        if at < self.sorted.len() && fits(&entry, &self.sorted[at]) {
            self.sorted[at] = join(entry, self.sorted[at]);
            return 1;
        }
        self.sorted.insert(at, entry);
        0
    }

    /// Upwards from where the last one ended, then from the start again.
    fn next(&mut self) -> Entry {
        let at = self.sorted.partition_point(|entry| entry.offset < self.position);
        let at = if at == self.sorted.len() { 0 } else { at };
        let entry = self.sorted.remove(at);
        self.position = entry.end;
        entry
    }

    /// Where the oldest request lies, if it is beyond its deadline.
    fn oldest_late(&self, now: u64) -> Option<u64> {
        let oldest = self.sorted.iter().min_by_key(|entry| entry.since_ns)?;
        (oldest.since_ns.saturating_add(self.wait_max_ns) <= now).then_some(oldest.offset)
    }
}
