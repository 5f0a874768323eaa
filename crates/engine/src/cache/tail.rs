//! The end of the log on a disk: frames of its own, so that appending waits for no frame.
//!
//! A block of the log is here from its first byte on until it is full and durable; then nobody wants it until the pool is opened again. Where the log
//! grows faster than it is made durable, the oldest blocks are written to make room.
//!
//! Invariant: at most one write of a block is under way. A disk may carry out two in any order, and older bytes would replace newer ones.

use super::{Cache, Cached, Disk};
use crate::log::planted::{Planted, is_planted};
use crate::{BLOCK_BYTES, Block, Disks, MemberId, MemoryError};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks that are kept: as many as one request writes; of a small cache one in so many frames.
const BLOCKS: usize = 256;
const SHARE: usize = 4;

/// Blocks of the log, in the order in which they came.
#[derive(Debug)]
pub(super) struct Tail {
    blocks: Mutex<Blocks>,
    /// Told when a write has ended.
    written: Condvar,
}

#[derive(Debug)]
struct Blocks {
    free: Vec<u32>,
    used: Vec<Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    block: Block,
    frame: u32,
    /// Whether a thread writes it.
    is_written: bool,
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
        Self {
            blocks: Mutex::new(Blocks { free: frames, used }),
            written: Condvar::new(),
        }
    }
}

/// Block that a thread writes: its frame, and the number of stores before.
type Taken = (Block, u32, u64);

/// Blocks that a thread writes. Dropping it lets others write them, also when the writer panics; after a write that succeeded those leave the tail
/// of which `may_leave` says so, given the number of stores before the write.
struct Writing<'a, F: Fn(&Kept, u64) -> bool> {
    tail: &'a Tail,
    taken: Vec<Taken>,
    may_leave: F,
    is_done: bool,
}

impl<F: Fn(&Kept, u64) -> bool> Drop for Writing<'_, F> {
    fn drop(&mut self) {
        // Under one lock: the frame of a block that has left may be written for another block at once.
        let mut blocks = self.tail.blocks.lock();
        let Blocks { free, used } = &mut *blocks;
        used.retain_mut(|kept| {
            let Some((.., stores)) = self.taken.iter().find(|(_, frame, _)| *frame == kept.frame) else {
                return true;
            };
            kept.is_written = false;
            let goes = self.is_done && (self.may_leave)(kept, *stores);
            if goes {
                free.push(kept.frame);
            }
            !goes
        });
        self.tail.written.notify_all();
    }
}

impl Blocks {
    fn find(&self, block: Block) -> Option<&Kept> {
        self.used.iter().rfind(|kept| kept.block == block)
    }

    /// Blocks of a member that are in the tail.
    fn within(&mut self, member: MemberId, range: &Range<u64>) -> impl Iterator<Item = &mut Kept> {
        let all = self.used.iter_mut();
        all.filter(move |kept| kept.block.member() == member && range.contains(&kept.block.index()))
    }

    /// Takes blocks to write them, but for those that another thread writes; in order.
    fn take(&mut self, member: MemberId, range: &Range<u64>) -> Vec<Taken> {
        let free = self.within(member, range).filter(|kept| !kept.is_written);
        let mut taken: Vec<Taken> = free
            .map(|kept| {
                kept.is_written = true;
                (kept.block, kept.frame, kept.stores)
            })
            .collect();
        taken.sort_unstable();
        taken
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
        let mut blocks = cache.tail.blocks.lock();
        if blocks.find(at).is_none() {
            self.keep((cache, disk), &mut blocks, at, in_block == 0)?;
        }
        let mut kept = blocks.used.iter_mut().rev();
        let kept = kept.find(|kept| kept.block == at).expect("kept above");
        kept.stores += 1;
        self.below.store(cache.block(kept.frame), in_block, from)
    }

    /// A free frame of the tail. The oldest blocks are written to make room, with the tail unlocked.
    fn free_frame(&self, cache: &Cache, blocks: &mut MutexGuard<'_, Blocks>) -> Result<u32, MemoryError> {
        for _ in 0..super::space::PAUSES_MAX {
            if let Some(frame) = blocks.free.pop() {
                return Ok(frame);
            }
            let Some(oldest) = blocks.used.iter().find(|kept| !kept.is_written) else {
                // All are being written.
                cache.tail.written.wait_for(blocks, super::space::PAUSE);
                continue;
            };
            let oldest = oldest.block;
            if is_planted(Planted::TailDropped) {
                return Ok(blocks.used.remove(0).frame);
            }
            let disk = self.disk(oldest.member()).ok_or(MemoryError)?;
            let range = oldest.index()..oldest.index() + M::BLOCKS_MAX as u64;
            let taken = blocks.take(disk.1.member, &range);
            MutexGuard::unlocked(blocks, || {
                self.write_taken(disk, taken, |kept, stores| kept.stores == stores)
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
        let frame = self.free_frame(cache, blocks)?;
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
            is_written: false,
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
        let taken = {
            let mut blocks = cache.tail.blocks.lock();
            cache.tail.wait_for_writes(&mut blocks, disk.member, range);
            blocks.take(disk.member, range)
        };
        self.write_taken((cache, disk), taken, |kept, _| {
            is_full_at_end || kept.block.index() + 1 < range.end
        })
    }

    /// Writes blocks that were taken, as [`Writing`] says.
    fn write_taken(
        &self,
        (cache, disk): (&Cache, &Disk),
        taken: Vec<Taken>,
        may_leave: impl Fn(&Kept, u64) -> bool,
    ) -> Result<(), MemoryError> {
        if taken.is_empty() {
            return Ok(());
        }
        let mut writing = Writing {
            tail: &cache.tail,
            taken,
            may_leave,
            is_done: false,
        };
        let runs = writing
            .taken
            .chunk_by(|(before, ..), (block, ..)| before.plus(1) == *block)
            .flat_map(|run| run.chunks(M::BLOCKS_MAX));
        for run in runs {
            let frames: Vec<Block> = run.iter().map(|(_, frame, _)| cache.block(*frame)).collect();
            self.below.write(run[0].0, &frames)?;
            disk.saving.is_unflushed.store(true, Ordering::SeqCst);
        }
        writing.is_done = true;
        Ok(())
    }
}

impl Tail {
    /// Waits until no thread writes blocks of this range: they may be written then, or be another's.
    fn wait_for_writes(&self, blocks: &mut MutexGuard<'_, Blocks>, member: MemberId, range: &Range<u64>) {
        while blocks.within(member, range).any(|kept| kept.is_written) {
            self.written.wait(blocks);
        }
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
        let blocks = cache.tail.blocks.lock();
        let kept = blocks.find(block)?;
        Some(self.below.load(cache.block(kept.frame), in_block, to))
    }
}

impl Cache {
    /// Whether some of these blocks are in the tail.
    pub(super) fn has_in_tail(&self, first: Block, count: u64) -> bool {
        let range = first.index()..first.index() + count;
        self.tail.blocks.lock().within(first.member(), &range).next().is_some()
    }

    /// Takes blocks that are the log's no more out of the tail.
    pub(super) fn forget_tail(&self, first: Block, count: u64) {
        let range = first.index()..first.index() + count;
        let mut blocks = self.tail.blocks.lock();
        self.tail.wait_for_writes(&mut blocks, first.member(), &range);
        let gone: Vec<u32> = blocks.within(first.member(), &range).map(|kept| kept.frame).collect();
        blocks.used.retain(|kept| !gone.contains(&kept.frame));
        blocks.free.extend(gone);
    }
}
