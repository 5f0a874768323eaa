//! A few ranges of a file's blocks, to which several threads add at once without a lock.

use homenode_shared::BlockMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// File blocks that a range can name; it goes to the end of the file from there on.
const FAR: u64 = u32::MAX as u64;
/// Ranges besides the first one. Filesystems in a volume write their journal, their tables and their data in turns.
const MORE: usize = 7;
/// Blocks between two ranges from which on they are kept apart: with those between them a sync would not put them into the log.
const APART_BLOCKS: u64 = 8;

/// Ranges of file blocks; each a word: the first block, and above it the one behind the last. 0: none. All that was added is in one of them, and blocks
/// between two of them may be too.
#[derive(Debug, Default)]
pub(in crate::fs) struct Ranges {
    first: AtomicU64,
    /// For files that are written in several places far from each other.
    more: OnceLock<Box<[AtomicU64; MORE]>>,
}

impl Ranges {
    /// Adds blocks; true when a range began with them. One range is looked at faster than several: blocks that lie far from all others begin another one
    /// only if they are to be kept `apart`.
    pub(in crate::fs) fn add(&self, blocks: Range<u64>, apart: bool) -> bool {
        let (start, end) = (blocks.start.min(FAR - 1), blocks.end.min(FAR));
        if start >= end {
            return false;
        }
        let new = start | end << 32;
        loop {
            let (word, before) = self.nearest(new, apart);
            // The barrier pairs with that of `move_to`.
            let added = word.compare_exchange(before, joined(before, new), Ordering::SeqCst, Ordering::Relaxed);
            if added.is_ok() {
                return before == 0;
            }
        }
    }

    /// The word that a range belongs to, and its value: the nearest one, or an empty one if that is far.
    fn nearest(&self, new: u64, apart: bool) -> (&AtomicU64, u64) {
        let valued = |word| (word, AtomicU64::load(word, Ordering::Relaxed));
        let first = valued(&self.first);
        if !apart || first.1 == 0 || gap(first.1, new) < APART_BLOCKS {
            return first;
        }
        let more = self.more.get_or_init(Box::default);
        let all = || std::iter::once(first).chain(more.iter().map(valued));
        let cost = |(_, value): &(_, u64)| match value {
            0 => APART_BLOCKS,
            value => gap(*value, new),
        };
        all().min_by_key(cost).expect("there is a first one")
    }

    /// True when all these blocks were added, in one range.
    #[inline]
    pub(in crate::fs) fn hold(&self, blocks: &Range<u64>) -> bool {
        let is_in = |word: &AtomicU64| {
            let Range { start, end } = unpack(word.load(Ordering::Relaxed));
            start <= blocks.start && blocks.end.min(FAR) <= end
        };
        is_in(&self.first) || self.more.get().is_some_and(|more| more.iter().any(is_in))
    }

    /// True when there is none.
    pub(in crate::fs) fn is_empty(&self) -> bool {
        self.words().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Moves all ranges to others, to which nobody else adds; each is there before it is no longer here.
    pub(in crate::fs) fn move_to(&self, others: &Self) {
        for word in self.words() {
            loop {
                let value = word.load(Ordering::SeqCst);
                others.add(unpack(value), true);
                // Bytes that were stored before their blocks were added are seen by whoever has moved them.
                let moved = word.compare_exchange(value, 0, Ordering::SeqCst, Ordering::Relaxed);
                if moved.is_ok() {
                    break;
                }
            }
        }
    }

    /// Forgets all of them. Nobody may add meanwhile.
    pub(in crate::fs) fn clear(&self) {
        self.words().for_each(|word| word.store(0, Ordering::SeqCst));
    }

    /// All of them, ascending and apart. An end of [`BlockMap::LIMIT`] stands for all that follows.
    pub(in crate::fs) fn list(&self) -> Vec<Range<u64>> {
        let mut all: Vec<_> = self.words().map(|word| unpack(word.load(Ordering::SeqCst))).collect();
        all.retain(|range| !range.is_empty());
        all.sort_unstable_by_key(|range| range.start);
        all.dedup_by(|next, range| {
            let meets = next.start <= range.end;
            range.end = if meets { range.end.max(next.end) } else { range.end };
            meets
        });
        for range in &mut all {
            range.end = if range.end == FAR { BlockMap::LIMIT } else { range.end };
        }
        all
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        std::iter::once(&self.first).chain(self.more.get().into_iter().flat_map(|more| more.iter()))
    }
}

/// The least range that holds two packed ones, of which the second is not empty.
fn joined(a: u64, b: u64) -> u64 {
    match a {
        0 => b,
        _ => (a & FAR).min(b & FAR) | (a >> 32).max(b >> 32) << 32,
    }
}

/// Blocks between two packed ranges.
fn gap(a: u64, b: u64) -> u64 {
    let (a, b) = (unpack(a), unpack(b));
    a.start.max(b.start).saturating_sub(a.end.min(b.end))
}

fn unpack(word: u64) -> Range<u64> {
    word & FAR..word >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAR_APART: u64 = 10_000;

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    #[test]
    fn few_places_far_from_each_other_stay_apart() {
        let ranges = Ranges::default();
        let all: Vec<_> = (0..=MORE as u64).map(|at| at * FAR_APART..at * FAR_APART + 3).collect();
        for range in all.iter().rev() {
            assert!(ranges.add(range.clone(), true));
            assert!(!ranges.add(range.clone(), true) && ranges.hold(range));
        }
        assert_eq!(ranges.list(), all);
        // One more is joined with the nearest.
        assert!(!ranges.add(2 * FAR_APART + 2000..2 * FAR_APART + 2001, true));
        assert_eq!(ranges.list()[2], 2 * FAR_APART..2 * FAR_APART + 2001);
        assert_eq!(ranges.list().len(), all.len());
    }

    #[test]
    fn what_lies_near_is_one_range() {
        let ranges = Ranges::default();
        assert!(ranges.is_empty() && !ranges.add(5..5, true) && ranges.is_empty());
        assert!(ranges.add(7..8, true));
        assert!(!ranges.add(15..16, true));
        assert_eq!(ranges.list(), one(7..16));
        assert!(ranges.hold(&(8..9)) && !ranges.hold(&(6..9)));
        assert!(ranges.more.get().is_none(), "no second range, no memory for one");
        assert!(ranges.add(FAR + 9..BlockMap::LIMIT, true));
        assert_eq!(ranges.list(), [7..16, FAR - 1..BlockMap::LIMIT]);
        let joined = Ranges::default();
        assert!(joined.add(7..8, false) && !joined.add(5000..5001, false));
        assert_eq!(joined.list(), one(7..5001));
        ranges.clear();
        assert!(ranges.is_empty() && ranges.list().is_empty());
    }

    proptest! {
        #[test]
        fn all_that_is_added_is_there_until_it_is_moved(
            added in prop::collection::vec((0u64..2000, 1u64..30, any::<bool>(), any::<bool>()), 1..40)
        ) {
            let (ranges, moved) = (Ranges::default(), Ranges::default());
            for (at, blocks, apart, moves) in &added {
                let range = *at..at + blocks;
                ranges.add(range.clone(), *apart);
                prop_assert!(ranges.hold(&range));
                if *moves {
                    ranges.move_to(&moved);
                    prop_assert!(ranges.is_empty());
                }
            }
            ranges.move_to(&moved);
            let all = moved.list();
            prop_assert!(all.is_sorted_by(|a, b| a.end < b.start));
            for (at, blocks, ..) in added {
                prop_assert!(all.iter().any(|range| range.start <= at && at + blocks <= range.end));
            }
        }
    }

    #[test]
    fn nothing_is_lost_between_adding_and_moving() {
        const BLOCKS: u64 = 30_000;
        let (ranges, seen) = (Ranges::default(), Ranges::default());
        let is_there = |block: u64| seen.hold(&(block..block + 1)) || ranges.hold(&(block..block + 1));
        std::thread::scope(|scope| {
            let ranges = &ranges;
            let add = move |thread| {
                for at in (0..BLOCKS).map(|at| (2 * at + thread) * 517) {
                    ranges.add(at..at + 1, at % 2 == 0);
                }
            };
            let adders = [0, 1].map(|thread| scope.spawn(move || add(thread)));
            while adders.iter().any(|adder| !adder.is_finished()) {
                ranges.move_to(&seen);
            }
        });
        ranges.move_to(&seen);
        let all = seen.list();
        let is_listed = |block: u64| all.iter().any(|range| range.contains(&block));
        assert!((0..2 * BLOCKS).all(|at| is_there(at * 517) || is_listed(at * 517)));
    }
}
