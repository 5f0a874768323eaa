//! Scattered blocks that a sync writes at the same time.

use super::*;
use std::sync::mpsc::{Receiver, Sender, channel};

const BLOCKS: u64 = 8192;
/// Blocks between the starts of runs.
const GAP: u64 = 50;

/// A cache where two blocks in each [`GAP`] are dirty, `runs` times.
fn cached(runs: u64) -> (Cached<TestDisk>, TestDisk, Vec<(Block, usize)>) {
    cached_in(1024, runs)
}

/// [`cached`] with so many frames.
fn cached_in(frames: u32, runs: u64) -> (Cached<TestDisk>, TestDisk, Vec<(Block, usize)>) {
    let disk = TestDisk::new(frames as usize, usize::try_from(BLOCKS).expect("small"));
    let cached = cached_on(&disk, frames);
    cached.add_disk(MemberId(0), NodeId(0), index(BLOCKS));
    let stretches = (0..runs).map(|run| (Block::new(MemberId(0), run * GAP), 2 * BLOCK_BYTES));
    let stretches: Vec<(Block, usize)> = stretches.collect();
    for (at, bytes) in &stretches {
        cached.store(*at, 0, &vec![7; *bytes]).expect("the disk is sound");
    }
    (cached, disk, stretches)
}

/// Has the next write say that it has read its frames, wait until it is told to go on, and end so.
fn hold_write(disk: &TestDisk, result: Result<(), MemoryError>) -> (Receiver<()>, Sender<()>) {
    let ((begin, begun), (end, ended)) = (channel(), channel::<()>());
    disk.0.at_write.lock().0 = Some(Box::new(move || {
        begin.send(()).expect("the test waits for it");
        ended.recv().expect("the test tells it");
        result
    }));
    (begun, end)
}

/// Runs that are on the disk.
fn written(disk: &TestDisk, stretches: &[(Block, usize)]) -> Vec<u64> {
    let is_there = |at: Block| {
        let start = disk.place(at);
        disk.0.disk.lock()[start..start + 2 * BLOCK_BYTES]
            .iter()
            .all(|byte| *byte == 7)
    };
    let starts = stretches.iter().map(|(at, _)| *at);
    starts.filter(|at| is_there(*at)).map(Block::index).collect()
}

#[test]
fn a_sync_writes_scattered_blocks_at_the_same_time() {
    let (cached, disk, stretches) = cached(40);
    cached.persist_each(&stretches).expect("the disk is sound");
    assert_eq!(*disk.0.together.lock(), [32, 8]);
    assert!(disk.0.writes.lock().iter().all(|(_, blocks)| *blocks == 2));
    assert_eq!(written(&disk, &stretches).len(), 40);
    // The same with all blocks of the disk.
    let (cached, disk, stretches) = self::cached(40);
    cached.persist_all(MemberId(0)).expect("the disk is sound");
    assert_eq!(*disk.0.together.lock(), [32, 8]);
    assert_eq!(written(&disk, &stretches).len(), 40);
    assert_eq!(cached.cache_status().slices[0].dirty_bytes, 0);
}

#[test]
fn a_block_that_cannot_be_written_keeps_no_other_back() {
    let (cached, disk, stretches) = cached(40);
    *disk.0.broken.lock() = 20 * GAP + 1..20 * GAP + 2;
    cached.persist_each(&stretches).expect_err("a block is not durable");
    let others: Vec<u64> = (0..40).map(|run| run * GAP).filter(|at| *at != 20 * GAP).collect();
    assert_eq!(written(&disk, &stretches), others);
    let is_sound = |run: usize| cached.persist_each(&stretches[run..=run]).is_ok();
    assert!(is_sound(19) && is_sound(21));
    assert!(!is_sound(20), "it is dirty still");
    *disk.0.broken.lock() = 0..0;
    cached.persist_each(&stretches).expect("the disk is sound");
    assert_eq!(written(&disk, &stretches).len(), 40);
}

#[test]
fn a_sync_waits_for_blocks_that_another_one_writes() {
    let (cached, disk, stretches) = cached(3);
    let (begun, end) = hold_write(&disk, Ok(()));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| cached.persist_each(&stretches[1..]));
        begun.recv().expect("it writes");
        let second = scope.spawn(|| cached.persist_each(&stretches));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished(), "blocks that it needs are not on the disk");
        end.send(()).expect("it waits");
        for sync in [first, second] {
            sync.join().expect("it does not panic").expect("the disk is sound");
        }
    });
    assert_eq!(written(&disk, &stretches).len(), 3);
}

/// Nobody waits for blocks that a batch holds and is not writing yet.
#[test]
fn a_disk_has_one_batch_of_many_runs_at_a_time() {
    let (cached, disk, stretches) = cached(40);
    let (begun, end) = hold_write(&disk, Ok(()));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| cached.persist_each(&stretches[..20]));
        begun.recv().expect("it writes");
        cached.persist_each(&stretches[20..]).expect("the disk is sound");
        end.send(()).expect("it waits");
        first.join().expect("it does not panic").expect("the disk is sound");
    });
    let mut together = disk.0.together.lock().clone();
    assert_eq!(together.remove(0), 20);
    assert_eq!(together, [1; 20]);
    assert_eq!(written(&disk, &stretches).len(), 40);
}

#[test]
fn a_sync_of_a_disk_that_takes_nothing_tries_twice() {
    let (cached, disk, stretches) = cached(40);
    *disk.0.broken.lock() = 0..BLOCKS;
    // Until so many have failed in a row.
    for _ in 0..20 {
        cached
            .persist_each(&stretches[..1])
            .expect_err("the disk takes nothing");
    }
    disk.0.writes.lock().clear();
    cached.persist_each(&stretches).expect_err("the disk takes nothing");
    assert_eq!(*disk.0.writes.lock(), [(0, 1), (1, 1)]);
    *disk.0.broken.lock() = 0..0;
    cached.persist_each(&stretches).expect("the disk is sound");
    assert_eq!(written(&disk, &stretches).len(), 40);
}

/// A block that is written with one that cannot be, by another thread, is tried alone.
#[test]
fn a_failure_of_a_neighbour_fails_no_sync() {
    let (cached, disk, stretches) = cached(1);
    let (begun, end) = hold_write(&disk, Err(MemoryError));
    *disk.0.broken.lock() = 0..1;
    let [first, second] = [0, 1].map(|at| [(Block::new(MemberId(0), at), BLOCK_BYTES)]);
    std::thread::scope(|scope| {
        let both = scope.spawn(|| cached.persist_each(&stretches));
        begun.recv().expect("it writes");
        let sync = scope.spawn(|| cached.persist_each(&second));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!sync.is_finished(), "its block is being written");
        end.send(()).expect("it waits");
        sync.join().expect("it does not panic").expect("the block is sound");
        both.join()
            .expect("it does not panic")
            .expect_err("a block cannot be written");
    });
    cached.persist_each(&first).expect_err("it cannot be written");
    assert!(written(&disk, &[(Block::new(MemberId(0), 1), 0)]).is_empty());
}

/// A block that is being written when the commit begins is not dirty then.
#[test]
fn a_commit_hears_of_the_failure_of_a_write_that_had_begun() {
    let (cached, disk, _) = cached(1);
    let (begun, end) = hold_write(&disk, Err(MemoryError));
    std::thread::scope(|scope| {
        let saver = scope.spawn(|| cached.save_some_of(cached.disk(MemberId(0)).expect("it is cached")));
        begun.recv().expect("it writes");
        *disk.0.broken.lock() = 0..1;
        let commit = scope.spawn(|| cached.persist_all(MemberId(0)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!commit.is_finished(), "all that was stored is being written");
        end.send(()).expect("it waits");
        saver
            .join()
            .expect("it does not panic")
            .expect_err("the disk takes none of it");
        commit
            .join()
            .expect("it does not panic")
            .expect_err("a block is not durable");
    });
    assert_eq!(disk.0.disk.lock()[BLOCK_BYTES..2 * BLOCK_BYTES], [7; BLOCK_BYTES]);
}

/// New dirt behind it waits for the next commit: a writer who is faster than the disk would keep it for ever.
#[test]
fn a_commit_writes_what_was_dirty_when_it_began() {
    /// Has each write find more blocks stored behind the last ones than a batch has runs.
    fn store_at_each_write(disk: &TestDisk, cached: Arc<Cached<TestDisk>>, from: u64) {
        let again = disk.clone();
        disk.0.at_write.lock().0 = Some(Box::new(move || {
            let behind = from + 2 * 34;
            if behind < BLOCKS {
                for at in (from..behind).step_by(2) {
                    let stored = cached.store(Block::new(MemberId(0), at), 0, &[9; BLOCK_BYTES]);
                    stored.expect("there are frames");
                }
                store_at_each_write(&again, cached, behind);
            }
            Ok(())
        }));
    }
    let (cached, disk, _) = cached_in(8192, 33);
    let cached = Arc::new(cached);
    store_at_each_write(&disk, Arc::clone(&cached), 2060);
    cached.persist_all(MemberId(0)).expect("the disk is sound");
    let blocks: usize = disk.0.writes.lock().iter().map(|(_, blocks)| *blocks).sum();
    assert!((66..200).contains(&blocks), "{blocks} blocks of 66");
    // It has the cache.
    disk.0.at_write.lock().0 = None;
}
