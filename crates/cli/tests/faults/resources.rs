//! Too little of what rings and mounts are made of: buffers, locked memory, descriptors.

use super::machine::*;
use crate::command::harness::*;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

#[test]
fn buffers_too_small() {
    with_rings("buffers", |scratch, dir| {
        let with = |transport: &str, bytes: u64| {
            let mut command = homenode(["up", SIZE, "--transport", transport]);
            command.arg(format!("--buffers={bytes}")).arg(&dir);
            command
        };
        let output = with("uring", 4096).output().unwrap();
        let message = describe(&output);
        let least = message.split_once("need buffers of ").unwrap().1;
        let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
        refused(&mut with("uring", 4096), &["4096", "allow more", "classic"]);
        refused(&mut with("uring", least - 1), &["allow more"]);
        assert_nothing_mounted(scratch.path());

        succeed(&mut with("auto", least - 1));
        let fuse = status(&dir)["fuse"].clone();
        assert_eq!(fuse["transport"], "classic");
        assert!(
            fuse["transport_reason"].as_str().unwrap().contains("allow more"),
            "{fuse}"
        );
        down(&dir);

        succeed(&mut with("uring", least));
        works(&dir);
        down(&dir);
    });
}

/// Large files, a large attribute and a long listing go through what there is of buffers.
fn works(dir: &Path) {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    fs::write(dir.join("file"), &bytes).unwrap();
    assert_eq!(fs::read(dir.join("file")).unwrap(), bytes);
    let value = vec![7; 32 << 10];
    rustix::fs::setxattr(dir.join("file"), "user.large", &value, rustix::fs::XattrFlags::empty()).unwrap();
    let mut back = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(dir.join("file"), "user.large", &mut back[..]).unwrap();
    assert_eq!(back[..length], value);
    for index in 0..500 {
        File::create(dir.join(format!("{index:0>100}"))).unwrap();
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 501);
}

/// Rings need a little; the pool and the classic transport need none.
#[test]
fn no_memory_may_be_locked() {
    need_mounts!();
    let _undisturbed = as_it_is();
    let scratch = Scratch::new("memlock");
    let dir = scratch.dir("pool");
    let up_without = |transport: &str| {
        let mut command = Command::new("prlimit");
        command.args(["--memlock=0:0", "setpriv", "--bounding-set=-ipc_lock"]);
        command.args([BINARY, "up", SIZE, "--transport", transport]).arg(&dir);
        command
    };
    if transports().contains(&"uring") {
        let remedy = "raise the limit of locked memory (ulimit -l, LimitMEMLOCK= of a unit)";
        refused(&mut up_without("uring"), &["CPU 0's ring", remedy]);
        assert_nothing_mounted(scratch.path());
        succeed(&mut up_without("auto"));
        let fuse = status(&dir)["fuse"].clone();
        assert_eq!(fuse["transport"], "classic");
        assert!(fuse["transport_reason"].as_str().unwrap().contains(remedy), "{fuse}");
        down(&dir);
    }
    succeed(&mut up_without("classic"));
    works(&dir);
    down(&dir);
}

/// However few descriptors a server may have: it says so and leaves nothing behind, or it serves, and makes files at once.
#[test]
fn few_descriptors() {
    need_mounts!();
    let _undisturbed = as_it_is();
    let (mut refusals, mut mounts) = (0, 0);
    for transport in transports() {
        for limit in 4..=68 {
            let scratch = Scratch::new("descriptors");
            let dir = scratch.dir("pool");
            let mut command = Command::new("prlimit");
            command.arg(format!("--nofile={limit}:{limit}"));
            command.args([BINARY, "up", SIZE, "--transport", transport]).arg(&dir);
            let output = command.output().unwrap();
            let said = describe(&output);
            assert!(!said.contains("panicked"), "{limit}: {said}");
            if output.status.success() {
                mounts += 1;
                let made: Vec<_> = (0..4)
                    .map(|thread| {
                        let dir = dir.clone();
                        std::thread::spawn(move || {
                            for file in 0..100 {
                                let path = dir.join(format!("{thread}-{file}"));
                                fs::write(&path, "content").unwrap();
                                assert_eq!(fs::read(&path).unwrap(), b"content");
                            }
                        })
                    })
                    .collect();
                for thread in made {
                    thread.join().unwrap();
                }
                assert_eq!(status(&dir)["fuse"]["transport"], transport);
                down(&dir);
            } else {
                refusals += 1;
                assert!(said.contains("homenode: "), "{limit}: {said}");
            }
            assert_nothing_mounted(scratch.path());
        }
    }
    assert!(
        refusals > 0 && mounts > 0,
        "{refusals} refused, {mounts} mounted: the limits are off"
    );
}

#[test]
fn ten_thousand_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    const FILES: u64 = 10_000;
    need_mounts!();
    let _undisturbed = as_it_is();
    let mut limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < FILES + 500) {
        return skipped("needs a hard limit of 10500 open files");
    }
    limit.current = limit
        .maximum
        .map(|maximum| maximum.min(FILES + 2000))
        .or(Some(FILES + 2000));
    setrlimit(Resource::Nofile, limit).unwrap();
    for transport in transports() {
        let scratch = Scratch::new("open-files");
        let dir = scratch.dir("pool");
        up_by(transport, &dir);
        let pid = server_pid(&dir).unwrap().as_raw_nonzero();
        let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let before = descriptors();
        let path = |index| dir.join(format!("file-{index}"));
        let files: Vec<File> = (0..FILES).map(|index| File::create(path(index)).unwrap()).collect();
        assert!(descriptors() < before + 10, "the server has a descriptor for no file");
        assert!(succeed(homenode(["status"]).arg(&dir)).contains("FUSE"));
        fs::write(dir.join("one more"), "content").unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), files.len() + 1);
        for index in 0..FILES {
            fs::remove_file(path(index)).unwrap();
        }
        drop(files);
        fs::remove_file(dir.join("one more")).unwrap();
        wait_until("all is free again", || status(&dir)["used_bytes"] == 0);
        // A process that another test has just forked has copies of the descriptors until it executes.
        let down = || homenode(["down"]).arg(&dir).output().unwrap().status.success();
        wait_until("nothing is open", down);
    }
}
