//! A snapshot of everything for the log, written while others go on.
//!
//! Each object is written under its own lock, so the snapshot is of no single moment; what was appended to the log since it began is played over
//! it, and each change is a put of a whole value. It takes the old log's place when all of that is durable (rule R7).

use super::durable::times;
use super::inode::Body;
use super::{Fs, Ino, Inode, Result};
use crate::log::planted::{Planted, is_planted};
use crate::log::{Change, Journal, Record};
use crate::{Clock, Memory, MemoryError};
use homenode_shared::{BlockMap, Slot};
use std::sync::atomic::Ordering;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Writes a snapshot, and gives the old log's blocks back. With the settling lock held.
    pub(super) fn write_snapshot(&self, journal: &Journal, slot: &Slot) -> Result<()> {
        let (mut snapshot, tail) = journal.begin_snapshot(&self.pool)?;
        let mut failed = None;
        let mut append = |records: &mut dyn Iterator<Item = Record<'_>>| {
            if failed.is_none() {
                failed = journal.append_snapshot(&self.pool, &mut snapshot, records).err();
            }
        };
        // Names first: an inode's times are those of its own record then.
        self.table.for_each(|inode| self.each_name(inode, &mut append));
        self.table.for_each(|inode| self.each_record(inode, &mut append));
        for (name, volume) in &*self.volumes.lock() {
            let (name, ino) = (&**name, volume.inode().ino);
            append(&mut [Record::Change(Change::Volume { name, ino })].into_iter());
        }
        let ino = Ino(self.table.last());
        append(&mut [Record::LastInode { ino }, Record::SnapshotEnd].into_iter());
        let written = match failed {
            None if is_planted(Planted::EarlySnapshot) => Ok(()),
            None => self.settle_all(journal, slot),
            Some(MemoryError) => Err(MemoryError.into()),
        };
        if let Err(error) = written {
            journal.drop_snapshot(snapshot);
            return Err(error);
        }
        journal.publish_snapshot(&self.pool, snapshot, tail)?;
        journal.note_snapshot(self.now_ns());
        Ok(())
    }

    /// Shows the names of a directory.
    fn each_name(&self, dir: &Inode, append: &mut dyn FnMut(&mut dyn Iterator<Item = Record<'_>>)) {
        let Ok(directory) = dir.directory() else { return };
        let entries = directory.entries.read();
        let mut names = entries.from(0).map(|(entry, _)| {
            Record::Change(Change::Name {
                dir: dir.ino,
                name: &entry.name,
                ino: entry.inode.ino,
            })
        });
        append(&mut names);
    }

    /// Shows an inode's attributes, times, extended attributes, target, blocks and size.
    fn each_record(&self, inode: &Inode, append: &mut dyn FnMut(&mut dyn Iterator<Item = Record<'_>>)) {
        let ino = inode.ino;
        let mut data = Vec::new();
        if let Some(file) = inode.blocks() {
            let closed = inode.close(file, &self.slots);
            self.each_extent(&closed, file, &(0..BlockMap::LIMIT), |extent| data.push(extent));
            let bytes = file.size.load(Ordering::Acquire);
            data.push(Change::Size { ino, bytes });
        }
        let state = inode.state.lock();
        if state.evicted {
            return;
        }
        let attributes = inode.attributes(&state);
        let xattrs = state.xattrs.iter().flat_map(|all| all.iter());
        let xattrs = xattrs.map(|(name, value)| Change::Xattr { ino, name, value });
        let target = match &inode.body {
            Body::Symlink(target) => Some(Change::Target { ino, target }),
            _ => None,
        };
        let changes = [Change::Inode { ino, attributes }]
            .into_iter()
            .chain(data)
            .chain(xattrs)
            .chain(target);
        let birth = Record::Birth {
            ino,
            ns: inode.btime_ns,
        };
        append(&mut changes.chain([times(inode)]).map(Record::Change).chain([birth]));
    }
}
