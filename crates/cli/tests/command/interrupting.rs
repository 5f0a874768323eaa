//! Ctrl-C while a command waits for its server.

use super::harness::*;
use rustix::process::{Pid, Signal};
use std::fs;
use std::path::Path;
use std::process::{Child, Output, Stdio};

fn drain(dir: &Path, member: u16) -> Child {
    let mut command = homenode(["pool", "drain"]);
    command.arg(dir).arg(member.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn assert_interrupted(output: &Output) {
    let said = describe(output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.contains("the server goes on if it has begun") && said.contains("homenode status"),
        "{said}"
    );
}

#[test]
fn a_drain_that_is_interrupted_before_it_began_is_dropped() {
    need_mounts!();
    let scratch = Scratch::new("interrupted");
    let dir = scratch.dir("pool");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    fs::write(dir.join("file"), vec![1; 5_000_000]).unwrap();
    succeed(homenode(["pool", "add", "--node", "0", "--size", "16M"]).arg(&dir));
    let (server, log) = (server_pid(&dir).unwrap(), log_of(&dir));
    // So that the drain has not begun when it is interrupted.
    signal(server, Signal::STOP);
    let drain = drain(&dir, 0);
    let pid = Pid::from_child(&drain);
    wait_until_it_waits(pid);
    signal(pid, Signal::INT);
    let output = drain.wait_with_output().unwrap();
    signal(server, Signal::CONT);
    assert_interrupted(&output);
    wait_until_dropped(&log, "PoolDrain");
    assert_eq!(status(&dir)["members"][0]["state"], "candidate");
    down(&dir);
}

#[test]
fn a_drain_that_is_interrupted_after_it_began_goes_on() {
    need_mounts!();
    let scratch = Scratch::new("begun");
    let dir = scratch.dir("pool");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    for number in 0..2000 {
        fs::write(dir.join(number.to_string()), vec![1; 4096]).unwrap();
    }
    let is_interrupted = (0..).any(|member| {
        succeed(homenode(["pool", "add", "--node", "0", "--size", "16M"]).arg(&dir));
        let drain = drain(&dir, member);
        let state = || status(&dir)["members"][0]["state"].clone();
        wait_until("it has begun", || state() != "candidate");
        signal(Pid::from_child(&drain), Signal::INT);
        let output = drain.wait_with_output().unwrap();
        if output.status.success() {
            // It was at its end already: the next one.
            succeed(homenode(["pool", "remove"]).arg(&dir).arg(member.to_string()));
            return false;
        }
        assert_interrupted(&output);
        wait_until("it is drained", || state() == "drained");
        true
    });
    assert!(is_interrupted);
    down(&dir);
}
