//! Requests to a disk that failed lately, and of which blocks: so that all are told who relied on one of them, and nobody else.

use std::ops::Range;

/// Most failures that are told apart.
pub(super) const KEPT: usize = 256;

/// The last requests that failed; of those of the same blocks, the last one.
#[derive(Debug)]
pub(super) struct Failures {
    count: u64,
    /// Number of each, counted from one, with its blocks.
    last: [(u64, u64, u64); KEPT],
    /// Highest number of one that is not kept, though it was the last of its blocks.
    unknown: u64,
}

impl Default for Failures {
    fn default() -> Self {
        Self {
            count: 0,
            last: [(0, 0, 0); KEPT],
            unknown: 0,
        }
    }
}

impl Failures {
    /// How many there were so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn note(&mut self, blocks: &Range<u64>) {
        self.count += 1;
        let same = self.last.iter().position(|(_, start, end)| (*start..*end) == *blocks);
        let oldest = || (0..KEPT).min_by_key(|at| self.last[*at].0).expect("KEPT > 0");
        let place = same.unwrap_or_else(oldest);
        if same.is_none() {
            self.unknown = self.last[place].0;
        }
        self.last[place] = (self.count, blocks.start, blocks.end);
    }

    /// Whether a request of some of `blocks` failed since there were `before` failures. True when it is not known any more.
    pub(super) fn met(&self, before: u64, blocks: &Range<u64>) -> bool {
        let is_met =
            |(number, start, end): &(u64, u64, u64)| *number > before && *start < blocks.end && blocks.start < *end;
        self.unknown > before || self.last.iter().any(is_met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_seen_only_by_callers_of_its_blocks() {
        let mut failures = Failures::default();
        failures.note(&(0..10));
        let before = failures.count();
        assert!(!failures.met(before, &(0..100)), "the failure is older");
        failures.note(&(10..20));
        assert!(failures.met(before, &(19..30)) && failures.met(before, &(0..11)));
        assert!(!failures.met(before, &(0..10)) && !failures.met(before, &(20..30)));
        (0..1000).for_each(|_| failures.note(&(90..91)));
        assert!(
            failures.met(before, &(10..11)) && !failures.met(before, &(50..51)),
            "equal ranges are kept once"
        );
        let before = failures.count();
        (0..1 + KEPT as u64).for_each(|at| failures.note(&(at..at + 1)));
        assert!(failures.met(before, &(900..901)), "too many failures to distinguish");
        assert!(!failures.met(failures.count() - 10, &(900..901)));
    }
}
