//! Trees that are deeper than a stack.

use crate::support::{TestFs, directory, filesystem, regular};
use homenode_engine::fs::{Inode, RenameMode};
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
