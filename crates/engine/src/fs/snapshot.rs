//! A snapshot of everything for the log, written while others go on.
//!
//! Each object is written under its own lock, and a large file or directory in parts, so the snapshot is of no single moment; what was appended to the log since it
//! began is played over it, and each change is a put of a whole value. It takes the old log's place when all of that is durable (rule R7).

use super::block_file::{BlockFile, Merged};
use super::durable::times;
use super::inode::Body;
use super::{Error, Fs, Ino, Inode, Result};
use crate::log::planted::{Planted, is_planted};
use crate::log::{Change, Journal, Record};
use crate::{Clock, Memory, MemoryError};
use homenode_shared::Slot;
use std::sync::atomic::Ordering;

/// Most names that are copied while a directory is locked.
const NAMES_MAX: usize = 1024;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// [`Fs::write_snapshot`] where there is room for one.
    pub(super) fn shorten_log(&self, journal: &Journal, slot: &Slot) -> Result<()> {
        match self.write_snapshot(journal, slot) {
            Err(Error::NoSpace) => Ok(()),
            written => written,
        }
    }

    /// Writes a snapshot, and gives the old log's blocks back. With the settling lock held.
    ///
    /// # Errors
    /// [`Error::NoSpace`] while there is no room for one, and the errors of [`Fs::sync_all`].
    pub(super) fn write_snapshot(&self, journal: &Journal, slot: &Slot) -> Result<()> {
        if !journal.may_fit(self.metadata.used()) {
            return Err(Error::NoSpace);
        }
        // Any other failure to append to it ends the log.
        let why = |MemoryError| match journal.has_failed() {
            true => Error::Io,
            false => Error::NoSpace,
        };
        let note = |error: &Error| {
            if *error == Error::NoSpace {
                journal.note_too_few(self.metadata.used());
            }
        };
        let begun = journal.begin_snapshot(&self.pool).map_err(why);
        let (mut snapshot, tail) = begun.inspect_err(note)?;
        let mut failed = None;
        let mut append = |records: &mut dyn Iterator<Item = Record<'_>>| {
            if failed.is_none() {
                failed = journal.append_snapshot(&self.pool, &mut snapshot, records).err();
            }
        };
        // Names first: an inode's times are those of its own record then.
        self.table.for_each(|inode| self.each_name(inode, &mut append));
        self.table.for_each(|inode| self.each_record(inode, &mut append));
        let volumes: Vec<_> = {
            let volumes = self.volumes.lock();
            let named = volumes.iter().map(|(name, volume)| (name.clone(), volume.inode().ino));
            named.collect()
        };
        for (name, ino) in &volumes {
            append(&mut [Record::Change(Change::Volume { name, ino: *ino })].into_iter());
        }
        let ino = Ino(self.table.last());
        append(&mut [Record::LastInode { ino }, Record::SnapshotEnd].into_iter());
        let written = match failed {
            None if is_planted(Planted::EarlySnapshot) => Ok(()),
            None => self.settle_all(journal, slot),
            Some(error) => Err(why(error)),
        };
        let written = written.and_then(|()| journal.end_snapshot(&self.pool, &mut snapshot).map_err(why));
        if let Err(error) = written {
            journal.drop_snapshot(snapshot);
            note(&error);
            return Err(error);
        }
        journal.publish_snapshot(&self.pool, snapshot, tail)?;
        journal.note_snapshot(self.now_ns());
        Ok(())
    }

    /// Shows the names of a directory. Others change some between some names and the next, as for [blocks](Fs::each_block): an append may wait for a disk.
    fn each_name(&self, dir: &Inode, append: &mut dyn FnMut(&mut dyn Iterator<Item = Record<'_>>)) {
        let Ok(directory) = dir.directory() else { return };
        let (mut next, mut names) = (0, Vec::new());
        loop {
            let entries = directory.entries.read();
            names.extend(entries.from(next).take(NAMES_MAX).map(|(entry, behind)| {
                next = behind;
                (entry.name.clone(), entry.inode.ino)
            }));
            drop(entries);
            append(&mut names.iter().map(|(name, ino)| {
                Record::Change(Change::Name {
                    dir: dir.ino,
                    name,
                    ino: *ino,
                })
            }));
            if names.len() < NAMES_MAX {
                return;
            }
            names.clear();
        }
    }

    /// Shows an inode's attributes, extended attributes, target, blocks, size and times.
    fn each_record(&self, inode: &Inode, append: &mut dyn FnMut(&mut dyn Iterator<Item = Record<'_>>)) {
        let ino = inode.ino;
        let state = inode.state.lock();
        if state.evicted {
            return;
        }
        let attributes = inode.attributes(&state);
        // Copied, as names are.
        let xattrs = state.xattrs.clone();
        drop(state);
        let xattrs = xattrs.iter().flat_map(|all| all.iter());
        let xattrs = xattrs.map(|(name, value)| Change::Xattr { ino, name, value });
        let target = match &inode.body {
            Body::Symlink(target) => Some(Change::Target { ino, target }),
            _ => None,
        };
        let changes = [Change::Inode { ino, attributes }].into_iter();
        append(&mut changes.chain(xattrs).chain(target).map(Record::Change));
        if let Some(file) = inode.blocks() {
            self.each_block(inode, file, append);
        }
        let birth = Record::Birth {
            ino,
            ns: inode.btime_ns,
        };
        append(&mut [Record::Change(times(inode)), birth].into_iter());
    }

    /// Shows a file's blocks, then its size. Others use the file between some blocks and the next: each change of theirs is behind the snapshot's
    /// beginning, and is settled before the snapshot counts.
    fn each_block(
        &self,
        inode: &Inode,
        file: &BlockFile,
        append: &mut dyn FnMut(&mut dyn Iterator<Item = Record<'_>>),
    ) {
        let ino = inode.ino;
        let (mut next, mut last) = (Some(0), Merged::default());
        while let Some(from) = next {
            let mut data = Vec::new();
            let closed = inode.close(file, &self.slots);
            next = self.some_extents(&closed, file, from, &mut last, |extent| data.push(extent));
            if next.is_none() {
                let bytes = file.size.load(Ordering::Acquire);
                data.extend(last.end(ino).into_iter().chain([Change::Size { ino, bytes }]));
            }
            drop(closed);
            append(&mut data.into_iter().map(Record::Change));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fs::placement::tests::durable_pool;
    use crate::fs::{Error, Inode, NewInode, XattrMode};
    use crate::{Block, MemberId};

    const SEGMENT_BLOCKS: u32 = 64;

    const FILE: NewInode = NewInode::of_root(0o100_644);

    /// The last group of some of the snapshots needs another segment for itself alone.
    #[test]
    fn snapshots_of_any_length_without_room_are_told_from_failures() {
        let fs = durable_pool(SEGMENT_BLOCKS);
        let journal = fs.journal.as_deref().expect("a durable pool has a log");
        let slot = fs.slots().claim().expect("the first slot is free");
        let [large, last] = [b"a", b"b"].map(|name| fs.create(&fs.root(), name, FILE).expect("there is room"));
        let set = |inode: &Inode, name: &[u8], bytes: usize| {
            let set = fs.set_xattr(inode, name, &vec![1; bytes], XattrMode::Either, false);
            set.expect("there is room");
        };
        [b"user.a", b"user.b", b"user.c", b"user.d"]
            .iter()
            .for_each(|name| set(&large, *name, 60_000));
        let mut kept = Vec::new();
        let mut leave_spare = |count: usize| {
            let segments = std::iter::from_fn(|| fs.pool.take_whole(SEGMENT_BLOCKS.into()));
            kept.extend(segments.map(|first| (first, SEGMENT_BLOCKS)));
            let mut spare = journal.spare.lock();
            kept.append(&mut spare);
            *spare = kept.split_off(kept.len() - count);
        };
        let (mut fitted, mut refused) = (0, 0);
        for (rest, bytes) in (0..8).flat_map(|rest| (16_000..26_000).step_by(8).map(move |bytes| (rest, bytes))) {
            leave_spare(24);
            set(&large, b"user.e", bytes);
            // In the last group.
            set(&last, b"user.a", rest);
            fs.write_snapshot(journal, &slot).expect("there is room");
            // For the snapshot, and for what follows.
            leave_spare(2);
            match fs.write_snapshot(journal, &slot) {
                Ok(()) => fitted += 1,
                Err(Error::NoSpace) => refused += 1,
                Err(error) => panic!("{bytes} and {rest} bytes: {error}"),
            }
        }
        assert!(fitted > 0 && refused > 0, "{fitted} fitted, {refused} did not");
        leave_spare(24);
        fs.write_snapshot(journal, &slot).expect("there is room");
        // Not even for its beginning.
        leave_spare(1);
        assert_eq!(fs.write_snapshot(journal, &slot), Err(Error::NoSpace));
        assert!(!journal.may_fit(fs.metadata.used()), "it is begun again and again");
    }

    #[test]
    fn fewer_but_larger_segments_or_less_metadata_may_have_room_for_a_snapshot() {
        let fs = durable_pool(SEGMENT_BLOCKS);
        let journal = fs.journal.as_deref().expect("a durable pool has a log");
        let place = Block::new(MemberId(0), 100);
        *journal.spare.lock() = vec![(place, SEGMENT_BLOCKS / 4); 20];
        journal.note_too_few(1000);
        assert!(!journal.may_fit(800));
        assert!(journal.may_fit(700));
        *journal.spare.lock() = vec![(place, SEGMENT_BLOCKS); 8];
        assert!(journal.may_fit(800));
        journal.spare.lock().clear();
        journal.note_too_few(1000);
        assert!(!journal.may_fit(1000), "none at all are too few");
    }
}
