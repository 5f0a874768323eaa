//! The token bucket against a slow, obvious model: a number of tokens that grows with time. And threads that take at once.

mod random;

use fastrand::Rng;
use homenode_shared::Bucket;
use std::sync::atomic::{AtomicU64, Ordering};

const NS_PER_SECOND: i128 = 1_000_000_000;
const BUCKETS: u64 = if cfg!(miri) { 20 } else { 3000 };
const REQUESTS: u64 = if cfg!(miri) { 20 } else { 200 };

/// Model of a bucket that counts missing units in billionths, so that nothing is rounded.
struct Model {
    rate: i128,
    burst: i128,
    missing: i128,
    now_ns: i128,
}

impl Model {
    fn at(&mut self, now_ns: u64) {
        let now_ns = i128::from(now_ns).max(self.now_ns);
        self.missing = (self.missing - (now_ns - self.now_ns) * self.rate).max(0);
        self.now_ns = now_ns;
    }

    /// Returns the billionths of a unit that have to come in before `units` may pass.
    fn lacking(&self, units: u64) -> i128 {
        self.missing + (i128::from(units).min(self.burst) - self.burst) * NS_PER_SECOND
    }

    fn take(&mut self, units: u64) {
        self.missing += i128::from(units) * NS_PER_SECOND;
    }
}

#[test]
fn a_bucket_passes_exactly_what_the_model_does() {
    let seed = random::seed();
    for number in 0..BUCKETS {
        one_bucket(&mut Rng::with_seed(seed ^ number << 16));
    }
}

fn one_bucket(random: &mut Rng) {
    let rates = [1, 3, 999, 1_000_000, 4 << 30, 7_777_777_777];
    let pick = |random: &mut Rng| rates[random.usize(..6)];
    let (mut rate, burst) = (pick(random), random.u64(..100));
    let bucket = Bucket::new(rate, burst);
    let mut model = Model {
        rate: rate.into(),
        burst: burst.into(),
        missing: 0,
        now_ns: 0,
    };
    let mut now_ns = 1 << 40;
    // What may be charged too much: a nanosecond a request, and what that is after a change of the rate.
    let mut charged_ns = 0_i128;
    // What a change of the rate may forgive: a millionth of a unit.
    let mut forgiven = 0;
    let change_at = random.u64(..REQUESTS);
    for request in 0..REQUESTS {
        let unit_ns = 1_000_000_000 / rate;
        now_ns += random.u64(..unit_ns * 10 + 2);
        if request == change_at {
            let before = model.rate;
            rate = pick(random);
            let burst = random.u64(..100);
            bucket.set(now_ns, rate, burst);
            model.at(now_ns);
            (model.rate, model.burst) = (rate.into(), burst.into());
            charged_ns = 2 + charged_ns * (before / model.rate + 1);
            forgiven = 1000;
        }
        // Cores' clocks differ a little.
        let seen_ns = now_ns - random.u64(..unit_ns + 2);
        let units = random.u64(..120);
        model.at(seen_ns);
        if let Err(again_ns) = bucket.take(seen_ns, units) {
            let ready_ns = model.now_ns + model.lacking(units).max(0) / model.rate;
            assert!(again_ns > seen_ns);
            assert!(
                i128::from(again_ns) <= ready_ns + charged_ns + 4,
                "again at {again_ns}, where the model is ready at {ready_ns}"
            );
            if random.u64(..2) == 0 {
                continue;
            }
            now_ns = now_ns.max(again_ns);
            assert_eq!(bucket.take(now_ns, units), Ok(()), "the bucket refused too late");
            model.at(now_ns);
        }
        let lacking = model.lacking(units);
        assert!(lacking <= forgiven, "{units} passed where {lacking} are lacking");
        model.take(units);
        charged_ns += 1;
    }
}

#[test]
fn threads_together_get_the_rate() {
    const RATE: u64 = 1_000_000_000;
    const BURST: u64 = 1000;
    let rounds = if cfg!(miri) { 200 } else { 1_000_000 };
    let (bucket, clock) = (Bucket::new(RATE, BURST), AtomicU64::new(0));
    let taken: u64 = std::thread::scope(|scope| {
        let take = || {
            let mut taken = 0;
            for _ in 0..rounds {
                // A unit comes in every ns, and each try wants three.
                let now_ns = clock.fetch_add(1, Ordering::Relaxed);
                taken += u64::from(bucket.take(now_ns, 3).is_ok()) * 3;
            }
            taken
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let came_in = clock.into_inner() * RATE / 1_000_000_000;
    assert!(taken <= BURST + came_in, "{taken} of {came_in}");
    assert!(
        taken + BURST >= came_in,
        "{taken} of {came_in}: the bucket was never empty for long"
    );
}
