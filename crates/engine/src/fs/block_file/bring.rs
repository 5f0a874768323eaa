//! Bytes that must be brought to memory before they can be copied: which of a request, and bringing them, with nothing held.

use super::super::{Asking, Error, Fs, Inode, Result};
use super::BlockFile;
use super::data::in_block;
use crate::cache::Fetch;
use crate::{BLOCK_BYTES, Block, Clock, Memory, NodeId};
use homenode_shared::{Found, RUN_BLOCKS};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are brought at a time.
const BLOCKS_MAX: u64 = 512;
/// Blocks of the first window of a file that is read in order: 64 KiB.
const WINDOW_BLOCKS: u64 = 16;
/// And of the largest: 1 MiB. Two are under way, or being read.
const WINDOW_BLOCKS_MAX: u64 = 256;

/// Blocks that follow each other and are away, and the node that they are to come to.
pub(super) type Missing = Vec<(NodeId, Block, u64)>;

/// How far a file is read ahead, by those who read it in order: the block behind that; how often the largest window was halved; the binary logarithm of
/// the last window; and what was [advised](Fs::advise).
///
/// A read that comes to the last window, or goes on where that ends, gets one twice as large behind it; any other begins anew, with none. A read that
/// finds a block of its windows evicted begins with the smallest window, and the largest is halved: more streams than the cache has room for would
/// otherwise evict each other's windows. The largest window is doubled again after about 64 of them.
#[derive(Debug, Default)]
pub(super) struct ReadAhead(AtomicU64);

impl ReadAhead {
    const END: u64 = (1 << Self::HALVED_SHIFT) - 1;
    const HALVED_SHIFT: u32 = 52;
    const HALVED_MAX: u64 = (WINDOW_BLOCKS_MAX / WINDOW_BLOCKS).ilog2() as u64;
    const SHIFT: u32 = 56;
    const ADVICE_SHIFT: u32 = 62;
    pub(super) const SEQUENTIAL: u64 = 1 << Self::ADVICE_SHIFT;
    pub(super) const RANDOM: u64 = 2 << Self::ADVICE_SHIFT;
    const ADVICE: u64 = 3 << Self::ADVICE_SHIFT;

    /// Notes advice on the order of reads, or none (0); where they are is forgotten.
    pub(super) fn advise(&self, advice: u64) {
        // Relaxed: guesses.
        self.0.store(advice, Ordering::Relaxed);
    }

    /// Notes that `blocks` of the file were wanted and are away, `is_coming` when the first of them is being read; gives those that are likely to be wanted
    /// next, `most` at most.
    fn note(&self, blocks: &Range<u64>, is_coming: bool, most: u64) -> Option<Range<u64>> {
        // Relaxed: a guess.
        let word = self.0.load(Ordering::Relaxed);
        let advice = word & Self::ADVICE;
        if advice == Self::RANDOM {
            return None;
        }
        let (end, last) = (word & Self::END, (word & !advice) >> Self::SHIFT);
        let mut halved = (word & !advice) >> Self::HALVED_SHIFT & 0xf;
        let last_blocks = if last == 0 { 0 } else { 1 << last };
        let newest = end.saturating_sub(last_blocks)..end;
        let is_on = blocks.start == end && end > 0 || blocks.start == 0 && end == 0;
        let was_asked_for = (end.saturating_sub(2 * last_blocks)..end).contains(&blocks.start);
        let was_evicted = was_asked_for && !is_on && !is_coming;
        if !is_on && !was_evicted && !newest.contains(&blocks.start) {
            if was_asked_for {
                return None;
            }
            self.0.store(advice | blocks.end, Ordering::Relaxed);
            return None;
        }
        if was_evicted {
            halved = (halved + 1).min(Self::HALVED_MAX);
        }
        let largest = WINDOW_BLOCKS_MAX >> halved;
        let least = if advice == Self::SEQUENTIAL {
            largest
        } else {
            WINDOW_BLOCKS
        };
        let window = if was_evicted {
            least
        } else {
            (2 * last_blocks).clamp(least, largest)
        };
        let ahead = if is_on || was_evicted {
            blocks.end..blocks.start + window.max(2 * (blocks.end - blocks.start))
        } else {
            end..end + window
        };
        let ahead = ahead.start..ahead.end.min(ahead.start + most / 2);
        if ahead.start / (64 * largest) != ahead.end / (64 * largest) {
            halved = halved.saturating_sub(1);
        }
        // Large reads get more.
        let window = (ahead.end - ahead.start).next_power_of_two();
        let word = advice | ahead.end | halved << Self::HALVED_SHIFT | u64::from(window.ilog2()) << Self::SHIFT;
        self.0.store(word, Ordering::Relaxed);
        (!ahead.is_empty()).then_some(ahead)
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// After [`Error::Away`], brings what is away of the first blocks of `bytes` of a file; other errors stay.
    pub(super) fn bring_if_away(
        &self,
        error: Error,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        bytes: Range<u64>,
    ) -> Result<()> {
        if error != Error::Away || !asking.waits {
            return Err(error);
        }
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        self.fetch(&self.missing_to_read(asking, inode, file, blocks)?)
    }

    /// Finds which of some file blocks to be read are away. Asks for the blocks that are likely to be read next.
    fn missing_to_read(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        blocks: Range<u64>,
    ) -> Result<Missing> {
        let memory = self.pool.memory();
        let most = memory.fetch_max();
        let missing = self.missing(asking, inode, file, [blocks.clone()], most)?;
        let is_coming = missing.first().is_none_or(|(_, first, _)| memory.is_coming(*first));
        if let Some(ahead) = file.ahead.note(&blocks, is_coming, most) {
            let ahead = self.missing(asking, inode, file, [ahead], most)?;
            memory.fetch_soon(&ahead, true);
        }
        Ok(missing)
    }

    /// Begins to fetch what is away of `bytes` of a file, after [`Fs::read`] ended with [`Error::Away`]: each fetch is carried out by the caller, and
    /// given to [`Fs::end_fetch`]. Never waits, whoever asks. None where others read the bytes, no frame is free, or blocks are being taken away: who
    /// may wait for that ([`Asking::waits`]) reads then.
    pub fn begin_fetches(&self, asking: &Asking<'_>, inode: &Inode, bytes: Range<u64>) -> Vec<Fetch> {
        let Some(file) = inode.blocks() else { return Vec::new() };
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let asking = &Asking {
            waits: false,
            ..*asking
        };
        self.begin_all(self.missing_to_read(asking, inode, file, blocks))
    }

    /// Whether [`Fs::begin_fetches`] has begun nothing because others read the bytes, or their disk carries out as many reads as it may: a later look finds
    /// them, or begins.
    pub fn is_coming(&self, asking: &Asking<'_>, inode: &Inode, bytes: Range<u64>) -> bool {
        let Some(file) = inode.blocks() else { return false };
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let asking = &Asking {
            waits: false,
            ..*asking
        };
        let missing = self
            .missing(asking, inode, file, [blocks], u64::MAX)
            .unwrap_or_default();
        missing
            .first()
            .is_some_and(|(_, first, _)| self.pool.memory().is_busy(*first))
    }

    /// [`Fs::begin_fetches`] of what [`Fs::write`] of `bytes` leaves of the blocks that it changes.
    pub fn begin_fetches_to_write(&self, asking: &Asking<'_>, inode: &Inode, bytes: Range<u64>) -> Vec<Fetch> {
        let Some(file) = inode.blocks() else { return Vec::new() };
        let asking = &Asking {
            waits: false,
            ..*asking
        };
        self.begin_all(self.missing_to_write(asking, inode, file, bytes))
    }

    fn begin_all(&self, missing: Result<Missing>) -> Vec<Fetch> {
        let memory = self.pool.memory();
        // As far as it goes: what is left is asked for again.
        let begun = missing.unwrap_or_default().into_iter();
        begun
            .map_while(|(node, first, blocks)| memory.begin_fetch(node, first, blocks))
            .collect()
    }

    /// Ends a fetch, when all of its bytes were read, or else when that has failed: [`Fs::read`] then tells the error.
    pub fn end_fetch(&self, fetch: Fetch, is_read: bool) {
        self.pool.memory().end_fetch(fetch, is_read);
    }

    /// After [`Error::Away`], brings what a write of `bytes` bytes at `offset` leaves of the blocks that it changes; after [`Error::NoPlaces`], waits for
    /// places for the others.
    pub(super) fn bring_to_write(
        &self,
        error: Error,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        bytes: usize,
    ) -> Result<()> {
        let bytes = offset..offset + bytes as u64;
        match error {
            Error::Away | Error::NoPlaces(_) if !asking.waits => Err(Error::Away),
            Error::Away => self.fetch(&self.missing_to_write(asking, inode, file, bytes)?),
            Error::NoPlaces(member) => {
                let (first, end) = (bytes.start / BLOCK, bytes.end.div_ceil(BLOCK));
                let node = self.node_for(inode, first, asking);
                let blocks = (end - first).min(BLOCKS_MAX);
                Ok(self.pool.memory().wait_for_places(node, member, blocks)?)
            }
            error => Err(error),
        }
    }

    /// Finds the blocks that are away and that a write of `bytes` changes only in part.
    fn missing_to_write(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        bytes: Range<u64>,
    ) -> Result<Missing> {
        let size = file.size.load(Ordering::Acquire);
        let part = |at: u64| at / BLOCK..at / BLOCK + u64::from(in_block(at) > 0);
        // The block of the size: zeroing ends in it, and it becomes zero from there on when the file grows, with what a cut left behind it.
        let last = if size < bytes.end { part(size) } else { 0..0 };
        let gap = match size {
            size if size < bytes.start => {
                let run_end = size.next_multiple_of(RUN_BLOCKS * BLOCK);
                size / BLOCK..(bytes.start / BLOCK).min(run_end / BLOCK)
            }
            _ => 0..0,
        };
        let most = self.pool.memory().fetch_max();
        // Parts of blocks first: each must be brought, however many others lie in the gap.
        let stretches = [last, part(bytes.start), part(bytes.end), gap];
        self.missing(asking, inode, file, stretches, most)
    }

    /// Carries `act` out on bytes of a file, again and again while some of them must be brought.
    pub(super) fn brought<T>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        bytes: &Range<u64>,
        act: impl Fn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match act() {
                Err(error @ (Error::Away | Error::NoPlaces(_))) => {
                    let count = usize::try_from(bytes.end - bytes.start).unwrap_or(usize::MAX);
                    self.bring_to_write(error, asking, inode, file, bytes.start, count)?;
                }
                result => return result,
            }
        }
    }

    /// Finds the placed blocks that are away in some stretches of file blocks. Looks at no more placed blocks than `most` and [`BLOCKS_MAX`].
    pub(super) fn missing<const N: usize>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        stretches: [Range<u64>; N],
        most: u64,
    ) -> Result<Missing> {
        let memory = self.pool.memory();
        let _inside = inode.enter_as(file, asking)?;
        let (mut missing, mut left) = (Missing::new(), BLOCKS_MAX.min(most));
        for stretch in stretches {
            let mut at = stretch.start;
            while at < stretch.end && left > 0 {
                let most = (stretch.end - at).min(left);
                at += match file.map.find(&self.nodes, at, most) {
                    Found::Empty { blocks } => blocks,
                    Found::Placed { block, blocks } => {
                        let node = self.node_for(inode, at, asking);
                        for block in (0..blocks).map(|count| block.plus(count)) {
                            if memory.is_here(block) {
                                continue;
                            }
                            if missing.is_empty() {
                                // It may have come, and nobody has told.
                                memory.end_fetches(block);
                                if memory.is_here(block) {
                                    continue;
                                }
                            }
                            match missing.last_mut() {
                                Some((other, first, count)) if *other == node && first.plus(*count) == block => {
                                    *count += 1
                                }
                                _ => missing.push((node, block, 1)),
                            }
                        }
                        left -= blocks;
                        blocks
                    }
                };
            }
        }
        Ok(missing)
    }

    /// Fetches some of what is missing, the first of it at least: the rest when that was used, lest it is gone again by then.
    fn fetch(&self, missing: &Missing) -> Result<()> {
        match missing.first() {
            Some((node, first, blocks)) => Ok(self.pool.memory().fetch(*node, *first, *blocks)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_windows_grow_in_sequence_and_stop_at_random_reads() {
        let ahead = ReadAhead::default();
        let note = |start: u64| ahead.note(&(start..start + 1), true, u64::MAX);
        assert_eq!(note(0), Some(1..16), "a file is mostly read from its start");
        assert_eq!(note(1), Some(16..48), "the first of the last window");
        assert_eq!(note(7), None, "on its way");
        assert_eq!(note(48), Some(49..112), "behind all windows");
        assert_eq!(note(49), Some(112..240));
        let mut at = 240;
        for _ in 0..10 {
            let window = note(at).expect("the note is in order");
            at = window.end;
        }
        assert_eq!(note(at), Some(at + 1..at + 256));
        assert_eq!(note(5_000_000), None);
        assert_eq!(note(77), None);
        assert_eq!(note(78), Some(79..94), "in order again, and small again");
        assert_eq!(
            ahead.note(&(94..350), true, u64::MAX),
            Some(350..606),
            "as much again as a large read"
        );
        assert_eq!(ahead.note(&(606..607), true, 20), Some(607..617), "no more than fits");
    }

    #[test]
    fn the_largest_window_is_halved_when_blocks_are_evicted_and_doubled_later() {
        let ahead = ReadAhead::default();
        let note = |start: u64, is_coming| ahead.note(&(start..start + 1), is_coming, u64::MAX);
        // The largest of so many windows from the one that begins at `at`, and the last one's begin.
        let follow = |at: u64, windows: u32| {
            (0..windows).fold((0, at), |(largest, at), _| {
                let window = note(at, true).expect("the note is in order");
                (largest.max(window.end - window.start), window.start)
            })
        };
        let (largest, at) = follow(0, 8);
        assert_eq!(largest, 256);
        assert_eq!(note(at + 100, false), Some(at + 101..at + 116), "anew, and small");
        let (largest, at) = follow(at + 101, 8);
        assert_eq!(largest, 128);
        assert_eq!(follow(at, 200).0, 256);
    }
}
