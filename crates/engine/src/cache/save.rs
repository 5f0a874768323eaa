//! Write-back: dirty frames go to their disks, in the order of the disks' blocks.
//!
//! A block that could not be written stays dirty, and is written again with the next ones. Each sync of the block fails until it was written; syncs of
//! other blocks do not. Requests are shorter for a while after a failure, so that a block that cannot be written keeps few others back.
//!
//! Write-back takes nothing from the heap, but for a list of a commit: memory may be short because frames are dirty.

use super::failures::{Failures, KEPT as FAILURES_KEPT};
use super::{Cache, Cached, Disk};
use crate::log::planted::{Planted, is_planted};
use crate::{BLOCK_BYTES, Block, Disks, FrameWrite, MemoryError};
use homenode_shared::{FrameIndex, first_among};
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Divisor of the number of frames: write-back begins when more frames than the quotient are dirty. A commit writes all dirty blocks.
const DIRTY_SHARE: u64 = 10;
/// Dirty blocks come into no more than three of four frames: bytes can be read while a disk cannot be written.
const DIRTY_SHARE_MAX: (u64, u64) = (3, 4);
/// Parts of a block in which what stores owe is counted.
const OWED_PARTS: u64 = 64;
/// Most blocks that a thread writes at the same time.
const BATCH_BLOCKS: usize = 256;
/// Most runs of a batch, a request each.
const RUNS_MAX: usize = 32;
/// Threads that write a little to one disk at a time: others do not wait for one that is slow.
const SAVERS_MAX: usize = 4;
/// Writes that fail in a row, by any threads, after which a sync and a thread that waits for room give up.
const FAILURES_MAX: u32 = 16;
/// Rounds of a sync whose blocks others write together with one that cannot be written.
const ROUNDS_MAX: u32 = 4;
/// Looks at a block that somebody evicts, before a sync sleeps between them.
const YIELDS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

/// Writes to a disk, and whether all are durable that ended.
#[derive(Debug)]
pub(super) struct Saving {
    writes: Mutex<Writes>,
    ended: Condvar,
    /// Some writes are not durable.
    pub(super) is_unflushed: AtomicBool,
    /// Some may be lost: a flush failed behind them.
    pub(super) has_lost: AtomicBool,
    /// Held while they are made durable.
    flushing: Mutex<()>,
    /// Dirty frames. Relaxed, here and below: figures.
    pub(super) dirty: AtomicI64,
    /// Blocks that are to be written before others become dirty, in parts.
    owed: AtomicI64,
    /// Writes that failed since one succeeded.
    failed_in_a_row: AtomicU32,
    /// Most blocks of the next batch.
    batch_blocks: AtomicU32,
    /// Where those who write a little go on.
    cursor: AtomicU64,
}

#[derive(Debug)]
struct Writes {
    begun: u64,
    /// Each with its number.
    under_way: Vec<(u64, Range<u64>)>,
    /// Batches that they belong to.
    batches: usize,
    failures: Failures,
}

/// Result of writing some dirty blocks up to `behind`.
struct Saved {
    behind: u64,
    blocks: usize,
    result: Result<(), MemoryError>,
}

impl Default for Saving {
    fn default() -> Self {
        let writes = Writes {
            begun: 0,
            under_way: Vec::with_capacity(FAILURES_KEPT),
            batches: 0,
            failures: Failures::default(),
        };
        Self {
            writes: Mutex::new(writes),
            ended: Condvar::new(),
            is_unflushed: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            flushing: Mutex::default(),
            dirty: AtomicI64::new(0),
            owed: AtomicI64::new(0),
            failed_in_a_row: AtomicU32::new(0),
            batch_blocks: AtomicU32::new(u32::MAX),
            cursor: AtomicU64::new(0),
        }
    }
}

impl Saving {
    fn begin(&self, blocks: Range<u64>) -> u64 {
        let mut writes = self.writes.lock();
        writes.begun += 1;
        let number = writes.begun;
        writes.under_way.push((number, blocks));
        number
    }

    /// Ends a write; `failed` are the blocks that are dirty still.
    fn end(&self, number: u64, failed: Option<Range<u64>>) {
        let mut writes = self.writes.lock();
        let at = writes.under_way.iter().position(|(other, _)| *other == number);
        writes.under_way.swap_remove(at.expect("begun above"));
        failed.iter().for_each(|blocks| writes.failures.note(blocks));
        self.ended.notify_all();
    }

    /// Waits for writes of some of `blocks` that have begun; false when there are none.
    fn wait(&self, blocks: &Range<u64>) -> bool {
        let mut writes = self.writes.lock();
        let (last, mut has_waited) = (writes.begun, false);
        let is_meant = |(number, other): &(u64, Range<u64>)| {
            *number <= last && other.start < blocks.end && blocks.start < other.end
        };
        while writes.under_way.iter().any(is_meant) {
            has_waited = true;
            self.ended.wait(&mut writes);
        }
        has_waited
    }

    /// Waits until a write ends, whether one did in time; `None` when there is none.
    pub(super) fn ends_within(&self, most: Duration) -> Option<bool> {
        let mut writes = self.writes.lock();
        let is_written = !writes.under_way.is_empty();
        is_written.then(|| !self.ended.wait_for(&mut writes, most).timed_out())
    }

    /// Whether somebody writes to the disk.
    pub(super) fn is_under_way(&self) -> bool {
        self.writes.lock().batches > 0
    }

    /// Failed writes so far.
    pub(super) fn failures(&self) -> u64 {
        self.writes.lock().failures.count()
    }

    /// Whether so many writes failed in a row that waiting for another one is of no use.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failed_in_a_row.load(Ordering::Relaxed) >= FAILURES_MAX
    }

    /// Makes the next batches smaller, or larger again, after one of so many blocks.
    fn adapt(&self, is_written: bool, blocks: usize) {
        if !is_written {
            self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
        } else if self.failed_in_a_row.load(Ordering::Relaxed) > 0 {
            self.failed_in_a_row.store(0, Ordering::Relaxed);
        }
        let now = self.batch_blocks.load(Ordering::Relaxed);
        let next = match is_written {
            true => now.saturating_mul(2),
            false => u32::try_from(blocks / 4).unwrap_or(now).max(1),
        };
        if next != now {
            self.batch_blocks.store(next, Ordering::Relaxed);
        }
    }
}

impl<M: Disks> Cached<M> {
    /// Writes all bytes that were stored before the call; [`Cached::flush`] makes them durable then.
    pub(super) fn save_bytes(
        &self,
        disk: (&Cache, &Disk),
        at: Block,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let first = at.index() + (offset / BLOCK_BYTES) as u64;
        let end = offset + bytes;
        let range = first..at.index() + end.div_ceil(BLOCK_BYTES) as u64;
        self.save_tail(disk, &range, end.is_multiple_of(BLOCK_BYTES))?;
        self.save_range(disk, range)
    }

    /// [`Cached::save_bytes`] of whole blocks, but for those in the tail of the log.
    pub(super) fn save_range(&self, disk: (&Cache, &Disk), range: Range<u64>) -> Result<(), MemoryError> {
        self.save_rounds(disk, &range, |_| None)
    }

    /// [`Cached::save_range`] of all blocks, but for what becomes dirty behind those that it has come to: beside writers who are faster than the disk it
    /// would never end.
    pub(super) fn save_all(&self, disk: (&Cache, &Disk)) -> Result<(), MemoryError> {
        self.save_rounds(disk, &(0..disk.1.index.blocks()), |index| Some(index.dirty_groups()))
    }

    /// In each round `among` tells the groups of blocks to be looked at.
    fn save_rounds(
        &self,
        (cache, disk): (&Cache, &Disk),
        range: &Range<u64>,
        among: impl Fn(&FrameIndex) -> Option<Vec<u32>>,
    ) -> Result<(), MemoryError> {
        for _ in 0..ROUNDS_MAX {
            let before = disk.saving.failures();
            // Behind that: a block that is being written now is either on the disk then, or its failure is met, and it is dirty in the next round.
            let among = among(&disk.index);
            self.save_dirty((cache, disk), range, among.as_deref())?;
            if !is_planted(Planted::OthersNotAwaited) {
                disk.saving.wait(range);
            }
            if !disk.saving.writes.lock().failures.met(before, range) {
                return Ok(());
            }
            // It was written with others, one of which cannot be: it is dirty again.
        }
        Err(MemoryError)
    }

    /// Writes the dirty blocks of a range, alone in the end where that fails; an error when one cannot be written.
    fn save_dirty(
        &self,
        (cache, disk): (&Cache, &Disk),
        range: &Range<u64>,
        among: Option<&[u32]>,
    ) -> Result<(), MemoryError> {
        // A disk that takes nothing may take long for each.
        let failures_max = if disk.saving.is_hopeless() { 2 } else { FAILURES_MAX };
        let (mut at, mut looks, mut failures, mut result) = (range.start, 0, 0, Ok(()));
        while let Some(first) = disk.index.next_dirty(at, range.end) {
            match among.map_or(Some(first), |groups| first_among(groups, first)) {
                Some(meant) if meant == first => {}
                Some(meant) => {
                    at = meant;
                    continue;
                }
                None => break,
            }
            let saved = self.save_batch((cache, disk), first..range.end);
            at = saved.behind;
            if saved.result.is_err() {
                failures += 1;
                // Again, with fewer blocks: so that those beside one that cannot be written are. Then what lies behind it.
                let is_alone = saved.blocks <= 1;
                if is_alone || failures >= failures_max {
                    result = Err(MemoryError);
                }
                if failures >= failures_max {
                    break;
                }
                at = if is_alone { first + 1 } else { first };
                continue;
            }
            // It is dirty, and being written: or looked at just now by one who evicts.
            if saved.blocks == 0 && !disk.saving.wait(&(first..first + 1)) {
                looks += 1;
                match looks {
                    ..YIELDS => std::thread::yield_now(),
                    // That thread may be one to which this one's priority leaves no time.
                    _ => std::thread::sleep(PAUSE),
                }
            }
        }
        result
    }

    /// Writes what is dirty of some ranges at the same time, as far as that succeeds at once and nobody else writes it: a sync of them has less to do.
    pub(super) fn save_together(&self, (cache, disk): (&Cache, &Disk), ranges: impl Iterator<Item = Range<u64>>) {
        let mut batch = self.batch((cache, disk));
        for mut range in ranges {
            while let Some(behind) = batch.take(range.clone()) {
                if batch.count == 0 {
                    break;
                }
                if self.write_batch(&mut batch).is_err() {
                    return;
                }
                // Before the next one begins, which has a single run else.
                drop(batch);
                batch = self.batch((cache, disk));
                range.start = behind;
            }
        }
        // A sync that follows hears of the failure of what it needs.
        let _ = self.write_batch(&mut batch);
    }

    /// A batch of many runs, if there is no other one and the disk writes several at the same time: else of one, so that nobody waits for blocks that are not being
    /// written.
    fn batch<'a>(&self, (cache, disk): (&'a Cache, &'a Disk)) -> Batch<'a> {
        let mut writes = disk.saving.writes.lock();
        let most = if writes.batches == 0 { RUNS_MAX } else { 1 };
        writes.batches += 1;
        drop(writes);
        Batch::new(cache, disk, most.min(self.below.writes_at_a_time(disk.member)))
    }

    /// Makes all writes durable that have ended.
    pub(super) fn flush(&self, disk: &Disk) -> Result<(), MemoryError> {
        // Whoever does it now may have begun before our writes ended.
        let _one_at_a_time = disk.saving.flushing.lock();
        if disk.saving.has_lost.load(Ordering::SeqCst) {
            return Err(MemoryError);
        }
        if !disk.saving.is_unflushed.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        if is_planted(Planted::NotFlushed) {
            return Ok(());
        }
        self.below.flush(disk.member).inspect_err(|_| {
            // The disk tells it once, and not of which.
            disk.saving.has_lost.store(true, Ordering::SeqCst);
        })
    }

    /// Writes dirty blocks of a range, the first ones.
    fn save_batch(&self, (cache, disk): (&Cache, &Disk), range: Range<u64>) -> Saved {
        let mut batch = self.batch((cache, disk));
        let behind = batch.take(range.clone()).unwrap_or(range.end);
        let result = self.write_batch(&mut batch);
        Saved {
            behind,
            blocks: batch.count,
            result,
        }
    }

    fn write_batch(&self, batch: &mut Batch<'_>) -> Result<(), MemoryError> {
        const { assert!(M::BLOCKS_MAX >= BATCH_BLOCKS, "a run is one request") };
        const {
            assert!(
                FAILURES_KEPT >= 4 * RUNS_MAX,
                "a batch that fails takes no other failures away"
            )
        };
        let Batch { cache, disk, .. } = *batch;
        if batch.count == 0 {
            return Ok(());
        }
        // Stores of threads that found one of them dirty are read below.
        cache.slots.barrier_outside();
        let mut writes: [FrameWrite<'_>; RUNS_MAX] = std::array::from_fn(|nth| FrameWrite {
            first: Block::new(disk.member, batch.runs[nth].first),
            frames: &batch.places[batch.runs[nth].places()],
            is_written: false,
        });
        let writes = &mut writes[..batch.run_count];
        self.below.write_each(writes);
        let mut result = Ok(());
        for (run, write) in batch.runs.iter_mut().zip(writes) {
            run.is_written = write.is_written;
            if !run.is_written {
                result = Err(MemoryError);
            }
        }
        result
    }

    /// Writes some dirty blocks of a disk, a batch, where the last time ended; gives how many.
    ///
    /// # Errors
    /// [`MemoryError`] when they could not be written.
    pub(super) fn save_some_of(&self, (cache, disk): (&Cache, &Disk)) -> Result<u64, MemoryError> {
        let savers = disk.saving.writes.lock().batches;
        let from = disk.saving.cursor.load(Ordering::Relaxed);
        let end = disk.index.blocks();
        let next = || {
            disk.index
                .next_dirty(from, end)
                .or_else(|| disk.index.next_dirty(0, end))
        };
        let Some(first) = (savers < SAVERS_MAX).then(next).flatten() else {
            return Ok(0);
        };
        let saved = self.save_batch((cache, disk), first..end);
        disk.saving.cursor.store(saved.behind.max(first + 1), Ordering::Relaxed);
        saved.result.map(|()| saved.blocks as u64)
    }

    /// Writes some dirty blocks, a batch of each disk that is meant; gives how many.
    ///
    /// # Errors
    /// [`MemoryError`] when none of those that it tried could be written.
    pub(super) fn save_some(&self, cache: &Cache, is_meant: impl Fn(&Disk) -> bool) -> Result<u64, MemoryError> {
        let (mut saved, mut failed) = (0, None);
        cache.each_disk(|disk| {
            if !is_meant(disk) {
                return;
            }
            match self.save_some_of((cache, disk)) {
                Ok(blocks) => saved += blocks,
                Err(error) => failed = Some(error),
            }
        });
        failed.filter(|_| saved == 0).map_or(Ok(saved), Err)
    }

    /// Writes some dirty blocks of the disks at home by a slice when too many frames are dirty: of the `nth` part of these disks, of so many parts. True when
    /// there are more to be written. Disks that take nothing are left to commits, and their frames are not counted: others would be written all the time.
    ///
    /// # Errors
    /// [`MemoryError`] when none could be written: they are dirty still.
    pub fn write_back(&self, slice: usize, (nth, parts): (usize, usize)) -> Result<bool, MemoryError> {
        let Some(cache) = &self.cache else { return Ok(false) };
        let mut dirty = 0;
        cache.each_disk(|disk| {
            dirty += if disk.saving.is_hopeless() {
                0
            } else {
                count(&disk.saving.dirty)
            };
        });
        if dirty * DIRTY_SHARE <= cache.frames {
            return Ok(false);
        }
        let at_home = Cell::new(0);
        let is_meant = |disk: &Disk| {
            cache.number_of(disk.home) == slice
                && at_home.replace(at_home.get() + 1) % parts == nth
                && !disk.saving.is_hopeless()
        };
        Ok(self.save_some(cache, is_meant)? > 0)
    }
}

/// Frames that are being written. Dropping makes them clean after a write that succeeded, and else dirty again: also when the writer panics.
struct Batch<'a> {
    cache: &'a Cache,
    disk: &'a Disk,
    frames: [u32; BATCH_BLOCKS],
    /// The frames as blocks of their members.
    places: [Block; BATCH_BLOCKS],
    count: usize,
    /// Most blocks.
    most: usize,
    runs: [Run; RUNS_MAX],
    run_count: usize,
    /// Most runs.
    runs_max: usize,
}

/// Blocks that lie one behind the other.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Number of the write.
    number: u64,
    first: u64,
    /// Its frames among those of the batch.
    from: usize,
    count: usize,
    is_written: bool,
}

impl Run {
    fn places(&self) -> Range<usize> {
        self.from..self.from + self.count
    }

    fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.count as u64
    }
}

impl<'a> Batch<'a> {
    fn new(cache: &'a Cache, disk: &'a Disk, runs_max: usize) -> Self {
        let most = disk.saving.batch_blocks.load(Ordering::Relaxed) as usize;
        Self {
            cache,
            disk,
            frames: [0; BATCH_BLOCKS],
            places: [Block::new(disk.member, 0); BATCH_BLOCKS],
            count: 0,
            most: most.min(BATCH_BLOCKS),
            runs: [Run::default(); RUNS_MAX],
            run_count: 0,
            runs_max,
        }
    }

    /// Takes dirty blocks of a range; returns where it stopped, because it has enough or the block there is held by somebody else.
    fn take(&mut self, range: Range<u64>) -> Option<u64> {
        let Self { cache, disk, .. } = *self;
        let mut at = range.start;
        while let Some(first) = disk.index.next_dirty(at, range.end) {
            if self.count == self.most || self.run_count == self.runs_max {
                return Some(first);
            }
            let most = first..range.end.min(first + (self.most - self.count) as u64);
            // Before a block is dirty no more: who finds it so waits for the write.
            let number = disk.saving.begin(most.clone());
            let from = self.count;
            for frame in most.map_while(|at| disk.index.begin_save(at)) {
                self.frames[self.count] = frame;
                self.places[self.count] = cache.block(frame);
                self.count += 1;
            }
            let count = self.count - from;
            if count == 0 {
                disk.saving.end(number, None);
                return Some(first);
            }
            self.runs[self.run_count] = Run {
                number,
                first,
                from,
                count,
                is_written: false,
            };
            self.run_count += 1;
            at = first + count as u64;
        }
        None
    }

    fn end(&self, run: &Run) {
        let Self { cache, disk, .. } = *self;
        if run.is_written {
            // Before the frames are clean: whoever finds them so makes it durable.
            disk.saving.is_unflushed.store(true, Ordering::SeqCst);
        }
        let is_clean = run.is_written || is_planted(Planted::FailedIsClean);
        for (at, frame) in run.blocks().zip(&self.frames[run.places()]) {
            cache.note_clean(disk, *frame);
            if is_clean {
                cache.slice(*frame).saved.fetch_add(1, Ordering::Relaxed);
                disk.index.end_save(at, |frame| cache.stamp(frame));
            } else if disk.index.fail_save(at) {
                cache.note_dirty(disk, *frame);
            }
        }
        disk.saving.end(run.number, (!run.is_written).then(|| run.blocks()));
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let runs = &self.runs[..self.run_count];
        runs.iter().for_each(|run| self.end(run));
        let saving = &self.disk.saving;
        if self.count > 0 {
            saving.adapt(runs.iter().all(|run| run.is_written), self.count);
        }
        saving.writes.lock().batches -= 1;
    }
}

impl Cache {
    /// Calls `act` for each disk. Takes nothing from the heap.
    fn each_disk(&self, mut act: impl FnMut(&Disk)) {
        for nth in 0.. {
            let member = self.members.lock().get(nth).copied();
            let Some(member) = member else { break };
            self.disks[usize::from(member.0)]
                .get()
                .into_iter()
                .for_each(|disk| act(disk));
        }
    }

    /// Dirty frames.
    pub(super) fn dirty(&self) -> u64 {
        self.slices.iter().map(|slice| count(&slice.dirty)).sum()
    }

    /// Counts a frame that became dirty. From half of the most on a part of a block is owed for it, and a whole one in the end: so those who store become
    /// as slow as the disk little by little.
    pub(super) fn note_dirty(&self, disk: &Disk, frame: u32) {
        self.slice(frame).dirty.fetch_add(1, Ordering::Relaxed);
        disk.saving.dirty.fetch_add(1, Ordering::Relaxed);
        let (most, dirty) = (self.dirty_max(), self.dirty());
        if dirty > most / 2 {
            let parts = (dirty - most / 2) * OWED_PARTS / most.div_ceil(2).max(1);
            let parts = i64::try_from(parts.min(OWED_PARTS)).expect("at most OWED_PARTS");
            disk.saving.owed.fetch_add(parts, Ordering::Relaxed);
        }
    }

    /// Most frames that may be dirty.
    fn dirty_max(&self) -> u64 {
        self.frames * DIRTY_SHARE_MAX.0 / DIRTY_SHARE_MAX.1
    }

    /// Whether a request is owed before others of a disk's blocks become dirty.
    fn is_in_debt(&self, disk: &Disk) -> bool {
        let request = (BATCH_BLOCKS as u64).min(self.dirty_max() / 16).max(1);
        count(&disk.saving.owed) >= request * OWED_PARTS && count(&disk.saving.dirty) > 0
    }

    /// Counts a frame that is dirty no more.
    pub(super) fn note_clean(&self, disk: &Disk, frame: u32) {
        self.slice(frame).dirty.fetch_sub(1, Ordering::Relaxed);
        disk.saving.dirty.fetch_sub(1, Ordering::Relaxed);
        if disk.saving.owed.load(Ordering::Relaxed) > 0 {
            disk.saving.owed.fetch_sub(OWED_PARTS.cast_signed(), Ordering::Relaxed);
        }
    }

    /// How many more blocks of a disk may become dirty. Of several disks, none takes more than twice what it leaves to all: so one that is slow, or cannot be
    /// written, keeps no other back.
    pub(super) fn room_for_dirt(&self, disk: &Disk) -> u64 {
        if self.is_in_debt(disk) {
            return 0;
        }
        let left = self.dirty_max().saturating_sub(self.dirty());
        // Relaxed: a figure.
        if self.disk_count.load(Ordering::Relaxed) < 2 {
            return left;
        }
        // Of `n` more as many are left less: dirty + n <= 2 (left - n).
        (2 * left)
            .saturating_sub(count(&disk.saving.dirty))
            .div_ceil(3)
            .min(left)
    }
}

/// A number of frames, which are counted after they became what is counted: others may have been faster.
pub(super) fn count(frames: &AtomicI64) -> u64 {
    u64::try_from(frames.load(Ordering::Relaxed)).unwrap_or(0)
}
