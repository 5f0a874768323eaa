//! Slots: what every layer knows of a request, in one place, by its tag.
//!
//! Invariants: a slot is 64 bytes, one cache line; it is written by the thread that owns its table only; a tag is with one
//! layer at a time, which its state names. Requests that were merged are a chain of slots behind the first one's.

use super::request::{Durability, Operation, Request};

/// Names a request while it is under way: the index of its slot. Below the tags of its hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

impl Tag {
    /// No tag: the end of a chain.
    pub(super) const NONE: Self = Self(u16::MAX);

    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Which layer has the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// No layer: the tag is free.
    Free,
    /// The software queue: plugged or scheduled.
    Staged,
    /// Merged into the request whose chain it is in.
    Merged,
    /// On its way to the hardware queue of another core, or in it.
    Sent,
    /// The dispatch list: the driver has refused it, or it is to be tried again.
    Waiting,
    /// The driver.
    Started,
}

/// The core that submitted it is the one that owns the hardware queue.
pub(super) const OWN: u16 = u16::MAX;

#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Once the flush before it is done, without that.
    pub(super) request: Request,
    /// When it was submitted, ns.
    pub(super) since_ns: u64,
    /// Bytes that are done already. All of them: a flush is to make them durable.
    pub(super) done: u32,
    /// When the driver got it, in units of about a millisecond.
    pub(super) started: u32,
    /// The next one of its chain of merged requests.
    pub(super) next: Tag,
    /// The next one in a scheduler's list.
    pub(super) follows: Tag,
    /// Which core it came from, in the hardware queue's table; [`OWN`].
    pub(super) link: u16,
    pub(super) state: State,
    /// How often it was tried again.
    pub(super) retries: u8,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    const FREE: Self = Self {
        request: Request::flush(),
        since_ns: 0,
        done: 0,
        started: 0,
        next: Tag::NONE,
        follows: Tag::NONE,
        link: OWN,
        state: State::Free,
        retries: 0,
    };

    /// For a request that has just been taken. Number by number: copied as a whole, it would be loaded in wider pieces than it
    /// was just stored in, and the processor would wait for the stores (a third of the time of a no-op request).
    #[inline(always)]
    pub(super) fn fill(&mut self, request: &Request, since_ns: u64, link: u16) {
        self.request.operation = request.operation;
        self.request.durability = request.durability;
        self.request.stream = request.stream;
        self.request.bytes = request.bytes;
        self.since_ns = since_ns;
        self.request.offset = request.offset;
        self.done = 0;
        self.request.buffer = request.buffer;
        self.next = Tag::NONE;
        self.request.user = request.user;
        self.link = link;
        self.state = State::Staged;
        self.retries = 0;
    }

    /// Whether it is one request alone, and nothing but itself is to be done for it.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.next == Tag::NONE && self.request.durability == Durability::Later
    }

    /// Whether a flush is to be done for it now: before it, or after it, or because it is one and has no bytes.
    #[inline]
    fn is_flush(&self) -> bool {
        self.request.durability.has_flush_before() || self.done == self.request.bytes
    }

    /// Bytes that are to be done still.
    #[inline]
    fn left(&self) -> u32 {
        if self.is_flush() {
            0
        } else {
            self.request.bytes - self.done
        }
    }

    /// Its end on the device.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.request.offset + u64::from(self.request.bytes)
    }
}

/// The slots of one hardware queue's tags. A driver reads from them what it is to do.
#[derive(Debug)]
pub struct Slots {
    all: Box<[Slot]>,
    /// Bytes the driver takes at once.
    piece_bytes: u32,
}

impl Slots {
    pub(super) fn new(tags: u16, piece_bytes: u32) -> Self {
        Self {
            all: (0..tags).map(|_| Slot::FREE).collect(),
            piece_bytes,
        }
    }

    /// How many tags there are.
    #[must_use]
    pub fn tags(&self) -> u16 {
        u16::try_from(self.all.len()).expect("there are fewer than 2^16 tags")
    }

    #[inline]
    pub(super) fn at(&self, tag: Tag) -> &Slot {
        &self.all[tag.index()]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, tag: Tag) -> &mut Slot {
        &mut self.all[tag.index()]
    }

    /// How many requests were merged into it, itself among them, and all bytes that they move, however they are given to the driver: a discard moves none.
    pub(super) fn chain(&self, head: Tag) -> (u64, u64) {
        let (mut requests, mut bytes) = (0, 0);
        let mut next = head;
        while next != Tag::NONE {
            let slot = self.at(next);
            requests += 1;
            if slot.request.operation != Operation::Discard {
                bytes += u64::from(slot.request.bytes);
            }
            next = slot.next;
        }
        (requests, bytes)
    }

    /// Returns the operation that the driver is to carry out.
    #[must_use]
    #[inline]
    pub fn operation(&self, tag: Tag) -> Operation {
        let slot = self.at(tag);
        if slot.is_flush() {
            Operation::Flush
        } else {
            slot.request.operation
        }
    }

    /// Where on the device, in bytes.
    #[must_use]
    #[inline]
    pub fn offset(&self, tag: Tag) -> u64 {
        let slot = self.at(tag);
        slot.request.offset + u64::from(slot.done)
    }

    /// How much, in bytes: of all requests that were merged into it together.
    #[must_use]
    #[inline]
    pub fn bytes(&self, tag: Tag) -> u32 {
        let slot = self.at(tag);
        if slot.next == Tag::NONE {
            return slot.left().min(self.piece_bytes);
        }
        self.segments(tag).map(|segment| segment.bytes).sum()
    }

    /// Whether the write is to be durable when the driver calls it done. Only where the driver said that it can do that.
    #[must_use]
    #[inline]
    pub fn is_forced(&self, tag: Tag) -> bool {
        let slot = self.at(tag);
        slot.request.durability.is_forced() && !slot.is_flush()
    }

    /// Where its data is, one segment for each request that was merged into it, in the order of the device's bytes.
    #[inline]
    pub fn segments(&self, tag: Tag) -> Segments<'_> {
        Segments { slots: self, next: tag }
    }
}

/// Consecutive bytes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they begin.
    pub buffer: u64,
    /// How many they are.
    pub bytes: u32,
}

/// Gives the segments of a request.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    slots: &'a Slots,
    next: Tag,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        if self.next == Tag::NONE {
            return None;
        }
        let slot = self.slots.at(self.next);
        self.next = slot.next;
        Some(Segment {
            buffer: slot.request.buffer + u64::from(slot.done),
            bytes: slot.left().min(self.slots.piece_bytes),
        })
    }
}
