//! Write-back: dirty frames go to their disks, in the order of the disks' blocks.

use super::space::Slice;
use super::{Cache, Cached, Disk};
use crate::{Block, Disks, MemoryError};
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One of so many frames may be dirty before some are written back; a commit writes all.
const DIRTY_SHARE: u64 = 10;

/// Writes under way to a disk, and whether all are durable that ended.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// Stretches of blocks that some thread is writing.
    now: Mutex<Vec<Range<u64>>>,
    ended: Condvar,
    /// Some writes are not durable.
    pub(super) is_unflushed: AtomicBool,
    /// Held while they are made durable.
    flushing: Mutex<()>,
    /// Writes that failed.
    failures: AtomicU64,
    /// Where those who write a little go on.
    cursor: AtomicU64,
}

impl Saving {
    fn begin(&self, range: Range<u64>) {
        self.now.lock().push(range);
    }

    fn end(&self, range: &Range<u64>) {
        let mut now = self.now.lock();
        let at = now.iter().position(|other| other == range);
        now.swap_remove(at.expect("it was begun"));
        self.ended.notify_all();
    }

    /// Waits for writes of blocks in `range` that have begun.
    fn wait(&self, range: &Range<u64>) {
        let mut now = self.now.lock();
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let mut waited_for: Vec<_> = now.iter().filter(|other| overlaps(other)).cloned().collect();
        loop {
            waited_for.retain(|range| now.contains(range));
            if waited_for.is_empty() {
                return;
            }
            self.ended.wait(&mut now);
        }
    }
}

impl<M: Disks> Cached<M> {
    /// Makes all bytes of blocks durable that were stored before the call, but for those in the tail of the log.
    pub(super) fn save_range(&self, (cache, disk): (&Cache, &Disk), range: Range<u64>) -> Result<(), MemoryError> {
        let failures = disk.saving.failures.load(Ordering::SeqCst);
        let mut at = range.start;
        while let Some(first) = disk.index.next_dirty(at, range.end) {
            at = self.save_run((cache, disk), first, range.end, true)?.max(first);
            if at == first {
                // It is dirty, and being written.
                disk.saving.wait(&(first..first + 1));
            }
        }
        disk.saving.wait(&range);
        if disk.saving.failures.load(Ordering::SeqCst) != failures {
            return Err(MemoryError);
        }
        self.flush(disk)
    }

    fn flush(&self, disk: &Disk) -> Result<(), MemoryError> {
        // Whoever does it now may have begun before our writes ended.
        let _one_at_a_time = disk.saving.flushing.lock();
        if !disk.saving.is_unflushed.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        self.below.flush(disk.member).inspect_err(|_| {
            disk.saving.is_unflushed.store(true, Ordering::SeqCst);
            disk.saving.failures.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// Writes dirty blocks that lie one behind the other, `first` and those behind it; gives the block behind the last. The write is forced where
    /// `may_force` and nothing else is to be made durable.
    fn save_run(
        &self,
        (cache, disk): (&Cache, &Disk),
        first: u64,
        end: u64,
        may_force: bool,
    ) -> Result<u64, MemoryError> {
        let most = first..end.min(first + M::BLOCKS_MAX as u64);
        disk.saving.begin(most.clone());
        let saved = self.save_begun((cache, disk), most.clone(), end, may_force);
        disk.saving.end(&most);
        saved
    }

    fn save_begun(
        &self,
        (cache, disk): (&Cache, &Disk),
        most: Range<u64>,
        end: u64,
        may_force: bool,
    ) -> Result<u64, MemoryError> {
        let first = most.start;
        let frames: Vec<u32> = most.map_while(|at| disk.index.begin_save(at)).collect();
        if frames.is_empty() {
            return Ok(first);
        }
        // Stores of threads that found one of them dirty are read below.
        cache.slots.barrier_outside();
        let behind = first + frames.len() as u64;
        let places: Vec<Block> = frames.iter().map(|frame| cache.block(*frame)).collect();
        let is_alone =
            || !disk.saving.is_unflushed.load(Ordering::SeqCst) && disk.index.next_dirty(behind, end).is_none();
        let forced = may_force && is_alone();
        let written = self.below.write(Block::new(disk.member, first), &places, forced);
        if written.is_err() {
            disk.saving.failures.fetch_add(1, Ordering::SeqCst);
        } else if !forced {
            // Before the frames are clean: whoever finds them so makes it durable.
            disk.saving.is_unflushed.store(true, Ordering::SeqCst);
        }
        for (at, frame) in (first..).zip(&frames) {
            let slice = cache.slice(*frame);
            slice.dirty.fetch_sub(1, Ordering::Relaxed);
            if written.is_ok() {
                slice.saved.fetch_add(1, Ordering::Relaxed);
                disk.index.end_save(at, |frame| cache.stamp(frame));
            } else if disk.index.fail_save(at) {
                slice.dirty.fetch_add(1, Ordering::Relaxed);
            }
        }
        written.map(|()| behind)
    }

    /// Writes some dirty blocks, a batch of each disk, where the last time ended; gives how many.
    pub(super) fn save_some(&self, cache: &Cache) -> Result<u64, MemoryError> {
        let (mut saved, mut failed) = (0, None);
        let members = cache.members.lock().clone();
        for disk in members
            .iter()
            .filter_map(|member| cache.disks[usize::from(member.0)].get())
        {
            let from = disk.saving.cursor.load(Ordering::Relaxed);
            let end = disk.index.blocks();
            let next = disk.index.next_dirty(from, end);
            let Some(first) = next.or_else(|| disk.index.next_dirty(0, end)) else {
                continue;
            };
            let behind = self.save_run((cache, disk), first, end, false);
            let next = *behind.as_ref().unwrap_or(&first);
            disk.saving.cursor.store(next.max(first + 1), Ordering::Relaxed);
            saved += next - first;
            failed = failed.or(behind.err());
        }
        failed.map_or(Ok(saved), Err)
    }

    /// Writes some dirty blocks when too many frames are dirty. True when there are more to be written.
    ///
    /// # Errors
    /// [`MemoryError`] when some could not be written: they are dirty still.
    pub fn write_back(&self) -> Result<bool, MemoryError> {
        let Some(cache) = &self.cache else { return Ok(false) };
        let all: u64 = cache.slices.iter().map(|slice| u64::from(slice.frames)).sum();
        if cache.dirty() * DIRTY_SHARE <= all {
            return Ok(false);
        }
        Ok(self.save_some(cache)? > 0)
    }
}

impl Cache {
    /// Dirty frames.
    pub(super) fn dirty(&self) -> u64 {
        let slices = self.slices.iter();
        slices.map(Slice::dirty_frames).sum()
    }
}
