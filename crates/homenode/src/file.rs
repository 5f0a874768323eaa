//! Open files.

use crate::pool::Inner;
use crate::{Attached, BLOCK_BYTES, Error, Metadata, NodeId};
use homenode_engine::Block;
use homenode_engine::cache::Cached;
use homenode_engine::fs::{Access, Advice, Asking, Error as FsError, Inode, ReadAt, SetAttr, Whence};
use homenode_linux::cpu::current_cpu;
use homenode_linux::memory::{Lent, NodeMemory};
use std::path::Path;
use std::sync::Arc;

/// Bit of [`Handle::access`]: may be read.
pub(crate) const READ: u8 = 1;
/// May be written.
pub(crate) const WRITE: u8 = 2;
/// Every write goes to the end.
pub(crate) const APPEND: u8 = 4;

/// An open file. Clones share it; any number of threads may use it at once. The file's bytes live while it is open, even
/// when its last name is removed.
///
/// Reads and writes are copies made by the calling thread: nothing waits, nothing is handed to another thread. A first
/// write places its blocks on the node of the CPU that makes it.
#[derive(Clone)]
pub struct File {
    handle: Arc<Handle>,
}

struct Handle {
    pool: Arc<Inner>,
    inode: Arc<Inode>,
    access: u8,
}

/// Operation of [`File::allocate`] on a range, as in fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocate {
    /// Promises space for the range and extends the file to its end. Places nothing: the first writer's node gets the
    /// blocks.
    Reserve,
    /// Promises space like [`Allocate::Reserve`], but leaves the size as it is.
    ReserveKeepSize,
    /// Makes the range a hole; the size stays.
    PunchHole,
    /// Makes the range read as zeros and extends the file to its end.
    ZeroRange,
    /// Makes the range read as zeros; the size stays.
    ZeroRangeKeepSize,
    /// Takes the range out of the file; what is behind it moves up.
    CollapseRange,
    /// Puts a hole in at the offset; what is behind it moves down.
    InsertRange,
}

impl Allocate {
    /// The FALLOC_FL_ bits of linux/falloc.h.
    fn bits(self) -> u32 {
        const KEEP_SIZE: u32 = 0x01;
        const PUNCH_HOLE: u32 = 0x02;
        const COLLAPSE_RANGE: u32 = 0x08;
        const ZERO_RANGE: u32 = 0x10;
        const INSERT_RANGE: u32 = 0x20;
        match self {
            Self::Reserve => 0,
            Self::ReserveKeepSize => KEEP_SIZE,
            Self::PunchHole => PUNCH_HOLE | KEEP_SIZE,
            Self::ZeroRange => ZERO_RANGE,
            Self::ZeroRangeKeepSize => ZERO_RANGE | KEEP_SIZE,
            Self::CollapseRange => COLLAPSE_RANGE,
            Self::InsertRange => INSERT_RANGE,
        }
    }
}

/// Bits of [`Handle::access`] as the filesystem counts opens.
fn counted(access: u8) -> Access {
    if access & WRITE == 0 {
        Access::Read
    } else {
        Access::Write
    }
}

impl File {
    /// Opens `inode`.
    ///
    /// # Errors
    /// [`FsError::Stale`] when it is gone.
    pub(crate) fn open(pool: Arc<Inner>, inode: Arc<Inode>, access: u8) -> Result<Self, FsError> {
        pool.fs.open(&inode, counted(access))?;
        Ok(Self {
            handle: Arc::new(Handle { pool, inode, access }),
        })
    }

    /// Opens a file of a mounted pool, of this process or another one, for reading and writing. What its server and other programs write there is seen, and they see what is written here:
    /// unlike a file of a [`Pool`](crate::Pool), which is this process's own. [`Attached`] is made `from` a [`std::fs::File`] that was opened in another way, too.
    ///
    /// # Errors
    /// As open(2).
    pub fn attach(path: impl AsRef<Path>) -> std::io::Result<Attached> {
        let both = std::fs::File::options().read(true).write(true).open(path)?;
        Ok(both.into())
    }

    /// Reads into `to` from `offset` (both in bytes). Gives the bytes read: fewer than asked only at the end of the file.
    ///
    /// # Errors
    /// EBADF when the file was not opened for reading, EISDIR for a directory.
    #[inline(always)]
    pub fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize, Error> {
        let handle = &*self.handle;
        if handle.access & READ == 0 {
            return Err(self.not_opened_for("read"));
        }
        if let Some(slot) = handle.pool.current_slot() {
            match handle.pool.fs.read_whole(slot, current_cpu, &handle.inode, offset, to) {
                Ok(true) => return Ok(to.len()),
                Ok(false) => {}
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        self.read_pieces(to, offset)
    }

    /// Reads many pieces of the file, up to 32 of them from disks at a time: what is faster than one [`File::read_at`] after the other where most of them
    /// are not in memory.
    ///
    /// # Errors
    /// As [`File::read_at`], of the first that fails: those behind it are not read.
    pub fn read_many(&self, reads: &mut [ReadAt<'_>]) -> Result<(), Error> {
        let handle = &*self.handle;
        if handle.access & READ == 0 {
            return Err(self.not_opened_for("read"));
        }
        self.asking("read", |pool, asking, inode| pool.fs.read_many(asking, inode, reads))
    }

    /// Takes advice on `bytes` bytes from `offset` on, as posix_fadvise(2). Advice on the order of reads is taken for the whole file, and all who read it.
    /// Programs can give it only through the library: the kernel tells mounts nothing of posix_fadvise(2), and follows it in its own page cache.
    ///
    /// # Errors
    /// Never on a pool of today.
    pub fn advise(&self, advice: Advice, offset: u64, bytes: u64) -> Result<(), Error> {
        let range = offset..offset.saturating_add(bytes);
        self.asking("take advice on", |pool, asking, inode| {
            pool.fs.advise(asking, inode, advice, range.clone())
        })
    }

    /// Shows `act` bytes from `offset` on where they lie, without a copy: `most` of them, or fewer, those that lie one behind the other; none at the end
    /// of the file. They stay where they are while `act` runs, so it should be short: who takes blocks away from the file waits for it, and in a pool with a cache no
    /// block of any file is evicted meanwhile; reads of others fail after ten seconds. It must not use the pool.
    ///
    /// # Errors
    /// As [`File::read_at`]; ENOTSUP for a file whose bytes are the kernel's.
    ///
    /// # Panics
    /// When `act` uses the pool.
    pub fn with_bytes<R>(&self, offset: u64, most: usize, mut act: impl FnMut(Lent<'_>) -> R) -> Result<R, Error> {
        const HOLE: [u64; BLOCK_BYTES / 8] = [0; BLOCK_BYTES / 8];
        let handle = &*self.handle;
        if handle.access & READ == 0 {
            return Err(self.not_opened_for("read"));
        }
        let mut lend = |memory: &Cached<NodeMemory>, place: Option<(Block, usize)>, bytes: usize| match place {
            Some((block, in_block)) => memory.below().lend(block, in_block, bytes, &mut act),
            None => act(Lent::of(&HOLE, bytes)),
        };
        let mut lent = None;
        self.asking("read", |pool, asking, inode| {
            let given = pool.fs.lend(asking, inode, offset, most, &mut lend);
            given.map(|given| lent = Some(given))
        })?;
        Ok(lent.expect("lend succeeded, so `lent` is set"))
    }

    /// Writes `from` at `offset` (bytes), or at the end when the file was opened to append. Gives the bytes written:
    /// fewer than given only when the pool is full.
    ///
    /// # Errors
    /// ENOSPC when nothing could be written because the pool is full, EFBIG beyond the largest file, EBADF when the file
    /// was not opened for writing.
    #[inline(always)]
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<usize, Error> {
        let handle = &*self.handle;
        if handle.access & (WRITE | APPEND) != WRITE {
            return self.append(from).map(|(_, bytes)| bytes);
        }
        if let Some(slot) = handle.pool.current_slot() {
            match handle
                .pool
                .fs
                .write_whole(slot, current_cpu, &handle.inode, offset, from)
            {
                Ok(true) => return Ok(from.len()),
                Ok(false) => {}
                Err(error) => return Err(self.failed("write", error)),
            }
        }
        self.write_pieces(from, offset)
    }

    /// Any read: see `Fs::read_whole` for the common one.
    #[inline(never)]
    fn read_pieces(&self, to: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.asking("read", |pool, asking, inode| pool.fs.read(asking, inode, offset, to))
    }

    /// Any write but an append.
    #[inline(never)]
    fn write_pieces(&self, from: &[u8], offset: u64) -> Result<usize, Error> {
        // The pool is its process's own: no write of it is a stranger's that must take set-uid bits away.
        self.asking("write", |pool, asking, inode| {
            pool.fs.write(asking, inode, offset, from, false)
        })
    }

    /// Reads exactly `to.len()` bytes; `Ok(false)` when the file ends before.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_exact_at(&self, to: &mut [u8], offset: u64) -> Result<bool, Error> {
        self.read_at(to, offset).map(|bytes| bytes == to.len())
    }

    /// Writes all of `from`; ENOSPC where the pool cannot hold it (a part may be written then).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_all_at(&self, mut from: &[u8], mut offset: u64) -> Result<(), Error> {
        while !from.is_empty() {
            let bytes = self.write_at(from, offset)?;
            if bytes == 0 {
                return Err(self.failed("write", FsError::NoSpace));
            }
            from = &from[bytes..];
            offset += bytes as u64;
        }
        Ok(())
    }

    /// Writes at the end, atomically against other appends. Gives the offset written at and the bytes written.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, from: &[u8]) -> Result<(u64, usize), Error> {
        self.writing("append to", |pool, asking, inode| {
            pool.fs.append(asking, inode, from, false)
        })
    }

    /// Sets the size. What is added is a hole, what is cut off is free at once.
    ///
    /// # Errors
    /// EFBIG beyond the largest file, EBADF when the file was not opened for writing.
    pub fn set_len(&self, bytes: u64) -> Result<(), Error> {
        self.writing("resize", |pool, asking, inode| {
            let set = SetAttr {
                size: Some(bytes),
                is_sized: pool.fs.reserve_extension(asking, inode, bytes)?,
                ..SetAttr::default()
            };
            pool.fs.set_attr(inode, &set).map(drop)
        })
    }

    /// Reserves, frees, zeroes, takes out or inserts `bytes` from `offset`. Others may read and write the file while much of it is freed
    /// or zeroed, and see a part of that; taking out and inserting happen at once, in which time they wait: milliseconds per GiB.
    ///
    /// # Errors
    /// ENOSPC when the space cannot be promised, EOPNOTSUPP or EINVAL as fallocate(2).
    pub fn allocate(&self, how: Allocate, offset: u64, bytes: u64) -> Result<(), Error> {
        self.writing("allocate space in", |pool, asking, inode| {
            pool.fs.fallocate(asking, inode, how.bits(), offset, bytes)
        })
    }

    /// The first offset at or behind `offset` that holds data; none when only a hole follows, or the end.
    ///
    /// # Errors
    /// EINVAL for something other than a file.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.seek(offset, Whence::Data)
    }

    /// The first offset at or behind `offset` in a hole; the end of the file counts as one. None behind the end.
    ///
    /// # Errors
    /// EINVAL for something other than a file.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        self.seek(offset, Whence::Hole)
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<Option<u64>, Error> {
        let handle = &*self.handle;
        match handle
            .pool
            .asking(|asking| handle.pool.fs.seek(asking, &handle.inode, offset, whence))
        {
            Ok(found) => Ok(Some(found)),
            Err(FsError::NoData) => Ok(None),
            Err(error) => Err(self.failed("seek in", error)),
        }
    }

    /// Copies up to `bytes` bytes of `from` into this file without a buffer of the caller. Gives the bytes copied: fewer
    /// at the end of `from`.
    ///
    /// # Errors
    /// EXDEV when the two are not of one pool; EINVAL when the ranges overlap in one file; else as [`File::write_at`].
    pub fn copy_from(&self, from: &Self, from_offset: u64, offset: u64, bytes: u64) -> Result<u64, Error> {
        if from.handle.access & READ == 0 {
            return Err(from.not_opened_for("copy from"));
        }
        if !Arc::ptr_eq(&self.handle.pool, &from.handle.pool) {
            return Err(Error::OtherPool { inode: self.ino() });
        }
        let source = &from.handle.inode;
        self.writing("copy to", |pool, asking, inode| {
            pool.fs.copy_range(asking, source, from_offset, inode, offset, bytes)
        })
    }

    /// Makes everything written durable. A pool of memory has nothing to do for it: the bytes are where they stay.
    ///
    /// # Errors
    /// EIO, never in a pool of memory: when a member of a durable one cannot be written, again until all of it is durable.
    pub fn sync(&self) -> Result<(), Error> {
        self.asking("make durable", |pool, asking, inode| pool.fs.sync(asking.slot, inode))
    }

    /// Returns the file's attributes, as stat(2).
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        Metadata(self.handle.pool.fs.attr(&self.handle.inode))
    }

    /// Where the file lies: bytes on each node, ascending by node, nodes with none left out. Holes lie nowhere.
    #[must_use]
    pub fn map(&self) -> Vec<(NodeId, u64)> {
        self.handle.pool.fs.map(&self.handle.inode)
    }

    /// Moves the file's blocks to `node`, under readers and writers. Gives the bytes moved.
    ///
    /// # Errors
    /// ENODEV when the pool has no member there, ENOSPC when the members there cannot hold the file: what moved until
    /// then stays moved.
    pub fn move_to(&self, node: NodeId) -> Result<u64, Error> {
        self.move_to_with(node, &mut |_, _| {})
    }

    /// Moves the file like [`File::move_to`] and tells `progress` the bytes looked at and all of them. `progress` must not touch
    /// the file.
    ///
    /// # Errors
    /// As [`File::move_to`].
    pub fn move_to_with(&self, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64, Error> {
        let handle = &*self.handle;
        handle.pool.require_member_on(node)?;
        handle
            .pool
            .fs
            .move_to(&handle.inode, node, progress)
            .map_err(|error| self.failed("move", error))
    }

    /// The file's inode number, unique in its pool and never used again.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.handle.inode.ino().0
    }

    fn writing<R: Default>(
        &self,
        operation: &'static str,
        write: impl Fn(&Inner, &Asking<'_>, &Arc<Inode>) -> Result<R, FsError>,
    ) -> Result<R, Error> {
        if self.handle.access & WRITE == 0 {
            return Err(self.not_opened_for(operation));
        }
        self.asking(operation, write)
    }

    fn asking<R: Default>(
        &self,
        operation: &'static str,
        mut run: impl FnMut(&Inner, &Asking<'_>, &Arc<Inode>) -> Result<R, FsError>,
    ) -> Result<R, Error> {
        let handle = &*self.handle;
        let done = handle.pool.asking(|asking| run(&handle.pool, asking, &handle.inode));
        done.map_err(|error| self.failed(operation, error))
    }

    #[cold]
    fn failed(&self, operation: &'static str, source: FsError) -> Error {
        Error::File {
            operation,
            inode: self.ino(),
            source,
        }
    }

    #[cold]
    fn not_opened_for(&self, operation: &'static str) -> Error {
        Error::NotOpenedFor {
            operation,
            inode: self.ino(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.pool.fs.release(&self.inode, counted(self.access));
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("ino", &self.ino())
            .field("access", &self.handle.access)
            .finish_non_exhaustive()
    }
}
