//! This machine.

use super::*;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that writes a file and computes, and pauses in between: there is one processor's time to share.
pub(super) struct Busy {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Busy {
    pub(super) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let work = move || {
            // Not in a temporary directory, which may be in memory: the build's is on a disk.
            let near = std::env::current_exe().unwrap();
            let mut file = tempfile::tempfile_in(near.parent().unwrap()).unwrap();
            // Relaxed: nothing else is told by it.
            while !stops.load(Ordering::Relaxed) {
                file.write_all(&[1; 65_536]).unwrap();
                thread::sleep(Duration::from_millis(2));
            }
        };
        let thread = thread::Builder::new().name("busy (1)".to_owned()).spawn(work).unwrap();
        Self { stop, thread }
    }

    pub(super) fn stop(self) {
        // Relaxed: nothing else is told by it.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

#[test]
fn a_thread_that_writes_is_seen() {
    let topology = topology::read(&topology::Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/")).unwrap();
    let busy = Busy::start();
    thread::sleep(Duration::from_millis(200));
    let sensed = sensor.sense(&topology).unwrap();
    busy.stop();
    let snapshot = sensed.snapshot;
    let mine = |thread: &&homenode_policy::affinity::Thread| {
        thread.id.process == std::process::id() && thread.name == "busy (1)"
    };
    let thread = snapshot.threads.iter().find(mine).unwrap();
    assert!(
        thread.cpu_ns > 0 && thread.cpu_ns <= 2 * snapshot.period_ns,
        "{thread:?}"
    );
    assert!(
        thread.allowed.iter().all(|cpu| thread.cpuset.contains(cpu)),
        "{thread:?}"
    );
    assert!(snapshot.online.contains(&thread.cpu));
    let written: u64 = thread.disk.iter().map(|disk| disk.bytes).sum();
    if written == 0 {
        eprintln!("SKIPPED: bytes of a disk: the build's directory is in memory");
    } else {
        assert!(written >= 65_536, "{thread:?}");
    }
    assert!(snapshot.period_ns >= 150_000_000, "{}", snapshot.period_ns);
    assert!(snapshot.threads.is_sorted_by_key(|thread| thread.id));
    for interrupt in &snapshot.interrupts {
        assert!(!interrupt.affinity.is_empty(), "{interrupt:?}");
    }
}

#[test]
fn processes_that_come_and_go_are_no_errors() {
    let topology = topology::read(&topology::Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/")).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: nothing else is told by it.
            while !stop.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        for _ in 0..30 {
            let sensed = sensor.sense(&topology).unwrap();
            let unreadable = sensed.unseen.iter().filter(|unseen| unseen.why.contains("understood"));
            assert_eq!(unreadable.count(), 0, "{:?}", sensed.unseen);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Prints what a period costs. A measurement: it asserts the bound, and is run alone:
/// `cargo test --release -p homenode-linux --lib cost_with -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, to be run alone and with optimisation"]
fn cost_with_a_thousand_threads() {
    const THREADS: usize = 1000;
    /// 1 % of a core at one period a second.
    const BOUND: Duration = Duration::from_millis(10);
    let topology = topology::read(&topology::Source::Live).unwrap();
    let sensed = Sensor::new(Path::new("/")).unwrap().sense(&topology).unwrap();
    let counted: Vec<_> = sensed
        .unseen
        .iter()
        .filter(|unseen| unseen.what.contains("sent"))
        .collect();
    for active in [0, 100, THREADS] {
        if active == THREADS && !counted.is_empty() {
            eprintln!("SKIPPED: all threads active: {counted:?}");
            continue;
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let parked: Vec<_> = (0..THREADS)
                .map(|_| {
                    let wait = || {
                        // Relaxed: nothing else is told by it.
                        while !stop.load(Ordering::Relaxed) {
                            thread::park();
                        }
                    };
                    scope.spawn(wait).thread().clone()
                })
                .collect();
            let mut sensor = Sensor::new(Path::new("/")).unwrap();
            let mut costs = Vec::new();
            for _ in 0..16 {
                parked.iter().take(active).for_each(thread::Thread::unpark);
                thread::sleep(Duration::from_millis(200));
                let before = cpu_time();
                let sensed = sensor.sense(&topology).unwrap();
                costs.push((cpu_time() - before, sensed.snapshot.threads.len()));
            }
            stop.store(true, Ordering::Relaxed);
            parked.iter().for_each(thread::Thread::unpark);
            let mean = costs.iter().map(|(cost, _)| *cost).sum::<Duration>() / 16;
            costs.sort();
            println!(
                "{THREADS} threads, {active} active: mean {mean:?}, median {:?}, most {:?} a period; threads seen {}",
                costs[8].0, costs[15].0, costs[8].1
            );
            assert!(mean < BOUND);
        });
    }
}

/// Of the calling thread.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(thread_files::run_ns(text.as_bytes()).unwrap())
}
