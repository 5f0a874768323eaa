//! Why an operation on a volume failed.

use super::super::Error;
use super::VOLUME_BYTES_MAX;
use crate::{BLOCK_BYTES, NodeId};

/// An error of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// A name that a volume cannot have, and what is wrong with it.
    #[error("a volume cannot have a name that {0}")]
    Name(&'static str),
    /// No bytes.
    #[error("a volume has at least one block of 4 KiB")]
    NoSize,
    /// A size that is not whole blocks.
    #[error("{0} bytes are not whole blocks of 4 KiB: take {next}", next = .0.next_multiple_of(BLOCK_BYTES as u64))]
    Misaligned(u64),
    /// A size beyond the largest.
    #[error("{0} bytes are too many: a volume has at most {VOLUME_BYTES_MAX}")]
    TooLarge(u64),
    /// The name is taken.
    #[error("there is a volume of that name already")]
    Exists,
    /// There is none of that name, or it was removed.
    #[error("there is no such volume")]
    Unknown,
    /// Somebody relies on its size.
    #[error("it is attached: detach it first")]
    Attached,
    /// The part that would be cut off holds data.
    #[error("{bytes} bytes of data lie in the part to be cut off")]
    HoldsData {
        /// How much.
        bytes: u64,
    },
    /// The pool has no member there.
    #[error("the pool has no member on {0}")]
    NoMemberOn(NodeId),
    /// Bytes that the volume has not got.
    #[error("{bytes} bytes at {offset} are not within its {size_bytes} bytes")]
    OutOfRange {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
        /// The volume's size.
        size_bytes: u64,
    },
    /// The pool is full, or has too many inodes.
    #[error(transparent)]
    Filesystem(#[from] Error),
}

impl VolumeError {
    /// Linux's number for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Unknown => 2,
            // POSIX: a request beyond the limits of the device.
            Self::OutOfRange { .. } => 6,
            Self::Attached => 16,
            Self::Exists => 17,
            Self::NoMemberOn(_) => 19,
            Self::Name(_) | Self::NoSize | Self::Misaligned(_) => 22,
            Self::TooLarge(_) => 27,
            Self::HoldsData { .. } => 39,
            Self::Filesystem(error) => error.errno(),
        }
    }
}
