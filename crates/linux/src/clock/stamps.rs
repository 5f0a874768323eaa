//! Stamps of requests, read twice for each.
//!
//! Cost: some 20 cycles where the processor counts evenly, else a call of the vDSO.

#[cfg(target_arch = "x86_64")]
use super::cycles::{self, Scale};
use homenode_engine::blk::Time;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a steady clock, for stamps of single requests.
///
/// Reads the processor's time-stamp counter where it is invariant: it counts evenly whatever the clock frequency and the sleep
/// states. Reads `CLOCK_MONOTONIC` elsewhere, and where the kernel had found the counter wrong before a process made its first clock.
/// The counter is compared with the kernel's clock once in a process, for 10 ms: its
/// nanoseconds are good to 1 in 10,000. The processor may read it some dozen cycles before the instructions in front of
/// it are done.
#[derive(Clone, Copy, Debug)]
pub struct StampClock {
    #[cfg(target_arch = "x86_64")]
    scale: Option<Scale>,
}

impl StampClock {
    /// Makes one; the first one of a process takes 10 ms.
    #[must_use]
    pub fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            scale: cycles::scale(),
        }
    }
}

impl Default for StampClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Time for StampClock {
    #[inline]
    fn now(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if let Some(scale) = &self.scale {
            return scale.ns(cycles::read());
        }
        monotonic_ns()
    }
}

/// `CLOCK_MONOTONIC`, ns.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn agrees_with_the_kernels_clock() {
        let clock = StampClock::new();
        let (begin, exact) = (clock.now(), Instant::now());
        while exact.elapsed() < Duration::from_millis(50) {}
        let (found, exact) = (clock.now() - begin, exact.elapsed());
        let exact = u64::try_from(exact.as_nanos()).unwrap();
        assert!(found.abs_diff(exact) < exact / 50, "{found} ns, exact {exact} ns");
    }

    #[test]
    fn stamps_never_go_back() {
        let clock = StampClock::new();
        let mut last = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    }

    #[test]
    fn all_clocks_of_a_process_tell_the_same_time() {
        let (one, other) = (StampClock::new(), StampClock::new());
        let (before, between, after) = (one.now(), other.now(), one.now());
        assert!((before..=after).contains(&between));
    }
}
