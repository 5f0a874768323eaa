//! Writers, truncators and hole punchers at work on one file while other files take and give back blocks. Every byte carries
//! the stamp of its file, place and write, so a byte of another file, of another place or of an earlier write is known when it is read.

use crate::mount;
use crate::stage::{Stage, edit, open, pwrite, read_at};
use crate::tool;
use rustix::fs::{FallocateFlags, OFlags, fallocate, ftruncate};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;
const WRITERS: u64 = 2;
const DURATION: Duration = Duration::from_secs(8);
const FILE: u32 = 0xF11E;

/// Bytes that this file and block may have, besides zeros. The round rises with every write of a writer, from 1 on.
fn stamp(file: u32, block: u64, round: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&file.to_le_bytes());
    bytes[4..12].copy_from_slice(&(block + 1).to_le_bytes());
    bytes[12..].copy_from_slice(&round.to_le_bytes());
    bytes
}

/// Panics at a stamp that does not belong there, or is of a round before the [least](Scene::least) one of its block. A block may be zero in part and of
/// several rounds while somebody writes it.
fn check(bytes: &[u8], first_block: u64, least: &[u32]) {
    for (index, found) in bytes.chunks_exact(16).enumerate() {
        let nth = index * 16 / BLOCK;
        let (block, least) = (first_block + nth as u64, least[nth]);
        let round = u32::from_le_bytes(found[12..].try_into().unwrap());
        let is_own = found[..12] == stamp(FILE, block, 0)[..12] && 2 * round >= least;
        assert!(
            found == [0; 16] || is_own,
            "block {block} holds {found:x?}, where rounds before {} are gone",
            least.div_ceil(2)
        );
    }
}

/// The heap gives no alignment, and direct access needs none here.
fn fill(buffer: &mut Vec<u8>, file: u32, first_block: u64, blocks: u64, round: u32) {
    buffer.clear();
    for block in first_block..first_block + blocks {
        buffer.extend(stamp(file, block, round).iter().cycle().take(BLOCK));
    }
}

/// What the actors share.
struct Scene<'a> {
    stage: &'a Stage,
    done: AtomicBool,
    checked_bytes: AtomicU64,
    /// Twice the least round, by block, that a read may still find: that of the last write that returned. One more once the block was cut off after that.
    least: Vec<AtomicU32>,
}

impl Scene<'_> {
    fn least(&self, blocks: Range<u64>) -> Vec<u32> {
        let [start, end] = [blocks.start, blocks.end].map(|block| usize::try_from(block.min(BLOCKS)).unwrap());
        self.least[start..end]
            .iter()
            .map(|least| least.load(Ordering::SeqCst))
            .collect()
    }

    /// Runs `cut`, which takes whole blocks away.
    fn without(&self, blocks: Range<u64>, cut: impl FnOnce()) {
        let before = self.least(blocks.clone());
        cut();
        let all = self.least.iter().skip(usize::try_from(blocks.start).unwrap());
        all.zip(before)
            .for_each(|(least, before)| _ = least.fetch_max(before | 1, Ordering::SeqCst));
    }

    fn goes_on(&self) -> bool {
        !self.done.load(Ordering::Relaxed)
    }

    fn file(&self, direct: bool) -> OwnedFd {
        let flags = if direct {
            OFlags::RDWR | OFlags::DIRECT
        } else {
            OFlags::RDWR
        };
        open(self.stage.at("stamped"), flags).unwrap()
    }

    /// Writes runs of its own blocks: those of every `WRITERS`th group of 16.
    fn write(&self, writer: u64, mut random: fastrand::Rng) {
        let files = [self.file(false), self.file(true)];
        let mut buffer = Vec::new();
        for round in 1.. {
            if !self.goes_on() {
                break;
            }
            let group = random.u64(..BLOCKS / 16 / WRITERS) * WRITERS + writer;
            let start = random.u64(..16);
            let (first, blocks) = (group * 16 + start, random.u64(1..=16 - start));
            fill(&mut buffer, FILE, first, blocks, round);
            let file = &files[usize::from(random.bool())];
            match pwrite(file, &buffer, first * BLOCK as u64) {
                Ok(bytes) => {
                    let written = self
                        .least
                        .iter()
                        .skip(usize::try_from(first).unwrap())
                        .take(bytes / BLOCK);
                    written.for_each(|least| _ = least.fetch_max(2 * round, Ordering::SeqCst));
                }
                Err(Errno::NOSPC) => {}
                Err(error) => panic!("write: {error}"),
            }
        }
    }

    fn read(&self, mut random: fastrand::Rng) {
        let files = [self.file(false), self.file(true)];
        while self.goes_on() {
            let (first, blocks) = (random.u64(..BLOCKS), random.usize(1..=64));
            let least = self.least(first..first + blocks as u64);
            let bytes = read_at(&files[usize::from(random.bool())], first * BLOCK as u64, blocks * BLOCK);
            check(&bytes, first, &least);
            self.checked_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    /// Rests in every other second: a file that is cut all the time is hardly copied from under `homenode run`.
    fn cut(&self, mut random: fastrand::Rng) {
        let file = self.file(false);
        let start = Instant::now();
        while self.goes_on() {
            if start.elapsed().as_secs() % 2 == 1 {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            // Whole stamps stay whole: lengths are multiples of 16.
            let length = random.u64(..=BLOCKS * BLOCK as u64 / 16) * 16;
            self.without(length.div_ceil(BLOCK as u64)..BLOCKS, || {
                ftruncate(&file, length).unwrap()
            });
            std::thread::sleep(Duration::from_millis(random.u64(..10)));
        }
    }

    fn punch(&self, mut random: fastrand::Rng) {
        let file = self.file(false);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        while self.goes_on() {
            let (start, length) = (random.u64(..BLOCKS * 256) * 16, random.u64(1..30_000) * 16);
            let blocks =
                start.div_ceil(BLOCK as u64)..((start + length) / BLOCK as u64).max(start.div_ceil(BLOCK as u64));
            self.without(blocks, || fallocate(&file, hole, start, length).unwrap());
            std::thread::sleep(Duration::from_millis(random.u64(..5)));
        }
    }

    /// Files that come and go, so that blocks change hands all the time.
    fn churn(&self, number: u32, mut random: fastrand::Rng) {
        let mut buffer = Vec::new();
        for round in 0_u32.. {
            if !self.goes_on() {
                break;
            }
            let (id, blocks) = (number << 24 | round, random.u64(1..600));
            let path = self.stage.at(format!("passing-{number}"));
            fill(&mut buffer, id, 0, blocks, round);
            match std::fs::write(&path, &buffer) {
                Ok(()) => assert!(
                    read_at(&edit(&path), 0, buffer.len()) == buffer,
                    "a file nobody else writes changed"
                ),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
            }
            rustix::fs::unlink(&path).unwrap();
        }
    }
}

#[test]
fn reads_return_no_foreign_or_stale_byte() {
    // Little more than the file itself, so that freed blocks are taken again soon.
    let Some(mount) = mount::small("24M") else { return };
    let stage = Stage::on(&mount);
    stage.file("stamped", []);
    let mut random = fastrand::Rng::with_seed(u64::from(tool::seed("stamps")));
    let scene = Scene {
        stage: &stage,
        done: AtomicBool::new(false),
        checked_bytes: AtomicU64::new(0),
        least: (0..BLOCKS).map(|_| AtomicU32::new(0)).collect(),
    };
    std::thread::scope(|scope| {
        let scene = &scene;
        let mut actors = Vec::new();
        for writer in 0..WRITERS {
            let random = random.fork();
            actors.push(scope.spawn(move || scene.write(writer, random)));
        }
        for number in 1..=2 {
            let random = random.fork();
            actors.push(scope.spawn(move || scene.churn(number, random)));
        }
        for act in [Scene::read, Scene::read, Scene::cut, Scene::punch] {
            let random = random.fork();
            actors.push(scope.spawn(move || act(scene, random)));
        }
        let start = Instant::now();
        while start.elapsed() < DURATION && !actors.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(20));
        }
        scene.done.store(true, Ordering::Relaxed);
    });
    assert!(
        scene.checked_bytes.load(Ordering::Relaxed) > 1 << 20,
        "the readers hardly read"
    );
    let (cached, direct) = (scene.file(false), scene.file(true));
    let all = read_at(&cached, 0, usize::try_from(BLOCKS).unwrap() * BLOCK);
    check(&all, 0, &scene.least(0..BLOCKS));
    assert!(
        read_at(&direct, 0, all.len()) == all,
        "at rest, the cache and the file differ"
    );
}
