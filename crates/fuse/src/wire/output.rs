//! Output to the kernel: the fixed part of each answer.

use super::layout::{Zeros, record};

record! {
    /// Starts every answer; `error` is 0 or a negative errno.
    OutHeader: 16 { len: u32, error: i32, unique: u64 }
    /// Attributes of an inode. Seconds are signed on the wire although the header says otherwise.
    AttrRecord: 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// LOOKUP and everything that makes a name. `nodeid` 0 says: no such name, and that may be cached.
    EntryOut: 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: AttrRecord,
    }
    /// GETATTR and SETATTR.
    AttrOut: 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: Zeros<4>, attr: AttrRecord }
    /// A time of STATX.
    StatXTime: 16 { tv_sec: i64, tv_nsec: u32, reserved: Zeros<4> }
    /// Attributes of STATX.
    StatXRecord: 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: Zeros<2>, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: StatXTime, btime: StatXTime, ctime: StatXTime, mtime: StatXTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: Zeros<112>,
    }
    /// STATX.
    StatXOut: 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: Zeros<16>, stat: StatXRecord }
    /// OPEN, OPENDIR, and behind the entry of CREATE and TMPFILE.
    OpenOut: 16 { fh: u64, open_flags: u32, backing_id: i32 }
    /// WRITE and COPY_FILE_RANGE.
    WriteOut: 8 { size: u32, padding: Zeros<4> }
    /// COPY_FILE_RANGE_64.
    CopyFileRangeOut: 8 { bytes_copied: u64 }
    /// STATFS.
    StatFsOut: 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: Zeros<4>, spare: Zeros<24>,
    }
    /// GETXATTR and LISTXATTR asked with size 0.
    GetXattrOut: 8 { size: u32, padding: Zeros<4> }
    /// LSEEK.
    LSeekOut: 8 { offset: u64 }
    /// INIT.
    InitOut: 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: Zeros<22>,
    }
    /// NOTIFY_INVAL_INODE: `off` below 0 means attributes only.
    NotifyInvalInodeOut: 24 { ino: u64, off: i64, len: i64 }
    /// Starts an entry of READDIR; the name follows, then zeros up to a multiple of 8 bytes.
    DirEntryHead: 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
}
