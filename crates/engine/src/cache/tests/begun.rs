//! Reads that were begun for those who go on, and are ended by any thread, in any order; some fail.

use super::super::ahead::Wanted;
use super::*;
use crate::fs::{Advice, Inode, ReadAt};
use homenode_shared::Slot;

pub(super) const FRAMES_OF_CACHE: u32 = 2048;
pub(super) const BLOCKS: u64 = 6000;
pub(super) struct Stage {
    pub(super) fs: Fs<Cached<TestDisk>, NoTime>,
    pub(super) disk: TestDisk,
    pub(super) file: Arc<Inode>,
}

impl Stage {
    /// A file of [`BLOCKS`] blocks, the first of which are not in the cache.
    pub(super) fn new() -> Self {
        let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, 16_384, Some(Mutex::default()));
        let (fs, disk) = filesystem_on(disk, FRAMES_OF_CACHE, 16_384);
        let slot = fs.slots().claim().expect("the first slot is free");
        let file = fs.create(&fs.root(), b"a", NEW).expect("the name is new");
        for at in 0..BLOCKS {
            let written = fs.write(&asking(&slot), &file, at * 4096, &[at.to_le_bytes()[0]; 4096], false);
            assert_eq!(written, Ok(4096));
        }
        fs.pool().memory().persist_all(MemberId(0)).expect("the disk is sound");
        drop(slot);
        disk.take_reads();
        Self { fs, disk, file }
    }

    pub(super) fn read(&self, slot: &Slot, at: u64) {
        let mut bytes = [0; 4096];
        assert_eq!(self.fs.read(&asking(slot), &self.file, at * 4096, &mut bytes), Ok(4096));
        assert_eq!(bytes, [at.to_le_bytes()[0]; 4096], "block {at}");
    }

    fn read_many(&self, slot: &Slot, blocks: impl Iterator<Item = u64>) {
        let blocks: Vec<u64> = blocks.collect();
        let mut buffer = vec![0; blocks.len() * 4096];
        let to = buffer.chunks_exact_mut(4096);
        let mut reads: Vec<ReadAt<'_>> = blocks
            .iter()
            .zip(to)
            .map(|(at, to)| ReadAt::new(at * 4096, to))
            .collect();
        self.fs
            .read_many(&asking(slot), &self.file, &mut reads)
            .expect("the disk is sound");
        for (at, read) in blocks.iter().zip(&reads) {
            assert_eq!(
                (read.done, &read.to[..2]),
                (4096, &[at.to_le_bytes()[0]; 2][..]),
                "block {at}"
            );
        }
    }

    /// All that was begun has ended, and nothing is kept back.
    pub(super) fn end(self) {
        let memory = self.fs.pool().memory();
        memory.end_all_reads_of(MemberId(0));
        assert!(!self.disk.has_reads(MemberId(0)));
        let (_, disk) = memory.disk(MemberId(0)).expect("the member is cached");
        assert!(
            (0..16_384).all(|at| !disk.index.is_filling(at)),
            "a block stays in filling"
        );
        let slice = &memory.cache.as_ref().expect("the pool has a cache").slices[0];
        let mut used = 0;
        disk.index.visit(|at, frame, _| {
            used += 1;
            assert_eq!(
                slice.blocks().nth(frame as usize),
                Some(disk.block(at)),
                "the owner of frame {frame}"
            );
        });
        let (free, in_order) = slice.counts();
        assert_eq!(in_order, used, "frames are in the order");
        let all = FRAMES_OF_CACHE as usize;
        assert_eq!(used + free, (all - Tail::frames(all)) as u64, "frames were lost");
        self.fs.check_invariants();
    }
}

#[test]
fn blocks_of_a_run_come_to_adjacent_frames_in_any_order() {
    let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, 16_384, Some(Mutex::default()));
    let (fs, _) = filesystem_on(disk, FRAMES_OF_CACHE, 16_384);
    let memory = fs.pool().memory();
    let block = |nth| Block::new(MemberId(0), 6400 + nth);
    let begin = |nth| memory.begin_fetch(NodeId(0), block(nth), 8).expect("there are frames");
    // Another run's comes in between, and none has ended when the others begin.
    let begun = [40, 64 + 40, 3, 20].map(begin);
    begun.into_iter().for_each(|fetch| memory.end_fetch(fetch, true));
    let frame = |nth| memory.locate_one(block(nth)).expect("it was fetched").index();
    for nth in [3, 10, 20, 27, 47] {
        assert_eq!(frame(nth) + 40, frame(40) + nth, "block {nth}");
    }
    assert!(frame(64 + 40).abs_diff(frame(40)) >= 64);
}

#[test]
fn blocks_of_a_request_come_back_together_or_not_at_all() {
    let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, 16_384, Some(Mutex::default()));
    let (fs, _) = filesystem_on(disk, FRAMES_OF_CACHE, 16_384);
    let memory = fs.pool().memory();
    let cache = memory.cache.as_ref().expect("the pool has a cache");
    for (first, ghosts, returned) in [(6400_u64, 10, 0), (8000, 20, 32)] {
        let block = |nth: u64| Block::new(MemberId(0), first + nth);
        (0..ghosts).for_each(|nth| cache.ghosts.remember(block(nth).to_raw()));
        let begun = memory.begin_fetch(NodeId(0), block(0), 32).expect("there are frames");
        memory.end_fetch(begun, true);
        assert_eq!(
            cache.slices[0].returned.load(Ordering::Relaxed),
            returned,
            "{ghosts} ghosts"
        );
    }
}

#[test]
fn a_fetch_that_nobody_carries_out_fails_no_other_reader() {
    const AT: u64 = 1500;
    let stage = Stage::new();
    let slot = stage.fs.slots().claim().expect("a slot is free");
    let bytes = AT * 4096..(AT + 1) * 4096;
    for _ in 0..20 {
        let fetches = stage.fs.begin_fetches(&asking(&slot), &stage.file, bytes.clone());
        assert_eq!(fetches.len(), 1, "the block is away");
        std::thread::scope(|scope| {
            let stage = &stage;
            let reader = scope.spawn(|| stage.read(&stage.fs.slots().claim().expect("a slot is free"), AT));
            // It waits for the fetch by then.
            std::thread::sleep(Duration::from_millis(10));
            assert!(!reader.is_finished());
            fetches.into_iter().for_each(|fetch| stage.fs.end_fetch(fetch, false));
        });
        let memory = stage.fs.pool().memory();
        let (cache, disk) = memory.disk(MemberId(0)).expect("the member is cached");
        let mut frames = Vec::new();
        disk.index.visit(|at, _, _| frames.push(at));
        frames.into_iter().for_each(|at| cache.forget_frame(disk, at));
    }
    drop(slot);
    stage.end();
}

#[test]
fn a_reader_that_waits_for_a_store_is_told_of_its_end() {
    let stage = Stage::new();
    let memory = stage.fs.pool().memory();
    let (cache, disk) = memory.disk(MemberId(0)).expect("the member is cached");
    for fails in [false, true] {
        let at = (0..6000)
            .find(|at| !disk.index.has_frame(*at))
            .expect("most blocks are away");
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let act = |_| {
                    begin.send(()).expect("the test waits");
                    ended.recv().expect("the test goes on");
                    if fails { Err(MemoryError) } else { Ok(()) }
                };
                let filled = memory.fill_new((cache, disk), at, &act);
                assert_eq!(filled, if fails { Err(MemoryError) } else { Ok(true) });
            });
            begun.recv().expect("the store begins");
            let reader = scope.spawn(move || memory.wait_for_others((cache, disk), at));
            // It sleeps by then.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!reader.is_finished());
            end.send(()).expect("the store waits");
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while !reader.is_finished() {
                if std::time::Instant::now() > deadline {
                    // So that the test ends.
                    disk.ending.tell();
                    panic!("nobody tells the reader");
                }
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn a_read_that_is_begun_while_its_disk_goes_keeps_no_frame_and_no_reader() {
    let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, 16_384, Some(Mutex::default()));
    let (fs, disk) = filesystem_on(disk, FRAMES_OF_CACHE, 16_384);
    let memory = fs.pool().memory();
    let free = || memory.cache_status().slices[0].free_bytes;
    let before = free();
    let block = |nth: u64| Block::new(MemberId(0), 6400 + 8 * nth);
    let begin = |nth| memory.fetch_soon(&[(NodeId(0), block(nth), 8)], false);
    begin(0);
    memory.end_all_reads_of(MemberId(0));
    // Somebody had found these away before.
    begin(1);
    memory.remove_disk(MemberId(0));
    begin(2);
    assert!(!disk.has_reads(MemberId(0)));
    assert_eq!(free(), before);
    let (cache, removed) = memory.disk(MemberId(0)).expect("it was cached");
    for nth in 0..3 {
        assert_eq!(memory.wait_for_others((cache, removed), block(nth).index()), Ok(()));
    }
}

/// A thread that found blocks away before a drain moved them may read them from the old disk at any time.
#[test]
fn frames_that_are_filled_while_their_disk_goes_are_not_lost() {
    let cached = cached_on(&TestDisk::new(FRAMES_OF_CACHE as usize, 16_384), FRAMES_OF_CACHE);
    let free = || cached.cache_status().slices[0].free_bytes / 4096;
    let before = free();
    for number in 0..200 {
        let member = MemberId(number);
        cached.add_disk(member, NodeId(0), index(16_384));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (cached, is_over) = (&cached, &is_over);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    while !is_over.load(Ordering::Relaxed) {
                        let block = Block::new(member, random.u64(..16_384));
                        cached.fetch(NodeId(0), block, 1).expect("the disk is sound");
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(1));
            cached.remove_disk(member);
            is_over.store(true, Ordering::Relaxed);
        });
        let (_, disk) = cached.disk(member).expect("it was cached");
        let mut used = 0;
        disk.index.visit(|_, _, _| used += 1);
        assert_eq!((free(), used), (before, 0), "member {number}");
    }
}

#[test]
fn frames_of_a_removed_disk_are_free() {
    let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, 16_384, Some(Mutex::default()));
    let (fs, _) = filesystem_on(disk, FRAMES_OF_CACHE, 16_384);
    let memory = fs.pool().memory();
    let free = || memory.cache_status().slices[0].free_bytes;
    let before = free();
    for nth in 0..100 {
        let begun = memory.begin_fetch(NodeId(0), Block::new(MemberId(0), 6400 + 8 * nth), 8);
        memory.end_fetch(begun.expect("there are frames"), true);
    }
    assert!(free() < before);
    memory.remove_disk(MemberId(0));
    assert_eq!(free(), before);
}

#[test]
fn stream_reads_each_block_once_and_begins_before_it_needs_them() {
    let stage = Stage::new();
    let slot = stage.fs.slots().claim().expect("a slot is free");
    (0..3000).for_each(|at| stage.read(&slot, at));
    let reads = stage.disk.take_reads();
    let blocks: usize = reads.iter().map(|(_, blocks)| blocks).sum();
    assert!((3000..3100).contains(&blocks), "{blocks} blocks: {reads:?}");
    let ahead = reads
        .iter()
        .filter(|(_, blocks)| *blocks > 1)
        .map(|(_, blocks)| blocks)
        .sum::<usize>();
    assert!(ahead > 2900, "{reads:?}");
    drop(slot);
    stage.end();
}

/// A disk takes twice the time for 128 KiB in 32 pieces. In this small cache a window is larger than the small queue, so frames come back in any order.
#[test]
fn streams_keep_their_frames_adjacent() {
    let stage = Stage::new();
    let slot = stage.fs.slots().claim().expect("a slot is free");
    // Each pass meets some ghosts of the one ahead of it.
    for _ in 0..8 {
        stage.disk.0.pieces.store(0, Ordering::Relaxed);
        (0..3000).for_each(|at| stage.read(&slot, at));
    }
    let blocks: usize = stage.disk.take_reads().iter().map(|(_, blocks)| blocks).sum();
    let (blocks, pieces) = (blocks / 8, stage.disk.0.pieces.load(Ordering::Relaxed));
    assert!(blocks as u64 > 2 * pieces, "{blocks} blocks in {pieces} pieces");
    drop(slot);
    stage.end();
}

#[test]
fn large_requests_join_frames_that_single_blocks_have_scattered() {
    const FRAMES_OF_SLICE: u32 = 4096;
    let disk = TestDisk::with_way(FRAMES_OF_SLICE as usize, 16_384, Some(Mutex::default()));
    let cached = cached_on(&disk, FRAMES_OF_SLICE);
    cached.add_disk(MemberId(0), NodeId(0), index(16_384));
    let pieces_of = |at: u64, blocks| {
        // Two epochs end the use of frames, and some are free then.
        (0..2).for_each(|_| cached.tend(0, Duration::ZERO));
        let fetch = cached.begin_fetch(NodeId(0), Block::new(MemberId(0), at), blocks);
        let fetch = fetch.expect("there are frames");
        // Its addresses are numbers of frames.
        let pieces = fetch
            .transfer()
            .pieces
            .chunk_by(|(one, _), (next, _)| one + 1 == *next)
            .count();
        assert_eq!(fetch.blocks(), blocks);
        cached.end_fetch(fetch, true);
        pieces
    };
    // 1,297 has no factor in common with the number of blocks.
    (0..8000).for_each(|nth| _ = pieces_of(nth * 1297 % 8000, 1));
    let pieces: Vec<usize> = (8192..12_288).step_by(64).map(|at| pieces_of(at, 64)).collect();
    let joined = pieces.iter().filter(|pieces| **pieces <= 2).count();
    assert!(joined >= 60, "{pieces:?}");
}

/// Eight windows of the largest size are more than the small queue of the eviction.
#[test]
fn streams_that_evict_each_others_windows_get_smaller_ones() {
    const BLOCKS_OF_EACH: u64 = 3000;
    let disk = TestDisk::with_way(4096, 32_768, Some(Mutex::default()));
    let (fs, disk) = filesystem_on(disk, 4096, 32_768);
    let slot = fs.slots().claim().expect("the first slot is free");
    let make = |nth: u8| {
        let file = fs.create(&fs.root(), &[b'a' + nth], NEW).expect("the name is new");
        for at in 0..BLOCKS_OF_EACH {
            let written = fs.write(&asking(&slot), &file, at * 4096, &[nth; 4096], false);
            assert_eq!(written, Ok(4096));
        }
        file
    };
    let files: Vec<Arc<Inode>> = (0..8).map(make).collect();
    fs.pool().memory().persist_all(MemberId(0)).expect("the disk is sound");
    disk.take_reads();
    for first in (0..BLOCKS_OF_EACH).step_by(8) {
        for (nth, file) in (0..).zip(&files) {
            for at in first..first + 8 {
                let mut bytes = [0; 4096];
                assert_eq!(fs.read(&asking(&slot), file, at * 4096, &mut bytes), Ok(4096));
                assert_eq!(bytes, [nth; 4096]);
            }
        }
        fs.pool().memory().tend(0, Duration::ZERO);
    }
    let reads = disk.take_reads();
    let blocks: usize = reads.iter().map(|(_, blocks)| blocks).sum();
    assert!(
        blocks < 34_000 && reads.len() < 4000,
        "{blocks} blocks in {} reads",
        reads.len()
    );
}

/// Blocks of these streams are used when they have left the window: each first use is no second one.
#[test]
fn blocks_that_are_read_ahead_and_used_once_evict_no_others() {
    const FRAMES_OF_SLICE: u32 = 4096;
    const HOT: u64 = 1200;
    /// Blocks between the read of a block and its use: more than the window of the eviction has, and fewer than its small queue.
    const AHEAD: u64 = 256;
    let disk = TestDisk::with_way(FRAMES_OF_SLICE as usize, 16_384, Some(Mutex::default()));
    let cached = cached_on(&disk, FRAMES_OF_SLICE);
    cached.add_disk(MemberId(0), NodeId(0), index(1 << 17));
    let cache = cached.cache.as_ref().expect("it has one");
    let block = |at| Block::new(MemberId(0), at);
    let mut missed = 0;
    let mut use_one = |at| {
        let is_away = !cached.is_here(block(at));
        missed += u64::from(is_away);
        cached.load(block(at), 0, &mut [0]).expect("the disk is sound");
        is_away
    };
    (0..HOT).for_each(|at| {
        cache.ghosts.remember(block(at).to_raw());
        use_one(at);
    });
    let mut hot_missed = 0;
    for first in (8192..72_192).step_by(16) {
        cached.fetch_soon(&[(NodeId(0), block(first), 16)], false);
        while cached.below().has_reads(MemberId(0)) {
            cached.end_reads((cache, cached.disk(MemberId(0)).expect("it is cached").1), first);
        }
        (first..first + 16).for_each(|at| _ = use_one(at.saturating_sub(AHEAD).max(8192)));
        cached.tend(0, Duration::ZERO);
        // Each of the hot set once in 4,800 others.
        let nth = first / 16;
        (nth * 4..nth * 4 + 4).for_each(|at| hot_missed += u64::from(use_one(at % HOT)));
    }
    assert!(hot_missed < 100, "{hot_missed} of 16,000 uses of the hot set missed it");
    assert!(missed < 1600, "{missed} blocks were not there");
}

#[test]
fn large_sequential_reads_read_ahead_too() {
    const BYTES: usize = 1 << 20;
    let stage = Stage::new();
    let slot = stage.fs.slots().claim().expect("a slot is free");
    let mut bytes = vec![0; BYTES];
    for at in (0..3072).step_by(BYTES / 4096) {
        let read = stage.fs.read(&asking(&slot), &stage.file, at * 4096, &mut bytes);
        assert_eq!(read, Ok(BYTES));
        for (at, block) in (at..).zip(bytes.chunks_exact(4096)) {
            assert_eq!(block, [at.to_le_bytes()[0]; 4096], "block {at}");
        }
    }
    let reads = stage.disk.take_reads();
    let late = reads.iter().filter(|(_, blocks)| *blocks > 128).count();
    assert!(late <= 2, "the first one is not ahead: {reads:?}");
    drop(slot);
    stage.end();
}

#[test]
fn advice_controls_read_ahead() {
    let stage = Stage::new();
    let slot = stage.fs.slots().claim().expect("a slot is free");
    let advise = |advice, bytes| {
        let advised = stage.fs.advise(&asking(&slot), &stage.file, advice, bytes);
        advised.expect("nobody closes the gate");
    };
    advise(Advice::Random, 0..0);
    (0..100).for_each(|at| stage.read(&slot, at));
    assert!(stage.disk.take_reads().iter().all(|(_, blocks)| *blocks == 1));
    advise(Advice::Sequential, 0..0);
    stage.read(&slot, 200);
    stage.read(&slot, 201);
    let begun = stage.disk.0.begun.as_ref().expect("the disk reads ahead").lock();
    let blocks: u64 = begun.iter().map(Fetch::blocks).sum();
    drop(begun);
    assert!(blocks >= 96, "the largest window at once: {blocks} blocks");
    advise(Advice::WillNeed, 1000 * 4096..1100 * 4096);
    stage.fs.pool().memory().end_all_reads_of(MemberId(0));
    stage.disk.take_reads();
    (1000..1100).for_each(|at| stage.read(&slot, at));
    let late: usize = stage.disk.take_reads().iter().map(|(_, blocks)| blocks).sum();
    assert!(late <= 64, "{late} blocks of 100 were not there");
    advise(Advice::DontNeed, 0..BLOCKS * 4096);
    advise(Advice::Normal, 0..0);
    stage.read(&slot, 1050);
    drop(slot);
    stage.end();
}

#[test]
fn threads_that_read_the_same_file_all_get_their_bytes() {
    let stage = Stage::new();
    stage.disk.0.fails.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let stage = &stage;
            scope.spawn(move || {
                let slot = stage.fs.slots().claim().expect("slots are free");
                match thread {
                    0..2 => (0..2 * BLOCKS).for_each(|at| stage.read(&slot, (at + thread * 50) % BLOCKS)),
                    2..4 => (0..6000).for_each(|turn| stage.read(&slot, (turn * 1237 + thread) % BLOCKS)),
                    _ => {
                        for turn in 0..60 {
                            stage.read_many(&slot, (0..100).map(|nth| (turn * 7919 + nth * (thread + 611)) % BLOCKS));
                        }
                    }
                }
            });
        }
    });
    stage.end();
}

#[test]
fn advice_about_all_of_a_sparse_file_ends() {
    let stage = Stage::new();
    let slot = stage.fs.slots().claim().expect("slots are free");
    let sparse = stage
        .fs
        .create(&stage.fs.root(), b"sparse", NEW)
        .expect("the name is new");
    stage
        .fs
        .truncate_step(&sparse, 1 << 60, 0)
        .expect("growing takes nothing");
    let start = std::time::Instant::now();
    for file in [&sparse, &stage.file] {
        let advised = stage.fs.advise(&asking(&slot), file, Advice::WillNeed, 0..u64::MAX);
        assert_eq!(advised, Ok(()));
    }
    assert!(start.elapsed().as_secs() < 5, "it took {:?}", start.elapsed());
}

/// More threads than slots: the log's superblocks are written, and the edges of files are cut, all the same.
#[test]
fn blocks_are_changed_without_a_free_slot() {
    let stage = Stage::new();
    let held: Vec<Slot> = std::iter::from_fn(|| stage.fs.slots().claim()).collect();
    let start = std::time::Instant::now();
    let memory = stage.fs.pool().memory();
    let zeroed = memory.zero(Block::new(MemberId(0), 5000), 0, 4096);
    assert_eq!(zeroed, Ok(()));
    assert!(start.elapsed().as_secs() < 5 && !held.is_empty());
}

#[test]
fn who_tends_a_slice_waits_for_no_disk_that_never_answers() {
    let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, 16_384, Some(Mutex::default()));
    let cached = Arc::new(cached_on(&disk, FRAMES_OF_CACHE));
    let hung = MemberId(1);
    for member in [MemberId(0), hung] {
        cached.add_disk(member, NodeId(0), index(16_384));
    }
    *disk.0.hung.lock() = Some(hung);
    // As when no frame was free for them.
    let cache = cached.cache.as_ref().expect("it has one");
    cache.ahead.send(Wanted {
        node: NodeId(0),
        at: Block::new(hung, 0),
        blocks: 32,
        is_marked: false,
    });
    let (tended, has_tended) = std::sync::mpsc::channel();
    let tender = std::thread::spawn(move || {
        (0..20).for_each(|_| cached.tend(0, Duration::ZERO));
        let _ = tended.send(());
    });
    let ended = has_tended.recv_timeout(Duration::from_secs(20));
    *disk.0.hung.lock() = None;
    disk.0.is_answering.notify_all();
    tender.join().expect("it does not panic");
    assert_eq!(ended, Ok(()));
}
