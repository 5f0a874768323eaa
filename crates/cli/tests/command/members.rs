//! Members come and go while files are in use.

use super::harness::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn add_drain_remove_under_a_writer() {
    let (_scratch, dir) = need_mounts!("members");
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
fn impossible_member_changes_are_refused_without_effect() {
    let (scratch, dir) = need_mounts!("refusals");
    succeed(homenode(["up", SIZE, "--node", "0"]).arg(&dir));
    scratch.refused("pool drain pool 7", &["member 7", "only member 0"]);
    scratch.refused("pool remove pool 7", &["member 7", "only member 0"]);
    scratch.refused("pool drain pool 0", &["member 0", "last", "add"]);
    scratch.refused("pool remove pool 0", &["member 0", "drain"]);
    scratch.refused("pool add pool --node 999 --size 8M", &["node 999", "node 0"]);
    scratch.refused("pool add pool --node 0 --size 100T", &["node 0", "MiB"]);
    scratch.refused("pool add pool --node 0 --size 1K", &["node 0", "at least"]);
    fail(2, homenode(["pool", "add", "--node", "0", "--size", "0"]).arg(&dir));
    let file = scratch.path().join("file");
    fs::write(&file, vec![0; 32 << 20]).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    scratch.refused("pool add pool file", &["a pool of memory", "--node"]);

    // More than the other member can hold.
    succeed(homenode(["pool", "add", "--node", "0", "--size", "4M"]).arg(&dir));
    fs::write(dir.join("large"), vec![1; 12 << 20]).unwrap();
    scratch.refused("pool drain pool 0", &["member 0", "room"]);
    let status = status(&dir);
    assert_eq!(status["members"].as_array().unwrap().len(), 2, "{status}");
    assert_ne!(status["members"][0]["state"], "draining", "member 0 is still draining");
    assert_eq!(fs::read(dir.join("large")).unwrap(), vec![1; 12 << 20]);
    down(&dir);
}
