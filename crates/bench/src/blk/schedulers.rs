//! Time of a request under each scheduler: no-op device, one core, plug 32, 128 under way. Under `deadline` and `fair` all requests go
//! through the scheduler; `none` has nothing to decide, and the core gives them to the driver past it.

use super::contestants::device;
use super::divisor;
use super::load::{Load, null, play, together};
use crate::error::Error;
use crate::report::Row;
use crate::run::Run;
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
pub(super) fn rows(run: &mut Run<'_>, cpus: &[usize]) -> Result<(), Error> {
    let case = |name: &str| format!("scheduler/{name}");
    if !NAMES.iter().any(|name| run.wants(&case(name))) {
        return Ok(());
    }
    let load = Load {
        bytes: 512,
        depth: 128,
        requests: 3_000_000 / divisor(run),
    };
    let samples = run.take_turns("scheduler", NAMES.len(), |_, index| {
        let options = Options {
            scheduling: scheduling(index),
            ..Options::default()
        };
        let device = device(&null(1), 1, options)?;
        let rate = together(&cpus[..1], |index| {
            let mut core = device.join(index).expect("the core joins once");
            move |clock| play(&mut core, clock, &load, (0, 0))
        })?;
        Ok(1e3 / rate)
    })?;
    for (name, samples) in NAMES.iter().zip(&samples) {
        run.show(Row::new(case(name), "ns", samples, &[]));
    }
    Ok(())
}
