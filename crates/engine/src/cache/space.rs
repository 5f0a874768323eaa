//! Frames of a slice: which are free, and which block has each of the others.

use super::{Cache, Cached, Disk, SliceOptions};
use crate::{Block, Disks, MemberId, MemoryError, NodeId};
use homenode_policy::eviction::{Eviction, Ghosts, Look, Victim};
use homenode_shared::{Cooled, Forgotten};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Frames that are evicted at a time when one is wanted.
const BATCH: usize = 16;
/// One frame of so many is kept free by those who tend a slice.
const FREE_SHARE: u32 = 64;
/// Dirty blocks come into no more than three of four frames: bytes can be read while a disk cannot be written.
const DIRTY_SHARE: (u64, u64) = (3, 4);
/// Pause of a thread that waits for a frame, and how often it waits: ten seconds.
pub(super) const PAUSE: Duration = Duration::from_micros(200);
pub(super) const PAUSES_MAX: u32 = 50_000;
/// Failures of writes after which it does not wait any longer.
const FAILURES_MAX: u32 = 16;

/// A slice.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) member: MemberId,
    pub(super) node: NodeId,
    /// Number of its first frame.
    first: u32,
    pub(super) frames: u32,
    owners: Box<[Owner]>,
    space: Mutex<Space>,
    /// Dirty frames. Relaxed, here and below: figures.
    pub(super) dirty: AtomicI64,
    /// Blocks that were read.
    pub(super) fetched: AtomicU64,
    /// Blocks that were written.
    pub(super) saved: AtomicU64,
    /// Frames given to others' nodes.
    pub(super) stolen: AtomicU64,
    pub(super) returned: AtomicU64,
}

/// The block that has a frame, and the epoch in which the frame became cool.
#[derive(Debug)]
struct Owner {
    block: AtomicU64,
    stamp: AtomicU32,
}

#[derive(Debug)]
pub(super) struct Space {
    /// Frames without a block.
    free: Vec<u32>,
    pub(super) order: Eviction,
}

/// Blocks that were evicted lately, by any slice: a block may come back to another one.
#[derive(Debug)]
pub(super) struct AllGhosts(Box<[Mutex<Ghosts>]>);

impl AllGhosts {
    /// So that threads seldom meet.
    const PARTS: usize = 16;

    /// As many as there are frames.
    pub(super) fn new(frames: usize) -> Self {
        let part = || Mutex::new(Ghosts::new(frames.div_ceil(Self::PARTS)));
        Self((0..Self::PARTS).map(|_| part()).collect())
    }

    /// The part that a block belongs to.
    fn of(&self, block: u64) -> MutexGuard<'_, Ghosts> {
        let part = block % Self::PARTS as u64;
        self.0[usize::try_from(part).expect("few parts")].lock()
    }
}

impl Slice {
    pub(super) fn new(options: SliceOptions, first: u32) -> Self {
        let SliceOptions { member, node, frames } = options;
        Self {
            member,
            node,
            first,
            frames,
            owners: (0..frames)
                .map(|_| Owner {
                    block: AtomicU64::new(0),
                    stamp: AtomicU32::new(0),
                })
                .collect(),
            space: Mutex::new(Space {
                free: (0..frames).rev().collect(),
                order: Eviction::new(frames),
            }),
            dirty: AtomicI64::new(0),
            fetched: AtomicU64::new(0),
            saved: AtomicU64::new(0),
            stolen: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        }
    }

    /// Memory that a frame takes besides its bytes.
    pub(super) const TABLE_BYTES: usize = size_of::<Owner>() + size_of::<u32>() + 12;

    /// Takes free frames away for good, one after the other.
    pub(super) fn take_all(&self) -> impl Iterator<Item = u32> {
        std::iter::from_fn(|| Some(self.first + self.space.lock().free.pop()?))
    }

    /// Frames that those who tend it keep free.
    fn kept_free(&self) -> usize {
        (self.frames / FREE_SHARE).max(1) as usize
    }

    /// Dirty frames.
    pub(super) fn dirty_frames(&self) -> u64 {
        // A frame may be counted as clean before it was counted as dirty.
        u64::try_from(self.dirty.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn owner(&self, frame: u32) -> &Owner {
        &self.owners[(frame - self.first) as usize]
    }

    /// Free frames, and those with a block.
    pub(super) fn counts(&self) -> (u64, u64) {
        let space = self.space.lock();
        (space.free.len() as u64, space.order.used().into())
    }
}

const _: () = assert!(Slice::TABLE_BYTES <= 32);

impl Cache {
    /// Slices, that of `node` first, or the first one where it has none.
    fn nearest(&self, node: NodeId) -> impl Iterator<Item = &Slice> {
        let own = self.number_of(node);
        let slices = self.slices.iter().enumerate();
        let others = slices.filter(move |(number, _)| *number != own).map(|(_, slice)| slice);
        std::iter::once(&self.slices[own]).chain(others)
    }

    fn number_of(&self, node: NodeId) -> usize {
        self.slices.iter().position(|slice| slice.node == node).unwrap_or(0)
    }

    /// Number of the slice that takes the next block that `node` misses.
    fn place(&self, node: NodeId) -> usize {
        if self.slices.len() == 1 {
            return 0;
        }
        // More than is kept free for the node's own.
        let has_free = |number: usize| {
            let slice = &self.slices[number];
            slice.space.lock().free.len() > 2 * slice.kept_free()
        };
        self.placing.lock().place(self.number_of(node), 1, has_free)
    }

    /// Notes that a block which `node` missed had been evicted lately.
    pub(super) fn note_returned(&self, node: NodeId) {
        let number = self.number_of(node);
        // Relaxed: a figure.
        self.slices[number].returned.fetch_add(1, Ordering::Relaxed);
        if self.slices.len() > 1 {
            self.placing.lock().note_returned(number, 1);
        }
    }

    /// Notes the epoch in which a frame becomes cool.
    pub(super) fn stamp(&self, frame: u32) {
        let owner = self.slice(frame).owner(frame);
        // Relaxed: the change of the word that follows shows it.
        owner.stamp.store(self.epochs.now(), Ordering::Relaxed);
    }

    /// A free frame for a block of a disk, on `node` if possible; `None` when none can be evicted at once.
    pub(super) fn take_at_once(&self, node: NodeId, block: Block) -> Option<u32> {
        let chosen = &self.slices[self.place(node)];
        let found = std::iter::once(chosen).chain(self.nearest(node)).find_map(|slice| {
            let mut space = slice.space.lock();
            if space.free.is_empty() {
                self.evict(slice, &mut space, BATCH);
            }
            let frame = slice.first + space.free.pop()?;
            Some((slice, frame))
        });
        let (slice, frame) = found?;
        if slice.node != node {
            slice.stolen.fetch_add(1, Ordering::Relaxed);
        }
        slice.owner(frame).block.store(block.to_raw(), Ordering::Relaxed);
        Some(frame)
    }

    /// [`Cache::take_at_once`] for bytes that are not the disk's.
    pub(super) fn take_for_new(&self, node: NodeId, block: Block) -> Option<u32> {
        let is_full = |slice: &Slice| slice.dirty_frames() * DIRTY_SHARE.1 >= u64::from(slice.frames) * DIRTY_SHARE.0;
        let has_room = !self.slices.iter().all(is_full);
        has_room.then(|| self.take_at_once(node, block)).flatten()
    }

    /// Evicts up to `most` frames.
    fn evict(&self, slice: &Slice, space: &mut Space, most: usize) {
        for _ in 0..most {
            let victim = space.order.evict(&mut |frame| self.look(slice, slice.first + frame));
            let Some(Victim { frame, is_remembered }) = victim else {
                break;
            };
            if is_remembered {
                let block = slice.owner(slice.first + frame).block.load(Ordering::Relaxed);
                self.ghosts.of(block).remember(block);
            }
            space.free.push(frame);
        }
    }

    /// Makes a frame cool, or takes it away from its block.
    fn look(&self, slice: &Slice, frame: u32) -> Look {
        let owner = slice.owner(frame);
        let block = Block::from_raw(owner.block.load(Ordering::Relaxed));
        let Some(disk) = self.disks[usize::from(block.member().0)].get() else {
            return Look::Gone;
        };
        let at = block.index();
        match disk.index.cool(at, frame, |frame| self.stamp(frame)) {
            Cooled::Now => Look::Referenced,
            Cooled::Busy => Look::Busy,
            Cooled::Gone => Look::Gone,
            Cooled::Before => {
                let is_out_of_use = || self.epochs.is_over(owner.stamp.load(Ordering::Relaxed));
                if disk.index.evict(at, frame, is_out_of_use) {
                    Look::Unused
                } else {
                    Look::Busy
                }
            }
        }
    }

    /// Puts a frame that is being filled in the order in which frames go. True when its block was evicted lately: then it is to be cool when it is
    /// filled.
    pub(super) fn enlist(&self, frame: u32) -> bool {
        let slice = self.slice(frame);
        let block = slice.owner(frame).block.load(Ordering::Relaxed);
        let is_returned = self.ghosts.of(block).recall(block);
        let mut space = slice.space.lock();
        if let Some(cool) = space.order.insert(frame - slice.first, is_returned) {
            let frame = slice.first + cool;
            let block = Block::from_raw(slice.owner(frame).block.load(Ordering::Relaxed));
            if let Some(disk) = self.disks[usize::from(block.member().0)].get() {
                disk.index.cool(block.index(), frame, |frame| self.stamp(frame));
            }
        }
        is_returned
    }

    /// Gives a frame back that is no block's; it may be in the order still.
    pub(super) fn give_back(&self, frame: u32) {
        let slice = self.slice(frame);
        let mut space = slice.space.lock();
        space.order.remove(frame - slice.first);
        space.free.push(frame - slice.first);
    }

    /// Forgets a block that is nobody's any more.
    pub(super) fn forget_frame(&self, disk: &Disk, at: u64) {
        if !disk.index.has_frame(at) {
            return;
        }
        match disk.index.forget(at) {
            Forgotten::Nothing => {}
            Forgotten::Frame(frame) => self.give_back(frame),
            Forgotten::DirtyFrame(frame) => {
                self.slice(frame).dirty.fetch_sub(1, Ordering::Relaxed);
                self.give_back(frame);
            }
        }
    }
}

impl<M: Disks> Cached<M> {
    /// A frame as `take` finds one at once, or when it was waited for; outside of slots.
    pub(super) fn wait_for<T>(&self, cache: &Cache, take: impl Fn() -> Option<T>) -> Result<T, MemoryError> {
        let mut failures = 0;
        for pauses in 0..PAUSES_MAX {
            if let Some(taken) = take() {
                return Ok(taken);
            }
            // What was made cool just now is out of use when nobody is inside.
            (0..3).for_each(|_| cache.epochs.advance(&cache.slots));
            match self.save_some(cache) {
                Ok(0) if pauses < 2 => {}
                Ok(0) if pauses < 16 => std::thread::yield_now(),
                Ok(0) => std::thread::sleep(PAUSE),
                Ok(_) => {}
                // It is told to those who sync the blocks.
                Err(error) => {
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return Err(error);
                    }
                }
            }
        }
        Err(MemoryError)
    }

    /// Waits until `blocks` frames are free and may become dirty, or as many as there can be; outside of slots.
    pub(super) fn wait_for_free(&self, cache: &Cache, node: NodeId, blocks: u64) -> Result<(), MemoryError> {
        let all: u64 = cache.slices.iter().map(|slice| u64::from(slice.frames)).sum();
        // Others want some too.
        let wanted = blocks.min(all / 8).max(1);
        self.wait_for(cache, || {
            if (cache.dirty() + wanted) * DIRTY_SHARE.1 > all * DIRTY_SHARE.0 {
                return None;
            }
            let mut found = 0;
            for slice in cache.nearest(node) {
                let mut space = slice.space.lock();
                let missing = wanted.saturating_sub(found + space.free.len() as u64);
                cache.evict(slice, &mut space, usize::try_from(missing).expect("at most all frames"));
                found += space.free.len() as u64;
            }
            (found >= wanted).then_some(())
        })
    }

    /// Keeps some frames of a slice free. True when there are enough.
    pub fn tend_space(&self, slice: usize) -> bool {
        let Some(cache) = &self.cache else { return true };
        cache.epochs.advance(&cache.slots);
        let slice = &cache.slices[slice];
        let wanted = slice.kept_free();
        let mut space = slice.space.lock();
        for _ in 0..wanted.div_ceil(BATCH) {
            let missing = wanted.saturating_sub(space.free.len());
            let before = space.free.len();
            cache.evict(slice, &mut space, missing.min(BATCH));
            if space.free.len() == before {
                break;
            }
            // Threads that miss a block take their frames in between.
            MutexGuard::bump(&mut space);
        }
        space.free.len() >= wanted
    }
}
