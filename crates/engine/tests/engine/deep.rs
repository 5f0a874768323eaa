//! Trees that are deeper than a stack.

use crate::support::{TestFs, directory, filesystem, regular};
use homenode_engine::fs::{Error, Inode, RenameMode};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Makes so many directories, each in the one ahead of it; gives the last.
fn descend(fs: &TestFs, levels: u64) -> Arc<Inode> {
    let into = |dir: Arc<Inode>, _| fs.create(&dir, b"d", directory(0o755)).expect("the name is free");
    (0..levels).fold(fs.root(), into)
}

#[test]
fn a_deep_tree_is_dropped_on_a_small_stack() {
    const LEVELS: u64 = 200_000;
    const STACK_BYTES: usize = 2 << 20;
    let (fs, _clock) = filesystem(1, 64);
    descend(&fs, LEVELS);
    let dropping = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || drop(fs));
    let dropped = dropping.expect("the machine has a thread").join();
    assert!(dropped.is_ok(), "the thread panicked");
}

#[test]
fn renames_of_what_has_nothing_below_do_not_look_at_the_tree_above() {
    const LEVELS: u64 = 100_000;
    let (fs, _clock) = filesystem(1, 64);
    let deep = descend(&fs, LEVELS);
    let [a, b] = [b"a", b"b"].map(|name| fs.create(&deep, name, directory(0o755)).expect("the name is free"));
    fs.create(&a, b"x", regular(0o644)).expect("the name is free");
    fs.create(&a, b"y", directory(0o755)).expect("the name is free");
    let start = Instant::now();
    for (from, to) in [(&a, &b), (&b, &a)].repeat(50) {
        for name in [b"x", b"y"] {
            let renamed = fs.rename(from, name, to, name, RenameMode::Replace);
            renamed.expect("nobody else renames");
        }
    }
    // With two walks up to the root each, they take two seconds.
    let took = start.elapsed();
    assert!(took < Duration::from_millis(500), "200 renames took {took:?}");
}

#[test]
fn a_rename_that_looks_at_the_tree_above_holds_no_directory_meanwhile() {
    const LEVELS: u64 = 100_000;
    const RENAMES: usize = 20;
    let (fs, _clock) = filesystem(1, 64);
    let deep = descend(&fs, LEVELS);
    let [a, b] = [b"a", b"b"].map(|name| fs.create(&deep, name, directory(0o755)).expect("the name is free"));
    let y = fs.create(&a, b"y", directory(0o755)).expect("the name is free");
    fs.create(&y, b"z", directory(0o755)).expect("the name is free");
    let looks = thread::scope(|scope| {
        let renaming = scope.spawn(|| {
            for (from, to) in [(&a, &b), (&b, &a)].repeat(RENAMES / 2) {
                let renamed = fs.rename(from, b"y", to, b"y", RenameMode::Replace);
                renamed.expect("nobody else renames");
            }
        });
        let mut looks = 0;
        while !renaming.is_finished() {
            fs.attr(&a);
            looks += 1;
        }
        renaming.join().expect("it does not panic");
        looks
    });
    // Each takes a walk, of milliseconds.
    assert!(looks > 50 * RENAMES, "{looks} looks beside {RENAMES} renames");
    let into_itself = fs.rename(&fs.root(), b"d", &a, b"d", RenameMode::Replace);
    assert_eq!(into_itself, Err(Error::Invalid));
}
