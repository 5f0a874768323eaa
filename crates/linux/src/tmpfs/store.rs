//! A private tmpfs whose files are the kernel's bodies of inodes (the engine's `BackingStore`).
//!
//! Owns the filesystem. Each body is a file with a number for its name; no descriptor is kept, so a million of them need none: an
//! operation opens the file, or names it. The kernel's registration keeps one open file for each body that was opened once.
//!
//! Bytes are in pages of the node whose CPU writes them, as on any tmpfs; `crate::steer` says otherwise where it is told to.

use super::{Context, OWNER_ONLY};
use crate::steer;
use homenode_engine::NodeId;
use homenode_engine::backing::{BackingFile, BackingStatus, BackingStore};
use homenode_engine::fs::{Error, Placement, Result, Whence};
use rustix::fs::{
    AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags, Timespec, Timestamps, UTIME_OMIT, fallocate, fstatvfs,
    ftruncate, openat, seek, statx, unlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    noswap: bool,
}

impl TmpfsStore {
    /// A store for at most `files_max` files of `bytes` bytes together.
    ///
    /// # Errors
    /// What the kernel refuses the mount with: EPERM without CAP_SYS_ADMIN.
    pub fn new(bytes: u64, files_max: u64) -> io::Result<Self> {
        let mut context = Context::new(bytes)?;
        // The root directory is one more.
        context.set("nr_inodes", &files_max.saturating_add(1).to_string())?;
        // Kernels without huge pages refuse the word.
        let _ = context.set("huge", "within_size");
        let noswap = context.set_noswap();
        let directory = context.mount()?;
        let last = AtomicU64::new(0);
        Ok(Self(Arc::new(Root {
            directory,
            last,
            noswap,
        })))
    }

    /// Whether its pages stay in memory; before Linux 6.4 they can be swapped out.
    #[must_use]
    pub fn is_noswap(&self) -> bool {
        self.0.noswap
    }
}

impl BackingStore for TmpfsStore {
    fn create(&self) -> Result<Box<dyn BackingFile>> {
        // Relaxed: only that no two are equal.
        let name = self.0.last.fetch_add(1, Ordering::Relaxed).to_string().into_boxed_str();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        openat(&self.0.directory, &*name, flags, OWNER_ONLY).map_err(error)?;
        Ok(Box::new(TmpfsFile {
            root: Arc::clone(&self.0),
            name,
            is_discarded: AtomicBool::new(false),
        }))
    }

    fn used_blocks(&self) -> u64 {
        fstatvfs(&self.0.directory).map_or(0, |space| space.f_blocks.saturating_sub(space.f_bfree))
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
    is_discarded: AtomicBool,
}

impl TmpfsFile {
    fn open(&self) -> Result<OwnedFd> {
        self.open_for(OFlags::RDWR)
    }

    fn open_for(&self, access: OFlags) -> Result<OwnedFd> {
        openat(&self.root.directory, &*self.name, access | OFlags::CLOEXEC, OWNER_ONLY).map_err(error)
    }
}

impl BackingFile for TmpfsFile {
    fn status(&self) -> Result<BackingStatus> {
        let wanted = StatxFlags::SIZE | StatxFlags::BLOCKS | StatxFlags::ATIME | StatxFlags::MTIME | StatxFlags::CTIME;
        let status = statx(&self.root.directory, &*self.name, AtFlags::empty(), wanted).map_err(error)?;
        let time = |time: rustix::fs::StatxTimestamp| {
            time.tv_sec
                .saturating_mul(NS_PER_SECOND)
                .saturating_add(time.tv_nsec.into())
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

    fn set_size(&self, bytes: u64) -> Result<()> {
        ftruncate(self.open()?, bytes).map_err(error)
    }

    fn allocate(&self, offset: u64, bytes: u64, keeps_size: bool) -> Result<()> {
        let flags = if keeps_size {
            FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::empty()
        };
        fallocate(self.open()?, flags, offset, bytes).map_err(error)
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.open()?, flags, offset, bytes).map_err(error)
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        let offset = match whence {
            Whence::Data => SeekFrom::Data(offset),
            Whence::Hole => SeekFrom::Hole(offset),
        };
        seek(self.open_for(OFlags::RDONLY)?, offset).map_err(error)
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
        utimensat(&self.root.directory, &*self.name, &times, AtFlags::empty()).map_err(error)
    }

    fn map(&self) -> Result<Vec<(NodeId, u64)>> {
        steer::map(self.open_for(OFlags::RDONLY)?.as_fd()).map_err(|failure| error_of(&failure))
    }

    fn place(&self, placement: Option<Placement>) -> Result<()> {
        let policy = match placement {
            None | Some(Placement::Local) => steer::Policy::Local,
            Some(Placement::Interleave) => steer::Policy::Interleave,
            Some(Placement::Node(node)) => steer::Policy::Prefer(node),
        };
        steer::place(self.open_for(OFlags::RDONLY)?.as_fd(), policy).map_err(|failure| error_of(&failure))
    }

    fn move_to(&self, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        steer::move_to(self.open_for(OFlags::RDONLY)?.as_fd(), node, progress).map_err(|failure| error_of(&failure))
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
        self.open_for(OFlags::RDONLY)
    }

    fn discard(&self) {
        // Relaxed: the second of two calls does nothing, whichever that is.
        if !self.is_discarded.swap(true, Ordering::Relaxed) {
            // Cannot fail but when the name is gone: nobody else removes it.
            let _ = unlinkat(&self.root.directory, &*self.name, AtFlags::empty());
        }
    }
}

impl Drop for TmpfsFile {
    fn drop(&mut self) {
        self.discard();
    }
}

/// fcntl(2) with a number, for what rustix has not.
fn lease(file: &OwnedFd, command: i32, argument: i32) -> std::result::Result<(), Errno> {
    // SAFETY: takes numbers only; the descriptor is open.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
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
