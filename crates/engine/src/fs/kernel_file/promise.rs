//! Reservations: space that fallocate promised to a kernel body, and that no thread has written yet.
//!
//! A reservation places nothing: the first writer decides a page's node. The kernel knows no reservations, so the pool counts the blocks as
//! reserved (`pool::lend`). When little space is left, fallocate or [`Fs::keep_promises`] has the kernel allocate them, on the node of the calling
//! thread. A reservation breaks only if writers fill the margin within one period, or while much is being allocated
//! (`Pool::is_time_for_promises`).
//!
//! Below the end of a file, allocating changes no times and waits for no writer. Beyond the end only fallocate(2) allocates; it changes times and
//! may wait for ever, so a separate thread does it. While it waits, the file's other reservations are not allocated either.

mod count;
mod keep;
mod ranges;
use super::KernelFile;
use crate::fs::block_file::FILE_BYTES_MAX;
use crate::fs::{Error, Fs, Ino, Result};
use crate::pool::Pool;
use crate::{BLOCK_BYTES, Clock, Memory};
pub(in crate::fs) use count::Promising;
use count::{CALL_EFFORT, STEP_PAGES};
pub use keep::Promised;
use ranges::{outside, piece_count, sum, with};
use std::ops::Range;
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Ranges of a file that are promised apart from each other, at most; beyond them room is allocated at once. 16 bytes each, which nobody
/// is charged: each has a block of the pool booked.
const RANGES_MAX: usize = 1024;
/// Room besides all promises and half of them that makes them real when less is left: 64 MiB, what writers at 13 GB/s take in 5 ms.
pub(super) const MARGIN_BLOCKS: u64 = 16_384;
/// Blocks that one step of allocating takes, a few milliseconds: 16 MiB.
const STEP_BLOCKS: u64 = 4096;

/// Longest wait of a mount's end for a thread that changes a file's promises, more than its steps take.
const ABANDON_PATIENCE: Duration = Duration::from_millis(100);

/// Promises to one file.
#[derive(Debug, Default)]
pub(super) struct Promise {
    /// In file blocks: ascending, apart from each other.
    ranges: Vec<Range<u64>>,
    /// Blocks of them that take no room yet, as the pool counts them.
    missing: u64,
    /// Blocks by which that number was raised, all times together.
    raised: u64,
    /// Both before the fallocate under way, which comes in steps.
    before: Option<(Vec<Range<u64>>, u64)>,
}

/// How room for a range is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    Booked,
    /// Too many ranges are booked: it has to be allocated.
    Unbooked,
}

impl KernelFile {
    /// Begins a fallocate, or goes on with it; returns how far it came: `done`, or 0 if what it has promised was taken back.
    pub(super) fn begin_steps(&self, done: u64) -> u64 {
        let mut promise = self.promise.lock();
        if promise.before.is_none() {
            promise.before = Some((promise.ranges.clone(), promise.missing));
            return 0;
        }
        // Another thread may begin the same call again, from 0: what its first step has promised is not from before the call.
        done
    }

    /// Ends a fallocate that has come to its end.
    pub(super) fn end_steps(&self) {
        self.promise.lock().before = None;
    }

    /// The first blocks of `rest` whose room a call finds in a step: all of them where the file has few blocks to count.
    pub(super) fn countable(&self, rest: &Range<u64>) -> Range<u64> {
        match self.file.status().unwrap_or_default().blocks {
            ..=STEP_PAGES => rest.clone(),
            _ => rest.start..rest.end.min(rest.start + STEP_PAGES),
        }
    }

    /// Promises room for `step` (file blocks), of a call that wants `all`.
    fn promise<M: Memory>(&self, pool: &Pool<M>, step: Range<u64>, all: Range<u64>) -> Result<Given> {
        let mut promise = self.promise.lock();
        if step != all {
            // Refuses now a range that cannot fit in any case: its steps would take room from other writers meanwhile.
            let blocks = self.file.status().unwrap_or_default().blocks;
            find_room(pool, sum(&outside(&[all], &promise.ranges)).saturating_sub(blocks))?;
        }
        // Blocks that are promised there already are counted as they were.
        let (new, more) = self.missing(&outside(from_ref(&step), &promise.ranges))?;
        let ranges = with(&promise.ranges, new);
        if ranges.len() > RANGES_MAX {
            return find_room(pool, more);
        }
        let missing = promise.missing + more;
        self.book(pool, &mut promise, missing)?;
        promise.ranges = ranges;
        Ok(Given::Booked)
    }

    /// Whether `range` (file blocks) can be booked, whatever of it takes room.
    pub(super) fn can_book(&self, range: &Range<u64>) -> bool {
        let promise = self.promise.lock();
        let new = outside(from_ref(range), &promise.ranges);
        let pieces: u64 = new.iter().map(|range| piece_count(range).1).sum();
        promise.ranges.len() as u64 + pieces <= RANGES_MAX as u64
    }

    /// Has the kernel allocate `blocks` by the means for that side of the end; nothing is promised there any more. Counts these blocks alone: a step
    /// takes as long whatever else is promised. The lock is held all the time: a truncation beside it would leave pages that nobody asked for.
    fn allocate<M: Memory>(
        &self,
        pool: &Pool<M>,
        promise: &mut Promise,
        blocks: Range<u64>,
        side: Promised,
    ) -> Result<()> {
        let (start, end) = (blocks.start * BLOCK, (blocks.end * BLOCK).min(FILE_BYTES_MAX));
        let step = [blocks];
        let (_, taken) = self.missing(&outside(&step, &outside(&step, &promise.ranges)))?;
        match side {
            Promised::Inside => self.file.fill(start, end - start)?,
            Promised::Beyond => self.file.allocate(start, end - start)?,
        }
        self.forget_where();
        if self.take_out(promise, &step, u64::MAX) {
            let missing = promise.missing.saturating_sub(taken);
            self.book_less(pool, promise, missing);
        }
        Ok(())
    }

    /// Runs `free`, which frees the blocks `gone`: nothing is promised there any more, unless that would make too many pieces of what is
    /// left, and there is room for the hole. Counts these blocks alone, too.
    pub(super) fn freeing<M: Memory, T>(
        &self,
        pool: &Pool<M>,
        gone: Range<u64>,
        free: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut promise = self.promise.lock();
        let gone = [gone];
        let there = outside(&gone, &outside(&gone, &promise.ranges));
        // Counts none on an error: the next count tells.
        let missing = self.missing(&there).map_or(0, |(_, missing)| missing);
        let freed = free()?;
        let mut is_out = self.take_out(&mut promise, &gone, STEP_BLOCKS);
        if !is_out && !there.is_empty() {
            let more = promise.missing + (sum(&there) - missing);
            // Others may have the hole's room already: it cannot stay promised then, however large the smallest piece is.
            is_out = self.book(pool, &mut promise, more).is_err() && self.take_out(&mut promise, &gone, u64::MAX);
        }
        if is_out {
            let missing = promise.missing.saturating_sub(missing);
            self.book_less(pool, &mut promise, missing);
            if promise.effort(self.file.status().unwrap_or_default().blocks) <= CALL_EFFORT {
                self.recount(pool, &mut promise);
            }
        }
        Ok(freed)
    }

    /// Takes back what a fallocate has promised that ends with its thread, between two steps. Leaves it where another thread keeps the lock, maybe for
    /// ever.
    pub(in crate::fs) fn abandon_steps<M: Memory>(&self, pool: &Pool<M>) {
        if let Some(mut promise) = self.promise.try_lock_for(ABANDON_PATIENCE) {
            self.take_back(pool, &mut promise, 0..u64::MAX);
        }
    }

    /// Takes back what the fallocate under way has promised in `range` (file blocks).
    pub(super) fn take_back<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, range: Range<u64>) {
        let Some((before, missing)) = promise.before.take() else {
            return;
        };
        if self.take_out(promise, &outside(&[range], &before), u64::MAX) {
            self.book_less(pool, promise, missing);
        }
    }

    /// Takes ranges out of what is promised; returns whether that changes anything. Allocates the smallest pieces where more are left than are kept; if
    /// those have more blocks than `most`, nothing is taken out.
    fn take_out(&self, promise: &mut Promise, gone: &[Range<u64>], most: u64) -> bool {
        let mut left = outside(&promise.ranges, gone);
        if left == promise.ranges {
            return false;
        }
        // Each range that goes leaves one piece more at most.
        while left.len() > RANGES_MAX {
            let blocks = |piece: &Range<u64>| piece.end - piece.start;
            let smallest = (0..left.len()).min_by_key(|index| blocks(&left[*index]));
            let piece = left.remove(smallest.expect("left has more than RANGES_MAX ranges"));
            if blocks(&piece) > most {
                return false;
            }
            // Room is booked for it; where there is none all the same, the promise is broken as others are.
            let _ = self.file.allocate(piece.start * BLOCK, blocks(&piece) * BLOCK);
        }
        promise.ranges = left;
        true
    }

    /// Books that `missing` blocks are promised.
    fn book<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, missing: u64) -> Result<()> {
        let booked = pool.change_promised(promise.missing, missing);
        booked.map_err(|_| Error::NoSpace)?;
        promise.raised += missing.saturating_sub(promise.missing);
        promise.missing = missing;
        self.promised.store(missing, Ordering::Relaxed);
        Ok(())
    }

    /// Books that at most `missing` blocks are promised, no more than before, and than the ranges have.
    fn book_less<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, missing: u64) {
        let missing = missing.min(promise.missing).min(sum(&promise.ranges));
        let booked = self.book(pool, promise, missing);
        booked.expect("a smaller promise always fits");
    }

    /// Promises nothing any more; gives the blocks that were promised and not written.
    pub(super) fn promise_nothing<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) -> u64 {
        let broken = promise.missing;
        promise.ranges.clear();
        self.book_less(pool, promise, 0);
        broken
    }
}

/// Whether there is room for `more` blocks that cannot be booked.
fn find_room<M: Memory>(pool: &Pool<M>, more: u64) -> Result<Given> {
    if more > pool.room_of_files() || pool.endangers_promises(more) {
        return Err(Error::NoSpace);
    }
    Ok(Given::Unbooked)
}

/// Blocks that one step of allocating takes, of a range (bytes) whose first `done` bytes are done, and the byte at their end.
fn step_of(range: &Range<u64>, done: u64) -> (Range<u64>, u64) {
    let start = range.start + done;
    let end = range.end.min(start + STEP_BLOCKS * BLOCK);
    (start / BLOCK..end.div_ceil(BLOCK), end)
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Promises room for a range of blocks of a kernel body, of a call that wants `all`; tells how.
    pub(super) fn promise(&self, ino: Ino, file: &KernelFile, step: &Range<u64>, all: &Range<u64>) -> Result<Given> {
        let given = self.counting_again(|| file.promise(&self.pool, step.clone(), all.clone()))?;
        if given == Given::Booked {
            self.promising.lock().files.insert(ino);
        }
        Ok(given)
    }

    /// Finds room for what [`Self::allocate_step`] allocates next, of which some may be booked.
    pub(super) fn find_step_room(&self, file: &KernelFile, range: &Range<u64>, done: u64) -> Result<Given> {
        let (step, _) = step_of(range, done);
        self.counting_again(|| {
            let promise = file.promise.lock();
            let (_, more) = file.missing(&outside(from_ref(&step), &promise.ranges))?;
            find_room(&self.pool, more)
        })
    }

    /// Tries again after a count where there is no room: others may have written what was promised to them.
    fn counting_again(&self, give: impl Fn() -> Result<Given>) -> Result<Given> {
        let given = give();
        if given != Err(Error::NoSpace) {
            return given;
        }
        self.count_promises_for_call();
        give()
    }

    /// Has the kernel allocate the part of `range` (bytes) that follows its first `done` bytes, a step of it; gives the bytes done then,
    /// `None` for all.
    pub(super) fn allocate_step(&self, file: &KernelFile, range: &Range<u64>, done: u64) -> Result<Option<u64>> {
        let (step, end) = step_of(range, done);
        file.allocate(&self.pool, &mut file.promise.lock(), step, Promised::Beyond)?;
        Ok((end < range.end).then_some(end - range.start))
    }
}
