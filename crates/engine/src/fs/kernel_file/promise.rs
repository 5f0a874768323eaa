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
const STRETCHES_MAX: usize = 1024;
/// Room besides all promises that makes them real when less is left: 64 MiB, what a writer at 3 GB/s takes in 20 ms.
const MARGIN_BLOCKS: u64 = 16_384;
/// Blocks that one step of allocating takes, a few milliseconds: 16 MiB.
const STEP_BLOCKS: u64 = 4096;

/// Time after which promises are counted anew though there is room.
const COUNT_PERIOD_NS: i64 = 1_000_000_000;

/// Promises to one file.
#[derive(Debug, Default)]
pub(super) struct Promise {
    /// In file blocks: ascending, apart from each other.
    ranges: Vec<Range<u64>>,
    /// Blocks of them without data, as the pool counts them.
    missing: u64,
}

impl KernelFile {
    /// Promises room for `range` (file blocks).
    fn promise<M: Memory>(&self, pool: &Pool<M>, range: Range<u64>) -> Result<()> {
        let mut promise = self.promise.lock();
        let ranges = with(&promise.ranges, range);
        let missing = self.missing_blocks(&ranges)?;
        pool.change_promised(promise.missing, missing)
            .map_err(|_| Error::NoSpace)?;
        *promise = Promise { ranges, missing };
        Ok(())
    }

    /// Takes back what was promised outside of `kept` (file blocks).
    pub(super) fn unpromise<M: Memory>(&self, pool: &Pool<M>, kept: [Range<u64>; 2]) {
        let mut promise = self.promise.lock();
        if promise.ranges.is_empty() {
            return;
        }
        let cut = |range: &Range<u64>, kept: &Range<u64>| range.start.max(kept.start)..range.end.min(kept.end);
        let ranges = promise.ranges.iter();
        let ranges = ranges.flat_map(|range| kept.each_ref().map(|kept| cut(range, kept)));
        promise.ranges = ranges.filter(|range| range.start < range.end).collect();
        self.recount(pool, &mut promise);
    }

    /// Counts anew what is promised and not written; returns it, in blocks.
    pub(in crate::fs) fn promised_blocks<M: Memory>(&self, pool: &Pool<M>) -> u64 {
        let mut promise = self.promise.lock();
        if !promise.ranges.is_empty() {
            self.recount(pool, &mut promise);
        }
        promise.missing
    }

    fn recount<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) {
        // What cannot be asked for is gone.
        let missing = self.missing_blocks(&promise.ranges).unwrap_or(0).min(promise.missing);
        pool.change_promised(promise.missing, missing)
            .expect("fewer always fit");
        promise.missing = missing;
        if missing == 0 {
            promise.ranges.clear();
        }
    }

    /// Has the kernel allocate what is promised. What finds no room stays promised.
    fn allocate_promised<M: Memory>(&self, pool: &Pool<M>) {
        let mut promise = self.promise.lock();
        for range in &promise.ranges {
            let (start, end) = (range.start * BLOCK, range.end * BLOCK);
            if self.file.allocate(start, end - start, true).is_err() {
                return;
            }
        }
        promise.ranges.clear();
        pool.change_promised(promise.missing, 0).expect("fewer always fit");
        promise.missing = 0;
        drop(promise);
        self.forget_where();
    }

    /// Blocks of `ranges` without data. Those that were only allocated count; so does, of a file in many pieces, the least there can
    /// be.
    fn missing_blocks(&self, ranges: &[Range<u64>]) -> Result<u64> {
        let (mut missing, mut looked) = (0, 0);
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                looked += 1;
                if looked > STRETCHES_MAX {
                    let all: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                    return Ok(all.saturating_sub(self.file.status()?.blocks));
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
        Ok(missing)
    }
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
            self.count_promises();
            file.promise(&self.pool, blocks)
        });
        if promised == Err(Error::NoSpace) && self.pool.promises_nothing() {
            // Part of it may be allocated already, which only the kernel knows: it does all or nothing, in one call.
            file.file.allocate(range.start, range.end - range.start, true)?;
            file.forget_where();
            return Ok(());
        }
        self.promising.lock().insert(inode.ino);
        promised
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
        file.file.allocate(start, bytes, true)?;
        file.unpromise(&self.pool, [0..start / BLOCK, end.div_ceil(BLOCK)..u64::MAX]);
        file.forget_where();
        Ok((end < range.end).then_some(done + bytes))
    }

    /// Counts all promises anew; forgets files to which nothing is promised any more.
    pub(in crate::fs) fn count_promises(&self) {
        // Relaxed: only how often this is done depends on it.
        self.promises_counted_ns.store(self.now_ns(), Ordering::Relaxed);
        let promising: Vec<Ino> = self.promising.lock().iter().copied().collect();
        for ino in promising {
            let inode = self.table.find(ino);
            let file = inode.as_deref().and_then(Inode::kernel_file);
            if file.is_none_or(|file| file.promised_blocks(&self.pool) == 0) {
                self.promising.lock().remove(&ino);
            }
        }
    }

    /// Looks whether there is room for what fallocate has promised, and has the kernel allocate it where little is left; returns whether
    /// anything is promised. Call this again and again: the less often, the more may others take from promises.
    pub fn keep_promises(&self) -> bool {
        if self.promising.lock().is_empty() {
            return false;
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
            return true;
        }
        self.count_promises();
        let promising: Vec<Ino> = self.promising.lock().iter().copied().collect();
        for ino in promising {
            if let Some(inode) = self.table.find(ino)
                && let Some(file) = inode.kernel_file()
            {
                file.allocate_promised(&self.pool);
            }
        }
        self.count_promises();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_where_they_meet() {
        let ranges = with(&with(&with(&[], 10..20), 30..40), 20..25);
        assert_eq!(ranges, [10..25, 30..40]);
        assert_eq!(with(&ranges, 26..29), [10..25, 26..29, 30..40]);
        assert_eq!(with(&ranges, 0..35), with(&[], 0..40));
    }
}
