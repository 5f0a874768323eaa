//! Input from the kernel: the fixed part of each request.

use super::layout::{Zeros, record};

record! {
    /// Starts every request. `pid` is the id of the calling thread (0: the kernel itself), `total_extlen` counts words
    /// of 8 bytes at the end of the request.
    InHeader: 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: Zeros<2>,
    }
    /// INIT.
    InitIn: 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: Zeros<44> }
    /// FORGET.
    ForgetIn: 8 { nlookup: u64 }
    /// An inode of BATCH_FORGET.
    ForgetOne: 16 { nodeid: u64, nlookup: u64 }
    /// BATCH_FORGET.
    BatchForgetIn: 8 { count: u32, dummy: Zeros<4> }
    /// GETATTR.
    GetAttrIn: 16 { getattr_flags: u32, dummy: Zeros<4>, fh: u64 }
    /// STATX.
    StatXIn: 24 { getattr_flags: u32, reserved: Zeros<4>, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// SETATTR; seconds are signed on the wire although the header says otherwise.
    SetAttrIn: 88 {
        valid: u32, padding: Zeros<4>, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: Zeros<4>, uid: u32, gid: u32, unused5: Zeros<4>,
    }
    /// MKNOD.
    MkNodIn: 16 { mode: u32, rdev: u32, umask: u32, padding: Zeros<4> }
    /// MKDIR.
    MkDirIn: 8 { mode: u32, umask: u32 }
    /// RENAME.
    RenameIn: 8 { newdir: u64 }
    /// RENAME2.
    Rename2In: 16 { newdir: u64, flags: u32, padding: Zeros<4> }
    /// LINK.
    LinkIn: 8 { oldnodeid: u64 }
    /// OPEN and OPENDIR.
    OpenIn: 8 { flags: u32, open_flags: u32 }
    /// CREATE and TMPFILE.
    CreateIn: 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// RELEASE and RELEASEDIR.
    ReleaseIn: 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FLUSH.
    FlushIn: 24 { fh: u64, unused: Zeros<8>, lock_owner: u64 }
    /// READ, READDIR and READDIRPLUS.
    ReadIn: 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: Zeros<4> }
    /// WRITE.
    WriteIn: 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: Zeros<4> }
    /// FSYNC and FSYNCDIR.
    FSyncIn: 16 { fh: u64, fsync_flags: u32, padding: Zeros<4> }
    /// SETXATTR, the long form of SETXATTR_EXT.
    SetXattrIn: 16 { size: u32, flags: u32, setxattr_flags: u32, padding: Zeros<4> }
    /// GETXATTR and LISTXATTR.
    GetXattrIn: 8 { size: u32, padding: Zeros<4> }
    /// ACCESS.
    AccessIn: 8 { mask: u32, padding: Zeros<4> }
    /// INTERRUPT.
    InterruptIn: 8 { unique: u64 }
    /// FALLOCATE.
    FAllocateIn: 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: Zeros<4> }
    /// LSEEK.
    LSeekIn: 24 { fh: u64, offset: u64, whence: u32, padding: Zeros<4> }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn: 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
}
