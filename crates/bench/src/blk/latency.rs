//! How long requests take, from their submission until their completion is told: quantiles of all of them, from the block layer's
//! own histograms.

use super::contestants::{CASES, Case, Kind, Target, device};
use super::divisor;
use super::load::{Load, play, together};
use crate::error::Error;
use crate::interleave::Samples;
use crate::interrupt;
use crate::report::Row;
use crate::run::Run;
use homenode::blk::{Driver, Latencies, Operation, StampClock};

const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// For the no-op device, memory and a volume, alone and with 128 under way, on one core.
pub(super) fn rows(run: &mut Run<'_>, cpus: &[usize]) -> Result<(), Error> {
    let name = |case: &Case, quantile: &str| format!("latency/{}/{quantile}", case.name());
    let wanted = |case: &&Case| {
        QUANTILES.iter().any(|(quantile, _)| run.wants(&name(case, quantile)))
            && case.cores == 1
            && !case.is_stamped
            && (case.depth == 1 || case.plug == 32)
            && (case.kind == Kind::Noop || case.bytes == 4096)
    };
    let wanted: Vec<&Case> = CASES.iter().filter(wanted).collect();
    let requests = 1_000_000 / divisor(run);
    for case in wanted {
        let target = case.target()?;
        let mut samples = QUANTILES.map(|_| Samples::default());
        // The first round warms up.
        for round in 0..=run.rounds {
            interrupt::check()?;
            let latencies = match &target {
                Target::Noop(null) => measure(null, case, cpus[0], requests)?,
                Target::Ram(ram) => measure(ram, case, cpus[0], requests)?,
                Target::Volume(volume) => measure(volume, case, cpus[0], requests)?,
            };
            for ((_, quantile), samples) in QUANTILES.iter().zip(&mut samples).filter(|_| round > 0) {
                samples.push(latencies.quantile_ns(*quantile).unwrap_or(0) as f64);
            }
        }
        for ((quantile, _), samples) in QUANTILES.iter().zip(&samples) {
            run.show(Row::new(name(case, quantile), "ns", samples, &[]));
        }
    }
    Ok(())
}

fn measure<D: Driver>(driver: &D, case: &Case, cpu: usize, requests: u64) -> Result<Latencies, Error> {
    let device = device(driver, 1, case.options())?;
    let load = Load {
        requests,
        ..case.load(1)
    };
    together(&[cpu], |index| {
        let mut core = device.join_timed(index, StampClock::new()).expect("a core joins once");
        move |clock| play(&mut core, clock, &load, (0, 0))
    })?;
    Ok(device.latencies(Operation::Read))
}
