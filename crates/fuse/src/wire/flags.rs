//! Bits of the protocol's flag words.
#![allow(
    missing_docs,
    reason = "names and meanings are those of the kernel's header, without FUSE_"
)]

/// INIT: the low 32 bits travel in `flags`, the high ones in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is there.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `GetAttrIn::getattr_flags`.
pub mod get_attr {
    pub const FH: u32 = 1 << 0;
}

/// `SetAttrIn::valid`.
pub mod set_attr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCK_OWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `OpenOut::open_flags`.
pub mod opened {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// `OpenIn::open_flags` and `CreateIn::open_flags`.
pub mod open {
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// `WriteIn::write_flags`.
pub mod write {
    /// From the page cache: written back, not a call of the thread in the header.
    pub const CACHE: u32 = 1 << 0;
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// `SetXattrIn::setxattr_flags`.
pub mod set_xattr {
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// `StatXRecord::mask`: all of stat(2), and the time of birth.
pub mod statx {
    pub const BASIC_STATS: u32 = 0x7ff;
    pub const BTIME: u32 = 0x800;
}
