//! The free runs of one order: a bitmap whose zero words cost nothing to skip.
//!
//! Level 0 has one bit a run. Each bit of level n + 1 says whether the word of level n below it is not zero; the last
//! level is one word. Insert, remove and "lowest set bit from here" touch at most one word a level: five levels for the
//! 2^28 single blocks of 1 TiB.
//!
//! Words come zeroed from the allocator, which takes them untouched from the kernel: a level that is never written
//! costs address space and no memory.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

const WORD_BITS: u64 = u64::BITS as u64;

/// A set of run indices below a fixed bound.
pub(super) struct RunSet {
    levels: Vec<Vec<u64>>,
    runs_max: u64,
    runs: u64,
}

impl RunSet {
    /// An empty set for the indices below `runs_max`.
    pub(super) fn new(runs_max: u64) -> Self {
        let mut levels = Vec::new();
        let mut bits = runs_max;
        loop {
            let words = bits.div_ceil(WORD_BITS);
            levels.push(vec![0; position(words.max(1))]);
            if words <= 1 {
                break;
            }
            bits = words;
        }
        Self {
            levels,
            runs_max,
            runs: 0,
        }
    }

    /// How many runs are in the set.
    pub(super) fn len(&self) -> u64 {
        self.runs
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs == 0
    }

    /// Whether `run` is in the set; an index beyond the bound is not.
    pub(super) fn contains(&self, run: u64) -> bool {
        run < self.runs_max && self.levels[0][position(run / WORD_BITS)] & bit(run) != 0
    }

    /// Puts `run` in; it must not be there.
    pub(super) fn insert(&mut self, run: u64) {
        debug_assert!(run < self.runs_max && !self.contains(run));
        self.runs += 1;
        let mut index = run;
        for level in &mut self.levels {
            let word = &mut level[position(index / WORD_BITS)];
            let was_empty = *word == 0;
            *word |= bit(index);
            if !was_empty {
                return;
            }
            index /= WORD_BITS;
        }
    }

    /// Takes `run` out; it must be there.
    pub(super) fn remove(&mut self, run: u64) {
        debug_assert!(self.contains(run));
        self.runs -= 1;
        let mut index = run;
        for level in &mut self.levels {
            let word = &mut level[position(index / WORD_BITS)];
            *word &= !bit(index);
            if *word != 0 {
                return;
            }
            index /= WORD_BITS;
        }
    }

    /// The lowest run of the set that is not below `from`.
    pub(super) fn first_from(&self, from: u64) -> Option<u64> {
        let mut index = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(position(index / WORD_BITS))? & (u64::MAX << (index % WORD_BITS));
            if word != 0 {
                let found = index / WORD_BITS * WORD_BITS + u64::from(word.trailing_zeros());
                return Some(self.descend(height, found));
            }
            index = index / WORD_BITS + 1;
        }
        None
    }

    /// The lowest run below the set bit `index` of the level `height`.
    fn descend(&self, height: usize, index: u64) -> u64 {
        self.levels[..height].iter().rev().fold(index, |index, level| {
            index * WORD_BITS + u64::from(level[position(index)].trailing_zeros())
        })
    }

    /// All runs, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        core::iter::successors(self.first_from(0), |run| self.first_from(run + 1))
    }

    /// Panics unless every summary bit tells the truth and the count is right.
    pub(super) fn check_invariants(&self) {
        let set: u64 = self.levels[0].iter().map(|word| u64::from(word.count_ones())).sum();
        assert_eq!(set, self.runs, "count of runs");
        for pair in self.levels.windows(2) {
            for (index, word) in pair[0].iter().enumerate() {
                let summary = pair[1][index / 64] >> (index % 64) & 1 == 1;
                assert_eq!(summary, *word != 0, "summary bit of word {index}");
            }
        }
        assert!(self.first_from(self.runs_max).is_none(), "a run beyond the bound");
    }
}

impl fmt::Debug for RunSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.runs, self.runs_max)
    }
}

const fn bit(index: u64) -> u64 {
    1 << (index % WORD_BITS)
}

fn position(index: u64) -> usize {
    usize::try_from(index).expect("an index into memory fits a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_run_is_found_from_any_start() {
        for runs_max in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut set = RunSet::new(runs_max);
            assert_eq!(set.first_from(0), None);
            for run in [0, runs_max / 2, runs_max - 1] {
                if !set.contains(run) {
                    set.insert(run);
                }
            }
            set.check_invariants();
            assert_eq!(set.first_from(0), Some(0));
            assert_eq!(set.first_from(runs_max / 2), Some(runs_max / 2));
            assert_eq!(set.first_from(runs_max / 2 + 1).unwrap_or(runs_max - 1), runs_max - 1);
            assert_eq!(set.first_from(runs_max), None);
            assert_eq!(set.first_from(u64::MAX), None);
            assert!(!set.contains(runs_max) && !set.contains(u64::MAX));
            let all: Vec<u64> = set.iter().collect();
            for run in all {
                set.remove(run);
                set.check_invariants();
            }
            assert!(set.is_empty());
        }
    }

    #[test]
    fn an_empty_run_set_finds_nothing() {
        let set = RunSet::new(0);
        set.check_invariants();
        assert!(!set.contains(0));
        assert_eq!(set.first_from(0), None);
    }
}
