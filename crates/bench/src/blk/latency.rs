//! How long requests take, from their submission until their completion is told: quantiles of all of them.

use super::Scale;
use super::case::{CASES, Case, Kind, Target, device};
use super::load::{Clock, Places};
use crate::cpus;
use crate::error::Error;
use crate::interleave::Samples;
use crate::interrupt;
use crate::report::Row;
use hdrhistogram::Histogram;
use homenode::blk::{Core, Driver, DriverQueue, Request};

/// Longer times are counted as this.
const LONGEST_NS: u64 = 60_000_000_000;
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// For the no-op device, memory and a volume, alone and with 128 under way, on one core.
pub(super) fn rows(cpus: &[usize], scale: Scale) -> Result<Vec<Row>, Error> {
    let wanted = |case: &&Case| {
        case.cores == 1 && (case.depth == 1 || case.plug == 32) && (case.kind == Kind::Noop || case.bytes == 4096)
    };
    let mut rows = Vec::new();
    for case in CASES.iter().filter(wanted) {
        let target = case.target()?;
        let mut samples = QUANTILES.map(|_| Samples::default());
        // The first round warms up.
        for round in 0..=scale.rounds {
            interrupt::check()?;
            let requests = (1_000_000 / scale.divisor).max(1);
            let histogram = match &target {
                Target::Noop(null) => measure(null, case, cpus[0], requests)?,
                Target::Ram(ram) => measure(ram, case, cpus[0], requests)?,
                Target::Volume(volume) => measure(volume, case, cpus[0], requests)?,
            };
            for ((_, quantile), samples) in QUANTILES.iter().zip(&mut samples).filter(|_| round > 0) {
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                samples.push(histogram.value_at_quantile(*quantile) as f64);
            }
        }
        for ((name, _), samples) in QUANTILES.iter().zip(&samples) {
            let case = format!("latency/{}/{name}", case.name());
            rows.push(Row::new(case, "ns", samples, &[]));
        }
    }
    Ok(rows)
}

fn measure<D: Driver>(driver: &D, case: &Case, cpu: usize, requests: u64) -> Result<Histogram<u64>, Error> {
    let device = device(driver, 1, case.options())?;
    let mut core = device.join(0).expect("it is the first");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cpus::pin(cpu)?;
            Ok(play(&mut core, case, requests))
        });
        thread.join().expect("it does not panic")
    })
}

/// As [`super::load::play`], with a look at the clock at both ends of each request.
fn play<Q: DriverQueue>(core: &mut Core<Q>, case: &Case, requests: u64) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are right");
    let clock = Clock::new();
    let mut places = Places::new(core.device().limits().device_bytes, case.bytes, 0);
    let buffers = u64::from(case.depth);
    let (mut submitted, mut done) = (0, 0);
    while done < requests {
        while submitted < requests && core.pending() < usize::from(case.depth) {
            let buffer = submitted % buffers * u64::from(case.bytes);
            let request = Request::read(places.next(), case.bytes, buffer).user(clock.now());
            core.submit(request).expect("there are tags for all that are under way");
            submitted += 1;
        }
        done += core.run(clock.now(), |completion| {
            histogram.saturating_record(clock.now() - completion.user);
        }) as u64;
    }
    histogram
}
