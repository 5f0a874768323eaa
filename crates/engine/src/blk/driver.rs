//! Contract of drivers: the demands of the block layer on a device, sentence by sentence.
//!
//! The sentences are numbered; [`super::conformance`] checks on any driver those that can be checked from outside.

mod delay;
mod error;
mod null;

pub use delay::{Delay, DelayQueue, Distribution};
pub use error::{Faults, FaultsQueue, Rates};
pub use null::{Null, NullQueue};

use super::request::{Errno, Operation, Outcome, Refusal, Request};
use super::slot::{Slots, Tag};
use homenode_policy::NodeId;

/// Properties of a device. They do not change while the device is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the device; a multiple of `block_bytes`.
    pub device_bytes: u64,
    /// Offsets and lengths are multiples of this, a power of two.
    pub block_bytes: u32,
    /// Most bytes that the driver takes as one request; a multiple of `block_bytes`. The driver is given longer requests piece by
    /// piece, one after the other.
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

    /// Whether a request of that kind needs the driver at all.
    #[inline]
    pub(super) fn needs_driver(&self, operation: Operation) -> bool {
        operation != Operation::Flush || self.has_cache
    }

    /// Whether the device can be asked for that.
    #[inline]
    pub(super) fn admits(&self, request: &Request) -> Result<(), Refusal> {
        let bytes = u64::from(request.bytes);
        let is_known = match request.operation {
            Operation::Read | Operation::Write => true,
            Operation::Flush => {
                return if bytes == 0 && request.offset == 0 {
                    Ok(())
                } else {
                    Err(Refusal::Misaligned)
                };
            }
            Operation::Discard => self.can_discard,
            Operation::WriteZeroes => self.can_zero,
        };
        if !is_known {
            return Err(Refusal::NotSupported);
        }
        let mask = u64::from(self.block_bytes) - 1;
        if (request.offset | bytes) & mask != 0 || bytes == 0 {
            return Err(Refusal::Misaligned);
        }
        if request.bytes >> 31 != 0 {
            return Err(Refusal::TooLong);
        }
        // The length of the device is at least that of any request, or it is refused.
        if bytes > self.device_bytes || request.offset > self.device_bytes - bytes {
            return Err(Refusal::OutOfRange);
        }
        Ok(())
    }
}

/// A device: its limits and its hardware queues.
pub trait Driver {
    /// A hardware queue of the device.
    type Queue: DriverQueue;

    /// Returns the properties of the device.
    fn limits(&self) -> Limits;

    /// The node that each hardware queue is at home on, where that is known. At least one queue.
    fn queue_homes(&self) -> Vec<Option<NodeId>>;

    /// Makes hardware queue `index`; asked for once each.
    ///
    /// # Errors
    /// What the driver's are.
    fn queue(&self, index: usize) -> std::io::Result<Self::Queue>;
}

/// A hardware queue of a device, called by one thread.
///
/// 1. A tag is the driver's from when `queue_batch` takes it until it is in `done`, by that same call or a later `poll`, or
///    `timeout` gives it up. Only in this time the driver touches the request's buffers, and it gives each tag once.
/// 2. `queue_batch` takes requests in order, from the first on, and does nothing with the requests behind. A batch and the
///    requests that the driver has are [`Limits::depth`] together at most. A busy driver takes fewer, also none; a driver
///    that has no requests takes at least one.
/// 3. Neither `queue_batch` nor `poll` waits for the device.
/// 4. An `Ok` outcome tells the bytes done from the request's start: all of them, or fewer (a multiple of the device's blocks)
///    when the rest is to be asked for again. 0 bytes done of a request with bytes mean that there is nothing there any more.
///    A flush has 0 bytes done.
/// 5. After an error some of the bytes may be done.
/// 6. Requests may be finished in any order, also in the order of their bytes: overlaps are the submitter's concern.
/// 7. A later request reads the bytes of a write that was told done.
/// 8. A request that was told done before a flush was taken is durable when the flush is told done. A forced write is durable
///    when it is told done itself.
/// 9. The driver is asked only for what its limits allow, and panics over nothing that a request says.
pub trait DriverQueue: Send {
    /// Starts the requests `batch`; how many of them it takes. Those that are finished at once are in `done` then, which has
    /// room for all that the driver has. `now`: ns, never going back.
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, now: u64, done: &mut Done) -> usize;

    /// Adds what is finished to `done`.
    fn poll(&mut self, slots: &mut Slots, now: u64, done: &mut Done);

    /// A request has been with the driver for long.
    fn timeout(&mut self, tag: Tag, slots: &mut Slots) -> Late;

    /// Descriptor that is readable as long as `poll` has something to do for the requests that the driver has: whoever polls may
    /// sleep until then. `None`: it is to be polled again and again.
    fn bell(&self) -> Option<i32> {
        None
    }
}

/// Answer of a driver about a request that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It keeps it: it will be finished, or asked about again.
    Wait,
    /// It has given it up, and does not touch its buffers any more. It is as if it were finished with
    /// [`Errno::TIMED_OUT`].
    GivenUp,
}

/// Requests that a driver has finished, until their submitters are told.
#[derive(Debug, Default)]
pub struct Done {
    all: Box<[(Tag, Outcome)]>,
    count: usize,
}

impl Done {
    /// For a hardware queue of so many requests at a time.
    pub(super) fn new(depth: u16) -> Self {
        Self {
            all: vec![(Tag(0), Ok(0)); usize::from(depth)].into(),
            count: 0,
        }
    }

    /// Adds a finished request.
    ///
    /// # Panics
    /// When more requests are finished than the driver can have.
    #[inline]
    pub fn push(&mut self, tag: Tag, outcome: Outcome) {
        let free = self.all.get_mut(self.count);
        *free.expect("rule 1: a driver completes each tag once") = (tag, outcome);
        self.count += 1;
    }

    /// Returns the finished requests.
    #[inline]
    pub(super) fn all(&self) -> &[(Tag, Outcome)] {
        &self.all[..self.count]
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
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
