//! Making bytes and names durable: fsync, and everything at once.
//!
//! A file's bytes are durable before the log says that its blocks and size count (rule R1): until then its changes wait, and a power cut
//! leaves the file as it was settled last. Locks: settling everything; the gate; a file's syncing lock.
//!
//! Order of a writer: store, note the range as dirty, append, publish. Order of a sync: read the log's end, take the dirty ranges, make them durable,
//! append that all up to that end is settled. So what a sync settles was stored before its range was taken. It finds the blocks of a range in the
//! map, so those that are being published are waited for.

mod apart;

use super::block_file::{BlockFile, Ranges};
use super::{Error, Fs, Ino, Inode, Result};
use crate::log::planted::{Planted, is_planted};
use crate::log::{Change, Effect, Journal, Record, Room};
use crate::pool::{MemberKind, MemberStatus};
use crate::{BLOCK_BYTES, Block, Clock, MemberId, Memory, MemoryError};
use homenode_shared::{BlockMap, Found, Pass, Slot};
use parking_lot::RwLockReadGuard;
use std::ops::Range;
use std::slice::from_ref;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Fewest bytes of a file that gain by [`Memory::store_clean`].
const CALL_BYTES_MIN: usize = 8 << 10;
/// Bytes of a record of an extent, at most.
pub(super) const EXTENT_RECORD_BYTES_MAX: u64 = 40;
/// Bytes of a group of one extent and the file's size, at most.
const EXTENT_GROUP_BYTES_MAX: u64 = 96;
/// Bytes of the groups of an operation besides values and extents, at most: four names of 255 bytes, some attributes.
const RECORDS_BYTES_MAX: u64 = 2 << 10;
/// Bytes of a record of bytes besides these, at most.
const RECORD_OF_BYTES_MAX: u64 = 32;
/// Bytes of a file's times in the log, at most.
const TIMES_BYTES_MAX: u64 = 40;
/// Time between two looks whether others have given room back, and how often one looks: a tenth of a second.
const WAIT: Duration = Duration::from_micros(100);
const WAITS_MAX: usize = 1000;
/// Commits that an operation waits for before the pool is full for it: others free blocks meanwhile, and use those that were given back.
const COMMITS_MAX: usize = 16;
/// Longest wait of a sync for renames under way.
const PATIENCE: Duration = Duration::from_millis(10);

/// Bytes that a sync made durable.
enum Saved<'a> {
    /// Nothing was dirty.
    Nothing,
    /// All bytes, where they lie.
    InPlace,
    /// Copies of file blocks, for the log, with their room in it.
    Inline(Vec<(u64, Vec<u8>)>, Room<'a>),
}

impl BlockFile {
    /// Takes the dirty ranges, with what is being saved or could not be. They are in `saving` before they are no longer in `dirty`, and until they are
    /// saved: whoever looks at both, in that order, finds them. With the file's syncing lock.
    fn take_unsaved(&self) -> Vec<Range<u64>> {
        self.take_unsaved_with(|| ()).1
    }

    /// [`BlockFile::take_unsaved`] with what `look` returns at that moment: while no blocks are told to the log that are not yet to be taken, or the other
    /// way round.
    fn take_unsaved_with<T>(&self, look: impl FnOnce() -> T) -> (T, Vec<Range<u64>>) {
        let _none_half_there = self.publishing.write();
        let looked = look();
        self.dirty.move_to(&self.saving);
        (looked, self.saving.list())
    }
}

impl Journal {
    #[inline(never)]
    fn add_dirty(&self, ino: Ino, file: &BlockFile, blocks: Range<u64>) {
        // Held for both: whoever sees the range noted, and appends what makes it count, must find the file on the list.
        let mut list = self.dirty.lock();
        // Relaxed: a hint. Others wait for the next commit, which looks at all of it.
        if file.dirty.add(blocks, file.is_synced.load(Ordering::Relaxed)) {
            self::list(&mut list, ino);
        }
    }
}

/// Puts a file on the list of those that may not be durable. Each sync takes a file's ranges, and leaves it on the list: where that is full, it is
/// freed of doubles, so that it grows with the files, and not with the syncs between two commits.
fn list(files: &mut Vec<Ino>, ino: Ino) {
    const LENGTH_MIN: usize = 1024;
    if files.len() == files.capacity() && files.len() >= LENGTH_MIN {
        files.sort_unstable();
        files.dedup();
        // So much again before the next time.
        files.reserve(files.len().max(LENGTH_MIN));
    }
    files.push(ino);
}

/// Whether a file is settled, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settling {
    /// If something of it is unsettled. Few bytes go into the log, as that is one request.
    IfNeeded,
    /// Also if nothing is.
    Always,
    /// If something of it is unsettled; all bytes go to their places.
    InPlace,
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Tells the log of changes.
    pub(super) fn tell(&self, now_ns: i64, changes: &[Change<'_>]) {
        self.tell_with(now_ns, changes, None);
    }

    /// [`Fs::tell`]; the changes count only when those of the file `needs` that came before do.
    pub(super) fn tell_with(&self, now_ns: i64, changes: &[Change<'_>], needs: Option<Ino>) {
        let Some(journal) = &self.journal else { return };
        match needs {
            Some(ino) if !is_planted(Planted::EarlyRename) => {
                // A change of nothing, in case that bytes were overwritten alone: it is settled when they are durable.
                let nothing = Change::Grown { ino, bytes: 0 };
                let first = [Record::Change(nothing), Record::Needs { ino }].into_iter();
                let changes = changes.iter().map(|change| Record::Change(*change));
                journal.append_needing(&self.pool, now_ns, first.chain(changes), Some(ino))
            }
            _ => journal.append(&self.pool, now_ns, changes),
        };
    }

    /// Tells the log of changes of a file's blocks or size. Their bytes are noted as dirty before.
    pub(super) fn tell_data(&self, ino: Ino, file: &BlockFile, changes: &[Change<'_>]) {
        let Some(journal) = &self.journal else { return };
        let sequence = journal.append(&self.pool, self.now_ns(), changes);
        if file.changed.fetch_max(sequence, Ordering::Relaxed) == 0 {
            list(&mut journal.dirty.lock(), ino);
        }
    }

    /// Whether bytes, blocks or the size of a file may not be durable.
    pub(super) fn is_unsettled(&self, file: &BlockFile) -> bool {
        // In this order: what a commit takes is in `saving` before it leaves `dirty`; and may be in `dirty` again before it leaves `saving`, once.
        self.journal.is_some()
            && (!file.dirty.is_empty()
                || !file.saving.is_empty()
                || !file.dirty.is_empty()
                || !file.saving.is_empty()
                || file.changed.load(Ordering::Relaxed) != 0)
    }

    /// Whether the pool was opened to be read only.
    pub fn is_read_only(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_read_only())
    }

    /// The log, unless the pool is only read: then everything is durable.
    fn written_log(&self) -> Option<&Journal> {
        self.journal.as_deref().filter(|journal| !journal.is_read_only())
    }

    /// Whether there is a log: the pool outlives the process.
    pub fn is_durable(&self) -> bool {
        self.journal.is_some()
    }

    /// Identity of a durable pool.
    pub fn uuid(&self) -> Option<u128> {
        self.journal.as_ref().map(|journal| journal.uuid())
    }

    /// Number of a durable pool's history: while it is the same, nothing has been lost that was stored ([`Superblock::history`](crate::log::Superblock::history)).
    pub fn history(&self) -> Option<u64> {
        self.journal.as_ref().map(|journal| journal.history())
    }

    /// Stores bytes in blocks that the file has, or is about to have.
    #[inline(always)]
    pub(super) fn store(
        &self,
        file: &BlockFile,
        offset: u64,
        (block, in_block): (Block, usize),
        from: &[u8],
    ) -> std::result::Result<(), MemoryError> {
        let memory = self.pool.memory();
        let is_clean = || {
            let blocks = offset / BLOCK..(offset + from.len() as u64).div_ceil(BLOCK);
            file.is_synced.load(Ordering::Relaxed) && !file.dirty.hold(&blocks)
        };
        if self.journal.is_some() && from.len() >= CALL_BYTES_MIN && is_clean() {
            return memory.store_clean(block, in_block, from);
        }
        memory.store_located(block, in_block, from)
    }

    /// Notes that bytes were stored in a file.
    #[inline]
    pub(super) fn note_stored(&self, inode: &Inode, file: &BlockFile, offset: u64, bytes: u64) {
        if self.journal.is_some() {
            self.note_dirty(inode.ino, file, offset / BLOCK..(offset + bytes).div_ceil(BLOCK));
        }
    }

    /// Notes that bytes of file blocks were stored, or are about to be with the gate closed.
    #[inline]
    pub(super) fn note_dirty(&self, ino: Ino, file: &BlockFile, blocks: Range<u64>) {
        let Some(journal) = &self.journal else { return };
        // The stores come before the look at the range: whoever takes the range now sees them, or the range is seen taken.
        if self.is_cached {
            self.slots.barrier_inside();
        } else {
            fence(Ordering::SeqCst);
        }
        if !file.dirty.hold(&blocks) {
            journal.add_dirty(ino, file, blocks);
        }
    }

    /// Notes ranges as dirty again that could not be saved.
    fn note_all_dirty(&self, ino: Ino, file: &BlockFile, ranges: &[Range<u64>]) {
        for range in ranges {
            self.note_dirty(ino, file, range.clone());
        }
    }

    /// Barrier behind taking dirty ranges, if `some` were, and ahead of reading their bytes. In a pool with a cache it is a call of the kernel, for which
    /// [`Fs::note_dirty`] costs nothing; in others a sync may take less than that, and the taking itself is the barrier.
    fn after_taking(&self, some: bool) {
        if self.is_cached && some {
            self.slots.barrier_outside();
        }
    }

    /// Frees blocks that a file's map recorded until now: the one place where such blocks go back to the pool.
    pub(super) fn free_blocks(&self, first: Block, blocks: u64) {
        match &self.journal {
            Some(journal) if !is_planted(Planted::EarlyReuse) => journal.quarantine(Some(first), blocks),
            _ => self.pool.free(first, blocks),
        }
    }

    /// Gives room back that was reserved for a file until now.
    pub(super) fn unreserve(&self, blocks: u64) {
        match &self.journal {
            Some(journal) if blocks > 0 && !is_planted(Planted::EarlyReuse) => journal.quarantine(None, blocks),
            _ => self.pool.unreserve(blocks),
        }
    }

    /// Blocks of the pool that are no file's: the log's, superblocks, and those that wait until they may be used again.
    pub(super) fn log_blocks(&self) -> u64 {
        self.journal.as_ref().map_or(0, |journal| {
            journal.segment_blocks() + journal.quarantined_blocks().0 + self.pool.superblock_blocks()
        })
    }

    /// Makes an inode durable: the bytes, names and attributes that were there before the call (fsync(2)). Without a log it does nothing.
    ///
    /// # Errors
    /// [`Error::Io`] when that failed; again until all of it is durable. [`Error::NoSpace`] at the end of a log that no snapshot can replace.
    pub fn sync(&self, slot: &Slot, inode: &Inode) -> Result<()> {
        self.begin_sync(slot, inode)?;
        self.end_sync(slot)
    }

    /// Makes everything durable that was there before the call (syncfs(2)), and gives freed blocks back. Without a log it does nothing.
    ///
    /// # Errors
    /// The errors of [`Fs::sync`].
    pub fn sync_all(&self, slot: &Slot) -> Result<()> {
        let Some(journal) = self.written_log() else {
            return Ok(());
        };
        let _one_at_a_time = journal.settling.lock();
        self.settle_in_room(journal, slot)
    }

    /// Settles everything, unless the log is at its end, and no room is about to be given back. With the settling lock held.
    fn settle_in_room(&self, journal: &Journal, slot: &Slot) -> Result<()> {
        let has_rest = || journal.has_rest(Effect::Keeps);
        // What was freed may give room.
        if !journal.has_failed() && !journal.has_quarantined() && !has_rest() {
            journal.fill_spare(&self.pool);
            if !has_rest() {
                return Err(Error::NoSpace);
            }
        }
        self.settle_all(journal, slot)
    }

    /// [`Fs::sync_all`] and, when the log is long, a new snapshot. Call it once a second or so.
    ///
    /// # Errors
    /// The errors of [`Fs::sync`].
    pub fn tend_log(&self, slot: &Slot) -> Result<()> {
        let Some(journal) = self.written_log() else {
            return Ok(());
        };
        let _one_at_a_time = journal.settling.lock();
        self.settle_in_room(journal, slot)?;
        journal.fill_spare(&self.pool);
        // In a full pool segments are missing for long: a snapshot is written when it gives some back.
        if journal.is_long() || journal.is_short() && journal.may_be_shorter(self.now_ns()) {
            self.shorten_log(journal, slot)?;
        }
        Ok(())
    }

    /// Writes a new snapshot in the place of the log so far, as before a pool is put away. Without a log, or room for one, it does nothing.
    ///
    /// # Errors
    /// The errors of [`Fs::sync`].
    pub fn compact(&self, slot: &Slot) -> Result<()> {
        let Some(journal) = self.written_log() else {
            return Ok(());
        };
        let _one_at_a_time = journal.settling.lock();
        self.shorten_log(journal, slot)
    }

    /// Makes everything durable, and notes where the log ends: so a log that was damaged since is told from one that a crash cut short. Nothing
    /// may use the pool afterwards. Without a log, or in a pool that is only read, it does nothing.
    ///
    /// # Errors
    /// The errors of [`Fs::sync`]; the pool is as after a crash then.
    pub fn put_away(&self, slot: &Slot) -> Result<()> {
        let Some(journal) = self.written_log() else {
            return Ok(());
        };
        let _one_at_a_time = journal.settling.lock();
        self.settle_all(journal, slot)?;
        self.force(journal, slot, None)?;
        Ok(journal.change_superblock(&self.pool, |_| {})?)
    }

    /// Asked before anything is stored, inside the gate or with it closed: what a log that failed does not tell must not be built on. Blocks that
    /// a collapse moved lie elsewhere for the log, and after a crash bytes stored in them would be at the wrong place.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] from the log's first failure on.
    #[inline]
    pub(super) fn check_writable(&self) -> Result<()> {
        match &self.journal {
            Some(journal) if journal.has_failed() => Err(Error::ReadOnly),
            _ => Ok(()),
        }
    }

    /// Finds room in the log for an operation, before it locks anything; waits for a snapshot if need be. Keep it until all is appended.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for one that `adds`, when a snapshot would not fit with what it adds, and for any at the end of a log that no snapshot can
    /// replace; [`Error::ReadOnly`].
    pub(super) fn admit(&self, adds: bool) -> Result<Option<Room<'_>>> {
        self.admit_bytes(if adds { Effect::Adds } else { Effect::Frees }, 0)
    }

    /// [`Fs::admit`] for one that appends `bytes` bytes beside a few names and attributes.
    ///
    /// # Errors
    /// The errors of [`Fs::admit`], also for one that [splits](Effect::Splits).
    #[inline]
    pub(super) fn admit_bytes(&self, effect: Effect, bytes: u64) -> Result<Option<Room<'_>>> {
        let Some(journal) = &self.journal else { return Ok(None) };
        match self.admit_at_once(journal, effect, bytes)? {
            None => self.make_room(journal, effect, bytes).map(Some),
            room => Ok(room),
        }
    }

    #[inline]
    fn admit_at_once<'a>(&self, journal: &'a Journal, effect: Effect, bytes: u64) -> Result<Option<Room<'a>>> {
        self.check_writable()?;
        // Who adds waits when those who tend the log are slower.
        let may = !effect.grows() || !journal.is_too_long();
        Ok(may
            .then(|| journal.promise_at_once(bytes + RECORDS_BYTES_MAX))
            .flatten())
    }

    #[cold]
    fn make_room<'a>(&'a self, journal: &'a Journal, effect: Effect, bytes: u64) -> Result<Room<'a>> {
        let bytes = bytes + RECORDS_BYTES_MAX;
        let find = || {
            let may = !effect.grows() || !journal.is_too_long();
            may.then(|| journal.promise(&self.pool, effect, bytes)).flatten()
        };
        if let Some(room) = find() {
            return Ok(room);
        }
        let slot = self.slots.claim().ok_or(Error::Busy)?;
        let _one_at_a_time = journal.settling.lock();
        // Another thread may have been faster.
        let mut room = find();
        let mut unsettled = None;
        for _ in 0..COMMITS_MAX {
            let is_short =
                room.is_none() && journal.may_fit(self.metadata.used()) && journal.may_be_shorter(self.now_ns());
            // A commit takes room as well: not where it gives none.
            if room.is_none() && (is_short || journal.has_quarantined()) {
                unsettled = self.settle_all(journal, &slot).err();
                room = find();
            }
            if room.is_none() && unsettled.is_none() && is_short {
                unsettled = self.shorten_log(journal, &slot).err();
                room = find();
            }
            if room.is_some() || unsettled.is_some() || !journal.has_quarantined() {
                break;
            }
        }
        if room.is_none()
            && let Some(error) = unsettled
        {
            self.check_writable()?;
            // What cannot be made durable may be what is to be freed.
            let may = effect == Effect::Frees || effect == Effect::Keeps && journal.has_snapshot_room();
            let rest = may.then(|| journal.promise_rest(effect, bytes)).flatten();
            return rest.ok_or(error);
        }
        for _ in 0..WAITS_MAX {
            if room.is_some() || !journal.fits_alone(effect, bytes) {
                break;
            }
            // Others are about to give back more than they use.
            std::thread::sleep(WAIT);
            room = find();
        }
        let room = match room {
            None if !effect.grows() => journal.promise_rest(effect, bytes),
            room => room,
        };
        room.ok_or(Error::NoSpace)
    }

    /// Finds room in the log for records of so many extents of a file, with the gate closed.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(super) fn admit_extents(&self, effect: Effect, extents: impl FnOnce() -> u64) -> Result<Option<Room<'_>>> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let bytes = RECORDS_BYTES_MAX + extents() * EXTENT_RECORD_BYTES_MAX;
        journal
            .promise(&self.pool, effect, bytes)
            .map(Some)
            .ok_or(Error::NoSpace)
    }

    /// Carries out `act`, whose groups have `bytes` bytes at most; again when the pool was full, and freed blocks could be given back. Where it would wait
    /// and the caller does not, it ends with [`Error::Away`].
    pub(super) fn with_freed<T>(
        &self,
        (slot, waits): (&Slot, bool),
        effect: Effect,
        bytes: u64,
        act: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let Some(journal) = &self.journal else { return act() };
        let act = || {
            let _room = match self.admit_at_once(journal, effect, bytes)? {
                None if waits => self.make_room(journal, effect, bytes)?,
                None => return Err(Error::Away),
                Some(room) => room,
            };
            act()
        };
        let full = |result: &Result<T>| matches!(result, Err(Error::NoSpace));
        // What is given back while it acts may come too late for it.
        let mut was_quarantined = journal.has_quarantined();
        let mut result = act();
        if !waits && full(&result) && (was_quarantined || journal.has_quarantined() || journal.can_be_shorter()) {
            return Err(Error::Away);
        }
        for _ in 0..COMMITS_MAX {
            if !full(&result) || !(was_quarantined || journal.has_quarantined()) {
                break;
            }
            self.sync_all(slot)?;
            was_quarantined = journal.has_quarantined();
            result = act();
        }
        if full(&result) && journal.can_be_shorter() {
            // First: a snapshot that cannot be settled has taken a segment.
            self.sync_all(slot)?;
            self.compact(slot)?;
            result = act();
        }
        result
    }

    /// Bytes of the groups that a write may append, and its effect: blocks that are there already need none.
    ///
    /// # Errors
    /// [`Error::Away`] where it would wait and the asking thread may not.
    pub(super) fn effect_of_write(
        &self,
        asking: &super::Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        bytes: usize,
    ) -> Result<(Effect, u64)> {
        if self.journal.is_none() {
            return Ok((Effect::Adds, 0));
        }
        let end = offset.saturating_add(bytes as u64);
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        let is_there = end <= file.size.load(Ordering::Acquire) && {
            let _inside = inode.enter_as(file, asking)?;
            let mut at = blocks.start;
            while at < blocks.end
                && let Found::Placed { blocks: found, .. } = file.map.find(&self.nodes, at, blocks.end - at)
            {
                at += found;
            }
            at == blocks.end
        };
        let effect = if is_there { Effect::Frees } else { Effect::Adds };
        Ok((effect, (blocks.end - blocks.start) * EXTENT_GROUP_BYTES_MAX))
    }

    /// Makes the groups durable that were appended so far, and first the bytes that these need.
    /// `closed` is a file whose gate this thread has closed, and nothing of which is unsettled.
    pub(super) fn force(&self, journal: &Journal, slot: &Slot, closed: Option<Ino>) -> Result<()> {
        let end = self.meet_needs(journal, slot, closed)?;
        if is_planted(Planted::LogNotForced) {
            return Ok(());
        }
        journal.force(&self.pool, end)?;
        journal.note_durable(end);
        Ok(())
    }

    /// Settles files until no group so far needs one, and returns the log's end at that moment: a group that needs one, between another's need and
    /// what settles that, would take both away in a crash.
    fn meet_needs(&self, journal: &Journal, slot: &Slot, closed: Option<Ino>) -> Result<u64> {
        let (mut nobody_names, mut rounds) = (None, 0);
        loop {
            // Those who are faster wait. Not for ever: one of them may wait for a file whose gate is closed.
            if rounds > 1 && nobody_names.is_none() {
                nobody_names = journal.naming.try_write_for(PATIENCE);
            }
            rounds += 1;
            let (needed, end) = journal.needed();
            if needed.is_empty() {
                return Ok(end);
            }
            for (ino, mark) in needed {
                if closed != Some(ino)
                    && let Some(inode) = self.table.find(ino)
                    && let Some(file) = inode.blocks()
                {
                    self.settle_file(journal, slot, &inode, file, Settling::Always)?;
                } else {
                    // One that is gone has lost its name before this: it shows nothing, and groups behind its need still count.
                    journal.append_records(&self.pool, self.now_ns(), [settled_wholly(ino)].into_iter());
                }
                journal.met(ino, mark);
            }
            if is_planted(Planted::NeedsMetOnce) {
                return Ok(journal.end());
            }
        }
    }

    /// Makes a file's bytes durable, and appends that its changes are settled; `always`, or when there are such.
    fn settle_file(
        &self,
        journal: &Journal,
        slot: &Slot,
        inode: &Inode,
        file: &BlockFile,
        settling: Settling,
    ) -> Result<()> {
        loop {
            let inside = inode.enter(file, slot);
            let alone = file.syncing.try_lock();
            let seen = journal.try_goes_on(inode.ino);
            let has_alone = alone.is_some();
            if let (Some(_one_at_a_time), Some(seen)) = (alone, seen) {
                return self.settle_inside(journal, inode, file, (Some(inside), seen), settling);
            }
            // Outside, as the threads that have the locks may wait for a disk.
            drop(inside);
            if has_alone {
                drop(journal.goes_on(inode.ino));
            } else {
                drop(file.syncing.lock());
            }
        }
    }

    /// [`Fs::settle_file`] with the gate closed, so that nothing of the file is unsettled then, and all of its bytes are durable where they lie.
    pub(super) fn settle_closed(&self, inode: &Inode, file: &BlockFile) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        // A commit must not take the range in between.
        let _one_at_a_time = file.syncing.lock();
        self.note_dirty(inode.ino, file, 0..BlockMap::LIMIT);
        self.settle_inside(
            journal,
            inode,
            file,
            (None, journal.goes_on(inode.ino)),
            Settling::IfNeeded,
        )
    }

    /// Tells the log of changes of a file nothing of which is unsettled, with the gate closed; makes them durable at once.
    pub(super) fn tell_settled(&self, slot: &Slot, ino: Ino, changes: &[Change<'_>]) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let changes = changes.iter().map(|change| Record::Change(*change));
        journal.append_records(&self.pool, self.now_ns(), changes.chain([settled_wholly(ino)]));
        if is_planted(Planted::ShiftUndone) {
            return Ok(());
        }
        // What is overwritten from now on would be at the wrong place without it.
        self.force(journal, slot, Some(ino)).inspect_err(|_| journal.fail())
    }

    /// [`Fs::settle_file`] `inside` the gate or with the gate closed, with the file's syncing lock.
    fn settle_inside(
        &self,
        journal: &Journal,
        inode: &Inode,
        file: &BlockFile,
        (inside, _seen): (Option<Pass<'_>>, RwLockReadGuard<'_, ()>),
        settling: Settling,
    ) -> Result<()> {
        let ino = inode.ino;
        let early = is_planted(Planted::EndBeforeTaking).then(|| {
            let end = journal.end();
            std::thread::sleep(std::time::Duration::from_micros(200));
            end
        });
        // Blocks that are told behind this end are not among those that are taken: their bytes would go with an older settling.
        let (end, dirty) = file.take_unsaved_with(|| journal.end());
        let through = early.unwrap_or(end);
        self.after_taking(!dirty.is_empty());
        // Relaxed: it is written before the writer of a group that came before `through` returned, or that is not meant.
        let is_settled = file.changed.load(Ordering::Relaxed) <= journal.settled_all.load(Ordering::Relaxed);
        if dirty.is_empty() && is_settled && settling != Settling::Always {
            return Ok(());
        }
        if is_planted(Planted::RecordBeforeBytes) {
            let (at, blocks) = (0, 0);
            let early = Record::Settled {
                ino,
                through,
                at,
                blocks,
            };
            journal.append_records(&self.pool, self.now_ns(), [early].into_iter());
        }
        let saved = self.save(journal, file, &dirty, inside, settling).map_err(|error| {
            self.note_all_dirty(ino, file, &dirty);
            // Before anybody is told: who hears of it may end the process, and the next one believes all that was stored under the witness.
            journal.revoke(&self.pool);
            Error::from(error)
        })?;
        let nothing = 0..0;
        let (in_place, inline, _room) = match saved {
            Saved::Nothing => (from_ref(&nothing), Vec::new(), None),
            Saved::InPlace => (&dirty[..], Vec::new(), None),
            Saved::Inline(inline, room) => (from_ref(&nothing), inline, Some(room)),
        };
        let settled = |place: &Range<u64>| Record::Settled {
            ino,
            through,
            at: place.start,
            blocks: place.end - place.start,
        };
        let settled = in_place.iter().map(settled);
        let times = Record::Change(times(inode));
        let has_inline = !inline.is_empty();
        let inline = inline.iter().map(|(at, bytes)| Record::Bytes { ino, at: *at, bytes });
        let group = journal.append_records(&self.pool, self.now_ns(), settled.chain([times]).chain(inline));
        if has_inline {
            // Relaxed: a commit that took bytes since has had the syncing lock in between.
            file.inlined.store(group, Ordering::Relaxed);
        }
        // Saved now. No commit takes a range while this thread has the syncing lock.
        file.saving.clear();
        let settle = |changed: u64| (changed <= through).then_some(0);
        // Fails when something changed meanwhile: it is settled next time.
        let _ = file.changed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, settle);
        Ok(())
    }

    /// Makes the bytes of some file blocks durable where they lie, or copies them for the log.
    fn save<'a>(
        &self,
        journal: &'a Journal,
        file: &BlockFile,
        dirty: &[Range<u64>],
        inside: Option<Pass<'_>>,
        settling: Settling,
    ) -> std::result::Result<Saved<'a>, MemoryError> {
        if dirty.is_empty() || is_planted(Planted::BytesNotPersisted) {
            return Ok(Saved::Nothing);
        }
        let memory = self.pool.memory();
        let blocks = blocks_in(dirty);
        let is_small =
            settling != Settling::InPlace && blocks.saturating_mul(BLOCK) <= memory.inline_bytes_max() as u64;
        // A log that is too long, or in a full pool, has no room for bytes.
        let room = || journal.promise_at_once(blocks * (BLOCK + RECORD_OF_BYTES_MAX));
        let Some(room) = (is_small && !journal.is_too_long()).then(room).flatten() else {
            self.persist_blocks(journal, file, dirty, inside)?;
            return Ok(Saved::InPlace);
        };
        let mut inline = Vec::new();
        for at in dirty.iter().cloned().flatten() {
            if let Some(block) = file.map.find_one(&self.nodes, at) {
                let Some(place) = memory.locate_one(block) else {
                    // Written since, and evicted.
                    self.persist_blocks(journal, file, dirty, inside)?;
                    return Ok(Saved::InPlace);
                };
                let mut copy = vec![0; BLOCK_BYTES];
                memory.load(place, 0, &mut copy)?;
                // A commit makes all bytes of files durable, and of other members those that are dirty then.
                if self.has_persistent_stores(block) {
                    journal.persist_data(&self.pool, block, BLOCK_BYTES)?;
                }
                inline.push((at, copy));
            }
        }
        Ok(Saved::Inline(inline, room))
    }

    /// Makes bytes of file blocks durable that are about to be taken out of a file's map, if they are not: a commit that runs has them settled, and finds
    /// those of persistent memory by the map. With the gate closed. A failure ends the log.
    pub(super) fn persist_unsaved(&self, file: &BlockFile, blocks: &Range<u64>) {
        let Some(journal) = self.written_log() else { return };
        for unsaved in [&file.dirty, &file.saving].into_iter().flat_map(Ranges::list) {
            let unsaved = unsaved.start.max(blocks.start)..unsaved.end.min(blocks.end);
            if unsaved.is_empty() {
                continue;
            }
            let persisted = file.each_placed(&self.nodes, unsaved, |block, blocks| {
                if !self.has_persistent_stores(block) {
                    return Ok(());
                }
                let bytes = usize::try_from(blocks * BLOCK).expect("mapped sizes fit a usize");
                journal.persist_data(&self.pool, block, bytes)
            });
            // `Journal::persist_data` has told it to the log.
            let _ = persisted;
        }
    }

    /// Whether a block's bytes are made durable by themselves, and not with all of its member's by a commit.
    fn has_persistent_stores(&self, block: Block) -> bool {
        let kind = self.pool.kind(block.member());
        !matches!(kind, Some(MemberKind::File | MemberKind::Block))
    }

    /// Makes the bytes of some file blocks durable where they lie; `inside` the gate, which it leaves, or with the gate closed.
    ///
    /// Blocks may be taken from the file meanwhile. They are not given out again before a commit has ended that makes them durable as well, or were
    /// made durable by whoever took them; and those that are copied elsewhere count there after a record that comes later than what is settled now.
    fn persist_blocks(
        &self,
        journal: &Journal,
        file: &BlockFile,
        ranges: &[Range<u64>],
        inside: Option<Pass<'_>>,
    ) -> std::result::Result<(), MemoryError> {
        let (mut on_disks, mut stored) = (Stretches::new(STRETCHES_MAX), Vec::new());
        let persist = |stored: &mut Vec<_>| {
            let mut each = stored.drain(..);
            each.try_for_each(|(block, bytes)| journal.persist_data(&self.pool, block, bytes))
        };
        for blocks in ranges {
            let walked = file.each_placed(&self.nodes, blocks.clone(), |block, blocks| {
                let bytes =
                    usize::try_from(blocks * BLOCK).expect("a placed extent is mapped, so its size fits a usize");
                if !self.has_persistent_stores(block) {
                    // There may be millions, and nothing more to learn of them once all members are persisted whole.
                    let is_enough = on_disks.add(block, bytes) && on_disks.have_whole(&self.pool.members_on_disks());
                    return if is_enough { Err(None) } else { Ok(()) };
                }
                stored.push((block, bytes));
                if stored.len() < STRETCHES_MAX {
                    Ok(())
                } else {
                    persist(&mut stored).map_err(Some)
                }
            });
            match walked {
                Ok(()) => {}
                Err(None) => break,
                Err(Some(error)) => return Err(error),
            }
        }
        // A disk may be slow, and frames are given back when all have left that are inside; and it takes a while to write a cache back.
        drop(inside);
        persist(&mut stored)?;
        let whole = on_disks
            .whole
            .iter()
            .map(|member| journal.persist_all(&self.pool, *member));
        let persisted = whole.fold(Ok(()), std::result::Result::and);
        journal.persist_each(&self.pool, on_disks.each).and(persisted)
    }

    /// Makes all bytes durable, appends that everything is settled, and makes the log durable.
    pub(super) fn settle_all(&self, journal: &Journal, slot: &Slot) -> Result<()> {
        let _in_hand = journal.in_hand();
        let through = journal.end();
        let mut listed = std::mem::take(&mut *journal.dirty.lock());
        listed.sort_unstable();
        listed.dedup();
        let is_settled = through <= journal.settled_all.load(Ordering::Relaxed);
        if listed.is_empty() && is_settled && !journal.has_quarantined() {
            // An error is told to everybody, whatever there is to do.
            return Ok(journal.force(&self.pool, 0)?);
        }
        let files: Vec<_> = listed.iter().filter_map(|ino| self.table.find(*ino)).collect();
        let taken: Vec<_> = files
            .iter()
            .filter_map(|inode| {
                let file = inode.blocks()?;
                // A sync of the file that goes on ends first: its range is durable then, or dirty again.
                let _one_at_a_time = file.syncing.lock();
                Some((inode, file, file.take_unsaved()))
            })
            .collect();
        self.after_taking(taken.iter().any(|(.., dirty)| !dirty.is_empty()));
        let mut result = self.persist_all(journal, slot, &taken);
        if result.is_err() && !journal.has_failed() {
            // Blocks that cannot be written, and that no file has any more, keep nothing back.
            journal.forget_freed(&self.pool, through);
            result = self.persist_all(journal, slot, &taken);
        }
        if let Err(error) = result {
            self.settle_each(journal, slot, &taken);
            journal.revoke(&self.pool);
            return Err(error.into());
        }
        // In a full pool there may be no room for the times of files that were overwritten: the next snapshot has them.
        let room = journal.promise(
            &self.pool,
            Effect::Frees,
            RECORDS_BYTES_MAX + files.len() as u64 * TIMES_BYTES_MAX,
        );
        let with_times = if room.is_some() { &files[..] } else { &[] };
        let times = with_times.iter().map(|inode| Record::Change(times(inode)));
        let records = times.chain([Record::SettledAll { through }]);
        let now = self.now_ns();
        let settled = journal.append_records(&self.pool, now, records);
        let mut again = Vec::new();
        for (inode, file, dirty) in &taken {
            // A sync beside this commit has put older bytes into the log, which this commit leaves there: what is in the place now is saved once more,
            // as who asked for this commit may have written it.
            if file.inlined.load(Ordering::Relaxed) > through && !dirty.is_empty() {
                self.note_all_dirty(inode.ino, file, dirty);
                again.push((*inode, *file));
            }
            // A sync that goes on has put its own range there. It does not wait here: it may want what this commit frees.
            if let Some(_none_goes_on) = file.syncing.try_lock() {
                file.saving.clear();
            }
            let settle = |changed: u64| (changed <= through).then_some(0);
            let _ = file.changed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, settle);
        }
        for (inode, file, _) in &taken {
            // It changed meanwhile, and was on the list, or seems unsaved: it stays there.
            if file.changed.load(Ordering::Relaxed) != 0 || !file.saving.is_empty() {
                list(&mut journal.dirty.lock(), inode.ino);
            }
        }
        for (inode, file) in again {
            self.settle_file(journal, slot, inode, file, Settling::IfNeeded)?;
        }
        self.force(journal, slot, None)?;
        // Nothing but what this appended, when nobody did meanwhile.
        let through = if settled == through + 1 { settled } else { through };
        journal.settled_all.store(through, Ordering::Relaxed);
        journal.release(&self.pool, through);
        Ok(())
    }

    /// Settles each file by itself, when a commit has failed; a file whose bytes cannot be written stays on the list. Members that failed come last.
    fn settle_each(&self, journal: &Journal, slot: &Slot, taken: &[Taken<'_>]) {
        /// Files whose bytes cannot be written, one behind the other, after which the others are not tried.
        const FAILURES_MAX: u32 = 16;
        let settle = |inode: &Inode, file: &BlockFile| {
            let promise = || journal.promise(&self.pool, Effect::Frees, RECORDS_BYTES_MAX);
            let room = (!journal.has_failed()).then(promise).flatten();
            // What is in the log twice makes that longer, which nothing shortens now.
            let is_settled = room.is_some() && self.settle_file(journal, slot, inode, file, Settling::InPlace).is_ok();
            // `saving` keeps a range that was not settled: the next commit takes it again.
            if !is_settled || file.changed.load(Ordering::Relaxed) != 0 || !file.saving.is_empty() {
                list(&mut journal.dirty.lock(), inode.ino);
            }
            is_settled
        };
        let force = || {
            if !journal.has_failed() {
                // An error is told by the caller in any case.
                let _ = self.force(journal, slot, None);
            }
        };
        let member_of = |inode: &Inode, file: &BlockFile, dirty: &[Range<u64>]| {
            let _inside = inode.enter(file, slot);
            let first = dirty.first()?;
            file.map.find_one(&self.nodes, first.start).map(Block::member)
        };
        let (mut failed, mut put_off) = (Vec::new(), Vec::new());
        for (inode, file, dirty) in taken {
            let member = member_of(inode, file, dirty);
            if member.is_some_and(|member| failed.contains(&member)) {
                put_off.push((*inode, *file));
            } else if !settle(inode, file) {
                failed.extend(member);
            }
        }
        force();
        if put_off.is_empty() {
            return;
        }
        let mut failures = 0;
        for (inode, file) in put_off {
            if failures == FAILURES_MAX {
                list(&mut journal.dirty.lock(), inode.ino);
            } else if settle(inode, file) {
                failures = 0;
            } else {
                failures += 1;
            }
        }
        force();
    }

    /// Makes the bytes of dirty ranges durable, or those of all members where that is one request.
    fn persist_all(&self, journal: &Journal, slot: &Slot, taken: &[Taken<'_>]) -> std::result::Result<(), MemoryError> {
        let members = self.pool.status().members;
        let is_disk = |member: &&MemberStatus| matches!(member.kind, MemberKind::File | MemberKind::Block);
        // All of them: bytes that only the log has so far come to their place.
        let files = members.iter().filter(is_disk);
        let persisted = files.clone().map(|member| journal.persist_all(&self.pool, member.id));
        // Also those behind one that fails.
        persisted.fold(Ok(()), std::result::Result::and)?;
        if files.count() == members.len() {
            return Ok(());
        }
        taken.iter().try_for_each(|(inode, file, dirty)| {
            let inside = inode.enter(file, slot);
            self.persist_blocks(journal, file, dirty, Some(inside))
        })
    }
}

/// A file with the ranges of it that a commit took.
type Taken<'a> = (&'a std::sync::Arc<Inode>, &'a BlockFile, Vec<Range<u64>>);

fn blocks_in(ranges: &[Range<u64>]) -> u64 {
    let blocks = ranges.iter().map(|range| range.end - range.start);
    blocks.fold(0, u64::saturating_add)
}

/// Most stretches of a file that a sync lists (1.5 MiB): between two dirty blocks there may be millions that are clean.
const STRETCHES_MAX: usize = 65_536;

/// Stretches of a file that are to be made durable; where there are too many, members of which all bytes are. That costs by what is dirty, and fails for a
/// block of any file.
struct Stretches {
    each: Vec<(Block, usize)>,
    whole: Vec<MemberId>,
    most: usize,
}

impl Stretches {
    fn new(most: usize) -> Self {
        Self {
            each: Vec::new(),
            whole: Vec::new(),
            most,
        }
    }

    /// Whether all of these are persisted whole; false for none.
    fn have_whole(&self, members: &[MemberId]) -> bool {
        !members.is_empty() && members.iter().all(|member| self.whole.contains(member))
    }

    /// Returns whether the member is to be persisted whole with that.
    fn add(&mut self, block: Block, bytes: usize) -> bool {
        let member = block.member();
        if self.whole.contains(&member) {
            return false;
        }
        if self.each.len() < self.most {
            self.each.push((block, bytes));
            false
        } else {
            self.each.retain(|(block, _)| block.member() != member);
            self.whole.push(member);
            true
        }
    }
}

/// A mark that nothing of a file is unsettled.
fn settled_wholly(ino: Ino) -> Record<'static> {
    Record::Settled {
        ino,
        through: u64::MAX,
        at: 0,
        blocks: 0,
    }
}

pub(super) fn times(inode: &Inode) -> Change<'static> {
    // Relaxed: each stands alone.
    Change::Times {
        ino: inode.ino,
        atime_ns: Some(inode.atime_ns.load(Ordering::Relaxed)),
        mtime_ns: Some(inode.mtime_ns.load(Ordering::Relaxed)),
        ctime_ns: Some(inode.ctime_ns.load(Ordering::Relaxed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_files_grows_with_the_files() {
        let mut files = Vec::new();
        for _ in 0..100 {
            (0..3000).for_each(|ino| list(&mut files, Ino(ino)));
        }
        assert!(files.len() < 9000, "{} entries for 3000 files", files.len());
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), 3000);
    }

    #[test]
    fn members_of_too_many_stretches_are_persisted_whole() {
        let block = |member, index| Block::new(MemberId(member), index);
        let mut stretches = Stretches::new(4);
        for index in 0..4 {
            assert!(!stretches.add(block(u16::from(index == 1), index * 10), 4096));
        }
        assert_eq!((stretches.each.len(), &stretches.whole[..]), (4, &[][..]));
        assert!(stretches.add(block(0, 100), 4096));
        assert!(!stretches.add(block(0, 200), 4096));
        assert_eq!(stretches.each, [(block(1, 10), 4096)]);
        let made_whole = (0..4).filter(|index| stretches.add(block(2, *index), 4096));
        assert_eq!(made_whole.count(), 1);
        assert_eq!(stretches.whole, [MemberId(0), MemberId(2)]);
        assert!(stretches.have_whole(&[MemberId(2), MemberId(0)]));
        assert!(!stretches.have_whole(&[MemberId(0), MemberId(1)]));
        assert!(!stretches.have_whole(&[]), "some cannot be persisted whole");
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    #[test]
    fn a_range_stays_in_sight_until_it_is_saved() {
        let file = BlockFile::default();
        assert!(file.dirty.add(3..5, true));
        assert_eq!(file.take_unsaved(), one(3..5));
        // Nothing is dirty while it is saved, and none was saved in the end; a look at both finds the range all the time.
        assert!(file.dirty.is_empty());
        assert_eq!(file.saving.list(), one(3..5));
        assert_eq!(file.take_unsaved(), one(3..5));
        assert!(file.dirty.add(9..10, true));
        assert_eq!(file.take_unsaved(), one(3..10));
        file.saving.clear();
        assert!(file.take_unsaved().is_empty());
        assert!(!file.dirty.add(5..5, true) && file.dirty.add(7..8, true));
        assert_eq!(file.take_unsaved(), one(7..8));
    }
}
