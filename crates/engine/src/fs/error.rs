//! Why an operation of the filesystem failed.

use homenode_shared::NodesExhausted;

use crate::pool::NoSpace;
use crate::{MemberId, MemoryError};

/// An error of the filesystem, as POSIX names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EIO
    #[error("input/output error")]
    Io,
    /// EEXIST
    #[error("already exists")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("directory not empty")]
    NotEmpty,
    /// ENOSPC
    #[error("no space left in the pool")]
    NoSpace,
    /// ENOSPC: names, attributes and block maps may take no more memory
    #[error("no memory left for names, attributes and block maps: `homenode up --metadata` sets how much there is")]
    NoMetadata,
    /// ENAMETOOLONG
    #[error("name longer than 255 bytes")]
    NameTooLong,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// EPERM
    #[error("operation not permitted")]
    NotPermitted,
    /// EFBIG
    #[error("file offset beyond the maximum")]
    TooBig,
    /// ENODATA
    #[error("no such extended attribute")]
    NoAttribute,
    /// E2BIG
    #[error("extended attribute larger than 64 KiB")]
    AttributeTooBig,
    /// ENXIO
    #[error("no data or hole at or beyond that offset")]
    NoData,
    /// EBUSY
    #[error("busy")]
    Busy,
    /// ESTALE
    #[error("the inode is gone")]
    Stale,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// EOPNOTSUPP
    #[error("not supported")]
    NotSupported,
    /// ENOMEM
    #[error("the kernel has no memory left for the operation")]
    NoMemory,
    /// ENFILE
    #[error("the server has no file descriptor left")]
    NoDescriptor,
    /// EAGAIN: bytes must be brought to memory first. Operations that wait for them never end so.
    #[error("the bytes are on a disk")]
    Away,
    /// EAGAIN: a member must be written first, so that there are places for new bytes. Operations that wait for it never end so.
    #[error("{0} must be written first")]
    NoPlaces(MemberId),
    /// EROFS: the log of a durable pool could not be written, or a member is missing
    #[error("the pool can only be read: its log cannot be written")]
    ReadOnly,
}

/// Result of an operation of the filesystem.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Linux's number for it (asm-generic/errno-base.h and errno.h).
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => 1,
            Self::NotFound => 2,
            Self::Io => 5,
            Self::NoData => 6,
            Self::AttributeTooBig => 7,
            Self::Away | Self::NoPlaces(_) => 11,
            Self::NoMemory => 12,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::NotDirectory => 20,
            Self::IsDirectory => 21,
            Self::Invalid => 22,
            Self::NoDescriptor => 23,
            Self::TooBig => 27,
            Self::NoSpace | Self::NoMetadata => 28,
            Self::ReadOnly => 30,
            Self::TooManyLinks => 31,
            Self::NameTooLong => 36,
            Self::NotEmpty => 39,
            Self::NoAttribute => 61,
            Self::NotSupported => 95,
            Self::Stale => 116,
        }
    }

    /// Linux's name of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotPermitted => "EPERM",
            Self::NotFound => "ENOENT",
            Self::Io => "EIO",
            Self::NoData => "ENXIO",
            Self::AttributeTooBig => "E2BIG",
            Self::Away | Self::NoPlaces(_) => "EAGAIN",
            Self::NoMemory => "ENOMEM",
            Self::Busy => "EBUSY",
            Self::Exists => "EEXIST",
            Self::NotDirectory => "ENOTDIR",
            Self::IsDirectory => "EISDIR",
            Self::Invalid => "EINVAL",
            Self::NoDescriptor => "ENFILE",
            Self::TooBig => "EFBIG",
            Self::NoSpace | Self::NoMetadata => "ENOSPC",
            Self::ReadOnly => "EROFS",
            Self::TooManyLinks => "EMLINK",
            Self::NameTooLong => "ENAMETOOLONG",
            Self::NotEmpty => "ENOTEMPTY",
            Self::NoAttribute => "ENODATA",
            Self::NotSupported => "EOPNOTSUPP",
            Self::Stale => "ESTALE",
        }
    }
}

impl From<NoSpace> for Error {
    fn from(_: NoSpace) -> Self {
        Self::NoSpace
    }
}

impl From<MemoryError> for Error {
    fn from(_: MemoryError) -> Self {
        Self::Io
    }
}

impl From<NodesExhausted> for Error {
    fn from(_: NodesExhausted) -> Self {
        Self::NoMetadata
    }
}
