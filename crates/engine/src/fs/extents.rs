//! Whole ranges of a file: truncate, fallocate, seek, copy. Blocks are taken away with the file's gate closed.

use super::data::{FILE_BYTES_MAX, in_block};
use super::inode::{Closed, FileBody};
use super::{Asking, Error, Fs, Inode, Result, Whence};
use crate::log::Log;
use crate::{BLOCK_BYTES, Clock, Memory};
use homenode_shared::{BlockMap, Extent, Found};
use std::ops::Range;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// fallocate(2)'s mode bits.
pub mod fallocate_mode {
    /// FALLOC_FL_KEEP_SIZE
    pub const KEEP_SIZE: u32 = 0x01;
    /// FALLOC_FL_PUNCH_HOLE
    pub const PUNCH_HOLE: u32 = 0x02;
    /// FALLOC_FL_COLLAPSE_RANGE
    pub const COLLAPSE_RANGE: u32 = 0x08;
    /// FALLOC_FL_ZERO_RANGE
    pub const ZERO_RANGE: u32 = 0x10;
    /// FALLOC_FL_INSERT_RANGE
    pub const INSERT_RANGE: u32 = 0x20;
    /// FALLOC_FL_UNSHARE_RANGE: nothing is shared, so as plain allocation.
    pub const UNSHARE_RANGE: u32 = 0x40;
}
use fallocate_mode::{COLLAPSE_RANGE, INSERT_RANGE, KEEP_SIZE, PUNCH_HOLE, UNSHARE_RANGE, ZERO_RANGE};

impl<M: Memory, C: Clock, L: Log> Fs<M, C, L> {
    /// Sets the size; what lies beyond a smaller one is freed, a larger one reserves nothing.
    pub(super) fn truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        let file = inode.file()?;
        if size > FILE_BYTES_MAX {
            return Err(Error::TooBig);
        }
        let _no_append = file.appending.lock();
        let closed = inode.close(file, &self.slots);
        self.cut(&closed, file, size)?;
        drop(closed);
        inode.touch_modified(self.now_ns());
        Ok(())
    }

    pub(super) fn cut(&self, closed: &Closed<'_>, file: &FileBody, size: u64) -> Result<()> {
        if size <= file.size.load(Ordering::Relaxed) {
            // The same size frees what was reserved beyond it.
            self.take_out(closed, file, size.div_ceil(BLOCK)..BlockMap::LIMIT)?;
            self.zero_bytes(closed, file, size..size.next_multiple_of(BLOCK));
        }
        file.size.store(size, Ordering::Release);
        Ok(())
    }

    /// fallocate(2); `mode` is made of [`fallocate_mode`]'s bits.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooBig`], [`Error::Invalid`] for ranges a mode does not take, [`Error::NotSupported`]
    /// for bits it does not know.
    pub fn fallocate(&self, asking: &Asking<'_>, inode: &Inode, mode: u32, offset: u64, bytes: u64) -> Result<()> {
        let file = inode.file().map_err(|error| {
            if error == Error::IsDirectory {
                error
            } else {
                Error::Invalid
            }
        })?;
        if bytes == 0 {
            return Err(Error::Invalid);
        }
        let end = offset
            .checked_add(bytes)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(Error::TooBig)?;
        let home = self.pool.node_index((asking.node)());
        let _no_append = file.appending.lock();
        let closed = inode.close(file, &self.slots);
        match mode & !(KEEP_SIZE | UNSHARE_RANGE) {
            0 => self.reserve(&closed, file, home, &(offset..end))?,
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => self.punch(&closed, file, offset..end)?,
            ZERO_RANGE => {
                self.zero_placed(&closed, file, offset..end);
                self.reserve(&closed, file, home, &(offset..end))?;
            }
            COLLAPSE_RANGE if mode == COLLAPSE_RANGE => self.collapse(&closed, file, offset..end)?,
            INSERT_RANGE if mode == INSERT_RANGE => self.insert(&closed, file, offset..end)?,
            _ => return Err(Error::NotSupported),
        }
        let grows = mode & (KEEP_SIZE | COLLAPSE_RANGE | INSERT_RANGE | PUNCH_HOLE) == 0;
        if grows && file.size.load(Ordering::Relaxed) < end {
            file.size.store(end, Ordering::Release);
        }
        drop(closed);
        if mode & !(KEEP_SIZE | UNSHARE_RANGE) == 0 && !grows {
            inode.touch_changed(self.now_ns());
        } else {
            inode.touch_modified(self.now_ns());
        }
        Ok(())
    }

    /// lseek(2)'s SEEK_DATA and SEEK_HOLE. A reserved block is a hole.
    ///
    /// # Errors
    /// [`Error::NoData`] at or beyond the end, or when no data follows.
    pub fn seek(&self, asking: &Asking<'_>, inode: &Inode, offset: u64, whence: Whence) -> Result<u64> {
        let file = inode.file()?;
        let _inside = inode.enter(file, asking.slot);
        let size = file.size.load(Ordering::Acquire);
        let mut at = offset;
        while at < size {
            let first = at / BLOCK;
            let (found, blocks) = match file
                .map
                .find(&self.nodes, first, (size - first * BLOCK).div_ceil(BLOCK))
            {
                Found::Placed { blocks, .. } => (Whence::Data, blocks),
                Found::Empty { blocks } => (Whence::Hole, blocks),
            };
            if found == whence {
                return Ok(at);
            }
            at = (first + blocks) * BLOCK;
        }
        // There is a hole at the end of every file.
        if whence == Whence::Hole && offset < size {
            Ok(size)
        } else {
            Err(Error::NoData)
        }
    }

    /// copy_file_range(2): copies up to `bytes` bytes; gives how many, short at the end of `from` or when the pool is full.
    ///
    /// # Errors
    /// As read and write; [`Error::Invalid`] when the ranges overlap in one file.
    pub fn copy_range(
        &self,
        asking: &Asking<'_>,
        from: &Inode,
        from_offset: u64,
        to: &Inode,
        to_offset: u64,
        bytes: u64,
    ) -> Result<u64> {
        to.file()?;
        // To the end as it is now: what is copied behind it must not be copied again.
        let size = from.file()?.size.load(Ordering::Acquire);
        let bytes = bytes.min(size.saturating_sub(from_offset));
        let overlap = from_offset < to_offset.saturating_add(bytes) && to_offset < from_offset.saturating_add(bytes);
        if from.ino == to.ino && bytes > 0 && overlap {
            return Err(Error::Invalid);
        }
        // A stage of one run: a slot names one inode at a time.
        let mut stage = vec![0; usize::try_from(bytes).map_or(STAGE_BYTES, |bytes| bytes.min(STAGE_BYTES))];
        let mut done = 0;
        while done < bytes {
            let most = usize::try_from(bytes - done).map_or(stage.len(), |left| left.min(stage.len()));
            let read = self.read(asking, from, from_offset + done, &mut stage[..most])?;
            if read == 0 {
                break;
            }
            let written = match self.write(asking, to, to_offset + done, &stage[..read], false) {
                Ok(written) => written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            done += written as u64;
            if written < read {
                break;
            }
        }
        Ok(done)
    }

    /// Frees all that a file has, when nobody can reach it any more.
    pub(super) fn discard(&self, inode: &Inode, file: &FileBody) {
        // Somebody may still look at it who found it by its number: a drain does.
        let closed = inode.close(file, &self.slots);
        self.take_out(&closed, file, 0..BlockMap::LIMIT)
            .expect("the whole map goes without splitting a run");
        file.size.store(0, Ordering::Relaxed);
    }

    /// Blocks placed and reserved, counted in the map. At rest.
    pub(super) fn count_blocks(&self, file: &FileBody) -> (u64, u64) {
        file.map.check_invariants(&self.nodes);
        let placed = self.placed_from(file, 0);
        let filled = BlockMap::LIMIT - file.map.holes(&self.nodes, 0..BlockMap::LIMIT);
        (placed, filled - placed)
    }

    /// Blocks placed from file block `at` on. At rest, or with the gate closed.
    pub(super) fn placed_from(&self, file: &FileBody, mut at: u64) -> u64 {
        let mut placed = 0;
        while at < BlockMap::LIMIT {
            at += match file.map.find(&self.nodes, at, BlockMap::LIMIT - at) {
                Found::Placed { blocks, .. } => {
                    placed += blocks;
                    blocks
                }
                Found::Empty { blocks } => blocks,
            };
        }
        placed
    }

    /// Bytes become zero: whole blocks leave the file, parts of blocks are zeroed.
    fn punch(&self, closed: &Closed<'_>, file: &FileBody, range: Range<u64>) -> Result<()> {
        let first_whole = range.start.next_multiple_of(BLOCK);
        let last_whole = range.end / BLOCK * BLOCK;
        if first_whole > last_whole {
            self.zero_bytes(closed, file, range);
            return Ok(());
        }
        self.take_out(closed, file, first_whole / BLOCK..last_whole / BLOCK)?;
        self.zero_bytes(closed, file, range.start..first_whole);
        self.zero_bytes(closed, file, last_whole..range.end);
        Ok(())
    }

    /// Zeroes what is placed. It stays placed: freed blocks could be another file's before they are reserved again.
    fn zero_placed(&self, _closed: &Closed<'_>, file: &FileBody, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let first = at / BLOCK;
            let found = file.map.find(&self.nodes, first, range.end.div_ceil(BLOCK) - first);
            let (Found::Placed { blocks, .. } | Found::Empty { blocks }) = found;
            let next = ((first + blocks) * BLOCK).min(range.end);
            if let Found::Placed { block, .. } = found {
                let bytes = usize::try_from(next - at).expect("a placed extent is mapped memory");
                self.pool.memory().zero(block, in_block(at), bytes);
            }
            at = next;
        }
    }

    /// Zeroes bytes within one block, if it is placed.
    fn zero_bytes(&self, _closed: &Closed<'_>, file: &FileBody, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Found::Placed { block, .. } = file.map.find(&self.nodes, range.start / BLOCK, 1) {
            let bytes = usize::try_from(range.end - range.start).expect("within a block");
            self.pool.memory().zero(block, in_block(range.start), bytes);
        }
    }

    fn reserve(&self, _closed: &Closed<'_>, file: &FileBody, home: usize, bytes: &Range<u64>) -> Result<()> {
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        let wanted = file.map.holes(&self.nodes, blocks.clone());
        self.pool.reserve(wanted)?;
        let mut got = 0;
        let result = file.map.reserve(&self.nodes, home, blocks, &mut got);
        file.blocks.add(0, got);
        self.pool.unreserve(wanted - got);
        Ok(result?)
    }

    /// Moves what lies behind `range` to its start; whole blocks only, and not up to the end.
    fn collapse(&self, closed: &Closed<'_>, file: &FileBody, range: Range<u64>) -> Result<()> {
        let size = file.size.load(Ordering::Relaxed);
        if !range.start.is_multiple_of(BLOCK) || !range.end.is_multiple_of(BLOCK) || range.end >= size {
            return Err(Error::Invalid);
        }
        self.take_out(closed, file, range.start / BLOCK..range.end / BLOCK)?;
        self.shift(file, range.end / BLOCK, range.start / BLOCK)?;
        file.size.store(size - (range.end - range.start), Ordering::Release);
        Ok(())
    }

    /// Moves what lies from the start of `range` on to its end; whole blocks only, and inside the file.
    fn insert(&self, closed: &Closed<'_>, file: &FileBody, range: Range<u64>) -> Result<()> {
        let size = file.size.load(Ordering::Relaxed);
        if !range.start.is_multiple_of(BLOCK) || !range.end.is_multiple_of(BLOCK) || range.start >= size {
            return Err(Error::Invalid);
        }
        let longer = size
            .checked_add(range.end - range.start)
            .filter(|s| *s <= FILE_BYTES_MAX)
            .ok_or(Error::TooBig)?;
        // Room reserved at the far end would be pushed out of the map.
        let blocks = (range.end - range.start) / BLOCK;
        self.take_out(closed, file, BlockMap::LIMIT - blocks..BlockMap::LIMIT)?;
        self.shift(file, range.start / BLOCK, range.end / BLOCK)?;
        file.size.store(longer, Ordering::Release);
        Ok(())
    }

    /// Moves all extents from file block `from` on so that they start at `to`.
    fn shift(&self, file: &FileBody, from: u64, to: u64) -> Result<()> {
        let mut extents = Vec::new();
        file.map.remove(&self.nodes, from..BlockMap::LIMIT, &mut |at, extent| {
            extents.push((at, extent))
        })?;
        for (at, extent) in extents {
            let at = at - from + to;
            match extent {
                Extent::Placed { block, blocks } => {
                    for i in 0..blocks {
                        let places = file.map.lock_empty(&self.nodes, 0, at + i, 1)?;
                        places.expect("this range was just emptied").publish(block.plus(i));
                    }
                }
                Extent::Reserved { blocks } => {
                    let end = (at + blocks).min(BlockMap::LIMIT);
                    file.map.reserve(&self.nodes, 0, at..end, &mut 0)?;
                }
            }
        }
        Ok(())
    }

    /// Frees what is placed or reserved in `range` (file blocks).
    fn take_out(&self, _closed: &Closed<'_>, file: &FileBody, range: Range<u64>) -> Result<()> {
        let (mut gone, mut reserved) = (0, 0);
        // Blocks that lie one behind the other are freed together.
        let mut pending: Option<(crate::Block, u64)> = None;
        let result = file.map.remove(&self.nodes, range, &mut |_, extent| match extent {
            Extent::Reserved { blocks } => reserved += blocks,
            Extent::Placed { block, blocks } => {
                gone += blocks;
                pending = match pending {
                    Some((first, count)) if first.plus(count) == block => Some((first, count + blocks)),
                    before => {
                        before
                            .into_iter()
                            .for_each(|(first, count)| self.pool.free(first, count));
                        Some((block, blocks))
                    }
                };
            }
        });
        pending
            .into_iter()
            .for_each(|(first, count)| self.pool.free(first, count));
        self.pool.unreserve(reserved);
        file.blocks.subtract(gone + reserved);
        Ok(result?)
    }
}

/// Bytes copied at a time by copy_range.
const STAGE_BYTES: usize = 2 << 20;
