//! The end of the log while several threads write it.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;

const LOG: Block = Block::new(MemberId(0), 10);

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Succeeds,
    Fails,
    Panics,
}

/// A cache whose tail has two blocks.
fn cached() -> (Cached<TestDisk>, TestDisk) {
    let disk = TestDisk::new(8, 64);
    let cached = cached_on(&disk, 8);
    cached.add_disk(MemberId(0), NodeId(0), index(64));
    (cached, disk)
}

/// Fills the tail, and runs `act` while another thread is writing the oldest block to make room.
fn while_room_is_made(cached: &Cached<TestDisk>, disk: &TestDisk, end: End, act: impl FnOnce()) {
    for (block, byte) in [(LOG, 1), (LOG.plus(1), 2)] {
        cached.append(block, 0, &[byte; 100]).expect("the disk is sound");
    }
    let ((begin, begun), (has_acted, acted)) = (channel(), channel::<()>());
    disk.0.at_write.lock().0 = Some(Box::new(move || {
        begin.send(()).expect("the test waits for it");
        // `act` may have to wait for this write.
        let _ = acted.recv_timeout(Duration::from_millis(200));
        assert_ne!(end, End::Panics, "planned panic");
        if end == End::Fails { Err(MemoryError) } else { Ok(()) }
    }));
    thread::scope(|scope| {
        let append = || cached.append(LOG.plus(20), 0, &[3; 100]);
        let appended = scope.spawn(move || catch_unwind(AssertUnwindSafe(append)));
        begun.recv().expect("the tail is full");
        act();
        let _ = has_acted.send(());
        let appended = appended.join().expect("its panic is caught");
        assert_eq!(appended.is_ok_and(|done| done.is_ok()), end == End::Succeeds, "{end:?}");
    });
}

#[test]
fn bytes_made_durable_while_room_is_made_stay() {
    for end in [End::Succeeds, End::Fails, End::Panics] {
        let (cached, disk) = cached();
        while_room_is_made(&cached, &disk, end, || {
            cached.append(LOG, 100, &[4; 100]).expect("the disk is sound");
            cached.persist(LOG, 100, 100).expect("the disk is sound");
            assert_eq!(disk.0.disk.lock()[10 * BLOCK_BYTES + 100], 4);
        });
        let bytes = disk.0.disk.lock()[10 * BLOCK_BYTES..][..200].to_vec();
        assert_eq!(
            bytes,
            [[1; 100], [4; 100]].concat(),
            "{end:?}: older bytes took their place"
        );
    }
}

#[test]
fn a_block_that_is_freed_while_room_is_made_is_written_no_more() {
    for end in [End::Succeeds, End::Fails, End::Panics] {
        let (cached, disk) = cached();
        while_room_is_made(&cached, &disk, end, || {
            cached.forget(LOG, 1);
            cached.store(LOG, 0, &[5; BLOCK_BYTES]).expect("there is a free frame");
            cached.persist(LOG, 0, BLOCK_BYTES).expect("the disk is sound");
        });
        let byte = disk.0.disk.lock()[10 * BLOCK_BYTES];
        assert_eq!(byte, 5, "{end:?}: the log's bytes took its place");
    }
}

#[test]
fn an_append_waits_for_a_frame_while_all_are_being_written() {
    let (cached, disk) = cached();
    while_room_is_made(&cached, &disk, End::Succeeds, || {
        // Both blocks lie in the range that the other thread writes.
        cached.append(LOG.plus(30), 0, &[6; 100]).expect("the disk is sound");
    });
    let mut bytes = [0; 100];
    for (block, byte) in [(0, 1), (1, 2), (20, 3), (30, 6)] {
        cached.load(LOG.plus(block), 0, &mut bytes).expect("the disk is sound");
        assert_eq!(bytes, [byte; 100], "block {block}");
    }
}

/// [`TestDisk`] sees two writes of a block at once.
#[test]
fn threads_that_append_and_persist_write_no_block_together() {
    const ROUNDS: u64 = 400;
    let (cached, disk) = cached();
    let append = |first: u64| {
        for round in 0..ROUNDS {
            let (block, byte) = (Block::new(MemberId(0), first + round % 8), round.to_le_bytes()[0]);
            for part in 0..4 {
                cached
                    .append(block, part * 1024, &[byte; 1024])
                    .expect("the disk is sound");
                thread::yield_now();
                cached.persist(block, part * 1024, 1024).expect("the disk is sound");
                let start = usize::try_from(block.index()).expect("small") * BLOCK_BYTES + part * 1024;
                assert_eq!(disk.0.disk.lock()[start..start + 1024], [byte; 1024], "round {round}");
            }
        }
    };
    thread::scope(|scope| [0, 8, 16, 24].map(|first| drop(scope.spawn(move || append(first)))));
}
