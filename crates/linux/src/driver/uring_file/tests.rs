//! Requests that hang: reads of a pipe that nobody writes to.

use super::queue::UringQueue;
use super::target::Target;
use crate::driver::Arena;
use homenode_engine::NodeId;
use homenode_engine::blk::{Core, Device, Driver, Errno, Limits, Options, Outcome, Request};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pipe as if it were a file, and memory for requests.
struct Pipe {
    target: Arc<Target>,
    buffers: Arc<Arena>,
}

impl Pipe {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let target = Target {
            file,
            has_lost: None,
            bytes: 1 << 20,
            block_bytes: 512,
            home: None,
            discard: None,
            zero: None,
            can_poll: false,
        };
        Self {
            target: Arc::new(target),
            buffers: Arena::new(1 << 20, None).unwrap(),
        }
    }

    fn core(&self, timeout: Duration) -> Core<UringQueue> {
        let options = Options {
            timeout,
            retries_max: 0,
            ..Options::default()
        };
        Device::new(self, &[NodeId(0)], |_, _| 1, options)
            .unwrap()
            .join(0)
            .unwrap()
    }

    fn write(&self, bytes: &[u8]) {
        (&self.target.file).write_all(bytes).unwrap();
    }

    fn holds(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.buffers.read(at, &mut byte);
        byte[0]
    }
}

impl Driver for Pipe {
    type Queue = UringQueue;

    fn limits(&self) -> Limits {
        Limits::of_bytes(self.target.bytes)
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        vec![None]
    }

    fn queue(&self, _index: usize) -> io::Result<UringQueue> {
        UringQueue::new(
            Arc::clone(&self.target),
            Arc::clone(&self.buffers),
            self.limits(),
            false,
        )
    }
}

fn submit(core: &mut Core<UringQueue>, requests: &[Request]) {
    for request in requests {
        core.submit(*request).unwrap();
    }
    assert_eq!(core.run(0, |_| {}), 0, "nothing is there to read");
}

fn finish(core: &mut Core<UringQueue>) -> Vec<Outcome> {
    let (start, mut outcomes) = (Instant::now(), Vec::new());
    while core.pending() > 0 {
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap();
        core.run(now, |completion| outcomes.push(completion.outcome));
        assert!(start.elapsed() < Duration::from_secs(30), "{} hang", core.pending());
    }
    outcomes
}

const LONG: Duration = Duration::from_secs(3600);
/// Three reads that cannot be merged, each into memory of its own.
const READS: [Request; 3] = [
    Request::read(0, 512, 0),
    Request::read(4096, 512, 8192),
    Request::read(8192, 512, 4096),
];

#[test]
fn late_requests_are_cancelled() {
    let pipe = Pipe::new();
    let mut core = pipe.core(Duration::from_millis(50));
    submit(&mut core, &READS);
    let late: Outcome = Err(Errno::TIMED_OUT);
    assert_eq!(finish(&mut core), [late; 3]);
    // The queue goes on.
    pipe.write(&[7; 512]);
    core.submit(READS[0]).unwrap();
    assert_eq!(finish(&mut core), [Ok(512)]);
    assert_eq!(pipe.holds(511), 7);
}

#[test]
fn late_completions_reach_the_queue() {
    let pipe = Pipe::new();
    let mut core = pipe.core(LONG);
    submit(&mut core, &READS[..1]);
    pipe.write(&[8; 512]);
    assert_eq!(finish(&mut core), [Ok(512)]);
    assert_eq!(pipe.holds(0), 8);
}

/// After the queue is gone nothing may be written to the memory.
fn check_untouched(pipe: &Pipe) {
    pipe.write(&[9; 4096]);
    std::thread::sleep(Duration::from_millis(50));
    for at in [0, 4096, 8192] {
        assert_eq!(pipe.holds(at), 0, "byte {at}");
    }
}

#[test]
fn a_dropped_queue_writes_no_memory() {
    let pipe = Pipe::new();
    let mut core = pipe.core(LONG);
    submit(&mut core, &READS);
    drop(core);
    check_untouched(&pipe);
}

#[test]
fn a_queue_dropped_by_another_thread_writes_no_memory() {
    let pipe = Pipe::new();
    let mut core = pipe.core(LONG);
    let core = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            submit(&mut core, &READS);
            core
        });
        there.join().unwrap()
    });
    drop(core);
    check_untouched(&pipe);
    // The other way round: the thread that used it is there, and does not help.
    let pipe = Pipe::new();
    let mut core = pipe.core(LONG);
    submit(&mut core, &READS);
    std::thread::scope(|scope| scope.spawn(move || drop(core)).join().unwrap());
    check_untouched(&pipe);
}

#[test]
fn an_unused_queue_can_be_dropped_by_any_thread() {
    let core = Pipe::new().core(LONG);
    std::thread::scope(|scope| scope.spawn(move || drop(core)).join().unwrap());
}

#[test]
fn ending_the_device_from_another_thread_does_not_hang() {
    let pipe = Pipe::new();
    let mut core = pipe.core(LONG);
    submit(&mut core, &READS);
    std::thread::scope(|scope| {
        let gone: Outcome = Err(Errno::NO_DEVICE);
        let there = scope.spawn(move || {
            core.submit(READS[0]).unwrap();
            assert_eq!(finish(&mut core), [gone; 4]);
            core.submit(READS[1]).unwrap();
            assert_eq!(finish(&mut core), [gone]);
        });
        there.join().unwrap();
    });
    check_untouched(&pipe);
}
