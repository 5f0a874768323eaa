//! Which operation each kind of body supports, and the errno of those it does not: the one table the engine answers from.

use super::fallocate_mode::{COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, UNSHARE_RANGE, ZERO_RANGE};
use super::{Error, Result};

/// Kinds of bodies that an inode can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyKind {
    /// A regular file.
    File,
    /// A regular file whose bytes the kernel reads and writes itself.
    KernelFile,
    /// A block volume.
    Volume,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device node, fifo or socket: the kernel does the rest.
    Special,
}

/// Operations on the bytes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// read(2)
    Read,
    /// write(2)
    Write,
    /// write(2) at the end
    Append,
    /// truncate(2)
    Truncate,
    /// fallocate(2) without a mode
    Reserve,
    /// FALLOC_FL_KEEP_SIZE
    ReserveKeepSize,
    /// FALLOC_FL_PUNCH_HOLE
    PunchHole,
    /// FALLOC_FL_ZERO_RANGE
    ZeroRange,
    /// FALLOC_FL_ZERO_RANGE with FALLOC_FL_KEEP_SIZE
    ZeroRangeKeepSize,
    /// FALLOC_FL_COLLAPSE_RANGE
    CollapseRange,
    /// FALLOC_FL_INSERT_RANGE
    InsertRange,
    /// lseek(2) with SEEK_DATA and SEEK_HOLE
    Seek,
    /// copy_file_range(2), the file that is read
    CopyFrom,
    /// copy_file_range(2), the file that is written
    CopyTo,
    /// Bytes on each node
    Map,
    /// Moving to another node
    Move,
}

const YES: Result<()> = Ok(());
const NOT_SUPPORTED: Result<()> = Err(Error::NotSupported);
const INVALID: Result<()> = Err(Error::Invalid);
const IS_DIRECTORY: Result<()> = Err(Error::IsDirectory);
const NO_ATTRIBUTE: Result<()> = Err(Error::NoAttribute);

/// Answers by operation (rows) and kind (columns), both in the order of their enums.
#[rustfmt::skip]
const TABLE: [(Operation, [Result<()>; BodyKind::ALL.len()]); Operation::ALL.len()] = [
    //                             file  kernel file    volume         directory     symlink       special
    (Operation::Read,              [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::Write,             [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::Append,            [YES, YES,           INVALID,       IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::Truncate,          [YES, YES,           INVALID,       IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::Reserve,           [YES, YES,           NOT_SUPPORTED, IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::ReserveKeepSize,   [YES, YES,           NOT_SUPPORTED, IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::PunchHole,         [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::ZeroRange,         [YES, NOT_SUPPORTED, NOT_SUPPORTED, IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::ZeroRangeKeepSize, [YES, NOT_SUPPORTED, YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::CollapseRange,     [YES, NOT_SUPPORTED, NOT_SUPPORTED, IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::InsertRange,       [YES, NOT_SUPPORTED, NOT_SUPPORTED, IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::Seek,              [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::CopyFrom,          [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::CopyTo,            [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
    (Operation::Map,               [YES, YES,           YES,           NO_ATTRIBUTE, NO_ATTRIBUTE, NO_ATTRIBUTE]),
    (Operation::Move,              [YES, YES,           YES,           IS_DIRECTORY, INVALID,      INVALID]),
];

const _: () = {
    let mut row = 0;
    while row < TABLE.len() {
        assert!(
            TABLE[row].0 as usize == row,
            "rows stand in the order of the operations"
        );
        assert!(Operation::ALL[row] as usize == row);
        row += 1;
    }
    let mut kind = 0;
    while kind < BodyKind::ALL.len() {
        assert!(BodyKind::ALL[kind] as usize == kind);
        kind += 1;
    }
};

impl BodyKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::File,
        Self::KernelFile,
        Self::Volume,
        Self::Directory,
        Self::Symlink,
        Self::Special,
    ];

    /// Its name, in small letters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::KernelFile => "kernel file",
            Self::Volume => "volume",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Special => "special",
        }
    }

    /// Answers whether bodies of this kind support `operation`.
    ///
    /// # Errors
    /// The error that the operation gives.
    #[inline]
    pub const fn supports(self, operation: Operation) -> Result<()> {
        TABLE[operation as usize].1[self as usize]
    }
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 16] = [
        Self::Read,
        Self::Write,
        Self::Append,
        Self::Truncate,
        Self::Reserve,
        Self::ReserveKeepSize,
        Self::PunchHole,
        Self::ZeroRange,
        Self::ZeroRangeKeepSize,
        Self::CollapseRange,
        Self::InsertRange,
        Self::Seek,
        Self::CopyFrom,
        Self::CopyTo,
        Self::Map,
        Self::Move,
    ];

    /// Its name, in small letters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Append => "append",
            Self::Truncate => "truncate",
            Self::Reserve => "reserve",
            Self::ReserveKeepSize => "reserve, keep size",
            Self::PunchHole => "punch hole",
            Self::ZeroRange => "zero range",
            Self::ZeroRangeKeepSize => "zero range, keep size",
            Self::CollapseRange => "collapse range",
            Self::InsertRange => "insert range",
            Self::Seek => "seek data or hole",
            Self::CopyFrom => "copy range from",
            Self::CopyTo => "copy range to",
            Self::Map => "map",
            Self::Move => "move",
        }
    }

    /// Whether it takes room for what is a hole.
    pub(super) const fn reserves(self) -> bool {
        matches!(
            self,
            Self::Reserve | Self::ReserveKeepSize | Self::ZeroRange | Self::ZeroRangeKeepSize
        )
    }

    /// The operation that a mode of fallocate(2) asks for; `None` for bits or pairs of bits that no filesystem takes.
    #[must_use]
    pub const fn of_fallocate(mode: u32) -> Option<Self> {
        let keeps_size = mode & KEEP_SIZE != 0;
        match mode & !(KEEP_SIZE | UNSHARE_RANGE) {
            0 if keeps_size => Some(Self::ReserveKeepSize),
            0 => Some(Self::Reserve),
            PUNCH_HOLE if keeps_size => Some(Self::PunchHole),
            ZERO_RANGE if keeps_size => Some(Self::ZeroRangeKeepSize),
            ZERO_RANGE => Some(Self::ZeroRange),
            COLLAPSE_RANGE if mode == COLLAPSE_RANGE => Some(Self::CollapseRange),
            INSERT_RANGE if mode == INSERT_RANGE => Some(Self::InsertRange),
            _ => None,
        }
    }
}
