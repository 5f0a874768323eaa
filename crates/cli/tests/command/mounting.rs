//! How a pool is mounted and served: transports, caches, directories of nodes.

use super::harness::*;
use homenode_policy::{AccessKind, FileAccess};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal};
use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// An automount lets only one process group reach the directory; others would wait for the mount.
#[test]
fn a_pool_is_mounted_on_an_automount() {
    let (scratch, dir) = need_mounts!("automount");
    let (_requests, to_us) = rustix::pipe::pipe().unwrap();
    let group = rustix::process::getpgrp().as_raw_nonzero();
    let options = format!("fd={},pgrp={group},minproto=5,maxproto=5,direct", to_us.as_raw_fd());
    let options = CString::new(options).unwrap();
    match rustix::mount::mount("automount", &dir, "autofs", MountFlags::empty(), &*options) {
        Ok(()) => {}
        Err(rustix::io::Errno::NODEV) => return skipped("this kernel has no autofs"),
        Err(error) => panic!("{error}"),
    }
    let mut command = homenode(["up", SIZE]);
    let mut command = command.arg(&dir).stdout(Stdio::null()).spawn().unwrap();
    let ended = std::cell::Cell::new(None);
    let child = std::cell::RefCell::new(&mut command);
    wait_until("it is up", || {
        ended.set(child.borrow_mut().try_wait().unwrap());
        ended.get().is_some()
    });
    assert!(ended.get().unwrap().success());
    fs::write(dir.join("file"), "it serves").unwrap();
    // The server has left the group since.
    let server = server_pid(&dir).unwrap();
    assert_ne!(rustix::process::getpgid(Some(server)).unwrap().as_raw_nonzero(), group);
    down(&dir);
    assert_eq!(mounts_below(scratch.path()), [(dir.clone(), "autofs".to_owned())]);
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn wrong_values_are_usage_errors_that_name_flag_and_remedy() {
    let wrong = [
        ("--transport=tcp", "auto, uring, classic"),
        ("--buffers=25%", "write bytes"),
        ("--buffers=many", "512M"),
        ("--spin-us=-1", "whole microseconds"),
        ("--spin-us=2000000", "0 to 1000000"),
        ("--cache-attr=never", "0.5"),
        ("--cache-attr=-1", "0.5"),
    ];
    for (argument, remedy) in wrong {
        let message = fail(2, &mut homenode(["up", "/nonexistent", argument]));
        let flag = argument.split('=').next().unwrap();
        assert!(message.contains(flag) && message.contains(remedy), "{message}");
    }
    refused(
        &mut homenode(["up", "/nonexistent", "--transport=classic", "--spin-us=20"]),
        &["--spin-us", "--transport", "leave"],
    );
}

#[test]
fn up_and_status_show_the_transport_and_the_reason() {
    let (_scratch, dir) = need_mounts!("transport");
    let notice = warned(homenode(["up", SIZE, "--transport=classic"]).arg(&dir));
    let fuse = status(&dir)["fuse"].clone();
    assert_eq!(fuse["transport"], "classic");
    let reason = fuse["transport_reason"].as_str().unwrap();
    assert!(!reason.is_empty());
    let (data, why) = (fuse["data"].as_str().unwrap(), fuse["data_reason"].as_str().unwrap());
    let told = format!("homenode: transport classic: {reason}\nhomenode: data {data}: {why}\n");
    let summary = notice.strip_prefix(&told).unwrap_or_else(|| panic!("{notice}"));
    let up = format!("homenode: {} is up: ", dir.display());
    let log = log_of(&dir);
    assert!(
        summary.starts_with(&up) && summary.ends_with(&format!("its log is {}\n", log.display())),
        "{summary}"
    );
    assert!(log.exists() && summary.contains("MiB on "), "{summary}");
    let text = succeed(homenode(["status"]).arg(&dir));
    assert!(text.contains(&format!("transport classic: {reason}")), "{text}");
    assert!(text.contains("\ncopies: "), "{text}");
    down(&dir);
}

#[test]
fn a_mover_without_work_says_so() {
    let (_scratch, dir) = need_mounts!("mover");
    let output = homenode(["up", SIZE, "--mover=on", "--data=pool"])
        .arg(&dir)
        .output()
        .unwrap();
    says(&describe(&output), &["mover on: nothing to do"]);
    down(&dir);
}

#[test]
fn per_node_makes_a_directory_for_each_node() {
    let (_scratch, dir) = need_mounts!("per-node");
    chown(&dir, Some(7), Some(8)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o2770)).unwrap();
    succeed(homenode(["up", SIZE, "--per-node"]).arg(&dir));
    let nodes = status(&dir)["nodes"].as_array().unwrap().clone();
    let homes: Vec<String> = nodes.iter().map(|node| node["node"].to_string()).collect();
    let mut names: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    let expected: Vec<String> = homes.iter().map(|home| format!("node{home}")).collect();
    assert_eq!(names, expected);
    for home in homes {
        let of_node = dir.join(format!("node{home}"));
        let found = fs::metadata(&of_node).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (7, 8, 0o2770));
        assert_eq!(policy(&of_node), format!("node:{home}"));
        let below = of_node.join("below");
        fs::create_dir(&below).unwrap();
        assert_eq!(policy(&below), format!("node:{home}"));
        fs::write(below.join("file"), vec![1; 1 << 20]).unwrap();
        let map = succeed(homenode(["file", "map"]).arg(below.join("file")));
        assert!(
            map.starts_with(&format!("node {home} ")) && map.lines().count() == 1,
            "{map}"
        );
    }
    down(&dir);

    up(&dir);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "directories without --per-node");
    down(&dir);
}

fn policy(path: &Path) -> String {
    let mut value = vec![0; 64];
    let bytes = rustix::fs::getxattr(path, "user.homenode.policy", &mut value[..]).unwrap();
    value.truncate(bytes);
    String::from_utf8(value).unwrap()
}

/// A stat sooner than `--cache-attr` is answered by the kernel, a later one by the server.
#[test]
fn attributes_expire_after_the_given_time() {
    let (_scratch, dir) = need_mounts!("attributes");
    let asked_by_ten_looks = |option: &[&str]| {
        // Files of the kernel change unseen, so nothing of theirs is kept once they are written.
        succeed(homenode(["up", SIZE, "--data=pool"]).args(option).arg(&dir));
        fs::write(dir.join("file"), "x").unwrap();
        fs::metadata(dir.join("file")).unwrap();
        let asked = || status(&dir)["fuse"]["requests"].as_u64().unwrap();
        let before = asked();
        for _ in 0..10 {
            fs::metadata(dir.join("file")).unwrap();
        }
        let count = asked() - before;
        down(&dir);
        count
    };
    let for_ever = asked_by_ten_looks(&[]);
    let not_at_all = asked_by_ten_looks(&["--cache-attr=0"]);
    assert!(for_ever < 10 && not_at_all >= 10, "{for_ever}, {not_at_all}");
}

#[test]
fn nosuid_nodev_and_noexec_are_enforced() {
    let (_scratch, dir) = need_mounts!("restricted");
    succeed(homenode(["up", SIZE, "--noexec", "--nosuid", "--nodev"]).arg(&dir));
    let options = mount_options(&dir);
    for option in ["nosuid", "nodev", "noexec"] {
        assert!(options.split(',').any(|one| one == option), "{options}");
    }
    fs::copy("/bin/true", dir.join("program")).unwrap();
    let error = Command::new(dir.join("program")).status().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    down(&dir);

    succeed(homenode(["up", SIZE]).arg(&dir));
    let options = mount_options(&dir);
    assert!(!options.contains("no"), "same options as tmpfs: {options}");
    down(&dir);
}

/// systemd starts what comes after a service of Type=notify when it says READY=1: the mount must be there then.
#[test]
fn up_notifies_systemd_when_the_mount_is_ready() {
    let (scratch, dir) = need_mounts!("notify");
    let path = scratch.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let start = |arguments: &[&str]| {
        let mut command = homenode(["up", SIZE]);
        command.args(arguments).arg(&dir).env("NOTIFY_SOCKET", &path);
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut server = start(&["--foreground"]);
    let mut message = [0; 64];
    let bytes = socket.recv(&mut message).unwrap();
    assert_eq!(&message[..bytes], b"READY=1\n");
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    signal(Pid::from_child(&server), Signal::TERM);
    assert!(server.wait().unwrap().success());
    assert_nothing_mounted(scratch.path());

    // Nobody waits for a server that only inherited the variable.
    assert!(start(&[]).wait().unwrap().success());
    socket.set_nonblocking(true).unwrap();
    assert_eq!(socket.recv(&mut message).unwrap_err().kind(), ErrorKind::WouldBlock);
    down(&dir);
}

fn mount_options(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(1) == dir.to_str())
        .unwrap();
    line.split(' ').nth(3).unwrap().to_owned()
}

#[test]
fn a_trace_tells_what_was_written_and_given_back() {
    need_mounts!();
    let scratch = Scratch::new("trace");
    let (dir, trace) = (scratch.dir("pool"), scratch.path().join("trace"));
    succeed(homenode(["up", SIZE, "--data=pool"]).arg(&dir));
    let inside = dir.join("trace");
    let refused = fail(1, homenode(["simulate", "record"]).args([&dir, &inside]));
    assert!(refused.contains("lies in the mount that is recorded"), "{refused}");
    assert!(!inside.exists());
    let mut recorder = homenode(["simulate", "record", "--seconds=60"])
        .args([&dir, &trace])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the trace is begun", || trace.exists());
    let path = dir.join("file");
    fs::write(&path, [1; 65536]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 4096, 8192).unwrap();
    file.set_len(16000).unwrap();
    let inode = file.metadata().unwrap().ino();
    drop(file);
    fs::remove_file(&path).unwrap();
    let of = |kind| {
        let text = fs::read_to_string(&trace).unwrap();
        let accesses = text.lines().filter_map(|line| line.parse::<FileAccess>().ok());
        let all = accesses.filter(|access| access.file == inode && access.kind == kind);
        // Threads of the server were asked one after another.
        let mut all = all.collect::<Vec<_>>();
        all.sort_by_key(|access| access.at_ns);
        all.into_iter()
            .map(|access| (access.offset, access.bytes))
            .collect::<Vec<_>>()
    };
    wait_until("the end of the file is told", || of(AccessKind::Free).len() >= 3);
    assert_eq!(of(AccessKind::Free), [(4096, 8192), (16000, 49536), (0, 16384)]);
    assert_eq!(of(AccessKind::Write).iter().map(|(_, bytes)| bytes).sum::<u64>(), 65536);
    signal(Pid::from_child(&recorder), Signal::INT);
    assert!(recorder.wait().unwrap().success());
    let said = succeed(homenode(["simulate", "trace"]).arg(&trace));
    assert!(said.contains("reads and writes"), "{said}");
    down(&dir);
}

/// The kernel passes files through for root of the machine alone.
#[test]
fn root_of_a_user_namespace_gets_a_mount_that_works() {
    let (scratch, dir) = need_mounts!("namespace");
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-ec",
            script,
            "sh",
            BINARY,
            SIZE,
        ]);
        command.arg(&dir).output().unwrap()
    };
    if !inside("mount -t tmpfs none /dev/shm").status.success() {
        return skipped("this machine lets nobody make user namespaces");
    }
    let script =
        r#"mount -t tmpfs none /run; "$1" up "$2" "$3" 2>&1; echo it works >"$3/file"; cat "$3/file"; "$1" down "$3""#;
    let output = inside(script);
    let said = describe(&output);
    assert!(output.status.success(), "{said}");
    says(&said, &["data pool", "user namespace", "it works"]);
    assert_nothing_mounted(scratch.path());
}
