//! Space: what it takes the cache to evict a block, and to have one written back, by how many frames there are. The disk does nothing, and there are
//! no bytes: all that is measured is the cache's own.

use super::stage::{BLOCK, MEBIBYTE};
use crate::error::Error;
use crate::report::Row;
use crate::run::Run;
use fastrand::Rng;
use homenode_engine::cache::{Cached, FrameIndex, SliceOptions};
use homenode_engine::{Block, Disks, MemberId, Memory, MemoryError, NodeId, Starved};
use std::time::Instant;

/// Sizes of caches.
const SIZES: [(&str, usize); 4] = [
    ("64m", 64 * MEBIBYTE),
    ("512m", 512 * MEBIBYTE),
    ("2g", 2048 * MEBIBYTE),
    ("8g", 8192 * MEBIBYTE),
];
/// Most of the time that the smallest cache takes: constant, but for noise.
const TIME_MAX: f64 = 1.1;
/// A disk has so many blocks for each frame.
const DISK_SHARE: u64 = 4;
/// Ratio of frames to the stores that make blocks dirty before a write-back.
const DIRTY_SHARE: u64 = 8;
const EVICTIONS: usize = 20_000;
const DISK: MemberId = MemberId(0);
const FRAMES: MemberId = MemberId(2048);
const NODE: NodeId = NodeId(0);

/// Memory without bytes, and a disk that does nothing.
#[derive(Debug)]
struct Nothing;

impl Memory for Nothing {
    fn load(&self, _: Block, _: usize, _: &mut [u8]) -> Result<(), MemoryError> {
        Ok(())
    }
    fn store(&self, _: Block, _: usize, _: &[u8]) -> Result<(), MemoryError> {
        Ok(())
    }
    fn zero(&self, _: Block, _: usize, _: usize) -> Result<(), MemoryError> {
        Ok(())
    }
    fn copy(&self, _: Block, _: Block, _: u64) -> Result<(), MemoryError> {
        Ok(())
    }
    fn populate(&self, _: MemberId, _: u64, _: u64) -> Result<(), Starved> {
        Ok(())
    }
}

impl Disks for Nothing {
    fn is_disk(&self, member: MemberId) -> bool {
        member == DISK
    }
    fn read(&self, _: Block, _: &[Block]) -> Result<(), MemoryError> {
        Ok(())
    }
    fn write(&self, _: Block, _: &[Block]) -> Result<(), MemoryError> {
        Ok(())
    }
    fn flush(&self, _: MemberId) -> Result<(), MemoryError> {
        Ok(())
    }
}

/// A cache all of whose frames hold a block.
struct Full {
    memory: Cached<Nothing>,
    frames: u64,
    random: Rng,
}

impl Full {
    fn new(bytes: usize) -> Result<Self, Error> {
        let frames = (bytes / BLOCK) as u64;
        let slice = SliceOptions {
            member: FRAMES,
            node: NODE,
            frames: u32::try_from(frames).expect("less than 2^32 frames"),
        };
        let memory = Cached::new(Nothing, &[slice], &[vec![10]]);
        let index = FrameIndex::new(frames * DISK_SHARE)
            .ok_or_else(|| Error::system("the cache", std::io::ErrorKind::OutOfMemory))?;
        memory.add_disk(DISK, NODE, index);
        for first in (0..frames).step_by(256) {
            memory.fetch(NODE, Block::new(DISK, first), 256).map_err(failed)?;
        }
        let mut full = Self {
            memory,
            frames,
            random: Rng::with_seed(5),
        };
        // Until blocks go that came by chance, and not in their order: each block that came first has gone, or was used again.
        full.evict(usize::try_from(frames / 4 * 5).expect("addresses have 64 bits"))?;
        Ok(full)
    }

    fn next(&mut self) -> Block {
        let blocks = usize::try_from(self.frames * DISK_SHARE).expect("addresses have 64 bits");
        Block::new(DISK, self.random.usize(..blocks) as u64)
    }

    /// Time for a block that comes and another one that goes, in ns.
    fn evict(&mut self, count: usize) -> Result<f64, Error> {
        let before = self.fetched();
        let start = Instant::now();
        for _ in 0..count {
            let block = self.next();
            self.memory.fetch(NODE, block, 1).map_err(failed)?;
        }
        Ok(each(start, self.fetched() - before))
    }

    /// Time for a dirty block that is written, of many that lie far apart, in ns.
    fn write_back(&mut self) -> Result<f64, Error> {
        let bytes = [0; BLOCK];
        for _ in 0..self.frames / DIRTY_SHARE {
            let block = self.next();
            self.memory.store(block, 0, &bytes).map_err(failed)?;
        }
        let dirty = self.memory.cache_status().slices[0].dirty_bytes / BLOCK as u64;
        let start = Instant::now();
        self.memory.persist_all(DISK).map_err(failed)?;
        Ok(each(start, dirty))
    }

    fn fetched(&self) -> u64 {
        self.memory.cache_status().slices[0].fetched_bytes / BLOCK as u64
    }
}

fn failed(error: MemoryError) -> Error {
    Error::system("the cache", std::io::Error::other(error))
}

fn each(start: Instant, count: u64) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

pub(super) fn rows(run: &mut Run<'_>) -> Result<(), Error> {
    let sizes = if run.common.smoke { &SIZES[..1] } else { &SIZES };
    for name in ["evict", "write-back"] {
        let case = |size: &str| format!("space/{name}/{size}");
        if !sizes.iter().any(|(size, _)| run.wants(&case(size))) {
            continue;
        }
        let mut caches: Vec<Full> = sizes
            .iter()
            .map(|(_, bytes)| Full::new(*bytes))
            .collect::<Result<_, _>>()?;
        let count = run.few(EVICTIONS);
        let samples = run.take_turns(&format!("space/{name}"), sizes.len(), |_, cache| match name {
            "evict" => caches[cache].evict(count),
            _ => caches[cache].write_back(),
        })?;
        for ((size, _), times) in sizes.iter().zip(&samples) {
            run.show(Row::new(case(size), "ns/block", times, &[("64m", &samples[0])]));
        }
        for (size, _) in &sizes[1..] {
            run.require_time(&case(size), "64m", "time of 64 MiB", TIME_MAX);
        }
    }
    Ok(())
}
