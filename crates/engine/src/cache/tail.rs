//! The end of the log on a disk: frames of its own, so that appending waits for no frame.
//!
//! A block of the log is here from its first byte on until it is full and durable; then nobody wants it until the pool is opened again. Where the log
//! grows faster than it is made durable, the oldest blocks are written to make room.

use super::{Cache, Cached, Disk};
use crate::log::planted::{Planted, is_planted};
use crate::{BLOCK_BYTES, Block, Disks, MemoryError};
use parking_lot::{Mutex, MutexGuard};
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
    /// Stores into it so far.
    stores: u64,
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
    fn find(&self, block: Block) -> Option<&Kept> {
        self.used.iter().rfind(|kept| kept.block == block)
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
        if blocks.find(at).is_none() {
            self.keep((cache, disk), &mut blocks, at, in_block == 0)?;
        }
        let mut kept = blocks.used.iter_mut().rev();
        let kept = kept.find(|kept| kept.block == at).expect("it is kept");
        kept.stores += 1;
        self.below.store(cache.block(kept.frame), in_block, from)
    }

    /// A free frame of the tail. The oldest blocks are written to make room; nobody else is kept from the tail meanwhile.
    fn free_frame(&self, blocks: &mut MutexGuard<'_, Blocks>) -> Result<u32, MemoryError> {
        for _ in 0..super::space::PAUSES_MAX {
            if let Some(frame) = blocks.free.pop() {
                return Ok(frame);
            }
            let Some(oldest) = blocks.used.iter().find(|kept| kept.writers == 0) else {
                // All are being written.
                MutexGuard::unlocked(blocks, || std::thread::sleep(super::space::PAUSE));
                continue;
            };
            let oldest = oldest.block;
            if is_planted(Planted::TailDropped) {
                return Ok(blocks.used.remove(0).frame);
            }
            let disk = self.disk(oldest.member()).ok_or(MemoryError)?;
            let range = oldest.index()..oldest.index() + M::BLOCKS_MAX as u64;
            MutexGuard::unlocked(blocks, || {
                self.write_tail(disk, &range, |kept, stores| kept.stores == stores)
            })?;
        }
        Err(MemoryError)
    }

    /// Takes a block into the tail: empty, or as it is on the disk.
    fn keep(
        &self,
        (cache, disk): (&Cache, &Disk),
        blocks: &mut MutexGuard<'_, Blocks>,
        block: Block,
        is_new: bool,
    ) -> Result<(), MemoryError> {
        let frame = self.free_frame(blocks)?;
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
            stores: 0,
        });
        Ok(())
    }

    /// Writes blocks of a disk that are in the tail. Full ones leave it: those before the last of the range, and that too when it `is_full_at_end`.
    pub(super) fn save_tail(
        &self,
        (cache, disk): (&Cache, &Disk),
        range: &Range<u64>,
        is_full_at_end: bool,
    ) -> Result<(), MemoryError> {
        self.write_tail((cache, disk), range, |kept, _| {
            is_full_at_end || kept.block.index() + 1 < range.end
        })
    }

    /// Writes blocks of a disk that are in the tail. Those leave it that `may_leave`, which is told how often something had been stored before.
    fn write_tail(
        &self,
        (cache, disk): (&Cache, &Disk),
        range: &Range<u64>,
        may_leave: impl Fn(&Kept, u64) -> bool,
    ) -> Result<(), MemoryError> {
        let is_in = |kept: &Kept| kept.block.member() == disk.member && range.contains(&kept.block.index());
        let mut taken: Vec<(Block, u32, u64)> = Vec::new();
        for kept in cache.tail.0.lock().used.iter_mut().filter(|kept| is_in(kept)) {
            kept.writers += 1;
            taken.push((kept.block, kept.frame, kept.stores));
        }
        taken.sort_unstable();
        let mut written = Ok(());
        let runs = taken
            .chunk_by(|(before, ..), (block, ..)| before.plus(1) == *block)
            .flat_map(|run| run.chunks(M::BLOCKS_MAX));
        for run in runs {
            let frames: Vec<Block> = run.iter().map(|(_, frame, _)| cache.block(*frame)).collect();
            written = written.and_then(|()| self.below.write(run[0].0, &frames));
            if written.is_ok() {
                disk.saving.is_unflushed.store(true, Ordering::SeqCst);
            }
        }
        let mut blocks = cache.tail.0.lock();
        let Blocks { free, used } = &mut *blocks;
        used.retain_mut(|kept| {
            let Some((.., stores)) = taken
                .iter()
                .find(|(block, frame, _)| (*block, *frame) == (kept.block, kept.frame))
            else {
                return true;
            };
            kept.writers -= 1;
            let goes = kept.writers == 0 && written.is_ok() && may_leave(kept, *stores);
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
        let kept = blocks.find(block)?;
        Some(self.below.load(cache.block(kept.frame), in_block, to))
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
