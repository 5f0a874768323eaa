//! Room given ahead of files without a name.

use super::{MEMBER_BLOCKS, fill, remove};
use crate::support::{BLOCK, assert_empty, kernel_filesystem, new_file};
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Access, Error, Inode, NewInode};
use std::sync::Arc;

#[test]
fn space_is_reserved_ahead_for_a_full_unnamed_file_until_it_ends() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let (full, other) = (new_file(&fs, "full"), new_file(&fs, "other"));
    let bytes = vec![1; (MEMBER_BLOCKS * BLOCK) as usize];
    store.write_unasked(0, 0, &bytes, 0).unwrap();
    assert_eq!(store.write_unasked(1, 0, b"x", 0), Err(Error::NoSpace));
    fs.unlink(&fs.root(), b"full").unwrap();
    assert_eq!(store.write_unasked(1, 0, b"x", 0), Ok(1));
    assert!(store.limit() <= MEMBER_BLOCKS + 16_384);
    assert_eq!(fs.statfs().free, 0);
    store.set_leaving(true);
    fs.unpin(&full, 1);
    assert!(store.limit() > MEMBER_BLOCKS, "something runs on the file");
    store.set_leaving(false);
    fs.settle_ahead();
    assert_eq!((store.limit(), fs.statfs().free), (MEMBER_BLOCKS, MEMBER_BLOCKS - 1));
    remove(&fs, "other", &other);
    assert_empty(&fs);
}

#[test]
fn reserved_space_taken_by_others_is_not_replaced() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let goes = new_file(&fs, "goes");
    let (filler, other) = (new_file(&fs, "filler"), new_file(&fs, "other"));
    fill(&store, 0, 0, 1000);
    fill(&store, 1, 0, MEMBER_BLOCKS - 1000);
    fs.unlink(&fs.root(), b"goes").unwrap();
    assert_eq!(store.limit(), MEMBER_BLOCKS + 1000);
    fill(&store, 2, 0, 1000);
    // The file goes, and its room is taken once more before it is given back.
    store.set_leaving(true);
    fs.unpin(&goes, 1);
    let more = vec![1; (700 * BLOCK) as usize];
    store.write_unasked(2, 1000 * BLOCK, &more, 0).unwrap();
    store.set_leaving(false);
    fs.settle_ahead();
    assert_eq!(store.used_blocks(), MEMBER_BLOCKS + 700);
    assert_eq!(
        store.limit(),
        MEMBER_BLOCKS + 956,
        "what was taken, and 1 MiB that writers may have taken meanwhile"
    );
    remove(&fs, "other", &other);
    fs.settle_ahead();
    assert_eq!(store.limit(), MEMBER_BLOCKS);
    remove(&fs, "filler", &filler);
    assert_empty(&fs);
}

#[test]
fn removing_another_file_ends_a_shortage_of_space() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let (kept, filler) = (new_file(&fs, "kept"), new_file(&fs, "filler"));
    fill(&store, 0, 0, 10_000);
    fill(&store, 1, 0, 2 * 16_384 - 10_000);
    fs.unlink(&fs.root(), b"kept").unwrap();
    assert!(fs.pool().is_ahead_short());
    remove(&fs, "filler", &filler);
    assert!(!fs.pool().is_ahead_short(), "though a file without a name is kept");
    fs.unpin(&kept, 1);
    fs.settle_ahead();
    assert_empty(&fs);
}

#[test]
fn all_space_is_reserved_ahead_for_an_open_file_when_it_is_closed() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let kept = new_file(&fs, "kept");
    fill(&store, 0, 0, 2 * 16_384);
    fs.open(&kept, Access::Read).unwrap();
    fs.unlink(&fs.root(), b"kept").unwrap();
    assert_eq!(store.limit(), 2 * 16_384 + 4096, "it may stay open for ever");
    assert!(!fs.pool().is_ahead_short(), "removals would wait for it");
    for _ in 0..2 {
        fs.release(&kept, Access::Read);
        assert_eq!(store.limit(), 3 * 16_384, "the kernel is about to forget it");
        fs.open(&kept, Access::Read).unwrap();
    }
    fs.release(&kept, Access::Read);
    fs.unpin(&kept, 1);
    fs.settle_ahead();
    assert_eq!(store.limit(), 2 * 16_384);
    assert_empty(&fs);
}

#[test]
fn a_little_space_is_reserved_ahead_for_the_last_open_file_without_a_name() {
    const ALL: u64 = 2 * 16_384;
    let (fs, _, store) = kernel_filesystem(1, ALL);
    let files = ["first", "second", "small"].map(|name| new_file(&fs, name));
    fill(&store, 0, 0, ALL - 5000);
    fill(&store, 1, 0, 4900);
    fill(&store, 2, 0, 100);
    for (file, name) in files.iter().zip(["first", "second"]) {
        fs.open(file, Access::Read).unwrap();
        fs.unlink(&fs.root(), name.as_bytes()).unwrap();
        assert_eq!(store.limit(), ALL + 4096, "{name}");
    }
    // Closed with the other one kept: its own blocks besides.
    fs.release(&files[1], Access::Read);
    assert_eq!(store.limit(), ALL + 4900);
    fs.open(&files[2], Access::Read).unwrap();
    fs.unlink(&fs.root(), b"small").unwrap();
    assert_eq!(store.limit(), ALL + 5000);
    for (file, opens) in files.iter().zip([1, 0, 1]) {
        (0..opens).for_each(|_| fs.release(file, Access::Read));
        fs.unpin(file, 1);
    }
    fs.settle_ahead();
    assert_eq!(store.limit(), ALL);
    assert_empty(&fs);
}

#[test]
fn reserved_space_stays_for_a_file_that_loses_its_name_during_a_removal() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let _filler = new_file(&fs, "filler");
    fill(&store, 0, 0, MEMBER_BLOCKS - 100);
    let (asks, asked) = std::sync::mpsc::channel::<Arc<Inode>>();
    let (answers, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let forgetting = &fs;
        scope.spawn(move || {
            for inode in asked {
                forgetting.unpin(&inode, 1);
                answers.send(()).expect("the test waits for it");
            }
        });
        for round in 0..3000 {
            let (goes, comes) = (new_file(&fs, "goes"), new_file(&fs, "comes"));
            store.write_unasked(2 * round + 1, 0, &[1], 0).unwrap();
            store.write_unasked(2 * round + 2, 0, &[1], 0).unwrap();
            fs.unlink(&fs.root(), b"goes").unwrap();
            asks.send(goes).unwrap();
            fs.unlink(&fs.root(), b"comes").unwrap();
            answered.recv().unwrap();
            assert!(
                store.limit() > MEMBER_BLOCKS,
                "round {round}: no room ahead of the second file"
            );
            fs.unpin(&comes, 1);
            fs.settle_ahead();
            assert_eq!(store.limit(), MEMBER_BLOCKS, "round {round}");
        }
        drop(asks);
    });
    fs.check_invariants();
}

#[test]
fn no_space_is_reserved_ahead_while_enough_is_free() {
    let (fs, _, store) = kernel_filesystem(1, 16_384 + MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    store
        .write_unasked(0, 0, &vec![1; (MEMBER_BLOCKS * BLOCK) as usize], 0)
        .unwrap();
    remove(&fs, "file", &inode);
    assert_eq!(store.limit(), 16_384 + MEMBER_BLOCKS);
}

#[test]
fn space_reserved_ahead_goes_back_when_the_file_gets_a_name() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let file = fs.tmpfile(&fs.root(), NewInode::of_root(0o100_644)).unwrap();
    fs.open(&file, Access::Write).unwrap();
    fill(&store, 0, 0, MEMBER_BLOCKS - 100);
    fs.release(&file, Access::Write);
    assert!(store.limit() > MEMBER_BLOCKS, "it is about to go");
    fs.link(&file, &fs.root(), b"name").unwrap();
    assert_eq!(store.limit(), MEMBER_BLOCKS);
    assert!(!fs.pool().is_ahead_short());
    remove(&fs, "name", &file);
    assert_empty(&fs);
}
