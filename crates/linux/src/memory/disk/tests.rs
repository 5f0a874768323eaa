//! Requests to disks that files play, and to files.

use super::*;
use crate::driver::Arena;
use crate::memory::durable::MemberFileError;
use crate::memory::played::{Played, file_under, run};
use crate::memory::{Health, NodeMemory};
use crate::process::own_thread;
use homenode_engine::cache::{Cached, SliceOptions};
use homenode_engine::{Memory, MemoryError, NodeId, Transfer};
use homenode_shared::FrameIndex;
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const DISK: MemberId = MemberId(0);
const FRAMES: MemberId = MemberId(2048);
const BLOCKS: u64 = 2048;
const BYTES: u64 = BLOCKS * BLOCK_BYTES as u64;

fn block(index: u64) -> Block {
    Block::new(DISK, index)
}

fn frame(index: u64) -> Block {
    Block::new(FRAMES, index)
}

fn open(path: &Path) -> MemberFile {
    MemberFile::open(path).and_then(MemberFile::direct).unwrap()
}

/// Memory of a disk and of frames, which hold different bytes.
fn memory(path: &Path) -> NodeMemory {
    let memory = NodeMemory::new();
    memory.add(FRAMES, NodeId(0), BYTES).unwrap();
    for first in (0..BLOCKS).step_by(512) {
        memory.populate(FRAMES, first, 512).unwrap();
    }
    memory.attach_disk(DISK, open(path)).unwrap();
    for index in 0..BLOCKS {
        fill(&memory, index, index);
    }
    memory
}

fn fill(memory: &NodeMemory, index: u64, seed: u64) {
    let bytes: Vec<u8> = (0..BLOCK_BYTES as u64 / 8)
        .flat_map(|at| (seed << 16 | at).to_le_bytes())
        .collect();
    memory.store(frame(index), 0, &bytes).unwrap();
}

/// The seed that a frame was filled with; none where it has other bytes.
fn seed(memory: &NodeMemory, index: u64) -> Option<u64> {
    let mut bytes = [0; BLOCK_BYTES];
    memory.load(frame(index), 0, &mut bytes).unwrap();
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    let seed = words[0] >> 16;
    (0..)
        .zip(&words)
        .all(|(at, word)| *word == seed << 16 | at)
        .then_some(seed)
}

/// The write of frames to the blocks from `first` on, in runs of so many.
fn runs(first: u64, frames: &[Block], blocks: usize) -> impl Iterator<Item = FrameWrite<'_>> {
    let run = move |(nth, frames)| FrameWrite {
        first: block(first + (nth * blocks) as u64),
        frames,
        is_written: false,
    };
    frames.chunks(blocks).enumerate().map(run)
}

/// Requests of any length from and to any frames, against an array.
fn check_against_model(path: &Path) {
    let memory = memory(path);
    let start = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let number = u64::try_from(start.as_nanos() % 1_000_000_007).unwrap();
    println!("seed {number}");
    let mut random = fastrand::Rng::with_seed(number);
    let mut on_disk = vec![0; usize::try_from(BLOCKS).unwrap()];
    let mut in_frames: Vec<u64> = (0..BLOCKS).collect();
    for first in (0..BLOCKS).step_by(FRAMES_MAX) {
        let frames: Vec<Block> = (first..first + 256).map(frame).collect();
        memory.write(block(first), &frames).unwrap();
    }
    on_disk.copy_from_slice(&in_frames);
    for round in 0..500 {
        let most = random.choice([1, 8, 256]).unwrap();
        let count = random.u64(0..=most);
        let first = random.u64(0..=BLOCKS - count);
        let mut frames: Vec<u64> = (0..BLOCKS).collect();
        match random.u8(0..3) {
            0 => random.shuffle(&mut frames),
            1 => frames.reverse(),
            _ => {}
        }
        frames.truncate(usize::try_from(count).unwrap());
        let named: Vec<Block> = frames.iter().copied().map(frame).collect();
        let place = usize::try_from(first).unwrap();
        if random.bool() {
            for (at, index) in (place..).zip(&frames) {
                let seed = BLOCKS * (round + 1) + index;
                fill(&memory, *index, seed);
                in_frames[usize::try_from(*index).unwrap()] = seed;
                on_disk[at] = seed;
            }
            if random.bool() {
                memory.write(block(first), &named).unwrap();
            } else {
                let longest = random.usize(1..=256);
                let mut runs: Vec<FrameWrite<'_>> = runs(first, &named, longest).collect();
                random.shuffle(&mut runs);
                let together = runs.chunks_mut(memory.writes_at_a_time(DISK));
                together.for_each(|runs| memory.write_each(runs));
                assert!(runs.iter().all(|run| run.is_written));
            }
        } else {
            memory.read(block(first), &named).unwrap();
            for (at, index) in (place..).zip(&frames) {
                in_frames[usize::try_from(*index).unwrap()] = on_disk[at];
            }
        }
        if round % 50 == 0 {
            memory.flush(DISK).unwrap();
        }
    }
    for (index, expected) in (0..).zip(&in_frames) {
        assert_eq!(seed(&memory, index), Some(*expected), "frame {index}");
    }
    // As another program finds it.
    memory.remove(DISK).unwrap();
    memory.attach_disk(DISK, open(path)).unwrap();
    for (index, expected) in (0..).zip(&on_disk) {
        memory.read(block(index), &[frame(0)]).unwrap();
        assert_eq!(seed(&memory, 0), Some(*expected), "block {index}");
    }
    assert_eq!((memory.errors(DISK), memory.health(DISK)), (0, Health::Sound));
}

#[test]
fn blocks_written_to_a_disk_are_read_back() {
    if let Some(disk) = Played::new(BYTES, "100%", &[]) {
        check_against_model(&disk.device);
    }
    if let Some(disk) = Played::new(BYTES, "100%", &["--sector-size=4096"]) {
        check_against_model(&disk.device);
    }
}

#[test]
fn blocks_written_to_a_partition_change_nothing_else_on_the_disk() {
    let Some(disk) = Played::new(3 * BYTES, "100%", &["--partscan"]) else {
        return;
    };
    let part = disk.partition(3, BYTES, BYTES);
    check_against_model(&part);
    let whole = std::fs::read(disk.file()).unwrap();
    let bytes = usize::try_from(BYTES).unwrap();
    assert!(whole[..bytes].iter().chain(&whole[2 * bytes..]).all(|byte| *byte == 0));
}

#[test]
fn blocks_written_to_files_are_read_back() {
    // Beside the target: /tmp may be a tmpfs.
    for directory in [env!("CARGO_MANIFEST_DIR"), "/dev/shm"] {
        let (_directory, path) = file_under(directory.as_ref(), BYTES);
        check_against_model(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES, "the file grew");
    }
}

fn cut_off(file: &Path, bytes: u64) {
    OpenOptions::new()
        .write(true)
        .open(file)
        .unwrap()
        .set_len(bytes)
        .unwrap();
}

/// Reads of what is no more behind block 1000, in the middle of a request too.
fn check_cut_off(path: &Path, file: &Path) {
    let memory = memory(path);
    let frames: Vec<Block> = (0..16).map(frame).collect();
    memory.write(block(992), &frames).unwrap();
    cut_off(file, 1000 * BLOCK_BYTES as u64);
    for (first, count) in [(992, 16), (999, 2), (1000, 1), (1500, 16)] {
        let read = memory.read(block(first), &frames[..count]);
        assert_eq!(read, Err(MemoryError), "{count} blocks from {first}");
    }
    assert_eq!((memory.errors(DISK), memory.health(DISK)), (4, Health::Damaged));
    // What is there goes on.
    memory.read(block(992), &frames[8..]).unwrap();
    assert_eq!(seed(&memory, 8), Some(0));
    // A write beyond its end would make a file longer, with zeros in place of what was lost.
    for bytes in [1000 * BLOCK_BYTES as u64, BYTES] {
        cut_off(file, bytes);
        assert_eq!(memory.write(block(992), &frames), Err(MemoryError));
    }
    assert_eq!(memory.flush(DISK), Err(MemoryError));
}

#[test]
fn reading_past_the_end_of_a_truncated_file_is_an_error() {
    let (_directory, path) = file_under(env!("CARGO_MANIFEST_DIR").as_ref(), BYTES);
    check_cut_off(&path, &path);
}

#[test]
fn unreadable_blocks_are_errors() {
    let Some(disk) = Played::new(BYTES, "100%", &[]) else {
        return;
    };
    let memory = memory(&disk.device);
    let frames: Vec<Block> = (0..16).map(frame).collect();
    memory.write(block(992), &frames).unwrap();
    cut_off(&disk.file(), 1000 * BLOCK_BYTES as u64);
    for (first, count) in [(992, 16), (999, 2), (1000, 1)] {
        assert_eq!(memory.read(block(first), &frames[..count]), Err(MemoryError));
    }
    assert_eq!(memory.errors(DISK), 3);
    memory.read(block(992), &frames[..8]).unwrap();
}

#[test]
fn a_full_disk_fails_each_write_and_keeps_its_data() {
    let Some(disk) = Played::new(BYTES, "4m", &[]) else {
        return;
    };
    let memory = memory(&disk.device);
    let frames: Vec<Block> = (0..8).map(frame).collect();
    memory.write(block(100), &frames[..4]).unwrap();
    disk.take_room();
    // Nothing of it has room: a loop device acknowledges a write of which a part has.
    assert_eq!(memory.write(block(104), &frames), Err(MemoryError));
    assert_eq!(memory.write(block(1000), &frames), Err(MemoryError));
    assert_eq!(memory.errors(DISK), 2);
    let mut writes: Vec<FrameWrite<'_>> = runs(100, &frames, 4).collect();
    memory.write_each(&mut writes);
    assert_eq!([&writes[0], &writes[1]].map(|write| write.is_written), [true, false]);
    assert_eq!(memory.errors(DISK), 3);
    // A write that failed was told of: it does not make flushes fail.
    memory.write(block(100), &frames[..4]).unwrap();
    memory.read(block(100), &frames[4..]).unwrap();
    assert_eq!([4, 7].map(|index| seed(&memory, index)), [Some(0), Some(3)]);
    memory.flush(DISK).unwrap();
}

#[test]
fn scattered_blocks_are_written_one_by_one_when_the_ring_is_closed() {
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    let memory = memory(&path);
    memory
        .disk(DISK)
        .unwrap()
        .has_closed_ring
        .store(true, Ordering::Relaxed);
    assert_eq!(memory.writes_at_a_time(DISK), 1);
    let frames: Vec<Block> = (0..8).map(frame).collect();
    let mut writes: Vec<FrameWrite<'_>> = runs(100, &frames, 2).collect();
    memory.write_each(&mut writes);
    assert!(writes.iter().all(|write| write.is_written));
    memory.read(block(100), &[frame(100)]).unwrap();
    assert_eq!(seed(&memory, 100), Some(0));
}

/// Where the bytes of a write must not change, single writes and those at the same time are made from a copy of the frames.
#[test]
fn writes_by_a_copy_are_those_of_the_frames() {
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    let memory = memory(&path);
    let disk = DiskMember::with_stage(open_elsewhere(&path), true);
    let scattered: Vec<Block> = (0..FRAMES_MAX as u64).map(|nth| frame(nth * 7)).collect();
    let adjacent: Vec<Block> = (0..3).map(frame).collect();
    disk.write(100, Frames::of(&memory.table, &scattered)).unwrap();
    let mut writes: Vec<FrameWrite<'_>> = runs(1000, &adjacent, 1).collect();
    disk.write_each(&memory.table, &mut writes);
    assert!(writes.iter().all(|write| write.is_written));
    let written = std::fs::read(path.with_extension("copy")).unwrap();
    let mut expected = [0; BLOCK_BYTES];
    let places = scattered.iter().enumerate().map(|(nth, from)| (100 + nth, from));
    let places = places.chain(adjacent.iter().enumerate().map(|(nth, from)| (1000 + nth, from)));
    for (at, from) in places {
        memory.load(*from, 0, &mut expected).unwrap();
        assert_eq!(written[at * BLOCK_BYTES..][..BLOCK_BYTES], expected, "block {at}");
    }
    {
        let stage = disk.stage.as_ref().unwrap().lock();
        for (staged, from) in stage.bytes().chunks(BLOCK_BYTES).zip(&adjacent) {
            memory.load(*from, 0, &mut expected).unwrap();
            assert_eq!(staged, expected, "a copy is written");
        }
    }
    let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        disk.write(BLOCKS - 1, Frames::of(&memory.table, &adjacent))
    }));
    assert!(beyond.is_err(), "it wrote behind its end");
}

#[test]
fn a_failed_flush_fails_all_later_flushes() {
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    // It takes writes, and knows no fdatasync(2).
    let mut file = open(&path);
    file.file = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let (memory, disk) = (memory(&path), DiskMember::new(file));
    let one = || Frames::<FRAMES_MAX>::of(&memory.table, &[frame(0)]);
    disk.write(0, one()).unwrap();
    disk.flush().unwrap_err();
    disk.flush().unwrap_err();
    let disk = DiskMember {
        file: open_elsewhere(&path),
        ..disk
    };
    disk.flush().unwrap_err();
    disk.write(0, one()).unwrap();
    assert_eq!(disk.errors(), 3);
}

/// A read that ends when the test writes.
struct Begun {
    // Dropped first.
    reads: Mutex<Reads<Transfer>>,
    _reader: PipeReader,
    writer: PipeWriter,
    _memory: Arc<Arena>,
}

impl Begun {
    fn here() -> Self {
        let (reader, writer) = io::pipe().unwrap();
        let memory = Arena::new(BLOCK_BYTES as u64, None).unwrap();
        let transfer = Transfer {
            descriptor: reader.as_raw_fd(),
            offset: 0,
            pieces: vec![(memory.range(0, 1).unwrap().addr(), 1)],
            alive: Arc::new(()),
        };
        let mut reads = Reads::new().unwrap();
        // SAFETY: the arena stays mapped for longer than the ring, and nobody refers to its bytes.
        unsafe { reads.begin(transfer, |transfer| transfer) }.unwrap();
        reads.enter();
        Self {
            reads: Mutex::new(reads),
            _reader: reader,
            writer,
            _memory: memory,
        }
    }

    /// Whether the read has ended.
    fn has_ended(&self) -> bool {
        let mut reads = self.reads.lock();
        reads.take(|_, end| assert_eq!(end, ReadEnd::Whole));
        reads.under_way() == 0
    }
}

/// A filesystem in which every write waits.
struct Frozen<'a>(&'a str);

impl<'a> Frozen<'a> {
    fn new(place: &'a Path) -> Self {
        let place = place.to_str().unwrap();
        run("fsfreeze", &["--freeze", place]);
        Self(place)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze", self.0]);
    }
}

fn wait_until(reached: impl Fn() -> bool, situation: &str) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < Duration::from_secs(10), "{situation}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reads_end_while_their_thread_waits_for_another_disk() {
    let Some(disk) = Played::new(64 << 20, "64m", &[]) else {
        return;
    };
    let place = disk.mount(&disk.device);
    let (_directory, path) = file_under(place.0.path(), BYTES);
    let (_sound, sound) = file_under("/dev/shm".as_ref(), BYTES);
    let memory = memory(&sound);
    for has_stage in [false, true] {
        let hanging = DiskMember::with_stage(open(&path), has_stage);
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            // Thawed before the thread is waited for.
            let frozen = Frozen::new(place.0.path());
            let (hanging, memory) = (&hanging, &memory);
            let writer = scope.spawn(move || {
                let (begun, own) = (Arc::new(Begun::here()), own_thread());
                sender.send((Arc::clone(&begun), own)).unwrap();
                hanging.write(0, Frames::of(&memory.table, &[frame(7)]))
            });
            let (begun, thread) = receiver.recv().unwrap();
            let stat = format!("/proc/self/task/{thread}/stat");
            let sleeps = || {
                let stat = std::fs::read_to_string(&stat).unwrap();
                stat.contains(") S ") || stat.contains(") D ")
            };
            wait_until(sleeps, "the write does not wait for the frozen filesystem");
            (&begun.writer).write_all(&[1]).unwrap();
            wait_until(|| begun.has_ended(), "the read of a sound file waits for another one");
            assert!(!writer.is_finished());
            drop(frozen);
            writer.join().unwrap().unwrap();
        });
        let mut written = [0; BLOCK_BYTES];
        let mut expected = written;
        memory.load(frame(7), 0, &mut expected).unwrap();
        hanging.file.read_exact_at(&mut written, 0).unwrap();
        assert_eq!(written, expected);
    }
}

/// Requests of a thread with reads under way go through a ring of that thread.
/// The kernel ends a read in the thread that began it, which may sleep for ever in a call that has nothing to do with the disk.
#[test]
fn a_block_whose_reader_sleeps_elsewhere_is_read_by_who_wants_it() {
    let (Some(disk), Some(other)) = (Played::new(64 << 20, "64m", &[]), Played::new(64 << 20, "64m", &[])) else {
        return;
    };
    let place = other.mount(&other.device);
    let (_directory, path) = file_under(place.0.path(), BYTES);
    let memory = NodeMemory::new();
    memory.add(FRAMES, NodeId(0), BYTES).unwrap();
    for first in (0..BLOCKS).step_by(512) {
        memory.populate(FRAMES, first, 512).unwrap();
    }
    memory.attach_disk(DISK, open(&disk.device)).unwrap();
    let slice = SliceOptions {
        node: NodeId(0),
        member: FRAMES,
        frames: u32::try_from(BLOCKS).unwrap(),
    };
    let cached = Cached::new(memory, &[slice], &[vec![10]]);
    cached.add_disk(DISK, NodeId(0), FrameIndex::new(4096).unwrap());
    // So many that the thread sleeps before the disk has answered the last one, in most rounds.
    const READS: u64 = 12;
    let (mut left, mut longest, start) = (0, Duration::ZERO, Instant::now());
    for round in 0.. {
        if left == 3 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{left} reads were left");
        let block = |nth: u64| block((round % 8 * READS + nth) * 40);
        let at = block(READS - 1);
        std::thread::scope(|scope| {
            // Thawed before the thread is waited for.
            let frozen = Frozen::new(place.0.path());
            let (cached, path, (sender, receiver)) = (&cached, &path, mpsc::channel());
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                sender.send(own_thread()).unwrap();
                let reads: Vec<_> = (0..READS).map(|nth| (NodeId(0), block(nth), 32)).collect();
                cached.fetch_soon(&reads, false);
                (&file).write_all(&[1]).unwrap();
            });
            let stat = format!("/proc/self/task/{}/stat", receiver.recv().unwrap());
            let is_stuck = || std::fs::read_to_string(&stat).unwrap().contains(") D ");
            wait_until(is_stuck, "the write does not wait for the frozen filesystem");
            left += usize::from(cached.below().left_frame(at).is_some());
            let begin = Instant::now();
            let reader = scope.spawn(move || cached.fetch(NodeId(0), at, 1).unwrap());
            while !reader.is_finished() && begin.elapsed() < Duration::from_secs(2) {
                std::thread::yield_now();
            }
            longest = longest.max(begin.elapsed());
            drop(frozen);
        });
    }
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    cached.end_all_reads_of(DISK);
}

#[test]
fn blocks_written_beside_reads_under_way_are_read_back() {
    let begun = Begun::here();
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    check_against_model(&path);
    reading_past_the_end_of_a_truncated_file_is_an_error();
    a_failed_flush_fails_all_later_flushes();
    assert!(!begun.has_ended() && beside::has_ring());
}

/// The file by another name, which `path` does not lock.
fn open_elsewhere(path: &Path) -> MemberFile {
    let copy = path.with_extension("copy");
    File::create(&copy).unwrap().set_len(BYTES).unwrap();
    open(&copy)
}

#[test]
fn impossible_requests_panic() {
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    let memory = memory(&path);
    let panics = |request: &dyn Fn() -> Result<(), MemoryError>| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(request));
        assert!(outcome.is_err(), "reached bytes outside its member");
    };
    panics(&|| memory.read(block(BLOCKS), &[frame(0)]));
    panics(&|| memory.write(block(BLOCKS - 1), &[frame(0), frame(1)]));
    panics(&|| memory.write(block((1 << 48) - 1), &[frame(0)]));
    panics(&|| memory.read(block(0), &[frame(BLOCKS)]));
    panics(&|| memory.read(block(0), &[block(1)]));
    panics(&|| memory.read(block(0), &vec![frame(0); FRAMES_MAX + 1]));
    // The bytes of a disk are no memory.
    panics(&|| memory.store(block(0), 0, &[1]));
    assert_eq!(memory.read(Block::new(MemberId(7), 0), &[frame(0)]), Err(MemoryError));
    memory.remove(DISK).unwrap();
    assert_eq!(memory.flush(DISK), Err(MemoryError));
    assert!(!memory.is_disk(DISK));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES);
}

#[test]
fn requests_split_where_frames_are_not_adjacent() {
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    let memory = memory(&path);
    let named: Vec<Block> = [5, 6, 7, 9, 8, 100].map(frame).to_vec();
    let start = |index| memory.address(frame(index), 0, BLOCK_BYTES).addr();
    let frames = || Frames::<FRAMES_MAX>::of(&memory.table, &named);
    let pieces = |frames: &Frames<'_>| -> Vec<(usize, usize)> {
        frames
            .pieces()
            .iter()
            .map(|piece| (piece.iov_base.addr(), piece.iov_len))
            .collect()
    };
    let whole = [(start(5), 3), (start(9), 1), (start(8), 1), (start(100), 1)];
    assert_eq!(
        pieces(&frames()),
        whole.map(|(start, blocks)| (start, blocks * BLOCK_BYTES))
    );
    let bytes = 6 * BLOCK_BYTES;
    for step in [1, 511, 512, 4095, 4096, 4097, 3 * 4096, bytes] {
        let mut left = frames();
        for done in (step..bytes).step_by(step) {
            left.advance(step);
            assert_eq!(left.bytes(), bytes - done);
            let at = named[done / BLOCK_BYTES];
            let (first, _) = pieces(&left)[0];
            assert_eq!(first, start(at.index()) + done % BLOCK_BYTES, "{done} bytes in");
        }
        left.advance(left.bytes());
        assert_eq!(left.bytes(), 0);
    }
}

#[test]
fn a_flush_serves_all_earlier_callers() {
    const THREADS: u64 = 16;
    const CALLS: u64 = 100;
    let (flushes, is_busy) = (Flushes::default(), AtomicBool::new(false));
    let (asked, flushed, calls) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let ask = || {
        for _ in 0..CALLS {
            let own = asked.fetch_add(1, Ordering::SeqCst) + 1;
            let joined = flushes.join(|| {
                assert!(!is_busy.swap(true, Ordering::SeqCst), "two at once");
                let through = asked.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(20));
                flushed.store(through, Ordering::SeqCst);
                calls.fetch_add(1, Ordering::SeqCst);
                is_busy.store(false, Ordering::SeqCst);
                Ok(())
            });
            joined.unwrap();
            assert!(flushed.load(Ordering::SeqCst) >= own, "the flush began too early");
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(ask))));
    let calls = calls.into_inner();
    assert!(calls < THREADS * CALLS / 2, "{calls} flushes: nobody came along");
}

#[test]
fn a_failed_flush_is_reported_to_all_waiters() {
    let flushes = Flushes::default();
    let begun = std::sync::Barrier::new(2);
    let fail = || {
        begun.wait();
        std::thread::sleep(Duration::from_millis(20));
        Err(io::Error::from_raw_os_error(libc::EIO))
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| flushes.join(fail).unwrap_err());
        begun.wait();
        // Its own would have succeeded.
        flushes.join(|| Ok(())).unwrap_err();
        assert_eq!(first.join().unwrap().raw_os_error(), Some(libc::EIO));
    });
    flushes.join(|| Ok(())).unwrap_err();
}

#[test]
fn a_disk_is_removed_after_its_last_request() {
    let (_directory, path) = file_under("/dev/shm".as_ref(), BYTES);
    let memory = memory(&path);
    assert_eq!(memory.file(DISK).as_ref(), Some(&path));
    let inside = memory.disk(DISK).unwrap();
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| memory.remove(DISK));
        while memory.is_disk(DISK) {
            std::thread::yield_now();
        }
        let refused = MemberFile::open(&path);
        assert!(
            matches!(refused, Err(MemberFileError::InUse { .. })),
            "the disk was closed too early"
        );
        drop(inside);
        remover.join().unwrap().unwrap();
    });
    drop(open(&path));
}
