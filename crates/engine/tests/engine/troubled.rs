//! Disks below a cache that are slow, fail, or are gone for a while: nobody waits for ever, others go on, and nothing that was acknowledged is lost.
//!
//! The pool is durable. Its log and the files of callers on node 0 lie on disk 0; disk 1 has those of callers on node 1, and the trouble.

use crate::support::{BLOCK, Caller, POISON, TestFs, Trouble, after_power_cut, durable_on, new_file, pattern, tend};
use homenode_engine::fs::{Error, Inode, RenameMode, Result, fallocate_mode as mode};
use homenode_engine::pool::PoolError;
use homenode_engine::{MemberId, Memory, NodeId};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Frames on each of two nodes.
const FRAMES: u32 = 64;
/// Blocks of each disk.
const BLOCKS: u64 = 4096;
const ALL: Range<u64> = 0..BLOCKS;
const NONE: Range<u64> = 0..0;
const SOUND: MemberId = MemberId(0);
const TROUBLED: MemberId = MemberId(1);
/// Far more than anything takes that waits for no disk.
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    fs: TestFs,
}

impl World {
    fn new() -> Arc<Self> {
        let fs = durable_on(FRAMES, 2, BLOCKS);
        Arc::new(Self { fs })
    }

    fn trouble(&self, change: impl FnOnce(&mut Trouble)) {
        self.fs.pool().memory().below().trouble(TROUBLED, change);
    }

    /// A file of so many blocks, each with its own bytes, on a node's disk.
    fn file(&self, name: &str, node: u16, blocks: u64) -> Arc<Inode> {
        let inode = new_file(&self.fs, name);
        let caller = Caller::on_node(&self.fs, node);
        for at in 0..blocks {
            self.write(&caller, &inode, at, 0).expect("the disk works");
        }
        assert_eq!(self.fs.map(&inode), [(NodeId(node), blocks * BLOCK)]);
        inode
    }

    fn write(&self, caller: &Caller, inode: &Inode, at: u64, version: u64) -> Result<usize> {
        let bytes = bytes(inode, at, version);
        self.fs.write(&caller.asking(), inode, at * BLOCK, &bytes, false)
    }

    fn read(&self, caller: &Caller, inode: &Inode, at: u64) -> Result<Vec<u8>> {
        let mut read = vec![0xaa; BLOCK as usize];
        let count = self.fs.read(&caller.asking(), inode, at * BLOCK, &mut read)?;
        assert_eq!(count, read.len());
        let poison = POISON.to_le_bytes();
        let is_fresh = read.chunks_exact(8).any(|word| word == poison);
        assert!(!is_fresh, "block {at} shows what nobody wrote");
        Ok(read)
    }

    fn check(&self, inode: &Inode, blocks: Range<u64>, version: u64) {
        let caller = Caller::on_node(&self.fs, 0);
        for at in blocks {
            let read = self.read(&caller, inode, at).expect("the disk works");
            assert!(read == bytes(inode, at, version), "block {at} has other bytes");
        }
    }

    fn sync(&self, inode: &Inode) -> Result<()> {
        let slot = self.fs.slots().claim().expect("slots are free");
        self.fs.sync(&slot, inode)
    }

    fn sync_all(&self) -> Result<()> {
        let slot = self.fs.slots().claim().expect("slots are free");
        self.fs.sync_all(&slot)
    }

    fn dirty(&self) -> u64 {
        let status = self.fs.pool().memory().cache_status();
        status.slices.iter().map(|slice| slice.dirty_bytes / 4096).sum()
    }

    /// Makes a file durable that lies on the troubled disk; where that was written.
    fn places_of(&self, inode: &Inode) -> Vec<Range<u64>> {
        let memory = self.fs.pool().memory().below();
        self.sync_all().expect("both disks work");
        for at in 0..self.fs.attr(inode).size / BLOCK {
            self.write(&Caller::on_node(&self.fs, 1), inode, at, 0)
                .expect("the pool has room");
        }
        memory.take_written(TROUBLED);
        self.sync(inode).expect("the disk works");
        memory.take_written(TROUBLED)
    }

    /// Has other blocks take all frames: those of a file that is larger than the cache.
    fn evict(&self, other: &Inode, blocks: u64) {
        assert!(blocks > 2 * u64::from(FRAMES));
        // Twice: what is used once goes first.
        (0..2).for_each(|_| self.check(other, 0..blocks, 0));
    }
}

fn bytes(inode: &Inode, at: u64, version: u64) -> Vec<u8> {
    pattern::bytes(inode.ino().0 << 40 | version << 32 | at, BLOCK as usize)
}

/// Runs `act` beside, and fails when it does not end.
pub(crate) fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = channel();
    thread::spawn(move || done.send(act()));
    let result = is_done.recv_timeout(PATIENCE);
    result.unwrap_or_else(|_| panic!("{what} does not end, or panicked"))
}

#[test]
fn commits_that_fail_do_not_fill_the_log() {
    let world = World::new();
    let small: Vec<_> = (0..8).map(|nth| world.file(&format!("small{nth}"), 0, 4)).collect();
    let stuck: Vec<_> = (0..8).map(|nth| world.file(&format!("stuck{nth}"), 1, 2)).collect();
    world.sync_all().expect("both disks work");
    world.trouble(|trouble| trouble.unwritten = ALL);
    let [sound, troubled] = [0, 1].map(|node| Caller::on_node(&world.fs, node));
    let before = world.fs.statfs().free;
    for version in 1..200 {
        for (inode, caller) in small
            .iter()
            .map(|inode| (inode, &sound))
            .chain(stuck.iter().map(|inode| (inode, &troubled)))
        {
            world.write(caller, inode, 0, version).expect("it has its place");
        }
        assert_eq!(world.sync_all(), Err(Error::Io));
    }
    let taken = before.saturating_sub(world.fs.statfs().free);
    assert!(taken <= 400, "{taken} blocks became log, of {} written", 199 * 16);
    new_file(&world.fs, "more");
    world.trouble(|trouble| trouble.unwritten = NONE);
    world.sync_all().expect("both disks work");
    let fs = after_power_cut(&world.fs, FRAMES, 2, BLOCKS);
    for name in ["small7", "stuck7", "more"] {
        fs.lookup(&fs.root(), name.as_bytes()).expect("it was settled");
    }
}

#[test]
fn an_unwritable_block_stays_dirty_and_is_reported_until_written() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 300), world.file("file", 1, 40));
    world.sync_all().expect("both disks work");
    let caller = Caller::on_node(&world.fs, 1);
    world.trouble(|trouble| trouble.unwritten = ALL);
    (0..20).for_each(|at| {
        world.write(&caller, &file, at, 1).expect("the write fits into frames");
    });
    for _ in 0..3 {
        assert_eq!(world.sync(&file), Err(Error::Io));
        assert_eq!(world.sync_all(), Err(Error::Io));
        assert_eq!(world.sync(&other), Ok(()), "a file of the other disk");
    }
    assert!(!world.fs.has_failed(), "no store is lost: the log goes on");
    // They are read from frames, whatever others read.
    world.evict(&other, 300);
    world.check(&file, 0..20, 1);
    world.trouble(|trouble| trouble.unwritten = NONE);
    assert_eq!(world.sync(&file), Ok(()));
    assert_eq!(world.sync_all(), Ok(()));
    assert_eq!(world.dirty(), 0);
    world.evict(&other, 300);
    world.check(&file, 0..20, 1);
    world.check(&file, 20..40, 0);
    world.fs.check_invariants();
}

#[test]
fn commits_settle_files_of_a_sound_disk_while_another_disk_takes_no_writes() {
    let world = World::new();
    let overwritten = world.file("overwritten", 0, 40);
    world.sync_all().expect("both disks work");
    world.trouble(|trouble| trouble.unwritten = ALL);
    let stuck = world.file("stuck", 1, 20);
    assert_eq!(world.sync_all(), Err(Error::Io));
    let (large, small) = (world.file("large", 0, 300), world.file("small", 0, 2));
    let caller = Caller::on_node(&world.fs, 0);
    for at in 0..40 {
        world.write(&caller, &overwritten, at, 1).expect("the disk works");
    }
    assert_eq!(world.sync_all(), Err(Error::Io));
    assert!(!world.fs.has_failed(), "no store is lost: the log goes on");
    let writes = || world.fs.pool().memory().below().requests(SOUND)[1];
    let before = writes();
    for _ in 0..3 {
        assert_eq!(world.sync_all(), Err(Error::Io));
    }
    assert_eq!(writes(), before, "commits without a change write to the sound disk");
    let later = world.file("later", 0, 2);

    world.trouble(|trouble| trouble.unwritten = NONE);
    let opened = World {
        fs: after_power_cut(&world.fs, FRAMES, 2, BLOCKS),
    };
    for (name, old, blocks, version) in [
        (&b"overwritten"[..], &overwritten, 40, 1),
        (b"large", &large, 300, 0),
        (b"small", &small, 2, 0),
    ] {
        let inode = opened.fs.lookup(&opened.fs.root(), name).expect("the name was settled");
        assert_eq!(inode.ino(), old.ino());
        assert_eq!(opened.fs.attr(&inode).size, blocks * BLOCK);
        opened.check(&inode, 0..blocks, version);
    }
    for (name, unsettled) in [(&b"stuck"[..], &stuck), (b"later", &later)] {
        if let Ok(inode) = opened.fs.lookup(&opened.fs.root(), name) {
            assert_eq!((inode.ino(), opened.fs.attr(&inode).size), (unsettled.ino(), 0));
        }
    }
    opened.fs.check_invariants();
}

/// The log needs the bytes of the file that took another one's name.
#[test]
fn a_collapse_beside_a_file_that_cannot_be_written_changes_nothing() {
    let world = World::new();
    let [old, new] = ["old", "new"].map(|name| world.file(name, 1, 16));
    let own = world.file("own", 0, 4);
    let places = world.places_of(&new);
    for at in 0..16 {
        let written = world.write(&Caller::on_node(&world.fs, 1), &new, at, 1);
        written.expect("an overwrite adds nothing");
    }
    let unwritten = places.iter().map(|place| place.start).min().expect("it has blocks");
    world.trouble(|trouble| trouble.unwritten = unwritten..unwritten + 1);
    let root = world.fs.root();
    let renamed = world.fs.rename(&root, b"new", &root, b"old", RenameMode::Replace);
    renamed.expect("the log goes on");
    let caller = Caller::on_node(&world.fs, 0);
    let collapsed = world
        .fs
        .fallocate(&caller.asking(), &own, mode::COLLAPSE_RANGE, BLOCK, BLOCK);
    assert_eq!(collapsed, Err(Error::Io));
    assert!(!world.fs.has_failed(), "the log goes on");
    world.check(&own, 0..4, 0);
    drop(old);
    world.fs.unlink(&root, b"old").expect("it can be removed");
    world.fs.unpin(&new, 1);
    drop(new);
    world.sync(&own).expect("nothing is in its way");
    world.fs.check_invariants();
}

#[test]
fn only_failing_blocks_stay_dirty() {
    let world = World::new();
    let file = world.file("file", 1, 40);
    let places = world.places_of(&file);
    let longest = places.iter().max_by_key(|blocks| blocks.end - blocks.start);
    let bad = longest
        .map(|blocks| (blocks.start + blocks.end) / 2)
        .expect("the file has places");
    world.trouble(|trouble| trouble.unwritten = bad..bad + 1);
    let caller = Caller::on_node(&world.fs, 1);
    (0..40).for_each(|at| {
        world.write(&caller, &file, at, 1).expect("the write fits into frames");
    });
    assert_eq!(world.dirty(), 40);
    let mut syncs = 0;
    while world.dirty() > 1 {
        assert_eq!(world.sync(&file), Err(Error::Io));
        syncs += 1;
        assert!(syncs < 10, "{} blocks are dirty after {syncs} syncs", world.dirty());
    }
    assert_eq!(world.sync(&file), Err(Error::Io), "one block is still unwritten");
    world.trouble(|trouble| trouble.unwritten = NONE);
    assert_eq!(world.sync(&file), Ok(()));
    assert_eq!(world.dirty(), 0);
}

#[test]
fn a_drain_moves_all_but_the_blocks_that_cannot_be_read() {
    let world = World::new();
    let (bad, good) = (world.file("bad", 1, 16), world.file("good", 1, 16));
    let large = world.file("large", 0, 200);
    let places = world.places_of(&bad);
    let block = places.first().expect("the file has places").start;
    world.sync_all().expect("both disks work");
    world.evict(&large, 200);
    world.trouble(|trouble| trouble.unread = block..block + 1);
    let drain = || world.fs.drain(TROUBLED, &mut |_, _| {});
    for _ in 0..2 {
        assert_eq!(drain(), Err(PoolError::Unread(TROUBLED, 1, bad.ino().0)));
        assert_eq!(world.fs.map(&good), [(NodeId(0), 16 * BLOCK)]);
        assert_eq!(world.fs.map(&bad), [(NodeId(0), 15 * BLOCK), (NodeId(1), BLOCK)]);
    }
    world.check(&good, 0..16, 0);
    // The rest can go when nobody wants the block any more.
    world.fs.unlink(&world.fs.root(), b"bad").expect("it is there");
    world.fs.unpin(&bad, 1);
    assert_eq!(drain(), Ok(0));
    world.fs.check_invariants();
}

#[test]
fn a_drain_that_another_disk_holds_up_says_so_and_succeeds_behind_a_drain_of_that_disk() {
    const DRAINED: MemberId = MemberId(2);
    let world = World {
        fs: durable_on(FRAMES, 3, BLOCKS),
    };
    let (moved, stuck) = (world.file("moved", 2, 40), world.file("stuck", 1, 16));
    let places = world.places_of(&stuck);
    let bad = places.first().expect("the file has places").start;
    world.sync_all().expect("all disks work");
    world.trouble(|trouble| trouble.unwritten = bad..bad + 1);
    let caller = Caller::on_node(&world.fs, 1);
    for at in 0..16 {
        world.write(&caller, &stuck, at, 1).expect("it has its place");
    }
    let drain = |member| world.fs.drain(member, &mut |_, _| {});
    assert_eq!(drain(DRAINED), Err(PoolError::Unsettled(DRAINED)));
    world.check(&moved, 0..40, 0);
    assert_eq!(drain(TROUBLED), Ok(16 * BLOCK));
    assert_eq!(world.sync_all(), Ok(()), "nobody wants the bad block");
    drain(DRAINED).expect("the others take writes");
    world.check(&moved, 0..40, 0);
    world.check(&stuck, 0..16, 1);
    world.fs.check_invariants();
}

#[test]
fn a_drain_whose_log_fails_names_no_member() {
    let world = World {
        fs: durable_on(FRAMES, 3, BLOCKS),
    };
    let moved = world.file("moved", 2, 40);
    world.sync_all().expect("all disks work");
    world.file("unsaved", 1, 40);
    world.trouble(|trouble| trouble.fails_flush = true);
    let drained = world.fs.drain(MemberId(2), &mut |_, _| {});
    assert_eq!(drained, Err(PoolError::Log));
    world.check(&moved, 0..40, 0);
}

#[test]
fn failures_at_blocks_of_other_files_are_not_reported() {
    let world = World::new();
    // More than goes into the log.
    let (bad, good) = (world.file("bad", 1, 16), world.file("good", 1, 16));
    let places = world.places_of(&bad);
    let bad_blocks = places.first().expect("the file has places").clone();
    world.trouble(|trouble| trouble.unwritten = bad_blocks);
    let caller = Caller::on_node(&world.fs, 1);
    (0..16).for_each(|at| {
        world.write(&caller, &bad, at, 1).expect("the write fits into frames");
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let syncer = {
        let (world, bad, is_over) = (Arc::clone(&world), Arc::clone(&bad), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(world.sync(&bad), Err(Error::Io));
                assert!(world.fs.pool().memory().persist_all(TROUBLED).is_err());
            }
        })
    };
    for version in 1..200 {
        (0..16).for_each(|at| {
            world.write(&caller, &good, at, version).expect("the pool has room");
        });
        assert_eq!(world.sync(&good), Ok(()), "in round {version}");
    }
    is_over.store(true, Ordering::Relaxed);
    syncer.join().expect("the syncing thread does not panic");
}

#[test]
fn writers_fail_and_others_continue_when_the_disk_is_gone_and_all_frames_are_dirty() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 600), world.file("file", 1, 600));
    world.sync_all().expect("both disks work");
    world.trouble(|trouble| (trouble.unwritten, trouble.unread) = (ALL, ALL));
    // First writes, and overwrites of what is in frames, until nothing is taken any more.
    let writers = (0..4_u64).map(|number| {
        let (world, file) = (Arc::clone(&world), Arc::clone(&file));
        thread::spawn(move || {
            let caller = Caller::on_node(&world.fs, 1);
            let new = new_file(&world.fs, &format!("new {number}"));
            let mut kept = Vec::new();
            for at in 0.. {
                let began = Instant::now();
                match world.write(&caller, &new, at, 1) {
                    Ok(_) => kept.push(at),
                    Err(error) => {
                        assert_eq!(error, Error::Io);
                        assert!(began.elapsed() < PATIENCE / 3, "told after {:?}", began.elapsed());
                        break;
                    }
                }
                if let Ok(count) = world.write(&caller, &file, 599 - at % 100, 0) {
                    assert_eq!(count, BLOCK as usize);
                }
                assert!(at < 10_000, "the disk takes writes for ever");
            }
            // A few go into the log, which lies on the other disk.
            assert!(world.sync(&new) == Err(Error::Io) || kept.len() <= 8);
            (new, kept)
        })
    });
    let writers: Vec<_> = writers.collect();
    let written: Vec<(Arc<Inode>, Vec<u64>)> = in_time("a writer", || {
        let joined = writers.into_iter().map(|writer| writer.join().expect("told, not more"));
        joined.collect()
    });
    assert!(!world.fs.has_failed());
    // Of the other disk all goes on: what is not in frames is read, and new bytes are written and made durable.
    {
        let (world, other) = (Arc::clone(&world), Arc::clone(&other));
        in_time("the other disk", move || {
            let caller = Caller::on_node(&world.fs, 0);
            for round in 0..3 {
                world.evict(&other, 600);
                let new = new_file(&world.fs, &format!("beside {round}"));
                for at in 0..300 {
                    world.write(&caller, &new, at, 0).expect("its disk works");
                }
                assert_eq!(world.sync(&new), Ok(()));
                world.check(&new, 0..300, 0);
            }
        });
    }
    world.trouble(|trouble| (trouble.unwritten, trouble.unread) = (NONE, NONE));
    assert_eq!(world.sync_all(), Ok(()), "the disk works again");
    assert_eq!(world.dirty(), 0);
    world.evict(&other, 600);
    assert!(written.iter().any(|(_, kept)| kept.len() > 10), "too few writes");
    for (new, kept) in &written {
        for at in kept {
            world.check(new, *at..at + 1, 1);
        }
    }
    world.check(&file, 0..600, 0);
    world.fs.check_invariants();
}

#[test]
fn writers_write_back_before_the_dirty_limit_blocks_them() {
    let world = World {
        fs: durable_on(FRAMES, 1, BLOCKS),
    };
    let (file, caller) = (new_file(&world.fs, "file"), Caller::on_node(&world.fs, 0));
    // A quarter of the frames is the log's, and of the others three of four may be dirty.
    let most = u64::from(FRAMES) * 9 / 16;
    let writes = || world.fs.pool().memory().below().requests(SOUND)[1];
    let before = writes();
    let mut levels = (0..1000).map(|at| {
        let dirty = world.dirty();
        world.write(&caller, &file, at, 0).expect("the disk works");
        (dirty, writes() > before)
    });
    let first = levels.find(|(_, is_written)| *is_written).expect("they do not fit").0;
    assert!(
        (most / 2 + 1..most - 4).contains(&first),
        "{first} of {most} were dirty"
    );
    assert!(levels.all(|(dirty, _)| dirty <= most));
    world.check(&file, 0..1000, 0);
}

#[test]
fn readers_of_more_than_fits_progress_with_each_disk_read() {
    const READERS: u64 = 16;
    const EACH: u64 = 200;
    let world = Arc::new(World {
        fs: durable_on(FRAMES, 1, 2 * BLOCKS),
    });
    let files: Vec<_> = (0..READERS)
        .map(|number| world.file(&format!("{number}"), 0, EACH))
        .collect();
    world.sync_all().expect("the disk works");
    world
        .fs
        .pool()
        .memory()
        .below()
        .trouble(SOUND, |trouble| trouble.delay = Duration::from_micros(100));
    let before = world.fs.pool().memory().below().requests(SOUND)[0];
    in_time("a reader", {
        let world = Arc::clone(&world);
        move || {
            thread::scope(|scope| {
                for file in &files {
                    scope.spawn(|| {
                        let caller = Caller::on_node(&world.fs, 0);
                        let mut read = vec![0; (EACH * BLOCK) as usize];
                        let count = world.fs.read(&caller.asking(), file, 0, &mut read);
                        assert_eq!(count, Ok(read.len()));
                        let expected: Vec<u8> = (0..EACH).flat_map(|at| bytes(file, at, 0)).collect();
                        assert!(read == expected);
                    });
                }
            });
        }
    });
    let reads = world.fs.pool().memory().below().requests(SOUND)[0] - before;
    assert!(
        reads <= 2 * READERS * EACH,
        "{reads} reads of {} blocks",
        READERS * EACH
    );
}

#[test]
fn a_failed_read_is_reported_to_all_waiters_without_bytes() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 300), world.file("file", 1, 40));
    world.sync_all().expect("both disks work");
    world.evict(&other, 300);
    world.trouble(|trouble| (trouble.unread, trouble.delay) = (ALL, Duration::from_millis(300)));
    let reads = || world.fs.pool().memory().below().requests(TROUBLED)[0];
    let before = reads();
    let readers = (0..8).map(|_| {
        let (world, file) = (Arc::clone(&world), Arc::clone(&file));
        thread::spawn(move || world.read(&Caller::on_node(&world.fs, 1), &file, 7).map(|_| ()))
    });
    let readers: Vec<_> = readers.collect();
    let results: Vec<_> = readers.into_iter().map(|reader| reader.join().expect("told")).collect();
    assert!(results.iter().all(|result| *result == Err(Error::Io)), "{results:?}");
    let requests = reads() - before;
    assert!(requests <= 3, "{requests} requests, one after the other");
    world.trouble(|trouble| *trouble = Trouble::default());
    world.check(&file, 0..40, 0);
}

#[test]
fn a_hanging_disk_delays_no_user_of_other_disks() {
    type Job = fn(&World, &Inode, &Caller, usize);
    let world = World::new();
    let (other, file) = (world.file("other", 0, 600), world.file("file", 1, 600));
    world.sync_all().expect("both disks work");
    world.evict(&other, 600);
    world.trouble(|trouble| trouble.hangs = true);
    // One reads, two write more than there are frames, one syncs, one tends the cache.
    let jobs: [Job; 5] = [
        |world, file, caller, _| drop(world.read(caller, file, 3)),
        |world, _, caller, number| write_new(world, caller, number),
        |world, _, caller, number| write_new(world, caller, number),
        |world, file, caller, _| {
            world.write(caller, file, 590, 0).expect("a whole block is not read");
            assert_eq!(world.sync(file), Ok(()));
        },
        |world, _, _, _| (0..100).for_each(|_| tend(&world.fs)),
    ];
    let threads = jobs.into_iter().enumerate().map(|(number, job)| {
        let (world, file) = (Arc::clone(&world), Arc::clone(&file));
        thread::spawn(move || job(&world, &file, &Caller::on_node(&world.fs, 1), number))
    });
    let threads: Vec<_> = threads.collect();
    thread::sleep(Duration::from_millis(200));
    let waiting = threads.iter().filter(|thread| !thread.is_finished()).count();
    assert!(waiting >= 3, "{waiting} threads wait for the disk");
    {
        let (world, other) = (Arc::clone(&world), Arc::clone(&other));
        in_time("the other disk", move || {
            let caller = Caller::on_node(&world.fs, 0);
            world.evict(&other, 600);
            let new = new_file(&world.fs, "beside");
            for at in 0..20 {
                world.write(&caller, &new, at, 0).expect("its disk works");
            }
            world.evict(&other, 600);
            world.check(&new, 0..20, 0);
        });
    }
    world.trouble(|trouble| trouble.hangs = false);
    for thread in threads {
        in_time("a thread that the disk kept", move || {
            thread.join().expect("the disk works");
        });
    }
    assert_eq!(world.sync_all(), Ok(()));
    world.check(&file, 0..600, 0);
    world.fs.check_invariants();
}

fn write_new(world: &World, caller: &Caller, number: usize) {
    let new = new_file(&world.fs, &format!("new {number}"));
    for at in 0..400 {
        world.write(caller, &new, at, 0).expect("the disk works again");
    }
    world.check(&new, 0..400, 0);
}

#[test]
fn a_whole_block_can_be_written_while_it_is_read() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 300), world.file("file", 1, 8));
    world.sync_all().expect("both disks work");
    world.evict(&other, 300);
    world.trouble(|trouble| trouble.hangs = true);
    let reader = {
        let (world, file) = (Arc::clone(&world), Arc::clone(&file));
        thread::spawn(move || {
            let caller = Caller::on_node(&world.fs, 0);
            let read = world.read(&caller, &file, 2).expect("the disk works");
            assert!(read == bytes(&file, 2, 0) || read == bytes(&file, 2, 1));
        })
    };
    thread::sleep(Duration::from_millis(50));
    {
        let (world, file) = (Arc::clone(&world), Arc::clone(&file));
        in_time("the write", move || {
            let caller = Caller::on_node(&world.fs, 1);
            assert_eq!(world.write(&caller, &file, 2, 1), Ok(BLOCK as usize));
            world.check(&file, 2..3, 1);
        });
    }
    world.trouble(|trouble| trouble.hangs = false);
    in_time("the reader", move || reader.join().expect("it reads one or the other"));
    world.check(&file, 2..3, 1);
    assert_eq!(world.sync(&file), Ok(()));
    world.evict(&other, 300);
    world.check(&file, 2..3, 1);
    world.fs.check_invariants();
}

#[test]
fn a_flush_that_fails_ends_the_log() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 4), world.file("file", 1, 40));
    world.trouble(|trouble| trouble.fails_flush = true);
    assert_eq!(world.sync(&file), Err(Error::Io));
    assert!(world.fs.has_failed(), "the log must have failed");
    world.trouble(|trouble| trouble.fails_flush = false);
    for file in [&file, &other] {
        assert_eq!(world.sync(file), Err(Error::Io), "which of it is not known");
    }
    let caller = Caller::on_node(&world.fs, 0);
    assert_eq!(world.write(&caller, &other, 0, 1), Err(Error::ReadOnly));
    world.check(&other, 0..4, 0);
}

#[test]
fn removing_an_unwritable_file_frees_its_frames() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 4), world.file("file", 1, 40));
    world.trouble(|trouble| trouble.unwritten = ALL);
    assert_eq!(world.sync_all(), Err(Error::Io));
    world.fs.unlink(&world.fs.root(), b"file").expect("the name exists");
    world.fs.unpin(&file, 1);
    drop(file);
    assert_eq!(world.sync_all(), Ok(()), "a removed file's bytes were written");
    assert_eq!(world.dirty(), 0);
    assert_eq!(world.sync(&other), Ok(()));
    // Its blocks are given out again.
    world.trouble(|trouble| trouble.unwritten = NONE);
    let again = world.file("again", 1, BLOCKS - 600);
    assert_eq!(world.sync(&again), Ok(()));
    world.check(&again, 0..BLOCKS - 600, 0);
    world.fs.check_invariants();
}

#[test]
fn unwritable_dirty_bytes_are_drained_to_another_disk() {
    let world = World::new();
    let (other, file) = (world.file("other", 0, 300), world.file("file", 1, 300));
    world.sync_all().expect("both disks work");
    world.trouble(|trouble| trouble.unwritten = ALL);
    let caller = Caller::on_node(&world.fs, 1);
    for at in 0..20 {
        world.write(&caller, &file, at * 7, 1).expect("it fits into frames");
    }
    assert_eq!(world.sync(&file), Err(Error::Io));
    assert_eq!(world.fs.drain(TROUBLED, &mut |_, _| {}), Ok(300 * BLOCK));
    assert_eq!(world.sync(&file), Ok(()), "the file is on the sound disk");
    assert_eq!(world.sync_all(), Ok(()));
    world.evict(&other, 300);
    for at in 0..300 {
        world.check(&file, at..at + 1, u64::from(at.is_multiple_of(7) && at < 140));
    }
    let requests = world.fs.pool().memory().below().requests(SOUND);
    assert!(requests[1] > 0 && requests[2] > 0, "{requests:?}");
    world.fs.check_invariants();
}

/// More stretches of one file than a sync lists: all bytes of one disk are made durable then, and those of the other one by one.
#[test]
fn a_sync_of_very_many_stretches_makes_all_of_them_durable() {
    const STRETCHES: u64 = 66_000;
    const DISK_BLOCKS: u64 = 36_000;
    const MANY: u32 = 1024;
    let world = World {
        fs: durable_on(MANY, 2, DISK_BLOCKS),
    };
    let file = new_file(&world.fs, "file");
    let callers = [0, 1].map(|node| Caller::on_node(&world.fs, node));
    let write = |at: u64, version| {
        let caller = &callers[(at % 2) as usize];
        world
            .write(caller, &file, at, version)
            .expect("the disk works and has room");
    };
    // No two of them lie side by side: each is a stretch.
    (0..STRETCHES).for_each(|at| write(at, 0));
    world.sync_all().expect("both disks work");
    let later = [
        0,
        1,
        2,
        30_001,
        65_534,
        65_535,
        65_536,
        65_537,
        STRETCHES - 2,
        STRETCHES - 1,
    ];
    later.iter().for_each(|at| write(*at, 1));
    assert!(world.dirty() >= later.len() as u64);
    assert_eq!(world.sync(&file), Ok(()));
    let opened = World {
        fs: after_power_cut(&world.fs, MANY, 2, DISK_BLOCKS),
    };
    let inode = opened.fs.lookup(&opened.fs.root(), b"file").expect("it was settled");
    later.iter().for_each(|at| opened.check(&inode, *at..at + 1, 1));
    opened.check(&inode, 100..200, 0);

    // A block that cannot be written keeps the sync from succeeding, on each of the disks. All are dirty: of few places only those are looked at.
    for disk in [SOUND, TROUBLED] {
        (0..STRETCHES).for_each(|at| write(at, 2));
        let memory = world.fs.pool().memory().below();
        memory.trouble(disk, |trouble| trouble.unwritten = 0..DISK_BLOCKS);
        assert_eq!(world.sync(&file), Err(Error::Io), "{disk}");
        memory.trouble(disk, |trouble| trouble.unwritten = NONE);
        assert_eq!(world.sync(&file), Ok(()));
    }
}
