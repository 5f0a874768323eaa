//! Volumes by the command: each verb, and each mistake.

use super::harness::*;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn volume(verb: &str, path: impl AsRef<OsStr>, options: &[&str]) -> Command {
    let mut command = homenode(["volume", verb]);
    command.arg(path).args(options);
    command
}

fn list(pool: &Path) -> Value {
    let listed: Value = serde_json::from_str(&succeed(&mut volume("list", pool, &["--json"]))).unwrap();
    assert_eq!(listed["output_version"], 1);
    listed["volumes"].clone()
}

#[test]
fn volumes_are_created_resized_and_removed() {
    let (_scratch, pool) = need_pool!("volumes");
    let free_before = status(&pool)["free_bytes"].clone();
    let disk = pool.join("disk");
    assert_eq!(succeed(&mut volume("list", &pool, &[])), "no volumes\n");
    let told = succeed(&mut volume("create", &disk, &["--size", "8M"]));
    assert_eq!(told, format!("created {}: 8.00 MiB\n", disk.display()));
    succeed(&mut volume(
        "create",
        pool.join("other"),
        &["--size=4K", "--policy=node:0"],
    ));

    let entry = |name: &str, size_bytes: u64, policy: &str| {
        json!({
            "pool": pool.to_str(), "name": name, "size_bytes": size_bytes, "used_bytes": 0, "nodes": [],
            "policy": policy, "attached": false, "device": null,
        })
    };
    let expected = json!([entry("disk", 8 << 20, "local"), entry("other", 4096, "node:0")]);
    assert_eq!(list(&pool), expected);
    // From anywhere on the pool, and among those of all pools.
    fs::create_dir(pool.join("sub")).unwrap();
    assert_eq!(list(&pool.join("sub")), expected);
    let all = succeed(&mut homenode(["volume", "list"]));
    assert!(all.contains(disk.to_str().unwrap()), "{all}");
    let names: Vec<_> = fs::read_dir(&pool)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["sub"], "no directory shows them");
    assert!(!disk.exists());

    succeed(volume("resize", "disk", &["--size", "16K"]).current_dir(&pool));
    succeed(&mut volume("resize", &disk, &["--size", "4M", "--force"]));
    assert_eq!(list(&pool)[0]["size_bytes"], 4 << 20);
    assert_eq!(status(&pool)["free_bytes"], free_before, "thin: nothing was written");

    let told = succeed(&mut volume("remove", &disk, &[]));
    assert_eq!(told, format!("removed {}\n", disk.display()));
    // The name of a volume says nothing about files.
    fs::write(&disk, "a file").unwrap();
    succeed(&mut volume(
        "create",
        &disk,
        &["--size", "4K", "--policy", "interleave"],
    ));
    assert_eq!(fs::read_to_string(&disk).unwrap(), "a file");
    assert_eq!(list(&pool)[0]["policy"], "interleave");
    down(&pool);
}

#[test]
fn a_volume_larger_than_its_pool_is_reported() {
    let (_scratch, pool) = need_pool!("thin");
    for (verb, size) in [("create", "1T"), ("resize", "8191P")] {
        let message = warned(&mut volume(verb, pool.join("v"), &["--size", size]));
        says(&message, &["larger than its pool", "writes fail"]);
    }
    down(&pool);
}

#[test]
fn sizes_and_policies_that_do_not_parse_are_usage_errors() {
    let usages: [(&[&str], &str); 8] = [
        (&["--size=0"], "is nothing"),
        (&["--size=1GB"], "1GiB"),
        (&["--size=25%"], "64M"),
        (&["--size=8192P"], "larger"),
        (&["--size=-1"], "units"),
        (&["--size=1M", "--policy=near"], "node:N"),
        (&["--size=1M", "--policy=node:"], "node:N"),
        (&["--size=1M", "--policy=node:70000"], "node:N"),
    ];
    for (options, part) in usages {
        let message = fail(2, &mut volume("create", "/x/v", options));
        assert!(message.contains(part), "{options:?}: {message}");
    }
    fail(2, &mut homenode(["volume", "create", "/x/v"]));
    fail(2, &mut homenode(["volume", "remove"]));
    fail(2, &mut homenode(["volume", "frobnicate"]));
}

#[test]
fn each_mistake_with_volumes_has_its_message() {
    let (scratch, pool) = need_pool!("mistakes");
    let name = pool.to_str().unwrap();
    let create = |path: &OsStr| volume("create", path, &["--size=4M"]);
    succeed(&mut create(pool.join("v").as_os_str()));

    let wrong = |path: &str, parts: &[&str]| refused(&mut create(OsStr::new(path)), parts);
    wrong(&format!("{name}/v"), &["create the volume v", "already"]);
    wrong(&format!("{name}/"), &[name, "POOL/NAME"]);
    wrong(name, &[name, "POOL/NAME"]);
    wrong(&format!("{name}/.."), &["`.` or `..`"]);
    wrong(&format!("{name}/a\nb"), &[r"a\nb", "control character"]);
    wrong(&format!("{name}/{}", "n".repeat(256)), &["255 bytes"]);
    wrong(&format!("{name}/{}", "ü".repeat(50_000)), &["üüü…", "255 bytes"]);
    wrong(&format!("{name}/missing/v"), &["missing", "No such file"]);
    wrong(
        scratch.path().join("v").to_str().unwrap(),
        &["not on a homenode mount", "homenode status"],
    );
    fs::create_dir(pool.join("sub")).unwrap();
    wrong(&format!("{name}/sub/v2"), &["inside the pool", &format!("{name}/v2")]);
    let odd = [name.as_bytes(), b"/\xff"].concat();
    refused(&mut create(OsStr::from_bytes(&odd)), &["UTF-8"]);

    scratch.refused(
        "volume create pool/w --size=5000",
        &["create the volume w", "5000", "take 8192"],
    );
    let too_large = "volume create pool/w --size=9223372036854775807";
    scratch.refused(too_large, &["at most 9223372036854771712"]);
    let nowhere = "volume create pool/w --size=4K --policy=node:999";
    scratch.refused(nowhere, &["node 999", "node 0"]);
    scratch.refused(
        "volume resize pool/v --size=5000",
        &["resize the volume v", "take 8192"],
    );
    for command in ["volume resize pool/w --size=4K", "volume remove pool/w"] {
        scratch.refused(command, &["volume w", "no such volume", "homenode volume list"]);
    }
    refused(&mut volume("list", scratch.path(), &[]), &["not on a homenode mount"]);
    assert_eq!(list(&pool).as_array().unwrap().len(), 1, "a volume was made");
    down(&pool);
}

#[test]
fn a_stopped_or_killed_server_is_reported() {
    let (scratch, pool) = need_pool!("gone");
    let (pid, log) = (server_pid(&pool).unwrap(), log_of(&pool));
    let create = || volume("create", pool.join("v"), &["--size=4M"]);
    signal(pid, Signal::STOP);
    refused(&mut create(), &["is stopped", "kill -CONT", "not known"]);
    let message = fail(1, &mut volume("list", &pool, &[]));
    assert!(!message.contains("not known"), "{message}");
    // Whoever looked a name up would hang.
    for refused_one in [
        &mut volume("list", pool.join("inside"), &[]),
        &mut volume("remove", pool.join("inside/v"), &[]),
    ] {
        refused(refused_one, &["does not answer", "is stopped"]);
    }
    signal(pid, Signal::CONT);
    wait_until_dropped(&log, "VolumeCreate");
    assert_eq!(list(&pool), json!([]), "the dropped request was carried out");
    // What takes as long as it takes is not waited for while it is stopped; where all pools are listed, it is named.
    signal(pid, Signal::STOP);
    refused(
        &mut volume("remove", pool.join("v"), &[]),
        &["is stopped", "kill -CONT", "not known"],
    );
    let socket = log.with_extension("sock");
    let listed: Value = serde_json::from_str(&succeed(&mut homenode(["volume", "list", "--json"]))).unwrap();
    let silent = listed["silent"].as_array().unwrap();
    assert!(silent.contains(&json!(socket.to_str().unwrap())), "{listed}");
    // Who waits is told when the server dies.
    let waiting = volume("remove", pool.join("v"), &[])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_waits(Pid::from_child(&waiting));
    signal(pid, Signal::KILL);
    let message = String::from_utf8(waiting.wait_with_output().unwrap().stderr).unwrap();
    says(
        &message,
        &[
            pool.to_str().unwrap(),
            "closed the connection",
            "`homenode status`",
            "/run/homenode/",
            ".log",
        ],
    );
    wait_for_end(pid);
    refused(&mut create(), &["dead", "homenode down"]);
    refused(&mut volume("remove", pool.join("v"), &[]), &["dead", "homenode down"]);
    refused(&mut volume("list", &pool, &[]), &["dead", "homenode down"]);
    // Those that live are listed, and the dead one is named.
    let living = scratch.dir("living");
    up(&living);
    succeed(&mut volume("create", living.join("w"), &["--size=4M"]));
    let output = homenode(["volume", "list"]).output().unwrap();
    let [listed, told] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(listed.contains(living.join("w").to_str().unwrap()), "{listed}");
    let remedy = format!("`homenode down {}` clears it", pool.display());
    assert_eq!(told.lines().filter(|line| line.contains(&remedy)).count(), 1, "{told}");
    down(&living);
    down(&pool);
}

#[test]
fn without_the_kernels_driver_a_volume_is_not_attached() {
    need_mounts!();
    if Path::new("/dev/ublk-control").exists() {
        skipped("this kernel has the driver; tests/lab/test_ublk.py attaches with it");
        return;
    }
    let scratch = Scratch::new("driver");
    let pool = scratch.dir("pool");
    up(&pool);
    let disk = pool.join("disk");
    succeed(&mut volume("create", &disk, &["--size=4M"]));
    let parts = ["attach the volume disk", "/dev/ublk-control", "modprobe ublk_drv"];
    refused(&mut volume("attach", &disk, &[]), &parts);
    let trace = scratch.path().join("trace");
    scratch.refused("volume attach pool/disk --trace trace", &parts);
    assert!(!trace.exists(), "the trace file was kept");
    assert_eq!(list(&pool)[0]["attached"], false);
    succeed(&mut volume("resize", &disk, &["--size=8M"]));
    succeed(&mut volume("remove", &disk, &[]));
    down(&pool);
}

#[test]
fn each_mistake_with_devices_has_its_message() {
    let (scratch, pool) = need_pool!("devices");
    let disk = pool.join("disk");
    succeed(&mut volume("create", &disk, &["--size=4M"]));
    for verb in ["attach", "detach"] {
        let (missing, outside) = (format!("volume {verb} pool/w"), format!("volume {verb} v"));
        scratch.refused(&missing, &["volume w", "no such volume", "homenode volume list"]);
        scratch.refused(&outside, &["not on a homenode mount"]);
        refused(&mut volume(verb, &pool, &[]), &["POOL/NAME"]);
        fail(2, &mut homenode(["volume", verb]));
    }
    for detach in ["volume detach pool/disk", "volume detach pool/disk --force"] {
        scratch.refused(detach, &["volume disk is not attached", "homenode volume list"]);
    }
    let traced = |trace: &str, parts: &[&str]| {
        scratch.refused(&format!("volume attach pool/disk --trace {trace}"), parts);
    };
    traced("missing/t", &["missing/t", "No such file"]);
    traced("pool/t", &["in the pool itself", "another directory"]);
    let mut odd = volume("attach", &disk, &["--trace"]);
    refused(odd.arg(OsStr::from_bytes(b"/tmp/\xff")), &["UTF-8"]);
    let earlier = scratch.path().join("earlier");
    fs::write(&earlier, "a trace").unwrap();
    traced("earlier", &["earlier", "File exists", "another name"]);
    assert_eq!(fs::read(&earlier).unwrap(), b"a trace");
    assert_eq!(list(&pool)[0]["attached"], false);
    down(&pool);
}

#[test]
fn the_child_that_ends_a_disk_exits_with_the_errno() {
    let scratch = Scratch::new("flush");
    let disk = scratch.path().join("disk");
    fs::write(&disk, "bytes").unwrap();
    let end = |disk: &Path| {
        homenode(["end-disk"])
            .arg(disk)
            .arg(std::process::id().to_string())
            .output()
            .unwrap()
    };
    // It has ended meanwhile.
    assert!(end(&scratch.path().join("gone")).status.success());
    for (disk, errno) in [(disk.join("below"), Errno::NOTDIR), (disk, Errno::INVAL)] {
        let refused = end(&disk);
        assert_eq!(
            refused.status.code(),
            Some(errno.raw_os_error()),
            "{}",
            describe(&refused)
        );
        assert!(describe(&refused).contains("cannot end"), "{}", describe(&refused));
    }
}
