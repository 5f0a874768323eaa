//! Times that the block layer accounts, against a clock that moves by hand and in the driver.

use homenode_engine::NodeId;
use homenode_engine::blk::{
    Device, Done, Driver, DriverQueue, Late, Limits, Operation, Options, Request, Slots, Tag, Time,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time that the device takes for a batch, ns.
const BATCH_NS: u64 = 50;
const READ: usize = Operation::Read as usize;

#[derive(Clone, Debug, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn go(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Time for Clock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Carries requests out at once, and lets the clock go on meanwhile.
#[derive(Clone, Debug)]
struct Slow(Clock);

impl Driver for Slow {
    type Queue = Self;

    fn limits(&self) -> Limits {
        Limits::of_bytes(1 << 20)
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        vec![None]
    }

    fn queue(&self, _index: usize) -> std::io::Result<Self> {
        Ok(self.clone())
    }
}

impl DriverQueue for Slow {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        self.0.go(BATCH_NS);
        for tag in batch {
            done.push(*tag, Ok(slots.bytes(*tag)));
        }
        batch.len()
    }

    fn poll(&mut self, _slots: &mut Slots, _now: u64, _done: &mut Done) {}

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}

fn device(clock: &Clock, plug: usize) -> Arc<Device<Slow>> {
    let options = Options {
        plug,
        ..Options::default()
    };
    Device::new(&Slow(clock.clone()), &[NodeId(0)], |_, _| 10, options).unwrap()
}

fn read_ns(device: &Device<Slow>) -> u64 {
    device.software_counts()[0].operations[READ].time_ns
}

#[test]
fn idle_time_before_a_submission_is_not_accounted() {
    let clock = Clock::default();
    let device = device(&clock, 32);
    let mut core = device.join(0).unwrap();
    for submitted in 1..=2 {
        core.run(clock.clone(), |_| {});
        clock.go(1_000_000_000);
        core.submit(Request::read(0, 512, 0)).unwrap();
        assert_eq!(core.run(clock.clone(), |_| {}), 1);
        assert_eq!(read_ns(&device), submitted * BATCH_NS);
    }
    // Woken: accounted from then on, also what goes to the driver before the next run.
    clock.go(1_000_000_000);
    core.wake(clock.now());
    core.submit(Request::read(0, 512, 0)).unwrap();
    clock.go(7);
    core.run(clock.clone(), |_| {});
    assert_eq!(read_ns(&device), 3 * BATCH_NS + 7);
}

#[test]
fn the_run_that_reports_a_completion_is_accounted() {
    let clock = Clock::default();
    let device = device(&clock, 32);
    let mut core = device.join(0).unwrap();
    core.wake(0);
    // Fewer than go to the driver before the run.
    for index in 0..31 {
        core.submit(Request::read(index * 1024, 512, 0)).unwrap();
    }
    assert_eq!(core.run(clock.clone(), |_| {}), 31);
    assert_eq!(read_ns(&device), 31 * BATCH_NS);
}

#[test]
fn timed_core_accounts_each_request_exactly() {
    let clock = Clock::default();
    let device = device(&clock, 2);
    let mut core = device.join_timed(0, clock.clone()).unwrap();
    clock.go(1_000_000_000);
    // The first one waits 30 ns in the plug for the second; both are with the driver for 50 ns, and wait 20 for a run.
    core.submit(Request::read(0, 512, 0)).unwrap();
    clock.go(30);
    core.submit(Request::read(1024, 512, 0)).unwrap();
    clock.go(20);
    // Telling the first completion takes 5 ns, which the second one waits.
    assert_eq!(core.run(clock.clone(), |_| clock.go(5)), 2);
    assert_eq!(read_ns(&device), (30 + 50 + 20) + (50 + 20 + 5));
    let reads = device.latencies(Operation::Read);
    assert_eq!(
        (reads.requests(), device.latencies(Operation::Write).requests()),
        (2, 0)
    );
    assert_eq!([0.5, 1.0].map(|part| reads.quantile_ns(part)), [Some(75), Some(101)]);
}

#[test]
fn requests_that_need_no_driver_have_latencies_too() {
    let clock = Clock::default();
    let device = device(&clock, 2);
    let mut core = device.join_timed(0, clock.clone()).unwrap();
    // The device has no cache.
    core.submit(Request::flush()).unwrap();
    clock.go(9);
    core.run(clock.now(), |_| {});
    let flushes = device.latencies(Operation::Flush);
    assert_eq!((flushes.requests(), flushes.quantile_ns(1.0)), (1, Some(9)));
}

/// More than a core notes before it counts.
#[test]
fn all_times_of_a_long_run_are_counted() {
    const REQUESTS: u64 = 130;
    let clock = Clock::default();
    let device = device(&clock, 32);
    let mut core = device.join_timed(0, clock.clone()).unwrap();
    for index in 0..REQUESTS {
        core.submit(Request::read(index * 1024, 512, 0)).unwrap();
    }
    // Each completion is told 1 ns after the one before. The last two requests go to the driver with the first run, and are told by the second.
    for told in [128, 2] {
        assert_eq!(core.run(clock.clone(), |_| clock.go(1)), told);
    }
    let reads = device.latencies(Operation::Read);
    assert_eq!(reads.requests(), REQUESTS);
    // The first request of the fourth batch waits for its own alone, the last of the first one for all four.
    for (part, exact) in [(0.0, BATCH_NS + 96), (1.0, 4 * BATCH_NS + 31)] {
        let found = reads.quantile_ns(part).unwrap();
        assert!((exact..=exact + exact / 32).contains(&found), "{part}: {found}");
    }
}
