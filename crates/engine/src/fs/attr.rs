//! Attributes of inodes and of the filesystem, and modes of operations on them.

use super::Ino;

/// Bits of st_mode that name the type (POSIX `S_IFMT`).
pub(crate) const TYPE_MASK: u32 = 0o170_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const BLOCK_DEVICE: u32 = 0o060_000;
pub(crate) const REGULAR: u32 = 0o100_000;
pub(crate) const SYMLINK: u32 = 0o120_000;
pub(crate) const FIFO: u32 = 0o010_000;
pub(crate) const CHARACTER_DEVICE: u32 = 0o020_000;
pub(crate) const SOCKET: u32 = 0o140_000;
pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
pub(crate) const GROUP_EXECUTE: u32 = 0o010;
/// Permission bits with set-uid, set-gid and sticky.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// Attributes of an inode, for stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number of the inode.
    pub ino: Ino,
    /// Full st_mode: type and permission bits.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in the kernel's 32-bit encoding, as FUSE carries it.
    pub rdev: u32,
    /// In bytes.
    pub size: u64,
    /// Placed and reserved space in units of 512 bytes.
    pub blocks: u64,
    /// Last access, ns since the epoch.
    pub atime_ns: i64,
    /// Last change of the data, ns since the epoch.
    pub mtime_ns: i64,
    /// Last change of the inode, ns since the epoch.
    pub ctime_ns: i64,
    /// Creation, ns since the epoch.
    pub btime_ns: i64,
    /// Whether size, blocks and times may change without a request: the kernel writes the bytes itself.
    pub changes_unseen: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The filesystem's clock.
    Now,
    /// ns since the epoch.
    At(i64),
}

/// Attributes to change; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (the type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes (regular files).
    pub size: Option<u64>,
    /// [`Fs::truncate_step`](super::Fs::truncate_step) or an extension has set the size: to set it again would free what was reserved beyond it.
    pub is_sized: bool,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// Last change of the inode, ns since the epoch; now if not given.
    pub ctime: Option<i64>,
    /// Clear set-uid, set-gid (if group-executable) and security.capability, as FUSE_HANDLE_KILLPRIV_V2 asks.
    pub kill_priv: bool,
}

/// A new inode. The engine applies umask or the parent's default ACL, and set-gid directories.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    /// Type and permission bits.
    pub mode: u32,
    /// Permission bits the creator does not want.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
}

impl NewInode {
    /// An inode of root, with all permission bits of `mode`.
    #[must_use]
    pub const fn of_root(mode: u32) -> Self {
        Self {
            mode,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }
}

/// Kind of place that [`super::Fs::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// SEEK_DATA
    Data,
    /// SEEK_HOLE
    Hole,
}

/// How set_xattr treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Either,
    /// XATTR_CREATE
    Create,
    /// XATTR_REPLACE
    Replace,
}

/// renameat2's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// No flag.
    Replace,
    /// RENAME_NOREPLACE
    NoReplace,
    /// RENAME_EXCHANGE
    Exchange,
}

/// Size and use of the filesystem, for statfs(2); space in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// All.
    pub blocks: u64,
    /// Neither used nor reserved.
    pub free: u64,
    /// Inodes at most.
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
}
