//! Many threads in a pool that is full: some are refused, and the log goes on.

use crate::sim::{DISK, Disk, Event, Kind, SimMemory};
use crate::tree::Tree;
use crate::workload::{Operation, Range, Run, SimFs, asking, format_of, format_slack, open, open_with};
use homenode_engine::fs::fallocate_mode::{COLLAPSE_RANGE, KEEP_SIZE, PUNCH_HOLE};
use homenode_engine::fs::{Error, Inode, NewInode, Placement, RenameMode, SetAttr, SetTime, Volume, XattrMode};
use homenode_shared::Slot;
use std::sync::Arc;

const THREADS: usize = 64;
const ROUNDS: usize = 60;

pub(crate) fn file() -> NewInode {
    NewInode::of_root(0o100_644)
}

/// Whether a pool may refuse something so when it is full.
fn is_full<T>(result: &Result<T, Error>) -> bool {
    match result {
        Ok(_) => false,
        Err(Error::NoSpace) => true,
        Err(error) => panic!("in a full pool: {error}"),
    }
}

#[test]
fn concurrent_syncs_and_removals_in_a_full_pool_keep_its_log_alive() {
    for kind in [Kind::File, Kind::Pmem] {
        let (fs, memory) = format_of(kind, 4096, 64);
        memory.forget_events();
        let root = fs.root();
        for thread in 0..THREADS {
            let own = format!("f{thread}");
            fs.create(&root, own.as_bytes(), file()).expect("the pool is empty");
        }
        let work = |thread: usize| {
            let slot = fs.slots().claim().expect("slots are free");
            let (asking, mut random) = (asking(&slot), fastrand::Rng::with_seed(thread as u64));
            let own = format!("f{thread}");
            let inode = fs.lookup(&root, own.as_bytes()).expect("the file was created");
            while !is_full(&fs.append(&asking, &inode, &vec![1; 20_000], false)) {}
            for round in 0..ROUNDS {
                let size = fs.attr(&inode).size;
                let at = random.u64(..size.max(1));
                match random.u8(..8) {
                    0 => drop(is_full(&fs.write(&asking, &inode, at, &[2; 9000], false))),
                    1 => drop(is_full(&fs.set_xattr(
                        &inode,
                        b"user.x",
                        &[3; 60_000],
                        XattrMode::Either,
                        false,
                    ))),
                    2 if fs.remove_xattr(&inode, b"user.x") == Err(Error::ReadOnly) => panic!("the log ended"),
                    3 => {
                        let name = format!("n{thread}-{round}");
                        if !is_full(&fs.create(&root, name.as_bytes(), file())) {
                            fs.unlink(&root, name.as_bytes())
                                .expect("removing works in a full pool");
                        }
                    }
                    4 if size > 40_000 => {
                        let punched = fs.fallocate(&asking, &inode, PUNCH_HOLE | KEEP_SIZE, at / 4096 * 4096, 4096);
                        is_full(&punched);
                    }
                    5 if size > 40_000 => drop(is_full(&fs.fallocate(&asking, &inode, COLLAPSE_RANGE, 4096, 4096))),
                    _ => {
                        if at + 3000 <= size {
                            let written = fs.write(&asking, &inode, at, &[4; 3000], false);
                            is_full(&written);
                        }
                    }
                }
                fs.sync(&slot, &inode).expect("syncing works in a full pool");
            }
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|thread| drop(scope.spawn(move || work(thread))));
            scope.spawn(|| {
                let slot = fs.slots().claim().expect("slots are free");
                for _ in 0..20 {
                    fs.tend_log(&slot).expect("a full pool is tended");
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
        });
        let slot = fs.slots().claim().expect("slots are free");
        for thread in 0..THREADS / 2 {
            fs.unlink(&root, format!("f{thread}").as_bytes())
                .expect("removing works in a full pool");
        }
        fs.sync_all(&slot).expect("the log goes on");
        assert!(fs.create(&root, b"new", file()).is_ok(), "no space after removals");
        fs.sync_all(&slot).expect("the log goes on");
        let before = Tree::of(&fs, &slot);
        let (again, _) = open(kind, memory.bytes(), 9).expect("the log is sound");
        again.check_invariants();
        assert!(before == Tree::of(&again, &again.slots().claim().expect("the first slot is free")));
    }
}

/// Freed blocks wait for a commit, and others use them then: a pool of which little is in use is not full.
#[test]
fn freed_blocks_are_usable_after_the_next_commit() {
    let (fs, memory) = format_of(Kind::File, 4096, 64);
    memory.forget_events();
    memory.slow_down(30);
    let root = fs.root();
    let work = |thread: usize| {
        let slot = fs.slots().claim().expect("slots are free");
        let [new, kept] = ["new", "kept"].map(|name| format!("{thread}-{name}"));
        for nth in 0..2_000 {
            let inode = fs
                .create(&root, new.as_bytes(), file())
                .expect("names and groups find room");
            let written = fs.write(&asking(&slot), &inode, 0, &[7; 20_000], false);
            written.expect("blocks are given back");
            let renamed = fs.rename(&root, new.as_bytes(), &root, kept.as_bytes(), RenameMode::Replace);
            renamed.unwrap_or_else(|error| panic!("rename {nth}: {error}"));
        }
    };
    let work = &work;
    std::thread::scope(|scope| (0..8).for_each(|thread| drop(scope.spawn(move || work(thread)))));
}

/// Small files that stay lie scattered among the places of those that went, and the log still finds whole segments.
#[test]
fn a_log_grows_where_small_files_came_and_went() {
    const BLOCKS: usize = 8192;
    let (fs, memory) = format_of(Kind::File, BLOCKS, 64);
    memory.forget_events();
    let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
    let mut kept = Vec::new();
    for nth in 0..3 * BLOCKS {
        let made = fs.create(&root, b"new", file()).expect("names and groups find room");
        fs.write(&asking(&slot), &made, 0, &[7; 4096], false)
            .expect("few blocks are in use");
        if nth % 48 == 0 {
            let name = format!("{nth}");
            let renamed = fs.rename(&root, b"new", &root, name.as_bytes(), RenameMode::Replace);
            renamed.expect("names and groups find room");
            kept.push(made);
        } else {
            fs.unlink(&root, b"new").expect("it is there");
        }
        if nth % 256 == 0 {
            fs.sync_all(&slot).expect("the disk works");
        }
    }
    for inode in &kept {
        let set = fs.set_xattr(inode, b"user.x", &[3; 8000], XattrMode::Either, false);
        set.unwrap_or_else(|error| panic!("{error} with {:?}", fs.statfs()));
    }
    fs.sync_all(&slot).expect("the disk works");
    fs.check_invariants();
}

#[test]
fn a_full_pool_overwrites_collapses_and_punches() {
    let mut run = Run::new(Kind::File);
    for path in ["a", "b"] {
        assert!(run.step(Operation::Create(path)));
    }
    // Turn by turn, so that neighbours are not one extent.
    let mut has_room = true;
    while has_room {
        has_room = run.step(Operation::Append("a", 4096)) && run.step(Operation::Append("b", 4096));
    }
    let mut names = 0..;
    let name = |nth: u64| format!("n{nth}").into_bytes();
    while names
        .next()
        .is_some_and(|nth| !is_full(&run.fs.create(&run.fs.root(), &name(nth), file())))
    {}
    assert!(
        run.step(Operation::Write("a", 1000, 20_000)),
        "an overwrite of several extents adds nothing"
    );
    assert!(
        run.step(Operation::Allocate("a", Range::Collapse, 0, 4096)),
        "collapsing frees"
    );
    assert!(run.step(Operation::Allocate("b", Range::Punch, 4096, 4096)), "no room");
    assert!(run.step(Operation::SyncAll));
}

#[test]
fn what_can_never_fit_costs_no_commit() {
    let (fs, memory) = format_of(Kind::File, 4096, 64);
    let slot = fs.slots().claim().expect("the first slot is free");
    let inode = fs.create(&fs.root(), b"f", file()).expect("the pool is empty");
    fs.write(&asking(&slot), &inode, 0, &[1; 40_000], false)
        .expect("there is room");
    fs.truncate_step(&inode, 0, 0).expect("a small file");
    memory.take_events();
    let reserved = fs.fallocate(&asking(&slot), &inode, KEEP_SIZE, 0, 1 << 50);
    assert_eq!(reserved, Err(Error::NoSpace));
    let is_commit = |event: &Event| matches!(event, Event::Persist(..));
    assert!(!memory.take_events().iter().any(is_commit));
}

#[test]
fn a_volume_in_a_full_pool_is_overwritten_and_zeroed() {
    const BYTES: usize = 100_000;
    let (fs, _) = format_of(Kind::File, 4096, 64);
    let slot = fs.slots().claim().expect("the first slot is free");
    let volume = fs
        .create_volume("v", 1 << 20, Placement::Local)
        .expect("the pool is empty");
    let write = |byte| fs.write_volume(&asking(&slot), &volume, 4096, &[byte; BYTES]);
    assert_eq!(write(1), Ok(BYTES));
    let filler = fs.create(&fs.root(), b"f", file()).expect("there is room");
    while !is_full(&fs.append(&asking(&slot), &filler, &[1; 20_000], false)) {}
    while !is_full(&fs.append(&asking(&slot), &filler, &[1], false)) {}
    for nth in 0.. {
        if is_full(&fs.create(&fs.root(), format!("n{nth}").as_bytes(), file())) {
            break;
        }
    }
    assert_eq!(write(2), Ok(BYTES));
    // Of holes too, which stay.
    let zeroed = fs.zero_volume(&asking(&slot), &volume, 0, 1 << 20);
    zeroed.expect("zeroing takes no room");
    let mut read = vec![9; 1 << 20];
    fs.read_volume(&asking(&slot), &volume, 0, &mut read)
        .expect("it is there");
    assert!(read.iter().all(|byte| *byte == 0));
}

/// A run of 2 MiB that cannot be split, for want of map nodes, stays behind the size of a file that was cut.
#[test]
fn a_truncation_undone_by_a_power_cut_keeps_the_old_bytes_without_map_nodes() {
    const RUN_BYTES: usize = 2 << 20;
    const LEFT_BYTES: usize = (1 << 20) + 100;
    let (fs, memory) = format_of(Kind::File, 8192, 64);
    let slot = fs.slots().claim().expect("the first slot is free");
    let inode = fs.create(&fs.root(), b"a", file()).expect("the pool is empty");
    let old = vec![7; RUN_BYTES];
    fs.write(&asking(&slot), &inode, 0, &old, false).expect("there is room");
    fs.sync_all(&slot).expect("the disk works");
    fs.set_metadata_limit(0);
    fs.truncate_step(&inode, LEFT_BYTES as u64, 0)
        .expect("cutting needs no memory");
    let read = |fs: &SimFs, bytes: usize| {
        let slot = fs.slots().claim().expect("slots are free");
        let (inode, mut read) = (fs.lookup(&fs.root(), b"a").expect("it was made"), vec![1; bytes]);
        let count = fs.read(&asking(&slot), &inode, 0, &mut read).expect("it has bytes");
        read.truncate(count);
        read
    };
    assert!(read(&fs, RUN_BYTES) == old[..LEFT_BYTES]);
    let (again, _) = open(Kind::File, memory.bytes(), 9).expect("the log is sound");
    assert!(
        read(&again, RUN_BYTES) == old,
        "the cut was not settled, and its zeros show"
    );
    fs.truncate_step(&inode, RUN_BYTES as u64, 0)
        .expect("growing takes nothing");
    let grown = read(&fs, RUN_BYTES);
    assert!(grown[..LEFT_BYTES] == old[..LEFT_BYTES] && grown[LEFT_BYTES..].iter().all(|byte| *byte == 0));
}

/// A volume is root's, whoever fills the memory of names: its runs of 2 MiB are split while root may take nodes. Without nodes the run stays behind its size.
#[test]
fn a_volume_is_cut_inside_a_run_when_metadata_is_short() {
    const RUN_BYTES: u64 = 2 << 20;
    const SIZE: u64 = RUN_BYTES + (1 << 20);
    let (fs, memory) = format_of(Kind::File, 8192, 64);
    let slot = fs.slots().claim().expect("the first slot is free");
    let make = |name: &str| {
        let volume = fs
            .create_volume(name, 2 * RUN_BYTES, Placement::Local)
            .expect("a new name");
        for run in 0..2 {
            let old = vec![7; 2 << 20];
            let written = fs.write_volume(&asking(&slot), &volume, run * RUN_BYTES, &old);
            assert_eq!(written, Ok(old.len()));
        }
        volume
    };
    let (split, cut) = (make("split"), make("cut"));
    for name in 0..10_u8 {
        let inode = fs.create(&fs.root(), &[b'a' + name], file()).expect("there is room");
        fs.set_xattr(&inode, b"user.x", &[3; 60_000], XattrMode::Either, false)
            .expect("there is room");
    }
    fs.sync_all(&slot).expect("the disk works");
    let used = |volume: &Volume| fs.volume_status(volume, || true).used_bytes;
    fs.set_metadata_limit(fs.metadata_bytes().0 * 3 / 2);
    fs.discard_volume(&asking(&slot), &split, 0, 1 << 20)
        .expect("discarding needs no room");
    assert_eq!(used(&split), SIZE, "root has memory for the split");
    fs.set_metadata_limit(0);
    fs.resize_volume(&cut, SIZE, true).expect("cutting needs no memory");
    assert_eq!(used(&cut), 2 * RUN_BYTES, "the run was not split");
    fs.check_invariants();
    fs.sync_all(&slot).expect("the disk works");
    let (after_cut, _) = open(Kind::File, memory.bytes(), 9).expect("the pool opens after a power cut");
    fs.put_away(&slot).expect("the disk works");
    let (put_away, _) = open(Kind::File, memory.bytes(), 1).expect("the pool opens");
    for fs in [after_cut, put_away] {
        let slot = fs.slots().claim().expect("slots are free");
        let volume = fs.volume("cut").expect("it was made");
        assert_eq!(volume.size_bytes(), SIZE);
        fs.check_invariants();
        fs.resize_volume(&volume, SIZE + 4096, false).expect("it grows");
        fs.resize_volume(&volume, 2 * RUN_BYTES, false).expect("it grows");
        let mut read = vec![1; 4 << 20];
        fs.read_volume(&asking(&slot), &volume, 0, &mut read)
            .expect("the disk works");
        let (kept, grown) = read.split_at(3 << 20);
        assert!(kept.iter().all(|byte| *byte == 7) && grown.iter().all(|byte| *byte == 0));
    }
}

/// Room of a file that was cut is nobody's before the cut is settled: a power cut gives it back to the file.
#[test]
fn reserved_room_goes_to_others_only_for_good() {
    const BYTES: u64 = 4096;
    for kind in [Kind::File, Kind::Pmem, DISK] {
        let (fs, memory) = format_of(kind, 4096, 64);
        let slot = fs.slots().claim().expect("the first slot is free");
        let new = |name: &[u8]| fs.create(&fs.root(), name, file()).expect("the pool has room");
        let (cut, other) = (new(b"cut"), new(b"other"));
        let free = fs.statfs().free;
        let reserve = |blocks: u64| fs.fallocate(&asking(&slot), &cut, KEEP_SIZE, 0, blocks * BYTES);
        let blocks = (0..free).rev().find(|blocks| reserve(*blocks).is_ok());
        assert!(blocks > Some(free / 2), "{blocks:?} of {free}");
        fs.sync_all(&slot).expect("the disk works");
        fs.truncate_step(&cut, 0, 0).expect("cutting takes nothing");
        let mut at = 0;
        while let Ok(written @ 1..) = fs.write(&asking(&slot), &other, at, &[1; 1 << 16], false) {
            at += written as u64;
        }
        fs.sync(&slot, &other).expect("the disk works");
        fs.check_invariants();
        let mut disk = Disk::new(kind, vec![0; memory.bytes().len()]);
        memory.take_events().iter().for_each(|event| disk.play(event));
        let (fs, _) = open(kind, disk.after_crash(|_, _| 0), 9).expect("there is room for all");
        let found = fs.lookup(&fs.root(), b"other").expect("it is durable");
        assert_eq!(fs.attr(&found).size, at, "{kind:?}");
        fs.check_invariants();
    }
}

/// Segments that an operation needs and the pool has no room for: none of them is written, and others' room stays.
#[test]
fn an_operation_without_room_in_the_log_writes_no_segment() {
    const BLOCK_BYTES: usize = 4096;
    const BLOCK: u64 = BLOCK_BYTES as u64;
    const SEGMENT_BLOCKS: u32 = 64;
    const EXTENTS: u64 = 9000;
    const SPACER_BLOCKS: u64 = 200;
    let (fs, memory) = format_of(Kind::File, 12_288, SEGMENT_BLOCKS);
    let slot = fs.slots().claim().expect("the first slot is free");
    let [file, spacer, filler] =
        [b"a", b"b", b"c"].map(|name| fs.create(&fs.root(), name, file()).expect("it is empty"));
    let write = |inode, at: u64| fs.write(&asking(&slot), inode, at * BLOCK, &[7; BLOCK_BYTES], false);
    let shorten_log = || {
        fs.sync_all(&slot).expect("the disk works");
        fs.compact(&slot).expect("the disk works");
        fs.tend_log(&slot).expect("the disk works");
    };
    (0..EXTENTS).for_each(|at| assert!(write(&file, 2 * at).is_ok()));
    (0..SPACER_BLOCKS).for_each(|at| assert!(write(&spacer, at).is_ok()));
    let mut at = 0;
    for _ in 0..4 {
        while fs.statfs().free > 20 && write(&filler, at).is_ok() {
            at += 1;
        }
        shorten_log();
    }
    let punched = fs.fallocate(
        &asking(&slot),
        &spacer,
        PUNCH_HOLE | KEEP_SIZE,
        0,
        SPACER_BLOCKS * BLOCK,
    );
    punched.expect("punching works in a full pool");
    shorten_log();
    let free = fs.statfs().free;
    assert!((64..256).contains(&free), "{free} blocks are free");
    memory.take_events();
    let reserved = fs.fallocate(&asking(&slot), &file, 0, 0, 2 * EXTENTS * BLOCK);
    assert_eq!(reserved, Err(Error::NoSpace));
    let segment_bytes = SEGMENT_BLOCKS as usize * BLOCK_BYTES;
    let is_segment = |event: &&Event| matches!(event, Event::Store(_, bytes) if bytes.len() == segment_bytes);
    assert_eq!(memory.take_events().iter().filter(is_segment).count(), 0);
    assert_eq!(fs.statfs().free, free);
    fs.check_invariants();
}

/// Files without bytes take more in a snapshot than in the log, where each is a group.
#[test]
fn a_pool_full_of_empty_files_finds_room_for_its_snapshot() {
    const FILES: usize = 100_000;
    let (fs, memory) = format_slack(Kind::File, 16_384, 64, 64 << 20);
    memory.forget_events();
    let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
    let filler = fs.create(&root, b"f", file()).expect("the pool is empty");
    for nth in 0..FILES {
        fs.create(&root, nth.to_string().as_bytes(), file())
            .expect("the pool has room");
    }
    while !is_full(&fs.append(&asking(&slot), &filler, &[1; 20_000], false)) {}
    for _ in 0..10 {
        fs.tend_log(&slot).expect("a full pool is tended");
    }
    for nth in 0..FILES {
        fs.unlink(&root, nth.to_string().as_bytes())
            .expect("removing works in a full pool");
        if nth % 1000 == 0 {
            fs.sync(&slot, &filler).expect("syncing works in a full pool");
        }
    }
    let (again, _) = open(Kind::File, memory.bytes(), 9).expect("the log is sound");
    again.check_invariants();
}

/// A full pool that is opened with segments larger than any gap.
fn full_with_large_segments() -> (SimFs, SimMemory) {
    let (fs, memory) = format_of(Kind::File, 16_384, 64);
    let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
    let filler = fs.create(&root, b"f", file()).expect("the pool is empty");
    while !is_full(&fs.append(&asking(&slot), &filler, &[1; 20_000], false)) {}
    fs.sync_all(&slot).expect("the disk works");
    let (fs, memory) = open_with(Kind::File, memory.bytes(), (9, 1024), false).expect("the log is sound");
    memory.forget_events();
    (fs, memory)
}

/// Removes the file that fills the pool, and makes another.
fn has_room_after_a_removal(fs: &SimFs, slot: &Slot) {
    fs.unlink(&fs.root(), b"f").expect("removing works in a full pool");
    fs.sync_all(slot).expect("the log goes on");
    fs.tend_log(slot).expect("the log goes on");
    assert!(fs.create(&fs.root(), b"new", file()).is_ok(), "no space after removals");
    fs.check_invariants();
}

#[test]
fn a_pool_without_place_for_a_segment_syncs_and_removes() {
    let (fs, _) = full_with_large_segments();
    let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
    let filler = fs.lookup(&root, b"f").expect("it is durable");
    fs.write(&asking(&slot), &filler, 5000, &[2; 9000], false)
        .expect("an overwrite adds nothing");
    fs.sync(&slot, &filler).expect("syncing works in a full pool");
    fs.tend_log(&slot).expect("a full pool is tended");
    drop(filler);
    has_room_after_a_removal(&fs, &slot);
}

/// Fills the pool by the file `f`, and has a block of `b` that is to be written fail.
fn fill_and_spoil(fs: &SimFs, memory: &SimMemory, slot: &Slot) -> (Arc<Inode>, Arc<Inode>) {
    let [filler, bad] = [b"f", b"b"].map(|name| fs.create(&fs.root(), name, file()).expect("there is room"));
    fs.write(&asking(slot), &bad, 0, &[77; 4096], false)
        .expect("there is room");
    while !is_full(&fs.append(&asking(slot), &filler, &[1; 20_000], false)) {}
    fs.sync_all(slot).expect("the disk works");
    let place = memory
        .bytes()
        .chunks(4096)
        .position(|block| block.iter().all(|byte| *byte == 77));
    memory.fail_block(place.expect("it is written"));
    fs.write(&asking(slot), &bad, 0, &[78; 4096], false)
        .expect("an overwrite adds nothing");
    (filler, bad)
}

const SYNCS: usize = 10_000;

/// The log goes on in segments as they were, and is replaced by snapshots.
#[test]
fn a_full_pool_without_gaps_for_larger_segments_survives_any_number_of_syncs() {
    for syncs_all in [false, true] {
        let (fs, memory) = full_with_large_segments();
        let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
        let filler = fs.lookup(&root, b"f").expect("it is durable");
        for nth in 0..SYNCS {
            fs.write(&asking(&slot), &filler, 5000, &[2; 9000], false)
                .unwrap_or_else(|error| panic!("overwrite {nth}: {error}"));
            let synced = match syncs_all {
                true => fs.sync_all(&slot),
                false => fs.sync(&slot, &filler),
            };
            synced.unwrap_or_else(|error| panic!("sync {nth}: {error}"));
        }
        drop(filler);
        let (again, _) = open_with(Kind::File, memory.bytes(), (9, 1024), false).expect("the pool opens");
        for fs in [&fs, &again] {
            has_room_after_a_removal(fs, &fs.slots().claim().expect("slots are free"));
        }
    }
}

/// A block that cannot be written keeps every snapshot from being written.
#[test]
fn a_full_pool_with_a_block_that_cannot_be_written_survives_any_number_of_syncs() {
    let (fs, memory) = format_of(DISK, 4096, 64);
    memory.forget_events();
    let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
    let (filler, bad) = fill_and_spoil(&fs, &memory, &slot);
    for nth in 0..SYNCS {
        // A server that meets an error goes on.
        let written = fs.write(&asking(&slot), &filler, 5000, &[2; 9000], false);
        assert!(
            matches!(written, Ok(_) | Err(Error::NoSpace | Error::Io)),
            "{nth}: {written:?}"
        );
        let synced = fs.sync(&slot, &filler);
        assert!(
            matches!(synced, Ok(()) | Err(Error::NoSpace | Error::Io)),
            "{nth}: {synced:?}"
        );
        if nth % 64 == 0 {
            assert!(fs.tend_log(&slot).is_err(), "a block cannot be written");
        }
    }
    let (again, _) = open(DISK, memory.bytes(), 9).expect("the pool opens");
    again.check_invariants();
    drop(bad);
    fs.unlink(&root, b"b").expect("removing works in a full pool");
    fs.sync_all(&slot).expect("nobody wants the block any more");
    drop(filler);
    has_room_after_a_removal(&fs, &slot);
}

/// Changes of attributes end where a snapshot cannot be written, and leave files removable.
#[test]
fn changes_of_attributes_at_the_end_of_the_log_leave_room_for_removals() {
    const FILES: usize = 64;
    let utimens = |nth: u64, _: u64| SetAttr {
        atime: Some(SetTime::At(nth.cast_signed())),
        mtime: Some(SetTime::At(nth.cast_signed())),
        ..SetAttr::default()
    };
    let chmod = |nth: u64, _: u64| SetAttr {
        mode: Some(if nth.is_multiple_of(2) { 0o600 } else { 0o644 }),
        ..SetAttr::default()
    };
    let truncate = |nth: u64, size: u64| SetAttr {
        size: Some(size + nth % 2),
        ..SetAttr::default()
    };
    // In front of a block that is reserved: it frees nothing.
    let grow = |nth: u64, size: u64| SetAttr {
        size: Some(size + nth + 1),
        ..SetAttr::default()
    };
    let changes = [&chmod as &dyn Fn(u64, u64) -> SetAttr, &utimens, &truncate, &grow];
    for (kind, change) in changes.into_iter().enumerate() {
        let (fs, memory) = format_of(DISK, 4096, 64);
        memory.forget_events();
        let (root, slot) = (fs.root(), fs.slots().claim().expect("the first slot is free"));
        for nth in 0..FILES {
            fs.create(&root, nth.to_string().as_bytes(), file())
                .expect("the pool is empty");
        }
        let reserved = fs.create(&root, b"reserved", file()).expect("the pool is empty");
        fs.fallocate(&asking(&slot), &reserved, KEEP_SIZE, 1 << 40, 1)
            .expect("the pool is empty");
        let (filler, bad) = fill_and_spoil(&fs, &memory, &slot);
        let changed = if kind == 3 { reserved } else { filler };
        let size = fs.attr(&changed).size;
        let ended = (0..1_000_000).find_map(|nth| fs.set_attr(&changed, &change(nth, size)).err());
        assert!(matches!(ended, Some(Error::NoSpace | Error::Io)), "{ended:?}");
        for nth in 0..FILES {
            let removed = fs.unlink(&root, nth.to_string().as_bytes());
            removed.unwrap_or_else(|error| panic!("removing file {nth}: {error}"));
        }
        drop(bad);
        fs.unlink(&root, b"b").expect("removing works in a full pool");
        fs.sync_all(&slot).expect("nobody wants the block any more");
        fs.set_attr(&changed, &change(0, size)).expect("the log goes on");
        fs.check_invariants();
    }
}
