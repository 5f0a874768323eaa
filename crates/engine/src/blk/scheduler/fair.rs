//! Shares: each stream gets bytes in proportion to its weight, over all devices that share one [`Shares`] (a pool's), which
//! one queue per device prevents (the paper's section 4.1).
//!
//! Every stream has a count of what was done for it, divided by its weight, over all cores and devices; the next request is
//! one of the stream with the least. A stream that has more than others, and competes with them on this device, waits until
//! they are near it: then also streams on different cores share. Where nobody competes nobody waits;
//! nor does anybody wait for a core that has stopped, or for a stream that has come to its limit.
//! Limits are token buckets, which streams, devices and pools may share.

use crate::blk::slot::{Slots, State, Tag};
use homenode_shared::Bucket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Streams a device can tell apart.
const STREAMS_MAX: usize = 64;
/// Requests of a stream in a row.
const ROW: usize = 8;
/// How far a stream may be ahead of another one that waits on another core: bytes of weight 1.
const LEAD_MAX: u64 = 1 << 20;
/// A core that has not looked after its requests for so long is waited for no more, ns.
const ABSENT_NS: u64 = 10_000_000;
/// Least cost of a request, bytes: even a short request takes a device's time.
const COST_MIN: u64 = 4096;
const WEIGHT_MAX: u16 = 64;

/// Weight and limits of a stream; a device is divided among its streams.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its share of the bytes, in proportion to the others': 1 to 64.
    pub weight: u16,
    /// Most requests per second.
    pub requests: Option<Arc<Bucket>>,
    /// Most bytes per second.
    pub bytes: Option<Arc<Bucket>>,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            weight: 1,
            requests: None,
            bytes: None,
        }
    }
}

/// Work done for each stream, over all devices that share the stream.
#[derive(Debug)]
pub struct Shares {
    /// Bytes divided by weight. Relaxed: they only weigh.
    served: [Line; STREAMS_MAX],
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Shares {
    /// Nothing was done yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            served: std::array::from_fn(|_| Line::default()),
        })
    }

    fn of(&self, stream: usize) -> u64 {
        self.served[stream].0.load(Ordering::Relaxed)
    }
}

/// How many cores have requests of each stream waiting for one device, and when one of them last looked after them.
/// Relaxed: they only weigh.
#[derive(Debug)]
pub(crate) struct Waiting {
    cores: [AtomicU32; STREAMS_MAX],
    seen: [AtomicU64; STREAMS_MAX],
}

impl Waiting {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            cores: std::array::from_fn(|_| AtomicU32::new(0)),
            seen: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    /// Whether it waits on a core that is at work.
    fn is_waiting(&self, stream: usize, now: u64) -> bool {
        let seen = self.seen[stream].load(Ordering::Relaxed);
        self.cores[stream].load(Ordering::Relaxed) > 0 && seen.saturating_add(ABSENT_NS) >= now
    }

    fn see(&self, stream: usize, now: u64) {
        // A store only now and then: other cores read it.
        if self.seen[stream].load(Ordering::Relaxed).saturating_add(ABSENT_NS / 8) < now {
            self.seen[stream].store(now, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Fair {
    streams: Box<[Lane]>,
    shares: Arc<Shares>,
    waiting: Arc<Waiting>,
    /// Requests in all lanes.
    count: usize,
}

/// The requests of one stream, in the order they came.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    head: Tag,
    tail: Tag,
    /// Whether the first one is within the limit of requests already, and waits for that of bytes.
    is_counted: bool,
    /// Whether the first one has to wait for the limit: it does not compete meanwhile.
    is_limited: bool,
}

impl Fair {
    pub(crate) fn new(streams: &[Stream], shares: &Arc<Shares>, waiting: &Arc<Waiting>) -> Self {
        assert!(
            (1..=STREAMS_MAX).contains(&streams.len()),
            "a device has 1 to {STREAMS_MAX} streams"
        );
        let lane = |stream: &Stream| Lane {
            stream: stream.clone(),
            head: Tag::NONE,
            tail: Tag::NONE,
            is_counted: false,
            is_limited: false,
        };
        Self {
            streams: streams.iter().map(lane).collect(),
            shares: Arc::clone(shares),
            waiting: Arc::clone(waiting),
            count: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn insert(&mut self, tag: Tag, slots: &mut Slots, now: u64) {
        let slot = slots.at_mut(tag);
        debug_assert!(slot.state == State::Staged);
        slot.follows = Tag::NONE;
        let index = usize::from(slot.request.stream);
        self.count += 1;
        if self.streams[index].head == Tag::NONE {
            self.waiting.see(index, now);
            self.begin_waiting(index, now);
            self.streams[index].head = tag;
        } else {
            let tail = self.streams[index].tail;
            slots.at_mut(tail).follows = tag;
        }
        self.streams[index].tail = tag;
    }

    /// A stream that had nothing to do has saved nothing up: it starts level with those that wait.
    fn begin_waiting(&self, stream: usize, now: u64) {
        if self.waiting.cores[stream].fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        if let Some(least) = self.least_waiting(stream, now) {
            self.shares.served[stream]
                .0
                .fetch_max(least.saturating_sub(LEAD_MAX / 2), Ordering::Relaxed);
        }
    }

    /// The least that was done for any other stream that waits for this device.
    fn least_waiting(&self, but: usize, now: u64) -> Option<u64> {
        let others = (0..self.streams.len()).filter(|stream| *stream != but && self.waiting.is_waiting(*stream, now));
        others.map(|stream| self.shares.of(stream)).min()
    }

    pub(crate) fn take(&mut self, batch: &mut [Tag], slots: &Slots, now: u64) -> usize {
        for (index, lane) in self.streams.iter().enumerate() {
            if lane.competes() {
                self.waiting.see(index, now);
            }
        }
        let mut count = 0;
        // A bit for each stream that may not go on now.
        let mut held = 0_u64;
        while count < batch.len() && self.count > 0 {
            let ready = (0..self.streams.len())
                .filter(|index| self.streams[*index].head != Tag::NONE && held >> index & 1 == 0);
            let Some(next) = ready.min_by_key(|index| self.shares.of(*index)) else {
                break;
            };
            let is_ahead = |least| self.shares.of(next) > least + LEAD_MAX;
            if self.least_waiting(next, now).is_some_and(is_ahead) {
                held |= 1 << next;
                continue;
            }
            let row = (batch.len() - count).min(ROW);
            let taken = self.take_row(next, &mut batch[count..count + row], slots, now);
            count += taken;
            if taken < row {
                held |= 1 << next;
            }
        }
        count
    }

    /// Takes requests of one stream: fewer than there is room for when it has no more, or has come to its limit.
    fn take_row(&mut self, index: usize, batch: &mut [Tag], slots: &Slots, now: u64) -> usize {
        let lane = &mut self.streams[index];
        let competed = lane.competes();
        let (mut taken, mut cost) = (0, 0);
        lane.is_limited = false;
        for to in batch {
            if lane.head == Tag::NONE {
                break;
            }
            let (requests, bytes) = slots.chain(lane.head);
            if !lane.may_start(requests, bytes, now) {
                lane.is_limited = true;
                break;
            }
            *to = lane.head;
            lane.head = slots.at(lane.head).follows;
            cost += bytes.max(COST_MIN) / u64::from(lane.stream.weight.clamp(1, WEIGHT_MAX));
            taken += 1;
        }
        let competes = lane.competes();
        self.count -= taken;
        self.shares.served[index].0.fetch_add(cost, Ordering::Relaxed);
        match (competed, competes) {
            (true, false) => _ = self.waiting.cores[index].fetch_sub(1, Ordering::Relaxed),
            (false, true) => self.begin_waiting(index, now),
            _ => {}
        }
        taken
    }
}

impl Drop for Fair {
    fn drop(&mut self) {
        for (index, lane) in self.streams.iter().enumerate() {
            if lane.competes() {
                self.waiting.cores[index].fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Lane {
    fn competes(&self) -> bool {
        self.head != Tag::NONE && !self.is_limited
    }

    fn may_start(&mut self, requests: u64, bytes: u64, now: u64) -> bool {
        let within =
            |limit: &Option<Arc<Bucket>>, units| limit.as_ref().is_none_or(|limit| limit.take(now, units).is_ok());
        self.is_counted = self.is_counted || within(&self.stream.requests, requests);
        let may_start = self.is_counted && within(&self.stream.bytes, bytes);
        self.is_counted &= !may_start;
        may_start
    }
}
