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
    /// ENOSPC: the pool has as many inodes as it can, or as this user may have
    #[error("no more files: the pool has as many as it can (`df -i`), or this user has half of what the others leave")]
    NoInodes,
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
    /// Linux's number for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        self.linux().0
    }

    /// Linux's name of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.linux().1
    }

    /// Number and name, from asm-generic/errno-base.h and errno.h.
    const fn linux(self) -> (i32, &'static str) {
        match self {
            Self::NotPermitted => (1, "EPERM"),
            Self::NotFound => (2, "ENOENT"),
            Self::Io => (5, "EIO"),
            Self::NoData => (6, "ENXIO"),
            Self::AttributeTooBig => (7, "E2BIG"),
            Self::Away | Self::NoPlaces(_) => (11, "EAGAIN"),
            Self::NoMemory => (12, "ENOMEM"),
            Self::Busy => (16, "EBUSY"),
            Self::Exists => (17, "EEXIST"),
            Self::NotDirectory => (20, "ENOTDIR"),
            Self::IsDirectory => (21, "EISDIR"),
            Self::Invalid => (22, "EINVAL"),
            Self::NoDescriptor => (23, "ENFILE"),
            Self::TooBig => (27, "EFBIG"),
            Self::NoSpace | Self::NoMetadata | Self::NoInodes => (28, "ENOSPC"),
            Self::ReadOnly => (30, "EROFS"),
            Self::TooManyLinks => (31, "EMLINK"),
            Self::NameTooLong => (36, "ENAMETOOLONG"),
            Self::NotEmpty => (39, "ENOTEMPTY"),
            Self::NoAttribute => (61, "ENODATA"),
            Self::NotSupported => (95, "EOPNOTSUPP"),
            Self::Stale => (116, "ESTALE"),
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
