//! Trees that are deeper than a stack.

use crate::support::{directory, filesystem};
use std::thread;

#[test]
fn a_deep_tree_is_dropped_on_a_small_stack() {
    const LEVELS: u64 = 200_000;
    const STACK_BYTES: usize = 2 << 20;
    let (fs, _clock) = filesystem(1, 64);
    let mut dir = fs.root();
    for _ in 0..LEVELS {
        dir = fs.create(&dir, b"d", directory(0o755)).expect("the name is free");
    }
    drop(dir);
    let dropping = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || drop(fs));
    let dropped = dropping.expect("the machine has a thread").join();
    assert!(dropped.is_ok(), "the thread panicked");
}
