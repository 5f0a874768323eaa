//! Ctrl-C while a command waits for its server, and after that.

use super::harness::*;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use std::fs;
use std::io::{self, Read, Write};
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
    says(
        &said,
        &["the server finishes the request if it has begun", "see `homenode "],
    );
}

#[test]
fn a_request_interrupted_before_its_start_is_dropped() {
    let (scratch, dir) = need_mounts!("interrupted");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    fs::write(dir.join("file"), vec![1; 5_000_000]).unwrap();
    succeed(homenode(["pool", "add", "--node", "0", "--size", "16M"]).arg(&dir));
    succeed(homenode(["volume", "create", "--size", "1M"]).arg(dir.join("disk")));
    let (server, log) = (server_pid(&dir).unwrap(), log_of(&dir));
    for (arguments, request) in [
        ("pool drain pool 0", "PoolDrain"),
        ("pool remove pool 0", "PoolRemove"),
        ("volume create pool/other --size 1M", "VolumeCreate"),
        ("volume resize pool/disk --size 2M", "VolumeResize"),
        ("volume remove pool/disk", "VolumeRemove"),
    ] {
        // So that it has not begun when the command is interrupted.
        signal(server, Signal::STOP);
        let mut command = homenode(arguments.split(' '));
        command.current_dir(scratch.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        wait_until_it_waits(pid);
        signal(pid, Signal::INT);
        let output = child.wait_with_output().unwrap();
        signal(server, Signal::CONT);
        assert_interrupted(&output);
        wait_until_dropped(&log, request);
    }
    assert_eq!(status(&dir)["members"][0]["state"], "candidate");
    let volumes = succeed(homenode(["volume", "list"]).arg(&dir));
    assert!(volumes.contains("1.00 MiB") && !volumes.contains("other"), "{volumes}");
    down(&dir);
}

#[test]
fn a_drain_interrupted_after_its_start_continues() {
    let (_scratch, dir) = need_mounts!("begun");
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

/// A command that has done its work tells so despite Ctrl-C. A second Ctrl-C ends a command that cannot print.
#[test]
fn a_second_ctrl_c_ends_a_waiting_command() {
    let (_scratch, dir) = need_mounts!("telling");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    let file = dir.join("file");
    fs::write(&file, "bytes").unwrap();
    for is_repeated in [false, true] {
        let (mut reader, writer) = io::pipe().unwrap();
        fill(&writer);
        let mut command = homenode(["file", "move"]);
        command.arg(&file).args(["--node", "0"]);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let pid = Pid::from_child(&child);
        let process = format!("/proc/{}", pid.as_raw_nonzero());
        let read = |name: &str| fs::read_to_string(format!("{process}/{name}")).unwrap();
        // The call's number, and its first argument: standard output.
        let prints = || read("syscall").split(' ').nth(1) == Some("0x1");
        wait_until("it cannot print", prints);
        signal(pid, Signal::INT);
        if is_repeated {
            // Two that come at once are one.
            let ends = || {
                signal(pid, Signal::INT);
                read("stat").contains(") Z ")
            };
            wait_until("it ends", ends);
        } else {
            let mut said = Vec::new();
            reader.read_to_end(&mut said).unwrap();
            assert!(String::from_utf8_lossy(&said).contains("to node 0"));
        }
        let output = child.wait_with_output().unwrap();
        let code = if is_repeated { 130 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{}", describe(&output));
        assert!(output.stderr.is_empty(), "{}", describe(&output));
    }
    down(&dir);
}

/// Fills the pipe, so that the next writer has to wait.
fn fill(mut pipe: &io::PipeWriter) {
    let flags = rustix::fs::fcntl_getfl(pipe).unwrap();
    rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    while pipe.write(&[0; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(pipe, flags).unwrap();
}
