//! A cache over a disk that counts its requests.

mod begun;
mod gather;
mod tail;
mod together;

use super::*;
use crate::CpuId;
use crate::fs::placement::tests::{NoTime, ROOT, machine};
use crate::fs::{Asking, Fs, NewInode};
use crate::pool::MemberKind;
use crate::{FrameWrite, Transfer};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

const FRAMES: MemberId = MemberId(2048);
/// Blocks of a disk beside others.
const DISK_BLOCKS: usize = 16_384;

const NEW: NewInode = NewInode::of_root(0o100_644);

/// Bytes of frames and of a disk, which tells what was asked of it.
#[derive(Clone, Debug)]
struct TestDisk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    frames: Mutex<Vec<u8>>,
    disk: Mutex<Vec<u8>>,
    /// First block and number of blocks of each read.
    reads: Mutex<Vec<(u64, usize)>>,
    writes: Mutex<Vec<(u64, usize)>>,
    /// Number of writes that were made at the same time, each time.
    together: Mutex<Vec<usize>>,
    /// Blocks that cannot be written.
    broken: Mutex<std::ops::Range<u64>>,
    /// Reads that were begun, where the disk has a way for that.
    begun: Option<Mutex<Vec<Fetch>>>,
    /// No read is begun any more.
    is_closed: AtomicBool,
    /// Turns of that disk.
    turns: AtomicU64,
    /// Stretches of adjacent frames in all transfers.
    pieces: AtomicU64,
    /// Blocks that were copied from frame to frame.
    copies: AtomicU64,
    /// Whether some of those reads fail.
    fails: AtomicBool,
    /// Action in the middle of the next write: behind its reading of the frames. The write fails if it does.
    at_write: Mutex<Hook>,
    /// Action in the middle of the next copy.
    at_copy: Mutex<Hook>,
    /// Time that each write takes longer.
    write_delay: Mutex<Duration>,
    /// Blocks that cannot be read.
    unread: Mutex<std::ops::Range<u64>>,
    /// Disk whose reads wait until there is none.
    hung: Mutex<Option<MemberId>>,
    is_answering: parking_lot::Condvar,
    /// Blocks that are being written.
    under_way: Mutex<Vec<u64>>,
}

/// A write of some blocks that is under way until it is dropped, and the only one of each.
struct UnderWay<'a>(&'a Mutex<Vec<u64>>, std::ops::Range<u64>);

impl<'a> UnderWay<'a> {
    fn new(all: &'a Mutex<Vec<u64>>, blocks: std::ops::Range<u64>) -> Self {
        let mut under_way = all.lock();
        assert!(
            under_way.iter().all(|at| !blocks.contains(at)),
            "two writes of {blocks:?}"
        );
        under_way.extend(blocks.clone());
        Self(all, blocks)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().retain(|at| !self.1.contains(at));
    }
}

#[derive(Default)]
struct Hook(Option<Box<dyn FnOnce() -> Result<(), MemoryError> + Send>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}

impl TestDisk {
    fn new(frames: usize, blocks: usize) -> Self {
        Self::with_way(frames, blocks, None)
    }

    fn with_way(frames: usize, blocks: usize, begun: Option<Mutex<Vec<Fetch>>>) -> Self {
        Self(Arc::new(Inner {
            begun,
            is_closed: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            at_write: Mutex::default(),
            at_copy: Mutex::default(),
            write_delay: Mutex::default(),
            unread: Mutex::new(0..0),
            hung: Mutex::default(),
            is_answering: parking_lot::Condvar::new(),
            under_way: Mutex::default(),
            frames: Mutex::new(vec![0x5a; frames * BLOCK_BYTES]),
            disk: Mutex::new(vec![0; blocks * BLOCK_BYTES]),
            reads: Mutex::default(),
            writes: Mutex::default(),
            together: Mutex::default(),
            broken: Mutex::new(0..0),
        }))
    }

    fn with<T>(&self, at: Block, offset: usize, bytes: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        // Slices of the same size, one behind the other.
        let slice = at
            .member()
            .0
            .checked_sub(FRAMES.0)
            .expect("the disk is reached by requests");
        let start = (usize::from(slice) * 1024 + usize::try_from(at.index()).expect("small")) * BLOCK_BYTES + offset;
        act(&mut self.0.frames.lock()[start..start + bytes])
    }

    /// Where a block's bytes lie: disks follow on each other, as far as there is room for more than one.
    fn place(&self, block: Block) -> usize {
        let at = usize::from(block.member().0) * DISK_BLOCKS + usize::try_from(block.index()).expect("small");
        at * BLOCK_BYTES % self.0.disk.lock().len()
    }

    fn take_reads(&self) -> Vec<(u64, usize)> {
        std::mem::take(&mut *self.0.reads.lock())
    }
}

impl Memory for TestDisk {
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        self.with(from, offset, to.len(), |bytes| to.copy_from_slice(bytes));
        Ok(())
    }

    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.with(to, offset, from.len(), |bytes| bytes.copy_from_slice(from));
        Ok(())
    }

    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        self.with(at, offset, bytes, |bytes| bytes.fill(0));
        Ok(())
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        assert_eq!(blocks, 1, "frames are copied one by one");
        self.0.copies.fetch_add(1, Ordering::Relaxed);
        let mut bytes = [0; BLOCK_BYTES];
        self.load(from, 0, &mut bytes)?;
        let act = self.0.at_copy.lock().0.take();
        act.map_or(Ok(()), |act| act())?;
        self.store(to, 0, &bytes)
    }

    fn populate(&self, _: MemberId, _: u64, _: u64) -> Result<(), Starved> {
        Ok(())
    }
}

impl Disks for TestDisk {
    fn is_disk(&self, member: MemberId) -> bool {
        member < FRAMES
    }

    fn read(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        self.0.reads.lock().push((first.index(), frames.len()));
        let mut hung = self.0.hung.lock();
        while *hung == Some(first.member()) {
            self.0.is_answering.wait(&mut hung);
        }
        drop(hung);
        let unread = self.0.unread.lock().clone();
        if unread.start < first.index() + frames.len() as u64 && first.index() < unread.end {
            return Err(MemoryError);
        }
        for (at, frame) in (0..).zip(frames) {
            let start = self.place(first.plus(at));
            let bytes = self.0.disk.lock()[start..start + BLOCK_BYTES].to_vec();
            self.store(*frame, 0, &bytes)?;
        }
        Ok(())
    }

    fn transfer(&self, first: Block, frames: &[Block]) -> Option<Transfer> {
        self.0.begun.as_ref()?;
        let breaks = frames.windows(2).filter(|pair| pair[1] != pair[0].plus(1)).count();
        self.0.pieces.fetch_add(1 + breaks as u64, Ordering::Relaxed);
        let address = |frame: &Block| usize::try_from(frame.to_raw()).expect("64 bits");
        Some(Transfer {
            descriptor: -1,
            offset: first.index() * BLOCK_BYTES as u64,
            pieces: frames.iter().map(|frame| (address(frame), BLOCK_BYTES)).collect(),
            alive: Arc::new(()),
        })
    }

    fn begin_reads(&self, _: MemberId, mut fetches: Vec<Fetch>) -> Vec<Fetch> {
        if let Some(begun) = &self.0.begun
            && !self.0.is_closed.load(Ordering::Relaxed)
        {
            begun.lock().append(&mut fetches);
        }
        fetches
    }

    fn has_reads(&self, _: MemberId) -> bool {
        self.0.begun.as_ref().is_some_and(|begun| !begun.lock().is_empty())
    }

    fn take_reads(&self, member: MemberId, waits: bool, ended: &mut dyn FnMut(Fetch, bool)) {
        let Some(begun) = &self.0.begun else { return };
        if !waits && *self.0.hung.lock() == Some(member) {
            return;
        }
        let turn = self.0.turns.fetch_add(1, Ordering::Relaxed);
        // Those that do not wait find something every other time.
        if !waits && turn.is_multiple_of(2) {
            return;
        }
        let mut begun = begun.lock();
        if begun.is_empty() {
            return;
        }
        let any = usize::try_from(turn).expect("64 bits") * 7919 % begun.len();
        let fetch = begun.swap_remove(any);
        drop(begun);
        let fails = turn % 11 == 10 && self.0.fails.load(Ordering::Relaxed);
        if !fails {
            let transfer = fetch.transfer();
            let first = Block::new(member, transfer.offset / BLOCK_BYTES as u64);
            let frames = transfer
                .pieces
                .iter()
                .map(|(address, _)| Block::from_raw(*address as u64));
            self.read(first, &frames.collect::<Vec<_>>())
                .expect("the disk is sound");
        }
        ended(fetch, !fails);
    }

    fn close_reads(&self, _: MemberId, ended: &mut dyn FnMut(Fetch)) {
        let Some(begun) = &self.0.begun else { return };
        self.0.is_closed.store(true, Ordering::Relaxed);
        std::mem::take(&mut *begun.lock()).into_iter().for_each(ended);
    }

    fn write(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError> {
        self.0.writes.lock().push((first.index(), frames.len()));
        let blocks = first.index()..first.index() + frames.len() as u64;
        let broken = self.0.broken.lock().clone();
        if blocks.clone().any(|at| broken.contains(&at)) {
            return Err(MemoryError);
        }
        let _under_way = UnderWay::new(&self.0.under_way, blocks);
        for (at, frame) in (0..).zip(frames) {
            let start = self.place(first.plus(at));
            let mut bytes = [0; BLOCK_BYTES];
            self.load(*frame, 0, &mut bytes)?;
            let act = self.0.at_write.lock().0.take();
            act.map_or(Ok(()), |act| act())?;
            self.0.disk.lock()[start..start + BLOCK_BYTES].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn writes_at_a_time(&self, _: MemberId) -> usize {
        32
    }

    fn write_each(&self, writes: &mut [FrameWrite<'_>]) {
        std::thread::sleep(*self.0.write_delay.lock());
        self.0.together.lock().push(writes.len());
        for write in writes {
            write.is_written = self.write(write.first, write.frames).is_ok();
        }
    }

    fn flush(&self, _: MemberId) -> Result<(), MemoryError> {
        Ok(())
    }
}

fn index(blocks: u64) -> FrameIndex {
    FrameIndex::new(blocks).expect("the disk is small")
}

/// A cache of `frames` over `disk`, on one node.
fn cached_on(disk: &TestDisk, frames: u32) -> Cached<TestDisk> {
    let slice = SliceOptions {
        member: FRAMES,
        node: NodeId(0),
        frames,
    };
    Cached::new(disk.clone(), &[slice], &[vec![10]])
}

#[test]
fn a_node_takes_idle_frames_of_other_nodes() {
    const FRAMES_OF_EACH: u32 = 1024;
    let disk = TestDisk::new(2 * FRAMES_OF_EACH as usize, 8192);
    let slices = [0, 1].map(|node| SliceOptions {
        member: MemberId(FRAMES.0 + node),
        node: NodeId(node),
        frames: FRAMES_OF_EACH,
    });
    let cached = Cached::new(disk, &slices, &[vec![10, 20], vec![20, 10]]);
    cached.add_disk(MemberId(0), NodeId(0), index(8192));
    let read = |node: u16, at: u64| {
        let block = Block::new(MemberId(0), at);
        cached.fetch(NodeId(node), block, 1).expect("the disk is sound");
    };
    // Twice as much as its own slice has, again and again; the other node wants little.
    for round in 0..20 {
        for at in 0..1600 {
            read(0, at);
        }
        (0..4).for_each(|at| read(1, 4000 + round * 4 + at));
    }
    let status = cached.cache_status();
    assert!(status.slices[1].stolen_bytes > 500 * 4096, "{status:?}");
    assert_eq!(status.slices[0].stolen_bytes, 0, "{status:?}");
    // Most of it stays.
    let here = (0..1600)
        .filter(|at| cached.is_here(Block::new(MemberId(0), *at)))
        .count();
    assert!(here > 1000, "{here} of 1600 are there");
}

#[test]
fn a_miss_waits_for_its_own_slice_and_takes_no_frame_of_another_one() {
    let disk = TestDisk::new(2048, 8192);
    let slices = [0, 1].map(|node| SliceOptions {
        member: MemberId(FRAMES.0 + node),
        node: NodeId(node),
        frames: 1024,
    });
    let cached = Cached::new(disk, &slices, &[vec![10, 20], vec![20, 10]]);
    cached.add_disk(MemberId(0), NodeId(0), index(8192));
    let (cache, _) = cached.disk(MemberId(0)).expect("it is cached");
    for at in 0..10 {
        std::thread::scope(|scope| {
            let space = cache.slices[0].space.lock();
            let reader = scope.spawn(|| cached.fetch(NodeId(0), Block::new(MemberId(0), at), 1));
            std::thread::sleep(Duration::from_millis(5));
            drop(space);
            reader.join().expect("it does not panic").expect("the disk is sound");
        });
    }
    let status = cached.cache_status();
    assert_eq!(status.slices[1].stolen_bytes, 0, "{status:?}");
}

#[test]
fn who_tends_a_slice_interrupts_nobody_while_it_has_room() {
    let cached = cached_on(&TestDisk::new(1024, 8192), 1024);
    cached.add_disk(MemberId(0), NodeId(0), index(8192));
    let epoch = || cached.cache.as_ref().expect("it has one").epochs.now();
    // Whether it has room in the end.
    let tend = || (0..20).fold(false, |_, _| cached.tend_space(0));
    for round in 0..3 {
        let before = epoch();
        for at in 0..2000 {
            let block = Block::new(MemberId(0), 2000 * round + at);
            cached.fetch(NodeId(0), block, 1).expect("the disk is sound");
        }
        assert!(tend());
        let settled = epoch();
        assert!(
            settled >= before + 2,
            "frames that became cool can be taken: {before}, {settled}"
        );
        tend();
        assert_eq!(epoch(), settled);
    }
}

fn asking(slot: &Slot) -> Asking<'_> {
    Asking {
        waits: true,
        slot,
        cpu: CpuId(0),
        node: &|| NodeId(0),
        user: None,
    }
}

fn filesystem_on(disk: TestDisk, frames: u32, blocks: u64) -> (Fs<Cached<TestDisk>, NoTime>, TestDisk) {
    let cached = cached_on(&disk, frames);
    cached.add_disk(MemberId(0), NodeId(0), index(blocks));
    let fs = Fs::new(&machine(NodeId(0)), cached, NoTime, ROOT);
    fs.pool()
        .add(MemberKind::Dram, NodeId(0), blocks)
        .expect("the pool may have a member");
    (fs, disk)
}

#[test]
fn sequential_reads_read_ahead_and_random_reads_do_not() {
    const BLOCKS: u64 = 4096;
    let disk = TestDisk::with_way(8192, 16_384, Some(Mutex::default()));
    let (fs, _) = filesystem_on(disk.clone(), 8192, 16_384);
    let slot = fs.slots().claim().expect("the first slot is free");
    let asking = asking(&slot);
    let file = fs.create(&fs.root(), b"a", NEW).expect("the name is new");
    for at in 0..BLOCKS {
        let written = fs.write(&asking, &file, at * 4096, &[at.to_le_bytes()[0]; 4096], false);
        assert_eq!(written, Ok(4096));
    }
    let other = fs.create(&fs.root(), b"b", NEW).expect("the name is new");
    let evict = |fs: &Fs<Cached<TestDisk>, NoTime>| {
        fs.pool().memory().persist_all(MemberId(0)).expect("the disk is sound");
        for at in 0..10_000 {
            fs.write(&asking, &other, at * 4096, &[1; 4096], false)
                .expect("the pool has room");
        }
        fs.pool().memory().persist_all(MemberId(0)).expect("the disk is sound");
        disk.take_reads();
    };
    let read = |at: u64| {
        let mut bytes = [0; 4096];
        assert_eq!(fs.read(&asking, &file, at * 4096, &mut bytes), Ok(4096));
        assert_eq!(bytes, [at.to_le_bytes()[0]; 4096], "block {at}");
    };
    evict(&fs);
    for at in 0..BLOCKS {
        read(at);
        // One look at a time, as a thread beside.
        fs.pool().memory().tend(0, Duration::ZERO);
    }
    let reads = disk.take_reads();
    let blocks: usize = reads.iter().map(|(_, blocks)| blocks).sum();
    // Few of them were not evicted.
    assert!(
        (BLOCKS - 100..=BLOCKS).contains(&(blocks as u64)),
        "each block is read once: {blocks}"
    );
    assert!(reads.len() < 160, "{} reads", reads.len());
    evict(&fs);
    for turn in 1..500 {
        read(turn * 1237 % BLOCKS);
        fs.pool().memory().tend(0, Duration::ZERO);
    }
    let reads = disk.take_reads();
    assert!(reads.iter().all(|(_, blocks)| *blocks == 1), "{reads:?}");
    fs.check_invariants();
}

#[test]
fn readers_of_a_disk_go_on_while_another_one_never_answers() {
    const FRAMES_OF_CACHE: u32 = 2048;
    const BLOCKS: u64 = 16_384;
    let [sound, hung] = [MemberId(0), MemberId(1)];
    let begun = Some(Mutex::default());
    let disk = TestDisk::with_way(FRAMES_OF_CACHE as usize, usize::try_from(BLOCKS).expect("small"), begun);
    let cached = cached_on(&disk, FRAMES_OF_CACHE);
    for member in [sound, hung] {
        cached.add_disk(member, NodeId(0), index(BLOCKS));
    }
    let free = || cached.cache_status().slices[0].free_bytes / 4096;
    let all = free();
    *disk.0.hung.lock() = Some(hung);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let cached = &cached;
            scope.spawn(move || {
                let first = Block::new(hung, thread * 256);
                // Some read one block, and some as many as there are frames for.
                let blocks = if thread % 4 == 0 { 1 } else { 256 };
                cached.fetch(NodeId(0), first, blocks).expect("it answers in the end");
            });
        }
        // So that the test ends, whatever becomes of it.
        let answer = || {
            *disk.0.hung.lock() = None;
            disk.0.is_answering.notify_all();
        };
        let readers = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (cache, disk) = cached.disk(hung).expect("it is cached");
            let start = std::time::Instant::now();
            while cache.has_turn(disk) {
                assert!(start.elapsed().as_secs() < 60, "the readers read too little");
                std::thread::sleep(Duration::from_millis(1));
            }
            // Nor do reads that nobody waits for take more.
            for first in (0..BLOCKS).step_by(256) {
                cached.fetch_soon(&[(NodeId(0), Block::new(hung, first + 64), 32)], false);
            }
            let start = std::time::Instant::now();
            for first in (0..BLOCKS).step_by(64) {
                let begun = cached.begin_fetch(NodeId(0), Block::new(sound, first), 16);
                cached.end_fetch(begun.expect("there are frames"), true);
                let block = Block::new(sound, first + 32);
                cached.fetch(NodeId(0), block, 8).expect("the disk is sound");
            }
            assert!(start.elapsed().as_secs() < 5, "it took {:?}", start.elapsed());
        }));
        answer();
        readers.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for member in [sound, hung] {
        cached.end_all_reads_of(member);
        let (_, disk) = cached.disk(member).expect("it is cached");
        assert_eq!(disk.reading.load(Ordering::Relaxed), 0);
        cached.remove_disk(member);
    }
    assert_eq!(free(), all);
}

/// A write that is under way may never end.
#[test]
fn a_reader_without_a_frame_does_not_write_to_a_disk_that_is_written_to() {
    const FRAMES_OF_CACHE: u32 = 2048;
    const DIRTY: u64 = 600;
    let [sound, hung] = [MemberId(0), MemberId(1)];
    let disk = TestDisk::new(FRAMES_OF_CACHE as usize, 16_384);
    let cached = cached_on(&disk, FRAMES_OF_CACHE);
    for member in [sound, hung] {
        cached.add_disk(member, NodeId(0), index(16_384));
    }
    assert_eq!(cached.make(NodeId(0), Block::new(hung, 0), DIRTY), DIRTY);
    let writes = || disk.0.writes.lock().len();
    let (answer, answered) = std::sync::mpsc::channel::<()>();
    let hang = move || answered.recv().map_err(|_| MemoryError);
    disk.0.at_write.lock().0 = Some(Box::new(hang));
    std::thread::scope(|scope| {
        scope.spawn(|| cached.save_some_of(cached.disk(hung).expect("it is cached")));
        while writes() == 0 {
            std::thread::yield_now();
        }
        let free = cached.cache_status().slices[0].free_bytes / 4096;
        (0..free).for_each(|at| {
            cached
                .fetch(NodeId(0), Block::new(sound, at), 1)
                .expect("the disk is sound")
        });
        // As a thread that waits for a CPU: what becomes free is not, while it stays.
        let (cache, _) = cached.disk(sound).expect("it is cached");
        let slot = cache.slots.claim().expect("slots are free");
        let inside = slot.stay();
        let reader = scope.spawn(|| cached.fetch(NodeId(0), Block::new(sound, 8000), 1));
        std::thread::sleep(Duration::from_millis(300));
        let (is_waiting, while_waiting) = (!reader.is_finished(), writes());
        drop(inside);
        answer.send(()).expect("the write waits");
        assert_eq!((is_waiting, while_waiting), (true, 1));
        assert_eq!(reader.join().expect("it does not panic"), Ok(()));
    });
}

/// A cache over a disk that is sound and one that takes no writes, with as many dirty blocks of that as it may have, one behind the other.
fn with_unwritable_blocks() -> (Cached<TestDisk>, TestDisk, [MemberId; 2]) {
    const FRAMES_OF_CACHE: u32 = 16_384;
    let members @ [sound, bad] = [MemberId(0), MemberId(1)];
    let disk = TestDisk::new(FRAMES_OF_CACHE as usize, 16_384);
    let cached = cached_on(&disk, FRAMES_OF_CACHE);
    cached.add_disk(sound, NodeId(0), index(60_000));
    cached.add_disk(bad, NodeId(0), index(16_384));
    *disk.0.broken.lock() = 0..8192;
    let dirty = cached.make(NodeId(0), Block::new(bad, 0), 8192);
    assert!(dirty > 4000, "{dirty} blocks");
    (cached, disk, members)
}

#[test]
fn a_reader_passes_many_dirty_frames_of_a_disk_that_takes_no_writes() {
    let (cached, _, [sound, _]) = with_unwritable_blocks();
    let epoch = || cached.cache.as_ref().expect("it has one").epochs.now();
    // Epochs end while a reader waits.
    let waited = (8192..58_000).map(|at| {
        let before = epoch();
        cached
            .fetch(NodeId(0), Block::new(sound, at), 1)
            .expect("the disk is sound");
        epoch() - before
    });
    let longest = waited.max().expect("blocks were read");
    assert!(longest < 300, "{longest} epochs");
}

#[test]
fn a_disk_that_takes_no_writes_has_no_other_one_written_all_the_time() {
    const STORES: usize = 200;
    let (cached, disk, [sound, _]) = with_unwritable_blocks();
    for _ in 0..100 {
        let _ = cached.write_back(0, (0, 1));
    }
    disk.0.writes.lock().clear();
    for _ in 0..STORES {
        cached
            .store(Block::new(sound, 9000), 0, &[7; 8])
            .expect("the disk is sound");
        assert_eq!(cached.write_back(0, (0, 1)), Ok(false));
    }
    assert_eq!(disk.0.writes.lock().len(), 0);
    // Commits try it, and it is written back again once it takes something.
    *disk.0.broken.lock() = 0..0;
    cached
        .persist(Block::new(MemberId(1), 0), 0, 4096)
        .expect("it was mended");
    // A disk each.
    assert_eq!(cached.write_back(0, (0, 2)), Ok(true));
    assert_eq!(cached.write_back(0, (0, 2)), Ok(false));
    assert_eq!(cached.write_back(0, (1, 2)), Ok(true));
}

#[test]
fn a_drain_of_a_disk_reads_it_by_large_requests_beside_the_readers_of_the_file() {
    const BLOCKS: u64 = 1024;
    const MIB_BLOCKS: u64 = 256;
    let (fs, disk) = filesystem_on(TestDisk::new(8192, 2 * DISK_BLOCKS), 8192, DISK_BLOCKS as u64);
    let slot = fs.slots().claim().expect("the first slot is free");
    let file = fs.create(&fs.root(), b"a", NEW).expect("the name is new");
    for at in 0..BLOCKS {
        let written = fs.write(&asking(&slot), &file, at * 4096, &[at.to_le_bytes()[0]; 4096], false);
        assert_eq!(written, Ok(4096));
    }
    let memory = fs.pool().memory();
    memory.add_disk(MemberId(1), NodeId(0), index(DISK_BLOCKS as u64));
    fs.pool()
        .add(MemberKind::Dram, NodeId(0), DISK_BLOCKS as u64)
        .expect("the pool may have a member");
    memory.persist_all(MemberId(0)).expect("the disk is sound");
    let (cache, old) = memory.disk(MemberId(0)).expect("it is cached");
    let mut here = Vec::new();
    old.index.visit(|at, _, _| here.push(at));
    here.into_iter().for_each(|at| cache.forget_frame(old, at));
    let read = |slot: &Slot, at: u64| {
        let mut bytes = [0; 4096];
        assert_eq!(fs.read(&asking(slot), &file, at * 4096, &mut bytes), Ok(4096));
        assert_eq!(bytes, [at.to_le_bytes()[0]; 4096], "block {at}");
    };
    read(&slot, BLOCKS - 1);
    disk.take_reads();
    *disk.0.hung.lock() = Some(MemberId(0));
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| fs.drain(MemberId(0), &mut |_, _| {}));
        while disk.0.reads.lock().is_empty() && !drain.is_finished() {
            std::thread::yield_now();
        }
        let reader = scope.spawn(|| read(&fs.slots().claim().expect("slots are free"), BLOCKS - 1));
        let start = std::time::Instant::now();
        while !reader.is_finished() && start.elapsed().as_secs() < 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let goes_on = reader.is_finished();
        *disk.0.hung.lock() = None;
        disk.0.is_answering.notify_all();
        assert!(goes_on, "a reader waits for the drain");
        assert_eq!(drain.join().expect("it does not panic"), Ok(BLOCKS * 4096));
    });
    let reads = disk.take_reads();
    assert!(reads.len() as u64 <= 2 * BLOCKS / MIB_BLOCKS, "{reads:?}");
    (0..BLOCKS).for_each(|at| read(&slot, at));
    fs.check_invariants();
}

/// A request for many blocks fails as a whole.
#[test]
fn a_failed_read_is_no_error_of_the_sound_blocks_beside() {
    const BAD: u64 = 20;
    let disk = TestDisk::new(1024, 1024);
    let cached = cached_on(&disk, 1024);
    cached.add_disk(MemberId(0), NodeId(0), index(1024));
    let fill = |first, blocks| {
        cached.fill(
            cached.disk(MemberId(0)).expect("it is cached"),
            NodeId(0),
            first,
            blocks,
        )
    };
    *disk.0.unread.lock() = BAD..BAD + 1;
    *disk.0.hung.lock() = Some(MemberId(0));
    std::thread::scope(|scope| {
        let all = scope.spawn(|| fill(0, 40));
        while disk.0.reads.lock().is_empty() {
            std::thread::yield_now();
        }
        let [sound, bad] = [3, BAD].map(|at| scope.spawn(move || fill(at, 1)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!sound.is_finished() && !bad.is_finished(), "they wait for the request");
        *disk.0.hung.lock() = None;
        disk.0.is_answering.notify_all();
        assert_eq!(
            all.join().expect("it does not panic"),
            Ok(()),
            "the first block is sound"
        );
        assert_eq!(sound.join().expect("it does not panic"), Ok(()));
        // It was read with others, and says so when it is read alone.
        let _ = bad.join().expect("it does not panic");
    });
    assert_eq!(fill(BAD, 1), Err(MemoryError));
    assert_eq!(fill(BAD + 1, 10), Ok(()));
    assert!(disk.0.reads.lock().iter().filter(|(_, blocks)| *blocks > 1).count() < 8);
}

/// Nothing that a writer could do makes the disk faster: each look interrupts all CPUs of the process.
#[test]
fn a_writer_whom_a_slow_disk_keeps_back_sleeps_until_it_has_written() {
    const EACH: u64 = 1000;
    let disk = TestDisk::new(1024, 16_384);
    let cached = cached_on(&disk, 1024);
    cached.add_disk(MemberId(0), NodeId(0), index(16_384));
    *disk.0.write_delay.lock() = Duration::from_millis(20);
    let epochs = || {
        let (cache, _) = cached.disk(MemberId(0)).expect("it is cached");
        cache.epochs.now()
    };
    let before = epochs();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cached = &cached;
            scope.spawn(move || {
                for at in thread * EACH..(thread + 1) * EACH {
                    let stored = cached.store(Block::new(MemberId(0), at), 0, &[1; BLOCK_BYTES]);
                    stored.expect("the disk is sound");
                }
            });
        }
    });
    let (epochs, writes) = (epochs() - before, disk.0.writes.lock().len());
    assert!(epochs < 20_000, "{epochs} epochs, {writes} writes");
}
