//! Blocks that stay for long are moved together.

use super::begun::{BLOCKS, FRAMES_OF_CACHE, Stage};
use super::*;

/// A hot set that single reads have scattered over all runs, and a stream of large requests beside it.
#[test]
fn a_stream_beside_a_scattered_hot_set_gets_adjacent_frames() {
    const FRAMES_OF_SLICE: u32 = 8192;
    const REQUEST: u32 = 128;
    let disk = TestDisk::with_way(FRAMES_OF_SLICE as usize, 16_384, Some(Mutex::default()));
    for (at, block) in disk.0.disk.lock().chunks_exact_mut(BLOCK_BYTES).enumerate() {
        block[..8].copy_from_slice(&at.to_le_bytes());
    }
    let cached = cached_on(&disk, FRAMES_OF_SLICE);
    cached.add_disk(MemberId(0), NodeId(0), index(1 << 17));
    let (mut missed, mut pieces) = (0, 0);
    let mut fetch = |at: u64, blocks: u64| {
        let block = |at| Block::new(MemberId(0), at);
        let mut next = at;
        while next < at + blocks {
            let Some(fetch) = cached.begin_fetch(NodeId(0), block(next), at + blocks - next) else {
                cached.tend(0, Duration::ZERO);
                continue;
            };
            let places: Vec<Block> = fetch
                .transfer()
                .pieces
                .iter()
                .map(|(address, _)| Block::from_raw(*address as u64))
                .collect();
            disk.read(block(next), &places).expect("the disk is sound");
            pieces += places.chunk_by(|one, next| one.plus(1) == *next).count();
            next += fetch.blocks();
            cached.end_fetch(fetch, true);
        }
        cached.tend(0, Duration::ZERO);
        std::mem::take(&mut pieces)
    };
    // A third of 7,900 blocks, in no order. 1,297 has no factor in common with their number.
    let is_hot = |at: u64| ((at * 0x9e37_79b9) >> 7).is_multiple_of(3);
    let singles = || (0..7900).map(|nth| nth * 1297 % 7900);
    singles().for_each(|at| _ = fetch(at, 1));
    let mut stream = (8192..).step_by(REQUEST as usize);
    let mut pass = |requests: usize, missed: &mut u64| {
        let mut all = 0;
        for (turn, at) in stream.by_ref().take(requests).enumerate() {
            all += fetch(at, REQUEST.into());
            // All of the hot set in each 8 requests: an eighth of the cache.
            for at in singles().filter(|at| is_hot(*at)).skip(turn % 8).step_by(8) {
                let mut number = [0; 8];
                if !cached.is_here(Block::new(MemberId(0), at)) {
                    *missed += 1;
                    fetch(at, 1);
                }
                cached
                    .load(Block::new(MemberId(0), at), 0, &mut number)
                    .expect("it is sound");
                assert_eq!(u64::from_le_bytes(number), at);
            }
        }
        all
    };
    pass(128, &mut missed);
    let copies = disk.0.copies.swap(0, Ordering::Relaxed);
    assert!((500..2700).contains(&copies), "{copies} blocks were moved");
    missed = 0;
    let pieces = pass(512, &mut missed);
    assert!(pieces <= 512 * 3, "{pieces} pieces of 512 requests");
    assert!(missed <= 100, "{missed} hot blocks were evicted");
    // Those that stay together stay where they are.
    let copies = disk.0.copies.load(Ordering::Relaxed);
    assert!(copies < 1000, "{copies} blocks were moved again");
}

#[test]
fn a_block_that_is_moved_may_be_wanted_stored_or_cut_away_meanwhile() {
    const MOVED: Block = Block::new(MemberId(0), 5);
    let disk = TestDisk::new(FRAMES_OF_CACHE as usize, 16_384);
    let cached = Arc::new(cached_on(&disk, FRAMES_OF_CACHE));
    cached.add_disk(MemberId(0), NodeId(0), index(16_384));
    let cache = cached.cache.as_ref().expect("it has one");
    let first_byte = || {
        let mut byte = [0];
        cached.load(MOVED, 0, &mut byte).expect("the disk is sound");
        byte[0]
    };
    // Calls `act` while the block, hot or cool, is being moved to the run that has two that stay.
    let move_beside = |is_hot: bool, act: Box<dyn FnOnce() + Send>| {
        for at in [5, 200, 201] {
            let block = Block::new(MemberId(0), at);
            cached.forget(block, 1);
            cache.ghosts.remember(block.to_raw());
            cached.fetch(NodeId(0), block, 1).expect("the disk is sound");
        }
        if is_hot {
            cached.locate_one(MOVED).expect("it was fetched");
        }
        let free = || cache.slices[0].counts().0;
        let before = free();
        disk.0.at_copy.lock().0 = Some(Box::new(move || {
            act();
            Ok(())
        }));
        cache.slices[0].space.lock().gather.want();
        cached.tend(0, Duration::ZERO);
        assert!(disk.0.at_copy.lock().0.is_none(), "no block was moved");
        assert!(
            !cached
                .disk(MemberId(0))
                .expect("it is cached")
                .1
                .index
                .is_filling(MOVED.index())
        );
        assert_eq!(
            free() + u64::from(cached.is_here(MOVED)),
            before + 1,
            "frames were lost"
        );
    };
    for is_hot in [false, true] {
        move_beside(is_hot, Box::new(|| ()));
        let (_, disk) = cached.disk(MemberId(0)).expect("it is cached");
        assert_eq!(disk.index.find(MOVED.index()).is_some(), is_hot, "whether it was used");
    }
    a_move_without_a_place_changes_nothing(&cached, MOVED);
    let stored = Arc::clone(&cached);
    move_beside(
        true,
        Box::new(move || {
            let put = stored.put(NodeId(0), MOVED, &[7; BLOCK_BYTES]);
            assert_eq!(put, Some(Ok(())));
        }),
    );
    assert_eq!(first_byte(), 7);
    cached.persist(MOVED, 0, BLOCK_BYTES).expect("the disk is sound");
    let cut = Arc::clone(&cached);
    move_beside(true, Box::new(move || cut.forget(MOVED, 1)));
    assert!(!cached.is_here(MOVED));
    let (wanted, is_wanted) = std::sync::mpsc::channel();
    let first_byte = &first_byte;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            is_wanted.recv().expect("the block is moved");
            first_byte()
        });
        disk.take_reads();
        move_beside(
            true,
            Box::new(move || {
                wanted.send(()).expect("the reader waits");
                // It sleeps by then.
                std::thread::sleep(Duration::from_millis(50));
            }),
        );
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !reader.is_finished() {
            if std::time::Instant::now() > deadline {
                // So that the test ends.
                cached.disk(MemberId(0)).expect("it is cached").1.ending.tell();
                panic!("nobody tells the reader");
            }
            std::thread::yield_now();
        }
        assert_eq!(reader.join().expect("it does not panic"), 7);
        assert_eq!(disk.take_reads().len(), 3, "the reader has read the disk");
    });
}

/// A thread that is inside delays the move until all places have gone.
fn a_move_without_a_place_changes_nothing(cached: &Cached<TestDisk>, hot: Block) {
    let (cache, disk) = cached.disk(hot.member()).expect("it is cached");
    let copies = || cached.below().0.copies.load(Ordering::Relaxed);
    let (slot, before) = (cache.slots.claim().expect("slots are free"), copies());
    let inside = slot.stay();
    cached.forget(hot, 1);
    cache.ghosts.remember(hot.to_raw());
    cached.fetch(NodeId(0), hot, 1).expect("the disk is sound");
    cached.locate_one(hot).expect("it was fetched");
    cache.slices[0].space.lock().gather.want();
    cached.tend(0, Duration::ZERO);
    assert_eq!(
        (disk.index.find(hot.index()), copies()),
        (None, before),
        "it is to be moved"
    );
    let take = |frame: &u32| cache.slices[0].space.lock().free.take_this(*frame);
    let taken: Vec<u32> = (0..FRAMES_OF_CACHE).filter(take).collect();
    drop(inside);
    cached.tend(0, Duration::ZERO);
    assert!(
        disk.index.find(hot.index()).is_some() && copies() == before,
        "it was used, and stays"
    );
    taken.into_iter().for_each(|frame| cache.give_back(frame));
}

#[test]
fn frames_of_blocks_that_are_moved_while_their_disk_goes_are_not_lost() {
    let disk = TestDisk::new(FRAMES_OF_CACHE as usize, 16_384);
    let cached = cached_on(&disk, FRAMES_OF_CACHE);
    let cache = cached.cache.as_ref().expect("it has one");
    let free = || cached.cache_status().slices[0].free_bytes / 4096;
    let before = free();
    for number in 0..200 {
        let member = MemberId(number);
        cached.add_disk(member, NodeId(0), index(16_384));
        // A third of them stays, in no order.
        for at in (0..1500).map(|nth| nth * 7 % 1500) {
            let block = Block::new(member, at);
            if at % 3 == u64::from(at % 64 < 32) {
                cache.ghosts.remember(block.to_raw());
            }
            cached.fetch(NodeId(0), block, 1).expect("the disk is sound");
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    cache.slices[0].space.lock().gather.want();
                    cached.tend(0, Duration::ZERO);
                }
            });
            std::thread::sleep(Duration::from_micros(u64::from(number) * 5));
            cached.remove_disk(member);
            is_over.store(true, Ordering::Relaxed);
        });
        let (_, disk) = cached.disk(member).expect("it was cached");
        let mut used = 0;
        disk.index.visit(|_, _, _| used += 1);
        assert_eq!((free(), used), (before, 0), "member {number}");
        assert_eq!(cache.slices[0].counts().1, 0, "member {number}");
    }
    let copies = disk.0.copies.load(Ordering::Relaxed);
    assert!(copies > 100, "{copies} blocks were moved");
}

#[test]
fn blocks_that_are_moved_keep_their_bytes_beside_readers_writers_and_cuts() {
    const HOT: u64 = 600;
    let stage = Stage::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..4_u64)
            .map(|thread| {
                let stage = &stage;
                scope.spawn(move || {
                    let slot = stage.fs.slots().claim().expect("slots are free");
                    let mut random = fastrand::Rng::with_seed(thread);
                    let name = [b'b' + u8::try_from(thread).expect("it is small")];
                    let other = || {
                        let _ = stage.fs.unlink(&stage.fs.root(), &name);
                        stage.fs.create(&stage.fs.root(), &name, NEW).expect("the name is new")
                    };
                    let mut cut = other();
                    for turn in 0..20_000 {
                        let hot = random.u64(..HOT) * 9;
                        match random.u8(..16) {
                            0 => {
                                let bytes = [hot.to_le_bytes()[0]; 4096];
                                let from = random.usize(..4096);
                                let written = stage.fs.write(
                                    &asking(&slot),
                                    &stage.file,
                                    hot * 4096 + from as u64,
                                    &bytes[from..],
                                    false,
                                );
                                assert_eq!(written, Ok(4096 - from));
                            }
                            1 if turn % 400 < 8 => (hot..BLOCKS.min(hot + 100)).for_each(|at| stage.read(&slot, at)),
                            2 if turn % 64 == 0 => cut = other(),
                            2 => {
                                let at = random.u64(..50);
                                stage
                                    .fs
                                    .write(&asking(&slot), &cut, at * 4096, &[7; 4096], false)
                                    .expect("there is room");
                                let mut bytes = [0; 4096];
                                assert_eq!(stage.fs.read(&asking(&slot), &cut, at * 4096, &mut bytes), Ok(4096));
                                assert_eq!(bytes, [7; 4096]);
                            }
                            _ => stage.read(&slot, hot),
                        }
                    }
                })
            })
            .collect();
        let (stage, is_over) = (&stage, &is_over);
        scope.spawn(move || {
            let memory = stage.fs.pool().memory();
            let cache = memory.cache.as_ref().expect("the pool has a cache");
            while !is_over.load(Ordering::Relaxed) {
                cache.slices[0].space.lock().gather.want();
                memory.tend(0, Duration::ZERO);
            }
        });
        let ended: Vec<_> = users.into_iter().map(|user| user.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|user| user.expect("no bytes are wrong"));
    });
    let copies = stage.disk.0.copies.load(Ordering::Relaxed);
    assert!(copies > 10, "{copies} blocks were moved");
    stage.fs.pool().memory().tend(0, Duration::ZERO);
    stage.end();
}
