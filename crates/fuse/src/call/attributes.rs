//! GETATTR, STATX, SETATTR, STATFS, and how attributes look on the wire.
//!
//! How long the kernel may keep what it is told: everything that changes files goes through the kernel, so names (also
//! those that do not exist) and attributes stay right for as long as it remembers them
//! ([`Options::ATTRIBUTE_TIMEOUT`](crate::Options::ATTRIBUTE_TIMEOUT)). Where the server changes attributes on its own, the
//! kernel knows: it drops size, times and blocks after writes, fallocate and copies, link counts and times after operations
//! on names, everything after an ACL is set; answers to SETATTR carry the new ones. An older answer on its way would count after some of these:
//! `note_changed` prevents it. The one thing it does not drop is the
//! mode after a write, which clears set-uid and set-gid (HANDLE_KILLPRIV_V2): so the attributes of regular files with those
//! bits are never kept. They are asked for before each exec, too.

use super::{Call, Errno};
use crate::host::Host;
use crate::wire::flags::{get_attr, set_attr, statx};
use crate::wire::{
    AttrOut, AttrRecord, EntryOut, GetAttrIn, Reply, SetAttrIn, StatFsOut, StatXOut, StatXRecord, StatXTime, Zeros,
};
use homenode_engine::fs::{Attr, Inode, SetAttr, SetTime};
use homenode_engine::{BLOCK_BYTES, Clock, Memory};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long an answer to who wants the size alone lasts; the kernel rounds it up to one or two ticks. A stat(2) in this time does not
/// see blocks and times of a store through a mapping.
const SIZE_TIMEOUT: Duration = Duration::from_millis(1);
const NAME_BYTES_MAX: u32 = 255;
const NS_PER_SECOND: i64 = 1_000_000_000;
#[expect(clippy::cast_possible_truncation, reason = "4096")]
const BLOCK_BYTES_WIRE: u32 = BLOCK_BYTES as u32;

impl<M: Memory, C: Clock, H: Host> Call<'_, M, C, H> {
    pub(super) fn get_attr(&self, input: &GetAttrIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let attr = self.told(&*self.inode()?);
        let mut out = self.attr_out(&attr);
        // Only lseek(2) to the end names its open file here, as databases do again and again: sizes never change unseen.
        let is_safe = self.service.agreed.sees_writes && !is_killable(attr.mode);
        if attr.changes_unseen && is_safe && input.getattr_flags & get_attr::FH != 0 {
            (out.attr_valid, out.attr_valid_nsec) = on_wire(SIZE_TIMEOUT.min(self.service.agreed.attribute_timeout));
        }
        Ok(reply.put(out)?)
    }

    /// Attributes to be told, beside who may change them.
    fn told(&self, inode: &Inode) -> Attr {
        inode.note_told(self.header.pid);
        self.fs().lasting_attr(inode)
    }

    pub(super) fn stat_x(&self, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let attr = self.told(&*self.inode()?);
        let stat = stat_x_record(&attr);
        let (attr_valid, attr_valid_nsec) = on_wire(self.attributes_valid(&attr));
        Ok(reply.put(StatXOut {
            attr_valid,
            attr_valid_nsec,
            stat,
            ..StatXOut::default()
        })?)
    }

    pub(super) fn set_attr(&self, input: &SetAttrIn, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let inode = self.inode()?;
        if inode.words_reader().is_some() {
            return Err(Errno(libc::EPERM));
        }
        let mut changes = changes(input);
        let names_nothing = input.valid & !(set_attr::FH | set_attr::LOCK_OWNER) == 0;
        if names_nothing {
            changes.kill_priv = self.may_take_privileges(&inode)?;
        }
        if let Some(size) = changes.size {
            if !self.extend(&inode, size)? {
                self.shrink(&inode, size)?;
            }
            changes.is_sized = true;
        }
        let attr = self.fs().set_attr(&inode, &changes)?;
        Ok(reply.put(self.attr_out(&self.passing(&inode, attr)))?)
    }

    /// Attributes for an answer to SETATTR or LINK, which the kernel takes as a whole, whatever has changed since: those of a file that somebody
    /// may store to by a mapping do not last.
    fn passing(&self, inode: &Inode, attr: Attr) -> Attr {
        Attr {
            changes_unseen: attr.changes_unseen || self.fs().opens(inode).writers > 0,
            ..attr
        }
    }

    /// Reserves what makes a file longer, and sets its size, where that is to be reserved; false where there is nothing to do. Comes in steps, one
    /// of which sets the size.
    fn extend(&self, inode: &Inode, size: u64) -> Result<bool, Errno> {
        if !self.fs().reserves_extension(inode) {
            return Ok(false);
        }
        let lock = || self.service.extended.lock().unwrap_or_else(PoisonError::into_inner);
        let size_before = || self.fs().attr(inode).size;
        let before = *lock().entry(self.header.unique).or_insert_with(size_before);
        let mut result = Ok(());
        if let Some(more @ 1..) = size.checked_sub(before) {
            let node = || self.own_node();
            let asking = self.asking(&node);
            result = self
                .in_steps(|done| self.with_room(|| self.fs().fallocate_step(&asking, inode, 0, before, more, done)));
        }
        // It goes on, from there.
        if result != Err(Errno(libc::EAGAIN)) {
            lock().remove(&self.header.unique);
        }
        result.map(|()| size > before)
    }

    /// Whether a request that changes nothing takes set-uid, set-gid and capabilities away. The kernel sends one when it has passed a write
    /// through; but also for a chown(2) that changes nothing, by anybody.
    fn may_take_privileges(&self, inode: &Inode) -> Result<bool, Errno> {
        if inode.mode() & libc::S_IFMT != libc::S_IFREG {
            return Ok(false);
        }
        let is_writer_or_owner = [0, inode.uid()].contains(&self.header.uid) || self.fs().opens(inode).writers > 0;
        if !is_writer_or_owner && is_killable(inode.mode()) {
            return Err(Errno(libc::EPERM));
        }
        Ok(is_writer_or_owner)
    }

    pub(super) fn stat_fs(&self, reply: &mut Reply<'_>) -> Result<(), Errno> {
        let stat = self.fs().statfs();
        Ok(reply.put(StatFsOut {
            blocks: stat.blocks,
            bfree: stat.free,
            bavail: stat.free,
            files: stat.files,
            ffree: stat.files_free,
            bsize: BLOCK_BYTES_WIRE,
            namelen: NAME_BYTES_MAX,
            frsize: BLOCK_BYTES_WIRE,
            ..StatFsOut::default()
        })?)
    }

    /// The answer that gives the kernel an inode, which it pins.
    pub(super) fn entry(&self, inode: &Arc<Inode>) -> Result<EntryOut, Errno> {
        self.fs().pin(inode)?;
        Ok(self.entry_with(&self.passing(inode, self.fs().attr(inode))))
    }

    /// [`Self::entry`] for new files: those are empty, and the kernel asks again when one has grown.
    pub(super) fn lasting_entry(&self, inode: &Arc<Inode>) -> Result<EntryOut, Errno> {
        self.fs().pin(inode)?;
        Ok(self.lasting_entry_of_pinned(inode))
    }

    /// [`Self::lasting_entry`] for LOOKUP and READDIRPLUS, beside which somebody may change the inode.
    pub(super) fn found_entry(&self, inode: &Arc<Inode>) -> Result<EntryOut, Errno> {
        self.fs().pin(inode)?;
        Ok(self.entry_with(&self.told(inode)))
    }

    /// [`Self::lasting_entry`] of an inode that is pinned already.
    pub(super) fn lasting_entry_of_pinned(&self, inode: &Arc<Inode>) -> EntryOut {
        self.entry_with(&self.fs().lasting_attr(inode))
    }

    fn entry_with(&self, attr: &Attr) -> EntryOut {
        let (attr_valid, attr_valid_nsec) = on_wire(self.attributes_valid(attr));
        EntryOut {
            nodeid: attr.ino.0,
            attr_valid,
            attr_valid_nsec,
            attr: attr_record(attr),
            // Numbers are never used twice: one generation is enough.
            ..self.no_entry()
        }
    }

    /// The answer that tells the kernel that there is no such name, which it may remember.
    pub(super) fn no_entry(&self) -> EntryOut {
        let (entry_valid, entry_valid_nsec) = on_wire(self.service.agreed.attribute_timeout);
        EntryOut {
            entry_valid,
            entry_valid_nsec,
            ..EntryOut::default()
        }
    }

    fn attr_out(&self, attr: &Attr) -> AttrOut {
        let (attr_valid, attr_valid_nsec) = on_wire(self.attributes_valid(attr));
        AttrOut {
            attr_valid,
            attr_valid_nsec,
            attr: attr_record(attr),
            ..AttrOut::default()
        }
    }

    fn attributes_valid(&self, attr: &Attr) -> Duration {
        if is_killable(attr.mode) || attr.changes_unseen {
            Duration::ZERO
        } else {
            self.service.agreed.attribute_timeout
        }
    }
}

/// Whether a write can change this mode.
fn is_killable(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG && mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// Seconds and nanoseconds.
fn on_wire(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}

fn attr_record(attr: &Attr) -> AttrRecord {
    let (atime, atimensec) = split(attr.atime_ns);
    let (mtime, mtimensec) = split(attr.mtime_ns);
    let (ctime, ctimensec) = split(attr.ctime_ns);
    AttrRecord {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_BYTES_WIRE,
        flags: 0,
    }
}

fn stat_x_record(attr: &Attr) -> StatXRecord {
    let time = |ns| {
        let (tv_sec, tv_nsec) = split(ns);
        StatXTime {
            tv_sec,
            tv_nsec,
            reserved: Zeros::default(),
        }
    };
    StatXRecord {
        mask: statx::BASIC_STATS | statx::BTIME,
        blksize: BLOCK_BYTES_WIRE,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: (attr.mode & 0xFFFF) as u16,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime_ns),
        btime: time(attr.btime_ns),
        ctime: time(attr.ctime_ns),
        mtime: time(attr.mtime_ns),
        // The kernel's 32-bit form: 8 low bits of the minor number, 12 bits major, the rest of the minor.
        rdev_major: attr.rdev >> 8 & 0xFFF,
        rdev_minor: attr.rdev & 0xFF | attr.rdev >> 12 & 0xF_FF00,
        ..StatXRecord::default()
    }
}

fn changes(input: &SetAttrIn) -> SetAttr {
    let given = |bit: u32| input.valid & bit != 0;
    let time = |bit, now, seconds, nanoseconds| {
        let at = || {
            if given(now) {
                SetTime::Now
            } else {
                SetTime::At(join(seconds, nanoseconds))
            }
        };
        given(bit).then(at)
    };
    SetAttr {
        mode: given(set_attr::MODE).then_some(input.mode),
        uid: given(set_attr::UID).then_some(input.uid),
        gid: given(set_attr::GID).then_some(input.gid),
        size: given(set_attr::SIZE).then_some(input.size),
        atime: time(set_attr::ATIME, set_attr::ATIME_NOW, input.atime, input.atimensec),
        mtime: time(set_attr::MTIME, set_attr::MTIME_NOW, input.mtime, input.mtimensec),
        ctime: given(set_attr::CTIME).then(|| join(input.ctime, input.ctimensec)),
        kill_priv: given(set_attr::KILL_SUIDGID),
        is_sized: false,
    }
}

/// Whole seconds (rounded down, also before 1970) and the rest.
fn split(ns: i64) -> (i64, u32) {
    let rest = u32::try_from(ns.rem_euclid(NS_PER_SECOND)).expect("less than a second in ns fits 32 bits");
    (ns.div_euclid(NS_PER_SECOND), rest)
}

/// The nearest time that can be kept: years 1677 to 2262.
fn join(seconds: i64, nanoseconds: u32) -> i64 {
    let ns = i128::from(seconds) * i128::from(NS_PER_SECOND) + i128::from(nanoseconds);
    let earliest_or_latest = if ns < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(ns).unwrap_or(earliest_or_latest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_engine::fs::Ino;

    fn attr(mode: u32) -> Attr {
        Attr {
            ino: Ino(9),
            mode,
            nlink: 1,
            uid: 2,
            gid: 3,
            rdev: 0x1234_5678,
            size: 4,
            blocks: 8,
            atime_ns: -1,
            mtime_ns: 1_500_000_000,
            ctime_ns: 0,
            btime_ns: 5,
            changes_unseen: false,
        }
    }

    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        assert_eq!(split(-1), (-1, 999_999_999));
        assert_eq!(join(-1, 999_999_999), -1);
        assert_eq!(split(1_500_000_000), (1, 500_000_000));
        assert_eq!(join(i64::MAX, 0), i64::MAX);
        assert_eq!(join(i64::MIN, 5), i64::MIN);
        assert_eq!(join(-9_223_372_037, 500_000_000), -9_223_372_036_500_000_000);
    }

    #[test]
    fn attributes_that_writes_may_change_are_not_cached() {
        assert!(is_killable(0o10_4755));
        assert!(is_killable(0o10_2755));
        assert!(!is_killable(0o10_0755));
        assert!(!is_killable(0o04_2755), "set-gid directories keep their bit");
    }

    #[test]
    fn device_numbers_are_decoded_like_the_kernels() {
        let record = stat_x_record(&attr(0o06_0600));
        let device = libc::makedev(record.rdev_major, record.rdev_minor);
        assert_eq!((libc::major(device), libc::minor(device)), (0x456, 0x12378));
    }

    #[test]
    fn set_attr_changes_only_given_fields() {
        let none = changes(&SetAttrIn {
            mode: 1,
            uid: 2,
            size: 3,
            atime: 4,
            ..SetAttrIn::default()
        });
        assert!(none.mode.is_none() && none.uid.is_none() && none.size.is_none() && none.atime.is_none());
        let valid = set_attr::SIZE | set_attr::ATIME | set_attr::MTIME | set_attr::MTIME_NOW | set_attr::KILL_SUIDGID;
        let some = changes(&SetAttrIn {
            valid,
            size: 3,
            atime: 4,
            atimensec: 5,
            ..SetAttrIn::default()
        });
        assert_eq!((some.size, some.kill_priv), (Some(3), true));
        assert_eq!(some.atime, Some(SetTime::At(4_000_000_005)));
        assert_eq!(some.mtime, Some(SetTime::Now));
    }
}
