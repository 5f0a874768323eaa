//! Room that fallocate promised to a kernel body, and that nobody has written yet.
//!
//! A promise places nothing: the first writer of a page gives it its home. The kernel knows nothing of promises, so they are kept by
//! bookkeeping: promised blocks count as reserved in the pool (`pool::lend`), and fallocate itself, or [`Fs::keep_promises`] later, has
//! the kernel allocate them when little room is left, wherever the calling thread is. What writers take faster than that is looked at, they take
//! from promises; so a promise is kept unless the room fills within a period of looking by more than the margin.

use super::KernelFile;
use crate::fs::{Error, Fs, Ino, Inode, Result, Whence};
use crate::log::Log;
use crate::pool::Pool;
use crate::{BLOCK_BYTES, Clock, Memory};
use std::ops::Range;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Stretches of data that a count looks at, at most; of a file with more, what it takes in all counts.
const STRETCHES_MAX: usize = 256;
/// Ranges of a file that are promised apart from each other, at most; beyond them room is allocated at once.
const RANGES_MAX: usize = 1024;
/// Files with promises that a call of a user's counts at any time; more it counts once in [`COUNT_PERIOD_NS`].
const COUNTED_FILES_MAX: usize = 256;
/// Room besides all promises that makes them real when less is left: 64 MiB, what a writer at 3 GB/s takes in 20 ms.
const MARGIN_BLOCKS: u64 = 16_384;
/// Blocks that one step of allocating takes, a few milliseconds: 16 MiB.
const STEP_BLOCKS: u64 = 4096;

/// Time after which promises are counted anew though there is room.
const COUNT_PERIOD_NS: i64 = 1_000_000_000;

/// Outcome of a step of allocating.
enum Step {
    More,
    Done,
    /// Blocks that found no room.
    Broken(u64),
}

/// Promises to one file.
#[derive(Debug, Default)]
pub(super) struct Promise {
    /// In file blocks: ascending, apart from each other.
    ranges: Vec<Range<u64>>,
    /// Blocks of them without data, as the pool counts them.
    missing: u64,
    /// Blocks that were allocated, and that count as holes until they are written; as `ranges`.
    allocated: Vec<Range<u64>>,
}

/// How room for a range is given.
#[derive(PartialEq, Eq)]
enum Given {
    Booked,
    /// Too many ranges are booked: it has to be allocated.
    Unbooked,
}

impl KernelFile {
    /// Promises room for `range` (file blocks).
    fn promise<M: Memory>(&self, pool: &Pool<M>, range: Range<u64>) -> Result<Given> {
        let mut promise = self.promise.lock();
        let allocated = promise.allocated.iter();
        // What is promised there already is counted as it was.
        let promised = promise.ranges.iter();
        let new = allocated
            .chain(promised)
            .fold(vec![range], |new, known| without(&new, known));
        let all = || new.iter().map(|range| range.end - range.start).sum();
        let missing = promise.missing + self.missing_blocks(&new)?.unwrap_or_else(all);
        let ranges = new
            .into_iter()
            .fold(promise.ranges.clone(), |ranges, range| with(&ranges, range));
        if ranges.len() > RANGES_MAX {
            return Ok(Given::Unbooked);
        }
        pool.change_promised(promise.missing, missing)
            .map_err(|_| Error::NoSpace)?;
        promise.ranges = ranges;
        promise.missing = missing;
        self.promised.store(missing, Ordering::Relaxed);
        Ok(Given::Booked)
    }

    /// Notes that a range (file blocks) was allocated: nothing is promised there any more.
    fn note_allocated<M: Memory>(&self, pool: &Pool<M>, range: Range<u64>) {
        let mut promise = self.promise.lock();
        self.cut(pool, &mut promise, &range);
        let allocated = with(&promise.allocated, range);
        // Beyond that some count twice, if they are allocated again before they are written.
        if allocated.len() <= RANGES_MAX {
            promise.allocated = allocated;
        }
    }

    /// Ranges that are promised, for [`Self::take_back`].
    pub(super) fn promised_ranges(&self) -> Vec<Range<u64>> {
        self.promise.lock().ranges.clone()
    }

    /// Takes back what was promised in `range` (file blocks) but for `before`.
    pub(super) fn take_back<M: Memory>(&self, pool: &Pool<M>, range: Range<u64>, before: &[Range<u64>]) {
        let added = before.iter().fold(vec![range], |added, before| without(&added, before));
        let mut promise = self.promise.lock();
        promise.ranges = added.iter().fold(std::mem::take(&mut promise.ranges), |ranges, added| {
            without(&ranges, added)
        });
        self.recount(pool, &mut promise);
    }

    /// Takes back what was promised within `gone` (file blocks).
    pub(super) fn unpromise<M: Memory>(&self, pool: &Pool<M>, gone: &Range<u64>) {
        let mut promise = self.promise.lock();
        promise.allocated = without(&promise.allocated, gone);
        self.cut(pool, &mut promise, gone);
    }

    /// Takes a range out of what is promised; counts anew if that changes anything.
    fn cut<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, gone: &Range<u64>) {
        let left = without(&promise.ranges, gone);
        if left != promise.ranges {
            promise.ranges = left;
            self.recount(pool, promise);
        }
    }

    fn is_promised_nothing(&self) -> bool {
        self.promise.lock().ranges.is_empty()
    }

    /// Counts anew what is promised and not written; returns it, in blocks. While another thread changes it, as it was last.
    pub(in crate::fs) fn promised_blocks<M: Memory>(&self, pool: &Pool<M>) -> u64 {
        if let Some(mut promise) = self.promise.try_lock()
            && !promise.ranges.is_empty()
        {
            self.recount(pool, &mut promise);
        }
        // Relaxed: a figure.
        self.promised.load(Ordering::Relaxed)
    }

    fn recount<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) {
        // What cannot be asked for is gone.
        let missing = self.missing_blocks(&promise.ranges).unwrap_or(Some(0));
        // In too many pieces to count: at most as much as before.
        let missing = missing.unwrap_or(promise.missing).min(promise.missing);
        self.set_missing(pool, promise, missing);
        if missing == 0 {
            promise.ranges.clear();
        }
    }

    /// Books that `missing` blocks are promised, no more than before.
    fn set_missing<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, missing: u64) {
        pool.change_promised(promise.missing, missing)
            .expect("fewer always fit");
        promise.missing = missing;
        self.promised.store(missing, Ordering::Relaxed);
    }

    /// Has the kernel allocate the next step of what is promised. A promise that finds no room is given up: asking again and again
    /// would take the room from others for a moment each time.
    fn allocate_promised_step<M: Memory>(&self, pool: &Pool<M>) -> Step {
        let mut promise = self.promise.lock();
        let Some(range) = promise.ranges.first().cloned() else {
            return Step::Done;
        };
        let end = range.end.min(range.start + STEP_BLOCKS);
        if self
            .file
            .allocate(range.start * BLOCK, (end - range.start) * BLOCK)
            .is_err()
        {
            let broken = promise.missing;
            promise.ranges.clear();
            self.set_missing(pool, &mut promise, 0);
            return Step::Broken(broken);
        }
        drop(promise);
        self.note_allocated(pool, range.start..end);
        self.forget_where();
        Step::More
    }

    /// Blocks of `ranges` without data; those that were only allocated count. `None` for a file in too many pieces.
    fn missing_blocks(&self, ranges: &[Range<u64>]) -> Result<Option<u64>> {
        let (mut missing, mut looked) = (0, 0);
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                looked += 1;
                if looked > STRETCHES_MAX {
                    return Ok(None);
                }
                let data = match self.file.seek(at * BLOCK, Whence::Data) {
                    Ok(data) => (data / BLOCK).clamp(at, range.end),
                    Err(Error::NoData) => range.end,
                    Err(error) => return Err(error),
                };
                missing += data - at;
                if data == range.end {
                    break;
                }
                at = self
                    .file
                    .seek(data * BLOCK, Whence::Hole)?
                    .div_ceil(BLOCK)
                    .max(data + 1);
            }
        }
        Ok(Some(missing))
    }
}

/// `ranges` without `gone`.
fn without(ranges: &[Range<u64>], gone: &Range<u64>) -> Vec<Range<u64>> {
    if gone.is_empty() {
        return ranges.to_vec();
    }
    let parts = |range: &Range<u64>| {
        [
            range.start..range.end.min(gone.start),
            range.start.max(gone.end)..range.end,
        ]
    };
    ranges
        .iter()
        .flat_map(parts)
        .filter(|range| range.start < range.end)
        .collect()
}

/// `ranges` and `new`, ascending and apart from each other.
fn with(ranges: &[Range<u64>], new: Range<u64>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = ranges.iter().cloned().chain([new]).collect();
    all.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(all.len());
    for range in all {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

impl<M: Memory, C: Clock, L: Log> Fs<M, C, L> {
    /// Promises room for a range of bytes of a kernel body.
    pub(in crate::fs) fn promise(&self, inode: &Inode, file: &KernelFile, range: &Range<u64>) -> Result<()> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let promised = file.promise(&self.pool, blocks.clone()).or_else(|error| {
            if error != Error::NoSpace {
                return Err(error);
            }
            // Others may have written what was promised to them.
            self.count_promises_if_due();
            file.promise(&self.pool, blocks.clone())
        });
        let has_room = match promised {
            Ok(Given::Booked) => {
                self.promising.lock().insert(inode.ino);
                return Ok(());
            }
            Ok(Given::Unbooked) => !self.pool.endangers_promises(blocks.end - blocks.start),
            // Part of it may be allocated already, which only the kernel knows.
            Err(Error::NoSpace) => self.pool.promises_nothing(),
            Err(error) => return Err(error),
        };
        // The kernel does all or nothing, in one call. What cannot fit is not tried: it would take all room for a moment.
        let all = (range.end - range.start) / BLOCK;
        if !has_room || all.saturating_sub(file.status().blocks) > self.pool.room_of_files() {
            return Err(Error::NoSpace);
        }
        file.file.allocate(range.start, range.end - range.start)?;
        file.note_allocated(&self.pool, blocks);
        file.forget_where();
        Ok(())
    }

    /// Where little room is left, has the kernel allocate the part of `range` (bytes) that follows its first `done` bytes, a step of it;
    /// gives the bytes done then, `None` for all.
    pub(in crate::fs) fn allocate_if_full(
        &self,
        file: &KernelFile,
        range: &Range<u64>,
        done: u64,
    ) -> Result<Option<u64>> {
        if !self.pool.endangers_promises(MARGIN_BLOCKS) {
            return Ok(None);
        }
        let start = range.start + done;
        let bytes = (range.end - start).min(STEP_BLOCKS * BLOCK);
        let end = start + bytes;
        file.file.allocate(start, bytes)?;
        file.note_allocated(&self.pool, start / BLOCK..end.div_ceil(BLOCK));
        file.forget_where();
        Ok((end < range.end).then_some(done + bytes))
    }

    /// Counts promises anew for a call of a user's, which does not wait long for it.
    pub(in crate::fs) fn count_promises_if_due(&self) {
        // Relaxed: only how often this is done depends on it.
        let age_ns = self
            .now_ns()
            .saturating_sub(self.promises_counted_ns.load(Ordering::Relaxed));
        if self.promising.lock().len() <= COUNTED_FILES_MAX || age_ns >= COUNT_PERIOD_NS {
            self.count_promises();
        }
    }

    /// Counts all promises anew; forgets files to which nothing is promised any more.
    pub(in crate::fs) fn count_promises(&self) {
        // Relaxed: only how often this is done depends on it.
        self.promises_counted_ns.store(self.now_ns(), Ordering::Relaxed);
        let promising: Vec<Ino> = self.promising.lock().iter().copied().collect();
        for ino in promising {
            let inode = self.table.find(ino);
            let file = inode.as_deref().and_then(Inode::kernel_file);
            file.map(|file| file.promised_blocks(&self.pool));
            if file.is_none_or(KernelFile::is_promised_nothing) {
                // Looked at again with the list locked: a promise is made first, and then put there.
                let mut promising = self.promising.lock();
                if file.is_none_or(KernelFile::is_promised_nothing) {
                    promising.remove(&ino);
                }
            }
        }
    }

    /// Looks whether there is room for what fallocate has promised, and has the kernel allocate it where little is left; returns the
    /// blocks that were promised and found no room. Call this again and again: the less often, the more may others take from promises.
    pub fn keep_promises(&self) -> u64 {
        if self.promising.lock().is_empty() {
            return 0;
        }
        if !self.pool.endangers_promises(MARGIN_BLOCKS) {
            // So that promises that were kept are forgotten.
            if self
                .now_ns()
                .saturating_sub(self.promises_counted_ns.load(Ordering::Relaxed))
                >= COUNT_PERIOD_NS
            {
                self.count_promises();
            }
            return 0;
        }
        self.count_promises();
        let mut broken = 0;
        let promising: Vec<Ino> = self.promising.lock().iter().copied().collect();
        for ino in promising {
            if let Some(inode) = self.table.find(ino)
                && let Some(file) = inode.kernel_file()
            {
                self.place_for_writer(&inode, file);
                broken += loop {
                    match file.allocate_promised_step(&self.pool) {
                        Step::More => {}
                        Step::Done => break 0,
                        Step::Broken(blocks) => break blocks,
                    }
                };
            }
        }
        self.count_promises();
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_gone_with_an_empty_range() {
        let ranges = with(&with(&[], 0..100), 200..300);
        assert_eq!(without(&ranges, &(50..50)), ranges);
        let reversed = Range { start: 1, end: 0 };
        assert_eq!(without(&ranges, &reversed), ranges);
        assert_eq!(without(&ranges, &(50..250)), [0..50, 250..300]);
    }

    #[test]
    fn ranges_merge_where_they_meet() {
        let ranges = with(&with(&with(&[], 10..20), 30..40), 20..25);
        assert_eq!(ranges, [10..25, 30..40]);
        assert_eq!(with(&ranges, 26..29), [10..25, 26..29, 30..40]);
        assert_eq!(with(&ranges, 0..35), with(&[], 0..40));
    }
}
