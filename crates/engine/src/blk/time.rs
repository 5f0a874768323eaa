//! Time as a core gets it: told once or twice per run, or read at both ends of each request.

use super::latencies::OpenLatencies;
use super::request::Operation;
use super::slot::Slot;
use std::sync::Arc;

/// Source of the time: a function that reads a clock, or a moment that was read before.
pub trait Time {
    /// Nanoseconds since some moment, which is the same for all cores; they do not go back.
    fn now(&self) -> u64;
}

impl Time for u64 {
    #[inline]
    fn now(&self) -> u64 {
        *self
    }
}

impl<F: Fn() -> u64> Time for F {
    #[inline]
    fn now(&self) -> u64 {
        self()
    }
}

/// Way in which a core finds out how long its requests take: [`ByRun`] or [`ByRequest`].
pub trait Timing: sealed::Timing {}

/// Timing of a core that reads no clock for a request: see [`super::Core::run`] for how exact that is.
#[derive(Clone, Copy, Debug)]
pub struct ByRun(());

/// Timing of a core that reads a clock when a request is submitted and when its completion is told, and counts the time
/// in a histogram. See [`super::Device::join_timed`].
#[derive(Debug)]
pub struct ByRequest<T> {
    time: T,
    latencies: Arc<OpenLatencies>,
    /// Times that are not in the histogram yet, the first `noted` of them. A store to an address that comes from the clock holds up the next
    /// reading of the clock: 7 of the 30 ns of a request. So they are counted together, behind the readings of a run.
    notes: Box<[(Operation, u64); NOTES]>,
    noted: usize,
}

/// Times that are noted before they are counted.
const NOTES: usize = 64;

impl Timing for ByRun {}
impl<T: Time> Timing for ByRequest<T> {}

impl ByRun {
    pub(super) const NEW: Self = Self(());
}

impl<T> ByRequest<T> {
    pub(super) fn new(time: T, latencies: Arc<OpenLatencies>) -> Self {
        Self {
            time,
            latencies,
            notes: Box::new([(Operation::Read, 0); NOTES]),
            noted: 0,
        }
    }

    fn count_noted(&mut self) {
        for (operation, ns) in &self.notes[..self.noted] {
            self.latencies.record(*operation, *ns);
        }
        self.noted = 0;
    }
}

/// Moments that a core knows between two runs, ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Latest moment that it was told.
    pub(super) now: u64,
    /// Moment before which none of its requests was submitted, as far as it was told.
    pub(super) busy_since: u64,
}

#[expect(private_interfaces, reason = "only this module's types implement it")]
mod sealed {
    use super::{ByRequest, ByRun, Known, NOTES, Slot, Time};

    pub trait Timing {
        /// Stamp of a request that is submitted now, ns.
        fn begin(&self, known: &Known) -> u64;

        /// Time that a request took whose completion is told now, ns.
        fn end(&mut self, slot: &Slot, known: &Known) -> u64;

        /// Counts what was not counted yet: behind the completions of a run.
        fn end_run(&mut self) {}
    }

    impl Timing for ByRun {
        #[inline]
        fn begin(&self, known: &Known) -> u64 {
            known.now
        }

        #[inline]
        fn end(&mut self, slot: &Slot, known: &Known) -> u64 {
            known.now.saturating_sub(slot.since_ns.max(known.busy_since))
        }
    }

    impl<T: Time> Timing for ByRequest<T> {
        #[inline]
        fn begin(&self, _known: &Known) -> u64 {
            self.time.now()
        }

        #[inline]
        fn end(&mut self, slot: &Slot, _known: &Known) -> u64 {
            let ns = self.time.now().saturating_sub(slot.since_ns);
            if self.noted == NOTES {
                self.count_noted();
            }
            self.notes[self.noted] = (slot.request.operation, ns);
            self.noted += 1;
            ns
        }

        #[inline]
        fn end_run(&mut self) {
            self.count_noted();
        }
    }
}
