//! Room that fallocate promised.

use super::{MEMBER_BLOCKS, remove};
use crate::support::{
    ALLOCATED_NS, BLOCK, Caller, TestFs, TestStore, assert_empty, kernel_filesystem, new_file, sized,
};
use homenode_engine::backing::BackingStore;
use homenode_engine::fs::{Error, Inode, Placement, Promised, fallocate_mode as mode};
use std::thread;
use std::time::{Duration, Instant};

/// A pool of one member, and a caller on its node.
fn pool(blocks: u64) -> (TestFs, Caller, TestStore) {
    let (fs, _, store) = kernel_filesystem(1, blocks);
    let caller = Caller::on_node(&fs, 0);
    (fs, caller, store)
}

/// Promises a file its first blocks.
fn promise(fs: &TestFs, caller: &Caller, inode: &Inode, blocks: u64) {
    let promised = fs.fallocate(&caller.asking(), inode, mode::KEEP_SIZE, 0, blocks * BLOCK);
    promised.expect("there is room");
}

/// Writes so many blocks of a file of the store, faster than anybody looks.
fn take(store: &TestStore, file: usize, blocks: u64) {
    let bytes = vec![1; (blocks * BLOCK) as usize];
    store.write_unasked(file, 0, &bytes, 0).expect("there is room");
}

#[test]
fn a_promise_without_room_is_dropped() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    promise(&fs, &caller, &inode, 10_000);
    take(&store, 1, MEMBER_BLOCKS - 5000);
    assert_eq!(
        fs.keep_promises(Promised::Beyond),
        Some(10_000 - 4096),
        "a step of 16 MiB found room"
    );
    assert_eq!(
        fs.keep_promises(Promised::Beyond),
        Some(0),
        "a dropped promise was tried again"
    );
    assert_eq!(fs.broken_promises().map(|(blocks, _)| blocks), Some(10_000 - 4096));
    assert_eq!(fs.pool().status().reserved, 0);
    fs.check_invariants();
}

#[test]
fn a_process_without_descriptors_breaks_no_promise() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    promise(&fs, &caller, &inode, 1000);
    take(&store, 1, MEMBER_BLOCKS - 1500);
    store.fail(Some(Error::NoDescriptor));
    assert_eq!(
        (fs.keep_promises(Promised::Beyond), fs.pool().status().reserved),
        (Some(0), 1000)
    );
    store.fail(None);
    assert_eq!(
        (fs.keep_promises(Promised::Beyond), fs.pool().status().reserved),
        (Some(0), 0)
    );
    assert_eq!(store.used_blocks(), MEMBER_BLOCKS - 500);
    fs.check_invariants();
}

/// Beyond the end the kernel has but fallocate(2).
#[test]
fn a_promise_inside_a_file_is_kept_without_moving_its_time() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    promise(&fs, &caller, &inode, 1000);
    fs.set_attr(&inode, &sized(600 * BLOCK - 5)).unwrap();
    promise(&fs, &caller, &inode, 1000);
    let before = fs.attr(&inode);
    take(&store, 1, MEMBER_BLOCKS - 1500);
    assert_eq!(fs.keep_promises(Promised::Inside), Some(0));
    let inside = fs.attr(&inode);
    assert_eq!(
        (store.used_blocks(), fs.pool().status().reserved),
        (MEMBER_BLOCKS - 900, 400)
    );
    assert_eq!((inside.mtime_ns, inside.blocks), (before.mtime_ns, before.blocks));
    assert_eq!(fs.keep_promises(Promised::Beyond), Some(0));
    assert_eq!(
        (store.used_blocks(), fs.pool().status().reserved),
        (MEMBER_BLOCKS - 500, 0)
    );
    assert_eq!(fs.attr(&inode).mtime_ns, ALLOCATED_NS);
    fs.check_invariants();
}

/// Bytes that were written into promised room since the last count do not count twice.
#[test]
fn promises_are_not_made_real_by_an_old_count() {
    const BLOCKS: u64 = 100_000;
    let (fs, caller, store) = pool(BLOCKS);
    let inode = new_file(&fs, "file");
    promise(&fs, &caller, &inode, 50_000);
    take(&store, 0, 10_000);
    assert_eq!(
        (fs.keep_promises(Promised::Beyond), store.used_blocks()),
        (Some(0), 10_000)
    );
    assert_eq!(fs.pool().status().reserved, 40_000);
    fs.check_invariants();
}

/// Attributes are told at once, however much there is to count.
#[test]
fn attributes_of_a_large_promise_are_told_without_a_count() {
    const BLOCKS: u64 = 400_000;
    let (fs, caller, store) = pool(BLOCKS);
    let inode = new_file(&fs, "file");
    promise(&fs, &caller, &inode, 200_000);
    take(&store, 0, 100_000);
    store.asked();
    fs.attr(&inode);
    assert_eq!(store.asked(), 0);
    fs.keep_promises(Promised::Beyond);
    assert!(store.asked() > 0);
}

/// The thread that makes a promise beyond the end real may wait for a writer for ever.
#[test]
fn a_held_promise_delays_no_call_no_look_and_no_end_of_a_mount() {
    const CALLS: usize = 200;
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let (held, _greedy, other) = (new_file(&fs, "held"), new_file(&fs, "greedy"), new_file(&fs, "other"));
    for inode in [&held, &other] {
        promise(&fs, &caller, inode, 1000);
    }
    take(&store, 1, MEMBER_BLOCKS - 2500);
    store.hold_allocating(true);
    let (took, asked, found) = thread::scope(|scope| {
        let keeper = scope.spawn(|| fs.keep_promises(Promised::Beyond));
        store.wait_for_held();
        let mut took: Vec<Duration> = (0..CALLS)
            .map(|_| {
                let start = Instant::now();
                fs.attr(&held);
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        fs.keep_promises(Promised::Inside);
        store.asked();
        let found = (0..CALLS).find_map(|_| fs.keep_promises(Promised::Inside));
        let asked = store.asked();
        fs.begin_mount();
        fs.end_mount();
        store.hold_allocating(false);
        assert_eq!(keeper.join().unwrap(), Some(0));
        (took[CALLS / 2], asked, found)
    });
    // The median: other programs may stop the thread in some of the calls.
    assert!(took < Duration::from_micros(500), "a call took {took:?}");
    assert_eq!(found, None, "the other thread alone has something to do");
    assert_eq!(asked, 0, "looks count though there is nothing to do for them");
    assert_eq!(fs.pool().status().reserved, 0);
    fs.check_invariants();
}

#[test]
fn a_removed_file_is_promised_nothing_even_if_it_cannot_be_cut() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    promise(&fs, &caller, &inode, 1000);
    store.fail(Some(Error::NoDescriptor));
    remove(&fs, "file", &inode);
    drop(inode);
    assert_eq!(fs.pool().status().reserved, 0);
}

#[test]
fn fallocate_promises_room_and_places_nothing() {
    const BLOCKS: u64 = 4 * MEMBER_BLOCKS;
    let (fs, caller, store) = pool(BLOCKS);
    let asking = caller.asking();
    let (inode, other) = (new_file(&fs, "file"), new_file(&fs, "other"));
    let half = BLOCKS / 2 * BLOCK;
    fs.fallocate(&asking, &inode, 0, 0, half).unwrap();
    assert_eq!((fs.attr(&inode).size, fs.attr(&inode).blocks), (half, half / 512));
    assert_eq!((store.used_blocks(), fs.statfs().free), (0, BLOCKS / 2));
    assert_eq!(fs.map(&inode), []);
    // Again, in part: nothing more.
    fs.fallocate(&asking, &inode, mode::KEEP_SIZE, BLOCK, half).unwrap();
    assert_eq!((fs.attr(&inode).size, fs.statfs().free), (half, BLOCKS / 2 - 1));
    assert_eq!(fs.fallocate(&asking, &other, 0, 0, half), Err(Error::NoSpace));
    assert_eq!(fs.attr(&other).blocks, 0);
    // Writing takes from the promise.
    store.write_unasked(0, 0, &[1; 10 * BLOCK as usize], 0).unwrap();
    assert_eq!(fs.attr(&inode).blocks, half / 512 + 8);
    assert_eq!(fs.statfs().free, BLOCKS / 2 - 1);
    fs.check_invariants();
    // No volume gets what is promised.
    let volume = fs.create_volume("v", BLOCKS * BLOCK, Placement::Local).unwrap();
    let mut taken = 0;
    while fs
        .write_volume(&asking, &volume, taken * BLOCK, &[1; BLOCK as usize])
        .is_ok()
    {
        taken += 1;
    }
    assert_eq!(taken, BLOCKS / 2 - 1);
    fs.remove_volume(&volume).unwrap();
    // Punching, cutting and removing take promises back.
    fs.fallocate(
        &asking,
        &inode,
        mode::PUNCH_HOLE | mode::KEEP_SIZE,
        half - 100 * BLOCK,
        100 * BLOCK,
    )
    .unwrap();
    assert_eq!(fs.statfs().free, BLOCKS / 2 + 99);
    fs.set_attr(&inode, &sized(20 * BLOCK)).unwrap();
    assert_eq!(fs.statfs().free, BLOCKS - 20);
    remove(&fs, "file", &inode);
    remove(&fs, "other", &other);
    assert_empty(&fs);
}

#[test]
fn fallocate_allocates_in_steps_where_little_room_is_left() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    let bytes = (MEMBER_BLOCKS - 10) * BLOCK;
    let first = fs.fallocate_step(&asking, &inode, 0, 0, bytes, 0).unwrap();
    assert!(first.is_some_and(|done| 0 < done && done < bytes), "{first:?}");
    assert_eq!((fs.statfs().free, fs.attr(&inode).size), (10, 0));
    let mut done = first;
    while let Some(so_far) = done {
        done = fs.fallocate_step(&asking, &inode, 0, 0, bytes, so_far).unwrap();
    }
    // What is allocated already needs no room.
    fs.fallocate(&asking, &inode, 0, 0, bytes).unwrap();
    assert_eq!((store.used_blocks(), fs.statfs().free), (MEMBER_BLOCKS - 10, 10));
    assert_eq!(fs.attr(&inode).size, bytes);
    assert_eq!(fs.fallocate(&asking, &inode, 0, bytes, 11 * BLOCK), Err(Error::NoSpace));
    assert_eq!(
        (fs.statfs().free, fs.attr(&inode).size),
        (10, bytes),
        "nothing has changed"
    );
}

#[test]
fn promised_space_is_allocated_before_others_take_it() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    assert_eq!(fs.keep_promises(Promised::Beyond), Some(0), "no promise exists");
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    let promised = 1000;
    promise(&fs, &caller, &inode, promised);
    assert_eq!(fs.keep_promises(Promised::Beyond), Some(0));
    assert_eq!(store.used_blocks(), 0, "allocated although room is left");
    let taken = MEMBER_BLOCKS - promised - 500;
    take(&store, 1, taken);
    assert_eq!(fs.keep_promises(Promised::Beyond), Some(0));
    assert_eq!(store.used_blocks(), taken + promised);
    // What is allocated, and is a hole until it is written, is not promised once more.
    fs.fallocate(&caller.asking(), &inode, 0, 0, promised * BLOCK).unwrap();
    assert_eq!(fs.pool().status().reserved, 0);
    assert_eq!(fs.attr(&inode).blocks, promised * BLOCK / 512);
    assert_eq!(
        store.write_unasked(1, taken * BLOCK, &vec![1; (600 * BLOCK) as usize], 0),
        Ok((500 * BLOCK) as usize)
    );
    assert_eq!(
        store.write_unasked(0, 0, &vec![2; (promised * BLOCK) as usize], 0),
        Ok((promised * BLOCK) as usize)
    );
    assert_eq!(
        (fs.keep_promises(Promised::Beyond), fs.pool().status().reserved),
        (Some(0), 0)
    );
    fs.check_invariants();
}

#[test]
fn bookkeeping_of_promises_stays_small() {
    let (fs, caller, store) = pool(8 * MEMBER_BLOCKS);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    // Every other block, far more of them than are booked.
    for block in 0..3000 {
        fs.fallocate(&asking, &inode, 0, 2 * block * BLOCK, BLOCK).unwrap();
    }
    assert_eq!(fs.attr(&inode).blocks, 3000 * BLOCK / 512);
    assert!(store.used_blocks() > 1500, "{}", store.used_blocks());
    // A hole within a block takes nothing back, however often.
    for _ in 0..64 {
        fs.fallocate(&asking, &inode, mode::PUNCH_HOLE | mode::KEEP_SIZE, 100, 50)
            .unwrap();
    }
    assert_eq!(fs.attr(&inode).blocks, 3000 * BLOCK / 512);
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

/// With all promises that a file may have, and where room gets short.
#[test]
fn the_steps_of_a_fallocate_count_its_range_once() {
    const STEPS: u64 = 24;
    const RANGE: u64 = STEPS * 4096;
    for is_short in [false, true] {
        let room = if is_short { RANGE + 10_000 } else { 4 * RANGE };
        let (fs, caller, store) = pool(room);
        let asking = caller.asking();
        let inode = new_file(&fs, "file");
        let promises = if is_short { 0 } else { 1024 };
        for nth in 0..promises {
            let at = (2 * RANGE + 2 * nth) * BLOCK;
            fs.fallocate(&asking, &inode, mode::KEEP_SIZE, at, BLOCK).unwrap();
        }
        store.asked_blocks();
        let (mut done, mut steps) = (Some(0), 0);
        while let Some(so_far) = done {
            done = fs.fallocate_step(&asking, &inode, 0, 0, RANGE * BLOCK, so_far).unwrap();
            steps += 1;
        }
        let asked = store.asked_blocks();
        assert_eq!((steps, store.used_blocks()), (STEPS, RANGE));
        // For the promise, and for each step.
        assert!(asked <= 2 * RANGE + STEPS * promises, "{asked} blocks of {RANGE}");
        fs.check_invariants();
    }
}

#[test]
fn calls_count_a_few_of_many_promises() {
    const FILES: usize = 12;
    const RANGES: u64 = 500;
    /// More than any call or look takes, less than all.
    const MOST: usize = 2000;
    let (fs, clock, store) = kernel_filesystem(1, 8 * MEMBER_BLOCKS);
    let caller = Caller::on_node(&fs, 0);
    let asking = caller.asking();
    for file in 0..FILES {
        let inode = new_file(&fs, &format!("{file}"));
        for range in 0..RANGES {
            fs.fallocate(&asking, &inode, mode::KEEP_SIZE, 2 * range * BLOCK, BLOCK)
                .unwrap();
        }
    }
    let promised = FILES as u64 * RANGES;
    assert_eq!(fs.pool().status().reserved, promised);
    store.asked();
    for _ in 0..20 {
        fs.statfs();
        let asked = store.asked();
        assert!((1..MOST).contains(&asked), "a call asked for {asked} ranges");
    }
    // What is written is found by calls, one file after the other, and by those who look all the time.
    let write_all = |file: usize| {
        for range in 0..RANGES {
            store.write_unasked(file, 2 * range * BLOCK, &[1], 0).unwrap();
        }
    };
    (0..FILES / 2).for_each(write_all);
    (0..FILES).for_each(|_| _ = fs.statfs());
    assert_eq!(fs.pool().status().reserved, promised / 2);
    (FILES / 2..FILES).for_each(write_all);
    store.asked();
    clock.advance_ns(1_000_000_000);
    for _ in 0..FILES {
        assert_eq!(fs.keep_promises(Promised::Beyond), Some(0));
        let asked = store.asked();
        assert!(asked < MOST, "a look asked for {asked} ranges");
    }
    assert_eq!(fs.pool().status().reserved, 0);
    assert!(!fs.has_promises());
}

#[test]
fn a_failed_fallocate_keeps_earlier_promises() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let asking = caller.asking();
    let (inode, _greedy) = (new_file(&fs, "file"), new_file(&fs, "greedy"));
    fs.fallocate(&asking, &inode, mode::KEEP_SIZE, 0, 10 * BLOCK).unwrap();
    // Room is there when it is booked, and gone when it is taken.
    store.refuse_allocating(true);
    let taken = (MEMBER_BLOCKS - 10 - 2000) * BLOCK;
    store.write_unasked(1, 0, &vec![1; taken as usize], 0).unwrap();
    assert_eq!(fs.fallocate(&asking, &inode, 0, 0, 1000 * BLOCK), Err(Error::NoSpace));
    store.refuse_allocating(false);
    assert_eq!(fs.pool().status().reserved, 10);
    fs.check_invariants();
}

#[test]
fn a_fallocate_that_fails_in_a_later_step_adds_no_promise() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    let bytes = (MEMBER_BLOCKS - 10) * BLOCK;
    let done = fs.fallocate_step(&asking, &inode, 0, 0, bytes, 0).unwrap().unwrap();
    store.refuse_allocating(true);
    let second = fs.fallocate_step(&asking, &inode, 0, 0, bytes, done);
    assert_eq!(second, Err(Error::NoSpace));
    assert_eq!((fs.pool().status().reserved, store.used_blocks()), (0, done / BLOCK));
    fs.check_invariants();
}

#[test]
fn punching_promised_ranges_keeps_the_rest_in_few_pieces() {
    const BLOCKS: u64 = 6000;
    let (fs, caller, store) = pool(8 * MEMBER_BLOCKS);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    fs.fallocate(&asking, &inode, mode::KEEP_SIZE, 0, BLOCKS * BLOCK)
        .unwrap();
    for block in (0..BLOCKS).step_by(2) {
        fs.fallocate(
            &asking,
            &inode,
            mode::PUNCH_HOLE | mode::KEEP_SIZE,
            block * BLOCK,
            BLOCK,
        )
        .unwrap();
    }
    // Of 3,000 pieces.
    assert_eq!((fs.pool().status().reserved, store.used_blocks()), (1024, 3000 - 1024));
    assert_eq!(fs.attr(&inode).blocks, BLOCKS / 2 * BLOCK / 512);
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

/// Other callers wait for a step: it counts no more than 256 MiB, however large the file.
#[test]
fn a_step_counts_a_part_of_a_large_file() {
    const LARGE: u64 = 3 * 65_536;
    const STEP: u64 = 65_536;
    let (fs, caller, store) = pool(2 * LARGE);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    take(&store, 0, LARGE - 1000);
    let allocate = |first: u64, blocks: u64, kind: u32| {
        let (mut done, mut steps) = (Some(0), 0);
        store.asked_blocks();
        while let Some(so_far) = done {
            done = fs
                .fallocate_step(&asking, &inode, kind, first * BLOCK, blocks * BLOCK, so_far)
                .map_err(|error| (error, steps))?;
            let asked = store.asked_blocks();
            assert!(asked <= STEP, "{asked} blocks in step {steps}");
            steps += 1;
        }
        Ok(steps)
    };
    assert_eq!(allocate(0, LARGE, 0), Ok(3));
    assert_eq!(fs.pool().status().reserved, 1000);
    assert_eq!(
        allocate(0, 2 * LARGE + 20_000, mode::KEEP_SIZE),
        Err((Error::NoSpace, 0)),
        "there is no room, wherever its blocks lie"
    );
    // What was promised before stays, and nothing else.
    let twice = LARGE..2 * LARGE + 1001;
    assert_eq!(
        allocate(twice.start, twice.end - twice.start, mode::KEEP_SIZE),
        Err((Error::NoSpace, 3))
    );
    assert_eq!((fs.pool().status().reserved, store.used_blocks()), (1000, LARGE - 1000));
    assert_eq!(allocate(LARGE - 500, 100, mode::PUNCH_HOLE | mode::KEEP_SIZE), Ok(1));
    assert_eq!(fs.pool().status().reserved, 900);
    fs.check_invariants();
}

/// A piece that is large is not allocated for a small hole, unless other writers have taken the hole's room: then it cannot stay promised.
#[test]
fn a_hole_in_many_large_promises_stays_promised_where_there_is_room() {
    const PIECE: u64 = 5000;
    // So much that no promise is made real.
    const BLOCKS: u64 = 1600 * PIECE;
    for has_room in [true, false] {
        let (fs, clock, store) = kernel_filesystem(1, BLOCKS);
        let caller = Caller::on_node(&fs, 0);
        let asking = caller.asking();
        let inode = new_file(&fs, "file");
        fs.fallocate(&asking, &inode, mode::KEEP_SIZE, 0, 1030 * PIECE * BLOCK)
            .unwrap();
        take(&store, 0, 1);
        let punch = |block: u64| {
            let kind = mode::PUNCH_HOLE | mode::KEEP_SIZE;
            fs.fallocate(&asking, &inode, kind, block * BLOCK, BLOCK).unwrap();
        };
        (1..1024).for_each(|nth| punch(nth * PIECE));
        let recount = || {
            clock.advance_ns(1_000_000_000);
            assert_eq!(fs.keep_promises(Promised::Inside), Some(0));
            fs.pool().status().reserved
        };
        let reserved = recount();
        store
            .write_unasked(0, 1025 * PIECE * BLOCK, &[1; BLOCK as usize], 0)
            .unwrap();
        assert_eq!(recount(), reserved - 1);
        store.take_besides(if has_room { 0 } else { BLOCKS - reserved });
        punch(1025 * PIECE);
        store.take_besides(0);
        let allocated = store.used_blocks() - 1;
        assert_eq!(allocated, if has_room { 0 } else { PIECE - 1 });
        assert_eq!(recount(), reserved - allocated - u64::from(!has_room));
        // What is left after a cut over the hole is promised still.
        fs.set_attr(&inode, &sized(1024 * PIECE * BLOCK)).unwrap();
        let promised = 1024 * PIECE - 1023 - 1;
        assert_eq!(recount(), promised - allocated);
        fs.check_invariants();
        remove(&fs, "file", &inode);
        assert_empty(&fs);
    }
}

/// A cut that takes steps frees written and promised blocks; what is left stays promised.
#[test]
fn a_cut_of_a_large_file_keeps_the_promise_of_what_is_left() {
    const PART: u64 = 4096;
    const PARTS: u64 = 10;
    let (fs, caller, store) = pool(4 * PARTS * PART);
    let inode = new_file(&fs, "file");
    let bytes = PARTS * PART * BLOCK;
    fs.fallocate(&caller.asking(), &inode, 0, 0, bytes).unwrap();
    let half = vec![1; (PART / 2 * BLOCK) as usize];
    for part in 0..PARTS {
        store.write_unasked(0, part * PART * BLOCK, &half, 0).unwrap();
    }
    assert_eq!(fs.keep_promises(Promised::Beyond), Some(0));
    assert_eq!(fs.pool().status().reserved, PARTS * PART / 2);
    let (mut done, mut steps) = (Some(0), 0);
    while let Some(so_far) = done {
        done = fs.truncate_step(&inode, bytes / 2, so_far).unwrap();
        steps += 1;
    }
    assert!(steps > 1, "the cut took no steps");
    let holes = PARTS / 2 * PART - store.used_blocks();
    assert_eq!((holes, fs.pool().status().reserved), (PARTS * PART / 4, holes));
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

/// A request that another thread begins again has booked room before.
#[test]
fn a_fallocate_that_begins_again_and_fails_keeps_earlier_promises_alone() {
    const LARGE: u64 = 3 * 65_536;
    let (fs, caller, store) = pool(2 * LARGE);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    take(&store, 0, LARGE);
    promise(&fs, &caller, &inode, LARGE + 10);
    let step = |done| {
        fs.fallocate_step(
            &asking,
            &inode,
            mode::KEEP_SIZE,
            LARGE * BLOCK,
            (LARGE + 1) * BLOCK,
            done,
        )
    };
    assert!(step(0).unwrap().is_some());
    let mut done = Some(0);
    let failed = loop {
        match step(done.expect("there is no room for all")) {
            Ok(next) => done = next,
            Err(error) => break error,
        }
    };
    assert_eq!((failed, fs.pool().status().reserved), (Error::NoSpace, 10));
    fs.check_invariants();
}

/// A mount that ends drops requests between two of their steps.
#[test]
fn a_fallocate_that_ends_with_its_mount_leaves_earlier_promises_alone() {
    const LARGE: u64 = 3 * 65_536;
    let (fs, caller, store) = pool(2 * LARGE);
    let asking = caller.asking();
    let inode = new_file(&fs, "file");
    fs.begin_mount();
    take(&store, 0, LARGE);
    promise(&fs, &caller, &inode, LARGE + 10);
    let step = |done| fs.fallocate_step(&asking, &inode, mode::KEEP_SIZE, LARGE * BLOCK, LARGE / 2 * BLOCK, done);
    let done = step(0).unwrap().unwrap();
    assert_eq!(fs.pool().status().reserved, 65_536);
    fs.end_mount();
    assert_eq!(fs.pool().status().reserved, 10);
    // A step that comes all the same begins again.
    assert_eq!(step(done), Ok(Some(done)));
    assert_eq!(step(done), Ok(None));
    assert_eq!(fs.pool().status().reserved, LARGE / 2);
    fs.check_invariants();
}

/// A count of a large file holds it for 256 MiB at a time, and counts no promise that is made meanwhile as kept.
#[test]
fn a_count_of_a_large_file_lets_calls_go_between_its_steps() {
    const STEP: u64 = 65_536;
    const FIRST: u64 = 1000;
    const LARGE: u64 = 250_000;
    const WRITTEN: u64 = 70_000;
    const NEW: u64 = 10;
    const TRIES: u64 = 50;
    let (fs, clock, store) = kernel_filesystem(1, 4 * LARGE);
    let caller = Caller::on_node(&fs, 0);
    let inode = new_file(&fs, "file");
    let reserve = |first: u64, blocks: u64| {
        let caller = Caller::on_node(&fs, 0);
        fs.fallocate(&caller.asking(), &inode, mode::KEEP_SIZE, first * BLOCK, blocks * BLOCK)
    };
    take(&store, 0, WRITTEN);
    let punched = fs.fallocate(
        &caller.asking(),
        &inode,
        mode::PUNCH_HOLE | mode::KEEP_SIZE,
        0,
        FIRST * BLOCK,
    );
    punched.unwrap();
    reserve(FIRST, LARGE).unwrap();
    let comes_between = |nth: u64| {
        clock.advance_ns(1_000_000_000);
        store.hold_asking(Some(FIRST));
        store.questions();
        thread::scope(|scope| {
            let keeper = scope.spawn(|| fs.keep_promises(Promised::Inside));
            store.wait_for_held();
            let call = scope.spawn(|| reserve(nth * NEW, NEW));
            // Time to reach the lock.
            thread::sleep(Duration::from_millis(20));
            store.hold_asking(None);
            assert_eq!((keeper.join().unwrap(), call.join().unwrap()), (Some(0), Ok(())));
        });
        assert_eq!(fs.pool().status().reserved, FIRST + LARGE - WRITTEN + (nth + 1) * NEW);
        let questions = store.questions();
        assert!(questions.iter().all(|blocks| *blocks <= STEP), "{questions:?}");
        questions.last() != Some(&NEW)
    };
    assert!((0..TRIES).any(comes_between), "calls wait for all of a count");
    fs.check_invariants();
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

#[test]
fn blocks_of_a_file_with_promises_do_not_last() {
    let (fs, caller, store) = pool(MEMBER_BLOCKS);
    let inode = new_file(&fs, "file");
    assert!(!fs.lasting_attr(&inode).changes_unseen);
    promise(&fs, &caller, &inode, 100);
    take(&store, 0, 50);
    assert!(
        fs.lasting_attr(&inode).changes_unseen,
        "those that were taken since are told twice"
    );
    remove(&fs, "file", &inode);
    assert_empty(&fs);
}

/// Many small promises, of more files than are copied at once, put off none of the large ones.
#[test]
fn many_small_promises_put_off_no_large_one() {
    const FILES: u64 = 1500;
    const LARGE: u64 = 20_000;
    /// The last of its five steps.
    const LAST_STEP: u64 = LARGE - 4 * 4096;
    const BLOCKS: u64 = 4 * LARGE;
    let (fs, caller, store) = pool(BLOCKS);
    let _greedy = new_file(&fs, "greedy");
    for nth in 0..FILES {
        promise(&fs, &caller, &new_file(&fs, &format!("{nth}")), 1);
    }
    promise(&fs, &caller, &new_file(&fs, "large"), LARGE);
    let left = (LARGE + FILES) / 2;
    take(&store, 0, BLOCKS - LARGE - FILES - left + 1);
    store.questions();
    assert_eq!(fs.keep_promises(Promised::Beyond), Some(0));
    let questions = store.questions();
    let last = questions.iter().position(|blocks| *blocks == LAST_STEP);
    // Two for each file and round at most, and those of a count before.
    let most = 5 * 2 * 64 + 200;
    assert!(last.is_some_and(|last| last < most), "{last:?} of {}", questions.len());
    assert_eq!(fs.pool().status().reserved, 0);
    fs.check_invariants();
}
