//! From core to core: one submits, the other one owns the hardware queue.

use super::divisor;
use super::load::{NOOP_BYTES, Places};
use crate::cpus;
use crate::error::{During, Error};
use crate::report::Row;
use crate::required;
use crate::run::Run;
use homenode::NodeId;
use homenode::blk::{Core, Device, Limits, Null, NullQueue, Options, Request, StampClock, Time};
use std::sync::atomic::{AtomicBool, Ordering};

const ALONE: &str = "crossing/noop-512/qd1";
const BATCHES: &str = "crossing/noop-512/plug32/qd128";

/// Time of one request alone, and requests per second of batches of 32: both if one is wanted.
pub(super) fn rows(run: &mut Run<'_>, cpus: &[usize]) -> Result<(), Error> {
    if !run.wants(ALONE) && !run.wants(BATCHES) {
        return Ok(());
    }
    if cpus.len() < 2 {
        required::skip("crossing: this machine has one core");
        return Ok(());
    }
    // Not contestants, but two rates of the same rounds.
    let requests = |count: u64| (count / divisor(run)).max(1);
    let samples = run.take_turns(ALONE, 2, |_, batches| match batches {
        0 => Ok(1.0 / cross(cpus, 1, 1, requests(200_000))?),
        _ => cross(cpus, 32, 128, requests(5_000_000)),
    })?;
    run.show(Row::new(ALONE.into(), "us", &samples[0], &[]));
    run.show(Row::more_is_better(BATCHES.into(), "M IOPS", &samples[1], &[]));
    Ok(())
}

/// M IOPS.
fn cross(cpus: &[usize], plug: usize, depth: usize, requests: u64) -> Result<f64, Error> {
    let null = Null::new(Limits::of_bytes(NOOP_BYTES), &[Some(NodeId(1))]);
    let options = Options {
        plug,
        ..Options::default()
    };
    // The hardware queue is at home on the second core's node: that one owns it.
    let device = Device::new(&null, &[NodeId(0), NodeId(1)], |_, _| 10, options).during("setting up the device")?;
    let join = |index| device.join(index).expect("each core joins once");
    let (mut submitter, mut owner): (Core<NullQueue>, Core<NullQueue>) = (join(0), join(1));
    let clock = StampClock::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let pinned = cpus::pin(cpus[1]);
            // Relaxed: only tells to end.
            while !is_over.load(Ordering::Relaxed) {
                owner.run(clock, |_| {});
            }
            pinned
        });
        let submitting = scope.spawn(|| {
            let pinned = cpus::pin(cpus[0]);
            let mut places = Places::new(NOOP_BYTES, 512, 0);
            let begin = clock.now();
            let (mut submitted, mut done) = (0, 0);
            while done < requests {
                while submitted < requests && submitter.pending() < depth {
                    let request = Request::read(places.next(), 512, 0);
                    submitter
                        .submit(request)
                        .expect("there is a tag for each request in flight");
                    submitted += 1;
                }
                done += submitter.run(clock, |_| {}) as u64;
            }
            let elapsed = clock.now() - begin;
            is_over.store(true, Ordering::Relaxed);
            pinned.map(|()| elapsed)
        });
        let elapsed = submitting.join().expect("the thread does not panic")?;
        serving.join().expect("the thread does not panic")?;
        Ok(requests as f64 * 1e3 / elapsed as f64)
    })
}
