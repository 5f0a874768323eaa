//! Files and disks that are reached past the page cache.

use super::{DIRECT_BYTES_MAX, MemberFile, MemberFileError};
use crate::direct;
use crate::discover::home_of_disk;
use homenode_engine::{BLOCK_BYTES, NodeId};
use rustix::fs::{FileType, OFlags};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Files below files that are looked through for a disk, at most.
const LOOPS_MAX: usize = 4;

/// State of what is reached past the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    /// Random: bytes that are not durable are in this process, so that no other one has its part of the witness.
    pub(super) life: u128,
}

impl MemberFile {
    /// The file, reached past the page cache from now on, as a member of kind `block`. A disk is so already.
    ///
    /// # Errors
    /// [`MemberFileError::NotDirect`], [`MemberFileError::LargeBlocks`].
    pub fn direct(mut self) -> Result<Self, MemberFileError> {
        if self.direct.is_some() {
            return Ok(self);
        }
        let not_direct = || MemberFileError::NotDirect {
            path: self.path.clone(),
        };
        if self.device.is_some() {
            return Err(not_direct());
        }
        let block_bytes = direct::block_bytes(&self.file, self.is_disk());
        let block_bytes = block_bytes.map_err(|error| self.failed("ask for the blocks of", error))?;
        let block_bytes = block_bytes.ok_or_else(not_direct)?;
        if block_bytes as usize > BLOCK_BYTES {
            return Err(MemberFileError::LargeBlocks {
                path: self.path,
                block_bytes,
            });
        }
        rustix::fs::fcntl_setfl(&self.file, OFlags::DIRECT).map_err(|errno| match errno {
            rustix::io::Errno::INVAL => not_direct(),
            errno => self.failed("reach past the page cache", errno.into()),
        })?;
        let life = random().map_err(|error| self.failed("draw a random number for", error))?;
        self.direct = Some(Direct { life });
        Ok(self)
    }

    /// Whether it is a disk or a partition.
    pub(super) fn is_disk(&self) -> bool {
        let stat = rustix::fs::fstat(&self.file);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
    }

    /// Writes zeros over the ends that are looked at for other data, where they have any, and over superblocks with them.
    pub(super) fn wipe_ends(&self) -> io::Result<()> {
        for is_last in [false, true] {
            let end = self.read_end(is_last)?;
            if end.iter().any(|byte| *byte != 0) {
                let zeros = Aligned::zeros(end.len());
                let at = if is_last { self.bytes - end.len() as u64 } else { 0 };
                self.file.write_all_at(zeros.bytes(), at)?;
            }
        }
        Ok(rustix::fs::fdatasync(&self.file)?)
    }
}

/// Memory that begins at a multiple of a block.
#[derive(Debug)]
pub(in crate::memory) struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    pub(in crate::memory) fn zeros(bytes: usize) -> Self {
        let memory = vec![0; bytes + BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Self { memory, start }
    }

    pub(in crate::memory) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.memory.len() - BLOCK_BYTES + self.start]
    }

    pub(in crate::memory) fn bytes_mut(&mut self) -> &mut [u8] {
        let end = self.memory.len() - BLOCK_BYTES + self.start;
        &mut self.memory[self.start..end]
    }
}

/// Reads bytes of a file that takes whole blocks only.
pub(super) fn read_exact_at(file: &File, to: &mut [u8], at: u64) -> io::Result<()> {
    let first = at / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let before = usize::try_from(at - first).expect("at - first is less than a block");
    let mut blocks = Aligned::zeros((before + to.len()).next_multiple_of(BLOCK_BYTES));
    for (start, piece) in (first..)
        .step_by(DIRECT_BYTES_MAX)
        .zip(blocks.bytes_mut().chunks_mut(DIRECT_BYTES_MAX))
    {
        file.read_exact_at(piece, start)?;
    }
    to.copy_from_slice(&blocks.bytes()[before..before + to.len()]);
    Ok(())
}

/// Whether the kernel knows a disk, or the one that it is a part of, as read-only.
pub(super) fn is_read_only(path: &Path) -> bool {
    let attribute = fs::metadata(path).map(|found| sysfs(found.rdev()).join("ro"));
    let text = attribute.and_then(fs::read_to_string);
    text.is_ok_and(|text| text.trim() == "1")
}

/// Whether the filesystem or the disk takes checksums of bytes before it writes them: bytes that change meanwhile cannot be read then.
pub(in crate::memory) fn wants_stable_bytes(file: &File) -> bool {
    wants_stable_bytes_of(file, LOOPS_MAX)
}

fn wants_stable_bytes_of(file: &File, loops_left: usize) -> bool {
    // Numbers in statfs(2). They take checksums of all files but those that ask for none.
    const BTRFS: i64 = 0x9123_683e;
    const ZFS: i64 = 0x2fc1_2fc1;
    // What lies below it cannot be asked.
    const OVERLAY: i64 = 0x794c_7630;
    if rustix::fs::fstatfs(file).is_ok_and(|found| [BTRFS, ZFS, OVERLAY].contains(&found.f_type)) {
        return true;
    }
    let Ok(found) = file.metadata() else { return false };
    let device = if found.file_type().is_block_device() {
        found.rdev()
    } else {
        found.dev()
    };
    if loops_left > 0
        && let Some(played) = backing_file(device)
        && File::open(played).is_ok_and(|played| wants_stable_bytes_of(&played, loops_left - 1))
    {
        return true;
    }
    // A partition has the queue of its disk.
    let queues = ["queue", "../queue"].map(|queue| sysfs(device).join(queue).join("stable_writes"));
    queues
        .iter()
        .find_map(|queue| fs::read_to_string(queue).ok())
        .is_some_and(|text| text.trim() == "1")
}

/// The home of a disk, also of one that a file plays (loop(4)).
pub(super) fn home(mut device: u64) -> Option<NodeId> {
    for _ in 0..LOOPS_MAX {
        let number = (rustix::fs::major(device), rustix::fs::minor(device));
        if let Some(home) = home_of_disk(Path::new("/"), number) {
            return Some(home);
        }
        device = fs::metadata(backing_file(device)?).ok()?.dev();
    }
    None
}

/// The file that plays a disk, or the disk of a partition (loop(4)).
fn backing_file(device: u64) -> Option<PathBuf> {
    let names = ["loop/backing_file", "../loop/backing_file"];
    let path = names
        .iter()
        .find_map(|name| fs::read_to_string(sysfs(device).join(name)).ok())?;
    Some(PathBuf::from(path.trim_end_matches('\n')))
}

fn sysfs(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests;
