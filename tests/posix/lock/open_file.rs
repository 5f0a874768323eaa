//! Locks that belong to an open file, whoever holds it: OFD locks and flock(2).

use super::{Call, Range, Scene};
use crate::stage::{edit, eventually, stage};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::time::Duration;

#[test]
fn open_file_locks_belong_to_the_open_file() {
    let stage = stage!();
    let path = stage.file("f", []);
    let (file, other) = (edit(&path), edit(&path));
    Range::write(0, 10).request(&file, Call::File).unwrap();
    let refused =
        |call: Call, why: &str| assert_eq!(Range::write(5, 1).request(&other, call), Err(Errno::AGAIN), "{why}");
    refused(Call::File, "one process, two open files");
    let found = Range::write(5, 1).request(&other, Call::FileTest).unwrap().unwrap();
    assert_eq!((found.range, found.process), (Range::write(0, 10), -1));
    refused(Call::Process, "against a process's lock, too");
    let twin = rustix::io::dup(&file).unwrap();
    Range::write(5, 1).request(&twin, Call::File).unwrap();
    drop(edit(&path));
    refused(Call::File, "closing another open file keeps the lock");
    drop(file);
    refused(Call::File, "a duplicate descriptor keeps the lock");
    drop(twin);
    eventually("the last close releases", || {
        Range::write(5, 1).request(&other, Call::File).is_ok()
    });
}

#[test]
fn flock_conflicts_between_open_files() {
    let stage = stage!();
    let path = stage.file("f", []);
    let (file, other) = (edit(&path), edit(&path));
    flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(
        flock(&file, FlockOperation::NonBlockingLockExclusive),
        Err(Errno::AGAIN)
    );
    flock(&other, FlockOperation::Unlock).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(flock(&other, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    let twin = rustix::io::dup(&file).unwrap();
    drop(file);
    assert_eq!(
        flock(&other, FlockOperation::NonBlockingLockShared),
        Err(Errno::AGAIN),
        "a duplicate descriptor keeps the lock"
    );
    drop(twin);
    eventually("the last close releases", || {
        flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

#[test]
fn flock_between_processes_waits_and_ends_with_its_holder() {
    let mut scene = Scene::new(stage!());
    assert_eq!(scene.ask("flock exclusive"), "ok");
    assert_eq!(
        flock(&scene.file, FlockOperation::NonBlockingLockShared),
        Err(Errno::AGAIN)
    );
    assert_eq!(scene.ask("flock shared"), "ok");
    flock(&scene.file, FlockOperation::NonBlockingLockShared).unwrap();
    scene.tell("flock wait");
    std::thread::sleep(Duration::from_millis(50));
    flock(&scene.file, FlockOperation::Unlock).unwrap();
    assert_eq!(scene.rival.answer(), "ok");
    assert_eq!(
        flock(&scene.file, FlockOperation::NonBlockingLockShared),
        Err(Errno::AGAIN)
    );
    scene.rival.kill();
    flock(&scene.file, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn flock_and_record_locks_are_independent() {
    let mut scene = Scene::new(stage!());
    flock(&scene.file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(scene.ask("lock process write 0 0"), "ok");
}
