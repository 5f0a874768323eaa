//! The cache: blocks of disks in frames of memory, in slices that belong to a node each (Jericho).
//!
//! It lies below [`Memory`]: a filesystem names blocks of disks as it names those of memory, and a [`FrameIndex`] for each disk tells which frame holds
//! a block. A hit is a copy to or from that frame, and changes nothing. Choice: docs/decisions/017-cache.md.
//!
//! `space` finds frames, `fill` reads blocks into them, `hit` copies to and from them, `save` writes them back, `gather` moves some together.
//!
//! Invariants: a frame is free, or one block's; what a thread uses is not evicted (see [`homenode_shared::Epochs`]); an error loses no dirty frame.
//! Locks: that of a slice is taken last. Nobody waits for a disk or a frame inside a slot.

mod ahead;
mod ending;
mod failures;
mod fill;
mod free;
mod gather;
mod hit;
mod save;
mod space;
mod status;
mod tail;

pub use fill::Fetch;
pub use homenode_shared::FrameIndex;
pub use status::{CacheStatus, SliceStatus};

use crate::pool::SLOTS;
use crate::{BLOCK_BYTES, Block, Disks, Meanwhile, MemberId, Memory, MemoryError, NodeId, Starved};
use ahead::Ahead;
use ending::Ending;
use failures::Failures;
use homenode_policy::eviction::Ghosts;
use homenode_policy::slices::Slices;
use homenode_shared::{Epochs, Slot, Slots};
use parking_lot::Mutex;
use save::Saving;
use space::{Slice, Use};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use tail::Tail;

/// Most bytes of a file that are written to the log instead of where they lie: one forced write of so much is faster than two.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// A slice of the cache: frames on one node.
#[derive(Clone, Copy, Debug)]
pub struct SliceOptions {
    /// Their member in memory. Those of slices follow on each other.
    pub member: MemberId,
    /// Home of the member.
    pub node: NodeId,
    /// How many.
    pub frames: u32,
}

/// Memory and disks, with a cache for the disks.
#[derive(Debug)]
pub struct Cached<M> {
    below: M,
    cache: Option<Box<Cache>>,
}

#[derive(Debug)]
struct Cache {
    /// Disks, indexed by member.
    disks: Box<[OnceLock<Box<Disk>>]>,
    /// Members that are disks now, and their number.
    members: Mutex<Vec<MemberId>>,
    disk_count: AtomicUsize,
    slices: Box<[Slice]>,
    /// Blocks that were evicted lately, by any slice: a block may come back to another one.
    ghosts: Ghosts,
    /// Frames for blocks: all but those of the log's end.
    frames: u64,
    /// The other slices of each slice, by their distance.
    others: Box<[Box<[usize]>]>,
    /// Which slice takes the next block.
    placing: Mutex<Slices>,
    /// A frame's number is its slice's above so many bits, and below them its own in the slice.
    shift: u32,
    /// Member of the first slice: here, as each miss stores to the slices' lines.
    first_member: u16,
    slots: Arc<Slots>,
    /// For those who find none free: nothing that is done with it waits for another thread's.
    common_slot: Mutex<Slot>,
    epochs: Epochs,
    tail: Tail,
    ahead: Ahead,
    /// Bytes in the place of those of disks that are only read.
    instead: OnceLock<BTreeMap<Block, Arc<[u8]>>>,
}

/// A disk with its blocks in the cache.
#[derive(Debug)]
struct Disk {
    member: MemberId,
    home: NodeId,
    index: FrameIndex,
    saving: Saving,
    ending: Ending,
    /// Frames that are being read, or are about to be.
    reading: AtomicU64,
    /// Reads that failed.
    unread: Mutex<Failures>,
    /// It was taken away, and no block of it is anybody's any more.
    is_gone: AtomicBool,
}

/// Most frames of each of so many slices, as they have numbers: 512 GiB of one, 256 of two, 64 of eight.
#[must_use]
pub fn slice_frames_max(slices: usize) -> u32 {
    let each = FrameIndex::FRAMES_MAX / u32::try_from(slices.max(1)).unwrap_or(u32::MAX);
    1 << each.max(1).ilog2()
}

impl<M> Cached<M> {
    /// No cache: there are no disks.
    pub const fn without_cache(below: M) -> Self {
        Self { below, cache: None }
    }

    /// A cache in these slices, one at least, all of whose frames are there. `distances[a][b]` orders slices as the latency from the node of slice `a` to
    /// memory of slice `b` does.
    ///
    /// # Panics
    /// When there is not a distance for each two slices, or one has more than [`slice_frames_max`].
    pub fn new(below: M, slices: &[SliceOptions], distances: &[Vec<u32>]) -> Self {
        let frames: Vec<u64> = slices.iter().map(|slice| slice.frames.into()).collect();
        let placing = Slices::new(&frames, distances);
        let others = (0..frames.len()).map(|slice| placing.nearest(slice).into()).collect();
        let largest = slices.iter().map(|slice| slice.frames).max().expect("slices exist");
        assert!(largest <= slice_frames_max(slices.len()), "too many frames");
        let shift = u32::BITS - (largest.max(2) - 1).leading_zeros();
        let slices: Box<[Slice]> = (0..)
            .zip(slices)
            .map(|(at, options)| Slice::new(*options, at << shift))
            .collect();
        let all: usize = slices.iter().map(|slice| slice.frames as usize).sum();
        let tail: Vec<u32> = slices
            .iter()
            .flat_map(Slice::take_all)
            .take(Tail::frames(all))
            .collect();
        let first_member = slices[0].member.0;
        let slots = Slots::new(SLOTS);
        let common_slot = slots.claim().expect("the first slot is free");
        let cache = Cache {
            members: Mutex::default(),
            disk_count: AtomicUsize::new(0),
            disks: (0..MemberId::LIMIT).map(|_| OnceLock::new()).collect(),
            slices,
            ghosts: Ghosts::new(all),
            frames: (all - tail.len()) as u64,
            others,
            placing: Mutex::new(placing),
            shift,
            first_member,
            slots,
            common_slot: Mutex::new(common_slot),
            epochs: Epochs::default(),
            tail: Tail::new(tail),
            ahead: Ahead::default(),
            instead: OnceLock::new(),
        };
        Self {
            below,
            cache: Some(Box::new(cache)),
        }
    }

    /// Memory and disks themselves.
    pub const fn below(&self) -> &M {
        &self.below
    }

    /// Whether there is a cache.
    pub const fn has_cache(&self) -> bool {
        self.cache.is_some()
    }

    /// Caches the disk `member` with the blocks of `index`, at home on `home`, from now on.
    ///
    /// # Panics
    /// Without a cache, or when there is one of that number.
    pub fn add_disk(&self, member: MemberId, home: NodeId, index: FrameIndex) {
        let cache = self.cache.as_ref().expect("`add_disk` needs a cache");
        let disk = Disk {
            member,
            home,
            index,
            saving: Saving::default(),
            ending: Ending::default(),
            reading: AtomicU64::new(0),
            unread: Mutex::default(),
            is_gone: AtomicBool::new(false),
        };
        let place = &cache.disks[usize::from(member.0)];
        place.set(Box::new(disk)).expect("the member's number is new");
        cache.change_members(|members| members.push(member));
    }

    /// Forgets the disk `member`, no block of which is anybody's any more.
    pub fn remove_disk(&self, member: MemberId) {
        if let Some((cache, disk)) = self.disk(member) {
            // Release: before its requests fail. And no block of it is read into a frame any more: see `Disk::begin_reads`.
            disk.is_gone.store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            cache.change_members(|members| members.retain(|other| *other != member));
            cache.forget_tail(Block::new(member, 0), disk.index.blocks());
            // Those of its superblocks, and of blocks that were read just when a drain took them away.
            for block in cache.slices.iter().flat_map(Slice::blocks) {
                if block.member() == member {
                    cache.forget_frame(disk, block.index());
                }
            }
            disk.index.clear();
        }
    }

    /// Whether a member is frames.
    fn is_frame(&self, member: MemberId) -> bool {
        let has = |cache: &Cache| cache.slices.iter().any(|slice| slice.member == member);
        self.cache.as_deref().is_some_and(has)
    }

    /// The cache and the disk that a block lies on, if it is cached.
    #[inline(always)]
    fn disk(&self, member: MemberId) -> Option<(&Cache, &Disk)> {
        let cache = self.cache.as_ref()?;
        let disk = cache.disks.get(usize::from(member.0))?.get()?;
        Some((cache, disk))
    }
}

impl Cache {
    fn change_members(&self, change: impl FnOnce(&mut Vec<MemberId>)) {
        let mut members = self.members.lock();
        change(&mut members);
        // Relaxed: a figure.
        self.disk_count.store(members.len(), Ordering::Relaxed);
    }

    /// The block in memory that a frame is; of a guess that is wrong, there may be no such block.
    #[inline(always)]
    fn block(&self, frame: u32) -> Block {
        #[expect(clippy::cast_possible_truncation, reason = "a cache has fewer than 2^16 slices")]
        let slice = (frame >> self.shift) as u16;
        let member = MemberId(self.first_member.wrapping_add(slice));
        Block::new(member, u64::from(frame & ((1 << self.shift) - 1)))
    }

    fn slice(&self, frame: u32) -> &Slice {
        &self.slices[(frame >> self.shift) as usize]
    }
}

impl<M: Disks> Cached<M> {
    /// Calls `act` for each block that bytes of disks lie in: the number of bytes before, the block, the offset in it, and their number.
    fn each_block(
        at: Block,
        offset: usize,
        bytes: usize,
        mut act: impl FnMut(usize, Block, usize, usize) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut done = 0;
        while done < bytes {
            let start = offset + done;
            let in_block = start % BLOCK_BYTES;
            let count = (BLOCK_BYTES - in_block).min(bytes - done);
            act(done, at.plus((start / BLOCK_BYTES) as u64), in_block, count)?;
            done += count;
        }
        Ok(())
    }

    /// Calls `act` with the block in memory where a block of a disk is, fetched first if need be.
    fn with_frame(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: Block,
        act: impl Fn(Block) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        // Outside of a filesystem's gates the thread may have one already, or there may be more threads than slots.
        let own = cache.slots.claim();
        let common = own.is_none().then(|| cache.common_slot.lock());
        let slot = own.as_ref().or(common.as_deref()).expect("one of both is there");
        loop {
            {
                let _inside = slot.stay();
                if let Ok(frame) = disk.index.warm(at.index()) {
                    return act(cache.block(frame));
                }
            }
            self.fill((cache, disk), disk.home, at.index(), 1)?;
        }
    }

    /// Stores something into a block of a disk: all of it, when it `is_whole`.
    fn change(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: Block,
        is_whole: bool,
        act: impl Fn(Block) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        if is_whole && self.fill_new((cache, disk), at.index(), &act)? {
            return Ok(());
        }
        let may_be_dirty = |_| (cache.may_store(disk, at.index(), 1) > 0).then_some(());
        self.wait_for(cache, Use::Store(disk), may_be_dirty)?;
        self.with_frame((cache, disk), at, |frame| {
            let stored = act(frame);
            cache.note_stored(disk, at.index(), 1);
            stored
        })
    }
}

impl Cache {
    /// Makes frames dirty after stores into them.
    #[inline]
    fn note_stored(&self, disk: &Disk, at: u64, blocks: u64) {
        // After the stores: whoever takes the dirt away sees them, or it is seen to be gone.
        self.slots.barrier_inside();
        for at in at..at + blocks {
            if !disk.index.is_dirty(at) {
                self.mark_dirty(disk, at);
            }
        }
    }

    #[inline(never)]
    fn mark_dirty(&self, disk: &Disk, at: u64) {
        if let Some(frame) = disk.index.mark_dirty(at) {
            self.note_dirty(disk, frame);
        }
    }
}

impl<M: Disks> Memory for Cached<M> {
    #[inline]
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(from.member()) else {
            return self.below.load(from, offset, to);
        };
        self.fill_all(disk, from, offset, to.len())?;
        let mut rest = to;
        Self::each_block(from, offset, rest.len(), |_, at, in_block, bytes| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes);
            rest = later;
            if let Some(loaded) = self.load_from_tail(disk.0, at, in_block, now) {
                return loaded;
            }
            let now = std::cell::RefCell::new(now);
            self.with_frame(disk, at, |frame| {
                self.below.load(frame, in_block, &mut now.borrow_mut())
            })
        })
    }

    #[inline]
    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(to.member()) else {
            return self.below.store(to, offset, from);
        };
        Self::each_block(to, offset, from.len(), |done, at, in_block, bytes| {
            let now = &from[done..done + bytes];
            self.change(disk, at, bytes == BLOCK_BYTES, |frame| {
                self.below.store(frame, in_block, now)
            })
        })
    }

    fn store_clean(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        match self.disk(to.member()) {
            None if !self.is_frame(to.member()) => self.below.store_clean(to, offset, from),
            _ => self.store(to, offset, from),
        }
    }

    fn append(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(to.member()) else {
            return self.below.append(to, offset, from);
        };
        Self::each_block(to, offset, from.len(), |done, at, in_block, bytes| {
            self.append_block(disk, at, in_block, &from[done..done + bytes])
        })
    }

    fn show_instead(&self, mut blocks: BTreeMap<Block, Arc<[u8]>>) -> Result<(), MemoryError> {
        let Some(cache) = &self.cache else {
            return self.below.show_instead(blocks);
        };
        // Not in frames: there may be fewer, and none that is dirty can be given back.
        let others = blocks
            .extract_if(.., |at, _| self.disk(at.member()).is_none())
            .collect();
        cache.instead.set(blocks).expect("a pool is opened once");
        self.below.show_instead(others)
    }

    #[inline]
    fn announce(&self, at: Block, offset: usize, bytes: usize, to_write: bool) {
        self.below.announce(at, offset, bytes, to_write);
    }

    #[inline]
    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(at.member()) else {
            return self.below.zero(at, offset, bytes);
        };
        Self::each_block(at, offset, bytes, |_, at, in_block, bytes| {
            self.change(disk, at, bytes == BLOCK_BYTES, |frame| {
                self.below.zero(frame, in_block, bytes)
            })
        })
    }

    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError> {
        if self.disk(from.member()).is_none() && self.disk(to.member()).is_none() {
            return self.below.copy(from, to, blocks);
        }
        // What must be read comes by requests of so many blocks.
        let count = |left: u64| usize::try_from(left).unwrap_or(usize::MAX).min(M::BLOCKS_MAX);
        let mut stage = vec![0; count(blocks) * BLOCK_BYTES];
        for at in (0..blocks).step_by(M::BLOCKS_MAX) {
            let bytes = &mut stage[..count(blocks - at) * BLOCK_BYTES];
            self.load(from.plus(at), 0, bytes)?;
            self.store(to.plus(at), 0, bytes)?;
        }
        Ok(())
    }

    fn populate(&self, member: MemberId, first: u64, blocks: u64) -> Result<(), Starved> {
        self.below.populate(member, first, blocks)
    }

    fn depopulate(&self, member: MemberId) -> bool {
        self.below.depopulate(member)
    }

    #[inline]
    fn is_there(&self, at: Block, offset: usize, bytes: usize) -> bool {
        self.disk(at.member()).is_some() || self.below.is_there(at, offset, bytes)
    }

    fn persist(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(at.member()) else {
            return self.below.persist(at, offset, bytes);
        };
        self.save_bytes(disk, at, offset, bytes)?;
        self.flush(disk.1)
    }

    fn persist_each(&self, stretches: &[(Block, usize)]) -> Result<(), MemoryError> {
        let disk = stretches.first().and_then(|(at, _)| self.disk(at.member()));
        let Some(disk) = disk else {
            return self.below.persist_each(stretches);
        };
        if stretches.len() > 1 && !disk.1.saving.is_hopeless() {
            let range = |(at, bytes): &(Block, usize)| at.index()..at.index() + bytes.div_ceil(BLOCK_BYTES) as u64;
            self.save_together(disk, stretches.iter().map(range));
        }
        let mut saved = Ok(());
        for (at, bytes) in stretches {
            saved = self.save_bytes(disk, *at, 0, *bytes).and(saved);
            // A disk that takes nothing may take long for each.
            if saved.is_err() && disk.1.saving.is_hopeless() {
                break;
            }
        }
        saved.and(self.flush(disk.1))
    }

    fn persist_all(&self, member: MemberId) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(member) else {
            return self.below.persist_all(member);
        };
        // The end of the log is made durable by itself.
        self.save_all(disk)?;
        self.flush(disk.1)
    }

    #[inline]
    fn is_cached(&self, member: MemberId) -> bool {
        self.disk(member).is_some()
    }

    fn has_lost(&self, member: MemberId) -> bool {
        // SeqCst: as where it is set.
        self.disk(member)
            .is_none_or(|(_, disk)| disk.saving.has_lost.load(Ordering::SeqCst))
    }

    #[inline]
    fn may_store(&self, at: Block, blocks: u64) -> u64 {
        match self.disk(at.member()) {
            Some((cache, disk)) => cache.may_store(disk, at.index(), blocks),
            None => blocks,
        }
    }

    fn inline_bytes_max(&self) -> usize {
        let own = if self.has_cache() { INLINE_BYTES_MAX } else { 0 };
        self.below.inline_bytes_max().max(own)
    }

    fn locate_one(&self, at: Block) -> Option<Block> {
        Some(self.locate(at, 1)?.0)
    }

    #[inline(always)]
    fn locate(&self, at: Block, most: u64) -> Option<(Block, u64)> {
        if self.cache.is_none() {
            return Some((at, most));
        }
        self.locate_run(at, most)
    }

    #[inline(always)]
    fn load_located(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        self.below.load(from, offset, to)
    }

    #[inline(always)]
    fn store_located(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.below.store(to, offset, from)
    }

    #[inline(always)]
    fn load_meanwhile(
        &self,
        from: Block,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Result<(), MemoryError> {
        self.below.load_meanwhile(from, offset, to, meanwhile)
    }

    #[inline(always)]
    fn store_meanwhile(
        &self,
        to: Block,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Result<(), MemoryError> {
        self.below.store_meanwhile(to, offset, from, meanwhile)
    }

    #[inline(always)]
    fn load_block(
        &self,
        from: Block,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        match self.disk(from.member()) {
            Some(disk) => self.load_hit(disk, from.index(), offset, to, meanwhile),
            None => Some(self.below.load_meanwhile(from, offset, to, meanwhile)),
        }
    }

    #[inline(always)]
    fn store_block(
        &self,
        to: Block,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        match self.disk(to.member()) {
            Some(disk) => self.store_hit(disk, to.index(), offset, from, meanwhile),
            None => Some(self.below.store_meanwhile(to, offset, from, meanwhile)),
        }
    }

    fn is_here(&self, at: Block) -> bool {
        let here = |(_, disk): (&Cache, &Disk)| disk.index.has_frame(at.index()) && !disk.index.is_filling(at.index());
        self.disk(at.member()).is_none_or(here)
    }

    fn end_fetches(&self, at: Block) {
        if let Some(disk) = self.disk(at.member()) {
            self.end_reads(disk, at.index());
        }
    }

    #[inline(always)]
    fn note_stored(&self, at: Block, blocks: u64) {
        if let Some((cache, disk)) = self.disk(at.member()) {
            cache.note_stored(disk, at.index(), blocks);
        }
    }

    #[inline(always)]
    fn make(&self, node: NodeId, at: Block, blocks: u64) -> u64 {
        let Some((cache, disk)) = self.disk(at.member()) else {
            return blocks;
        };
        let all = at.index()..at.index() + blocks;
        all.take_while(|at| cache.make(disk, node, *at)).count() as u64
    }

    fn put(&self, node: NodeId, at: Block, from: &[u8]) -> Option<Result<(), MemoryError>> {
        let Some(disk) = self.disk(at.member()) else {
            return Some(self.below.store(at, 0, from));
        };
        self.put_at_once(disk, node, at.index(), from)
    }

    fn fetch(&self, node: NodeId, at: Block, blocks: u64) -> Result<(), MemoryError> {
        let Some(disk) = self.disk(at.member()) else {
            return Ok(());
        };
        // Blocks of a disk that was taken away meanwhile are found elsewhere by now.
        let is_gone = || disk.1.is_gone.load(Ordering::Acquire);
        self.fill(disk, node, at.index(), blocks)
            .or_else(|error| if is_gone() { Ok(()) } else { Err(error) })
    }

    fn begin_fetch(&self, node: NodeId, at: Block, blocks: u64) -> Option<Fetch> {
        self.begin_fetch_of(self.disk(at.member())?, node, at, blocks)
    }

    fn is_coming(&self, at: Block) -> bool {
        let disk = self.disk(at.member());
        disk.is_some_and(|(_, disk)| disk.index.has_frame(at.index()))
    }

    fn is_busy(&self, at: Block) -> bool {
        let disk = self.disk(at.member());
        disk.is_some_and(|(cache, disk)| disk.index.has_frame(at.index()) || !cache.has_turn(disk))
    }

    fn end_fetch(&self, fetch: Fetch, is_read: bool) {
        self.end_fetch_of(fetch, is_read);
    }

    fn fetch_soon(&self, stretches: &[(NodeId, Block, u64)], mut marked: bool) {
        for of_disk in stretches.chunk_by(|(_, one, _), (_, other, _)| one.member() == other.member()) {
            if let Some(disk) = self.disk(of_disk[0].1.member()) {
                self.fill_soon(disk, of_disk, std::mem::take(&mut marked));
            }
        }
    }

    fn cool(&self, at: Block, blocks: u64) {
        if let Some((cache, disk)) = self.disk(at.member()) {
            (at.index()..at.index() + blocks).for_each(|at| cache.cool(disk, at));
        }
    }

    fn fetch_max(&self) -> u64 {
        let all = |cache: &Cache| cache.slices.iter().map(|slice| u64::from(slice.frames)).sum::<u64>();
        self.cache.as_deref().map_or(u64::MAX, |cache| (all(cache) / 8).max(2))
    }

    fn wait_for_places(&self, node: NodeId, member: MemberId, blocks: u64) -> Result<(), MemoryError> {
        match self.disk(member) {
            Some(disk) => self.wait_for_free(disk, node, blocks),
            None => Ok(()),
        }
    }

    fn forget(&self, at: Block, blocks: u64) {
        let Some((cache, disk)) = self.disk(at.member()) else {
            return self.below.forget(at, blocks);
        };
        cache.forget_tail(at, blocks);
        (at.index()..at.index() + blocks).for_each(|at| cache.forget_frame(disk, at));
    }

    fn homes(&self) -> Vec<(MemberId, NodeId)> {
        let slices = self.cache.iter().flat_map(|cache| &cache.slices);
        slices.map(|slice| (slice.member, slice.node)).collect()
    }

    fn slots(&self) -> Option<Arc<Slots>> {
        self.cache.as_ref().map(|cache| Arc::clone(&cache.slots))
    }
}

impl<M: Disks> Cached<M> {
    #[inline]
    fn locate_run(&self, at: Block, most: u64) -> Option<(Block, u64)> {
        let Some((cache, disk)) = self.disk(at.member()) else {
            return Some((at, most));
        };
        let first = disk.index.warm(at.index()).ok()?;
        let mut blocks = 1;
        // A frame of another slice is no neighbour: numbers are not dense.
        let is_last = |frame: u32| (frame + 1).trailing_zeros() >= cache.shift;
        let mut frame = first;
        while blocks < most && !is_last(frame) && disk.index.find(at.index() + blocks) == Some(frame + 1) {
            frame += 1;
            blocks += 1;
        }
        Some((cache.block(first), blocks))
    }
}

#[cfg(test)]
mod tests;
