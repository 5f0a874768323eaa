//! Each mistake gets one clear message, a non-zero exit, and leaves nothing mounted.

use super::harness::*;
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
fn malformed_sizes_are_usage_errors() {
    for size in ["", "0", "abc", "-1", "101%", "99999999999999999999", "1.5", "5X"] {
        let message = fail(
            2,
            homenode(["up", "/nonexistent"]).arg(format!("--size-per-node={size}")),
        );
        says(&message, &["--size-per-node", "512M"]);
    }
    let message = fail(2, &mut homenode(["up", "/nonexistent", "--size-per-node", "-5"]));
    assert!(message.contains("512M"), "{message}");
    let message = fail(2, &mut homenode(["up", "/nonexistent", "--size-per-node=1GB"]));
    assert!(message.contains("1GiB"), "{message}");
    let message = fail(2, &mut homenode(["up", "/nonexistent", "--node=0,1"]));
    assert!(message.contains("several nodes"), "{message}");
    let negative: [(&[&str], &str); 4] = [
        (&["up", "/nonexistent", "--spin-us", "-1"], "'-1' for '--spin-us'"),
        (&["volume", "create", "/x/v", "--size", "-5M"], "'-5M' for '--size'"),
        (&["pool", "create", "a", "b", "--cache", "-.5G"], "'-.5G' for '--cache'"),
        (
            &["pool", "add", "/x", "--node", "-1", "--size", "1M"],
            "'-1' for '--node'",
        ),
    ];
    for (arguments, part) in negative {
        let message = fail(2, &mut homenode(arguments));
        assert!(!message.contains("tip"), "{message}");
        says(&message, &[part, "negative"]);
    }
    let nonsense: [&[&str]; 7] = [
        &[],
        &["frobnicate"],
        &["up"],
        &["down"],
        &["up", "--node", "x", "/tmp"],
        &["file", "move", "/tmp/x"],
        &["pool", "add", "/tmp", "--node", "0"],
    ];
    for arguments in nonsense {
        fail(2, &mut homenode(arguments));
    }
}

#[test]
fn unusable_mount_directories_are_refused() {
    need_mounts!();
    let scratch = Scratch::new("directories");
    let missing = scratch.path().join("missing");
    refused(
        homenode(["up", SIZE]).arg(&missing),
        &[missing.to_str().unwrap(), "does not exist", "mkdir"],
    );

    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    refused(
        homenode(["up", SIZE]).arg(&file),
        &[file.to_str().unwrap(), "not a directory"],
    );
    refused(
        homenode(["up", SIZE]).arg(file.join("below")),
        &[file.to_str().unwrap(), "Not a directory"],
    );

    let full = scratch.dir("full");
    fs::write(full.join("precious"), "").unwrap();
    refused(
        homenode(["up", SIZE]).arg(&full),
        &[full.to_str().unwrap(), "not empty", "precious"],
    );

    symlink("loop", scratch.path().join("loop")).unwrap();
    scratch.refused("up --size-per-node=16M loop", &["loop", "symbolic links"]);

    let mounted = scratch.dir("mounted");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&mounted)
        .status()
        .unwrap();
    assert!(mount.success());
    refused(
        homenode(["up", SIZE]).arg(&mounted),
        &[mounted.to_str().unwrap(), "mounted already", "tmpfs"],
    );
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    assert!(Command::new("umount").arg(&mounted).status().unwrap().success());

    up(&mounted);
    refused(
        homenode(["up", SIZE]).arg(&mounted),
        &[mounted.to_str().unwrap(), "mounted already", "homenode down"],
    );
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    down(&mounted);
    assert_nothing_mounted(scratch.path());
}

#[test]
fn missing_nodes_and_impossible_sizes_are_refused() {
    let (scratch, _) = need_mounts!("sizes");
    scratch.refused("up --node 999 pool", &["node 999", "node 0"]);
    for size in ["100T", "100%"] {
        let up = format!("up --size-per-node {size} pool");
        scratch.refused(&up, &["node 0", "MiB", "ask for less"]);
    }
    scratch.refused("up --size-per-node 4K pool", &["node 0", "4096", "at least"]);
    assert_nothing_mounted(scratch.path());
}

#[test]
fn up_without_root_is_refused() {
    need_mounts!();
    let scratch = Scratch::new("user");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let binary = scratch.path().join("homenode");
    // By another process: one that another test forks meanwhile would hold it open for writing, and it could not be run.
    succeed(Command::new("cp").arg(BINARY).arg(&binary));
    let dir = scratch.dir("pool");
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(arguments).arg(&dir).uid(65534).gid(65534).current_dir("/");
        command
    };
    refused(&mut as_nobody(&["up", SIZE]), &["root", "sudo"]);
    assert_nothing_mounted(scratch.path());
    up(&dir);
    refused(&mut as_nobody(&["status"]), &["root"]);
    refused(&mut as_nobody(&["down"]), &["root"]);
    assert_eq!(mounts_below(scratch.path()).len(), 1);
    // Where a file lies is no secret from who may read it.
    fs::write(dir.join("file"), "x").unwrap();
    let mut map = Command::new(&binary);
    assert!(succeed(map.args(["file", "map"]).arg(dir.join("file")).uid(65534).gid(65534)).starts_with("node"));
    // Nor is that its server is gone, or that it may be stopped.
    let pid = server_pid(&dir).unwrap();
    let stopped = Stopped::new(pid);
    for verb in ["status", "down"] {
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", "30"])
            .arg(&binary)
            .arg(verb)
            .arg(dir.join("unknown"));
        refused(command.uid(65534).gid(65534), &["root"]);
    }
    signal(pid, Signal::KILL);
    wait_for_end(pid);
    drop(stopped);
    refused(&mut map, &["is dead", "homenode down"]);
    let output = as_nobody(&["status"]).output().unwrap();
    let said = describe(&output);
    assert!(!output.status.success() && said.contains("is dead"), "{said}");
    refused(&mut as_nobody(&["down"]), &["root"]);
    down(&dir);
}

#[test]
fn up_without_dev_fuse_is_refused() {
    need_mounts!(alone);
    let scratch = Scratch::new("device");
    let dir = scratch.dir("pool");
    // A /dev of its own, in a mount namespace of its own.
    let script = r#"mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec "$1" up "$2" "$3""#;
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            BINARY,
            SIZE,
        ])
        .arg(&dir);
    refused(&mut command, &["/dev/fuse", "modprobe"]);
    assert_nothing_mounted(scratch.path());
}

#[test]
fn paths_outside_homenode_mounts_are_refused() {
    need_mounts!();
    let scratch = Scratch::new("elsewhere");
    let dir = scratch.dir("plain");
    let name = dir.to_str().unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    let file = dir.join("file");
    refused(homenode(["status"]).arg(&dir), &[name, "not on a homenode mount"]);
    refused(homenode(["down"]).arg(&dir), &[name, "not a homenode mount"]);
    refused(homenode(["file", "map"]).arg(&file), &[name, "not on a homenode mount"]);
    refused(
        homenode(["file", "move", "--node", "0"]).arg(&file),
        &[name, "not on a homenode mount"],
    );
    refused(
        homenode(["pool", "drain"]).arg(&dir).arg("0"),
        &[name, "not on a homenode mount"],
    );
    scratch.refused("file map plain/missing", &["missing", "No such file"]);
    scratch.refused("down plain/missing", &["missing", "does not exist", "homenode status"]);

    up(&scratch.dir("pool"));
    let pool = scratch.path().join("pool");
    fs::create_dir(pool.join("sub")).unwrap();
    refused(
        homenode(["down"]).arg(pool.join("sub")),
        &["inside", pool.to_str().unwrap()],
    );
    scratch.refused("file map pool/sub", &["sub", "not a file"]);
    fs::write(pool.join("file"), "x").unwrap();
    scratch.refused("file move --node 999 pool/file", &["file", "node 999", "node 0"]);
    down(&pool);
}

#[test]
fn an_invalid_log_level_is_reported_once() {
    let stderr = |command: &mut Command| warned(command.env("HOMENODE_LOG", "bogus"));
    let message = stderr(&mut homenode(["topology"]));
    says(&message, &["HOMENODE_LOG=bogus", "debug"]);
    let (_scratch, dir) = need_mounts!("log");
    let message = stderr(homenode(["up", SIZE]).arg(&dir));
    assert_eq!(message.matches("HOMENODE_LOG").count(), 1, "{message}");
    down(&dir);
}

#[test]
fn a_failing_topology_command_has_a_message() {
    refused(
        &mut homenode(["topology", "--from", "/nonexistent.xml"]),
        &["/nonexistent.xml"],
    );
    assert!(succeed(&mut homenode(["topology"])).contains("node"));
    assert!(!succeed(&mut homenode(["member", "list"])).is_empty());
    assert!(Path::new(BINARY).exists());
}

#[test]
fn a_full_error_stream_ends_no_command() {
    need_mounts!();
    let scratch = Scratch::new("full-stream");
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = |arguments: [&str; 2]| {
        let mut command = homenode(arguments);
        command.arg(scratch.path()).stderr(full()).status().unwrap().code()
    };
    assert_eq!(run(["up", SIZE]), Some(0));
    assert_eq!(run(["down", "--lazy"]), Some(0));
    assert_eq!(run(["down", "--lazy"]), Some(1), "no mount");
}

/// A process whose client has connected and gone keeps the place in its queue until it takes the connection.
#[test]
fn a_stopped_server_with_a_full_queue_holds_up_no_command() {
    need_mounts!(alone);
    let scratch = Scratch::new("full-queue");
    let dir = scratch.dir("pool");
    up(&dir);
    fs::write(dir.join("file"), "x").unwrap();
    let stopped = Stopped::new(server_pid(&dir).unwrap());
    let socket = log_of_mounted(&dir).with_extension("sock");
    let connect = || {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK);
        let client = socket_with(kind.0, kind.1, kind.2, None).unwrap();
        connect(&client, &SocketAddrUnix::new(&socket).unwrap())
    };
    while connect().is_ok() {}
    let ask = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "30", BINARY]).args(arguments);
        command.current_dir(scratch.path());
        command
    };
    for arguments in [&["status"][..], &["status", "pool"]] {
        let told = describe(&ask(arguments).output().unwrap());
        says(&told, &["is it stopped", "its server gave no status"]);
    }
    for arguments in [["file", "map", "pool/file"].as_slice(), &["down", "pool"]] {
        refused(&mut ask(arguments), &["is it stopped"]);
    }
    drop(stopped);
    // It takes them all, and answers.
    wait_until("the server is back", || {
        homenode(["status"]).arg(&dir).output().unwrap().status.success()
    });
    down(&dir);
}

/// [`log_of`] from the table of mounts, as the server of the mount is stopped.
fn log_of_mounted(directory: &Path) -> std::path::PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = format!(" {} ", directory.display());
    let line = mounts.lines().find(|line| line.contains(&at)).unwrap();
    let device = line.split(' ').nth(2).unwrap().replace(':', "-");
    Path::new("/run/homenode").join(device + ".log")
}

#[test]
fn a_block_device_that_is_not_there_cannot_be_detached() {
    refused(
        &mut homenode(["volume", "detach", "--force", "/dev/ublkb4711"]),
        &["no waiting device /dev/ublkb4711", "POOL/NAME"],
    );
}

#[test]
fn steer_moves_nothing_against_a_placement_of_the_tmpfs() {
    let (_scratch, dir) = need_mounts!("placed");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "mpol=bind:0", "none"])
        .arg(&dir)
        .status();
    if !mounted.unwrap().success() {
        return skipped("this kernel has no nodes");
    }
    refused(
        homenode(["steer", "--mover", "on"]).arg(&dir),
        &["mpol=bind,", "--mover on", "mpol=local"],
    );
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
}
