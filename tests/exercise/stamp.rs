//! Writers, truncators and hole punchers at work on one file while other files take and give back blocks. Every byte carries
//! the stamp of its file and place, so a byte of another file, of another place or of an earlier life is known when it is read.

use crate::mount;
use crate::stage::{Stage, edit, open, pwrite, read_at};
use crate::tool;
use rustix::fs::{FallocateFlags, OFlags, fallocate, ftruncate};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;
const WRITERS: u64 = 2;
const DURATION: Duration = Duration::from_secs(8);
const FILE: u32 = 0xF11E;

/// What 16 bytes of this file and block may be, besides zeros. The round changes with every write.
fn stamp(file: u32, block: u64, round: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&file.to_le_bytes());
    bytes[4..12].copy_from_slice(&(block + 1).to_le_bytes());
    bytes[12..].copy_from_slice(&round.to_le_bytes());
    bytes
}

/// Panics at a stamp that does not belong there. A block may be zero in part and of several rounds while somebody writes it.
fn check(bytes: &[u8], file: u32, first_block: u64) {
    for (index, found) in bytes.chunks_exact(16).enumerate() {
        let block = first_block + (index * 16 / BLOCK) as u64;
        let expected = stamp(file, block, 0);
        let zero = found == [0; 16];
        assert!(
            zero || found[..12] == expected[..12],
            "block {block} of file {file:x} holds {found:x?}"
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
}

impl Scene<'_> {
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
        for round in 0.. {
            if !self.goes_on() {
                break;
            }
            let group = random.u64(..BLOCKS / 16 / WRITERS) * WRITERS + writer;
            let start = random.u64(..16);
            let (first, blocks) = (group * 16 + start, random.u64(1..=16 - start));
            fill(&mut buffer, FILE, first, blocks, round);
            let file = &files[usize::from(random.bool())];
            match pwrite(file, &buffer, first * BLOCK as u64) {
                Ok(_) | Err(Errno::NOSPC) => {}
                Err(error) => panic!("write: {error}"),
            }
        }
    }

    fn read(&self, mut random: fastrand::Rng) {
        let files = [self.file(false), self.file(true)];
        while self.goes_on() {
            let (first, blocks) = (random.u64(..BLOCKS), random.usize(1..=64));
            let bytes = read_at(&files[usize::from(random.bool())], first * BLOCK as u64, blocks * BLOCK);
            check(&bytes, FILE, first);
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
            ftruncate(&file, random.u64(..=BLOCKS * BLOCK as u64 / 16) * 16).unwrap();
            std::thread::sleep(Duration::from_millis(random.u64(..10)));
        }
    }

    fn punch(&self, mut random: fastrand::Rng) {
        let file = self.file(false);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        while self.goes_on() {
            let (start, length) = (random.u64(..BLOCKS * 256) * 16, random.u64(1..30_000) * 16);
            fallocate(&file, hole, start, length).unwrap();
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
    check(&all, FILE, 0);
    assert!(
        read_at(&direct, 0, all.len()) == all,
        "at rest, the cache and the file differ"
    );
}
