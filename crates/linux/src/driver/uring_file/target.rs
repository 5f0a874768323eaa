//! Properties and abilities of a file or disk, found out when the file or disk is opened.

use super::OpenError;
use crate::direct;
use crate::topology::sysfs::Tree;
use homenode_engine::NodeId;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// An open file or disk.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) file: File,
    /// Whether a flush or a forced write has failed; `None` where there is no page cache in between. The kernel tells each open file only once that it
    /// could not write what it had taken, so all later ones fail. That a forced write has failed before the page cache took it cannot be told apart.
    pub(super) has_lost: Option<AtomicBool>,
    /// In whole blocks.
    pub(super) bytes: u64,
    pub(super) block_bytes: u32,
    pub(super) home: Option<NodeId>,
    /// How fallocate gives bytes up, and how it makes them zeros.
    pub(super) discard: Option<FallocateFlags>,
    pub(super) zero: Option<FallocateFlags>,
    /// Whether the disk has queues without interrupts.
    pub(super) can_poll: bool,
}

/// Blocks of files that are read and written through the page cache, which takes any length.
const BUFFERED_BYTES: u32 = 512;
/// Bytes that a filesystem is tried with.
const TRIED_BYTES: u64 = 4096;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

impl Target {
    pub(super) fn open(path: &Path, is_direct: bool, is_read_only: bool) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Open {
            path: path.to_path_buf(),
            purpose: if is_read_only { "reading" } else { "reading and writing" },
            source,
        };
        let inspect = |doing| {
            move |source| OpenError::Inspect {
                path: path.to_path_buf(),
                doing,
                source,
            }
        };
        // Before it is opened: opening does something to some devices.
        let is_disk = is_disk(path, &path.metadata().map_err(failed)?)?;
        let mut flags = OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, is_direct);
        // Fails when it is mounted.
        flags.set(OFlags::EXCL, is_disk);
        let file = OpenOptions::new()
            .read(true)
            .write(!is_read_only)
            .custom_flags(flags.bits().cast_signed())
            .open(path);
        let mut file = file.map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) if is_direct => OpenError::NotDirect(path.to_path_buf()),
            _ => failed(source),
        })?;
        let metadata = file.metadata().map_err(inspect("the size"))?;
        if is_disk != self::is_disk(path, &metadata)? {
            return Err(OpenError::Kind(path.to_path_buf()));
        }
        let tree = Tree::new(Path::new("/"));
        let number = if is_disk { metadata.rdev() } else { metadata.dev() };
        let disk = Disk {
            tree: &tree,
            path: format!(
                "sys/dev/block/{}:{}",
                rustix::fs::major(number),
                rustix::fs::minor(number)
            ),
        };
        if is_disk && !is_read_only && disk.number("ro") == Some(1) {
            return Err(OpenError::ReadOnly(path.to_path_buf()));
        }
        let block_bytes = block_bytes(&file, is_disk, is_direct)
            .map_err(inspect("the size of blocks"))?
            .ok_or_else(|| OpenError::NotDirect(path.to_path_buf()))?;
        let bytes = file.seek(SeekFrom::End(0)).map_err(inspect("the size"))?;
        if bytes < u64::from(block_bytes) {
            return Err(OpenError::Small {
                path: path.to_path_buf(),
                bytes,
                block_bytes,
            });
        }
        let (discard, zero) = if is_read_only {
            (None, None)
        } else if is_disk {
            // Zeros are written where the disk cannot make them; nothing else gives bytes up.
            let can_zero = disk.number("queue/write_zeroes_max_bytes").is_some_and(|most| most > 0);
            (can_zero.then_some(PUNCH), Some(ZERO))
        } else {
            modes(path, &metadata)
        };
        Ok(Self {
            has_lost: (!is_direct).then(AtomicBool::default),
            bytes: bytes / u64::from(block_bytes) * u64::from(block_bytes),
            block_bytes,
            home: tree.home(&disk.path),
            discard,
            zero,
            can_poll: disk.number("queue/io_poll") == Some(1),
            file,
        })
    }
}

impl Target {
    /// Opens it once more, if this process still may. A disk's own is not the one that has the disk for itself.
    pub(super) fn reopened(&self) -> io::Result<File> {
        let flags = rustix::fs::fcntl_getfl(&self.file)? & (OFlags::RWMODE | OFlags::DIRECT);
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        opened.map(File::from).or_else(|_| self.file.try_clone())
    }
}

/// Whether it is a disk and not a file; neither is an error.
fn is_disk(path: &Path, metadata: &Metadata) -> Result<bool, OpenError> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        Err(OpenError::Directory(path.to_path_buf()))
    } else if kind.is_file() || kind.is_block_device() {
        Ok(kind.is_block_device())
    } else {
        Err(OpenError::Kind(path.to_path_buf()))
    }
}

/// Returns the least bytes that can be read or written at once; `None` when there is no direct I/O.
fn block_bytes(file: &File, is_disk: bool, is_direct: bool) -> io::Result<Option<u32>> {
    match (is_direct, is_disk) {
        (true, _) => direct::block_bytes(file, is_disk),
        (false, true) => Ok(Some(rustix::fs::ioctl_blksszget(file)?)),
        (false, false) => Ok(Some(BUFFERED_BYTES)),
    }
}

/// How the file's filesystem gives bytes up and makes them zeros, tried on a file without a name beside it.
fn modes(path: &Path, metadata: &Metadata) -> (Option<FallocateFlags>, Option<FallocateFlags>) {
    let beside = || {
        let real = path.canonicalize().ok()?;
        let flags = (OFlags::TMPFILE | OFlags::CLOEXEC).bits().cast_signed();
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(real.parent()?)
            .ok()?;
        (file.metadata().ok()?.dev() == metadata.dev()).then_some(file)
    };
    let Some(beside) = beside() else {
        return (None, None);
    };
    let can = |mode: &FallocateFlags| rustix::fs::fallocate(&beside, *mode, 0, TRIED_BYTES).is_ok();
    let discard = Some(PUNCH).filter(can);
    // A hole reads as zeros, too; but writing to it may find no space.
    (discard, Some(ZERO).filter(can).or(discard))
}

/// A disk, or what a file lies on, in sysfs.
struct Disk<'a> {
    tree: &'a Tree,
    path: String,
}

impl Disk<'_> {
    /// A number of its own, or of the disk it is a part of.
    fn number(&self, name: &str) -> Option<u64> {
        let mut above = self.tree.above(&self.path).into_iter().take(2);
        above.find_map(|directory| self.tree.number(directory.join(name)))
    }
}
