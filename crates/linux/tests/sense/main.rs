//! Bytes of sockets and disks of threads of this machine, as BPF programs count them: real sockets between network
//! namespaces, and real files.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod disks;
mod namespaces;
mod sockets;

use homenode_linux::affinity::{Sensed, Sensor};
use homenode_linux::topology::{self, Source};
use homenode_policy::affinity::Thread;
use homenode_policy::topology::Topology;
use parking_lot::{Mutex, MutexGuard};
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Lock that lets one test run at a time: each test looks at all of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// Prints that a test is skipped, past the test harness's capture, which holds what macros print.
pub(crate) fn skip(why: impl std::fmt::Display) {
    use std::io::Write as _;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why} ({test})");
}

/// A sensor, unless this machine lets no programs be loaded.
pub(crate) fn sensor() -> Option<(MutexGuard<'static, ()>, Sensor, Topology)> {
    let alone = ALONE.lock();
    let topology = topology::read(&Source::Live).unwrap();
    let mut sensor = Sensor::new(Path::new("/"), Box::new(Vec::new)).unwrap();
    let unseen = sensor.sense(&topology).unwrap().unseen;
    let mut reasons = unseen.iter().filter(|unseen| unseen.why.contains("BPF"));
    if let Some(reason) = reasons.next() {
        // Not the words of a kernel that was offered programs and refused them.
        assert!(reason.why.starts_with("BPF programs count them"), "{reason}");
        crate::skip(format_args!("{reason}"));
        return None;
    }
    Some((alone, sensor, topology))
}

pub(crate) fn named<'a>(sensed: &'a Sensed, name: &str) -> &'a Thread {
    let mine = |thread: &&Thread| thread.id.process == std::process::id() && thread.name == name;
    let threads = &sensed.snapshot.threads;
    threads
        .iter()
        .find(mine)
        .unwrap_or_else(|| panic!("no {name} among {threads:?}"))
}

/// Runs `work` on a thread of this name, which stays until its period has been sensed.
pub(crate) fn sense_while(sensor: &mut Sensor, topology: &Topology, workers: Vec<(&str, Work)>) -> Sensed {
    let (done, all_done) = mpsc::channel();
    let mut ends = Vec::new();
    let mut threads = Vec::new();
    for (name, work) in workers {
        let (end, ended) = mpsc::channel::<()>();
        ends.push(end);
        let done = done.clone();
        let run = move || {
            work();
            done.send(()).unwrap();
            // An error is the end, too.
            let _ = ended.recv();
        };
        threads.push(thread::Builder::new().name(name.to_owned()).spawn(run).unwrap());
    }
    drop(done);
    for _ in &threads {
        all_done.recv().unwrap();
    }
    let sensed = sensor.sense(topology).unwrap();
    drop(ends);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    sensed
}

pub(crate) fn within_a_percent(bytes: u64, expected: usize) -> bool {
    let expected = expected as u64;
    bytes.abs_diff(expected) <= expected / 100
}

#[test]
fn programs_are_unloaded_with_the_sensor() {
    let loaded = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("bpf")).count()
    };
    let Some((_alone, sensor, _)) = sensor() else { return };
    let with = loaded();
    drop(sensor);
    assert!(with > loaded());
}
