//! Durable members: mapped files, devices of persistent memory, and how every durable member (disks too, `super::disk`) is opened for exclusive use.
//!
//! A member's file is there as a whole before it is mapped, and locked while it is: the lock goes with the process. Bytes in the mapping survive
//! the process; what [`persist`](DurableMember::persist) returned for survives the machine.

mod direct;
mod room;
mod signature;
mod told;
mod witness;

pub use room::{RoomError, TakenRoom};
pub use witness::{identity, witness};

use super::devdax::Devdax;
use super::mapping::{HUGE_BYTES, Mapping, PAGE_BYTES};
use crate::copy::WRITES_BACK;
use crate::discover::{InUse, use_of_disk};
use crate::driver::beside;
use crate::topology::sysfs::Tree;
use direct::Direct;
pub(super) use direct::{Aligned, wants_stable_bytes};
use homenode_engine::log::{PoolName, Superblock, UnusableSuperblock};
use homenode_engine::pool::MemberKind;
use homenode_engine::{BLOCK_BYTES, Block, MemberId, Memory, MemoryError, NodeId, Starved};
use homenode_shared::{Guarded, is_lost};
use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, SeekFrom};
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use told::Told;

/// Type of a tmpfs, as statfs(2) tells it.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Bytes that are written at a time: the page cache makes folios as large as a write, and a store through the mapping makes all of one dirty.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// Bytes that are written at a time past the page cache.
const DIRECT_BYTES_MAX: usize = 1 << 20;
/// Zeros that a new member has in the page cache at a time.
const CACHED_BYTES_MAX: usize = 64 << 20;
/// Time for which a file or disk that is in use is asked for again.
const CHILD_TIME: Duration = Duration::from_millis(200);
/// Bytes at each end of what becomes a member that are looked at for other data.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// A member's file or device, opened and kept from others.
#[derive(Debug)]
pub struct MemberFile {
    path: PathBuf,
    pub(super) file: File,
    bytes: u64,
    /// Set for persistent memory as a character device.
    device: Option<Devdax>,
    /// Set for what is reached past the page cache: disks and their partitions, and files when that was asked for.
    direct: Option<Direct>,
}

/// Why a file cannot be a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberFileError {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// A verb with its object.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The kernel does not let this user open it.
    #[error("cannot open {}: {source}: {}", path.display(), for_denied())]
    Denied {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// A disk takes no writes.
    #[error("{} is read-only: `blockdev --setrw` changes that where the disk allows it", path.display())]
    ReadOnly {
        /// The device.
        path: PathBuf,
    },
    /// Another process or the kernel has it.
    #[error("{} is in use: {}", path.display(), used_by(by.as_ref()))]
    InUse {
        /// The file or device.
        path: PathBuf,
        /// Use of a device, where the kernel tells it.
        by: Option<InUse>,
    },
    /// A file that cannot be reached past the page cache.
    #[error("the page cache of {} cannot be bypassed: leave --direct out, or put the file on another filesystem", path.display())]
    NotDirect {
        /// The file.
        path: PathBuf,
    },
    /// A disk of larger blocks than the pool's.
    #[error(
        "{} has blocks of {block_bytes} B, and at most {BLOCK_BYTES} B can be used: format the disk for smaller ones (`nvme format`), or make a \
         filesystem on it and give a file of that",
        path.display()
    )]
    LargeBlocks {
        /// The device or file.
        path: PathBuf,
        /// Bytes of its blocks.
        block_bytes: u32,
    },
    /// Neither a regular file nor persistent memory nor a disk.
    #[error(
        "{} is no regular file, no disk and no device of persistent memory: give a file, such as one that `truncate -s 10G` made",
        path.display()
    )]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// A device of persistent memory, on a processor whose caches only the kernel writes back.
    #[error("{} cannot be used on this processor: make a filesystem on the memory and give a file of it", path.display())]
    NoWriteBack {
        /// The device.
        path: PathBuf,
    },
    /// It belongs to a pool, or did.
    #[error(
        "{} is a member of pool {name} ({uuid:032x}): if that pool is not needed any more, `homenode pool create --force` makes a new pool of it \
         (after `homenode pool export`, if `homenode pool list` shows that pool), and `homenode pool add --force` takes it once its first and \
         last 4 KiB are zeros",
        path.display()
    )]
    Taken {
        /// The file.
        path: PathBuf,
        /// The pool.
        uuid: u128,
        /// Its name.
        name: PoolName,
    },
    /// It has other data at one end.
    #[error("{} holds {data}: --force makes it a member and overwrites its data", path.display())]
    HoldsData {
        /// The file.
        path: PathBuf,
        /// The data, as far as they are known.
        data: &'static str,
    },
    /// Another file is there than the one that was made.
    #[error("another file has taken the place of {}, which was just made: give a directory in which only you make files", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// Both of its superblocks are unusable.
    #[error("{} cannot be used: {source}", path.display())]
    Superblock {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: UnusableSuperblock,
    },
}

fn for_denied() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "it is denied to root too: is it immutable (`lsattr`), or a device that this container may not use?",
        false => "use sudo, or have the file's owner permit it",
    }
}

fn used_by(by: Option<&InUse>) -> String {
    match by {
        Some(InUse::Mounted(at)) => format!("mounted on {at}: unmount that first"),
        Some(by) => format!("{by}: end that first"),
        None => "its pool is up (`homenode status` lists mounted pools), or another command works on it".to_owned(),
    }
}

impl MemberFile {
    /// Opens and locks a file or device that is or becomes a member. No other program can mount a device then, nor open it for itself.
    ///
    /// # Errors
    /// [`MemberFileError`].
    pub fn open(path: &Path) -> Result<Self, MemberFileError> {
        let lock = Some(FlockOperation::NonBlockingLockExclusive);
        Self::open_with(path, OpenOptions::new().read(true).write(true), lock)
    }

    /// The file that was just made at `path`, open for reading and writing; it stays locked until all that have it open close it.
    ///
    /// # Errors
    /// [`MemberFileError::Replaced`] when another one lies there; [`MemberFileError`].
    pub fn of_made(path: &Path, made: &File) -> Result<Self, MemberFileError> {
        let failed = |source| MemberFileError::Io {
            doing: "look at",
            path: path.to_owned(),
            source,
        };
        let found = made.metadata().map_err(failed)?;
        let is_it = |named: Metadata| (named.dev(), named.ino()) == (found.dev(), found.ino());
        if !std::fs::metadata(path).is_ok_and(is_it) {
            return Err(MemberFileError::Replaced { path: path.to_owned() });
        }
        lock(made, path, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self {
            path: path.to_owned(),
            file: made.try_clone().map_err(failed)?,
            bytes: found.len() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            device: None,
            direct: None,
        })
    }

    /// Opens and locks a member that is only to be read; others may read it meanwhile.
    ///
    /// # Errors
    /// [`MemberFileError`].
    pub fn open_to_read(path: &Path) -> Result<Self, MemberFileError> {
        let lock = Some(FlockOperation::NonBlockingLockShared);
        Self::open_with(path, OpenOptions::new().read(true), lock)
    }

    /// Opens what is or could become a member, which may be in use, to look at it.
    ///
    /// # Errors
    /// [`MemberFileError`].
    pub fn look(path: &Path) -> Result<Self, MemberFileError> {
        Self::open_with(path, OpenOptions::new().read(true), None)
    }

    fn open_with(path: &Path, options: &OpenOptions, locked: Option<FlockOperation>) -> Result<Self, MemberFileError> {
        let failed = |doing| {
            move |source: io::Error| MemberFileError::Io {
                doing,
                path: path.to_owned(),
                source,
            }
        };
        let none = || MemberFileError::NoFile { path: path.to_owned() };
        let is_disk = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        // Whatever else it is, a FIFO or a terminal, must not be waited for.
        let mut flags = libc::O_NONBLOCK;
        if is_disk {
            flags |= libc::O_DIRECT | locked.map_or(0, |_| libc::O_EXCL);
        }
        let is_busy = |error: &io::Error| is_disk && error.raw_os_error() == Some(libc::EBUSY);
        let file = try_while(is_busy, || options.clone().custom_flags(flags).open(path));
        let file = file.map_err(|error| match error.raw_os_error() {
            Some(libc::EISDIR) => none(),
            Some(libc::EBUSY) if is_disk => in_use(path),
            Some(libc::EACCES | libc::EPERM) => MemberFileError::Denied {
                path: path.to_owned(),
                source: error,
            },
            _ => failed("open")(error),
        })?;
        // The kernel opens it all the same.
        if is_disk && locked == Some(FlockOperation::NonBlockingLockExclusive) && direct::is_read_only(path) {
            return Err(MemberFileError::ReadOnly { path: path.to_owned() });
        }
        // A disk is this open file's alone, if it is locked at all; udev(7) locks it while it looks at what was written.
        if let Some(operation) = locked.filter(|_| !is_disk) {
            lock(&file, path, operation)?;
        }
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed("look at")(errno.into()))?;
        // Whoever had the lock has removed it: nobody would find it again.
        if locked.is_some() && stat.st_nlink == 0 {
            return Err(failed("open")(io::ErrorKind::NotFound.into()));
        }
        let (mut device, mut bytes) = (None, u64::try_from(stat.st_size).unwrap_or(0));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if !is_disk => {}
            FileType::BlockDevice if is_disk => {
                let end = rustix::fs::seek(&file, SeekFrom::End(0));
                bytes = end.map_err(|errno| failed("ask for the size of")(errno.into()))?;
            }
            FileType::CharacterDevice => {
                let found = Devdax::of(&Tree::new(Path::new("/")), stat.st_rdev).ok_or_else(none)?;
                if !WRITES_BACK {
                    return Err(MemberFileError::NoWriteBack { path: path.to_owned() });
                }
                bytes = found.bytes;
                device = Some(found);
            }
            _ => return Err(none()),
        }
        let member = Self {
            path: path.to_owned(),
            file,
            bytes: bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64,
            device,
            direct: None,
        };
        if is_disk { member.direct() } else { Ok(member) }
    }

    /// Looks for other data at both ends: tells it by name, where it is known.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn holds_data(&self) -> Result<Option<&'static str>, MemberFileError> {
        let failed = |error| self.failed("read", error);
        let start = self.read_end(false).map_err(failed)?;
        if start.iter().any(|byte| *byte != 0) {
            return Ok(Some(signature::name(&start).unwrap_or("data")));
        }
        let end = self.read_end(true).map_err(failed)?;
        Ok(end.iter().any(|byte| *byte != 0).then_some("data"))
    }

    /// The bytes at one end that are looked at.
    fn read_end(&self, is_last: bool) -> io::Result<Vec<u8>> {
        let bytes = LOOKED_AT_BYTES.min(self.bytes);
        let mut end = vec![0; usize::try_from(bytes).expect("at most LOOKED_AT_BYTES")];
        self.read_exact_at(&mut end, if is_last { self.bytes - bytes } else { 0 })?;
        Ok(end)
    }

    pub(super) fn read_exact_at(&self, to: &mut [u8], at: u64) -> io::Result<()> {
        match (&self.device, &self.direct) {
            (Some(device), _) => device.read_exact_at(&self.file, to, at),
            (None, Some(_)) => direct::read_exact_at(&self.file, to, at),
            (None, None) => self.file.read_exact_at(to, at),
        }
    }

    /// Its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is persistent memory as a character device.
    pub(super) fn is_devdax(&self) -> bool {
        self.device.is_some()
    }

    /// Whether it is reached past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Whole blocks in it.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK_BYTES as u64
    }

    /// Kind of member that it makes: a disk where it is reached past the page cache, persistent memory where stores reach the storage itself (a device,
    /// DAX) or where that is played, on a tmpfs.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn kind(&self) -> Result<MemberKind, MemberFileError> {
        if self.direct.is_some() {
            return Ok(MemberKind::Block);
        }
        let failed = |errno: rustix::io::Errno| self.failed("look at", errno.into());
        let is_memory = self.device.is_some()
            || self.is_dax()?
            || rustix::fs::fstatfs(&self.file).map_err(failed)?.f_type == TMPFS_MAGIC;
        Ok(if is_memory { MemberKind::Pmem } else { MemberKind::File })
    }

    /// Whether stores reach the storage itself.
    fn is_dax(&self) -> Result<bool, MemberFileError> {
        let flags = rustix::fs::AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(&self.file, c"", flags, rustix::fs::StatxFlags::TYPE)
            .map_err(|errno| self.failed("look at", errno.into()))?;
        Ok(stat.stx_attributes.contains(rustix::fs::StatxAttributes::DAX))
    }

    /// The newer one of its superblocks.
    ///
    /// # Errors
    /// [`MemberFileError::Superblock`] when neither is usable.
    pub fn superblock(&self) -> Result<Superblock, MemberFileError> {
        let unusable = |source| MemberFileError::Superblock {
            path: self.path.clone(),
            source,
        };
        if self.bytes == 0 {
            return Err(unusable(UnusableSuperblock::Empty));
        }
        if self.blocks() < 2 {
            return Err(unusable(UnusableSuperblock::NotOne));
        }
        let (mut copies, mut unread) = ([[0; BLOCK_BYTES]; 2], None);
        for (copy, at) in copies.iter_mut().zip([0, self.bytes - BLOCK_BYTES as u64]) {
            if let Err(source) = self.read_exact_at(copy, at) {
                // The other one will do, if it is whole.
                *copy = [0; BLOCK_BYTES];
                unread = Some(self.failed("read the superblock of", source));
            }
        }
        Superblock::newer(&copies[0], &copies[1]).map_err(|source| unread.unwrap_or_else(|| unusable(source)))
    }

    /// Writes a superblock to each of its two places that cannot be read, so that the disk puts the place elsewhere. A mapping could not do so: it reads
    /// what it writes to. Disks are not mapped.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn heal(&self, superblock: &Superblock) -> Result<(), MemberFileError> {
        if self.device.is_some() || self.direct.is_some() {
            return Ok(());
        }
        for at in [0, self.bytes - BLOCK_BYTES as u64] {
            if self.read_exact_at(&mut [0; BLOCK_BYTES], at).is_err() {
                let written = self.file.write_all_at(&superblock.encode()[..], at);
                let written = written.and_then(|()| self.file.sync_data());
                written.map_err(|source| self.failed("write the superblock of", source))?;
            }
        }
        Ok(())
    }

    /// The home of the disk that the file lies on, or of the device that it is; `None` where there is no disk, or the machine does not tell.
    #[must_use]
    pub fn home(&self) -> Option<NodeId> {
        if let Some(device) = &self.device {
            return device.home;
        }
        let stat = rustix::fs::fstat(&self.file).ok()?;
        direct::home(if self.is_disk() { stat.st_rdev } else { stat.st_dev })
    }

    /// Refuses one that belongs to a pool, unless it `may_go`, and one that holds other data, unless the caller `overwrites` these.
    ///
    /// # Errors
    /// [`MemberFileError::Taken`], [`MemberFileError::HoldsData`], or why it cannot be read.
    pub fn check_free(&self, overwrites: bool, may_go: impl Fn(&Superblock) -> bool) -> Result<(), MemberFileError> {
        match self.superblock() {
            Err(MemberFileError::Superblock {
                source: UnusableSuperblock::NotOne,
                ..
            }) => match self.holds_data()?.filter(|_| !overwrites) {
                Some(data) => Err(MemberFileError::HoldsData {
                    path: self.path.clone(),
                    data,
                }),
                None => Ok(()),
            },
            Ok(superblock) if may_go(&superblock) => Ok(()),
            Ok(superblock) => Err(MemberFileError::Taken {
                path: self.path.clone(),
                uuid: superblock.uuid,
                name: superblock.name,
            }),
            Err(error) => Err(error),
        }
    }

    /// Makes it ready to become a member: takes all of a file's room on the disk. Unless `unwritten`, zeros are written where nothing was yet: a filesystem notes the first write to each place, and an fsync would
    /// wait for that. It ends with [`io::ErrorKind::Interrupted`] soon after `is_over` was set. Changes nothing that is in the file:
    /// [`MemberFile::take_over`] does.
    ///
    /// # Errors
    /// [`MemberFileError`]: why there is no room.
    pub fn prepare(&self, unwritten: bool, is_over: &AtomicBool) -> Result<(), MemberFileError> {
        if self.device.is_some() || self.is_disk() {
            return Ok(());
        }
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| self.failed("look at", errno.into()))?;
        // XFS wants all the room once more, to say that it is taken already.
        let has_room = u64::try_from(stat.st_blocks).is_ok_and(|sectors| sectors * 512 >= self.bytes);
        let taken = if has_room {
            Ok(())
        } else {
            rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.bytes)
        };
        taken.map_err(|errno| self.failed("take the room on the disk for all of", errno.into()))?;
        if unwritten {
            return Ok(());
        }
        self.write_holes(is_over)
            .map_err(|error| self.failed("write zeros to all of", error))
    }

    /// Takes away what other programs, or another pool, would know it by. What was in the file before is damaged from here on.
    ///
    /// # Errors
    /// Why the ends cannot be written.
    pub fn take_over(&self) -> Result<(), MemberFileError> {
        if self.device.is_none() && (self.is_disk() || self.superblock().is_ok()) {
            self.wipe_ends()
                .map_err(|error| self.failed("write zeros to the ends of", error))?;
        }
        Ok(())
    }

    /// Writes zeros where nothing was written yet, and leaves none of them in the page cache.
    fn write_holes(&self, is_over: &AtomicBool) -> io::Result<()> {
        // What was only read counts as data as long as it is cached.
        self.drop_cached()?;
        let step = self.direct.as_ref().map_or(WRITE_BYTES_MAX, |_| DIRECT_BYTES_MAX);
        let zeros = Aligned::zeros(step);
        let (mut at, mut cached) = (0, 0);
        while let Some(hole) = self.next_hole(at)? {
            for start in hole.clone().step_by(step) {
                let bytes = usize::try_from(hole.end - start).map_or(step, |left| left.min(step));
                // Relaxed: it says nothing of other memory.
                if is_over.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                self.file.write_all_at(&zeros.bytes()[..bytes], start)?;
                cached += bytes;
                if cached >= CACHED_BYTES_MAX {
                    self.drop_cached()?;
                    cached = 0;
                }
            }
            at = hole.end;
        }
        self.drop_cached()
    }

    /// Drops what the page cache alone has: after an error of write-back it shows bytes that the disk does not have, as clean. What is dirty still is
    /// written, as far as that is possible.
    pub fn drop_unwritten(&self) {
        let _ = rustix::fs::fdatasync(&self.file);
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn drop_cached(&self) -> io::Result<()> {
        rustix::fs::fdatasync(&self.file)?;
        Ok(rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> MemberFileError {
        MemberFileError::Io {
            doing,
            path: self.path.clone(),
            source,
        }
    }
}

/// Tries again for a moment while `is_busy`: a child that another thread starts has all files of this process open until the child begins its own
/// program, files that were closed meanwhile too.
fn try_while<T, E>(is_busy: impl Fn(&E) -> bool, mut attempt: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let end = Instant::now() + CHILD_TIME;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            done => return done,
        }
    }
}

/// Locks the file at `path` against other processes, and against others of this one.
fn lock(file: &File, path: &Path, operation: FlockOperation) -> Result<(), MemberFileError> {
    let is_busy = |errno: &rustix::io::Errno| *errno == rustix::io::Errno::WOULDBLOCK;
    try_while(is_busy, || rustix::fs::flock(file, operation)).map_err(|errno| match errno {
        rustix::io::Errno::WOULDBLOCK => MemberFileError::InUse {
            path: path.to_owned(),
            by: None,
        },
        errno => MemberFileError::Io {
            doing: "lock",
            path: path.to_owned(),
            source: errno.into(),
        },
    })
}

/// Returns the error for a disk that another process has.
fn in_use(path: &Path) -> MemberFileError {
    let found = std::fs::metadata(path).ok();
    let number = found.map(|found| (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev())));
    MemberFileError::InUse {
        path: path.to_owned(),
        by: number.and_then(|number| use_of_disk(Path::new("/"), number)),
    }
}

/// Members whose bytes are read by requests, and never written.
#[derive(Debug)]
pub struct MemberReader(BTreeMap<MemberId, MemberFile>);

impl MemberReader {
    /// A reader of these members.
    #[must_use]
    pub fn new(files: impl IntoIterator<Item = (MemberId, MemberFile)>) -> Self {
        Self(files.into_iter().collect())
    }
}

impl Memory for MemberReader {
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        let file = self.0.get(&from.member()).ok_or(MemoryError)?;
        let start = from.index() * BLOCK_BYTES as u64 + offset as u64;
        file.read_exact_at(to, start).map_err(|_| MemoryError)
    }

    fn store(&self, _: Block, _: usize, _: &[u8]) -> Result<(), MemoryError> {
        Err(MemoryError)
    }

    fn zero(&self, _: Block, _: usize, _: usize) -> Result<(), MemoryError> {
        Err(MemoryError)
    }

    fn copy(&self, _: Block, _: Block, _: u64) -> Result<(), MemoryError> {
        Err(MemoryError)
    }

    fn populate(&self, _: MemberId, _: u64, _: u64) -> Result<(), Starved> {
        Err(Starved)
    }
}

/// The place of a member that is not there.
#[derive(Debug)]
pub(super) struct MissingMember {
    // Dropped before the mapping.
    _guarded: Guarded,
    pub(super) mapping: Mapping,
}

impl MissingMember {
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::reserve(mapped_bytes(bytes)?)?;
        mapping.attach_nothing()?;
        let _ = mapping.advise(libc::MADV_DONTDUMP);
        Ok(Self {
            _guarded: Guarded::of_nothing(mapping.base(), bytes)?,
            mapping,
        })
    }
}

fn mapped_bytes(bytes: usize) -> io::Result<usize> {
    let mapped = bytes.checked_next_multiple_of(HUGE_BYTES);
    mapped.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

/// A member's file, mapped.
#[derive(Debug)]
pub(super) struct DurableMember {
    // Dropped before the mapping.
    _guarded: Guarded,
    pub(super) mapping: Mapping,
    file: MemberFile,
    told: Told,
    kind: MemberKind,
    /// Whether writing back the processor's caches makes stores durable: where the file lies now counts, not where the pool was made.
    is_memory: bool,
}

impl DurableMember {
    /// Maps a file as a member of `kind`. Of one that this process `reads_only`, what is stored stays in it.
    pub(super) fn map(file: MemberFile, kind: MemberKind, reads_only: bool) -> io::Result<Self> {
        let is_dax = file.is_dax().map_err(|_| io::ErrorKind::Other)?;
        let is_memory = WRITES_BACK && file.kind().map_err(|_| io::ErrorKind::Other)? == MemberKind::Pmem;
        let bytes = usize::try_from(file.bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mapped = match &file.device {
            Some(device) => device.mapped_bytes()?,
            None => mapped_bytes(bytes)?,
        };
        let unit_bytes = file.device.as_ref().map_or(PAGE_BYTES, |device| device.unit_bytes);
        let mapping = Mapping::reserve(mapped)?;
        match (reads_only, is_dax) {
            (true, _) => mapping.attach_private(file.file.as_fd())?,
            (false, true) => mapping.attach_synced(file.file.as_fd())?,
            (false, false) => mapping.attach(file.file.as_fd())?,
        }
        // Only the size of core dumps depends on it.
        let _ = mapping.advise(libc::MADV_DONTDUMP);
        Ok(Self {
            _guarded: Guarded::in_units(mapping.base(), bytes, unit_bytes)?,
            told: Told::of(&file.file)?,
            mapping,
            file,
            kind,
            is_memory,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes
    }

    pub(super) fn kind(&self) -> MemberKind {
        self.kind
    }

    /// See [`identity`].
    pub(super) fn identity(&self, id: MemberId) -> Result<u128, MemberFileError> {
        identity(id, &self.file)
    }

    /// Closes the file; its addresses stay reserved as long as what is returned.
    pub(super) fn vacate(self) -> (Mapping, io::Result<()>) {
        let Self { _guarded, mapping, .. } = self;
        drop(_guarded);
        let vacated = mapping.vacate();
        (mapping, vacated)
    }

    /// Whether [`DurableMember::write`] is a faster way than stores through the mapping: for files on a disk.
    pub(super) fn takes_writes(&self) -> bool {
        self.kind == MemberKind::File && !self.is_memory
    }

    /// Name of the file.
    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Writes bytes to the file, past the mapping, which shows them.
    pub(super) fn write(&self, from: &[u8], at: u64) -> io::Result<()> {
        let mut pieces = (at..).step_by(WRITE_BYTES_MAX).zip(from.chunks(WRITE_BYTES_MAX));
        pieces.try_for_each(|(at, piece)| self.file.file.write_all_at(piece, at))
    }

    /// Makes a range of bytes durable.
    pub(super) fn persist(&self, offset: usize, bytes: usize) -> io::Result<()> {
        let is_lost = || is_lost(self.mapping.base().wrapping_add(offset), bytes);
        if self.is_memory {
            self.mapping.write_back(offset, bytes);
            return if is_lost() {
                Err(io::ErrorKind::Other.into())
            } else {
                Ok(())
            };
        }
        let start = offset / PAGE_BYTES * PAGE_BYTES;
        // Zeros of this process lie there, and are synced without a word.
        if self.told.has_failed() || is_lost() {
            return Err(io::ErrorKind::Other.into());
        }
        self.told.check(self.mapping.sync(start, offset + bytes - start))
    }

    /// Makes ascending ranges of bytes durable, offset and bytes of each: on a disk by a few calls, for each of which the disk is flushed. Goes on
    /// behind a range that fails.
    pub(super) fn persist_each(&self, ranges: &[(usize, usize)]) -> io::Result<()> {
        if self.is_memory {
            let persisted = ranges.iter().map(|(offset, bytes)| self.persist(*offset, *bytes));
            return persisted.fold(Ok(()), io::Result::and);
        }
        let is_lost = |(offset, bytes): &(usize, usize)| is_lost(self.mapping.base().wrapping_add(*offset), *bytes);
        let are_there = if self.told.has_failed() || ranges.iter().any(is_lost) {
            Err(io::ErrorKind::Other.into())
        } else {
            Ok(())
        };
        let synced = spans(ranges).into_iter().map(|span| {
            let start = span.start / PAGE_BYTES * PAGE_BYTES;
            self.told.check(self.mapping.sync(start, span.end - start))
        });
        synced.fold(are_there, io::Result::and)
    }

    /// Makes all bytes durable.
    pub(super) fn persist_all(&self) -> io::Result<()> {
        if self.is_memory {
            let bytes = usize::try_from(self.file.bytes).expect("the file is mapped, so its size fits a usize");
            self.mapping.write_back(0, bytes);
            return Ok(());
        }
        self.told.check(beside::fdatasync(&self.file.file))
    }
}

/// Ranges that cover ascending ones, offset and bytes of each. What lies in small gaps is synced with them, and between all where there are too many.
fn spans(ranges: &[(usize, usize)]) -> Vec<Range<usize>> {
    const GAP_BYTES: usize = 1 << 20;
    const SPANS_MAX: usize = 8;
    let mut all: Vec<Range<usize>> = Vec::new();
    for (start, bytes) in ranges {
        match all.last_mut() {
            Some(last) if *start <= last.end + GAP_BYTES => last.end = last.end.max(start + bytes),
            _ => all.push(*start..start + bytes),
        }
    }
    if all.len() > SPANS_MAX {
        let end = all.last().map_or(0, |last| last.end);
        all.truncate(1);
        all[0].end = end;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::SeekFrom;

    /// Bytes of a file in which nothing was written yet.
    fn unwritten_bytes(file: &File, bytes: u64) -> u64 {
        let (mut at, mut found) = (0, 0);
        while at < bytes {
            let hole = rustix::fs::seek(file, SeekFrom::Hole(at)).expect("the filesystem tells holes");
            let end = rustix::fs::seek(file, SeekFrom::Data(hole)).unwrap_or(bytes);
            found += end - hole;
            at = end;
        }
        found
    }

    #[test]
    fn a_new_member_is_allocated_once_and_keeps_its_data() {
        const BYTES: u64 = 3 << 20;
        // Beside the target: /tmp may be a tmpfs.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("the source's directory is writable");
        let path = directory.path().join("member");
        let file = File::create(&path).expect("the new directory is writable");
        file.set_len(BYTES).expect("a sparse file takes no room");
        file.write_all_at(b"kept", 1 << 20).expect("there is room for a block");
        let (member, never) = (
            MemberFile::open(&path).expect("no other process has the file"),
            AtomicBool::new(false),
        );
        member.prepare(true, &never).expect("the disk has room");
        assert!(
            unwritten_bytes(&file, BYTES) > 0,
            "this filesystem tells no holes: nothing is tested"
        );
        member.prepare(false, &never).expect("the disk has room");
        assert_eq!(unwritten_bytes(&file, BYTES), 0);
        let mut kept = [0; 4];
        let opened = File::open(&path).expect("the file exists");
        opened.read_exact_at(&mut kept, 1 << 20).expect("it is long enough");
        assert_eq!(&kept, b"kept");
    }

    #[test]
    fn the_way_to_persist_follows_the_storage() {
        // As when the file was copied to another filesystem after its pool was made.
        for (directory, pool_kind) in [
            (env!("CARGO_MANIFEST_DIR"), MemberKind::Pmem),
            ("/dev/shm", MemberKind::File),
        ] {
            let directory = tempfile::tempdir_in(directory).unwrap();
            let path = directory.path().join("member");
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            let file = MemberFile::open(&path).unwrap();
            let kind = file.kind().unwrap();
            let member = DurableMember::map(file, pool_kind, false).unwrap();
            assert_eq!(
                member.is_memory,
                kind == MemberKind::Pmem && WRITES_BACK,
                "{}",
                path.display()
            );
            assert!(!member.takes_writes());
            member.persist(4096, 100).unwrap();
            member.persist_all().unwrap();
        }
    }

    #[test]
    fn a_read_only_dax_device_is_refused() {
        let device = crate::memory::devdax::tests::found("dax", &[("size", "1048576\n")]);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let member = MemberFile {
            device,
            ..MemberFile::open_to_read(file.path()).unwrap()
        };
        let memory = crate::memory::NodeMemory::new();
        let refused = memory.attach_to_read(MemberId(0), MemberKind::Pmem, member);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("without --read-only and --degraded"), "{text}");
    }

    #[test]
    fn stretches_that_are_persisted_together_are_all_written() {
        // Beside the target: /tmp may be a tmpfs.
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("the source's directory is writable");
        let path = directory.path().join("member");
        std::fs::write(&path, vec![0; 4 << 20]).expect("the disk has room");
        let memory = crate::memory::NodeMemory::new();
        let file = MemberFile::open(&path).expect("no other process has the file");
        memory
            .attach(MemberId(0), MemberKind::File, file)
            .expect("it is mapped");
        let member = memory.durable(MemberId(0)).expect("it is there");
        let dirty = || {
            let told = ["Shared_Dirty:", "Private_Dirty:"].map(|field| member.mapping.told(field).unwrap());
            told.map(|text| text.trim_end_matches("kB").trim().parse::<u64>().unwrap())
                .iter()
                .sum::<u64>()
        };
        let stretches: Vec<_> = (0..100)
            .map(|nth| (Block::new(MemberId(0), 7 * nth), BLOCK_BYTES))
            .collect();
        for (at, bytes) in &stretches {
            memory.store(*at, 0, &vec![1; *bytes]).expect("the member is sound");
        }
        assert!(dirty() > 0);
        memory.persist_each(&stretches).expect("the disk is sound");
        assert_eq!(dirty(), 0, "kB are dirty");
    }

    #[test]
    fn near_ranges_are_synced_together_and_far_ones_by_themselves() {
        const FAR: usize = 1 << 30;
        assert_eq!(spans(&[]), []);
        let near = [(0, 10), (4096, 4096), (FAR, 4096), (FAR + (1 << 20), 1)];
        assert_eq!(spans(&near), [0..8192, FAR..FAR + (1 << 20) + 1]);
        let many: Vec<_> = (0..9).map(|nth| (nth * FAR, 4096)).collect();
        assert_eq!(spans(&many[..8]).len(), 8);
        assert!(spans(&many).iter().eq([&(0..8 * FAR + 4096)]));
    }

    #[test]
    fn opening_a_member_waits_for_a_forked_child_to_exec() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let member = MemberFile::open(file.path()).unwrap();
        let in_use = MemberFile::open(file.path()).unwrap_err();
        assert!(matches!(in_use, MemberFileError::InUse { .. }), "{in_use}");
        // As a child has it between fork(2) and exec(2).
        let of_child = member.file.try_clone().unwrap();
        drop(member);
        let child = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(of_child);
        });
        MemberFile::open(file.path()).unwrap();
        child.join().unwrap();
    }

    #[test]
    fn devices_other_than_persistent_memory_are_refused() {
        let refused = MemberFile::open(Path::new("/dev/null")).unwrap_err();
        assert!(matches!(refused, MemberFileError::NoFile { .. }), "{refused}");
    }
}
