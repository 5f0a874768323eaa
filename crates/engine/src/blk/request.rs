//! Requests to a device, and their outcomes.

use std::fmt;

/// Operation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Bytes of the device into the buffer.
    Read = 0,
    /// Bytes of the buffer onto the device.
    Write = 1,
    /// Writes complete before the flush are durable when the flush is complete.
    Flush = 2,
    /// The bytes are not needed any more; what is read afterwards is undefined.
    Discard = 3,
    /// The bytes read as zeros afterwards.
    WriteZeroes = 4,
}

impl Operation {
    /// All of them, by number.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// Whether bytes go between device and buffer.
    #[must_use]
    #[inline]
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// How durable a write is when it is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Durability {
    /// Durable after the next flush.
    #[default]
    Later = 0,
    /// That too; but as if a flush had been asked for, and been complete, before it.
    FlushBefore = 1,
    /// It is durable itself (force unit access).
    Forced = 2,
    /// Both.
    FlushBeforeAndForced = 3,
}

impl Durability {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::Later, Self::FlushBefore, Self::Forced, Self::FlushBeforeAndForced];

    /// Whether a flush goes before it.
    #[must_use]
    #[inline]
    pub const fn has_flush_before(self) -> bool {
        self as u8 & Self::FlushBefore as u8 != 0
    }

    /// Whether it is durable when it is complete.
    #[must_use]
    #[inline]
    pub const fn is_forced(self) -> bool {
        self as u8 & Self::Forced as u8 != 0
    }

    /// When the flush before it is done.
    #[must_use]
    pub(super) const fn flushed(self) -> Self {
        if self.is_forced() { Self::Forced } else { Self::Later }
    }
}

/// A request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Operation to carry out.
    pub operation: Operation,
    /// Durability of a write; else [`Durability::Later`].
    pub durability: Durability,
    /// Whose it is, for schedulers that divide a device: below the number of streams it was set up with.
    pub stream: u16,
    /// Bytes; below 2^31. None of a flush.
    pub bytes: u32,
    /// Bytes from the device's start. Zero of a flush.
    pub offset: u64,
    /// Where the data is: the driver knows what that number means. Consecutive bytes have consecutive numbers.
    pub buffer: u64,
    /// Given back with the completion.
    pub user: u64,
}

impl Request {
    const fn new(operation: Operation, offset: u64, bytes: u32, buffer: u64) -> Self {
        Self {
            operation,
            durability: Durability::Later,
            stream: 0,
            bytes,
            offset,
            buffer,
            user: 0,
        }
    }

    /// Reads `bytes` bytes at `offset` into `buffer`.
    #[must_use]
    #[inline]
    pub const fn read(offset: u64, bytes: u32, buffer: u64) -> Self {
        Self::new(Operation::Read, offset, bytes, buffer)
    }

    /// Writes `bytes` bytes of `buffer` at `offset`.
    #[must_use]
    #[inline]
    pub const fn write(offset: u64, bytes: u32, buffer: u64) -> Self {
        Self::new(Operation::Write, offset, bytes, buffer)
    }

    /// Makes durable what was complete before.
    #[must_use]
    #[inline]
    pub const fn flush() -> Self {
        Self::new(Operation::Flush, 0, 0, 0)
    }

    /// Gives up `bytes` bytes at `offset`.
    #[must_use]
    #[inline]
    pub const fn discard(offset: u64, bytes: u32) -> Self {
        Self::new(Operation::Discard, offset, bytes, 0)
    }

    /// Writes `bytes` zeros at `offset`.
    #[must_use]
    #[inline]
    pub const fn write_zeroes(offset: u64, bytes: u32) -> Self {
        Self::new(Operation::WriteZeroes, offset, bytes, 0)
    }

    /// With the number that its completion is to carry.
    #[must_use]
    #[inline]
    pub const fn user(mut self, user: u64) -> Self {
        self.user = user;
        self
    }

    /// Sets the stream that the request belongs to.
    #[must_use]
    #[inline]
    pub const fn stream(mut self, stream: u16) -> Self {
        self.stream = stream;
        self
    }

    /// Sets how durable the write is when it is complete.
    #[must_use]
    #[inline]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }
}

/// Linux's number of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The device failed.
    pub const IO: Self = Self(5);
    /// Not now: the same request may go well later.
    pub const AGAIN: Self = Self(11);
    /// There is no such device any more.
    pub const NO_DEVICE: Self = Self(19);
    /// A thin device has no room for it.
    pub const NO_SPACE: Self = Self(28);
    /// The driver does not know the operation.
    pub const NOT_SUPPORTED: Self = Self(95);
    /// The device has not answered in time.
    pub const TIMED_OUT: Self = Self(110);
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IO => f.write_str("input/output error"),
            Self::AGAIN => f.write_str("the device is busy"),
            Self::NO_DEVICE => f.write_str("the device is gone"),
            Self::NO_SPACE => f.write_str("no space left on the device"),
            Self::NOT_SUPPORTED => f.write_str("the device cannot do that"),
            Self::TIMED_OUT => f.write_str("the device has not answered in time"),
            Self(number) => write!(f, "error {number}"),
        }
    }
}

impl std::error::Error for Errno {}

/// Bytes done, or why not.
pub type Outcome = Result<u32, Errno>;

/// A request that is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number that the request gave as its `user`.
    pub user: u64,
    /// All its bytes, or why not all of them: some may be done then.
    pub outcome: Outcome,
}

/// A request that was not taken. It is the caller's again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was not taken: {why}")]
pub struct Rejected {
    /// Request as the caller gave it.
    pub request: Request,
    /// Reason of the refusal.
    pub why: Refusal,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// All tags are in use: take completions first.
    #[error("all tags are in use")]
    NoTag,
    /// It goes beyond the device's end.
    #[error("it goes beyond the end of the device")]
    OutOfRange,
    /// Offset or length is no multiple of the device's blocks, or there is nothing to do.
    #[error("its offset or its length is no multiple of the device's blocks")]
    Misaligned,
    /// It has 2 GiB or more.
    #[error("it has 2 GiB or more: ask for less at a time")]
    TooLong,
    /// The device cannot do that.
    #[error("the device cannot do that")]
    NotSupported,
    /// The device has no such stream.
    #[error("the device has no such stream")]
    NoStream,
}
