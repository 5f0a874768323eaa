//! Bytes come into frames: read from a disk, or new.

use super::space::Use;
use super::{Cache, Cached, Disk};
use crate::{BLOCK_BYTES, Block, Disks, MemberId, MemoryError, NodeId, Transfer};
use homenode_shared::Away;
use std::sync::atomic::{Ordering, fence};

/// Blocks that are being read by a caller's own means. To be given back: until then others wait for them.
#[derive(Debug)]
#[must_use = "others wait for its blocks"]
pub struct Fetch {
    member: MemberId,
    first: u64,
    /// Each with whether it is to be cool.
    frames: Vec<(u32, bool)>,
    transfer: Transfer,
    /// Whether its first block is kept back.
    pub(super) is_marked: bool,
}

impl Fetch {
    /// How many blocks it reads.
    pub(super) fn blocks(&self) -> u64 {
        self.frames.len() as u64
    }

    /// The frame for block `at`, if it reads that.
    #[must_use]
    pub fn frame_of(&self, at: Block) -> Option<u32> {
        let nth = at.index().checked_sub(self.first)?;
        let (frame, _) = self.frames.get(usize::try_from(nth).ok()?)?;
        (at.member() == self.member).then_some(*frame)
    }

    /// The frames of blocks that were not evicted lately.
    pub(super) fn new_frames(&self) -> impl Iterator<Item = u32> {
        let new = self.frames.iter().filter(|(_, is_returned)| !is_returned);
        new.map(|(frame, _)| *frame)
    }

    /// Returns the disk's member.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// Returns the read to carry out.
    #[must_use]
    pub fn transfer(&self) -> &Transfer {
        &self.transfer
    }
}

impl Disk {
    pub(super) fn block(&self, at: u64) -> Block {
        Block::new(self.member, at)
    }

    /// Gives the first of some blocks from `first` on `frames` to read them, up to one that has a frame by now. Returns how many: none of a disk
    /// that is gone.
    fn begin_reads(&self, first: u64, frames: &[u32]) -> usize {
        let begin = |(at, frame): &(u64, &u32)| self.index.begin_fill(*at, **frame);
        let begun = (first..).zip(frames).take_while(begin).count();
        // Either it is seen here that the disk is gone, or the thread that takes the disk away finds the blocks, and forgets them.
        fence(Ordering::SeqCst);
        if !self.is_gone.load(Ordering::Relaxed) {
            return begun;
        }
        let begun = (first..).zip(&frames[..begun]);
        begun.for_each(|(at, frame)| self.index.give_up(at, *frame));
        0
    }

    /// Notes that `frames` frames are not being read any more; their blocks are there, or given up.
    fn end_reading(&self, frames: usize) {
        // Relaxed: a figure; `Ending::tell` shows it to those who wait for it.
        self.reading.fetch_sub(frames as u64, Ordering::Relaxed);
    }

    /// An error when the disk was taken away.
    fn check_there(&self) -> Result<(), MemoryError> {
        // Acquire: as where a request has failed.
        if self.is_gone.load(Ordering::Acquire) {
            Err(MemoryError)
        } else {
            Ok(())
        }
    }
}

impl<M: Disks> Cached<M> {
    /// Reads the first of `blocks` blocks from `first` on, and those behind it, up to one that has a frame or for which none is free; or waits for
    /// whoever reads the first. Then it is the caller's turn to use them, before others take their frames: where many threads read more than fits, no one
    /// would come any further else. Frames are on `node` if possible. Outside of slots.
    pub(super) fn fill(
        &self,
        (cache, disk): (&Cache, &Disk),
        node: NodeId,
        first: u64,
        blocks: u64,
    ) -> Result<(), MemoryError> {
        cache.announce_block(disk.block(first));
        let mut end = (first + blocks).min(disk.index.blocks());
        loop {
            if end == first + 1 && !disk.index.has_frame(first) && self.fill_one((cache, disk), node, first)? {
                return Ok(());
            }
            let frames = self.begin_run((cache, disk), node, first, end, true)?;
            if frames.is_empty() {
                return self.wait_for_others((cache, disk), first);
            }
            match self.read_run((cache, disk), first, &frames) {
                // One of them cannot be read, perhaps not the first.
                Err(_) if frames.len() > 1 && disk.check_there().is_ok() => end = first + frames.len() as u64 / 2,
                done => return done,
            }
        }
    }

    /// [`Cached::fill`] of one block, which needs no memory; false when it has a frame by now.
    pub(super) fn fill_one(&self, (cache, disk): (&Cache, &Disk), node: NodeId, at: u64) -> Result<bool, MemoryError> {
        let turn = self.wait_for_turn((cache, disk), 1);
        let frame = self.wait_for(cache, Use::Read, |more| cache.take_passing(more, node, disk.block(at)))?;
        if disk.begin_reads(at, &[frame]) == 0 {
            cache.give_back(frame);
            return disk.check_there().map(|()| false);
        }
        turn.use_for(1);
        let is_returned = cache.enlist(frame);
        if is_returned {
            cache.note_returned(node, 1);
        }
        self.read_run((cache, disk), at, &[(frame, is_returned)])?;
        Ok(true)
    }

    /// Reads all blocks that bytes lie in.
    pub(super) fn fill_all(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: Block,
        offset: usize,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let first = at.index() + (offset / BLOCK_BYTES) as u64;
        let end = at.index() + (offset + bytes).div_ceil(BLOCK_BYTES) as u64;
        // No more than fits at a time: it is looked at block by block, and read again then.
        let blocks = (end - first).min(M::BLOCKS_MAX as u64);
        // Of the log's end the disk has old bytes.
        if cache.has_in_tail(disk.block(first), blocks) {
            return Ok(());
        }
        self.fill((cache, disk), disk.home, first, blocks)
    }

    /// Begins to fill blocks from `at` on, up to the first that has a frame; gives their frames, and which are to be cool then. Waits for a frame for the
    /// first, if it `waits`.
    fn begin_run(
        &self,
        (cache, disk): (&Cache, &Disk),
        node: NodeId,
        at: u64,
        end: u64,
        waits: bool,
    ) -> Result<Vec<(u32, bool)>, MemoryError> {
        let end = end.min(at + M::BLOCKS_MAX as u64);
        let wanted = (at..end).take_while(|at| !disk.index.has_frame(*at)).count();
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let turn = match waits {
            true => self.wait_for_turn((cache, disk), wanted),
            false => match cache.take_turn(disk, wanted) {
                Some(turn) => turn,
                None => return Ok(Vec::new()),
            },
        };
        // What was begun must be ended before it is waited for more.
        let mut frames = cache.take_some(node, disk.block(at), turn.frames);
        if frames.is_empty() && waits {
            frames.push(self.wait_for(cache, Use::Read, |more| cache.take_passing(more, node, disk.block(at)))?);
        }
        let begun = disk.begin_reads(at, &frames);
        frames.drain(begun..).for_each(|frame| cache.give_back(frame));
        if frames.is_empty() {
            disk.check_there()?;
        }
        turn.use_for(frames.len());
        let frames = cache.enlist_all(&frames);
        let returned = frames.iter().filter(|(_, is_returned)| *is_returned).count();
        cache.note_returned(node, returned as u64);
        Ok(frames)
    }

    /// Waits until some of `wanted` frames of a disk may be read, and takes part in telling the ends of reads.
    fn wait_for_turn<'a>(&self, (cache, disk): (&Cache, &'a Disk), wanted: usize) -> Turn<'a> {
        let mut taking = None;
        loop {
            if let Some(turn) = cache.take_turn(disk, wanted) {
                return turn;
            }
            if self.take_in_turn((cache, disk), &mut taking).is_none() {
                self.sleep(disk, || !cache.has_turn(disk));
            }
        }
    }

    fn read_run(&self, (cache, disk): (&Cache, &Disk), first: u64, frames: &[(u32, bool)]) -> Result<(), MemoryError> {
        let places: Vec<Block> = frames.iter().map(|(frame, _)| cache.block(*frame)).collect();
        let mut filling = Filling {
            cache,
            disk,
            first,
            frames,
            is_read: false,
        };
        let read = self.below.read(disk.block(first), &places);
        let read = read.and_then(|()| self.lay_over(cache, disk.block(first), frames));
        filling.is_read = read.is_ok();
        read
    }

    /// Ends a read that was begun, whatever became of it.
    pub(super) fn end_begun(&self, (cache, disk): (&Cache, &Disk), fetch: &Fetch, is_read: bool) {
        if is_read && self.lay_over(cache, disk.block(fetch.first), &fetch.frames).is_ok() {
            cache.end_fetch(disk, fetch);
        } else {
            cache.give_up(disk, fetch);
        }
    }

    /// Stores [what is shown instead](crate::Memory::show_instead) into frames that were read.
    fn lay_over(&self, cache: &Cache, first: Block, frames: &[(u32, bool)]) -> Result<(), MemoryError> {
        let Some(instead) = cache.instead.get() else {
            return Ok(());
        };
        let mut all = instead.range(first..first.plus(frames.len() as u64));
        all.try_for_each(|(at, bytes)| {
            let nth = usize::try_from(at.index() - first.index()).expect("it is among the frames");
            self.below.store(cache.block(frames[nth].0), 0, bytes)
        })
    }

    /// See [`Memory::begin_fetch`](crate::Memory::begin_fetch).
    pub(super) fn begin_fetch_of(
        &self,
        (cache, disk): (&Cache, &Disk),
        node: NodeId,
        at: Block,
        blocks: u64,
    ) -> Option<Fetch> {
        let first = at.index();
        if disk.index.has_frame(first) {
            return None;
        }
        let end = (first + blocks).min(disk.index.blocks());
        let begin = || self.begin_run((cache, disk), node, first, end, false);
        let mut frames = begin().ok()?;
        if frames.is_empty() && cache.has_turn(disk) {
            // What was made cool just now is out of use when nobody is inside.
            (0..3).for_each(|_| cache.epochs.advance(&cache.slots));
            frames = begin().ok()?;
        }
        if frames.is_empty() {
            return None;
        }
        let places: Vec<Block> = frames.iter().map(|(frame, _)| cache.block(*frame)).collect();
        let Some(transfer) = self.below.transfer(at, &places) else {
            cache.give_up_run(disk, first, &frames);
            return None;
        };
        let member = disk.member;
        Some(Fetch {
            member,
            first,
            frames,
            transfer,
            is_marked: false,
        })
    }

    /// See [`Memory::end_fetch`](crate::Memory::end_fetch).
    pub(super) fn end_fetch_of(&self, fetch: Fetch, is_read: bool) {
        if let Some(disk) = self.disk(fetch.member) {
            self.end_begun(disk, &fetch, is_read);
        }
    }

    /// Gives a block without a frame one, with bytes that `act` stores; false when it has one. Outside of slots.
    pub(super) fn fill_new(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: u64,
        act: &dyn Fn(Block) -> Result<(), MemoryError>,
    ) -> Result<bool, MemoryError> {
        if disk.index.has_frame(at) {
            return Ok(false);
        }
        let take = |more| cache.take_for_new(more, disk, disk.home, disk.block(at));
        let frame = self.wait_for(cache, Use::Store(disk), take)?;
        cache.fill_with(disk, at, frame, act)
    }

    /// Stores a whole block without a frame. Returns `None` if no frame is free, or if another thread has given the block one. A read of the block that is
    /// under way loses it: the threads that wait for that read see what is stored.
    pub(super) fn put_at_once(
        &self,
        (cache, disk): (&Cache, &Disk),
        node: NodeId,
        at: u64,
        from: &[u8],
    ) -> Option<Result<(), MemoryError>> {
        let Err(away) = disk.index.warm(at) else { return None };
        let frame = cache.take_for_new(0, disk, node, disk.block(at))?;
        if away == Away::Filling {
            disk.index.interrupt(at);
        }
        match cache.fill_with(disk, at, frame, &|frame| self.below.store(frame, 0, from)) {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Frames of the share of a disk that a thread is about to read. Dropping gives back those that it does not use.
struct Turn<'a> {
    disk: &'a Disk,
    frames: usize,
}

impl Turn<'_> {
    /// Leaves `frames` of the frames to the reads that have begun.
    fn use_for(mut self, frames: usize) {
        self.frames -= frames;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.frames > 0 {
            self.disk.end_reading(self.frames);
            self.disk.ending.tell();
        }
    }
}

impl Cache {
    /// Most frames of a disk that are read at a time. A disk that never answers leaves the others enough: all disks together take less than
    /// the quarter of all frames that is not dirty, if that has more frames than there are disks. Blocks that are kept back do not count.
    fn turn_max(&self) -> u64 {
        // Relaxed: a figure.
        match self.disk_count.load(Ordering::Relaxed) as u64 {
            ..2 => u64::MAX,
            disks => (self.frames / 4 / (disks + 1)).max(1),
        }
    }

    /// Whether some frames of a disk may be read now.
    pub(super) fn has_turn(&self, disk: &Disk) -> bool {
        // Relaxed: a figure.
        disk.reading.load(Ordering::Relaxed) < self.turn_max()
    }

    /// Takes as many of `wanted` frames as may be read of a disk now.
    fn take_turn<'a>(&self, disk: &'a Disk, wanted: usize) -> Option<Turn<'a>> {
        let most = self.turn_max();
        let may = |reading: u64| most.saturating_sub(reading).min(wanted as u64);
        let more = |reading: u64| (may(reading) > 0).then(|| reading + may(reading));
        // Relaxed: a figure.
        let before = disk.reading.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let frames = usize::try_from(may(before.ok()?)).expect("at most as many as are wanted");
        Some(Turn { disk, frames })
    }
}

/// Blocks that are being read. Dropping shows them after a read that succeeded, and else takes their frames away: also when the reader panics.
struct Filling<'a> {
    cache: &'a Cache,
    disk: &'a Disk,
    first: u64,
    frames: &'a [(u32, bool)],
    is_read: bool,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.disk.end_reading(self.frames.len());
        self.cache.end_run(self.disk, self.first, self.frames, self.is_read);
    }
}

/// A block that gets new bytes. Dropping takes its frame away unless it was shown: also when the writer panics.
struct Storing<'a> {
    cache: &'a Cache,
    disk: &'a Disk,
    at: u64,
    frame: u32,
    is_shown: bool,
}

impl Storing<'_> {
    /// Shows the new bytes; false when another thread took the block away for its own bytes.
    fn show(mut self) -> bool {
        self.is_shown = self.disk.index.end_fill_dirty(self.at, self.frame);
        if self.is_shown {
            self.cache.note_dirty(self.disk, self.frame);
        }
        self.is_shown
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        if !self.is_shown {
            self.disk.index.give_up(self.at, self.frame);
            self.cache.give_back(self.frame);
        }
        // Others may wait for the block as for one that is being read.
        self.disk.ending.tell();
    }
}

impl Cache {
    /// Ends a fetch whose bytes were read.
    pub(super) fn end_fetch(&self, disk: &Disk, fetch: &Fetch) {
        disk.end_reading(fetch.frames.len());
        let (mut first, mut frames) = (fetch.first, &*fetch.frames);
        if fetch.is_marked
            && let [marked, others @ ..] = frames
        {
            self.keep_back(disk, first, *marked);
            (first, frames) = (first + 1, others);
        }
        self.end_run(disk, first, frames, true);
    }

    /// Ends a fetch that has failed, or that nobody could carry out: whoever waits for its blocks reads them himself, and tells an error of that.
    pub(super) fn give_up(&self, disk: &Disk, fetch: &Fetch) {
        self.give_up_run(disk, fetch.first, &fetch.frames);
    }

    fn give_up_run(&self, disk: &Disk, first: u64, frames: &[(u32, bool)]) {
        disk.end_reading(frames.len());
        for (at, (frame, _)) in (first..).zip(frames) {
            disk.index.give_up(at, *frame);
            self.give_back(*frame);
        }
        disk.ending.tell();
    }

    /// Ends filling blocks from `first` on.
    pub(super) fn end_run(&self, disk: &Disk, first: u64, frames: &[(u32, bool)], is_read: bool) {
        if !is_read && frames.len() == 1 {
            // Before those who wait see it end. Of more blocks each may be sound: who waits for one reads it.
            disk.unread.lock().note(&(first..first + frames.len() as u64));
        }
        let mut fetched = 0;
        for (at, (frame, is_cool)) in (first..).zip(frames) {
            if !is_read {
                disk.index.give_up(at, *frame);
                self.give_back(*frame);
            } else if disk.index.end_fill(at, *frame) {
                if *is_cool {
                    disk.index.cool(at, *frame, |frame| self.stamp(frame));
                }
                fetched += 1;
            } else {
                self.give_back(*frame);
            }
        }
        if let Some((frame, _)) = frames.first() {
            // All are of one slice.
            self.slice(*frame).fetched.fetch_add(fetched, Ordering::Relaxed);
        }
        disk.ending.tell();
    }

    /// Fills a frame that was taken by `act`; false when another thread has given the block one.
    fn fill_with(
        &self,
        disk: &Disk,
        at: u64,
        frame: u32,
        act: &dyn Fn(Block) -> Result<(), MemoryError>,
    ) -> Result<bool, MemoryError> {
        if !disk.index.begin_fill(at, frame) {
            self.give_back(frame);
            return Ok(false);
        }
        self.enlist(frame);
        let storing = Storing {
            cache: self,
            disk,
            at,
            frame,
            is_shown: false,
        };
        act(self.block(frame))?;
        Ok(storing.show())
    }

    /// Gives a block that nobody can read a frame, with whatever is in it; false when that cannot be done at once.
    pub(super) fn make(&self, disk: &Disk, node: NodeId, at: u64) -> bool {
        match disk.index.warm(at) {
            Ok(_) => return true,
            // Read ahead when it was another file's.
            Err(Away::Filling) => disk.index.interrupt(at),
            Err(Away::Absent) => {}
        }
        let frame = self.take_for_new(0, disk, node, disk.block(at));
        frame.is_some_and(|frame| self.fill_with(disk, at, frame, &|_| Ok(())) == Ok(true))
    }
}
