//! A token bucket that cores and devices share: so many units a second, and a burst at once after a rest.
//!
//! Kept as one time, when the bucket will be full again (the generic cell rate algorithm's theoretical arrival time): a
//! request moves it by the time that its units take to come in, unless it would then be more than the burst ahead of now.
//! Invariants: between any two moments no more passes than the burst and what came in between them; but a request that is
//! larger than the burst passes when the bucket is full, and those behind it wait for it. Who takes never waits here.
//! Cost: two multiplications and a compare-exchange. A request is charged up to a nanosecond too much.

use crate::sync::{AtomicU64, Backoff, Ordering};

/// Fraction bits of `Bucket::unit_time`.
const FRACTION_BITS: u32 = 32;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// In `Bucket::full_at_ns` while the rate changes: nobody takes.
const CHANGING: u64 = u64::MAX;

/// After how long to try again while the rate changes.
const CHANGE_NS: u64 = 1000;

/// See the module. On two cache lines of its own, as many cores write it.
#[derive(Debug)]
#[repr(align(128))]
pub struct Bucket {
    /// When the bucket is full again if nothing else is taken, in ns.
    full_at_ns: AtomicU64,
    /// Time in which a unit comes in, in ns with fraction bits. Written while `full_at_ns` is `CHANGING`, as the burst.
    unit_time: AtomicU64,
    burst_units: AtomicU64,
}

impl Bucket {
    /// A full bucket. A rate of 0 is taken for 1, the slowest.
    #[must_use]
    pub fn new(units_per_second: u64, burst_units: u64) -> Self {
        Self {
            full_at_ns: AtomicU64::new(0),
            unit_time: AtomicU64::new(unit_time(units_per_second)),
            burst_units: AtomicU64::new(burst_units),
        }
    }

    /// Takes `units` at `now_ns`, which may be behind what another core gave before.
    ///
    /// # Errors
    /// The time in ns at which to try again: then they pass if nobody else has taken any and the rate is the same.
    #[inline]
    pub fn take(&self, now_ns: u64, units: u64) -> Result<(), u64> {
        loop {
            // Acquire pairs with the release in `set`: the rate read below is the one this time was made with, or newer.
            let full_at_ns = self.full_at_ns.load(Ordering::Acquire);
            if full_at_ns == CHANGING {
                return Err(now_ns.saturating_add(CHANGE_NS));
            }
            // Acquire pairs with the release in `set`: whoever reads a newer rate finds the time changed below.
            let unit_time = self.unit_time.load(Ordering::Acquire);
            let burst_units = self.burst_units.load(Ordering::Acquire);
            // Rounded so that the rate and the burst are never exceeded.
            let needed_ns = time_up(unit_time, units);
            let ahead_ns = time_down(unit_time, burst_units).saturating_sub(needed_ns);
            let ready_ns = full_at_ns.saturating_sub(ahead_ns);
            if now_ns < ready_ns {
                return Err(ready_ns);
            }
            let then_ns = full_at_ns.max(now_ns).saturating_add(needed_ns).min(CHANGING - 1);
            // Relaxed: nothing but the time itself passes from one who takes to the next.
            let moved =
                self.full_at_ns
                    .compare_exchange_weak(full_at_ns, then_ns, Ordering::Relaxed, Ordering::Relaxed);
            if moved.is_ok() {
                return Ok(());
            }
        }
    }

    /// Changes the rate and the burst. The units that are missing at `now_ns` are still missing, and come in at the new
    /// rate.
    pub fn set(&self, now_ns: u64, units_per_second: u64, burst_units: u64) {
        let mut backoff = Backoff::default();
        let full_at_ns = loop {
            // Acquire pairs with the release below, by another thread that changes the rate.
            match self.full_at_ns.swap(CHANGING, Ordering::Acquire) {
                CHANGING => backoff.wait(),
                full_at_ns => break full_at_ns,
            }
        };
        // Relaxed: written by one thread at a time.
        let before = self.unit_time.load(Ordering::Relaxed);
        let unit_time = unit_time(units_per_second);
        // Release: behind the swap, so that whoever reads one of these finds the time he read before gone.
        self.unit_time.store(unit_time, Ordering::Release);
        self.burst_units.store(burst_units, Ordering::Release);
        let missing_ns = u128::from(full_at_ns.saturating_sub(now_ns)) * u128::from(unit_time);
        let missing_ns = saturated(missing_ns.div_ceil(u128::from(before)));
        let mut then_ns = now_ns.saturating_add(missing_ns).min(CHANGING - 2);
        if then_ns == full_at_ns {
            // Whoever read the time with the rate before must not find it again.
            then_ns += 1;
        }
        // Release: whoever reads the time reads the rate.
        self.full_at_ns.store(then_ns, Ordering::Release);
    }
}

/// Rounded up: no faster than the rate. At least one unit of the last fraction bit.
fn unit_time(units_per_second: u64) -> u64 {
    (NS_PER_SECOND << FRACTION_BITS).div_ceil(units_per_second.max(1))
}

/// Time in which `units` come in, in whole ns, rounded up.
#[inline(always)]
fn time_up(unit_time: u64, units: u64) -> u64 {
    let time = u128::from(unit_time) * u128::from(units) + ((1 << FRACTION_BITS) - 1);
    saturated(time >> FRACTION_BITS)
}

/// Returns the time in which `units` come in, in whole ns, rounded down.
#[inline(always)]
fn time_down(unit_time: u64, units: u64) -> u64 {
    saturated((u128::from(unit_time) * u128::from(units)) >> FRACTION_BITS)
}

#[inline(always)]
fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: u64 = NS_PER_SECOND;

    #[test]
    fn a_bucket_passes_a_burst_and_then_the_rate() {
        let bucket = Bucket::new(1000, 10);
        for _ in 0..10 {
            assert_eq!(bucket.take(SECOND, 1), Ok(()));
        }
        assert_eq!(bucket.take(SECOND, 1), Err(SECOND + 1_000_000));
        assert_eq!(bucket.take(SECOND + 999_999, 1), Err(SECOND + 1_000_000));
        assert_eq!(bucket.take(SECOND + 1_000_000, 1), Ok(()));
        assert_eq!(bucket.take(SECOND + 1_000_000, 3), Err(SECOND + 4_000_000));
        assert_eq!(bucket.take(9 * SECOND, 10), Ok(()), "it does not fill above the burst");
        assert_eq!(bucket.take(9 * SECOND, 1), Err(9 * SECOND + 1_000_000));
    }

    #[test]
    fn a_full_bucket_passes_more_than_the_burst_and_charges_it() {
        for burst in [0, 10] {
            let bucket = Bucket::new(1000, burst);
            assert_eq!(bucket.take(SECOND, 500), Ok(()));
            let full_at = SECOND + 500_000_000;
            assert_eq!(bucket.take(SECOND, 500), Err(full_at));
            assert_eq!(bucket.take(full_at, 500), Ok(()));
        }
    }

    #[test]
    fn a_clock_that_lags_gets_no_more() {
        let bucket = Bucket::new(1000, 1);
        assert_eq!(bucket.take(SECOND, 1), Ok(()));
        assert_eq!(bucket.take(SECOND - 5_000_000, 1), Err(SECOND + 1_000_000));
        assert_eq!(bucket.take(SECOND + 1_000_000, 1), Ok(()));
    }

    #[test]
    fn missing_tokens_arrive_at_the_new_rate() {
        let bucket = Bucket::new(1, 100);
        assert_eq!(bucket.take(SECOND, 100), Ok(()));
        bucket.set(SECOND, 1000, 100);
        assert_eq!(bucket.take(SECOND, 10), Err(SECOND + 10_000_000));
        bucket.set(SECOND, 1, 10);
        assert_eq!(
            bucket.take(SECOND, 1),
            Err(92 * SECOND),
            "refused while 100 are missing"
        );
        bucket.set(1000 * SECOND, 1000, 5);
        assert_eq!(bucket.take(1000 * SECOND, 5), Ok(()));
        assert_eq!(bucket.take(1000 * SECOND, 1), Err(1000 * SECOND + 1_000_000));
    }

    #[test]
    fn the_smallest_and_largest_rates_work() {
        let fast = Bucket::new(u64::MAX, u64::MAX);
        assert_eq!(fast.take(0, 1 << 40), Ok(()));
        let slow = Bucket::new(0, u64::MAX);
        assert_eq!(slow.take(0, u64::MAX), Ok(()));
        assert_eq!(slow.take(0, u64::MAX), Err(u64::MAX - 1));
        slow.set(0, u64::MAX, 0);
        slow.set(0, 0, 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::beside;
    use std::sync::Arc;

    /// Returns the most units that may pass by `now_ns`, if the bucket was full at 100.
    fn limit(now_ns: u64) -> u64 {
        3 + (now_ns - 100)
    }

    /// Two cores with clocks that differ take no more than the burst and what came in.
    #[test]
    fn two_cores_together_stay_within_the_rate() {
        loom::model(|| {
            // A unit every ns.
            let bucket = Arc::new(Bucket::new(NS_PER_SECOND, 3));
            let take = |bucket: &Bucket, times: [u64; 2]| -> u64 {
                times
                    .iter()
                    .map(|now_ns| u64::from(bucket.take(*now_ns, 2).is_ok()) * 2)
                    .sum()
            };
            let second = beside(Arc::clone(&bucket), move |other| take(&other, [100, 101]));
            let first = take(&bucket, [100, 102]);
            let taken = first + second.join().expect("the thread does not panic");
            assert!((2..=limit(102)).contains(&taken), "{taken} taken");
            assert!(bucket.take(100 + 8, 2).is_ok(), "a refused request was charged");
        });
    }

    /// The rate changes while another core takes: what passes is charged once, at one rate.
    #[test]
    fn a_change_of_the_rate_charges_each_request_once() {
        loom::model(|| {
            let bucket = Arc::new(Bucket::new(NS_PER_SECOND, 2));
            let second = beside(Arc::clone(&bucket), move |other| other.take(100, 2));
            bucket.set(100, NS_PER_SECOND / 10, 2);
            match second.join().expect("the thread does not panic") {
                Ok(()) => assert_eq!(bucket.take(100, 2), Err(120)),
                Err(again_ns) => {
                    assert_eq!(again_ns, 100 + CHANGE_NS);
                    assert!(bucket.take(100, 2).is_ok());
                }
            }
        });
    }

    /// The rate of a full bucket changes while another core takes: units that pass are charged at the new rate.
    #[test]
    fn a_change_of_the_rate_of_a_full_bucket() {
        loom::model(|| {
            let bucket = Arc::new(Bucket::new(NS_PER_SECOND / 10, 2));
            let second = beside(Arc::clone(&bucket), move |other| other.take(0, 2));
            bucket.set(0, NS_PER_SECOND, 2);
            if second.join().expect("the thread does not panic").is_ok() {
                let again_ns = bucket.take(0, 2).expect_err("nothing is left");
                assert!(again_ns <= 3, "charged at the rate before: {again_ns}");
            }
        });
    }
}
