//! What the block layer asks of a device: the contract of drivers, sentence by sentence.
//!
//! The sentences are numbered; [`super::conformance`] checks on any driver those that can be checked from outside.

mod delay;
mod error;
mod null;

pub use delay::{Delay, DelayQueue, Distribution};
pub use error::{Faults, FaultsQueue, Rates};
pub use null::{Null, NullQueue};

use super::request::{Errno, Outcome};
use super::slot::{Slots, Tag};
use homenode_policy::NodeId;

/// What a device is and can do. It does not change while the device is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the device; a multiple of `block_bytes`.
    pub device_bytes: u64,
    /// Offsets and lengths are multiples of this, a power of two.
    pub block_bytes: u32,
    /// What the driver takes as one request; a multiple of `block_bytes`. Longer ones are given to it piece by piece, one
    /// after the other.
    pub transfer_bytes_max: u32,
    /// Requests that may be merged into one; 1: none.
    pub segments_max: u16,
    /// Requests that a hardware queue works on at a time.
    pub depth: u16,
    /// Whether completed writes may be lost with the power until a flush.
    pub has_cache: bool,
    /// Whether the driver can make a single write durable.
    pub can_force: bool,
    /// Whether it can discard.
    pub can_discard: bool,
    /// Whether it can write zeros.
    pub can_zero: bool,
}

impl Limits {
    /// A device of `device_bytes` bytes that reads and writes whole blocks of 512 bytes, and nothing else.
    #[must_use]
    pub const fn of_bytes(device_bytes: u64) -> Self {
        Self {
            device_bytes,
            block_bytes: 512,
            transfer_bytes_max: 1 << 20,
            segments_max: 32,
            depth: 128,
            has_cache: false,
            can_force: false,
            can_discard: false,
            can_zero: false,
        }
    }

    /// Panics when they contradict each other.
    pub fn check(&self) {
        assert!(self.block_bytes.is_power_of_two(), "blocks are a power of two of bytes");
        let block_bytes = u64::from(self.block_bytes);
        assert!(
            self.device_bytes.is_multiple_of(block_bytes),
            "a device is whole blocks"
        );
        let piece = self.transfer_bytes_max;
        assert!(piece >= self.block_bytes && piece.is_multiple_of(self.block_bytes) && piece < 1 << 31);
        assert!(
            self.depth > 0 && self.segments_max > 0,
            "a device takes at least one request"
        );
    }
}

/// A device: its limits and its hardware queues.
pub trait Driver {
    /// One of its hardware queues.
    type Queue: DriverQueue;

    /// What it is and can do.
    fn limits(&self) -> Limits;

    /// The node that each hardware queue is at home on, where that is known. At least one queue.
    fn queue_homes(&self) -> Vec<Option<NodeId>>;

    /// Makes hardware queue `index`; asked for once each.
    ///
    /// # Errors
    /// What the driver's are.
    fn queue(&self, index: usize) -> std::io::Result<Self::Queue>;
}

/// One hardware queue of a device. One thread calls it.
///
/// 1. A tag is the driver's from when `queue_batch` takes it until `poll` gives it, or `timeout` gives it up: no later and
///    no earlier does it touch the request's buffers, and it gives each tag once.
/// 2. `queue_batch` takes requests in order, from the first on; of those behind what it takes it has done nothing. It takes
///    at most [`Limits::depth`] at a time; less, also none, when it is busy. When it has none, it takes at least one.
/// 3. Neither call waits.
/// 4. An `Ok` outcome tells the bytes done from the request's start: all of them, or fewer (a multiple of the device's blocks)
///    when the rest is to be asked for again. None of a request with bytes means there is nothing there any more. A flush
///    has done none.
/// 5. After an error some of the bytes may be done.
/// 6. Requests may be finished in any order, also in the order of their bytes: what overlaps is the submitter's concern.
/// 7. A write whose bytes are told done is what a later request reads.
/// 8. What was told done before a flush was taken is durable when the flush is told done; so is a forced write when it is.
/// 9. It is asked for what its limits allow only, and panics over nothing that a request says.
pub trait DriverQueue: Send {
    /// Starts the requests `batch`; how many of them it takes. `now`: ns, never going back.
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, now: u64) -> usize;

    /// Adds what is finished to `done`, while that has room.
    fn poll(&mut self, slots: &mut Slots, now: u64, done: &mut Done);

    /// A request has been with the driver for long.
    fn timeout(&mut self, tag: Tag, slots: &mut Slots) -> Late;
}

/// What a driver does about a request that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It keeps it: it will be finished, or asked about again.
    Wait,
    /// It has given it up, and does not touch its buffers any more. It is as if it were finished with
    /// [`Errno::TIMED_OUT`].
    GivenUp,
}

/// Requests that a driver has finished. It takes a bounded number at a time.
#[derive(Debug)]
pub struct Done {
    all: Box<[(Tag, Outcome)]>,
    count: usize,
    room: usize,
}

impl Done {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            all: vec![(Tag(0), Ok(0)); capacity].into(),
            count: 0,
            room: capacity,
        }
    }

    /// It takes at most so many now.
    pub(super) fn limit(&mut self, room: usize) {
        self.room = room.min(self.all.len());
    }

    /// Whether there is room for one more.
    #[must_use]
    #[inline]
    pub fn has_room(&self) -> bool {
        self.count < self.room
    }

    /// How many more there is room for.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.room - self.count
    }

    /// One is finished.
    ///
    /// # Panics
    /// When there is no room.
    #[inline]
    pub fn push(&mut self, tag: Tag, outcome: Outcome) {
        let free = self.all[..self.room].get_mut(self.count);
        *free.expect("a driver looks whether there is room") = (tag, outcome);
        self.count += 1;
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn at(&self, index: usize) -> (Tag, Outcome) {
        self.all[index]
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// What is in it.
    #[inline]
    pub(super) fn all(&self) -> &[(Tag, Outcome)] {
        &self.all[..self.count]
    }
}

/// Errors after which the same request may go well.
#[inline]
pub(super) fn is_transient(errno: Errno) -> bool {
    const EINTR: Errno = Errno(4);
    const ENOMEM: Errno = Errno(12);
    const EBUSY: Errno = Errno(16);
    matches!(errno, Errno::AGAIN | Errno::TIMED_OUT | EINTR | ENOMEM | EBUSY)
}
