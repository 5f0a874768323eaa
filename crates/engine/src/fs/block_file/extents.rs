//! Whole ranges of a file: truncate, fallocate, seek. Blocks are taken away with the file's gate closed.

use super::super::{Asking, Error, Fs, Ino, Inode, Operation, Result, Whence};
use super::data::{FILE_BYTES_MAX, in_block};
use super::{BlockFile, Closed};
use crate::log::{Change, Effect};
use crate::pool::Direction;
use crate::{BLOCK_BYTES, Block, Clock, Memory, NodeId};
use homenode_shared::{BlockMap, Extent, Found, RUN_BLOCKS, Slot, Taker};
use std::cell::Cell;
use std::convert::Infallible;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks that one step frees, about: a few milliseconds where none lies beside another in the pool.
const STEP_BLOCKS: u64 = 8192;
/// Aligned 2 MiB that one step of shrinking empties: as many blocks.
const STEP_RUNS: u64 = STEP_BLOCKS / RUN_BLOCKS;
/// Cost of looking at an extent, in blocks that could be freed instead.
const EXTENT_BLOCKS: u64 = 16;
/// Blocks that one step zeroes, about: 2 MiB, a millisecond or two.
const STEP_BLOCKS_ZEROED: u64 = RUN_BLOCKS;
/// Set in the progress of a fallocate that zeroes a range, when all of it is reserved, besides the bytes that are zero.
const ZEROING: u64 = 1 << 63;
/// Entries of a map that one step of reserving looks at, about, a few times each.
const STEP_RESERVED: u64 = 1 << 16;
/// Entries of a map that are shown with the gate closed, where others go on in between: less than a millisecond.
const STEP_ENTRIES: u64 = 8192;
const _: () = assert!(
    STEP_BLOCKS >= 2 * RUN_BLOCKS,
    "a step that ends at a run's end makes progress"
);

impl<M: Memory, C: Clock> Fs<M, C> {
    /// See [`Fs::truncate_step`]; `done` is one more than the steps that may follow, or 0. After [`Error::Io`] the size is as before, and blocks beyond
    /// the new one are gone.
    pub(in crate::fs) fn truncate_blocks(
        &self,
        inode: &Inode,
        file: &BlockFile,
        size: u64,
        done: u64,
    ) -> Result<Option<u64>> {
        if size > FILE_BYTES_MAX {
            return Err(Error::TooBig);
        }
        let _no_append = file.appending.write();
        let closed = inode.close(file, &self.slots);
        // No more steps than the file needs as it is at the first: others may extend it between them.
        let steps = match done {
            0 => file.map.last(&self.nodes, BlockMap::LIMIT).unwrap_or(0) / STEP_BLOCKS + 3,
            done => done - 1,
        };
        let now = file.size.load(Ordering::Relaxed);
        let next = match steps {
            0 => size,
            // A larger size keeps what is reserved behind it.
            _ if size > now => size,
            _ => self.step_towards(&closed, file, size),
        };
        if next > now.max(size) {
            // What was reserved beyond the end goes first.
            self.take_out(&closed, file, next / BLOCK..BlockMap::LIMIT)?;
        } else {
            self.cut(&closed, file, next)?;
        }
        drop(closed);
        inode.touch_modified(self.now_ns());
        Ok((next > size).then_some(steps))
    }

    /// The byte nearest to `size`, and not before it, with something in at most [`STEP_RUNS`] aligned 2 MiB behind it. It lies beyond the file's end where
    /// more than that is reserved there.
    pub(in crate::fs) fn step_towards(&self, _closed: &Closed<'_>, file: &BlockFile, size: u64) -> u64 {
        let first = size.div_ceil(BLOCK);
        let mut end = BlockMap::LIMIT;
        for _ in 0..STEP_RUNS {
            match file.map.last(&self.nodes, end) {
                // Runs are not split.
                Some(last) if last > first => end = last / RUN_BLOCKS * RUN_BLOCKS,
                _ => return size,
            }
        }
        (end * BLOCK).max(size)
    }

    /// The file block behind the first `count` placed ones of `range`, or its end. An extent or a hole counts as
    /// [`EXTENT_BLOCKS`] at least: it has nodes of its own.
    fn skip_placed(&self, file: &BlockFile, range: Range<u64>, mut count: u64) -> u64 {
        let mut at = range.start;
        while at < range.end && count > 0 {
            let (skipped, cost) = match file.map.find(&self.nodes, at, range.end - at) {
                Found::Placed { blocks, .. } => (blocks.min(count), blocks),
                Found::Empty { blocks } => (blocks, 0),
            };
            at += skipped;
            count = count.saturating_sub(cost.max(EXTENT_BLOCKS));
        }
        at
    }

    /// The part of `range` behind its first `done` bytes that one step does, with about `blocks` placed blocks in it, and how many
    /// bytes are done then: `None` for all.
    fn step(&self, file: &BlockFile, range: &Range<u64>, done: u64, blocks: u64) -> (Range<u64>, Option<u64>) {
        let start = range.start + done;
        let end = self.skip_placed(file, start / BLOCK..range.end.div_ceil(BLOCK), blocks);
        let end = (end.next_multiple_of(RUN_BLOCKS) * BLOCK).min(range.end);
        (start..end, (end < range.end).then(|| end - range.start))
    }

    /// The part of `range` that one step reserves, as [`Fs::step`].
    fn step_to_reserve(&self, file: &BlockFile, range: &Range<u64>, done: u64) -> (Range<u64>, Option<u64>) {
        let (mut at, mut left) = ((range.start + done) / BLOCK, STEP_RESERVED);
        let end = range.end.div_ceil(BLOCK);
        while at < end && left > 0 {
            let (blocks, cost) = match file.map.find(&self.nodes, at, end - at) {
                // One entry each.
                Found::Placed { blocks, .. } if at % RUN_BLOCKS == 0 && blocks % RUN_BLOCKS == 0 => {
                    (blocks, blocks / RUN_BLOCKS)
                }
                Found::Placed { blocks, .. } | Found::Empty { blocks } => (blocks, blocks.min(RUN_BLOCKS)),
            };
            at += blocks;
            left = left.saturating_sub(cost);
        }
        let behind = (at.next_multiple_of(RUN_BLOCKS) * BLOCK).min(range.end);
        (
            range.start + done..behind,
            (behind < range.end).then(|| behind - range.start),
        )
    }

    /// Looks whether blocks that a range has not could be had, if all were given back that may be.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(in crate::fs) fn check_fits(&self, file: &BlockFile, range: &Range<u64>) -> Result<()> {
        let blocks = range.end.div_ceil(BLOCK) - range.start / BLOCK;
        let missing = blocks.saturating_sub(file.blocks.sum());
        if missing <= self.pool.uncommitted_blocks() {
            return Ok(());
        }
        let kept = self.journal.as_ref().map_or(0, |journal| {
            journal.kept_blocks().saturating_add(journal.segment_blocks())
        });
        if missing <= self.pool.status().free().saturating_add(kept) {
            Ok(())
        } else {
            Err(Error::NoSpace)
        }
    }

    pub(in crate::fs) fn cut(&self, closed: &Closed<'_>, file: &BlockFile, size: u64) -> Result<()> {
        if size <= file.size.load(Ordering::Relaxed) {
            let range = size.div_ceil(BLOCK)..BlockMap::LIMIT;
            // Both or none: blocks beyond the size would be room that nobody asked for.
            let bytes = Change::Size {
                ino: closed.ino,
                bytes: size,
            };
            let both = [no_extents(closed, &range), bytes];
            // Behind the last block that a file can have there are no others.
            self.tell_data(closed.ino, file, &both[usize::from(range.is_empty())..]);
            // The same size frees what was reserved beyond it.
            self.take_out(closed, file, range)?;
            if !self.is_durable() {
                self.zero_bytes(closed, file, size..size.next_multiple_of(BLOCK))?;
            }
        }
        self.set_size(closed, file, size)
    }

    fn set_size(&self, closed: &Closed<'_>, file: &BlockFile, bytes: u64) -> Result<()> {
        self.zero_gap(closed.ino, file, bytes, None)?;
        self.tell_data(closed.ino, file, &[Change::Size { ino: closed.ino, bytes }]);
        file.size.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Zeroes what the last block has behind the size, and the run that a cut could not split, up to `end`, when the size is about to grow over it.
    /// Only a durable pool leaves bytes there. With the gate closed, or inside it, by the one who extends the file: goes on then where it came `so_far`.
    pub(super) fn zero_gap(&self, ino: Ino, file: &BlockFile, end: u64, so_far: Option<&Zeroed>) -> Result<()> {
        let size = file.size.load(Ordering::Relaxed);
        if !self.is_durable() || end <= size || size.is_multiple_of(RUN_BLOCKS * BLOCK) {
            return Ok(());
        }
        self.check_writable()?;
        let (mut at, end) = (size, end.min(size.next_multiple_of(RUN_BLOCKS * BLOCK)));
        if let Some(so_far) = so_far {
            at = so_far.behind(size);
        }
        while at < end {
            let first = at / BLOCK;
            let (block, blocks) = match file.map.find(&self.nodes, first, end.div_ceil(BLOCK) - first) {
                Found::Placed { block, blocks } => (block, blocks),
                // Somebody has punched a hole into what was left.
                Found::Empty { blocks } => {
                    at = (first + blocks) * BLOCK;
                    continue;
                }
            };
            let blocks = so_far.map_or(blocks, |_| self.at_once(block, blocks));
            let behind = ((first + blocks) * BLOCK).min(end);
            let bytes = usize::try_from(behind - at).expect("a placed extent is mapped, so its size fits a usize");
            match so_far {
                Some(_) => self.zero_inside(self.pool.home(block.member()), block, in_block(at), bytes)?,
                None => self.pool.memory().zero(block, in_block(at), bytes)?,
            }
            self.note_dirty(ino, file, first..behind.div_ceil(BLOCK));
            at = behind;
            if let Some(so_far) = so_far {
                so_far.set(size, at);
            }
        }
        Ok(())
    }

    /// Tells the log what lies in `range` (file blocks), with the gate closed.
    pub(super) fn log_extents(&self, closed: &Closed<'_>, file: &BlockFile, range: Range<u64>) {
        if self.is_durable() {
            let changes = self.extents_in(closed, file, &[], range);
            self.tell_data(closed.ino, file, &changes);
        }
    }

    /// The changes `first`, and those that tell what lies in `range` (file blocks).
    fn extents_in<'a>(
        &self,
        closed: &Closed<'_>,
        file: &BlockFile,
        first: &[Change<'a>],
        range: Range<u64>,
    ) -> Vec<Change<'a>> {
        let mut changes = first.to_vec();
        self.each_extent(closed, file, &range, |extent| changes.push(extent));
        changes
    }

    /// Shows what lies in `range` (file blocks) as changes, as few as can tell it.
    pub(in crate::fs) fn each_extent<'a>(
        &self,
        closed: &Closed<'_>,
        file: &BlockFile,
        range: &Range<u64>,
        mut show: impl FnMut(Change<'a>),
    ) {
        let mut last = Merged::default();
        file.map.visit(&self.nodes, range, &mut |at, extent| {
            last.add(closed.ino, at, extent).into_iter().for_each(&mut show);
        });
        last.end(closed.ino).into_iter().for_each(show);
    }

    /// Shows extents as [`Fs::each_extent`] does, from file block `from` on, of some entries of the map; `last` keeps the one that may go on. Gives the file
    /// block where the next ones begin.
    pub(in crate::fs) fn some_extents<'a>(
        &self,
        closed: &Closed<'_>,
        file: &BlockFile,
        from: u64,
        last: &mut Merged,
        mut show: impl FnMut(Change<'a>),
    ) -> Option<u64> {
        let mut left = STEP_ENTRIES;
        let all = file
            .map
            .visit_until(&self.nodes, &(from..BlockMap::LIMIT), &mut |at, extent| {
                if left == 0 {
                    return Err(at);
                }
                left -= 1;
                last.add(closed.ino, at, extent).into_iter().for_each(&mut show);
                Ok(())
            });
        all.err()
    }

    /// See [`Fs::fallocate_step`]. For a volume nothing is reserved, and the range lies within its size.
    pub(in crate::fs) fn allocate_blocks(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        operation: Operation,
        range: Range<u64>,
        done: u64,
    ) -> Result<Option<u64>> {
        let is_volume = inode.is_volume();
        let (is_zeroing, done) = (done & ZEROING != 0, (done & !ZEROING).min(range.end - range.start));
        let check = || match is_volume {
            true => file.check_within(range.start, range.end - range.start),
            false => Ok(()),
        };
        let next = match operation {
            Operation::Reserve | Operation::ReserveKeepSize => {
                let part = |file: &BlockFile| self.step_to_reserve(file, &range, done);
                self.reserve(asking, inode, file, operation, &range, part)?
            }
            Operation::PunchHole => {
                let closed = inode.close(file, &self.slots);
                check()?;
                self.punch_step(&closed, file, &range, done)?
            }
            // All of it is reserved before any byte becomes zero: without room for that the bytes stay.
            Operation::ZeroRange | Operation::ZeroRangeKeepSize if !is_volume && !is_zeroing => {
                let part = |file: &BlockFile| self.step_to_reserve(file, &range, done);
                let next = self.reserve(asking, inode, file, operation, &range, part)?;
                Some(next.unwrap_or(ZEROING))
            }
            Operation::ZeroRange | Operation::ZeroRangeKeepSize => {
                let (part, next) = {
                    let _inside = inode.enter(file, asking.slot);
                    self.step(file, &range, done, STEP_BLOCKS_ZEROED)
                };
                let so_far = Zeroed::default();
                self.brought(asking, inode, file, &part, || {
                    let _inside = inode.enter(file, asking.slot);
                    check()?;
                    self.zero_part(asking, inode, file, part.clone(), &so_far)
                })?;
                next.map(|next| ZEROING | next)
            }
            Operation::CollapseRange | Operation::InsertRange => {
                self.shift(asking, inode, file, operation, range)?;
                None
            }
            _ => return Err(Error::NotSupported),
        };
        if operation == Operation::ReserveKeepSize {
            inode.touch_changed(self.now_ns());
        } else {
            inode.touch_modified(self.now_ns());
        }
        Ok(next)
    }

    /// See [`Fs::seek_step`].
    pub(in crate::fs) fn seek_blocks(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        whence: Whence,
    ) -> Result<ControlFlow<u64, u64>> {
        let _inside = inode.enter_as(file, asking)?;
        let size = file.size.load(Ordering::Acquire);
        let (mut at, mut looks) = (offset, 0);
        while at < size {
            if looks == STEP_BLOCKS {
                return Ok(ControlFlow::Continue(at));
            }
            looks += 1;
            let first = at / BLOCK;
            let (found, blocks) = match file
                .map
                .find(&self.nodes, first, (size - first * BLOCK).div_ceil(BLOCK))
            {
                Found::Placed { blocks, .. } => (Whence::Data, blocks),
                Found::Empty { blocks } => (Whence::Hole, blocks),
            };
            if found == whence {
                return Ok(ControlFlow::Break(at));
            }
            at = (first + blocks) * BLOCK;
        }
        // There is a hole at the end of every file.
        if whence == Whence::Hole && offset < size {
            Ok(ControlFlow::Break(size))
        } else {
            Err(Error::NoData)
        }
    }

    /// Frees all that a file has, when nobody can reach it any more.
    pub(in crate::fs) fn discard(&self, inode: &Inode, file: &BlockFile) {
        // Nobody fills a file that nothing keeps; a volume is written without being open. And somebody may still look at blocks who
        // found the inode by its number: a drain does. The gate opens when the size is 0.
        let closed = (inode.is_volume() || !file.map.is_blank()).then(|| inode.close(file, &self.slots));
        if let Some(closed) = &closed {
            self.take_out(closed, file, 0..BlockMap::LIMIT)
                .expect("removing the whole map splits no run, so it needs no node");
        }
        file.size.store(0, Ordering::Relaxed);
    }

    /// Blocks placed and reserved, counted in the map. At rest.
    pub(in crate::fs) fn count_blocks(&self, file: &BlockFile) -> (u64, u64) {
        file.map.check_invariants(&self.nodes);
        let placed = self.placed_from(file, 0);
        let filled = BlockMap::LIMIT - file.map.holes(&self.nodes, 0..BlockMap::LIMIT);
        (placed, filled - placed)
    }

    /// Blocks placed from file block `at` on. At rest, or with the gate closed.
    pub(in crate::fs) fn placed_from(&self, file: &BlockFile, at: u64) -> u64 {
        let mut placed = 0;
        let Ok(()) = file.each_placed(&self.nodes, at..BlockMap::LIMIT, |_, blocks| {
            placed += blocks;
            Ok::<_, Infallible>(())
        });
        placed
    }

    fn punch_step(&self, closed: &Closed<'_>, file: &BlockFile, range: &Range<u64>, done: u64) -> Result<Option<u64>> {
        let (part, next) = self.step(file, range, done, STEP_BLOCKS);
        self.punch(closed, file, part)?;
        Ok(next)
    }

    /// Bytes become zero: whole blocks leave the file, parts of blocks are zeroed.
    fn punch(&self, closed: &Closed<'_>, file: &BlockFile, range: Range<u64>) -> Result<()> {
        let first_whole = range.start.next_multiple_of(BLOCK);
        let last_whole = range.end / BLOCK * BLOCK;
        if first_whole > last_whole {
            return self.zero_bytes(closed, file, range);
        }
        self.take_out(closed, file, first_whole / BLOCK..last_whole / BLOCK)?;
        self.zero_bytes(closed, file, range.start..first_whole)?;
        self.zero_bytes(closed, file, last_whole..range.end)
    }

    /// Zeroes what is placed, with the gate entered: readers and writers go on meanwhile. It stays placed: freed blocks could be
    /// another file's before they are reserved again.
    fn zero_part(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        mut part: Range<u64>,
        so_far: &Zeroed,
    ) -> Result<()> {
        self.check_writable()?;
        part.end = self.zeroed_end(file, part.end);
        let mut at = so_far.behind(part.start);
        while at < part.end {
            let first = at / BLOCK;
            let found = file.map.find(&self.nodes, first, part.end.div_ceil(BLOCK) - first);
            let blocks = match found {
                Found::Placed { block, blocks } => self.at_once(block, blocks),
                Found::Empty { blocks } => blocks,
            };
            let behind = ((first + blocks) * BLOCK).min(part.end);
            if let Found::Placed { block, .. } = found {
                let bytes = usize::try_from(behind - at).expect("a placed extent is mapped, so its size fits a usize");
                let node = self.node_for(inode, first, asking);
                self.zero_inside(node, block, in_block(at), bytes)?;
                self.note_dirty(inode.ino, file, first..behind.div_ceil(BLOCK));
                let place = self.pool.memory().locate_one(block).unwrap_or(block);
                self.pool
                    .count(asking.slot.index(), asking.cpu, place, Direction::Write, bytes);
            }
            at = behind;
            so_far.set(part.start, at);
        }
        Ok(())
    }

    /// How many of some blocks are zeroed at a time: of a disk each by itself, as it may have to wait for the next one.
    fn at_once(&self, block: Block, blocks: u64) -> u64 {
        if self.pool.memory().is_cached(block.member()) {
            1
        } else {
            blocks
        }
    }

    /// Zeroes bytes of placed blocks inside the gate. What is in no whole block must be brought before.
    fn zero_inside(&self, node: NodeId, block: Block, in_block: usize, bytes: usize) -> Result<()> {
        const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        let memory = self.pool.memory();
        let (mut at, end) = (in_block, in_block + bytes);
        while at < end {
            let (first, inside) = (block.plus((at / BLOCK_BYTES) as u64), at % BLOCK_BYTES);
            let most = (end - at + inside).div_ceil(BLOCK_BYTES) as u64;
            let blocks = match memory.locate(first, most) {
                Some((place, blocks)) => {
                    let blocks = memory.may_store(first, blocks);
                    if blocks == 0 {
                        return Err(Error::NoPlaces(first.member()));
                    }
                    let bytes = (blocks * BLOCK).min((end - at + inside) as u64);
                    let bytes = usize::try_from(bytes).expect("sizes of mappings fit") - inside;
                    let zeroed = memory.zero(place, inside, bytes);
                    memory.note_stored(first, blocks);
                    zeroed?;
                    blocks
                }
                None if inside == 0 && end - at >= BLOCK_BYTES => {
                    memory
                        .put(node, first, &ZEROS)
                        .ok_or(Error::NoPlaces(first.member()))??;
                    1
                }
                None => return Err(Error::Away),
            };
            at = at - inside + usize::try_from(blocks).expect("sizes of mappings fit") * BLOCK_BYTES;
        }
        Ok(())
    }

    /// Where zeroing ends that is asked for up to `end`: what a durable pool has behind the size stays as it is, see `super::data`.
    fn zeroed_end(&self, file: &BlockFile, end: u64) -> u64 {
        if self.is_durable() {
            end.min(file.size.load(Ordering::Acquire))
        } else {
            end
        }
    }

    /// Zeroes bytes within one block, if it is placed.
    fn zero_bytes(&self, closed: &Closed<'_>, file: &BlockFile, range: Range<u64>) -> Result<()> {
        let range = range.start..self.zeroed_end(file, range.end);
        if range.is_empty() {
            return Ok(());
        }
        self.check_writable()?;
        if let Found::Placed { block, .. } = file.map.find(&self.nodes, range.start / BLOCK, 1) {
            let bytes = usize::try_from(range.end - range.start).expect("the range lies within a block");
            let zeroed = self.pool.memory().zero(block, in_block(range.start), bytes);
            self.note_dirty(closed.ino, file, range.start / BLOCK..range.end.div_ceil(BLOCK));
            zeroed?;
        }
        Ok(())
    }

    /// Keeps room for what is a hole in a `part` of `bytes`, and gives the progress that comes with the part; behind the last one it grows the size as
    /// `operation` says. When there is no room, what was reserved before stays, as on ext4.
    fn reserve(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        operation: Operation,
        bytes: &Range<u64>,
        part: impl Fn(&BlockFile) -> (Range<u64>, Option<u64>),
    ) -> Result<Option<u64>> {
        let taker = self.taker(asking, inode, (asking.node)());
        let _no_append = file.appending.write();
        let closed = inode.close(file, &self.slots);
        let (part, next) = part(file);
        let blocks = part.start / BLOCK..part.end.div_ceil(BLOCK);
        let _room = self.admit_extents(Effect::Adds, || self.reserved_within(&closed, file, &blocks))?;
        let wanted = file.map.holes(&self.nodes, blocks.clone());
        self.pool.reserve(wanted)?;
        let mut got = 0;
        let result = file.map.reserve(&self.nodes, taker, blocks.clone(), &mut got);
        if self.is_durable() {
            // Placed blocks, which may be many, were told when they were placed.
            let mut changes = Vec::new();
            self.each_extent(&closed, file, &blocks, |extent| {
                changes.extend(Some(extent).filter(is_reserved));
            });
            if !changes.is_empty() {
                self.tell_data(closed.ino, file, &changes);
            }
        }
        file.blocks.add_reserved(got);
        self.pool.unreserve(wanted - got);
        result?;
        let grows = matches!(operation, Operation::Reserve | Operation::ZeroRange);
        if next.is_none() && grows && file.size.load(Ordering::Relaxed) < bytes.end {
            self.set_size(&closed, file, bytes.end)?;
        }
        Ok(next)
    }

    /// Extents without a place that `blocks` (file blocks) have at most when their holes are reserved. With the gate closed.
    fn reserved_within(&self, closed: &Closed<'_>, file: &BlockFile, blocks: &Range<u64>) -> u64 {
        let (mut extents, mut behind) = (0, blocks.start);
        self.each_extent(closed, file, blocks, |extent| {
            if let Change::Extent { at, blocks, .. } = extent {
                extents += u64::from(at > behind) + u64::from(is_reserved(&extent));
                behind = at + blocks;
            }
        });
        extents + u64::from(behind < blocks.end)
    }

    /// Collapses or inserts `range`: whole blocks that begin inside the file, and end there if they are collapsed. The gate is closed while the new
    /// map is made, which takes milliseconds for each GiB.
    fn shift(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        operation: Operation,
        range: Range<u64>,
    ) -> Result<()> {
        let taker = self.taker(asking, inode, (asking.node)());
        // One in a pool with a log: making it durable may need another file inside its gate.
        let _one_at_a_time = self.journal.as_ref().map(|journal| journal.shifting.lock());
        let no_append = file.appending.write();
        let closed = inode.close(file, &self.slots);
        let effect = if operation == Operation::CollapseRange {
            Effect::Splits
        } else {
            Effect::Adds
        };
        let moved = || {
            let mut extents = 2;
            self.each_extent(&closed, file, &(range.start / BLOCK..BlockMap::LIMIT), |_| extents += 1);
            extents
        };
        let _room = self.admit_extents(effect, moved)?;
        let size = file.size.load(Ordering::Relaxed);
        let is_inside = match operation {
            Operation::CollapseRange => range.end < size,
            _ => range.start < size,
        };
        if !range.start.is_multiple_of(BLOCK) || !range.end.is_multiple_of(BLOCK) || !is_inside {
            return Err(Error::Invalid);
        }
        self.zero_left_by_a_cut(asking.slot, inode, file, &closed)?;
        // A power cut must not undo the shift, as bytes may be overwritten at their new places. The log may need bytes of other files first, on a disk
        // that cannot be written: that is met, or fails, while nothing has changed.
        self.settle_closed(inode, file)?;
        if let Some(journal) = &self.journal {
            self.force(journal, asking.slot, Some(inode.ino))?;
        }
        let left = if operation == Operation::CollapseRange {
            self.collapse(asking.slot, &closed, file, taker, range)?
        } else {
            self.insert(asking.slot, &closed, file, taker, range)?
        };
        drop(closed);
        drop(no_append);
        self.give_back(file, &left);
        Ok(())
    }

    /// Zeroes the blocks that a cut left behind the size: at another place of the file nothing would make them zero when it grows. They are the
    /// file's bytes still where a power cut undoes the cut, so that is made durable first.
    fn zero_left_by_a_cut(&self, slot: &Slot, inode: &Inode, file: &BlockFile, closed: &Closed<'_>) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let size = file.size.load(Ordering::Relaxed);
        let end = size.next_multiple_of(RUN_BLOCKS * BLOCK);
        let left = size.div_ceil(BLOCK)..end / BLOCK;
        if file.each_placed(&self.nodes, left, |_, _| Err(())).is_ok() {
            return Ok(());
        }
        self.settle_closed(inode, file)?;
        self.force(journal, slot, Some(inode.ino))?;
        self.zero_gap(closed.ino, file, end, None)
    }

    /// Moves what lies behind `range` to its start.
    fn collapse(
        &self,
        slot: &Slot,
        closed: &Closed<'_>,
        file: &BlockFile,
        taker: Taker,
        range: Range<u64>,
    ) -> Result<Left> {
        let size = file.size.load(Ordering::Relaxed);
        let gone = range.start / BLOCK..range.end / BLOCK;
        let new = file.map.shifted(&self.nodes, taker, gone.end, gone.start)?;
        let map = file.map.replace(new);
        self.shifted(slot, closed, file, gone.start, size - (range.end - range.start))?;
        Ok(Left { map, gone })
    }

    /// Moves what lies from the start of `range` on to its end.
    fn insert(
        &self,
        slot: &Slot,
        closed: &Closed<'_>,
        file: &BlockFile,
        taker: Taker,
        range: Range<u64>,
    ) -> Result<Left> {
        let size = file.size.load(Ordering::Relaxed);
        let longer = size
            .checked_add(range.end - range.start)
            .filter(|s| *s <= FILE_BYTES_MAX)
            .ok_or(Error::TooBig)?;
        let (start, end) = (range.start / BLOCK, range.end / BLOCK);
        let new = file.map.shifted(&self.nodes, taker, start, end)?;
        let map = file.map.replace(new);
        self.shifted(slot, closed, file, start, longer)?;
        // Room reserved at the far end is pushed out of the map.
        let gone = BlockMap::LIMIT - (end - start)..BlockMap::LIMIT;
        Ok(Left { map, gone })
    }

    /// Sets the size after all from file block `from` on has moved.
    fn shifted(&self, slot: &Slot, closed: &Closed<'_>, file: &BlockFile, from: u64, bytes: u64) -> Result<()> {
        file.size.store(bytes, Ordering::Release);
        if !self.is_durable() {
            return Ok(());
        }
        let size = Change::Size { ino: closed.ino, bytes };
        let range = from..BlockMap::LIMIT;
        let changes = self.extents_in(closed, file, &[no_extents(closed, &range), size], range);
        self.tell_settled(slot, closed.ino, &changes)
    }

    /// Gives back what a collapse or an insert left. With the gate open: no thread sees the old map.
    fn give_back(&self, file: &BlockFile, left: &Left) {
        let mut freed = Freed::default();
        left.map
            .remove(&self.nodes, 0, 0..BlockMap::LIMIT, &mut |at, extent| match extent {
                Extent::Placed { block, blocks } => {
                    let (skip, count) = left.within(at, blocks);
                    self.free_later(&mut freed, block.plus(skip), count);
                }
                Extent::Reserved { blocks } => freed.reserved += left.within(at, blocks).1,
            })
            .expect("removing the whole map splits no run, so it needs no node");
        self.free_all(file, freed);
    }

    /// Frees what is placed or reserved in `range` (file blocks). Where a run would have to be split and the owner may have no more
    /// nodes, the part of the run becomes zeros and stays: taking away never fails for want of memory.
    fn take_out(&self, closed: &Closed<'_>, file: &BlockFile, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        // Where nothing is, as on a disk that is being formatted, the log knows of nothing either.
        if file.map.visit_until(&self.nodes, &range, &mut |_, _| Err(())).is_err() {
            self.persist_unsaved(file, &range);
            // Before its blocks can be another file's.
            self.tell_data(closed.ino, file, &[no_extents(closed, &range)]);
        }
        let mut freed = Freed::default();
        let mut take = |range| {
            file.map
                .remove(&self.nodes, closed.taker, range, &mut |_, extent| match extent {
                    Extent::Reserved { blocks } => freed.reserved += blocks,
                    Extent::Placed { block, blocks } => self.free_later(&mut freed, block, blocks),
                })
        };
        let is_out = take(range.clone()).is_ok();
        if !is_out {
            let end = match range.end {
                BlockMap::LIMIT => range.end,
                end => end / RUN_BLOCKS * RUN_BLOCKS,
            };
            // Whole runs need no node. Room that was reserved over more than a run may stay.
            let _ = take(range.start.next_multiple_of(RUN_BLOCKS).min(end)..end);
        }
        self.free_all(file, freed);
        if is_out {
            return Ok(());
        }
        self.note_dirty(closed.ino, file, range.clone());
        self.log_extents(closed, file, range.clone());
        self.check_writable()?;
        if self.is_durable() && range.end == BlockMap::LIMIT {
            // A power cut may undo it: what is left becomes zero when the size grows over it.
            return Ok(());
        }
        let zeroed = self.zero_left(file, range.clone());
        self.note_dirty(closed.ino, file, range);
        zeroed
    }

    /// Zeroes what is still placed in `range` (file blocks): parts of two runs at most.
    fn zero_left(&self, file: &BlockFile, range: Range<u64>) -> Result<()> {
        file.each_placed(&self.nodes, range, |block, blocks| {
            let bytes = usize::try_from(blocks * BLOCK).expect("a placed extent is mapped, so its size fits a usize");
            Ok(self.pool.memory().zero(block, 0, bytes)?)
        })
    }

    /// Frees blocks together with those that lie before and behind them.
    fn free_later(&self, freed: &mut Freed, block: Block, blocks: u64) {
        freed.placed += blocks;
        freed.pending = match freed.pending {
            Some((first, count)) if first.plus(count) == block => Some((first, count + blocks)),
            before => {
                before
                    .into_iter()
                    .for_each(|(first, count)| self.free_blocks(first, count));
                (blocks > 0).then_some((block, blocks))
            }
        };
    }

    fn free_all(&self, file: &BlockFile, freed: Freed) {
        freed
            .pending
            .into_iter()
            .for_each(|(first, count)| self.free_blocks(first, count));
        self.unreserve(freed.reserved);
        file.blocks.subtract(freed.placed + freed.reserved);
    }
}

/// The last extent of a map that was seen, with those before it that lie one behind the other: file block, blocks and the first block in the pool.
#[derive(Default)]
pub(in crate::fs) struct Merged(Option<(u64, u64, Option<Block>)>);

impl Merged {
    /// Takes the next extent; gives the one before when the two are not one.
    fn add<'a>(&mut self, ino: Ino, at: u64, extent: Extent) -> Option<Change<'a>> {
        let (first, blocks) = match extent {
            Extent::Placed { block, blocks } => (Some(block), blocks),
            Extent::Reserved { blocks } => (None, blocks),
        };
        match &mut self.0 {
            Some((start, count, begin)) if *start + *count == at && begin.map(|begin| begin.plus(*count)) == first => {
                *count += blocks;
                None
            }
            _ => {
                let before = self.end(ino);
                self.0 = Some((at, blocks, first));
                before
            }
        }
    }

    /// Gives the last one.
    pub(in crate::fs) fn end<'a>(&mut self, ino: Ino) -> Option<Change<'a>> {
        let (at, blocks, first) = self.0.take()?;
        Some(Change::Extent { ino, at, blocks, first })
    }
}

/// Whether a change tells of room without a place.
fn is_reserved(change: &Change<'_>) -> bool {
    matches!(change, Change::Extent { first: None, .. })
}

/// Nothing lies in `range` (file blocks) any more.
fn no_extents<'a>(closed: &Closed<'_>, range: &Range<u64>) -> Change<'a> {
    Change::NoExtents {
        ino: closed.ino,
        at: range.start,
        blocks: range.end.saturating_sub(range.start),
    }
}

/// How far zeroing came before it had to wait, from a byte of the file on: it goes on there, as what was zeroed first may be away again.
#[derive(Debug, Default)]
pub(super) struct Zeroed {
    from: Cell<u64>,
    behind: Cell<u64>,
}

impl Zeroed {
    /// The byte behind the last that was zeroed from `from` on, or `from`.
    fn behind(&self, from: u64) -> u64 {
        if self.from.get() == from {
            self.behind.get().max(from)
        } else {
            from
        }
    }

    fn set(&self, from: u64, behind: u64) {
        self.from.set(from);
        self.behind.set(behind);
    }
}

/// The map that a file had before a collapse or an insert.
struct Left {
    map: BlockMap,
    /// File blocks of it that the file has no more.
    gone: Range<u64>,
}

impl Left {
    /// How many of `blocks` file blocks from `at` on come before the first that is gone, and how many are gone.
    fn within(&self, at: u64, blocks: u64) -> (u64, u64) {
        let first = self.gone.start.clamp(at, at + blocks);
        (first - at, self.gone.end.clamp(first, at + blocks) - first)
    }
}

/// Blocks and reservations taken out of a map.
#[derive(Default)]
struct Freed {
    placed: u64,
    reserved: u64,
    /// Blocks one behind the other that are still to be freed.
    pending: Option<(Block, u64)>,
}
