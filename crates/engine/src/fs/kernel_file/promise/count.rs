//! Counts of promised blocks that take no room yet: for calls, which count a few files, and for [`Fs::keep_promises`].

use super::ranges::{joined, piece_count, pieces, sum};
use super::{Clock, Error, Fs, Ino, KernelFile, Memory, Ordering, Pool, Promise, RANGES_MAX, Range, Result};
use crate::fs::Inode;
use std::collections::BTreeSet;

/// Most effort that a call of a user's takes to count promises, about half a millisecond, and the most that one file may take. Counts of other files
/// are up to a period old: the room of what has been written meanwhile counts twice.
pub(super) const CALL_EFFORT: u64 = 1024;
/// Effort to ask for a file, besides its pieces.
const FILE_EFFORT: u64 = 8;
/// Pages that are passed in the time in which an empty piece is asked for.
pub(super) const PAGES_OF_EFFORT: u64 = 64;

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
    fn is_promised_nothing(&self) -> bool {
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
        self.count(pool, |promise| promise.effort(blocks) <= CALL_EFFORT)
    }

    /// Counts anew what is promised and not written; returns it, in blocks. While another thread changes it, as it was last.
    pub(in crate::fs) fn promised_blocks<M: Memory>(&self, pool: &Pool<M>) -> u64 {
        self.count(pool, |_| true)
    }

    fn count<M: Memory>(&self, pool: &Pool<M>, is_short: impl FnOnce(&Promise) -> bool) -> u64 {
        // Calls wait for nobody here: that thread may hold it for ever.
        if let Some(mut promise) = self.promise.try_lock()
            && !promise.ranges.is_empty()
            && is_short(&promise)
        {
            self.recount(pool, &mut promise);
        }
        // Relaxed: a figure.
        self.promised.load(Ordering::Relaxed)
    }

    pub(super) fn recount<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) {
        if promise.ranges.is_empty() {
            return self.book_less(pool, promise, 0);
        }
        let (left, missing) = match self.missing(&promise.ranges) {
            Err(Error::Stale) => (Vec::new(), 0),
            // Cannot be asked just now.
            Err(_) => return,
            Ok(counted) => counted,
        };
        if left.len() <= RANGES_MAX {
            promise.ranges = left;
        }
        self.book_less(pool, promise, missing);
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
