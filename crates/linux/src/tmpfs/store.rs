//! A private tmpfs whose files are the kernel's bodies of inodes (the engine's `BackingStore`).
//!
//! Owns the filesystem. Each body is a file with a number for its name; no descriptor is kept, so a million of them need none: an
//! operation opens the file, or names it. The kernel's registration keeps one open file for each body that was opened once.
//!
//! Bytes are in pages of the node whose CPU writes them, as on any tmpfs; `crate::steer` says otherwise where it is told to.

use super::{Context, OWNER_ONLY};
use crate::memory::cgroup::Limits;
use crate::memory::mapping::nodes_with_memory;
use crate::steer;
use homenode_engine::NodeId;
use homenode_engine::backing::{BackingFile, BackingStatus, BackingStore};
use homenode_engine::fs::{Error, Placement, Result, Whence};
use homenode_shared::Words;
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, SeekFrom, StatxFlags, Timespec, Timestamps, UTIME_OMIT, fallocate,
    fstatvfs, ftruncate, mknodat, openat, seek, statx, unlinkat, utimensat,
};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2, retry_on_intr};
use rustix::mount::{FsPickFlags, MountAttrFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK_BYTES: u64 = homenode_engine::BLOCK_BYTES as u64;
const NS_PER_SECOND: i64 = 1_000_000_000;
/// fcntl(2)'s command that chooses the signal of a lease; libc has no name for it.
const F_SETSIG: i32 = 10;

/// A store of backing files on a tmpfs of its own.
#[derive(Debug)]
pub struct TmpfsStore(Arc<Root>);

#[derive(Debug)]
struct Root {
    directory: OwnedFd,
    /// The last file's number.
    last: AtomicU64,
    /// Files that were discarded and take blocks until what runs on them has ended.
    leaving: AtomicU64,
    nodes: Vec<NodeId>,
}

impl TmpfsStore {
    /// A store for at most `files_max` files of `bytes` bytes together; with `noatime` reading moves no access times.
    ///
    /// # Errors
    /// What the kernel refuses the mount with: EPERM without CAP_SYS_ADMIN.
    pub fn new(bytes: u64, files_max: u64, noatime: bool) -> io::Result<Self> {
        let mut context = Context::new(bytes)?;
        // The root directory is one more.
        context.set("nr_inodes", &files_max.saturating_add(1).to_string())?;
        // Kernels without huge pages refuse the word.
        let _ = context.set("huge", "within_size");
        // Every kernel with passthrough knows it.
        context.set_noswap();
        // Files of the pool may be programs.
        let mut attributes = MountAttrFlags::empty();
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOATIME, noatime);
        let directory = context.mount(attributes)?;
        Ok(Self(Arc::new(Root {
            directory,
            last: AtomicU64::new(0),
            leaving: AtomicU64::new(0),
            // A kernel without NUMA takes no policies.
            nodes: nodes_with_memory().unwrap_or_else(|_| vec![NodeId(0)]),
        })))
    }
}

impl Root {
    /// Makes an empty file; gives its name.
    fn add(&self) -> Result<Box<str>> {
        // Relaxed: only that no two are equal.
        let name = self.last.fetch_add(1, Ordering::Relaxed).to_string().into_boxed_str();
        mknodat(&self.directory, &*name, FileType::RegularFile, OWNER_ONLY, 0).map_err(error)?;
        Ok(name)
    }
}

impl BackingStore for TmpfsStore {
    fn create(&self) -> Result<Box<dyn BackingFile>> {
        Ok(Box::new(TmpfsFile {
            root: Arc::clone(&self.0),
            name: self.0.add()?,
            using: Mutex::default(),
        }))
    }

    fn used_blocks(&self) -> u64 {
        fstatvfs(&self.0.directory).map_or(0, |space| space.f_blocks.saturating_sub(space.f_bfree))
    }

    fn has_leaving(&self) -> bool {
        self.0.leaving.load(Ordering::SeqCst) > 0
    }

    fn nodes(&self) -> &[NodeId] {
        &self.0.nodes
    }

    fn resize(&self, blocks: u64) -> Result<()> {
        let resize = || {
            let context = fspick(
                &self.0.directory,
                "",
                FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC,
            )?;
            // No block would mean no limit.
            let bytes = blocks.max(1).saturating_mul(BLOCK_BYTES);
            fsconfig_set_string(&context, "size", bytes.to_string())?;
            fsconfig_reconfigure(&context)
        };
        // EINVAL: it is smaller than what is used.
        resize().map_err(|_| Error::NoSpace)
    }
}

/// A body on a [`TmpfsStore`].
#[derive(Debug)]
struct TmpfsFile {
    root: Arc<Root>,
    name: Box<str>,
    using: Mutex<Use>,
}

#[derive(Debug, Default)]
struct Use {
    /// Operations that run. Each may keep the kernel's inode, which has its blocks until the last one ends.
    running: u32,
    is_discarded: bool,
}

/// An operation that runs on a file.
struct Running<'a>(&'a TmpfsFile);

/// The file, open for an operation.
struct Opened<'a> {
    file: OwnedFd,
    // Dropped after the descriptor.
    _running: Running<'a>,
}

impl TmpfsFile {
    fn open(&self) -> Result<Opened<'_>> {
        self.open_for(OFlags::RDWR)
    }

    /// The file, for mappings that are none of its users': no access time moves.
    fn open_to_map(&self) -> Result<Opened<'_>> {
        self.open_for(OFlags::RDONLY | OFlags::NOATIME)
    }

    fn open_for(&self, access: OFlags) -> Result<Opened<'_>> {
        let running = self.run()?;
        let flags = access | OFlags::CLOEXEC;
        let file = openat(&self.root.directory, &*self.name, flags, OWNER_ONLY).map_err(error)?;
        Ok(Opened {
            file,
            _running: running,
        })
    }

    fn run(&self) -> Result<Running<'_>> {
        let mut using = self.using.lock();
        if using.is_discarded {
            return Err(Error::Stale);
        }
        using.running += 1;
        Ok(Running(self))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut using = self.0.using.lock();
        using.running -= 1;
        if using.is_discarded && using.running == 0 {
            self.0.root.leaving.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl AsFd for Opened<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl BackingFile for TmpfsFile {
    fn status(&self) -> Result<BackingStatus> {
        let _running = self.run()?;
        let wanted = StatxFlags::SIZE | StatxFlags::BLOCKS | StatxFlags::ATIME | StatxFlags::MTIME | StatxFlags::CTIME;
        let status = statx(&self.root.directory, &*self.name, AtFlags::empty(), wanted).map_err(error)?;
        let time = |time: rustix::fs::StatxTimestamp| {
            let ns = i128::from(time.tv_sec) * i128::from(NS_PER_SECOND) + i128::from(time.tv_nsec);
            i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
        };
        Ok(BackingStatus {
            size: status.stx_size,
            blocks: status.stx_blocks / (BLOCK_BYTES / 512),
            atime_ns: time(status.stx_atime),
            mtime_ns: time(status.stx_mtime),
            ctime_ns: time(status.stx_ctime),
        })
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let file = self.open_for(OFlags::RDONLY)?;
        let mut done = 0;
        while done < to.len() {
            match pread(&file, &mut to[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(error(errno)),
            }
        }
        Ok(done)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        let file = self.open()?;
        let mut done = 0;
        while done < from.len() {
            match pwrite(&file, &from[done..], offset + done as u64) {
                Ok(bytes) => done += bytes,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(error(errno)),
            }
        }
        Ok(done)
    }

    fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        if from.is_empty() {
            return Ok((self.status()?.size, 0));
        }
        let file = self.open()?;
        // At the file's position, which is this open file's alone and then behind the bytes.
        let position = u64::MAX;
        let written = retry_on_intr(|| pwritev2(&file, &[IoSlice::new(from)], position, ReadWriteFlags::APPEND));
        let written = written.map_err(error)?;
        let end = seek(&file, SeekFrom::Current(0)).map_err(error)?;
        Ok((end - written as u64, written))
    }

    fn set_size(&self, bytes: u64) -> Result<()> {
        ftruncate(self.open()?, bytes).map_err(error)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        // Charged to the server's memory control group: at its limit that would end who is in it.
        if Limits::lately().room() < bytes {
            return Err(Error::NoSpace);
        }
        fallocate(self.open()?, FallocateFlags::KEEP_SIZE, offset, bytes).map_err(error)
    }

    fn fill(&self, offset: u64, bytes: u64) -> Result<()> {
        // As in `allocate`.
        if Limits::lately().room() < bytes {
            return Err(Error::NoSpace);
        }
        let file = self.open_to_map()?;
        steer::fill(file.as_fd(), offset, bytes).map_err(|failure| error_of(&failure))
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.open()?, flags, offset, bytes).map_err(error)
    }

    fn holes(&self, ranges: &[Range<u64>]) -> Result<Vec<u64>> {
        let file = self.open_for(OFlags::RDONLY)?;
        let holes = |range: &Range<u64>| {
            let blocks = range.end - range.start;
            if blocks == 0 {
                // The kernel would count to the end.
                return Ok(0);
            }
            let (offset, bytes) = (range.start * BLOCK_BYTES, blocks.saturating_mul(BLOCK_BYTES));
            let pages = steer::cached_pages(file.as_fd(), offset, bytes).map_err(|failure| error_of(&failure))?;
            Ok(blocks.saturating_sub(pages))
        };
        ranges.iter().map(holes).collect()
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        let offset = match whence {
            Whence::Data => SeekFrom::Data(offset),
            Whence::Hole => SeekFrom::Hole(offset),
        };
        seek(self.open_for(OFlags::RDONLY)?, offset).map_err(error)
    }

    fn next_taken(&self, from: u64, end: u64) -> Result<Option<u64>> {
        let file = self.open_for(OFlags::RDONLY)?;
        steer::next_pages(file.as_fd(), from, end).map_err(|failure| error_of(&failure))
    }

    fn set_times(&self, atime_ns: Option<i64>, mtime_ns: Option<i64>) -> Result<()> {
        let time = |ns: Option<i64>| Timespec {
            tv_sec: ns.unwrap_or(0).div_euclid(NS_PER_SECOND),
            tv_nsec: ns.map_or(UTIME_OMIT, |ns| ns.rem_euclid(NS_PER_SECOND)),
        };
        let times = Timestamps {
            last_access: time(atime_ns),
            last_modification: time(mtime_ns),
        };
        let _running = self.run()?;
        utimensat(&self.root.directory, &*self.name, &times, AtFlags::empty()).map_err(error)
    }

    fn map_part(&self, from: u64, by_node: &mut BTreeMap<NodeId, u64>) -> Result<Option<u64>> {
        let file = self.open_to_map()?;
        steer::map_part(file.as_fd(), from, by_node).map_err(|failure| error_of(&failure))
    }

    fn place(&self, placement: Placement, among: Option<&[NodeId]>) -> Result<()> {
        let file = self.open_to_map()?;
        steer::place(file.as_fd(), placement, among).map_err(|failure| error_of(&failure))
    }

    fn move_pages(&self, from: Option<NodeId>, to: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let file = self.open_to_map()?;
        steer::move_pages(file.as_fd(), from, to, progress).map_err(|failure| error_of(&failure))
    }

    fn collapse(&self, bytes: Range<u64>) -> Result<()> {
        let file = self.open_to_map()?;
        steer::collapse(file.as_fd(), bytes).map_err(|failure| error_of(&failure))
    }

    fn has_writers(&self) -> Result<bool> {
        let file = self.open_for(OFlags::RDONLY)?;
        // Who opens the file meanwhile has a signal sent: one that does nothing, not SIGIO, which ends a process.
        lease(&file, F_SETSIG, libc::SIGURG).map_err(error)?;
        // A lease on reads is given when nobody has the file open for writing, mappings included. It goes with the descriptor.
        match lease(&file, libc::F_SETLEASE, libc::F_RDLCK) {
            Ok(()) => Ok(false),
            Err(Errno::AGAIN) => Ok(true),
            Err(errno) => Err(error(errno)),
        }
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        // The kernel opens the file anew for each open; one that writes would make every file look written.
        Ok(self.open_for(OFlags::RDONLY)?.file)
    }

    fn words(&self, lines: u32) -> Result<Words> {
        let (file, bytes) = (self.open()?, u64::from(lines) * Words::LINE_BYTES as u64);
        ftruncate(&file, bytes).map_err(error)?;
        self.allocate(0, bytes)?;
        Words::map(file.as_fd(), lines as usize, true).map_err(|failure| error_of(&failure))
    }

    fn discard(&self) {
        let mut using = self.using.lock();
        if using.is_discarded {
            return;
        }
        using.is_discarded = true;
        if using.running > 0 {
            self.root.leaving.fetch_add(1, Ordering::SeqCst);
        }
        // It may take long, if nothing else keeps the file.
        drop(using);
        // Cannot fail but when the name is gone: nobody else removes it.
        let _ = unlinkat(&self.root.directory, &*self.name, AtFlags::empty());
    }
}

impl Drop for TmpfsFile {
    fn drop(&mut self) {
        self.discard();
    }
}

/// fcntl(2) with a number, for what rustix has not.
fn lease(file: &Opened<'_>, command: i32, argument: i32) -> std::result::Result<(), Errno> {
    // SAFETY: takes numbers only; the descriptor is open.
    let status = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, argument) };
    if status < 0 {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(())
    }
}

/// The engine's name for an errno.
fn error(errno: Errno) -> Error {
    match errno {
        Errno::NOSPC => Error::NoSpace,
        Errno::FBIG => Error::TooBig,
        Errno::INVAL => Error::Invalid,
        Errno::NXIO => Error::NoData,
        Errno::OPNOTSUPP => Error::NotSupported,
        Errno::NOENT => Error::Stale,
        Errno::NOMEM => Error::NoMemory,
        Errno::MFILE | Errno::NFILE => Error::NoDescriptor,
        Errno::PERM | Errno::ACCESS => Error::NotPermitted,
        _ => Error::Io,
    }
}

fn error_of(failure: &io::Error) -> Error {
    Errno::from_io_error(failure).map_or(Error::Io, error)
}

#[cfg(test)]
mod tests;
