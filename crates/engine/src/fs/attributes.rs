//! stat, chmod, chown, utimens, truncate.

use super::attr::{PERMISSIONS, TYPE_MASK};
use super::{Attr, Fs, Inode, Result, SetAttr, SetTime};
use crate::{BLOCK_BYTES, Clock, Memory};
use std::sync::atomic::Ordering;

/// Units of st_blocks in a block.
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES as u64 / 512;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// What stat(2) tells.
    pub fn attr(&self, inode: &Inode) -> Attr {
        let (size, blocks) = inode.size_and_blocks();
        Attr {
            ino: inode.ino,
            mode: inode.mode(),
            nlink: inode.life.lock().links,
            uid: inode.uid.load(Ordering::Relaxed),
            gid: inode.gid.load(Ordering::Relaxed),
            rdev: inode.rdev,
            size,
            blocks: blocks * SECTORS_PER_BLOCK,
            atime_ns: inode.atime_ns.load(Ordering::Relaxed),
            mtime_ns: inode.mtime_ns.load(Ordering::Relaxed),
            ctime_ns: inode.ctime_ns.load(Ordering::Relaxed),
            btime_ns: inode.btime_ns,
        }
    }

    /// Changes what `set` names; gives all attributes as they are then. Who may is the caller's to check.
    ///
    /// # Errors
    /// [`Error::TooBig`], or a size for something that has none. Nothing is changed then.
    pub fn set_attr(&self, inode: &Inode, set: &SetAttr) -> Result<Attr> {
        let now_ns = self.now_ns();
        if let Some(size) = set.size {
            self.truncate(inode, size)?;
        }
        if let Some(uid) = set.uid {
            inode.uid.store(uid, Ordering::Relaxed);
        }
        if let Some(gid) = set.gid {
            inode.gid.store(gid, Ordering::Relaxed);
        }
        if set.kill_priv {
            self.kill_privileges(inode);
        }
        if let Some(mode) = set.mode {
            // First: it may find no room, and then both stay as they were.
            Self::apply_mode_to_list(inode, mode)?;
            let new = |old: u32| Some(old & TYPE_MASK | mode & PERMISSIONS);
            let _ = inode.mode.fetch_update(Ordering::Relaxed, Ordering::Relaxed, new);
        }
        let time = |time: SetTime| match time {
            SetTime::Now => now_ns,
            SetTime::At(ns) => ns,
        };
        if let Some(atime) = set.atime {
            inode.atime_ns.store(time(atime), Ordering::Relaxed);
        }
        if let Some(mtime) = set.mtime {
            inode.mtime_ns.store(time(mtime), Ordering::Relaxed);
        }
        inode.touch_changed(set.ctime.unwrap_or(now_ns));
        Ok(self.attr(inode))
    }
}
