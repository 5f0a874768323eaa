//! The end of the log on a disk: frames of its own, so that appending waits for no frame.
//!
//! A block of the log is here from its first byte on until it is full and durable; then nobody wants it until the pool is opened again. Where the log
//! grows faster than it is made durable, the oldest blocks are written to make room.

use super::{Cache, Cached, Disk};
use crate::log::planted::{Planted, is_planted};
use crate::{BLOCK_BYTES, Block, Disks, MemoryError};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks that are kept: as many as one request writes; of a small cache one in so many frames.
const BLOCKS: usize = 256;
const SHARE: usize = 4;

/// Blocks of the log, in the order in which they came.
#[derive(Debug)]
pub(super) struct Tail(Mutex<Blocks>);

#[derive(Debug)]
struct Blocks {
    free: Vec<u32>,
    used: Vec<Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    block: Block,
    frame: u32,
    /// Threads that write it.
    writers: u32,
}

impl Tail {
    /// Frames that a tail takes of a cache of so many.
    pub(super) fn frames(all: usize) -> usize {
        (all / SHARE).clamp(1, BLOCKS)
    }

    pub(super) fn new(frames: Vec<u32>) -> Self {
        let used = Vec::with_capacity(frames.len());
        Self(Mutex::new(Blocks { free: frames, used }))
    }
}

impl Blocks {
    fn find(&self, block: Block) -> Option<u32> {
        let mut kept = self.used.iter().rev();
        kept.find(|kept| kept.block == block).map(|kept| kept.frame)
    }
}

impl<M: Disks> Cached<M> {
    /// Stores bytes at the end of the log, within a block; those behind them do not count.
    pub(super) fn append_block(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: Block,
        in_block: usize,
        from: &[u8],
    ) -> Result<(), MemoryError> {
        let mut blocks = cache.tail.0.lock();
        let frame = match blocks.find(at) {
            Some(frame) => frame,
            None => self.keep((cache, disk), &mut blocks, at, in_block == 0)?,
        };
        self.below.store(cache.block(frame), in_block, from)
    }

    /// Takes a block into the tail: empty, or as it is on the disk.
    fn keep(
        &self,
        (cache, disk): (&Cache, &Disk),
        blocks: &mut Blocks,
        block: Block,
        is_new: bool,
    ) -> Result<u32, MemoryError> {
        let mut looks = 0;
        let frame = loop {
            if let Some(frame) = blocks.free.pop() {
                break frame;
            }
            match blocks.used.iter().position(|kept| kept.writers == 0) {
                Some(oldest) => {
                    let Kept { block, frame, .. } = blocks.used[oldest];
                    let (_, disk) = self.disk(block.member()).ok_or(MemoryError)?;
                    if !is_planted(Planted::TailDropped) {
                        self.below.write(block, &[cache.block(frame)])?;
                    }
                    disk.saving.is_unflushed.store(true, Ordering::SeqCst);
                    blocks.used.remove(oldest);
                    break frame;
                }
                // All are being written: by those who will end it without this lock.
                None => {
                    looks += 1;
                    if looks > super::space::PAUSES_MAX {
                        return Err(MemoryError);
                    }
                    std::thread::sleep(super::space::PAUSE);
                }
            }
        };
        let place = cache.block(frame);
        let filled = if is_new {
            self.below.zero(place, 0, BLOCK_BYTES)
        } else {
            self.below.read(block, &[place])
        };
        if let Err(error) = filled {
            blocks.free.push(frame);
            return Err(error);
        }
        // What was read when the pool was opened.
        cache.forget_frame(disk, block.index());
        blocks.used.push(Kept {
            block,
            frame,
            writers: 0,
        });
        Ok(frame)
    }

    /// Writes blocks of a disk that are in the tail. Full ones leave it: those before the last of the range, and that too when it `is_full_at_end`.
    pub(super) fn save_tail(
        &self,
        (cache, disk): (&Cache, &Disk),
        range: &Range<u64>,
        is_full_at_end: bool,
    ) -> Result<(), MemoryError> {
        let is_in = |kept: &Kept| kept.block.member() == disk.member && range.contains(&kept.block.index());
        let mut taken: Vec<(Block, u32)> = Vec::new();
        for kept in cache.tail.0.lock().used.iter_mut().filter(|kept| is_in(kept)) {
            kept.writers += 1;
            taken.push((kept.block, kept.frame));
        }
        taken.sort_unstable();
        let mut written = Ok(());
        let runs = taken
            .chunk_by(|(before, _), (block, _)| before.plus(1) == *block)
            .flat_map(|run| run.chunks(M::BLOCKS_MAX));
        for run in runs {
            let frames: Vec<Block> = run.iter().map(|(_, frame)| cache.block(*frame)).collect();
            written = written.and_then(|()| self.below.write(run[0].0, &frames));
            if written.is_ok() {
                disk.saving.is_unflushed.store(true, Ordering::SeqCst);
            }
        }
        let mut blocks = cache.tail.0.lock();
        let Blocks { free, used } = &mut *blocks;
        used.retain_mut(|kept| {
            if !is_in(kept) || !taken.contains(&(kept.block, kept.frame)) {
                return true;
            }
            kept.writers -= 1;
            let is_full = is_full_at_end || kept.block.index() + 1 < range.end;
            let goes = is_full && kept.writers == 0 && written.is_ok();
            if goes {
                free.push(kept.frame);
            }
            !goes
        });
        written
    }
}

impl<M: Disks> Cached<M> {
    /// Copies bytes out of a block that is in the tail; `None` when it is not.
    pub(super) fn load_from_tail(
        &self,
        cache: &Cache,
        block: Block,
        in_block: usize,
        to: &mut [u8],
    ) -> Option<Result<(), MemoryError>> {
        // Held on: its frame is another block's when it has left.
        let blocks = cache.tail.0.lock();
        let frame = blocks.find(block)?;
        Some(self.below.load(cache.block(frame), in_block, to))
    }
}

impl Cache {
    /// Whether some of these blocks are in the tail.
    pub(super) fn has_in_tail(&self, first: Block, count: u64) -> bool {
        let blocks = self.tail.0.lock();
        let is_in = |kept: &Kept| {
            kept.block.member() == first.member()
                && (first.index()..first.index() + count).contains(&kept.block.index())
        };
        blocks.used.iter().any(is_in)
    }

    /// Takes blocks that are the log's no more out of the tail.
    pub(super) fn forget_tail(&self, first: Block, count: u64) {
        let mut blocks = self.tail.0.lock();
        let Blocks { free, used } = &mut *blocks;
        used.retain(|kept| {
            let is_in = kept.block.member() == first.member()
                && (first.index()..first.index() + count).contains(&kept.block.index());
            if is_in {
                debug_assert_eq!(kept.writers, 0, "it is being made durable");
                free.push(kept.frame);
            }
            !is_in
        });
    }
}
