//! Counts of the block layer: per core (software queue) and per hardware queue, and so per device.
//!
//! A core counts in plain numbers of its own and lays them open once per run, by stores that no other core makes. So a
//! reader sees each number as of some run, and counting costs no line that is shared by writers.

use super::request::Operation;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Requests completed, well or not.
    pub requests: u64,
    /// Bytes of those that went well.
    pub bytes: u64,
    /// Time from submission to completion, summed, ns; [`super::Core::run`] tells how exact. It begins again at 0 after 2^64: with 1,000 requests under way, in half a year.
    pub time_ns: u64,
    /// Requests that went wrong.
    pub errors: u64,
}

/// Counts of one software queue: the paper's accounting of applications' requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftwareCounts {
    /// Counts of each [`Operation`].
    pub operations: [OperationCounts; Operation::ALL.len()],
    /// Requests taken.
    pub submitted: u64,
    /// Requests merged into another one.
    pub merged: u64,
    /// Requests not taken for want of a tag.
    pub no_tag: u64,
    /// Requests sent to a hardware queue of another core.
    pub sent: u64,
}

/// Counts of one hardware queue: the accounting of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareCounts {
    /// Calls of the driver.
    pub batches: u64,
    /// Requests that the driver has taken; what was merged is one.
    pub requests: u64,
    /// Requests that it has refused, for later.
    pub refused: u64,
    /// Errors it has told, each retry's too.
    pub errors: u64,
    /// Requests given to it again after an error.
    pub retries: u64,
    /// Requests that were late.
    pub timeouts: u64,
    /// Requests of which it has done a part only.
    pub short: u64,
}

impl SoftwareCounts {
    const WORDS: usize = 4 * Operation::ALL.len() + 4;

    fn words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        for (to, counts) in words.chunks_exact_mut(4).zip(&self.operations) {
            to.copy_from_slice(&[counts.requests, counts.bytes, counts.time_ns, counts.errors]);
        }
        words[Self::WORDS - 4..].copy_from_slice(&[self.submitted, self.merged, self.no_tag, self.sent]);
        words
    }

    fn from_words(words: &[u64; Self::WORDS]) -> Self {
        let mut counts = Self::default();
        for (to, from) in counts.operations.iter_mut().zip(words.chunks_exact(4)) {
            *to = OperationCounts {
                requests: from[0],
                bytes: from[1],
                time_ns: from[2],
                errors: from[3],
            };
        }
        let [submitted, merged, no_tag, sent] = [4, 3, 2, 1].map(|back| words[Self::WORDS - back]);
        Self {
            submitted,
            merged,
            no_tag,
            sent,
            ..counts
        }
    }
}

impl HardwareCounts {
    const WORDS: usize = 7;

    fn words(&self) -> [u64; Self::WORDS] {
        [
            self.batches,
            self.requests,
            self.refused,
            self.errors,
            self.retries,
            self.timeouts,
            self.short,
        ]
    }

    fn from_words(words: &[u64; Self::WORDS]) -> Self {
        let [batches, requests, refused, errors, retries, timeouts, short] = *words;
        Self {
            batches,
            requests,
            refused,
            errors,
            retries,
            timeouts,
            short,
        }
    }
}

impl std::ops::AddAssign for SoftwareCounts {
    fn add_assign(&mut self, other: Self) {
        let mut words = self.words();
        for (word, more) in words.iter_mut().zip(other.words()) {
            *word = word.wrapping_add(more);
        }
        *self = Self::from_words(&words);
    }
}

/// Counts that others can read. Two lines apart from everything else.
#[derive(Debug)]
#[repr(align(128))]
struct Open<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Open<WORDS> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Relaxed: nothing is ordered by counts.
    fn set(&self, words: &[u64; WORDS]) {
        for (to, word) in self.0.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    fn read(&self) -> [u64; WORDS] {
        std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }
}

/// A core's, laid open.
#[derive(Debug)]
pub(super) struct OpenSoftware(Open<{ SoftwareCounts::WORDS }>);

impl OpenSoftware {
    pub(super) fn new() -> Self {
        Self(Open::new())
    }

    pub(super) fn set(&self, counts: &SoftwareCounts) {
        self.0.set(&counts.words());
    }

    pub(super) fn read(&self) -> SoftwareCounts {
        SoftwareCounts::from_words(&self.0.read())
    }
}

/// A hardware queue's, laid open.
#[derive(Debug)]
pub(super) struct OpenHardware(Open<{ HardwareCounts::WORDS }>);

impl OpenHardware {
    pub(super) fn new() -> Self {
        Self(Open::new())
    }

    pub(super) fn set(&self, counts: &HardwareCounts) {
        self.0.set(&counts.words());
    }

    pub(super) fn read(&self) -> HardwareCounts {
        HardwareCounts::from_words(&self.0.read())
    }
}
