//! Programs that die or stop in the middle of a request, under load.

use super::load::Load;
use super::machine::*;
use crate::command::harness::*;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

const ROUNDS: u64 = 25;

/// Nothing that dead programs held is left.
fn all_is_free_again(dir: &Path) {
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    let free = || {
        let found = rustix::fs::statvfs(dir).unwrap();
        found.f_bfree == found.f_blocks
    };
    wait_until("all blocks are free", || free() && status(dir)["used_bytes"] == 0);
    wait_until("no file is open", || status(dir)["fuse"]["open_files"] == 0);
    let report = status(dir);
    assert_eq!(report["reserved_bytes"], 0);
    assert_eq!(report["fuse"]["panics"], 0, "{report}");
}

#[test]
fn killed() {
    on_each_transport("killed", |_, dir, transport| {
        up_by(transport, &dir);
        let pid = server_pid(&dir).unwrap().as_raw_nonzero();
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        let before = (count("fd"), count("task"));
        let mut steady = Load::start(&dir);
        for round in 0..ROUNDS {
            let load = Load::start(&dir);
            thread::sleep(Duration::from_millis(round * 7 % 40));
            load.kill(&dir);
        }
        assert!(steady.is_running(), "another program was disturbed");
        assert!(steady.operations_in(Duration::from_millis(500)) > 0);
        steady.kill(&dir);
        all_is_free_again(&dir);
        // Before, the thread that answers commands may have been at work as well.
        wait_until("no thread and no descriptor is left", || {
            count("fd") <= before.0 && count("task") <= before.1
        });
        down(&dir);
    });
}

#[test]
fn stopped() {
    on_each_transport("stopped", |_, dir, transport| {
        up_by(transport, &dir);
        let mut steady = Load::start(&dir);
        let mut load = Load::start(&dir);
        for _ in 0..10 {
            load.signal(Signal::STOP);
            assert!(steady.operations_in(Duration::from_millis(200)) > 0, "others stop");
            assert_eq!(status(&dir)["fuse"]["panics"], 0);
            load.signal(Signal::CONT);
        }
        assert!(load.operations_in(Duration::from_millis(500)) > 0);
        assert!(load.is_running() && steady.is_running(), "a program failed");
        load.kill(&dir);
        steady.kill(&dir);
        all_is_free_again(&dir);
        down(&dir);
    });
}
