//! `homenode affinity run`: as it begins, goes on and ends.

use super::harness::*;
use super::load::{Load, mask, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A daemon whose log is in a file.
struct Daemon {
    process: Child,
    log: PathBuf,
}

impl Daemon {
    fn start(load: &Load, more: &[&str]) -> Self {
        let mut command = load.affinity(&["run", "--period=0.2"]);
        command.args(more);
        Self::of(load, &mut command)
    }

    fn of(load: &Load, command: &mut Command) -> Self {
        let log = load.path().join("log");
        let file = fs::File::create(&log).unwrap();
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        let daemon = Self { process, log };
        daemon.wait_for("looking at the machine every");
        daemon
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        self.signal(signal);
        self.process.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn run_moves_new_threads_and_reverts_at_its_end() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&load, &[]);
        wait_until("moved", || load.is_moved());
        daemon.wait_for(&format!("thread {} (", load.id()));
        daemon.wait_for(": done: policy single-core puts ");
        assert!(daemon.end(signal).success(), "{}", daemon.log());
        assert!(daemon.log().contains("1 value restored"), "{}", daemon.log());
        assert_eq!(load.mask(), before);
        assert!(!load.journal().exists());
    }
}

#[test]
fn changes_of_a_killed_run_are_reverted_by_the_next_run_or_by_revert() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    let kill = || {
        let mut daemon = Daemon::start(&load, &[]);
        wait_until("moved", || load.is_moved());
        daemon.end(Signal::KILL);
        assert!(load.is_moved() && load.journal().exists());
    };
    kill();
    let text = shown(&mut load.affinity(&["revert"]));
    assert!(text.starts_with("1 value restored\n"), "{text}");
    assert_eq!(load.mask(), before);
    kill();
    // The next one moves nothing, so that what it takes back can be seen.
    fs::write(load.config(), "policy = \"off\"\n").unwrap();
    let mut daemon = Daemon::start(&load, &[]);
    assert!(
        daemon.log().contains("an earlier run has left changes"),
        "{}",
        daemon.log()
    );
    assert_eq!(load.mask(), before);
    assert!(daemon.end(Signal::TERM).success());
}

/// Sixty periods for itself, ten for a child that has only inherited its mask.
#[test]
fn run_gives_masks_back_to_threads_that_move_nothing_any_more() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    let mut daemon = Daemon::of(&load, &mut load.affinity(&["run", "--period=0.1"]));
    wait_until("moved", || load.is_moved());
    let child = load.fork();
    wait_until("the child's mask is back", || mask(child) == before);
    assert!(load.is_moved());
    load.pause();
    wait_until("the mask is back", || load.mask() == before);
    daemon.wait_for("it has moved almost nothing for 60 periods, and gets back the CPUs that it had");
    assert!(daemon.end(Signal::TERM).success(), "{}", daemon.log());
    assert!(!load.journal().exists());
}

/// Where they are is known of who acted last.
#[test]
fn changes_in_another_journal_are_reported() {
    let Some(load) = Load::start() else { return };
    let before = load.mask();
    let mut daemon = Daemon::start(&load, &[]);
    wait_until("moved", || load.is_moved());
    daemon.end(Signal::KILL);
    let journal = fs::canonicalize(load.journal()).unwrap();
    let told = format!(
        "another journal, {0}, has 1 change that stands: `homenode affinity revert --journal {0}` reverts that journal",
        journal.display()
    );
    let output = affinity(["revert", "--journal", "/nowhere/journal"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        text(output.stdout),
        "nothing to revert: there is no journal /nowhere/journal\n"
    );
    let warned = text(output.stderr);
    assert!(warned.contains(&told), "{warned}");

    fs::write(load.config(), "policy = \"off\"\n").unwrap();
    let other = load.path().join("other");
    let arguments = ["run", "--journal", other.to_str().unwrap(), "--config"];
    let mut daemon = Daemon::of(&load, affinity(arguments).arg(load.config()));
    assert!(daemon.log().contains(&told), "{}", daemon.log());
    assert!(daemon.end(Signal::TERM).success());
    shown(&mut load.affinity(&["revert"]));
    assert_eq!(load.mask(), before);
}

#[test]
fn a_second_run_is_refused() {
    let Some(load) = Load::start() else { return };
    let daemon = Daemon::start(&load, &[]);
    wait_until("moved", || load.is_moved());
    let process = format!(
        "process {} moves interrupts and threads already, with the journal ",
        daemon.process.id()
    );
    for verb in [&["run"][..], &["apply", BRIEFLY], &["revert"]] {
        refused(&mut load.affinity(verb), 1, &[&process, "stop it first"]);
    }
    // Also with another journal.
    let other = load.path().join("other");
    let other = ["revert", "--journal", other.to_str().unwrap()];
    fs::write(other[2], "").unwrap();
    refused(&mut affinity(other), 1, &[&process, load.journal().to_str().unwrap()]);
    // Also with one that is not there.
    let missing = format!("there is no journal /nowhere/journal, and {process}");
    let revert = ["revert", "--journal", "/nowhere/journal"];
    refused(&mut affinity(revert), 1, &[&missing, "stop it first"]);
    // Looking is free.
    let text = shown(&mut load.affinity(&["explain", &load.id().to_string(), "--period=0.5"]));
    assert!(text.contains("by homenode affinity to "), "{text}");
}

#[test]
fn reload_keeps_the_old_configuration_if_the_new_one_is_broken() {
    let Some(load) = Load::start() else { return };
    let whole = fs::read_to_string(load.config()).unwrap();
    fs::write(load.config(), "policy = \"off\"\n").unwrap();
    let mut daemon = Daemon::start(&load, &[]);
    fs::write(load.config(), "policy = \n").unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for("the configuration stays as it was");
    assert!(daemon.log().contains("line 1"), "{}", daemon.log());
    assert!(!load.is_moved());
    fs::write(load.config(), whole).unwrap();
    daemon.signal(Signal::HUP);
    daemon.wait_for("the configuration was reloaded");
    wait_until("moved", || load.is_moved());
    assert!(daemon.end(Signal::TERM).success());
    assert!(!load.is_moved());
}

#[test]
fn a_shorter_period_counts_from_its_reload_on() {
    let Some(load) = Load::start() else { return };
    let whole = fs::read_to_string(load.config()).unwrap();
    fs::write(load.config(), format!("period_s = 600\n{whole}")).unwrap();
    let mut daemon = Daemon::of(&load, &mut load.affinity(&["run"]));
    fs::write(load.config(), format!("period_s = 0.2\n{whole}")).unwrap();
    daemon.signal(Signal::HUP);
    wait_until("moved", || load.is_moved());
    assert!(daemon.end(Signal::TERM).success());
}

#[test]
fn metrics_are_served_on_local_addresses() {
    let Some(load) = Load::start() else { return };
    let socket = load.path().join("metrics");
    let mut daemon = Daemon::start(&load, &[&format!("--metrics=unix:{}", socket.display())]);
    wait_until("moved", || load.is_moved());
    let ask = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let done = "homenode_affinity_actions_total{kind=\"thread\",outcome=\"done\"} 1\n";
    wait_until("counted", || ask().contains(done));
    let answer = ask();
    says(
        &answer,
        &[
            "HTTP/1.1 200 OK\r\n",
            "\nhomenode_affinity_changes{standing=\"in-force\"} 1\n",
            "\nhomenode_affinity_periods_total{result=\"ok\"} ",
            "\nhomenode_affinity_cpu_seconds_total 0.",
            "\nhomenode_affinity_cost_bytes_per_second{when=\"now\"} ",
            "\nhomenode_affinity_threads{class=\"disk\"} ",
        ],
    );
    assert!(!answer.contains(&load.id().to_string()));
    assert!(daemon.end(Signal::TERM).success());
    assert!(!socket.exists());
    refused(
        &mut load.affinity(&["run", "--metrics=0.0.0.0:9101"]),
        2,
        &["other machines", "127.0.0.1:PORT"],
    );
    refused(
        &mut load.affinity(&["run", "--metrics=unix:/nowhere/socket"]),
        1,
        &["unix:/nowhere/socket", "No such file", "create its directory first"],
    );
}

/// With the messages that a unit of `Type=notify` and `WatchdogSec=` gets.
#[test]
fn run_notifies_systemd() {
    let Some(load) = Load::start() else { return };
    let path = load.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = load.affinity(&["run", "--period=0.5"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    let mut daemon = Daemon::of(&load, &mut command);
    let next = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1\n");
    // Twice as often as the watchdog wants it, though the period is longer.
    assert_eq!(next(), "WATCHDOG=1\n");
    while !next().contains("STATUS=") {}
    assert!(daemon.end(Signal::TERM).success());
    while next() != "STOPPING=1\n" {}
}
