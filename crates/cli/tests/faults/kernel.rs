//! Kernels that have no rings, or do not let us have them.

use super::machine::*;
use crate::command::harness::*;
use std::path::Path;

/// `uring` is refused with one message that names `remedy`; `auto` serves without rings and tells the same reason.
fn rings_cannot_be_had(remedy: &str) {
    let scratch = Scratch::new("no-rings");
    let dir = scratch.dir("pool");
    scratch.refused("up pool --size-per-node=16M --transport=uring", &["rings", remedy]);
    assert_nothing_mounted(scratch.path());
    up(&dir);
    let fuse = status(&dir)["fuse"].clone();
    assert_eq!(fuse["transport"], "classic");
    assert!(fuse["transport_reason"].as_str().unwrap().contains(remedy), "{fuse}");
    std::fs::write(dir.join("file"), "content").unwrap();
    down(&dir);
}

#[test]
fn rings_switched_off() {
    need_mounts!();
    if !Path::new(SWITCH).exists() {
        let _undisturbed = as_it_is();
        return rings_cannot_be_had("Linux 6.14");
    }
    let Some(_off) = Changed::new(Path::new(SWITCH), "N") else {
        return;
    };
    rings_cannot_be_had("echo Y > /sys/module/fuse/parameters/enable_uring");
}

/// A mount with rings is not touched by a switch that others turn.
#[test]
fn rings_switched_off_while_in_use() {
    let (_scratch, dir) = need_mounts!("switch");
    {
        let _undisturbed = as_it_is();
        if !transports().contains(&"uring") {
            return;
        }
        up_by("uring", &dir);
    }
    let Some(_off) = Changed::new(Path::new(SWITCH), "N") else {
        return;
    };
    std::fs::write(dir.join("file"), "content").unwrap();
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"content");
    assert_eq!(status(&dir)["fuse"]["transport"], "uring");
    down(&dir);
}

#[test]
fn io_uring_forbidden() {
    need_mounts!();
    let has_rings = has_rings();
    let Some(_off) = Changed::new(Path::new("/proc/sys/kernel/io_uring_disabled"), "2") else {
        return;
    };
    if has_rings {
        rings_cannot_be_had("/proc/sys/kernel/io_uring_disabled");
    }
}
