//! Histograms of how long requests took, in constant memory.
//!
//! A bucket is a 32nd of a power of two of nanoseconds, so a quantile is at most a 32nd too long. Times of 2^40 ns (18
//! minutes) and more are in the last bucket. One thread counts, by plain loads and stores; others read at any time.

use super::request::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of one power of two: 32.
const LINEAR_BITS: u32 = 5;
const LINEAR: u64 = 1 << LINEAR_BITS;
/// Longest time that is told from shorter ones.
const NS_MAX: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket(NS_MAX) + 1;
const _: () = assert!(BUCKETS == 1152);

/// Index of the bucket that a time is counted in: its power of two, and the bits that follow the highest one.
#[expect(clippy::cast_possible_truncation, reason = "below BUCKETS")]
#[inline]
const fn bucket(ns: u64) -> usize {
    let ns = if ns > NS_MAX { NS_MAX } else { ns };
    let shift = (ns | LINEAR).ilog2() - LINEAR_BITS;
    ((shift as usize) << LINEAR_BITS) + (ns >> shift) as usize
}

/// Longest time that is counted in a bucket, ns.
const fn longest(bucket: usize) -> u64 {
    let shift = (bucket as u64 >> LINEAR_BITS).saturating_sub(1);
    let first = bucket as u64 - (shift << LINEAR_BITS);
    ((first + 1) << shift) - 1
}

/// Times from submission to completion of many requests, as a histogram.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Box<[u64]>,
}

impl Latencies {
    fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS].into(),
        }
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Time that `part` of the requests took at most (0.5: the median), ns; at most a 32nd too long. `None` without requests.
    ///
    /// # Panics
    /// When `part` is not within 0 to 1.
    #[must_use]
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        assert!((0.0..=1.0).contains(&part), "the part {part} is not within 0 to 1");
        let wanted = (self.requests() as f64 * part).ceil().max(1.0);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        });
        found.map(longest)
    }
}

/// Histograms of one core, by operation, which other threads can read.
#[derive(Debug)]
pub(super) struct OpenLatencies {
    counts: Box<[[AtomicU64; BUCKETS]]>,
}

impl OpenLatencies {
    pub(super) fn new() -> Self {
        let histogram = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            counts: Operation::ALL.iter().map(histogram).collect(),
        }
    }

    /// Counts one request. Called by one thread at a time.
    #[inline]
    pub(super) fn record(&self, operation: Operation, ns: u64) {
        let count = &self.counts[operation as usize][bucket(ns)];
        // Relaxed: nothing is ordered by counts, and only this thread writes them.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Sum of the histograms of several cores.
pub(super) fn sum<'a>(cores: impl Iterator<Item = &'a OpenLatencies>, operation: Operation) -> Latencies {
    let mut all = Latencies::new();
    for core in cores {
        for (sum, count) in all.counts.iter_mut().zip(&core.counts[operation as usize]) {
            // Relaxed: as in `record`.
            *sum += count.load(Ordering::Relaxed);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_a_32nd_wide_at_most() {
        let mut next = 0;
        for index in 0..BUCKETS {
            assert_eq!(bucket(next), index, "{next} ns");
            let last = longest(index);
            assert_eq!(bucket(last), index, "{last} ns");
            assert!(last - next <= next / 32, "{next} to {last} ns");
            next = last + 1;
        }
        assert_eq!(next, NS_MAX + 1);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_known_times() {
        let (one, other) = (OpenLatencies::new(), OpenLatencies::new());
        for ns in 1..=900 {
            one.record(Operation::Read, ns);
        }
        for ns in 901..=1000 {
            other.record(Operation::Read, ns);
        }
        other.record(Operation::Write, 5);
        let reads = sum([&one, &other].into_iter(), Operation::Read);
        assert_eq!(reads.requests(), 1000);
        for (part, exact) in [(0.0, 1), (0.001, 1), (0.03, 30), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = reads.quantile_ns(part).unwrap();
            assert!((exact..=exact + exact / 32).contains(&found), "{part}: {found}");
        }
        assert_eq!(sum([&one].into_iter(), Operation::Write).quantile_ns(0.5), None);
    }
}
