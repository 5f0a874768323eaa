//! Members come and go while files are in use.

use super::harness::*;
use rustix::process::{Pid, Signal};
use std::fs;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[test]
fn add_drain_remove_under_a_writer() {
    need_mounts!();
    let scratch = Scratch::new("members");
    let dir = scratch.dir("pool");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    let content: Vec<u8> = (0..6_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(dir.join("still"), &content).unwrap();

    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                fs::write(dir.join("moving"), vec![round; 500_000]).unwrap();
                assert_eq!(fs::read(dir.join("moving")).unwrap(), vec![round; 500_000]);
            }
        });
        let said = succeed(homenode(["pool", "add", "--node", "0", "--size", "32M"]).arg(&dir));
        assert!(said.contains("member 1"), "{said}");
        let said = succeed(homenode(["pool", "drain"]).arg(&dir).arg("0"));
        assert!(said.contains("member 0"), "{said}");
        assert_eq!(status(&dir)["members"][0]["state"], "drained");
        assert_eq!(status(&dir)["members"][0]["used_bytes"], 0);
        succeed(homenode(["pool", "remove"]).arg(&dir).arg("0"));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    let status = status(&dir);
    assert_eq!(status["members"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["members"][0]["member"], 1);
    assert_eq!(status["capacity_bytes"], 32 << 20);
    assert_eq!(fs::read(dir.join("still")).unwrap(), content);
    assert_eq!(status["fuse"]["panics"], 0);
    down(&dir);
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    need_mounts!();
    let scratch = Scratch::new("refusals");
    let dir = scratch.dir("pool");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    let pool = |verb: &str, rest: &[&str]| {
        let mut command = homenode(["pool", verb]);
        command.arg(&dir).args(rest);
        command
    };
    refused(&mut pool("drain", &["7"]), &["member 7", "only member 0"]);
    refused(&mut pool("remove", &["7"]), &["member 7", "only member 0"]);
    refused(&mut pool("drain", &["0"]), &["member 0", "last", "add"]);
    refused(&mut pool("remove", &["0"]), &["member 0", "drain"]);
    refused(
        &mut pool("add", &["--node", "999", "--size", "8M"]),
        &["node 999", "node 0"],
    );
    refused(&mut pool("add", &["--node", "0", "--size", "100T"]), &["node 0", "MiB"]);
    refused(
        &mut pool("add", &["--node", "0", "--size", "1K"]),
        &["node 0", "at least"],
    );
    fail(2, &mut pool("add", &["--node", "0", "--size", "0"]));

    // More than the other member can hold.
    succeed(&mut pool("add", &["--node", "0", "--size", "4M"]));
    fs::write(dir.join("large"), vec![1; 12 << 20]).unwrap();
    refused(&mut pool("drain", &["0"]), &["member 0", "room"]);
    let status = status(&dir);
    assert_eq!(status["members"].as_array().unwrap().len(), 2, "{status}");
    assert_ne!(status["members"][0]["state"], "draining", "it takes data again");
    assert_eq!(fs::read(dir.join("large")).unwrap(), vec![1; 12 << 20]);
    down(&dir);
}

#[test]
fn a_drain_that_is_interrupted_before_it_began_is_dropped() {
    need_mounts!();
    let scratch = Scratch::new("interrupted");
    let dir = scratch.dir("pool");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    fs::write(dir.join("file"), vec![1; 5_000_000]).unwrap();
    succeed(homenode(["pool", "add", "--node", "0", "--size", "16M"]).arg(&dir));
    let server = server_pid(&dir).unwrap();
    // So that the drain has not begun when it is interrupted.
    signal(server, Signal::STOP);
    let drain = homenode(["pool", "drain"])
        .arg(&dir)
        .arg("0")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&drain);
    let waits = || {
        let process = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
        let field = |name| process.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let caught = u64::from_str_radix(field("SigCgt:"), 16).unwrap();
        caught >> (Signal::INT.as_raw() - 1) & 1 == 1 && field("State:").starts_with('S')
    };
    wait_until("it waits for the answer", waits);
    signal(pid, Signal::INT);
    let output = drain.wait_with_output().unwrap();
    signal(server, Signal::CONT);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(output.status.code(), Some(130), "{}", describe(&output));
    let said = describe(&output);
    assert!(
        said.contains("the server goes on if it has begun") && said.contains("homenode status"),
        "{said}"
    );
    assert_eq!(status(&dir)["members"][0]["state"], "candidate");
    down(&dir);
}
