//! Counts of promised blocks that take no room yet: for calls, which count a few files, and for [`Fs::keep_promises`].

use super::keep::KEEP_PATIENCE;
use super::ranges::{joined, outside, piece_count, pieces, sum, with};
use super::{Clock, Error, Fs, Ino, KernelFile, Memory, Ordering, Pool, Promise, RANGES_MAX, Range, Result};
use crate::fs::Inode;
use parking_lot::MutexGuard;
use std::collections::BTreeSet;
use std::slice::from_ref;

/// Most effort that a call of a user's takes to count promises, about half a millisecond, and the most that one file may take. Counts of other files
/// are up to a period old: the room of what has been written meanwhile counts twice.
pub(super) const CALL_EFFORT: u64 = 1024;
/// Effort to ask for a file, besides its pieces.
const FILE_EFFORT: u64 = 8;
/// Pages that are passed in the time in which an empty piece is asked for.
const PAGES_OF_EFFORT: u64 = 64;
/// Pages that are passed in a step, at most: 256 MiB.
pub(super) const STEP_PAGES: u64 = CALL_EFFORT * PAGES_OF_EFFORT;

/// Files to which room is promised.
#[derive(Debug, Default)]
pub(in crate::fs) struct Promising {
    pub(super) files: BTreeSet<Ino>,
    /// Inode at which counting goes on, for calls and for [`Fs::keep_promises`].
    next: [u64; 2],
}

/// Occasion on which promises are counted.
#[derive(Clone, Copy)]
pub(super) enum Counts {
    /// A call of a user's.
    Call,
    /// [`Fs::keep_promises`].
    Look,
}

impl Promising {
    /// The next file to count, and whether it is the last of a round.
    fn turn(&mut self, who: Counts) -> Option<(Ino, bool)> {
        let next = &mut self.next[who as usize];
        let following = self.files.range(Ino(*next)..).next();
        let ino = *following.or_else(|| self.files.first())?;
        *next = ino.0 + 1;
        Some((ino, self.files.last() == Some(&ino)))
    }
}

impl Promise {
    /// Effort to count it anew, in times of an empty piece, in a file of so many blocks.
    pub(super) fn effort(&self, blocks: u64) -> u64 {
        let pieces: u64 = self.ranges.iter().map(|range| piece_count(range).1).sum();
        FILE_EFFORT + pieces + blocks.min(sum(&self.ranges)) / PAGES_OF_EFFORT
    }
}

impl KernelFile {
    /// Whether nothing is promised; false while another thread changes that.
    pub(in crate::fs) fn is_promised_nothing(&self) -> bool {
        let promise = self.promise.try_lock();
        promise.is_some_and(|promise| promise.ranges.is_empty())
    }

    /// Effort of [`Self::promised_blocks`], in times of an empty piece: some 0.4 µs. None while another thread changes what is promised.
    fn effort(&self) -> Option<u64> {
        let promise = self.promise.try_lock()?;
        Some(promise.effort(self.file.status().unwrap_or_default().blocks))
    }

    /// Blocks that are promised and not written, for attributes of a file of so many blocks: anew if that takes no longer than a call may, else as they
    /// were counted last.
    pub(in crate::fs) fn told_promised_blocks<M: Memory>(&self, pool: &Pool<M>, blocks: u64) -> u64 {
        let is_short = |promise: &Promise| !promise.ranges.is_empty() && promise.effort(blocks) <= CALL_EFFORT;
        match self.promise.try_lock().is_some_and(|promise| is_short(&promise)) {
            true => self.promised_blocks(pool),
            // Relaxed, as all of them: a figure.
            false => self.promised.load(Ordering::Relaxed),
        }
    }

    /// Counts anew what is promised and not written; returns it, in blocks. Counts by steps, each with the lock for as long as a call may take. While
    /// another thread has the lock, gives up and returns the blocks that were counted last.
    pub(in crate::fs) fn promised_blocks<M: Memory>(&self, pool: &Pool<M>) -> u64 {
        // Calls, whose counts are one step, wait for nobody here: that thread may hold it for ever.
        let mut locked = self.promise.try_lock().filter(|promise| !promise.ranges.is_empty());
        let before = locked.as_ref().map_or(0, |promise| promise.raised);
        let (mut at, mut missing) = (0, 0);
        while let Some(mut promise) = locked.take() {
            match self.count_step(&mut promise, at) {
                Ok((next, more)) => (at, missing) = (next, missing + more),
                Err(Error::Stale) => _ = self.promise_nothing(pool, &mut promise),
                // Cannot be asked just now.
                Err(_) => break,
            }
            if at < u64::MAX && !promise.ranges.is_empty() {
                // The threads that wait come first.
                MutexGuard::unlock_fair(promise);
                locked = self.promise.try_lock_for(KEEP_PATIENCE);
            } else {
                // Blocks that were promised meanwhile may lie where it had counted already.
                let missing = missing + promise.raised - before;
                self.book_less(pool, &mut promise, missing);
            }
        }
        self.promised.load(Ordering::Relaxed)
    }

    /// Counts anew what a call may count in one step.
    pub(super) fn recount<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) {
        if let Ok((u64::MAX, missing)) = self.count_step(promise, 0) {
            self.book_less(pool, promise, missing);
        }
    }

    /// Counts the blocks that take no room from the block `at` on, with an effort of [`CALL_EFFORT`]; returns the block that follows those, the highest
    /// number at the end, and their count. Pieces that take all their room are promised no more.
    fn count_step(&self, promise: &mut Promise, at: u64) -> Result<(u64, u64)> {
        let is_large = self.file.status()?.blocks > STEP_PAGES;
        let end = step_end(&outside(&promise.ranges, from_ref(&(0..at))), is_large);
        let (holes, missing) = self.missing(&outside(&promise.ranges, &[0..at, end..u64::MAX]))?;
        let left = with(&outside(&promise.ranges, from_ref(&(at..end))), holes);
        // The others are for calls.
        if left.len() <= promise.ranges.len().max(RANGES_MAX / 2) {
            promise.ranges = left;
        }
        Ok((end, missing))
    }

    /// Counts blocks of `ranges` that take no room; gives the parts with such blocks, too.
    pub(super) fn missing(&self, ranges: &[Range<u64>]) -> Result<(Vec<Range<u64>>, u64)> {
        let pieces: Vec<Range<u64>> = ranges.iter().flat_map(pieces).collect();
        let holes = self.file.holes(&pieces)?;
        let missing = holes.iter().sum();
        let with_holes = pieces.into_iter().zip(holes).filter(|(_, holes)| *holes > 0);
        Ok((joined(with_holes.map(|(piece, _)| piece)), missing))
    }
}

/// The block up to which a step counts ranges, of a file with few blocks or with many; the highest number for all of them.
fn step_end(ranges: &[Range<u64>], is_large: bool) -> u64 {
    let mut left = STEP_PAGES;
    for piece in ranges.iter().flat_map(pieces) {
        let pages = if is_large { piece.end - piece.start } else { 0 };
        left = left.saturating_sub(PAGES_OF_EFFORT);
        if pages >= left {
            return piece.start + left;
        }
        left -= pages;
    }
    u64::MAX
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Counts promises anew for a call of a user's, which does not wait long for it.
    pub(in crate::fs) fn count_promises_for_call(&self) {
        self.count_some_promises(Counts::Call, CALL_EFFORT, CALL_EFFORT);
    }

    /// Counts promises anew, file after file, from where this ended last, each at most once: none that takes more than `file_most`, and none any more
    /// when `effort` is spent. Returns whether it came past the last file.
    pub(super) fn count_some_promises(&self, who: Counts, effort: u64, file_most: u64) -> bool {
        let mut spent = 0;
        let files = self.promising.lock().files.len();
        for _ in 0..files {
            let Some((ino, is_last)) = self.promising.lock().turn(who) else {
                break;
            };
            spent += self.count_promise(ino, file_most);
            if is_last {
                return true;
            }
            if spent >= effort {
                return false;
            }
        }
        true
    }

    /// Counts what is promised to a file anew, if that takes no more effort than `most`; forgets it when that is nothing. Returns the effort.
    pub(super) fn count_promise(&self, ino: Ino, most: u64) -> u64 {
        let inode = self.table.find(ino);
        let file = inode.as_deref().and_then(Inode::kernel_file);
        let effort = match file.map(KernelFile::effort) {
            Some(Some(effort)) if effort <= most => effort,
            // Busy, or too large.
            Some(_) => return 1,
            None => 1,
        };
        file.map(|file| file.promised_blocks(&self.pool));
        if file.is_none_or(KernelFile::is_promised_nothing) {
            // Looked at again with the list locked: a promise is made first, and then put there.
            let mut promising = self.promising.lock();
            if file.is_none_or(KernelFile::is_promised_nothing) {
                promising.files.remove(&ino);
            }
        }
        effort
    }
}
