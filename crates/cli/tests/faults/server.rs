//! Mounts that are taken away under load: by the death of the server, by unmounting, by an abort.

use super::load::Load;
use super::machine::*;
use crate::command::harness::*;
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// How often each fault is repeated, at other moments; `make soak` asks for many.
const ROUNDS: &str = "HOMENODE_TEST_ROUNDS";

/// Runs `fault` on a mount at work, of each transport; it gets the directory, the server and the program at work.
fn under_load(test: &str, fault: impl Fn(&Scratch, &Path, Pid, Load)) {
    if !can_mount() {
        return;
    }
    let _undisturbed = as_it_is();
    let rounds = std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().unwrap());
    for (round, transport) in (0..rounds).flat_map(|round| transports().into_iter().map(move |by| (round, by))) {
        let scratch = Scratch::new(test);
        let dir: PathBuf = scratch.dir("pool");
        up_by(transport, &dir);
        let pid = server_pid(&dir).unwrap();
        let load = Load::start(&dir);
        thread::sleep(Duration::from_millis(200 + 37 * round % 500));
        fault(&scratch, &dir, pid, load);
        assert_nothing_mounted(scratch.path());
        up_by(transport, &dir);
        std::fs::write(dir.join("file"), "content").unwrap();
        down(&dir);
    }
}

#[test]
fn killed_and_cleared_by_up() {
    under_load("killed-up", |scratch, dir, pid, load| {
        signal(pid, Signal::KILL);
        load.ended_by_loss_of_server();
        wait_for_end(pid);
        says(&warned(homenode(["up", SIZE]).arg(dir)), &["cleared a dead mount"]);
        assert_eq!(mounts_below(scratch.path()).len(), 1);
        down(dir);
    });
}

/// At once, while the kernel is still ending the server.
#[test]
fn killed_and_cleared_by_down() {
    under_load("killed-down", |_, dir, pid, load| {
        signal(pid, Signal::KILL);
        load.ended_by_loss_of_server();
        says(&warned(homenode(["down"]).arg(dir)), &["cleared a dead mount"]);
        wait_for_end(pid);
    });
}

#[test]
fn unmounted_lazily() {
    under_load("lazily", |scratch, dir, pid, load| {
        assert!(Command::new("umount").arg("-l").arg(dir).status().unwrap().success());
        serves_until_nobody_works(scratch, pid, load);
    });
}

#[test]
fn taken_down_lazily() {
    under_load("down-lazily", |scratch, dir, pid, load| {
        succeed(homenode(["down", "--lazy"]).arg(dir));
        serves_until_nobody_works(scratch, pid, load);
    });
}

fn serves_until_nobody_works(scratch: &Scratch, pid: Pid, mut load: Load) {
    assert_nothing_mounted(scratch.path());
    assert!(
        load.operations_in(Duration::from_millis(300)) > 0,
        "open files stopped working"
    );
    load.signal(Signal::KILL);
    drop(load);
    wait_for_end(pid);
}

#[test]
fn unmounted_by_force() {
    under_load("by-force", |_, dir, pid, load| {
        // The kernel cuts the connection, and then finds the mount in use.
        let _ = Command::new("umount").arg("-f").arg(dir).output().unwrap();
        load.ended_by_loss_of_server();
        wait_for_end(pid);
    });
}

#[test]
fn ended_by_a_signal() {
    under_load("by-signal", |_, _, pid, load| {
        signal(pid, Signal::TERM);
        load.ended_by_loss_of_server();
        wait_for_end(pid);
    });
}

#[test]
fn aborted() {
    under_load("aborted", |scratch, dir, pid, load| {
        abort_connection(scratch, dir);
        load.ended_by_loss_of_server();
        wait_for_end(pid);
    });
}
