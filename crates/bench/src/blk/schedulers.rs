//! Time of a request under each scheduler: no-op device, one core, plug 32, 128 under way. All requests go through the scheduler.

use super::contestants::device;
use super::load::{Load, null, play, together};
use super::{Scale, Wants};
use crate::error::Error;
use crate::interleave::take_turns;
use crate::report::Row;
use homenode::blk::{Options, Scheduling, Shares, Stream};

const NAMES: [&str; 3] = ["none", "deadline", "fair"];

fn scheduling(index: usize) -> Scheduling {
    match index {
        0 => Scheduling::None,
        1 => Scheduling::Deadline,
        _ => Scheduling::Fair(vec![Stream::default(); 2], Shares::new()),
    }
}

/// ns for each request, the whole layer's; of all schedulers, which take turns, if one is wanted.
pub(super) fn rows(wants: Wants<'_>, cpus: &[usize], scale: Scale) -> Result<Vec<Row>, Error> {
    let case = |name: &str| format!("scheduler/{name}");
    if !NAMES.iter().any(|name| wants(&case(name))) {
        return Ok(Vec::new());
    }
    let load = Load {
        bytes: 512,
        depth: 128,
        requests: (3_000_000 / scale.divisor).max(1),
    };
    let samples = take_turns(NAMES.len(), scale.rounds, |_, index| {
        let options = Options {
            scheduling: scheduling(index),
            ..Options::default()
        };
        let device = device(&null(1), 1, options)?;
        let rate = together(&cpus[..1], |index| {
            let mut core = device.join(index).expect("the core joins once");
            move |clock| play(&mut core, clock, &load, 0)
        })?;
        Ok(1e3 / rate)
    })?;
    let row = |(name, samples): (&&str, _)| Row::new(case(name), "ns", samples, &[]);
    Ok(NAMES.iter().zip(&samples).map(row).collect())
}
