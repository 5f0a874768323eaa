//! Files of the kernel that hold bytes of inodes, and the store that makes them.
//!
//! The engine decides what becomes of such a file and keeps its names and attributes; an implementation turns each call into a
//! system call. The kernel reads, writes and maps the bytes itself once a file is registered with it, and no request for them
//! comes here. Contract: an operation that is done is seen by the kernel and by every later call; a file lives until
//! [`BackingFile::discard`], and after it as long as the kernel uses it.

use crate::NodeId;
use crate::fs::{Placement, Result, Whence};
use homenode_shared::Words;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// A store of backing files with a room that is limited.
pub trait BackingStore: Debug + Send + Sync {
    /// Makes an empty file.
    ///
    /// # Errors
    /// ENOSPC, ENOMEM, or ENFILE when the process has no descriptor left.
    fn create(&self) -> Result<Box<dyn BackingFile>>;

    /// Blocks of 4 KiB that all files take.
    fn used_blocks(&self) -> u64;

    /// Whether files that were discarded take blocks still, until operations that run on them have ended.
    fn has_leaving(&self) -> bool;

    /// Nodes on which pages of the files can lie, ascending.
    fn nodes(&self) -> &[NodeId];

    /// Limits the files to `blocks` blocks of 4 KiB together.
    ///
    /// # Errors
    /// [`NoSpace`](crate::fs::Error::NoSpace) when they take more than that already.
    fn resize(&self, blocks: u64) -> Result<()>;
}

/// Size, space and times of a backing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingStatus {
    /// In bytes.
    pub size: u64,
    /// Blocks of 4 KiB that it takes.
    pub blocks: u64,
    /// Last access, ns since the epoch.
    pub atime_ns: i64,
    /// Last change of the bytes, ns since the epoch.
    pub mtime_ns: i64,
    /// Last change of the file, ns since the epoch.
    pub ctime_ns: i64,
}

/// A file of the kernel that holds an inode's bytes.
pub trait BackingFile: Debug + Send + Sync {
    /// Size, space and times.
    ///
    /// # Errors
    /// EIO, or ESTALE after [`BackingFile::discard`], as of every operation.
    fn status(&self) -> Result<BackingStatus>;

    /// Reads at byte `offset`; returns the bytes read, short at the end of the file.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize>;

    /// Writes at byte `offset`; returns the bytes written, short when the store is full.
    ///
    /// # Errors
    /// ENOSPC when nothing could be written, EFBIG.
    fn write(&self, offset: u64, from: &[u8]) -> Result<usize>;

    /// Writes at the end, wherever others that append have brought it; returns the offset, and the bytes written, short when the store is full.
    ///
    /// # Errors
    /// ENOSPC when nothing could be written, EFBIG.
    fn append(&self, from: &[u8]) -> Result<(u64, usize)>;

    /// Sets the size, in bytes.
    ///
    /// # Errors
    /// EFBIG.
    fn set_size(&self, bytes: u64) -> Result<()>;

    /// Takes room for a range of bytes, as fallocate(2) with FALLOC_FL_KEEP_SIZE.
    ///
    /// # Errors
    /// ENOSPC; nothing has changed then.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Takes room for a range of bytes, all below the end of the file. Moves no time, and does not wait for writers, as [`BackingFile::allocate`] does.
    ///
    /// # Errors
    /// ENOSPC; some of it may be taken then.
    fn fill(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Frees a range of bytes, which read as zeros then.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn punch(&self, offset: u64, bytes: u64) -> Result<()>;

    /// Blocks of each range of blocks that take no room.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn holes(&self, ranges: &[Range<u64>]) -> Result<Vec<u64>>;

    /// lseek(2)'s SEEK_DATA and SEEK_HOLE.
    ///
    /// # Errors
    /// ENXIO at or beyond the end, or when no data follows.
    fn seek(&self, offset: u64, whence: Whence) -> Result<u64>;

    /// Start of the first aligned 2 MiB from the byte `from` on, or `from` itself within such, with blocks that take room below the byte
    /// `end`; `None` when there are none. Does not wait for writers, as [`BackingFile::seek`] may.
    ///
    /// # Errors
    /// The errors of [`BackingFile::status`].
    fn next_taken(&self, from: u64, end: u64) -> Result<Option<u64>>;

    /// Sets times in ns since the epoch; `None` leaves one as it is.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn set_times(&self, atime_ns: Option<i64>, mtime_ns: Option<i64>) -> Result<()>;

    /// Adds the bytes on each node of the part that begins at the byte `from`, some milliseconds' work; gives where the next part
    /// begins, `None` at the end.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn map_part(&self, from: u64, by_node: &mut BTreeMap<NodeId, u64>) -> Result<Option<u64>>;

    /// Has pages that are still to come lie where `placement` says, local and interleaved ones on the nodes `among`, `None` for all.
    /// Pages that lie somewhere stay.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn place(&self, placement: Placement, among: Option<&[NodeId]>) -> Result<()>;

    /// Moves the bytes that are on the node `from`, `None` for all, to the node `to` while the file is in use; returns the bytes moved.
    /// `progress` hears bytes looked at, and all of them.
    ///
    /// # Errors
    /// ENOSPC when the node is full; what moved stays moved.
    fn move_pages(&self, from: Option<NodeId>, to: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64>;

    /// Puts the aligned 2 MiB within a range of bytes in huge pages, where they have data without holes.
    ///
    /// # Errors
    /// EOPNOTSUPP where there are no huge pages for it.
    fn collapse(&self, bytes: Range<u64>) -> Result<()>;

    /// Whether some process may write to the file without a request: it has the file open for that, or mapped by such an open. Not
    /// asked while an open for writing is being made.
    ///
    /// # Errors
    /// As [`BackingFile::status`].
    fn has_writers(&self) -> Result<bool>;

    /// A descriptor of the file that reads, by which it is registered with the kernel.
    ///
    /// # Errors
    /// ENFILE when the process has no descriptor left.
    fn descriptor(&self) -> Result<OwnedFd>;

    /// Makes the file hold so many lines of words, all of whose memory is there, and maps them for writing. The file is empty before, and is not resized
    /// afterwards.
    ///
    /// # Errors
    /// ENOSPC, ENOMEM; EOPNOTSUPP where files cannot be mapped.
    fn words(&self, lines: u32) -> Result<Words>;

    /// Gives the file up, as dropping it does: no operation follows. Its bytes go with the kernel's last use of it.
    fn discard(&self);
}

/// A number by which a connection of the kernel knows a backing file, until this is dropped.
pub trait Registration: Debug + Send + Sync {
    /// The number, on that connection alone.
    fn id_on(&self, connection: u64) -> Option<i32>;
}
