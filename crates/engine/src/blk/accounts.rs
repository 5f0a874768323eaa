//! Counts of the block layer: per core (software queue) and per hardware queue, and so per device.
//!
//! A core counts in plain numbers of its own and lays them open once per run, by stores that no other core makes. So a
//! reader sees each number as of some run, and counting costs no line that is shared by writers.

use super::request::Operation;
use std::marker::PhantomData;
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

/// Counts that others can read, each in a word.
pub(super) trait Counts: Copy + Default {
    /// Calls `act` for each, always in the same order.
    fn each(&mut self, act: impl FnMut(&mut u64));
}

impl Counts for SoftwareCounts {
    fn each(&mut self, mut act: impl FnMut(&mut u64)) {
        for counts in &mut self.operations {
            let OperationCounts {
                requests,
                bytes,
                time_ns,
                errors,
            } = counts;
            [requests, bytes, time_ns, errors].into_iter().for_each(&mut act);
        }
        let Self {
            operations: _,
            submitted,
            merged,
            no_tag,
            sent,
        } = self;
        [submitted, merged, no_tag, sent].into_iter().for_each(act);
    }
}

impl Counts for HardwareCounts {
    fn each(&mut self, act: impl FnMut(&mut u64)) {
        let Self {
            batches,
            requests,
            refused,
            errors,
            retries,
            timeouts,
            short,
        } = self;
        [batches, requests, refused, errors, retries, timeouts, short]
            .into_iter()
            .for_each(act);
    }
}

impl std::ops::AddAssign for SoftwareCounts {
    fn add_assign(&mut self, mut other: Self) {
        let mut more = Vec::new();
        other.each(|count| more.push(*count));
        let mut more = more.into_iter();
        self.each(|count| *count = count.wrapping_add(more.next().expect("both have as many")));
    }
}

/// Counts laid open by the thread that counts. Two lines apart from everything else.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Open<C, const WORDS: usize> {
    words: [AtomicU64; WORDS],
    counts: PhantomData<C>,
}

/// A core's.
pub(super) type OpenSoftware = Open<SoftwareCounts, { size_of::<SoftwareCounts>() / size_of::<u64>() }>;
/// A hardware queue's.
pub(super) type OpenHardware = Open<HardwareCounts, { size_of::<HardwareCounts>() / size_of::<u64>() }>;

impl<C: Counts, const WORDS: usize> Open<C, WORDS> {
    pub(super) fn new() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            counts: PhantomData,
        }
    }

    /// Relaxed: nothing is ordered by counts.
    pub(super) fn set(&self, counts: &C) {
        let (mut counts, mut words) = (*counts, self.words.iter());
        counts.each(|count| words.next().expect(A_WORD_EACH).store(*count, Ordering::Relaxed));
    }

    pub(super) fn read(&self) -> C {
        let (mut counts, mut words) = (C::default(), self.words.iter());
        counts.each(|count| *count = words.next().expect(A_WORD_EACH).load(Ordering::Relaxed));
        counts
    }
}

const A_WORD_EACH: &str = "there is a word for each count";
