//! However a server ends, no mount is left; what SIGKILL leaves is cleared by the next command.

use super::harness::*;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[test]
fn signals_end_the_server() {
    need_mounts!();
    for sent in [Signal::TERM, Signal::INT, Signal::HUP] {
        let scratch = Scratch::new("signal");
        let dir = scratch.dir("pool");
        up(&dir);
        end_server(&dir, sent);
        assert_nothing_mounted(scratch.path());
        up(&dir);
        down(&dir);
    }
}

#[test]
fn in_the_foreground_signals_exit_with_0() {
    need_mounts!();
    for sent in [Signal::TERM, Signal::INT] {
        let scratch = Scratch::new("foreground");
        let dir = scratch.dir("pool");
        let server = homenode(["up", SIZE, "--foreground"])
            .arg(&dir)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("it is mounted", || server_pid(&dir).is_some());
        fs::write(dir.join("file"), "x").unwrap();
        signal(Pid::from_child(&server), sent);
        let output = server.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(!describe(&output).contains("cannot unmount"), "{}", describe(&output));
        assert_nothing_mounted(scratch.path());
    }
}

/// Signals are ignored in programs that nohup(1) starts, or a shell script in the background.
#[test]
fn signals_that_are_ignored_from_the_start_do_not_end_the_server() {
    let (scratch, dir) = need_mounts!("ignored");
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "trap '' HUP INT; exec \"$@\"",
        "sh",
        BINARY,
        "up",
        SIZE,
        "--foreground",
    ]);
    let server = shell.arg(&dir).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is mounted", || server_pid(&dir).is_some());
    fs::write(dir.join("file"), "x").unwrap();
    let pid = Pid::from_child(&server);
    for sent in [Signal::HUP, Signal::INT] {
        signal(pid, sent);
    }
    // It is told what it is sent in this order.
    signal(pid, Signal::TERM);
    let output = server.wait_with_output().unwrap();
    let said = describe(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("signal 15: taking") && !said.contains("signal 1:"),
        "{said}"
    );
    assert!(said.contains("is up; SIGTERM takes it down"), "{said}");
    assert_nothing_mounted(scratch.path());
}

#[test]
fn an_early_signal_leaves_no_mount() {
    let (scratch, dir) = need_mounts!("early");
    for delay_ms in [0, 5, 10, 20, 40, 80] {
        let mut server = homenode(["up", SIZE, "--foreground"])
            .arg(&dir)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        signal(Pid::from_child(&server), Signal::TERM);
        server.wait().unwrap();
        assert_nothing_mounted(scratch.path());
    }
}

#[test]
fn two_concurrent_downs_both_succeed() {
    let (scratch, dir) = need_mounts!("down-race");
    for _ in 0..8 {
        up(&dir);
        let start = || homenode(["down"]).arg(&dir).stderr(Stdio::piped()).spawn().unwrap();
        let racers = [start(), start(), start()];
        let outputs = racers.map(|racer| racer.wait_with_output().unwrap());
        assert_nothing_mounted(scratch.path());
        for output in &outputs {
            let told = describe(output);
            if output.status.success() {
                let is_told_who = told.contains("another command has taken");
                assert!(is_told_who || output.stderr.is_empty(), "{told}");
            } else {
                // It began when all was over.
                assert!(told.contains("is not a homenode mount"), "{told}");
            }
        }
        assert!(outputs.iter().any(|output| output.status.success()));
    }
}

#[test]
fn umount_ends_the_server() {
    let (scratch, dir) = need_pool!("umount");
    let pid = server_pid(&dir).unwrap();
    assert!(Command::new("umount").arg(&dir).status().unwrap().success());
    wait_for_end(pid);
    assert_nothing_mounted(scratch.path());
    refused(
        homenode(["down"]).arg(&dir),
        &[dir.to_str().unwrap(), "not a homenode mount"],
    );
}

fn kill_server(scratch: &Scratch) -> std::path::PathBuf {
    let dir = scratch.dir("pool");
    up(&dir);
    fs::write(dir.join("lost"), "x").unwrap();
    end_server(&dir, Signal::KILL);
    let error = fs::metadata(&dir).unwrap_err().raw_os_error();
    // ENOTCONN; rings go a moment after their process: ECANCELED or ECONNABORTED until then.
    assert!(matches!(error, Some(107 | 125 | 103)), "the mount is dead: {error:?}");
    dir
}

#[test]
fn up_clears_a_dead_mount() {
    need_mounts!();
    let scratch = Scratch::new("dead-up");
    let dir = kill_server(&scratch);
    let said = warned(homenode(["up", SIZE]).arg(dir.join("")));
    assert!(said.contains("cleared a dead mount"), "{said}");
    let (_, log) = said.split_once("; its log is ").expect("it has one");
    let (log, _) = log.split_once(" until the next boot").expect("it stays");
    assert!(
        std::path::Path::new(log).exists(),
        "the new server's log is another one: {said}"
    );
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    assert!(!dir.join("lost").exists());
    down(&dir);
    assert_nothing_mounted(scratch.path());
}

/// On a busy machine the end of a killed server takes a while, and no request has an answer until then.
#[test]
fn up_waits_for_the_end_of_a_killed_server() {
    let (scratch, dir) = need_mounts!("dead-slow");
    // A mount of nobody: the shell keeps its connection open, and reads nothing from it.
    let script = r#"
        set -eu
        exec 3<>/dev/fuse
        mount -i -t fuse.homenode -o fd=3,rootmode=40000,user_id=0,group_id=0 homenode "$2"
        "$1" up --size-per-node 16M "$2" 3>&- 2>&1 &
        sleep 3
        exec 3>&-
        wait $!
        "$1" down "$2"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh", BINARY]);
    let said = succeed(command.arg(&dir));
    assert!(said.contains("cleared a dead mount"), "{said}");
    assert_nothing_mounted(scratch.path());
}

#[test]
fn up_names_holders_of_a_dead_mount() {
    let (_scratch, dir) = need_pool!("dead-held");
    let mut holder = Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
    end_server(&dir, Signal::KILL);
    let output = homenode(["up", SIZE]).arg(&dir).output().unwrap();
    let named = format!("end sleep ({}): until then", holder.id());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let said = describe(&output);
    assert!(output.status.success() && said.contains(&named), "{said}");
    down(&dir);
}

#[test]
fn down_clears_a_dead_mount() {
    need_mounts!();
    let scratch = Scratch::new("dead-down");
    let dir = kill_server(&scratch);
    let all: Value = serde_json::from_str(&succeed(&mut homenode(["status", "--json"]))).unwrap();
    assert!(
        all["dead"].as_array().unwrap().contains(&dir.to_str().unwrap().into()),
        "{all}"
    );
    let all = succeed(&mut homenode(["status"]));
    assert!(all.contains(&format!("`homenode down {}`", dir.display())), "{all}");
    // A file that was open when the server died must not keep the mount point.
    let said = warned(homenode(["down", "pool/"]).current_dir(scratch.path()));
    says(&said, &["cleared a dead mount"]);
    assert_nothing_mounted(scratch.path());
}

#[test]
fn down_on_a_busy_mount_names_the_users_and_the_remedy() {
    let (scratch, dir) = need_pool!("busy");
    let pid = server_pid(&dir).unwrap();
    fs::write(dir.join("file"), "held").unwrap();
    let mut file = File::open(dir.join("file")).unwrap();
    let own = format!("({})", std::process::id());
    refused(
        homenode(["down"]).arg(&dir),
        &[dir.to_str().unwrap(), "in use", &own, "--lazy"],
    );
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"held", "it works");

    succeed(homenode(["down", "--lazy"]).arg(&dir));
    assert_nothing_mounted(scratch.path());
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "held", "open files work until they are closed");
    let all: Value = serde_json::from_str(&succeed(&mut homenode(["status", "--json"]))).unwrap();
    let ours = |pool: &&Value| pool["pid"] == pid.as_raw_nonzero().get();
    let report = all["pools"].as_array().unwrap().iter().find(ours).unwrap();
    assert_eq!(report["mounted"], false, "{report}");
    assert!(succeed(&mut homenode(["status"])).contains("detached, waits for open files"));
    drop(file);
    wait_for_end(pid);
}

#[test]
fn a_signal_ends_a_busy_mount_too() {
    let (scratch, dir) = need_pool!("busy-signal");
    let pid = server_pid(&dir).unwrap();
    let file = File::create(dir.join("file")).unwrap();
    signal(pid, Signal::TERM);
    wait_for_end(pid);
    assert_nothing_mounted(scratch.path());
    assert!(file.set_len(1).is_err(), "open files get errors");
    up(&dir);
    down(&dir);
}

/// The command that waits for `ready` was killed: its server must not live on unknown.
#[test]
fn a_server_ends_when_its_starting_command_dies() {
    let (scratch, dir) = need_mounts!("orphan");
    let mut server = homenode(["up", SIZE, "--detached"])
        .arg(&dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(server.stdout.take());
    assert_eq!(server.wait().unwrap().code(), Some(1));
    assert_nothing_mounted(scratch.path());
}

/// A process in a mount namespace of its own, which has copies of all mounts there are. Ends when dropped.
struct Elsewhere(Child);

impl Elsewhere {
    fn new() -> Self {
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", "echo; exec sleep 120"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        Self(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn down_does_not_wait_for_another_mount_namespace() {
    need_mounts!(alone);
    let scratch = Scratch::new("namespace");
    let dir = scratch.dir("pool");
    up(&dir);
    let pid = server_pid(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    let elsewhere = Elsewhere::new();
    let (holder, kill) = (
        format!("({})", elsewhere.0.id()),
        format!("`kill {}`", pid.as_raw_nonzero()),
    );
    refused(
        homenode(["down"]).arg(&dir),
        &[dir.to_str().unwrap(), "another mount namespace", &holder, &kill],
    );
    assert_nothing_mounted(scratch.path());
    let there = format!("/proc/{}/root{}/file", elsewhere.0.id(), dir.display());
    assert_eq!(fs::read_to_string(there).unwrap(), "content");
    signal(pid, Signal::TERM);
    wait_for_end(pid);
}

#[test]
fn down_does_not_wait_for_a_bind_mount() {
    need_mounts!();
    let scratch = Scratch::new("bind");
    let (dir, other) = (scratch.dir("pool"), scratch.dir("other"));
    up(&dir);
    let pid = server_pid(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    rustix::mount::mount_bind(&dir, &other).unwrap();
    let remedy = format!("`umount {}`", other.display());
    let instead = format!("`homenode down {}`", dir.display());
    refused(homenode(["down"]).arg(&other), &["bind mount of", &remedy, &instead]);
    assert_eq!(mounts_below(scratch.path()).len(), 2, "both mounts are still there");
    refused(homenode(["down"]).arg(&dir), &[dir.to_str().unwrap(), &remedy]);
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "content");
    rustix::mount::unmount(&other, rustix::mount::UnmountFlags::empty()).unwrap();
    wait_for_end(pid);
    assert_nothing_mounted(scratch.path());
}

/// Once its own directory is unmounted, the bind mount is what there is of the pool.
#[test]
fn down_on_a_remaining_bind_mount_ends_the_pool() {
    need_mounts!();
    let scratch = Scratch::new("bind-left");
    let (dir, other) = (scratch.dir("pool"), scratch.dir("other"));
    up(&dir);
    let pid = server_pid(&dir).unwrap();
    rustix::mount::mount_bind(&dir, &other).unwrap();
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(status(&other)["directory"], other.to_str().unwrap());
    assert_eq!(status(&other)["mounted"], true);
    down(&other);
    wait_for_end(pid);
    assert_nothing_mounted(scratch.path());
}

#[test]
fn down_names_the_mount_inside() {
    let (scratch, dir) = need_pool!("nested");
    let inner = dir.join("inner");
    fs::create_dir(&inner).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner).status();
    assert!(mounted.unwrap().success());
    let remedy = format!("`umount {}`", inner.display());
    refused(homenode(["down"]).arg(&dir), &["tmpfs", "inside", &remedy]);
    rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::empty()).unwrap();
    up(&inner);
    let remedy = format!("`homenode down {}`", inner.display());
    refused(homenode(["down"]).arg(&dir), &["inside", &remedy]);
    down(&inner);
    down(&dir);
    assert_nothing_mounted(scratch.path());
}

/// It would go along, and a pool of memory with it.
#[test]
fn a_dead_mount_with_a_mount_inside_stays() {
    let (scratch, dir) = need_pool!("dead-nested");
    let inner = dir.join("inner");
    fs::create_dir(&inner).unwrap();
    up(&inner);
    fs::write(inner.join("file"), "kept").unwrap();
    end_server(&dir, Signal::KILL);
    let remedy = format!("`homenode down {}`", inner.display());
    for words in [&["down"][..], &["up", "--size-per-node", "16M"]] {
        refused(homenode(words.iter().copied()).arg(&dir), &["dead", "inside", &remedy]);
    }
    assert_eq!(fs::read_to_string(inner.join("file")).unwrap(), "kept");
    let said = warned(homenode(["down", "--lazy"]).arg(&dir));
    says(
        &said,
        &[
            "cleared a dead mount",
            &inner.display().to_string(),
            "inside it",
            "are lost",
        ],
    );
    assert_nothing_mounted(scratch.path());
}

#[test]
fn an_aborted_connection_leaves_no_mount() {
    let (scratch, dir) = need_pool!("aborted");
    let pid = server_pid(&dir).unwrap();
    abort_connection(&scratch, &dir);
    wait_for_end(pid);
    assert_nothing_mounted(scratch.path());
    up(&dir);
    down(&dir);
}

#[test]
fn a_pool_of_another_mount_namespace_is_told_with_its_remedy() {
    need_mounts!(alone);
    let scratch = Scratch::new("elsewhere");
    let dir = scratch.dir("pool");
    let up = format!("{BINARY} up {SIZE} {}", dir.display());
    succeed(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &up]));
    let told = fail(1, homenode(["down"]).arg(&dir));
    let remedy = told.split('`').find(|part| part.starts_with("nsenter -m -t ")).unwrap();
    let pid = remedy.split(' ').nth(3).unwrap();
    let listed = succeed(&mut homenode(["status"]));
    says(&listed, &["mounted in another mount namespace", remedy]);
    let name = Path::new(BINARY).file_name().unwrap().to_str().unwrap();
    let command = remedy.replace(&format!(" {name} "), &format!(" {BINARY} "));
    succeed(Command::new("sh").args(["-c", &command]));
    wait_until("the server has ended", || !Path::new("/proc").join(pid).exists());
    assert!(fail(1, homenode(["down"]).arg(&dir)).contains("is not a homenode mount"));
}
