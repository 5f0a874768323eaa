//! stat, chmod, chown, utimens, truncate.

use super::acl::ACCESS;
use super::attr::{PERMISSIONS, TYPE_MASK};
use super::commit::{Changes, Held};
use super::kernel_file::UNBORN_NS;
use super::xattr::{self, CAPABILITY, without_privileges};
use super::{Attr, Fs, Inode, Result, SetAttr, SetTime};
use crate::log::{Attributes, Change, Effect};
use crate::{BLOCK_BYTES, Clock, Memory};
use std::sync::atomic::Ordering;

/// Units of st_blocks in a block.
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES as u64 / 512;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Returns the inode's attributes, as stat(2).
    pub fn attr(&self, inode: &Inode) -> Attr {
        let Some(file) = inode.kernel_file() else {
            return own_attr(inode, inode.size_and_blocks());
        };
        let status = file.status();
        let promised = file.told_promised_blocks(&self.pool, status.blocks);
        let own = own_attr(inode, (status.size, status.blocks + promised));
        let time = |ns| if ns == UNBORN_NS { own.btime_ns } else { ns };
        Attr {
            atime_ns: time(status.atime_ns),
            mtime_ns: time(status.mtime_ns),
            // Bytes change there, and everything else here.
            ctime_ns: own.ctime_ns.max(status.ctime_ns),
            changes_unseen: true,
            ..own
        }
    }

    /// Changes what `set` names; gives all attributes as they are then. Who may is the caller's to check.
    ///
    /// # Errors
    /// [`Error::TooBig`], or a size for something that has none. Nothing is changed then.
    pub fn set_attr(&self, inode: &Inode, set: &SetAttr) -> Result<Attr> {
        // An access list says the same as the mode.
        let list = set
            .mode
            .map_or(0, |_| inode.state.lock().xattr(ACCESS).map_or(0, <[u8]>::len));
        let _room = match set.size {
            Some(_) if set.is_sized => self.admit_bytes(Effect::Frees, list as u64)?,
            Some(size) => self.admit_size(inode, size, list as u64)?,
            None => self.admit_bytes(Effect::Keeps, list as u64)?,
        };
        let now_ns = inode.stamp(self.now_ns());
        if let Some(size) = set.size
            && !set.is_sized
        {
            self.truncate(inode, size)?;
        }
        let held = Held::state_of(inode);
        let state = held.only();
        let before = inode.attributes(state);
        let mut after = Attributes {
            uid: set.uid.unwrap_or(before.uid),
            gid: set.gid.unwrap_or(before.gid),
            ..before
        };
        if set.kill_priv {
            after.mode = without_privileges(after.mode);
        }
        let mut list = None;
        if let Some(mode) = set.mode {
            after.mode = after.mode & TYPE_MASK | mode & PERMISSIONS;
            list = xattr::list_with_mode(state, mode)?;
        }
        let ino = inode.ino;
        let mut changes = Changes::of(Change::Inode { ino, attributes: after });
        if let Some(value) = &list {
            let name = ACCESS;
            changes.add(Change::Xattr { ino, name, value });
        }
        if set.kill_priv && state.xattr(CAPABILITY).is_some() {
            changes.add(Change::NoXattr { ino, name: CAPABILITY });
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now_ns,
            SetTime::At(ns) => ns,
        };
        changes.add(Change::Times {
            ino,
            atime_ns: set.atime.map(time),
            mtime_ns: set.mtime.map(time),
            ctime_ns: Some(set.ctime.unwrap_or(now_ns)),
        });
        self.commit(held, now_ns, changes.as_slice())?;
        let loses_readers = before.mode & !after.mode & READ_BITS != 0;
        if let Some(file) = inode.kernel_file()
            && (loses_readers || (before.uid, before.gid) != (after.uid, after.gid))
        {
            file.lines().withdraw();
        }
        if let Some(file) = inode.kernel_file()
            && (set.atime.is_some() || set.mtime.is_some())
        {
            file.set_times(set.atime.map(time), set.mtime.map(time))?;
        }
        Ok(self.attr(inode))
    }
}

/// Rights to read in a mode.
const READ_BITS: u32 = 0o444;

/// Attributes of an inode, with the times that are kept here.
fn own_attr(inode: &Inode, (size, blocks): (u64, u64)) -> Attr {
    let state = inode.state.lock();
    Attr {
        ino: inode.ino,
        mode: inode.mode(),
        nlink: state.links,
        uid: inode.uid(),
        gid: state.gid,
        rdev: inode.rdev,
        size,
        blocks: blocks * SECTORS_PER_BLOCK,
        atime_ns: inode.atime_ns.load(Ordering::Relaxed),
        mtime_ns: inode.mtime_ns.load(Ordering::Relaxed),
        ctime_ns: inode.ctime_ns.load(Ordering::Relaxed),
        btime_ns: inode.btime_ns,
        changes_unseen: false,
    }
}
