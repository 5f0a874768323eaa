//! Long operations, which come in steps.

use super::{MEMBER_BLOCKS, forgets, remove};
use crate::support::{BLOCK, Caller, assert_empty, kernel_filesystem, new_file, sized};
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Access, Error, Whence, fallocate_mode as mode};
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for what waits for nobody.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn truncate_works_in_steps() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let inode = new_file(&fs, "file");
    let bytes = 100 << 20;
    store.write_unasked(0, 0, &vec![1; bytes as usize], 0).unwrap();
    let mut done = fs.truncate_step(&inode, 10, 0).unwrap();
    let blocks = fs.attr(&inode).blocks / 8;
    assert!(done.is_some() && 8192 < blocks && blocks < bytes / BLOCK, "{blocks}");
    while let Some(progress) = done {
        assert_eq!(fs.attr(&inode).size, bytes);
        let before = store.used_blocks();
        done = fs.truncate_step(&inode, 10, progress).unwrap();
        assert!(before - store.used_blocks() <= 8192, "a step is long");
    }
    assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks), (10, 8));
}

#[test]
fn allocated_blocks_that_nobody_wrote_are_freed_in_steps() {
    for keep_size in [0, mode::KEEP_SIZE] {
        let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
        let (caller, inode) = (Caller::on_node(&fs, 0), new_file(&fs, "file"));
        let bytes = (MEMBER_BLOCKS - 10) * BLOCK;
        // So little room is left that it is allocated.
        fs.fallocate(&caller.asking(), &inode, keep_size, 0, bytes).unwrap();
        let (mut done, mut before) = (Some(0), store.used_blocks());
        assert_eq!(before, bytes / BLOCK);
        while let Some(progress) = done {
            done = fs.truncate_step(&inode, 0, progress).unwrap();
            let now = store.used_blocks();
            assert!(before - now <= 8192, "a step is long");
            before = now;
        }
        assert_eq!(before, 0);
    }
}

/// All that a file has may lie at its very end, and its writers need not wait.
#[test]
fn truncate_ends_beside_writers_and_frees_sparse_files_in_steps() {
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let inode = new_file(&fs, "file");
    let (far, bytes) = (1 << 62, 100 << 20);
    store.write_unasked(0, far, &vec![1; bytes as usize], 0).unwrap();
    let (mut done, mut steps) = (fs.truncate_step(&inode, 0, 0).unwrap(), 1);
    while let Some(progress) = done {
        // Ahead of each step, and behind.
        store.write_unasked(0, far + (steps << 30), b"x", 0).unwrap();
        store.write_unasked(0, steps * BLOCK, b"x", 0).unwrap();
        let before = store.used_blocks();
        done = fs.truncate_step(&inode, 0, progress).unwrap();
        assert!(before - store.used_blocks() <= 8192 + 2 * steps, "a step is long");
        steps += 1;
    }
    assert!((4..5000).contains(&steps), "{steps}");
    assert_eq!((fs.attr(&inode).size, store.used_blocks()), (0, 0));
}

/// Each piece of 2 MiB has one block.
#[test]
fn truncate_frees_strided_files_in_steps() {
    const BLOCKS: u64 = 3 * 8192;
    let (fs, _, store) = kernel_filesystem(1, 2 * BLOCKS);
    let inode = new_file(&fs, "file");
    for piece in 0..BLOCKS {
        store.write_unasked(0, piece << 21, b"x", 0).unwrap();
    }
    let mut done = Some(0);
    while let Some(progress) = done {
        let before = store.used_blocks();
        done = fs.truncate_step(&inode, 0, progress).unwrap();
        assert!(before - store.used_blocks() <= 8192, "a step is long");
    }
    assert_eq!((fs.attr(&inode).size, store.used_blocks()), (0, 0));
    // The count of steps has 22 bits: it does not begin anew behind the last one.
    for piece in 0..BLOCKS {
        store.write_unasked(0, piece << 21, b"x", 0).unwrap();
    }
    let last = ((1 << 22) - 1) << 42;
    assert_eq!(fs.truncate_step(&inode, 0, last), Ok(None));
    assert_eq!(store.used_blocks(), 0);
}

#[test]
fn large_files_are_punched_and_removed_in_steps() {
    let (fs, _, store) = kernel_filesystem(1, 2 * MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    let blocks = MEMBER_BLOCKS;
    store
        .write_unasked(0, 0, &vec![1; (blocks * BLOCK) as usize], 0)
        .unwrap();
    let (start, bytes) = (5 * BLOCK, u64::MAX / 4);
    let (mut done, mut steps) = (Some(0), 0);
    while let Some(so_far) = done {
        let used = store.used_blocks();
        let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
        done = fs.fallocate_step(&asking, &inode, punch, start, bytes, so_far).unwrap();
        assert!(used - store.used_blocks() <= 2 * (32 << 20) / BLOCK, "a step is long");
        steps += 1;
    }
    assert!(steps > 2, "{steps}");
    assert_eq!((store.used_blocks(), fs.attr(&inode).size), (5, blocks * BLOCK));
    store
        .write_unasked(0, 0, &vec![1; (blocks * BLOCK) as usize], 0)
        .unwrap();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

/// Several pieces of 2 MiB, with an end within one, or within the first.
#[test]
fn a_short_range_of_a_large_file_is_punched_in_one_step() {
    let (fs, _, store) = kernel_filesystem(1, 2 * MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    let bytes = MEMBER_BLOCKS * BLOCK;
    store.write_unasked(0, 0, &vec![1; bytes as usize], 0).unwrap();
    for blocks in [3, 2000] {
        let (used, punch) = (store.used_blocks(), mode::PUNCH_HOLE | mode::KEEP_SIZE);
        let start = (MEMBER_BLOCKS / 2 - blocks) * BLOCK + 100;
        let done = fs.fallocate_step(&caller.asking(), &inode, punch, start, blocks * BLOCK, 0);
        assert_eq!((done, store.used_blocks()), (Ok(None), used - (blocks - 1)));
        store.write_unasked(0, 0, &vec![1; bytes as usize], 0).unwrap();
    }
}

#[test]
fn holes_are_sought_in_steps() {
    const GIB: u64 = 1 << 30;
    let (fs, _, store) = kernel_filesystem(1, 2 * GIB / BLOCK + 100);
    let (caller, inode) = (Caller::on_node(&fs, 0), new_file(&fs, "file"));
    let asking = caller.asking();
    // So little room is left that it is allocated.
    fs.fallocate(&asking, &inode, 0, 0, 2 * GIB + 90 * BLOCK).unwrap();
    assert_eq!(store.used_blocks(), 2 * GIB / BLOCK + 90);
    let step = |at| fs.seek_step(&asking, &inode, at, Whence::Hole).unwrap();
    assert_eq!(step(0), ControlFlow::Continue(GIB));
    assert_eq!(step(GIB + 5), ControlFlow::Continue(2 * GIB), "whole blocks");
    assert_eq!(step(2 * GIB), ControlFlow::Break(2 * GIB + 90 * BLOCK), "the end");
    let punch = mode::PUNCH_HOLE | mode::KEEP_SIZE;
    fs.fallocate(&asking, &inode, punch, 100 * BLOCK, BLOCK).unwrap();
    assert_eq!(step(0), ControlFlow::Break(100 * BLOCK), "the hole");
    assert_eq!(step(100 * BLOCK + 1), ControlFlow::Break(100 * BLOCK + 1));
    assert_eq!(step(101 * BLOCK), ControlFlow::Continue(101 * BLOCK + GIB));
}

/// Blocks that were allocated beyond the end, which the file then grew over: lseek(2) would visit all of them to find data.
#[test]
fn allocated_blocks_that_nobody_wrote_are_found_as_data_in_one_step() {
    const GIB: u64 = 1 << 30;
    let (fs, _, store) = kernel_filesystem(1, 2 * GIB / BLOCK + 100);
    let (caller, inode) = (Caller::on_node(&fs, 0), new_file(&fs, "file"));
    let asking = caller.asking();
    let (start, end) = (700 * BLOCK, 2 * GIB + 90 * BLOCK);
    fs.fallocate(&asking, &inode, mode::KEEP_SIZE, start, end - start)
        .unwrap();
    assert_eq!(
        store.used_blocks(),
        (end - start) / BLOCK,
        "so little room is left that it is allocated"
    );
    fs.set_attr(&inode, &sized(end + 5 * BLOCK)).unwrap();
    let step = |at, whence| fs.seek_step(&asking, &inode, at, whence);
    for at in [0, 5, 699 * BLOCK, start] {
        assert_eq!(step(at, Whence::Data), Ok(ControlFlow::Break(start)), "from {at}");
    }
    assert_eq!(step(start + 7, Whence::Data), Ok(ControlFlow::Break(start + 7)));
    assert_eq!(step(start, Whence::Hole), Ok(ControlFlow::Continue(start + GIB)));
    assert_eq!(fs.seek(&asking, &inode, start, Whence::Hole), Ok(end));
    for at in [end, end + 4 * BLOCK] {
        assert_eq!(step(at, Whence::Hole), Ok(ControlFlow::Break(at)));
        assert_eq!(step(at, Whence::Data), Err(Error::NoData));
    }
    for whence in [Whence::Data, Whence::Hole] {
        assert_eq!(step(end + 5 * BLOCK, whence), Err(Error::NoData), "the end of the file");
    }
}

#[test]
fn a_file_that_was_changed_in_a_time_to_come_rests() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.open(&inode, Access::Write).unwrap();
    forgets(&fs, &inode);
    let now = fs.attr(&inode).ctime_ns;
    store.write_unasked(0, 0, &[1; 4 << 20], now + 1_000_000).unwrap();
    assert!(!fs.collapse_rested(), "by a clock that is somewhat ahead");
    store.write_unasked(0, 0, &[1; 4 << 20], i64::MAX).unwrap();
    assert!(fs.collapse_rested());
}

#[test]
fn a_removed_file_is_not_listed_as_one_that_may_have_grown() {
    let (fs, _, _) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.open(&inode, Access::Write).unwrap();
    forgets(&fs, &inode);
    remove(&fs, "file", &inode);
    fs.release(&inode, Access::Write);
    // Looks at the list, too.
    fs.check_invariants();
}

#[test]
fn a_grown_idle_file_moves_to_huge_pages_step_by_step() {
    const MIB: u64 = 1 << 20;
    let (fs, clock, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let files = [
        new_file(&fs, "large"),
        new_file(&fs, "small"),
        new_file(&fs, "never written"),
    ];
    for inode in &files[..2] {
        fs.open(inode, Access::Write).unwrap();
        forgets(&fs, inode);
    }
    let now = fs.attr(&files[0]).ctime_ns;
    store.write_unasked(0, 0, &[1; 13 << 20], now).unwrap();
    store.write_unasked(1, 0, &[1; 1 << 20], now).unwrap();
    store.write_unasked(2, 0, &[1; 4 << 20], now).unwrap();
    assert!(!fs.collapse_rested(), "the file was written just now");
    clock.advance_ns(2_000_000_000);
    assert!(fs.collapse_rested() && fs.collapse_rested() && !fs.collapse_rested());
    assert_eq!(store.collapsed(0), [0..8 * MIB, 8 * MIB..12 * MIB]);
    let later = now + 2_000_000_000;
    store.write_unasked(0, 13 * MIB, &[1; 2 << 20], later).unwrap();
    assert!(!fs.collapse_rested());
    clock.advance_ns(2_000_000_000);
    assert!(fs.collapse_rested() && !fs.collapse_rested());
    assert_eq!(store.collapsed(0).first(), Some(&(12 * MIB..14 * MIB)));
    for inode in &files[..2] {
        fs.release(inode, Access::Write);
    }
    assert!(!fs.collapse_rested());
    store.write_unasked(0, 0, &[1; 40 << 20], later).unwrap();
    assert!(!fs.collapse_rested(), "the file was not opened since");
    forgets(&fs, &files[0]);
    assert!(fs.collapse_rested(), "from the start");
    assert_eq!((store.collapsed(1), store.collapsed(2)), (vec![], vec![]));
}

#[test]
fn a_truncation_waits_for_no_answer_about_words() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    // Its line: the first answer makes the users' file.
    fs.open(&inode, Access::Read).unwrap();
    store.write_unasked(0, 0, &[1; 2 * BLOCK as usize], 0).unwrap();
    let words = || fs.words_value(&inode, 7, 0).unwrap();
    let first = words();
    store.hold_asking(Some(1));
    thread::scope(|scope| {
        let asks = scope.spawn(words);
        store.wait_for_held();
        let cuts = scope.spawn(|| fs.truncate_step(&inode, 10, 0).unwrap());
        let start = Instant::now();
        while !cuts.is_finished() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        let has_waited = !cuts.is_finished();
        store.hold_asking(None);
        assert!(!has_waited);
        assert_eq!(cuts.join().unwrap(), None);
        // Told with the count of before, which the line has no more.
        let number = |value: &[u8]| String::from_utf8_lossy(value).split(' ').nth(3).map(str::to_owned);
        assert_eq!(number(&asks.join().unwrap()), number(&first));
        assert_ne!(number(&words()), number(&first));
    });
}

/// The kernel may take long for bytes that go: each mapping of the file is looked at.
#[test]
fn an_answer_about_words_waits_for_no_truncation() {
    let (fs, _, store) = kernel_filesystem(1, MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    fs.open(&inode, Access::Read).unwrap();
    store.write_unasked(0, 0, &[1; 2 * BLOCK as usize], 0).unwrap();
    fs.words_value(&inode, 7, 0).unwrap();
    store.hold_cutting(true);
    thread::scope(|scope| {
        let cuts = scope.spawn(|| fs.truncate_step(&inode, 10, 0).unwrap());
        store.wait_for_held();
        let (asks, told) = std::sync::mpsc::channel();
        let (fs, inode) = (&fs, &inode);
        scope.spawn(move || asks.send(fs.words_value(inode, 7, 0)).unwrap());
        let told = told.recv_timeout(PATIENCE);
        store.hold_cutting(false);
        assert_eq!(
            told.map(|told| told.is_err()),
            Ok(true),
            "nothing is known while bytes go"
        );
        assert_eq!(cuts.join().unwrap(), None);
    });
    fs.words_value(&inode, 7, 0).unwrap();
}

/// The search for what lies far behind the end takes thousands of looks.
#[test]
fn a_truncation_that_frees_little_searches_for_nothing() {
    const MIB: u64 = 1 << 20;
    let (fs, _, store) = kernel_filesystem(1, 2 * 16_384);
    let inode = new_file(&fs, "file");
    store.write_unasked(0, 0, &vec![1; 60 * MIB as usize], 0).unwrap();
    for size in [59 * MIB, 70 * MIB, 70 * MIB, 58 * MIB] {
        assert_eq!(fs.truncate_step(&inode, size, 0), Ok(None));
        assert_eq!(fs.attr(&inode).size, size);
    }
    assert_eq!(store.searches(), 0);
    assert_eq!(fs.truncate_step(&inode, MIB, 0).map(|done| done.is_some()), Ok(true));
    assert_ne!(store.searches(), 0);
}
