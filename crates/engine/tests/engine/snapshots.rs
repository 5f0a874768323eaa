//! Snapshots of a durable pool beside threads that change files.

use crate::support::threads::run_all;
use crate::support::{BLOCK, Caller, TestFs, after_power_cut, durable_on, new_file, sized};
use homenode_engine::MemberId;
use homenode_engine::fs::{Error, Inode, XattrMode, fallocate_mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FRAMES: u32 = 256;
const POOL_BLOCKS: u64 = 60_000;
/// Extents of the file: more than a snapshot shows with the file's gate closed.
const EXTENTS: u64 = 20_000;
const CHANGES: u64 = 3000;

type Job = Box<dyn FnOnce() + Send>;

/// All bytes of a file.
fn bytes(fs: &TestFs, inode: &Inode) -> Vec<u8> {
    let caller = Caller::on_node(fs, 0);
    let mut bytes = vec![0; fs.attr(inode).size as usize];
    let read = fs.read(&caller.asking(), inode, 0, &mut bytes);
    assert_eq!(read, Ok(bytes.len()));
    bytes
}

/// Changes the file: a block or some, blocks that go, or all that lies behind some.
fn change(fs: &TestFs, caller: &Caller, inode: &Inode, random: &mut fastrand::Rng) {
    let asking = caller.asking();
    let blocks = fs.attr(inode).size / BLOCK;
    let (at, count) = (random.u64(..blocks), random.u64(1..4));
    let mode = match random.u32(..40) {
        0 => fallocate_mode::COLLAPSE_RANGE,
        1 => fallocate_mode::INSERT_RANGE,
        2..10 => fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE,
        10 => {
            let cut = fs.set_attr(inode, &sized(blocks * BLOCK - 9000));
            return assert!(cut.is_ok());
        }
        _ => {
            let new = vec![random.u8(1..); (count * BLOCK) as usize];
            return assert_eq!(fs.write(&asking, inode, at * BLOCK, &new, false), Ok(new.len()));
        }
    };
    let changed = fs.fallocate(&asking, inode, mode, at * BLOCK, count * BLOCK);
    assert!(matches!(changed, Ok(()) | Err(Error::Invalid)), "{changed:?}");
}

/// Writes one snapshot after the other until it is over.
fn compacting(fs: &Arc<TestFs>, is_over: &Arc<AtomicBool>) -> Job {
    let (fs, is_over) = (Arc::clone(fs), Arc::clone(is_over));
    Box::new(move || {
        let slot = fs.slots().claim().expect("slots are free");
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(fs.compact(&slot), Ok(()));
        }
    })
}

#[test]
fn a_file_that_changes_during_snapshots_is_whole_after_a_power_cut() {
    let fs = Arc::new(durable_on(FRAMES, 1, POOL_BLOCKS));
    let files = ["a", "b"].map(|name| new_file(&fs, name));
    let caller = Caller::on_node(&fs, 0);
    for at in 0..EXTENTS {
        for file in &files {
            let written = fs.write(&caller.asking(), file, at * BLOCK, &[7; BLOCK as usize], false);
            assert_eq!(written, Ok(BLOCK as usize));
        }
    }
    let [file, other] = files;
    let is_over = Arc::new(AtomicBool::new(false));
    let changing: Job = {
        let (fs, file, is_over) = (Arc::clone(&fs), Arc::clone(&file), Arc::clone(&is_over));
        Box::new(move || {
            let (caller, mut random) = (Caller::on_node(&fs, 0), fastrand::Rng::with_seed(7));
            (0..CHANGES).for_each(|_| change(&fs, &caller, &file, &mut random));
            is_over.store(true, Ordering::Relaxed);
        })
    };
    run_all(vec![changing, compacting(&fs, &is_over)]);
    let slot = fs.slots().claim().expect("slots are free");
    assert_eq!(fs.sync_all(&slot), Ok(()));
    let before = [&file, &other].map(|inode| bytes(&fs, inode));
    let opened = after_power_cut(&fs, FRAMES, 1, POOL_BLOCKS);
    opened.check_invariants();
    for (name, before) in ["a", "b"].into_iter().zip(before) {
        let inode = opened.lookup(&opened.root(), name.as_bytes()).expect("it is durable");
        assert!(bytes(&opened, &inode) == before, "{name} has other bytes");
    }
}

/// A name that is there all the time is in each snapshot; others are as the last change left them.
#[test]
fn a_directory_that_changes_during_snapshots_keeps_its_names_after_a_power_cut() {
    /// Several times as many as a snapshot shows with the directory locked.
    const NAMES: u64 = 5000;
    let fs = Arc::new(durable_on(FRAMES, 1, POOL_BLOCKS));
    let name = |nth: u64| format!("name {nth}");
    for nth in 0..NAMES {
        new_file(&fs, &name(nth));
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let changing: Job = {
        let (fs, is_over) = (Arc::clone(&fs), Arc::clone(&is_over));
        Box::new(move || {
            let (root, mut random) = (fs.root(), fastrand::Rng::with_seed(7));
            for _ in 0..4 * CHANGES {
                // Those with even numbers stay.
                let nth = random.u64(..NAMES / 2) * 2 + 1;
                match fs.unlink(&root, name(nth).as_bytes()) {
                    Ok(_) => {}
                    Err(Error::NotFound) => drop(new_file(&fs, &name(nth))),
                    Err(error) => panic!("{error}"),
                }
            }
            is_over.store(true, Ordering::Relaxed);
        })
    };
    run_all(vec![changing, compacting(&fs, &is_over)]);
    let slot = fs.slots().claim().expect("slots are free");
    assert_eq!(fs.sync_all(&slot), Ok(()));
    let names = |fs: &TestFs| {
        let is_there = |nth: &u64| fs.lookup(&fs.root(), name(*nth).as_bytes()).is_ok();
        (0..NAMES).filter(is_there).collect::<Vec<u64>>()
    };
    let before = names(&fs);
    assert!(before.len() as u64 > NAMES / 2);
    let opened = after_power_cut(&fs, FRAMES, 1, POOL_BLOCKS);
    opened.check_invariants();
    assert!(names(&opened) == before, "other names are there");
}

/// A ring's thread answers who asks for attributes: it must not wait for the disk.
#[test]
fn attributes_are_read_while_a_snapshot_waits_for_a_disk() {
    const WRITE: Duration = Duration::from_millis(300);
    let fs = Arc::new(durable_on(FRAMES, 1, POOL_BLOCKS));
    let file = new_file(&fs, "a");
    // As much as the end of the log keeps in memory.
    for nth in 0..16 {
        let name = format!("user.{nth}");
        let set = fs.set_xattr(&file, name.as_bytes(), &[3; 65_000], XattrMode::Either, false);
        assert_eq!(set, Ok(()));
    }
    let slot = fs.slots().claim().expect("slots are free");
    assert_eq!(fs.sync_all(&slot), Ok(()));
    let disk = |delay| {
        fs.pool()
            .memory()
            .below()
            .trouble(MemberId(0), |trouble| trouble.delay = delay)
    };
    disk(WRITE);
    let longest = std::thread::scope(|scope| {
        let compacting = scope.spawn(|| fs.compact(&fs.slots().claim().expect("slots are free")));
        let mut longest = Duration::ZERO;
        while !compacting.is_finished() {
            let start = Instant::now();
            assert_eq!(fs.attr(&file).ino, file.ino());
            assert!(fs.xattr(&file, b"user.3").is_ok());
            longest = longest.max(start.elapsed());
        }
        assert_eq!(compacting.join().expect("it does not panic"), Ok(()));
        longest
    });
    disk(Duration::ZERO);
    assert!(longest < WRITE / 2, "{longest:?}");
}
