//! Servers that are there and do not answer: commands say so in seconds, and once they go on, nothing is lost.

use super::load::Load;
use super::machine::*;
use crate::command::harness::*;
use rustix::process::{Pid, Signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// In this time a command has told that a server does not answer.
const TOLD_BOUND: Duration = Duration::from_secs(10);

/// Returns a command's output about a server that does not answer, and whether the command succeeded. Fails if the
/// command waits for the server.
fn said(arguments: &[&str], dir: Option<&Path>) -> (String, bool) {
    let start = Instant::now();
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30", BINARY]).args(arguments).args(dir);
    let output = command.output().unwrap();
    let said = describe(&output);
    assert!(
        start.elapsed() < TOLD_BOUND,
        "{arguments:?} took {:?}: {said}",
        start.elapsed()
    );
    (said, output.status.success())
}

/// Runs `silence` on the server of a mount at work, of each transport; dropping what it gives ends the silence.
fn commands_do_not_wait<S>(test: &str, told: &[&str], silence: impl Fn(Pid) -> Option<S>) {
    on_each_transport(test, |scratch, dir, transport| {
        up_by(transport, &dir);
        let pid = server_pid(&dir).unwrap();
        fs::write(dir.join("kept"), vec![7; 1 << 20]).unwrap();
        let mut load = Load::start(&dir);
        let Some(silent) = silence(pid) else {
            drop(load);
            return down(&dir);
        };
        thread::scope(|scope| {
            for arguments in [&["status"][..], &["status", "--json"], &["down"], &["down", "--lazy"]] {
                let dir = &dir;
                scope.spawn(move || {
                    let (said, success) = said(arguments, Some(dir));
                    assert!(!success, "{arguments:?}: {said}");
                    let pid = pid.as_raw_nonzero().to_string();
                    says(&said, told);
                    says(&said, &[&pid]);
                });
            }
            scope.spawn(|| {
                let (all, _) = said(&["status"], None);
                assert!(told.iter().all(|part| all.contains(part)), "{all}");
            });
            // By a name that the kernel does not know yet, and by a link.
            let (unknown, link) = (dir.join("unknown"), scratch.path().join("link"));
            std::os::unix::fs::symlink(dir.join("kept"), &link).unwrap();
            for path in [dir.join("kept"), unknown, link] {
                for arguments in [
                    &["file", "map"][..],
                    &["file", "move", "--node=0"],
                    &["status"],
                    &["down"],
                ] {
                    let (path, dir) = (path.clone(), &dir);
                    scope.spawn(move || {
                        let (said, success) = said(arguments, Some(&path));
                        let told = format!("the server of {} does not answer", dir.display());
                        assert!(
                            !success && said.contains(&told),
                            "{arguments:?} {}: {said}",
                            path.display()
                        );
                    });
                }
            }
            scope.spawn(|| {
                let pool = format!("--pool={}", dir.display());
                let (said, success) = said(&["run", &pool, "--", "true"], None);
                assert!(!success && said.contains("does not answer"), "{said}");
            });
            scope.spawn(|| {
                let (again, success) = said(&["up", SIZE], Some(&dir));
                assert!(!success && again.contains("mounted already"), "{again}");
            });
        });

        drop(silent);
        wait_until("it answers again", || server_pid(&dir) == Some(pid));
        assert!(load.operations_in(Duration::from_millis(500)) > 0, "calls go on");
        assert!(load.is_running(), "no call failed");
        assert!(fs::read(dir.join("kept")).unwrap().iter().all(|&byte| byte == 7));
        drop(load);
        down(&dir);
        assert_nothing_mounted(scratch.path());
    });
}

#[test]
fn stopped() {
    commands_do_not_wait("server-stopped", &["is stopped", "kill -CONT"], |pid| {
        Some(Stopped::new(pid))
    });
}

/// Pools that other programs mount, and servers with a /run of their own, have no socket here.
#[test]
fn stopped_without_a_socket() {
    on_each_transport("stopped-no-socket", |scratch, dir, transport| {
        up_by(transport, &dir);
        let pid = server_pid(&dir).unwrap();
        let socket = log_of(&dir).with_extension("sock");
        fs::remove_file(&socket).unwrap();
        // Readers have a directory of their own, where the machine has their group.
        let _ = fs::remove_file(Path::new("/run/homenode-read").join(socket.file_name().unwrap()));
        let silent = Stopped::new(pid);
        let told = format!("the server of {} does not answer", dir.display());
        thread::scope(|scope| {
            for arguments in [
                &["status"][..],
                &["status", "--json"],
                &["top", "--once"],
                &["pool", "list"],
                &["volume", "list"],
            ] {
                scope.spawn(move || said(arguments, None));
            }
            for arguments in [&["status"][..], &["down"], &["down", "--lazy"], &["file", "map"]] {
                let (told, dir) = (&told, &dir);
                scope.spawn(move || {
                    let (said, success) = said(arguments, Some(dir));
                    assert!(!success && said.contains(told), "{arguments:?}: {said}");
                });
            }
            scope.spawn(|| {
                let (again, success) = said(&["up", SIZE], Some(&dir));
                assert!(!success && again.contains("mounted already"), "{again}");
            });
        });
        drop(silent);
        fs::write(dir.join("kept"), "kept").unwrap();
        // Those that asked the mount, and were left alone, use it until they are answered.
        let start = Instant::now();
        while !homenode(["down"]).arg(&dir).output().unwrap().status.success() {
            assert!(start.elapsed() < Duration::from_secs(20), "it stays in use");
            thread::sleep(Duration::from_millis(50));
        }
        wait_for_end(pid);
        assert_nothing_mounted(scratch.path());
    });
}

/// Each holds up those who ask it for five seconds.
#[test]
fn many_stopped_servers_hold_a_list_up_as_one_does() {
    on_each_transport("servers-stopped", |scratch, _, transport| {
        let dirs = ["a", "b", "c"].map(|name| scratch.path().join(name));
        let stopped = dirs.each_ref().map(|dir| {
            fs::create_dir(dir).unwrap();
            up_by(transport, dir);
            Stopped::new(server_pid(dir).unwrap())
        });
        let (said, _) = said(&["volume", "list"], None);
        says(&said, &dirs.each_ref().map(|dir| dir.to_str().unwrap()));
        drop(stopped);
        dirs.iter().for_each(|dir| down(dir));
        assert_nothing_mounted(scratch.path());
    });
}

/// Whoever gives up waiting may end it and clear up.
#[test]
fn stopped_and_killed() {
    on_each_transport("stopped-killed", |scratch, dir, transport| {
        up_by(transport, &dir);
        let pid = server_pid(&dir).unwrap();
        let load = Load::start(&dir);
        signal(pid, Signal::STOP);
        std::thread::sleep(Duration::from_millis(100));
        signal(pid, Signal::KILL);
        load.ended_by_loss_of_server();
        let (said, success) = said(&["down"], Some(&dir));
        assert!(success && said.contains("cleared a dead mount"), "{said}");
        assert_nothing_mounted(scratch.path());
    });
}

/// A control group of its own for a process, frozen. Dropping it thaws it.
struct Frozen {
    _thaw: Janitor,
}

impl Frozen {
    fn new(pid: Pid) -> Option<Self> {
        let pid = pid.as_raw_nonzero();
        let name = format!("homenode-test-{pid}");
        // Version 1 and 2: where groups are made, and what freezes one.
        let versions = [
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
        ];
        for (root, file, freeze, thaw) in versions {
            let group = PathBuf::from(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || fs::create_dir(&group).is_err() {
                continue;
            }
            let script = r#"echo "$3" >"$1/$2"; echo "$5" >"$4/cgroup.procs"; sleep 0.1; rmdir "$1""#;
            let janitor = Janitor::new(script, [group.to_str().unwrap(), file, thaw, root, &pid.to_string()]);
            let frozen = fs::write(group.join("cgroup.procs"), pid.to_string())
                .and_then(|()| fs::write(group.join(file), freeze));
            if frozen.is_ok() {
                return Some(Self { _thaw: janitor });
            }
        }
        skipped("needs control groups that can be frozen");
        None
    }
}

#[test]
fn frozen() {
    commands_do_not_wait("server-frozen", &["frozen"], Frozen::new);
}
