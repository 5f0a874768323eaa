//! Threads that work on one pool at once, each in a directory of its own, and crashes at every point of the order in which their stores and
//! persists came. The oracle relies on what each thread was told alone.
//!
//! Which thread goes first is the machine's choice, and changed by pauses at calls of the memory: a seed tells the operations, not the order.

use crate::full::file;
use crate::sim::DISK;
use crate::sim::{Disk, Kind};
use crate::workload::{Operation, Range, Run, SimFs, asking, format, format_of, open};
use crate::{KINDS, any, states, survive};
use homenode_engine::fs::{Inode, RenameMode};
use homenode_shared::Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Directories of the workers, and one of the thread that commits, where it does nothing.
const DIRECTORIES: [&str; 4] = ["0", "1", "2", "c"];

const OPERATIONS: &[Operation] = &[
    Operation::Create("a"),
    Operation::Create("b"),
    Operation::Unlink("b"),
    Operation::Rename("a", "b", RenameMode::Replace),
    Operation::Rename("b", "a", RenameMode::Replace),
    Operation::Rename("a", "b", RenameMode::Exchange),
    Operation::Write("a", 0, 4096),
    Operation::Write("a", 3000, 6000),
    Operation::Write("b", 0, 9000),
    Operation::Append("a", 5000),
    Operation::Truncate("a", 2000),
    Operation::Truncate("b", 0),
    Operation::Allocate("a", Range::Punch, 0, 8192),
    Operation::Allocate("a", Range::Collapse, 0, 4096),
    Operation::Allocate("a", Range::Insert, 0, 4096),
    Operation::Chmod("a", 0o4711),
    Operation::SetXattr("a", 300),
    Operation::Sync("a"),
    Operation::Sync("a"),
    Operation::Sync("a"),
    Operation::Sync("b"),
    Operation::Sync("b"),
];

/// Files that take others' names, unsynced, beside syncs.
const REPLACING: &[Operation] = &[
    Operation::Create("a"),
    Operation::Write("a", 0, 4096),
    Operation::Write("a", 0, 9000),
    Operation::Rename("a", "b", RenameMode::Replace),
    Operation::Create("c"),
    Operation::Sync("c"),
];

const COMMITS: &[Operation] = &[Operation::SyncAll, Operation::SyncAll, Operation::Snapshot];

/// Two or three threads with files, and one that commits. `each` is called by each thread first.
fn together(kind: Kind, operations: &[Operation], random: &mut fastrand::Rng, each: impl Fn() + Sync) -> Vec<Run> {
    let mut first = Run::new(kind);
    let directories = DIRECTORIES.map(Operation::Mkdir);
    let names = ["0/a", "1/a"].map(Operation::Create);
    let bytes = ["0/a", "1/a"].map(|path| Operation::Write(path, 0, 9000));
    for operation in directories.into_iter().chain(names).chain(bytes) {
        assert!(first.step(operation));
    }
    assert!(first.step(Operation::SyncAll));
    // Those operations are of no thread: what follows is looked at.
    let mut begin = first.memory.take_events();
    begin.retain(|event| !matches!(event, crate::Event::Begin(..) | crate::Event::End(..)));
    begin.into_iter().for_each(|event| first.memory.mark(event));
    let workers = random.usize(2..=3);
    let mut runs: Vec<Run> = (0..workers)
        .map(|thread| first.beside(thread, DIRECTORIES[thread]))
        .collect();
    runs.push(first.beside(workers, DIRECTORIES[3]));
    runs[0].memory.pause_often(random.u8(8..96));
    let seeds: Vec<u64> = runs.iter().map(|_| random.u64(..)).collect();
    let counts: Vec<usize> = runs.iter().map(|_| random.usize(3..=12)).collect();
    let fs = Arc::clone(&runs[0].fs);
    let (each, left) = (&each, &AtomicUsize::new(runs.len()));
    std::thread::scope(|scope| {
        // One that tends the cache, where there is one.
        if kind.is_disk() {
            scope.spawn(move || {
                each();
                while left.load(Ordering::Relaxed) > 0 {
                    fs.pool().memory().tend(0, Duration::ZERO);
                    std::thread::yield_now();
                }
            });
        }
        for ((run, seed), count) in runs.iter_mut().zip(seeds).zip(counts) {
            scope.spawn(move || {
                // Also when it panics.
                let _ended = Ended(left);
                each();
                let mut random = fastrand::Rng::with_seed(seed);
                let of = if run.thread == workers { COMMITS } else { operations };
                for _ in 0..count {
                    run.step(any(&mut random, of));
                }
            });
        }
    });
    runs[0].memory.pause_often(0);
    runs
}

/// Guard that counts a thread as ended when it is dropped.
struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn threads_survive_every_crash() {
    for of in [OPERATIONS, REPLACING] {
        survive(KINDS, states() / 3, |kind, random| together(kind, of, random, || ()));
    }
}

#[test]
fn faults_that_are_planted_in_threads_are_found() {
    use crate::seed;
    use homenode_engine::log::planted::{Planted, plant};
    const SOME: &[Planted] = &[
        Planted::RecordBeforeBytes,
        Planted::BytesNotPersisted,
        Planted::LogNotForced,
        Planted::ShiftUndone,
        Planted::OthersNotAwaited,
    ];
    // Much more than one needs as a rule: the order of the threads is of the moment, and it ends when the fault is found.
    let is_found = |fault: &&Planted| {
        let each = || plant(Some(**fault));
        let make = |kind, random: &mut _| together(kind, OPERATIONS, random, each);
        let kinds = match fault {
            Planted::OthersNotAwaited => &[DISK],
            _ => KINDS,
        };
        crate::look(kinds, 400_000, seed(), make).is_err()
    };
    let missed: Vec<_> = SOME.iter().filter(|fault| !is_found(fault)).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// A file takes another's name while the one before it that did so is settled for a sync: a power cut must not take away what was synced with it.
fn a_name_taken_beside_a_sync() -> bool {
    let (fs, memory) = format(Kind::File, 1);
    let fs = Arc::new(fs);
    let slot = fs.slots().claim().expect("the first slot is free");
    let create = |name: &str| fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room");
    let _others = ["b", "e"].map(create);
    fs.sync_all(&slot).expect("the disk works");
    let [first, second] = ["a", "d"].map(create);
    for inode in [&first, &second] {
        fs.write(&asking(&slot), inode, 0, &[7; 4096], false)
            .expect("the pool has room");
    }
    let replace = |fs: &SimFs, from: &[u8], to: &[u8]| {
        let renamed = fs.rename(&fs.root(), from, &fs.root(), to, RenameMode::Replace);
        renamed.expect("both names exist");
    };
    replace(&fs, b"a", b"b");
    let synced = create("c");
    let beside = Arc::clone(&fs);
    memory.at_load(move || replace(&beside, b"d", b"e"));
    fs.sync(&slot, &synced).expect("the disk works");
    assert!(fs.lookup(&fs.root(), b"d").is_err(), "the name was not moved");
    let (again, _) = open(Kind::File, memory.bytes(), 9).expect("the log is sound");
    again.lookup(&again.root(), b"c").is_ok()
}

/// Reads a block of a file of the root in a pool that was opened after a crash.
fn read_block(fs: &SimFs, name: &[u8], at: u64) -> Option<u8> {
    let inode = fs.lookup(&fs.root(), name).ok()?;
    let (slot, mut bytes) = (fs.slots().claim().expect("a slot is free"), [0; 4096]);
    let read = fs.read(&asking(&slot), &inode, at * 4096, &mut bytes);
    (read == Ok(4096) && bytes.iter().all(|byte| *byte == bytes[0])).then_some(bytes[0])
}

/// A commit has begun while a sync has copied a block for the log, and somebody has written it once more: the commit's caller is told that it is durable.
#[test]
fn a_commit_keeps_bytes_that_were_written_before_it_beside_a_sync() {
    let (fs, memory) = format(Kind::File, 1);
    let fs = Arc::new(fs);
    let slot = fs.slots().claim().expect("the first slot is free");
    let inode = fs.create(&fs.root(), b"a", file()).expect("there is room");
    let write = |fs: &SimFs, inode: &Inode, at: u64, byte: u8| {
        let slot = fs.slots().claim().expect("a slot is free");
        let written = fs.write(&asking(&slot), inode, at * 4096, &[byte; 4096], false);
        assert_eq!(written, Ok(4096));
    };
    for byte in [1, 2] {
        (0..2).for_each(|at| write(&fs, &inode, at, byte));
        if byte == 1 {
            fs.sync_all(&slot).expect("the disk works");
        }
    }
    let (commit, begun) = std::sync::mpsc::channel();
    let (beside, own, hooked) = (Arc::clone(&fs), Arc::clone(&inode), memory.clone());
    // The first block is being copied; with the second one it has been.
    memory.at_load(move || {
        hooked.at_load(move || {
            write(&beside, &own, 0, 3);
            commit.send(begin_commit(&beside)).expect("the test waits for it");
        });
    });
    fs.sync(&slot, &inode).expect("the disk works");
    let thread = begun.recv().expect("a sync copies bytes");
    thread.join().expect("the commit does not panic");
    let (again, _) = open(Kind::File, memory.bytes(), 9).expect("the log is sound");
    assert_eq!([0, 1].map(|at| read_block(&again, b"a", at)), [Some(3), Some(2)]);
}

/// A commit is giving a removed file's blocks back when another thread wants them all.
#[test]
fn room_that_is_being_given_back_is_waited_for() {
    const BYTES: usize = 12 << 20;
    let (fs, memory) = format_of(Kind::File, 4096, 64);
    let fs = Arc::new(fs);
    let slot = fs.slots().claim().expect("the first slot is free");
    let [old, new] = ["old", "new"].map(|name| fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room"));
    let reserve = |fs: &SimFs, inode: &Inode| {
        let slot = fs.slots().claim().expect("a slot is free");
        fs.fallocate(&asking(&slot), inode, 0, 0, BYTES as u64)
    };
    fs.write(&asking(&slot), &old, 0, &vec![1; BYTES], false)
        .expect("there is room");
    drop(old);
    fs.unlink(&fs.root(), b"old").expect("it is there");
    let (send, result) = std::sync::mpsc::channel();
    let beside = Arc::clone(&fs);
    memory.at_forget(move || {
        let thread = std::thread::spawn(move || reserve(&beside, &new));
        // It has looked, and waits.
        std::thread::sleep(Duration::from_millis(100));
        send.send(thread).expect("the test waits for it");
    });
    fs.sync_all(&slot).expect("the disk works");
    let thread = result.recv().expect("a commit gives the blocks back");
    assert_eq!(thread.join().expect("it does not panic"), Ok(()));
}

/// A file takes a second name while two syncs settle it for the first one.
#[test]
fn a_need_that_comes_anew_beside_two_syncs_is_met() {
    let (fs, memory) = format(Kind::File, 1);
    let fs = Arc::new(fs);
    let slot = fs.slots().claim().expect("the first slot is free");
    let create = |name: &str| fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room");
    let [_, _, moved, one, other, last] = ["a", "b", "x", "p", "q", "r"].map(create);
    fs.sync_all(&slot).expect("the disk works");
    let write = |fs: &SimFs, inode: &Inode, byte: u8| {
        let slot = fs.slots().claim().expect("a slot is free");
        let written = fs.write(&asking(&slot), inode, 0, &[byte; 4096], false);
        assert_eq!(written, Ok(4096));
    };
    let replace = |from: &[u8], to: &[u8]| {
        let renamed = fs.rename(&fs.root(), from, &fs.root(), to, RenameMode::Replace);
        renamed.expect("both names exist");
    };
    write(&fs, &moved, 1);
    replace(b"x", b"a");
    let (begin, begun) = std::sync::mpsc::channel();
    let (arrive, arrived) = std::sync::mpsc::channel();
    let (go_on, waits) = std::sync::mpsc::channel();
    let (beside, own, hooked) = (Arc::clone(&fs), Arc::clone(&moved), memory.clone());
    memory.at_load(move || {
        hooked.at_load(move || {
            arrive.send(()).expect("the test waits for it");
            waits.recv().expect("the test tells it");
        });
        write(&beside, &own, 2);
        let synced = Arc::clone(&beside);
        let thread = std::thread::spawn(move || {
            let slot = synced.slots().claim().expect("a slot is free");
            synced.sync(&slot, &other).expect("the disk works");
        });
        // It waits for the settling in the middle of which this is.
        std::thread::sleep(Duration::from_millis(100));
        begin.send(thread).expect("the test waits for it");
    });
    fs.sync(&slot, &one).expect("the disk works");
    let thread = begun.recv().expect("the file is settled first");
    arrived.recv().expect("the other sync settles it, too");
    write(&fs, &moved, 3);
    replace(b"a", b"b");
    go_on.send(()).expect("the other sync waits");
    thread.join().expect("the sync does not panic");
    write(&fs, &last, 4);
    fs.sync(&slot, &last).expect("the disk works");
    let (again, _) = open(Kind::File, memory.bytes(), 9).expect("the log is sound");
    assert_eq!(read_block(&again, b"r", 0), Some(4));
}

/// A thread fills holes of a file and syncs it, while another syncs it all the time; then the power goes. Whether all that was synced is there.
fn synced_holes_survive(each: impl Fn() + Sync) -> bool {
    const WRITES: u64 = 24;
    let blocks = 1024;
    let (fs, memory) = format_of(Kind::File, blocks, 32);
    let mut disk = Disk::new(Kind::File, vec![0; blocks * 4096]);
    let slot = fs.slots().claim().expect("the first slot is free");
    let inode = fs.create(&fs.root(), b"a", file()).expect("there is room");
    fs.sync_all(&slot).expect("the disk works");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            each();
            let slot = fs.slots().claim().expect("a slot is free");
            while !is_over.load(Ordering::Relaxed) {
                fs.sync(&slot, &inode).expect("the disk works");
            }
        });
        for nth in 0..WRITES {
            let written = fs.write(&asking(&slot), &inode, 2 * nth * 4096, &[7; 4096], false);
            assert_eq!(written, Ok(4096));
            fs.sync(&slot, &inode).expect("the disk works");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    memory.take_events().iter().for_each(|event| disk.play(event));
    let (again, _) = open(Kind::File, disk.after_crash(|_, _| 0), 9).expect("the log is sound");
    let inode = again.lookup(&again.root(), b"a").expect("it was synced");
    let slot = again.slots().claim().expect("the first slot is free");
    (0..WRITES).all(|nth| {
        let mut bytes = [0; 4096];
        assert_eq!(again.read(&asking(&slot), &inode, 2 * nth * 4096, &mut bytes), Ok(4096));
        bytes == [7; 4096]
    })
}

#[test]
fn holes_that_were_synced_survive_beside_another_sync() {
    assert!((0..30).all(|_| synced_holes_survive(|| ())));
}

#[test]
fn the_planted_fault_in_ends_is_found() {
    use homenode_engine::log::planted::{Planted, plant};
    let each = || plant(Some(Planted::EndBeforeTaking));
    assert!((0..300).any(|_| !synced_holes_survive(each)));
}

#[test]
fn a_sync_survives_concurrent_renames() {
    assert!(a_name_taken_beside_a_sync());
}

/// A commit has begun, and waits for the sync of another file, while a file is synced and then written once more: the log has its older bytes.
#[test]
fn a_sync_after_a_commit_that_began_before_an_earlier_one_keeps_the_bytes() {
    let (fs, memory) = format(Kind::File, 1);
    let fs = Arc::new(fs);
    let slot = fs.slots().claim().expect("the first slot is free");
    let [other, inode] = ["b", "a"].map(|name| fs.create(&fs.root(), name.as_bytes(), file()).expect("there is room"));
    let write = |fs: &SimFs, slot: &Slot, inode: &Inode, byte: u8| {
        let written = fs.write(&asking(slot), inode, 0, &[byte; 4096], false);
        assert_eq!(written, Ok(4096));
    };
    for byte in [1, 2] {
        [&other, &inode]
            .into_iter()
            .for_each(|inode| write(&fs, &slot, inode, byte));
        if byte == 1 {
            fs.sync_all(&slot).expect("the disk works");
        }
    }
    let (commit, begun) = std::sync::mpsc::channel();
    let (beside, own) = (Arc::clone(&fs), Arc::clone(&inode));
    memory.at_load(move || {
        let slot = beside.slots().claim().expect("a slot is free");
        let thread = begin_commit(&beside);
        beside.sync(&slot, &own).expect("the disk works");
        write(&beside, &slot, &own, 3);
        commit.send(thread).expect("the test waits for it");
    });
    fs.sync(&slot, &other).expect("the disk works");
    let thread = begun.recv().expect("a sync copies bytes");
    thread.join().expect("the commit does not panic");
    fs.sync(&slot, &inode).expect("the disk works");
    let (again, _) = open(Kind::File, memory.bytes(), 9).expect("the log is sound");
    let inode = again.lookup(&again.root(), b"a").expect("it was synced");
    let (slot, mut bytes) = (again.slots().claim().expect("the first slot is free"), [0; 4096]);
    assert_eq!(again.read(&asking(&slot), &inode, 0, &mut bytes), Ok(4096));
    assert!(bytes == [3; 4096], "the file has {}", bytes[0]);
}

#[test]
fn the_planted_fault_in_needs_is_found() {
    use homenode_engine::log::planted::{Planted, plant};
    plant(Some(Planted::NeedsMetOnce));
    assert!(std::panic::catch_unwind(a_name_taken_beside_a_sync).is_ok_and(|survived| !survived));
    plant(None);
}

/// A commit that waits for the sync in the middle of which the caller is.
fn begin_commit(fs: &Arc<SimFs>) -> std::thread::JoinHandle<()> {
    let fs = Arc::clone(fs);
    let commit = std::thread::spawn(move || {
        let slot = fs.slots().claim().expect("a slot is free");
        fs.sync_all(&slot).expect("the disk works");
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!commit.is_finished());
    commit
}
