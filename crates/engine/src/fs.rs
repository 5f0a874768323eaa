//! The filesystem: inodes, directories and the data path. (Skeleton of the API; bodies come.)
#![allow(missing_docs, unused_variables, reason = "skeleton")]

use crate::pool::Pool;
use crate::{Clock, CpuId, MemberId, Memory, NodeId};
use homenode_shared::{Slot, Slots};
use std::sync::Arc;

/// Who asks: given with every operation that may touch data.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The calling thread's slot (claimed once per thread from [`Fs::slots`]).
    pub slot: &'a Slot,
    /// The CPU that executes the copy: picks the grant.
    pub cpu: CpuId,
    /// The asking node; called only when blocks are to be placed.
    pub node: &'a dyn Fn() -> NodeId,
}

/// Number of an inode; the root is 1; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);
impl Ino {
    pub const ROOT: Self = Self(1);
}

/// An error of the filesystem. `errno()` gives Linux's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("no such file or directory")]
    NotFound, // ENOENT 2
    #[error("already exists")]
    Exists, // EEXIST 17
    #[error("not a directory")]
    NotDirectory, // ENOTDIR 20
    #[error("is a directory")]
    IsDirectory, // EISDIR 21
    #[error("directory not empty")]
    NotEmpty, // ENOTEMPTY 39
    #[error("no space left in the pool")]
    NoSpace, // ENOSPC 28
    #[error("name longer than 255 bytes")]
    NameTooLong, // ENAMETOOLONG 36
    #[error("invalid argument")]
    Invalid, // EINVAL 22
    #[error("operation not permitted")]
    NotPermitted, // EPERM 1
    #[error("file offset beyond the maximum")]
    TooBig, // EFBIG 27
    #[error("no such extended attribute")]
    NoAttribute, // ENODATA 61
    #[error("extended attribute too large")]
    AttributeTooBig, // E2BIG 7
    #[error("no data or hole at or beyond that offset")]
    NoData, // ENXIO 6
    #[error("the inode is gone")]
    Stale, // ESTALE 116
    #[error("too many links")]
    TooManyLinks, // EMLINK 31
    #[error("not supported")]
    NotSupported, // EOPNOTSUPP 95
    #[error("busy")]
    Busy, // EBUSY 16
}
impl Error {
    pub fn errno(self) -> i32 {
        unimplemented!()
    }
}
pub type Result<T> = std::result::Result<T, Error>;

/// What stat(2) tells. `mode` is the full st_mode (type and permission bits); `blocks` in units of 512 bytes; `rdev` in
/// the kernel's 32-bit encoding as FUSE carries it; times in ns since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    pub blocks: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(i64),
}

/// What to change; `None` leaves as is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub ctime: Option<i64>,
    /// Clear set-uid, set-gid (if group-executable) and security.capability (FUSE_HANDLE_KILLPRIV_V2).
    pub kill_priv: bool,
}

/// A new inode. `mode` has type and permission bits; umask and default ACLs of the parent are applied by the engine, as
/// are set-gid directories.
#[derive(Clone, Copy, Debug)]
pub struct NewInode {
    pub mode: u32,
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
}

/// A directory entry while reading; `next` is the offset to go on from.
pub struct DirEntry<'a, M: Memory> {
    pub name: &'a [u8],
    pub inode: &'a Arc<Inode<M>>,
    pub next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    Data,
    Hole,
}

/// How setxattr treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Either,
    Create,
    Replace,
}

/// renameat2's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// What statfs(2) tells, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub blocks: u64,
    pub free: u64,
    pub files: u64,
    pub files_free: u64,
}

/// An inode. Its fields are the engine's.
pub struct Inode<M: Memory> {
    _m: std::marker::PhantomData<M>,
}
impl<M: Memory> Inode<M> {
    pub fn ino(&self) -> Ino {
        unimplemented!()
    }
    /// Full st_mode.
    pub fn mode(&self) -> u32 {
        unimplemented!()
    }
}

/// One filesystem on one pool.
pub struct Fs<M: Memory, C: Clock> {
    _m: std::marker::PhantomData<(M, C)>,
}

type Ref<M> = Arc<Inode<M>>;

impl<M: Memory, C: Clock> Fs<M, C> {
    pub fn slots(&self) -> &Arc<Slots> {
        unimplemented!()
    }
    pub fn pool(&self) -> &Pool<M> {
        unimplemented!()
    }
    pub fn root(&self) -> Ref<M> {
        unimplemented!()
    }
    /// The live inode of that number (FUSE's nodeid).
    pub fn inode(&self, ino: Ino) -> Option<Ref<M>> {
        unimplemented!()
    }

    // An inode lives while it is linked or pinned. An open file is one pin, each lookup the kernel remembers is one.
    // lookup, create and so on return it unpinned.
    pub fn pin(&self, inode: &Ref<M>) -> Result<()> {
        unimplemented!()
    }
    pub fn unpin(&self, inode: &Ref<M>, pins: u64) {
        unimplemented!()
    }

    // Namespace. `.` and `..` are handled by lookup.
    pub fn lookup(&self, dir: &Ref<M>, name: &[u8]) -> Result<Ref<M>> {
        unimplemented!()
    }
    /// mknod, mkdir, create: any type but symlink.
    pub fn create(&self, dir: &Ref<M>, name: &[u8], new: NewInode) -> Result<Ref<M>> {
        unimplemented!()
    }
    pub fn symlink(&self, dir: &Ref<M>, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Ref<M>> {
        unimplemented!()
    }
    /// An unnamed file (O_TMPFILE), pinned once.
    pub fn tmpfile(&self, dir: &Ref<M>, new: NewInode) -> Result<Ref<M>> {
        unimplemented!()
    }
    pub fn link(&self, inode: &Ref<M>, dir: &Ref<M>, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    pub fn unlink(&self, dir: &Ref<M>, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    pub fn rmdir(&self, dir: &Ref<M>, name: &[u8]) -> Result<()> {
        unimplemented!()
    }
    pub fn rename(&self, from: &Ref<M>, name: &[u8], to: &Ref<M>, new_name: &[u8], mode: RenameMode) -> Result<()> {
        unimplemented!()
    }
    pub fn readlink(&self, inode: &Ref<M>) -> Result<Box<[u8]>> {
        unimplemented!()
    }
    /// Calls `each` for entries from offset `from` (0: start; `.` and `..` included) until it returns false (that entry
    /// counts as not taken) or the end. Offsets stay valid while entries come and go.
    pub fn readdir(&self, dir: &Ref<M>, from: u64, each: &mut dyn FnMut(DirEntry<'_, M>) -> bool) -> Result<()> {
        unimplemented!()
    }

    // Attributes.
    pub fn attr(&self, inode: &Ref<M>) -> Attr {
        unimplemented!()
    }
    pub fn set_attr(&self, asking: &Asking<'_>, inode: &Ref<M>, set: &SetAttr) -> Result<Attr> {
        unimplemented!()
    }
    pub fn xattr(&self, inode: &Ref<M>, name: &[u8]) -> Result<Vec<u8>> {
        unimplemented!()
    }
    /// Names, each followed by a NUL.
    pub fn xattr_names(&self, inode: &Ref<M>) -> Vec<u8> {
        unimplemented!()
    }
    /// `kill_sgid`: FUSE_SETXATTR_ACL_KILL_SGID.
    pub fn set_xattr(&self, inode: &Ref<M>, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()> {
        unimplemented!()
    }
    pub fn remove_xattr(&self, inode: &Ref<M>, name: &[u8]) -> Result<()> {
        unimplemented!()
    }

    // Data.
    /// Bytes read: short only at the end of the file.
    pub fn read(&self, asking: &Asking<'_>, inode: &Ref<M>, offset: u64, to: &mut [u8]) -> Result<usize> {
        unimplemented!()
    }
    /// Bytes written: short only when the pool is full. `kill_priv` as in [`SetAttr`].
    pub fn write(
        &self,
        asking: &Asking<'_>,
        inode: &Ref<M>,
        offset: u64,
        from: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        unimplemented!()
    }
    /// Writes at the end; gives the offset written at and the count.
    pub fn append(&self, asking: &Asking<'_>, inode: &Ref<M>, from: &[u8], kill_priv: bool) -> Result<(u64, usize)> {
        unimplemented!()
    }
    /// `mode` is fallocate(2)'s FALLOC_FL_ bits, all of them.
    pub fn fallocate(&self, asking: &Asking<'_>, inode: &Ref<M>, mode: u32, offset: u64, bytes: u64) -> Result<()> {
        unimplemented!()
    }
    pub fn seek(&self, asking: &Asking<'_>, inode: &Ref<M>, offset: u64, whence: Whence) -> Result<u64> {
        unimplemented!()
    }
    pub fn copy_range(
        &self,
        asking: &Asking<'_>,
        from: &Ref<M>,
        from_offset: u64,
        to: &Ref<M>,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        unimplemented!()
    }

    // Placement.
    /// Bytes of the file on each node, ascending by node, nodes with none left out.
    pub fn map(&self, asking: &Asking<'_>, inode: &Ref<M>) -> Vec<(NodeId, u64)> {
        unimplemented!()
    }
    /// Moves the file's blocks to members of `node`, live; gives the bytes moved.
    pub fn move_to(&self, asking: &Asking<'_>, inode: &Ref<M>, node: NodeId) -> Result<u64> {
        unimplemented!()
    }
    /// Moves everything off `member`; it takes no new blocks from then on. Gives the bytes moved. `progress(done, total)`
    /// in bytes.
    pub fn drain(&self, asking: &Asking<'_>, member: MemberId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        unimplemented!()
    }
    pub fn statfs(&self) -> StatFs {
        unimplemented!()
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// An empty filesystem on a pool without members; owner and mode of the root as given.
    pub fn new(machine: &crate::pool::Machine, memory: M, clock: C, root: NewInode) -> Self {
        unimplemented!()
    }
}
