//! This machine.

use super::*;
use crate::clock::thread_cpu_time;
use crate::process::Stat;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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

/// Whether the build's directory, in which [`Busy`] writes, is on a disk.
fn is_on_disk() -> bool {
    const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];
    let executable = std::env::current_exe().unwrap();
    !IN_MEMORY.contains(&rustix::fs::statfs(executable.parent().unwrap()).unwrap().f_type)
}

#[test]
fn a_thread_that_writes_is_seen() {
    let topology = topology::read(&topology::Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/"), Box::new(Vec::new)).unwrap();
    let busy = Busy::start();
    let mine = |thread: &&homenode_policy::affinity::Thread| {
        thread.id.process == std::process::id() && thread.name == "busy (1)"
    };
    let bytes = |thread: &homenode_policy::affinity::Thread| thread.disk.iter().map(|disk| disk.bytes).sum::<u64>();
    let is_on_disk = is_on_disk();
    // On a machine that is busy with other things, the thread may not come to run, or to write, in a period.
    let seen = (0..50).find_map(|_| {
        thread::sleep(Duration::from_millis(200));
        let snapshot = sensor.sense(&topology).unwrap().snapshot;
        let thread = snapshot.threads.iter().find(mine)?.clone();
        let is_seen = thread.cpu_ns > 0 && (bytes(&thread) >= 65_536 || !is_on_disk);
        is_seen.then_some((snapshot, thread))
    });
    busy.stop();
    let (snapshot, thread) = seen.expect("the thread is seen, with the bytes that it writes");
    assert!(
        thread.cpu_ns > 0 && thread.cpu_ns <= 2 * snapshot.period_ns,
        "{thread:?}"
    );
    assert!(
        thread.allowed.iter().all(|cpu| thread.cpuset.contains(cpu)),
        "{thread:?}"
    );
    assert!(snapshot.online.contains(&thread.cpu));
    if !is_on_disk {
        crate::skip("bytes of a disk: the build's directory is in memory");
    }
    assert!(snapshot.period_ns >= 150_000_000, "{}", snapshot.period_ns);
    assert!(snapshot.threads.is_sorted_by_key(|thread| thread.id));
    for interrupt in &snapshot.interrupts {
        assert!(!interrupt.affinity.is_empty(), "{interrupt:?}");
    }
}

/// Nothing is counted while programs are loaded, so rates over that time would be too low.
#[test]
fn first_period_begins_when_programs_are_loaded() {
    if let Some(why) = bpf::programs::refusal() {
        crate::skip(format_args!("{why}"));
        return;
    }
    let topology = topology::read(&topology::Source::Live).unwrap();
    let began = Instant::now();
    let mut sensor = Sensor::new(Path::new("/"), Box::new(Vec::new)).unwrap();
    let loading = began.elapsed();
    let period = Duration::from_nanos(sensor.sense(&topology).unwrap().snapshot.period_ns);
    // Times are told in ticks.
    let most = loading / 2 + Duration::from_nanos(2 * threads::TICK_NS);
    assert!(period < most, "{period:?}, after {loading:?} of loading");
}

/// Whoever tells of threads, it is what /proc tells: plans are carried out by its numbers.
#[test]
fn threads_match_proc() {
    let topology = topology::read(&topology::Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/"), Box::new(Vec::new)).unwrap();
    let busy = Busy::start();
    // On a machine that is busy with other things, it may not come to run in a period.
    let mut periods = 0..50;
    let compared = periods.any(|_| {
        thread::sleep(Duration::from_millis(50));
        let snapshot = sensor.sense(&topology).unwrap().snapshot;
        let mut is_seen = false;
        for thread in &snapshot.threads {
            is_seen |= is_as_in_proc(thread, &snapshot.online);
        }
        is_seen
    });
    busy.stop();
    assert!(compared);
}

/// Compares a thread that still is there with its files; whether it is the busy one of this process.
fn is_as_in_proc(thread: &homenode_policy::affinity::Thread, online: &[CpuId]) -> bool {
    let directory = format!("/proc/{}/task/{}", thread.id.process, thread.id.thread);
    let read = |file: &str| fs::read(format!("{directory}/{file}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else {
        return false;
    };
    assert_eq!(Stat::parse(&stat).unwrap().started, thread.id.started, "{thread:?}");
    if thread.id.process != std::process::id() || thread.name != "busy (1)" {
        return false;
    }
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(thread.process_name, comm.trim());
    let mask = topology::sysfs::parse_list(thread_files::allowed_list(&status).unwrap()).unwrap();
    let running = mask.into_iter().map(CpuId).filter(|cpu| online.contains(cpu));
    assert_eq!(thread.allowed[..], running.collect::<Vec<_>>());
    true
}

#[test]
fn processes_that_come_and_go_are_no_errors() {
    let topology = topology::read(&topology::Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/"), Box::new(Vec::new)).unwrap();
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

/// Bounds what a period takes of a core, by the sensor's own CPU time, which other programs do not add to; `--nocapture`
/// shows it. Without programs in the kernel no bound is promised: files of each thread that ran are read then.
#[test]
fn sensing_a_thousand_threads_stays_cheap() {
    const THREADS: usize = 1000;
    const PERIODS: u32 = 16;
    /// 1 % of a core at one period a second.
    const BOUND: Duration = Duration::from_millis(10);
    let topology = topology::read(&topology::Source::Live).unwrap();
    for active in [0, 100, THREADS] {
        let (stop, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            // Relaxed: nothing else is told by it.
            let wait = || {
                while !stop.load(Ordering::Relaxed) {
                    thread::park();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            };
            let parked: Vec<_> = (0..THREADS).map(|_| scope.spawn(wait).thread().clone()).collect();
            let mut sensor = Sensor::new(Path::new("/"), Box::new(Vec::new)).unwrap();
            let mut unseen = sensor.sense(&topology).unwrap().unseen.into_iter();
            let reason = unseen.find(|unseen| unseen.why.contains("BPF"));
            let (mut cost, mut seen) = (Duration::ZERO, 0);
            for _ in 0..PERIODS {
                let all_have_run = turns.load(Ordering::Relaxed) + active;
                parked.iter().take(active).for_each(thread::Thread::unpark);
                thread::sleep(Duration::from_millis(50));
                while turns.load(Ordering::Relaxed) < all_have_run {
                    thread::sleep(Duration::from_millis(1));
                }
                let before = thread_cpu_time();
                let sensed = sensor.sense(&topology).unwrap();
                cost += thread_cpu_time() - before;
                seen = sensed.snapshot.threads.len();
            }
            stop.store(true, Ordering::Relaxed);
            parked.iter().for_each(thread::Thread::unpark);
            let mean = cost / PERIODS;
            println!("{THREADS} threads, {active} active: {mean:?} a period, which shows {seen} threads");
            match reason {
                Some(reason) => crate::skip(format_args!("the bound: {reason}")),
                None => assert!(mean < BOUND && seen >= active, "{mean:?}, {seen} threads"),
            }
        });
    }
}
