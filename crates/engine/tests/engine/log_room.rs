//! Room in the log of a durable pool that operations on files with many extents take.

use crate::support::{BLOCK, Caller, TestFs, durable_on, new_file};
use homenode_engine::fs::{Error, Inode, fallocate_mode};
use std::sync::Arc;

/// Extents of each file: the log would need several segments for all of them.
const EXTENTS: u64 = 12_000;
const POOL_BLOCKS: u64 = 30_000;
const PUNCH: u32 = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;

/// Two files whose blocks lie between each other's in the pool, `step` file blocks apart in each.
fn interleaved(fs: &TestFs, caller: &Caller, step: u64) -> [Arc<Inode>; 2] {
    let files = ["a", "b"].map(|name| new_file(fs, name));
    for at in 0..EXTENTS {
        for file in &files {
            let written = fs.write(&caller.asking(), file, at * step * BLOCK, &[7; BLOCK as usize], false);
            assert_eq!(written, Ok(BLOCK as usize));
        }
    }
    shorten_log(fs);
    files
}

/// Writes a snapshot: the log has no segment more than it should have then.
fn shorten_log(fs: &TestFs) {
    let slot = fs.slots().claim().expect("slots are free");
    assert_eq!(fs.compact(&slot), Ok(()));
    assert_eq!(fs.tend_log(&slot), Ok(()));
}

#[test]
fn fallocate_takes_room_in_the_log_for_its_range_only() {
    let fs = durable_on(64, 1, POOL_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let [file, other] = interleaved(&fs, &caller, 1);
    let free = fs.statfs().free;
    let asking = caller.asking();
    let reserve = |offset, bytes| fs.fallocate(&asking, &file, 0, offset, bytes);
    assert_eq!(reserve(0, BLOCK), Ok(()));
    assert_eq!(fs.statfs().free, free, "one block, which is there");
    assert_eq!(reserve(0, EXTENTS * BLOCK), Ok(()));
    assert_eq!(fs.statfs().free, free, "all blocks are there");
    assert_eq!(reserve(EXTENTS * BLOCK, 10 * BLOCK), Ok(()));
    assert_eq!(fs.statfs().free, free - 10, "ten blocks behind the end");
    // What is told of the holes is all that counts.
    assert_eq!(fs.fallocate(&asking, &other, PUNCH, 40 * BLOCK, 20 * BLOCK), Ok(()));
    assert_eq!(fs.fallocate(&asking, &other, 0, 0, EXTENTS * BLOCK), Ok(()));
    shorten_log(&fs);
    assert_eq!(fs.statfs().free, free - 10);
    (0..100).for_each(|number| drop(new_file(&fs, &format!("new {number}"))));
    fs.check_invariants();
}

#[test]
fn fallocate_without_room_in_the_log_leaves_all_room_to_others() {
    let fs = durable_on(64, 1, POOL_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let [file, _other] = interleaved(&fs, &caller, 2);
    // Room for a few segments, less than all extents need, and none besides.
    let [spacer, filler] = ["spacer", "filler"].map(|name| new_file(&fs, name));
    let fill = |file: &Inode, at: u64| fs.write(&caller.asking(), file, at * BLOCK, &[7; BLOCK as usize], false);
    (0..320).for_each(|at| assert_eq!(fill(&spacer, at), Ok(BLOCK as usize)));
    let mut at = 0;
    for _ in 0..4 {
        while fs.statfs().free > 20 && fill(&filler, at).is_ok() {
            at += 1;
        }
        // It may give segments back.
        shorten_log(&fs);
    }
    assert_eq!(fs.fallocate(&caller.asking(), &spacer, PUNCH, 0, 320 * BLOCK), Ok(()));
    shorten_log(&fs);
    let free = fs.statfs().free;
    assert!((192..500).contains(&free), "{free} blocks are free");
    let reserved = fs.fallocate(&caller.asking(), &file, 0, 0, 2 * EXTENTS * BLOCK);
    assert_eq!(reserved, Err(Error::NoSpace));
    assert_eq!(fs.statfs().free, free, "blocks became the log's");
    (0..100).for_each(|number| drop(new_file(&fs, &format!("new {number}"))));
    fs.check_invariants();
}
