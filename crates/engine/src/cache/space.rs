//! Frames of a slice: which are free, and which block has each of the others.

use super::free::{Free, RUN};
use super::gather::Gather;
use super::save::count;
use super::{Cache, Cached, Disk, SliceOptions};
use crate::log::planted::{Planted, is_planted};
use crate::{Block, Disks, MemberId, MemoryError, NodeId};
use homenode_policy::eviction::{Eviction, Look, Victim};
use homenode_shared::{Cooled, Forgotten, FrameIndex, prefetch};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Frames that are evicted at a time when one is wanted.
const BATCH: usize = 16;
/// Frames that are evicted at a time when many are wanted, at most, but for those of their runs: adjacent ones whose turns are a little apart are then free
/// at the same time, and stay adjacent.
const BATCH_OF_MANY: usize = 128;
/// Frames that are evicted at a time by those who tend a slice.
const TENDED: usize = 256;
/// Divisor of a slice's frames: the threads that tend the slice keep as many frames free as the quotient.
const FREE_SHARE: u32 = 64;
/// Pause of a thread that waits for a frame, and pauses after which it gives up when no block is read or written meanwhile: ten seconds.
pub(super) const PAUSE: Duration = Duration::from_micros(200);
pub(super) const PAUSES_MAX: u32 = 50_000;
/// Busy frames that who waits for one passes at a time: many dirty ones of a disk that cannot be written may lie one behind the other.
const PASSED: u32 = 1024;
/// Looks of a thread for as many free frames as it wants, for half of them, and so on.
const LOOKS_FOR_ALL: u32 = 8;
/// Pauses after which a reader writes dirty frames, as there is no other way to a frame: ten milliseconds.
const READ_PAUSES: u32 = 64;
/// Looks before a thread sleeps between them.
const SPINS: u32 = 16;
/// Pauses for which a thread waits at a time that some write ends.
const WRITE_PAUSES: u32 = 50;

/// Purpose of a frame that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use<'a> {
    /// Bytes of a disk: there is a clean frame soon, whatever becomes of the dirty ones.
    Read,
    /// New bytes for this disk, of which others may have to be written first.
    Store(&'a Disk),
}

// Hits of one slice's blocks store nothing; what misses store to shares no line with another slice's.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slice {
    pub(super) member: MemberId,
    pub(super) node: NodeId,
    /// Number of its first frame.
    pub(super) first: u32,
    pub(super) frames: u32,
    owners: Box<[Owner]>,
    pub(super) space: Mutex<Space>,
    /// Dirty frames. Relaxed, here and below: figures.
    pub(super) dirty: AtomicI64,
    /// Blocks that were read.
    pub(super) fetched: AtomicU64,
    /// Blocks that were written.
    pub(super) saved: AtomicU64,
    /// Frames given to others' nodes.
    pub(super) stolen: AtomicU64,
    pub(super) returned: AtomicU64,
    /// Epoch in which a frame became cool last.
    cooled: AtomicU32,
}

/// The block that has a frame, and the epoch in which the frame became cool.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) block: AtomicU64,
    pub(super) stamp: AtomicU32,
    /// The block was read ahead: its next use may be its first.
    is_ahead: AtomicBool,
}

impl Owner {
    /// Names the block that is about to have the frame.
    pub(super) fn give(&self, block: Block) {
        // Relaxed, here and elsewhere: the lock of the order shows both.
        self.block.store(block.to_raw(), Ordering::Relaxed);
        self.is_ahead.store(false, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Space {
    pub(super) free: Free,
    pub(super) order: Eviction,
    pub(super) gather: Gather,
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
                    is_ahead: AtomicBool::new(false),
                })
                .collect(),
            space: Mutex::new(Space {
                free: Free::new(frames),
                order: Eviction::new(frames),
                gather: Gather::default(),
            }),
            dirty: AtomicI64::new(0),
            fetched: AtomicU64::new(0),
            saved: AtomicU64::new(0),
            stolen: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            cooled: AtomicU32::new(0),
        }
    }

    /// Memory that a frame takes besides its bytes.
    pub(super) const TABLE_BYTES: usize = size_of::<Owner>() + Free::BYTES + 12;

    /// Takes free frames away for good, one after the other.
    pub(super) fn take_all(&self) -> impl Iterator<Item = u32> {
        let take = move |frame: u32| self.space.lock().free.take(frame.into(), Some(frame), None, false);
        (0..self.frames).map_while(take).map(|taken| self.first + taken.frame)
    }

    /// Frames that those who tend it keep free.
    fn kept_free(&self) -> usize {
        (self.frames / FREE_SHARE).max(1) as usize
    }

    /// Whether runs may be evicted as a whole: a small slice has too few to give one away.
    fn has_runs(&self) -> bool {
        RUN as usize <= self.kept_free()
    }

    pub(super) fn owner(&self, frame: u32) -> &Owner {
        &self.owners[(frame - self.first) as usize]
    }

    /// The block of each frame, or the one that it had last.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        let block = |owner: &Owner| Block::from_raw(owner.block.load(Ordering::Relaxed));
        self.owners.iter().map(block)
    }

    /// Free frames, and those with a block.
    pub(super) fn counts(&self) -> (u64, u64) {
        let space = self.space.lock();
        (space.free.len() as u64, space.order.used().into())
    }
}

const _: () = assert!(Slice::TABLE_BYTES <= 32);

impl Cache {
    /// Numbers of the slices by their distance from `node`.
    fn nearest(&self, node: NodeId) -> impl Iterator<Item = usize> {
        let own = self.number_of(node);
        std::iter::once(own).chain(self.others[own].iter().copied())
    }

    pub(super) fn number_of(&self, node: NodeId) -> usize {
        self.slices.iter().position(|slice| slice.node == node).unwrap_or(0)
    }

    /// Most blocks that are placed at a time.
    fn placed_max(&self) -> usize {
        let all = self.slices.iter().map(|slice| slice.frames as usize).sum::<usize>();
        if self.slices.len() == 1 {
            all
        } else {
            (all / 500).max(1)
        }
    }

    /// Takes frames for blocks that `node` misses: of the slice whose turn it is, or else of the nearest one that has some. Gives what `take` does, and
    /// notes how many that are.
    fn take_by<T>(&self, node: NodeId, count: impl Fn(&T) -> usize, take: impl Fn(&Slice) -> Option<T>) -> Option<T> {
        let chosen = self.choose(node);
        let all = std::iter::once(chosen).chain(self.nearest(node));
        let (number, taken) = all
            .map(|number| (number, take(&self.slices[number])))
            .find(|(_, taken)| taken.is_some())?;
        let (slice, blocks) = (&self.slices[number], taken.as_ref().map_or(0, count) as u64);
        if slice.node != node {
            slice.stolen.fetch_add(blocks, Ordering::Relaxed);
        }
        if self.slices.len() > 1 {
            self.placing.lock().note_placed(self.number_of(node), number, blocks);
        }
        taken
    }

    /// Number of the slice that takes the next blocks that `node` misses.
    fn choose(&self, node: NodeId) -> usize {
        if self.slices.len() == 1 {
            return 0;
        }
        let own = self.number_of(node);
        // More than is kept free for the node's own. All who miss wait here: not for one who has a slice locked.
        let has_free = |number: usize| {
            let slice = &self.slices[number];
            let space = slice.space.try_lock();
            space.map_or(number == own, |space| space.free.len() > 2 * slice.kept_free())
        };
        self.placing.lock().choose(own, has_free)
    }

    /// Notes that so many blocks which `node` missed had been evicted lately.
    pub(super) fn note_returned(&self, node: NodeId, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let number = self.number_of(node);
        // Relaxed: a figure.
        self.slices[number].returned.fetch_add(blocks, Ordering::Relaxed);
        if self.slices.len() > 1 {
            self.placing.lock().note_returned(number, blocks);
        }
    }

    /// Notes the epoch in which a frame becomes cool.
    pub(super) fn stamp(&self, frame: u32) {
        let (slice, now) = (self.slice(frame), self.epochs.now());
        // Relaxed: the change of the word that follows shows it.
        slice.owner(frame).stamp.store(now, Ordering::Relaxed);
        slice.cooled.store(now, Ordering::Relaxed);
    }

    /// A free frame of a slice for a block, beside those of the block's run if possible, or else `next`: see [`Free::take`].
    fn take_for(
        &self,
        slice: &Slice,
        space: &mut Space,
        block: Block,
        next: Option<u32>,
        reserves: bool,
    ) -> Option<u32> {
        let index = &self.disks[usize::from(block.member().0)].get()?.index;
        // Frames of other slices are beyond those of this one, and not free.
        let own = |frame: u32| frame.wrapping_sub(slice.first);
        let beside = index.beside(block.index()).map(own);
        let taken = space.free.take(block.index(), beside, next.map(own), reserves)?;
        let frame = slice.first + taken.frame;
        if taken.is_reserved {
            index.reserve(block.index(), frame);
        }
        Some(frame)
    }

    /// A free frame for a block of a disk, on `node` if possible; `None` when none can be evicted at once.
    /// Passes so many busy frames `more` on the way.
    pub(super) fn take_passing(&self, more: u32, node: NodeId, block: Block) -> Option<u32> {
        let take = |slice: &Slice| {
            let mut space = slice.space.lock();
            if space.free.len() == 0 {
                self.evict_passing(more, slice, &mut space, BATCH);
            }
            self.take_for(slice, &mut space, block, None, false)
        };
        let frame = self.take_by(node, |_| 1, take)?;
        self.slice(frame).owner(frame).give(block);
        Some(frame)
    }

    /// Free frames of one slice for some of the first of `blocks` blocks from `first` on, as [`Cache::take_passing`]: in their
    /// order, adjacent where possible.
    pub(super) fn take_some(&self, node: NodeId, first: Block, blocks: usize) -> Vec<u32> {
        let blocks = blocks.min(self.placed_max());
        let are_many = blocks >= BATCH;
        let take = |slice: &Slice| {
            let mut space = slice.space.lock();
            let missing = blocks.saturating_sub(space.free.len());
            if missing > 0 && are_many {
                let batch = slice.kept_free().clamp(BATCH, BATCH_OF_MANY);
                self.evict_runs(slice, &mut space, missing.max(batch));
            } else if missing > 0 {
                self.evict(slice, &mut space, missing.max(BATCH));
            }
            let mut frames: Vec<u32> = Vec::new();
            for block in (0..blocks as u64).map(|next| first.plus(next)) {
                let next = frames.last().map(|frame| frame + 1);
                let reserves = are_many && (next.is_none() || block.index().is_multiple_of(FrameIndex::RUN));
                match self.take_for(slice, &mut space, block, next, reserves) {
                    Some(frame) => frames.push(frame),
                    None => break,
                }
            }
            // A break at the end of each run, and one more, are to be.
            let breaks = frames.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
            if slice.has_runs() && breaks > frames.len() / RUN as usize + 1 {
                space.gather.want();
            }
            (!frames.is_empty()).then_some(frames)
        };
        let frames = self.take_by(node, Vec::len, take).unwrap_or_default();
        for (at, frame) in (0..).zip(&frames) {
            self.slice(*frame).owner(*frame).give(first.plus(at));
        }
        frames
    }

    /// [`Cache::take_passing`] for bytes that are not the disk's.
    pub(super) fn take_for_new(&self, more: u32, disk: &Disk, node: NodeId, block: Block) -> Option<u32> {
        let has_room = self.room_for_dirt(disk) > 0;
        has_room.then(|| self.take_passing(more, node, block)).flatten()
    }

    /// How many of the first of some blocks with frames may be stored into now: dirty ones may always.
    #[inline]
    pub(super) fn may_store(&self, disk: &Disk, at: u64, blocks: u64) -> u64 {
        let clean = (0..blocks).filter(|next| !disk.index.is_dirty(at + next));
        if clean.clone().next().is_none() {
            return blocks;
        }
        self.may_become_dirty(disk, clean).unwrap_or(blocks)
    }

    /// The first of some clean blocks that may not become dirty now.
    #[cold]
    fn may_become_dirty(&self, disk: &Disk, mut clean: impl Iterator<Item = u64>) -> Option<u64> {
        let room = usize::try_from(self.room_for_dirt(disk)).unwrap_or(usize::MAX);
        clean.nth(room)
    }

    /// A number that changes when blocks are read or written.
    fn progress(&self) -> u64 {
        let of = |slice: &Slice| slice.fetched.load(Ordering::Relaxed) + slice.saved.load(Ordering::Relaxed);
        self.slices.iter().map(of).sum()
    }

    /// Evicts up to `most` frames.
    fn evict(&self, slice: &Slice, space: &mut Space, most: usize) {
        self.evict_passing(0, slice, space, most);
    }

    fn evict_passing(&self, more: u32, slice: &Slice, space: &mut Space, most: usize) {
        for done in 0..most {
            if done.is_multiple_of(BATCH) {
                let upcoming = space.order.upcoming().take(BATCH.min(most - done));
                upcoming.for_each(|frame| self.announce(slice, frame));
            }
            let mut look = |frame| self.look(slice, slice.first + frame);
            let victim = space.order.evict_passing(more, &mut look);
            let Some(victim) = victim else { break };
            self.free(slice, space, victim);
        }
    }

    /// Evicts `least` frames or more: all that may go early of the run to which the next one belongs, where those are most of the run. Runs that requests
    /// for few frames have broken up are thus nearly free as a whole again.
    fn evict_runs(&self, slice: &Slice, space: &mut Space, least: usize) {
        let enough = space.free.len() + least;
        while space.free.len() < enough {
            let before = space.free.len();
            let run = space.order.upcoming().next().map(Free::run_of);
            let run = run.filter(|run| run.end <= slice.frames && slice.has_runs());
            let run = run.unwrap_or_default();
            let early = run.clone().filter(|frame| space.order.may_go_early(*frame)).count();
            if 4 * early >= 3 * run.len() {
                run.clone().for_each(|frame| self.announce(slice, frame));
                for frame in run {
                    let victim = space
                        .order
                        .evict_early(frame, &mut |frame| self.look(slice, slice.first + frame));
                    victim.into_iter().for_each(|victim| self.free(slice, space, victim));
                }
            }
            if space.free.len() == before {
                self.evict(slice, space, BATCH);
            }
            if space.free.len() == before {
                break;
            }
        }
    }

    fn free(&self, slice: &Slice, space: &mut Space, victim: Victim) {
        self.remember(slice, victim);
        space.free.put(victim.frame);
    }

    /// Remembers the block of a victim, if its key belongs into the ghosts.
    pub(super) fn remember(&self, slice: &Slice, Victim { frame, is_remembered }: Victim) {
        if is_remembered {
            let block = slice.owner(slice.first + frame).block.load(Ordering::Relaxed);
            self.ghosts.remember(block);
        }
    }

    /// Announces the word and the ghosts of a frame's block, which are in no cache of the processor where there are many frames. Otherwise these loads
    /// wait for each other, as an atomic change holds up later loads.
    fn announce(&self, slice: &Slice, frame: u32) {
        let block = slice.owner(slice.first + frame).block.load(Ordering::Relaxed);
        self.announce_block(Block::from_raw(block));
    }

    /// [`Cache::announce`] of the frame of a block, or of the one that it is about to have.
    pub(super) fn announce_block(&self, block: Block) {
        if let Some(disk) = self.disks[usize::from(block.member().0)].get() {
            disk.index.announce(block.index());
        }
        prefetch(self.ghosts.address(block.to_raw()), 64);
    }

    /// Makes a frame cool, or takes it away from its block.
    pub(super) fn look(&self, slice: &Slice, frame: u32) -> Look {
        let owner = slice.owner(frame);
        let block = Block::from_raw(owner.block.load(Ordering::Relaxed));
        let Some(disk) = self.disks[usize::from(block.member().0)].get() else {
            return Look::Gone;
        };
        let at = block.index();
        if is_planted(Planted::DirtyEvicted) && disk.index.begin_save(at).is_some() {
            self.note_clean(disk, frame);
            disk.index.end_save(at, |frame| self.stamp(frame));
        }
        match disk.index.cool(at, frame, |frame| self.stamp(frame)) {
            Cooled::Now if owner.is_ahead.swap(false, Ordering::Relaxed) => Look::First,
            Cooled::Now => Look::Referenced,
            Cooled::Busy => Look::Busy,
            Cooled::Gone => Look::Gone,
            Cooled::Before => {
                let is_out_of_use = || self.epochs.is_over(owner.stamp.load(Ordering::Relaxed));
                if disk.index.evict(at, frame, is_out_of_use) {
                    Look::Unused
                } else {
                    Look::Young
                }
            }
        }
    }

    /// Puts a frame that is being filled in the order in which frames go. True when its block was evicted lately: then it is to be cool when it is
    /// filled.
    pub(super) fn enlist(&self, frame: u32) -> bool {
        let slice = self.slice(frame);
        let is_returned = self.recall(slice, frame);
        self.insert(slice, &mut slice.space.lock(), frame, is_returned);
        is_returned
    }

    /// [`Cache::enlist`] of adjacent blocks' frames, of one slice, each with the same result, that of most: a stream's frames stay together, and come
    /// back together.
    pub(super) fn enlist_all(&self, frames: &[u32]) -> Vec<(u32, bool)> {
        let Some(first) = frames.first() else { return Vec::new() };
        let slice = self.slice(*first);
        // Each is asked for, as that takes its ghost away.
        let returned = frames.iter().filter(|frame| self.recall(slice, **frame)).count();
        let is_returned = 2 * returned > frames.len();
        let mut space = slice.space.lock();
        for frame in frames {
            self.insert(slice, &mut space, *frame, is_returned);
        }
        frames.iter().map(|frame| (*frame, is_returned)).collect()
    }

    /// Notes that the block of a frame was read ahead.
    pub(super) fn note_ahead(&self, frame: u32) {
        self.slice(frame).owner(frame).is_ahead.store(true, Ordering::Relaxed);
    }

    /// Makes a block cool that is not likely to be wanted soon, unless it is dirty.
    pub(super) fn cool(&self, disk: &Disk, at: u64) {
        if let Some(frame) = disk.index.find(at) {
            disk.index.cool(at, frame, |frame| self.stamp(frame));
        }
    }

    fn recall(&self, slice: &Slice, frame: u32) -> bool {
        let block = slice.owner(frame).block.load(Ordering::Relaxed);
        self.ghosts.recall(block)
    }

    fn insert(&self, slice: &Slice, space: &mut Space, frame: u32, is_returned: bool) {
        let Some(cool) = space.order.insert(frame - slice.first, is_returned) else {
            return;
        };
        if let Some(next) = space.order.next_to_leave_window() {
            self.announce(slice, next);
        }
        let frame = slice.first + cool;
        let block = Block::from_raw(slice.owner(frame).block.load(Ordering::Relaxed));
        if let Some(disk) = self.disks[usize::from(block.member().0)].get() {
            disk.index.cool(block.index(), frame, |frame| self.stamp(frame));
        }
    }

    /// Gives a frame back that is no block's; it may be in the order still.
    pub(super) fn give_back(&self, frame: u32) {
        let slice = self.slice(frame);
        let mut space = slice.space.lock();
        space.order.remove(frame - slice.first);
        space.free.put(frame - slice.first);
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
                self.note_clean(disk, frame);
                self.give_back(frame);
            }
        }
    }

    /// Whether other bytes of a disk must be written before there may be new ones.
    fn lacks_room_for_dirt(&self, what_for: Use<'_>) -> bool {
        matches!(what_for, Use::Store(disk) if self.room_for_dirt(disk) == 0)
    }

    /// Pauses, until a write ends where that is what is missing; for how many times [`PAUSE`].
    fn pause(&self, what_for: Use<'_>) -> u32 {
        if let Use::Store(disk) = what_for
            && self.lacks_room_for_dirt(what_for)
            && let Some(has_ended) = disk.saving.ends_within(WRITE_PAUSES * PAUSE)
        {
            return if has_ended { 1 } else { WRITE_PAUSES };
        }
        std::thread::sleep(PAUSE);
        1
    }
}

impl<M: Disks> Cached<M> {
    /// Waits until `take` returns something, which is told how many busy frames more it is to pass; outside of slots.
    ///
    /// # Errors
    /// [`MemoryError`] when nothing was read or written for ten seconds, or, for a store, when the disk fails one write after the other.
    pub(super) fn wait_for<T>(
        &self,
        cache: &Cache,
        what_for: Use<'_>,
        take: impl Fn(u32) -> Option<T>,
    ) -> Result<T, MemoryError> {
        if let Some(taken) = take(0) {
            return Ok(taken);
        }
        let failures = || match what_for {
            Use::Store(disk) => disk.saving.failures(),
            Use::Read => 0,
        };
        let (failures_before, mut progress, mut pauses) = (failures(), cache.progress(), 0);
        while pauses < PAUSES_MAX {
            // What was made cool just now is out of use when nobody is inside.
            if pauses < SPINS || !cache.lacks_room_for_dirt(what_for) {
                (0..3).for_each(|_| cache.epochs.advance(&cache.slots));
            }
            // Frames may be of reads that are over, and who takes ends may be stuck in a write.
            self.end_all_reads(cache);
            let saved = match what_for {
                // A disk that is slow keeps those back who store into it.
                Use::Store(disk) => self.save_some_of((cache, disk)),
                Use::Read if pauses < READ_PAUSES => Ok(0),
                // A disk that somebody writes to may hang. Errors are told to those who sync the blocks.
                Use::Read => self
                    .save_some(cache, |disk| !disk.saving.is_under_way() && !disk.saving.is_hopeless())
                    .or(Ok(0)),
            };
            if let Some(taken) = take(PASSED) {
                return Ok(taken);
            }
            if let Use::Store(disk) = what_for
                && disk.saving.is_hopeless()
                && failures() > failures_before
            {
                return Err(MemoryError);
            }
            let mut paused = 1;
            if saved == Ok(0) || saved.is_err() {
                match pauses {
                    ..2 => {}
                    2..SPINS => std::thread::yield_now(),
                    SPINS.. => paused = cache.pause(what_for),
                }
            }
            // As long as the disks work, there is a frame in the end.
            let now = cache.progress();
            pauses = match pauses + paused {
                next if now == progress => next,
                next => next.min(READ_PAUSES),
            };
            progress = now;
        }
        Err(MemoryError)
    }

    /// Waits until `blocks` frames are free and may become a disk's dirty ones, or as many as there can be; outside of slots.
    pub(super) fn wait_for_free(
        &self,
        (cache, disk): (&Cache, &Disk),
        node: NodeId,
        blocks: u64,
    ) -> Result<(), MemoryError> {
        // Others want some too: each is content with less and less.
        let (most, looks) = (blocks.min(cache.frames / 8), Cell::new(0));
        self.wait_for(cache, Use::Store(disk), |more| {
            let wanted = (most >> (looks.replace(looks.get() + 1) / LOOKS_FOR_ALL).min(63)).max(1);
            // Where the disk has none, nothing becomes clean.
            let least = if count(&disk.saving.dirty) > 0 { wanted } else { 1 };
            if cache.room_for_dirt(disk) < least {
                return None;
            }
            let mut found = 0;
            for slice in cache.nearest(node).map(|number| &cache.slices[number]) {
                let mut space = slice.space.lock();
                let missing = wanted.saturating_sub(found + space.free.len() as u64);
                let missing = usize::try_from(missing).expect("at most all frames");
                cache.evict_passing(more, slice, &mut space, missing);
                found += space.free.len() as u64;
            }
            (found >= wanted).then_some(())
        })
    }

    /// Keeps some frames of a slice free. True when there are enough.
    pub(super) fn tend_space(&self, slice: usize) -> bool {
        let Some(cache) = &self.cache else { return true };
        let slice = &cache.slices[slice];
        // Relaxed: who comes too late is seen at the next look.
        let can_take = cache.epochs.is_over(slice.cooled.load(Ordering::Relaxed));
        if can_take && slice.space.lock().free.len() >= slice.kept_free() {
            return true;
        }
        // Only now, as that interrupts the CPUs of all threads that use the pool.
        cache.epochs.advance(&cache.slots);
        loop {
            // Let go between, as all who miss want it.
            let mut space = slice.space.lock();
            let free = space.free.len();
            let missing = slice.kept_free().saturating_sub(free);
            cache.evict_runs(slice, &mut space, missing.min(TENDED));
            if missing > 0 && space.free.len() == free {
                cache.evict_passing(PASSED, slice, &mut space, BATCH);
            }
            if missing == 0 || space.free.len() == free {
                return missing == 0;
            }
        }
    }
}
