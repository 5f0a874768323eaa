//! From core to core: one submits, the other one owns the hardware queue.

use super::load::{NOOP_BYTES, Places};
use super::{Scale, Wants};
use crate::cpus;
use crate::error::Error;
use crate::interleave::Samples;
use crate::interrupt;
use crate::report::Row;
use homenode::NodeId;
use homenode::blk::{Core, Device, Limits, Null, NullQueue, Options, Request, StampClock, Time};
use std::sync::atomic::{AtomicBool, Ordering};

const ALONE: &str = "crossing/noop-512/qd1";
const BATCHES: &str = "crossing/noop-512/plug32/qd128";

/// Time of one request alone, and requests per second of batches of 32: both if one is wanted.
pub(super) fn rows(wants: Wants<'_>, cpus: &[usize], scale: Scale) -> Result<Vec<Row>, Error> {
    if ![ALONE, BATCHES].into_iter().any(wants) {
        return Ok(Vec::new());
    }
    if cpus.len() < 2 {
        println!("SKIPPED: crossing: this machine has one core");
        return Ok(Vec::new());
    }
    let (mut alone, mut batches) = (Samples::default(), Samples::default());
    // The first round warms up.
    for round in 0..=scale.rounds {
        interrupt::check()?;
        let one = cross(cpus, 1, 1, (200_000 / scale.divisor).max(1))?;
        let many = cross(cpus, 32, 128, (5_000_000 / scale.divisor).max(1))?;
        if round > 0 {
            alone.push(1.0 / one);
            batches.push(many);
        }
    }
    Ok(vec![
        Row::new(ALONE.into(), "us", &alone, &[]),
        Row::more_is_better(BATCHES.into(), "M IOPS", &batches, &[]),
    ])
}

/// M IOPS.
fn cross(cpus: &[usize], plug: usize, depth: usize, requests: u64) -> Result<f64, Error> {
    let null = Null::new(Limits::of_bytes(NOOP_BYTES), &[Some(NodeId(1))]);
    let options = Options {
        plug,
        ..Options::default()
    };
    // The hardware queue is at home on the second core's node: that one owns it.
    let device = Device::new(&null, &[NodeId(0), NodeId(1)], |_, _| 10, options)
        .map_err(|error| Error::system("setting up the device", error))?;
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
