//! A device that is too slow for two streams, of which one is greedy: what the other one keeps.

use super::contestants::device;
use super::divisor;
use super::load::{NOOP_BYTES, Places};
use crate::cpus;
use crate::error::Error;
use crate::interleave::take_turns;
use crate::report::Row;
use crate::run::Run;
use homenode::NodeId;
use homenode::blk::{Delay, Distribution, Limits, Null, Options, Request, Scheduling, Shares, StampClock, Stream};

/// Requests under way of the greedy and the modest stream. The device takes eight at a time, 100 µs each.
const DEPTHS: [usize; 2] = [160, 16];
const DEVICE_DEPTH: u16 = 8;
const DEVICE_NS: u64 = 100_000;

/// The modest stream's share of all requests, in percent; the peer has no scheduler.
pub(super) fn rows(run: &mut Run<'_>, cpus: &[usize]) -> Result<(), Error> {
    const CASE: &str = "fairness/modest-share";
    if !run.wants(CASE) {
        return Ok(());
    }
    let requests = (20_000 / divisor(run)).max(200);
    let samples = take_turns(2, run.rounds.min(3), |_, contestant| {
        let scheduling = match contestant {
            0 => Scheduling::Fair(vec![Stream::default(); 2], Shares::new()),
            _ => Scheduling::None,
        };
        share(cpus[0], scheduling, requests)
    })?;
    let none = [("none", &samples[1])];
    run.show(Row::more_is_better(CASE.into(), "%", &samples[0], &none));
    Ok(())
}

fn share(cpu: usize, scheduling: Scheduling, requests: u64) -> Result<f64, Error> {
    let limits = Limits {
        depth: DEVICE_DEPTH,
        ..Limits::of_bytes(NOOP_BYTES)
    };
    let slow = Delay::new(
        Null::new(limits, &[Some(NodeId(0))]),
        Distribution::Constant(DEVICE_NS),
        0,
    );
    let options = Options {
        scheduling,
        ..Options::default()
    };
    let device = device(&slow, 1, options)?;
    let mut core = device.join(0).expect("the core joins once");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cpus::pin(cpu)?;
            let clock = StampClock::new();
            let mut places = Places::new(NOOP_BYTES, 4096, 0);
            let (mut pending, mut done) = ([0_usize; 2], [0_u64; 2]);
            while done.iter().sum::<u64>() < requests {
                for (stream, depth) in (0..).zip(DEPTHS) {
                    while pending[usize::from(stream)] < depth {
                        let request = Request::read(places.next(), 4096, 0)
                            .stream(stream)
                            .user(u64::from(stream));
                        core.submit(request).expect("there is a tag for each request in flight");
                        pending[usize::from(stream)] += 1;
                    }
                }
                core.run(clock, |completion| {
                    let stream = usize::from(completion.user == 1);
                    pending[stream] -= 1;
                    done[stream] += 1;
                });
            }
            Ok(done[1] as f64 * 100.0 / done.iter().sum::<u64>() as f64)
        });
        thread.join().expect("the thread does not panic")
    })
}
