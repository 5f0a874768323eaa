//! Acting on this machine: programs that move threads, queues and an interrupt are killed at random moments, and the next
//! one, or a revert, leaves everything as it was.
//!
//! Needs root, ip and setsid, and two CPUs; says SKIPPED where they are missing. All happens in a network namespace of
//! its own; of the machine's interrupts one that does not arrive is moved.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod acting;
mod load;
mod machine;

use homenode_linux::affinity::act::{Actor, Live, Restore};
use load::Load;
use machine::Machine;
use rustix::process::Signal;
use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

const ROUNDS: u64 = 200;
/// Where the parts of the test find each other.
const DIRECTORY: &str = "HOMENODE_AFFINITY_LIVE";

#[test]
fn an_actor_killed_at_any_moment_leaves_nothing() {
    if let Some(missing) = missing() {
        // Past the test harness's capture.
        let test = "an_actor_killed_at_any_moment_leaves_nothing";
        let _ = writeln!(io::stderr(), "SKIPPED: needs {missing} ({test})");
        return;
    }
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let namespace = Namespace::new("rounds");
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", &namespace.0]);
    inside.arg(env::current_exe().unwrap()).args(role("rounds"));
    let status = inside.env(DIRECTORY, directory.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

/// The rounds, in the namespace.
#[test]
#[ignore = "a part of an_actor_killed_at_any_moment_leaves_nothing, which starts it"]
fn rounds() {
    let directory = directory();
    machine::make_cards();
    let load = Load::start();
    let machine = Machine::look(load.session());
    // A thread that is started in the clock tick of a change counts as started after it: the pinned one would be taken for an inheritor.
    thread::sleep(Duration::from_millis(30));
    let mut changed = 0;
    for seed in 0..ROUNDS {
        let mut random = fastrand::Rng::with_seed(seed);
        // At times the next one is killed too, while it takes back what the first has left.
        for _ in 0..random.u8(1..=2) {
            let says = if random.bool() {
                acting::BEGINS
            } else {
                acting::HAS_ACTED
            };
            let mut acting = acting::start(load.session(), random.u64(..), says);
            thread::sleep(Duration::from_micros(random.u64(0..30_000)));
            acting.kill().unwrap();
            let ended = acting.wait().unwrap();
            let is_killed = ended.signal() == Some(Signal::KILL.as_raw());
            assert!(is_killed || ended.success(), "seed {seed}: {ended}");
        }
        let mut actor = Actor::open(Live::new(), &journal(&directory)).unwrap();
        changed += usize::from(!actor.changed().is_empty());
        let reverted = actor.revert().unwrap();
        assert!(reverted.is_complete(), "seed {seed}: {reverted:?}");
        let left = reverted
            .targets
            .iter()
            .filter(|(_, restore)| matches!(restore, Restore::Left(_)));
        assert_eq!(left.count(), 0, "seed {seed}: {reverted:?}");
        machine.assert_same(seed);
        assert!(!journal(&directory).exists(), "seed {seed}");
    }
    let names = fs::read_dir(&directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_str().unwrap().ends_with(".new")));
    println!("{ROUNDS} rounds, in {changed} of them something was in force when the last one was killed");
    assert!(changed as u64 > ROUNDS / 10, "{changed} of {ROUNDS}");
}

/// The program that is killed.
#[test]
#[ignore = "a part of an_actor_killed_at_any_moment_leaves_nothing, which starts it"]
fn act() {
    acting::run(&journal(&directory()));
}

/// The load that is moved.
#[test]
#[ignore = "a part of an_actor_killed_at_any_moment_leaves_nothing, which starts it"]
fn work() {
    load::run(&directory());
}

/// Only one program may act on a machine: nobody else here does until this is dropped.
fn alone() -> File {
    let file = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/affinity.lock")).unwrap();
    file.lock().unwrap();
    file
}

/// Arguments for this binary to be one part of the test.
fn role(name: &str) -> [&str; 4] {
    ["--exact", name, "--ignored", "--nocapture"]
}

fn directory() -> PathBuf {
    let directory = env::var_os(DIRECTORY);
    directory
        .expect("an_actor_killed_at_any_moment_leaves_nothing starts it")
        .into()
}

fn journal(directory: &Path) -> PathBuf {
    directory.join("affinity.journal")
}

fn missing() -> Option<&'static str> {
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    [
        (is_root, "root"),
        (has("ip"), "ip, of the package iproute2"),
        (has("setsid"), "setsid, of the package util-linux"),
        (cpus >= 2, "two CPUs"),
    ]
    .into_iter()
    .find_map(|(there, what)| (!there).then_some(what))
}

/// A network namespace, removed with all cards in it.
struct Namespace(String);

impl Namespace {
    fn new(test: &str) -> Self {
        let name = format!("homenode-{test}-{}", std::process::id());
        machine::ip(&["netns", "add", &name]);
        Self(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        machine::ip(&["netns", "del", &self.0]);
    }
}
