//! Attributes of a file, and the kinds of files.

use homenode_engine::fs::Attr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Attributes of a file, directory or link, as stat(2) tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

pub(crate) const TYPE_MASK: u32 = 0o170_000;
pub(crate) const TYPE_FILE: u32 = 0o100_000;
pub(crate) const TYPE_DIRECTORY: u32 = 0o040_000;

impl FileType {
    /// From the type bits of `st_mode`.
    pub(crate) fn of_mode(mode: u32) -> Self {
        match mode & TYPE_MASK {
            TYPE_DIRECTORY => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharacterDevice,
            0o060_000 => Self::BlockDevice,
            _ => Self::File,
        }
    }
}

impl Metadata {
    /// Returns the kind of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType::of_mode(self.0.mode)
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::File
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    /// Size in bytes.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "an attribute as std::fs::Metadata has it, not a collection"
    )]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino.0
    }

    /// Full `st_mode`: type and permission bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// Names the inode has.
    #[must_use]
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// The owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Space taken, in units of 512 bytes, what was promised by [`File::allocate`](crate::File::allocate) included.
    #[must_use]
    pub fn blocks_512(&self) -> u64 {
        self.0.blocks
    }

    /// When it was last read.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        time(self.0.atime_ns)
    }

    /// When its content last changed.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        time(self.0.mtime_ns)
    }

    /// When its attributes last changed.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        time(self.0.ctime_ns)
    }

    /// When it was made.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        time(self.0.btime_ns)
    }
}

fn time(since_epoch_ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(since_epoch_ns.unsigned_abs());
    if since_epoch_ns < 0 {
        UNIX_EPOCH - distance
    } else {
        UNIX_EPOCH + distance
    }
}

/// The nanoseconds since the epoch, as far as 64 bits reach.
pub(crate) fn epoch_ns(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_survive() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_000_000_000_001] {
            assert_eq!(epoch_ns(time(ns)), ns);
        }
    }
}
