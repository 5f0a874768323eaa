//! The data path: read, write, append.
//!
//! Placed blocks are read and overwritten without a lock: the thread names the inode in its slot, finds the blocks, copies.
//! A first write locks the entries it fills, takes blocks from its CPU's grant, copies, zeroes what it does not cover of
//! them, and publishes; the size grows last. Bytes of a placed block beyond the file's size are zero; on a durable pool they may be
//! older bytes of the file, and become zero when the size grows over them: until a cut is settled, a power cut may undo it.

use super::super::{Asking, Error, Fs, Inode, Result};
use super::BlockFile;
use super::extents::Zeroed;
use crate::log::Change;
use crate::pool::{Direction, Taken};
use crate::{BLOCK_BYTES, Block, Clock, CpuId, Meanwhile, Memory, NodeId};
use homenode_shared::{BlockMap, Found, Pass, Places, RUN_BLOCKS, SlotNumber, Taker};
use std::sync::atomic::Ordering;

/// Largest file: what a signed 64-bit offset reaches, as on tmpfs.
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Reads of a thread between two looks at whether a file's access time is a day old.
const TURNS: u64 = 64;

const BLOCK: u64 = BLOCK_BYTES as u64;
const _: () = assert!(FILE_BYTES_MAX / BLOCK < BlockMap::LIMIT);

/// A copy to note while its bytes are on their way; for a write before they are stored.
struct Note<'a, M: Memory, C: Clock, F> {
    fs: &'a Fs<M, C>,
    slot: SlotNumber,
    cpu: &'a F,
    inode: &'a Inode,
    direction: Direction,
    bytes: usize,
}

impl<M: Memory, C: Clock, F> Clone for Note<'_, M, C, F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Memory, C: Clock, F> Copy for Note<'_, M, C, F> {}

impl<M: Memory, C: Clock, F: Fn() -> CpuId> Meanwhile for Note<'_, M, C, F> {
    /// Counts the copy and touches the times of its inode.
    #[inline(always)]
    fn act(self, place: Block) {
        let (pool, cpu) = (&self.fs.pool, (self.cpu)());
        let turn = pool.count(self.slot.index(), cpu, place, self.direction, self.bytes);
        match self.direction {
            Direction::Read => self.fs.touch_accessed(self.inode, turn.is_multiple_of(TURNS)),
            Direction::Write => self.inode.touch_modified(self.fs.now_ns()),
        }
    }
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// See [`Fs::read_whole`].
    ///
    /// While a small copy waits for memory the processor goes on with the next one, as far as its queues of instructions and of stores
    /// reach. So the bytes are asked for as soon as their place is known, and all else is done while they are on their way; `cpu` is asked for
    /// then too. Pools that need more part before anything else: each read would store to the stack what they need later.
    #[inline(always)]
    pub(in crate::fs) fn read_whole_blocks(
        &self,
        slot: SlotNumber,
        cpu: impl Fn() -> CpuId,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        to: &mut [u8],
    ) -> Result<bool> {
        let note = Note {
            fs: self,
            slot,
            cpu: &cpu,
            inode,
            direction: Direction::Read,
            bytes: to.len(),
        };
        if self.is_cached {
            return Ok(self.read_cached(note, file, offset, to));
        }
        let Some((_inside, place)) = self.enter_whole(slot, inode, file, offset, to.len()) else {
            return Ok(false);
        };
        let memory = self.pool.memory();
        memory.load_meanwhile(place, in_block(offset), to, note)?;
        Ok(true)
    }

    /// Enters the file, and finds where `bytes` bytes at `offset` start if they lie within the file and one behind the other.
    #[inline(always)]
    fn enter_whole<'a>(
        &'a self,
        slot: SlotNumber,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        bytes: usize,
    ) -> Option<(Pass<'a>, Block)> {
        let inside = self.slots.enter(slot, &file.gate, inode.ino.0)?;
        Some((inside, self.find_whole(file, offset, bytes)?))
    }

    /// [`Fs::read_whole_blocks`] in a pool with a cache.
    #[inline(never)]
    fn read_cached<F: Fn() -> CpuId>(
        &self,
        note: Note<'_, M, C, F>,
        file: &BlockFile,
        offset: u64,
        to: &mut [u8],
    ) -> bool {
        let Some((_inside, block)) = self.enter_whole(note.slot, note.inode, file, offset, to.len()) else {
            return false;
        };
        let (memory, in_block) = (self.pool.memory(), in_block(offset));
        if is_within_block(offset, to.len()) {
            let loaded = memory.load_block(block, in_block, to, note);
            return loaded.is_some_and(|loaded| loaded.is_ok());
        }
        let Some(place) = self.locate_whole(block, blocks_of(in_block, to.len())) else {
            return false;
        };
        memory.load_meanwhile(place, in_block, to, note).is_ok()
    }

    /// See [`Fs::lend`].
    pub(in crate::fs) fn lend_blocks<R>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        most: usize,
        mut act: impl FnMut(&M, Option<(Block, usize)>, usize) -> R,
    ) -> Result<R> {
        loop {
            match self.lend_at_once(asking, inode, file, offset, most, &mut act) {
                Err(Error::Away) => {
                    let bytes = offset..offset.saturating_add(most as u64);
                    self.bring_if_away(Error::Away, asking, inode, file, bytes)?;
                }
                result => return result,
            }
        }
    }

    fn lend_at_once<R>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        most: usize,
        act: &mut impl FnMut(&M, Option<(Block, usize)>, usize) -> R,
    ) -> Result<R> {
        let (memory, in_block) = (self.pool.memory(), in_block(offset));
        let _inside = inode.enter_as(file, asking)?;
        // Acquire: as in `find_whole`.
        let left = file.size.load(Ordering::Acquire).saturating_sub(offset);
        let most = usize::try_from(left).map_or(most, |left| left.min(most));
        if most == 0 {
            return Ok(act(memory, None, 0));
        }
        match file.map.find(&self.nodes, offset / BLOCK, blocks_of(in_block, most)) {
            Found::Placed { block, blocks } => {
                let (place, blocks) = memory.locate(block, blocks).ok_or(Error::Away)?;
                let bytes = bytes_of(blocks, in_block, most);
                if !memory.is_there(place, in_block, bytes) {
                    return Err(Error::Io);
                }
                self.pool
                    .count(asking.slot.index(), asking.cpu, place, Direction::Read, bytes);
                let result = act(memory, Some((place, in_block)), bytes);
                memory
                    .is_there(place, in_block, bytes)
                    .then_some(result)
                    .ok_or(Error::Io)
            }
            Found::Empty { blocks } => Ok(act(memory, None, bytes_of(blocks, in_block, most).min(BLOCK_BYTES))),
        }
    }

    /// See [`Fs::write_whole`].
    #[inline(always)]
    pub(in crate::fs) fn write_whole_blocks(
        &self,
        slot: SlotNumber,
        cpu: impl Fn() -> CpuId,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
    ) -> Result<bool> {
        let note = Note {
            fs: self,
            slot,
            cpu: &cpu,
            inode,
            direction: Direction::Write,
            bytes: from.len(),
        };
        if self.is_cached || self.journal.is_some() {
            return Ok(self.write_otherwise(note, file, offset, from));
        }
        let Some((_inside, place)) = self.enter_whole(slot, inode, file, offset, from.len()) else {
            return Ok(false);
        };
        let memory = self.pool.memory();
        memory.store_meanwhile(place, in_block(offset), from, note)?;
        Ok(true)
    }

    /// [`Fs::write_whole_blocks`] in a durable pool or one with a cache.
    #[inline(never)]
    fn write_otherwise<F: Fn() -> CpuId>(
        &self,
        note: Note<'_, M, C, F>,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
    ) -> bool {
        let inode = note.inode;
        let Some((_inside, block)) = self.enter_whole(note.slot, inode, file, offset, from.len()) else {
            return false;
        };
        if self.check_writable().is_err() {
            return false;
        }
        let (memory, in_block) = (self.pool.memory(), in_block(offset));
        let stored = if !self.is_cached || !memory.is_cached(block.member()) {
            memory.announce(block, in_block, from.len(), true);
            note.act(block);
            self.store(file, offset, (block, in_block), from)
        } else if is_within_block(offset, from.len()) {
            let stored = memory.store_block(block, in_block, from, note);
            let Some(stored) = stored else { return false };
            stored
        } else {
            let blocks = blocks_of(in_block, from.len());
            let place = self.locate_whole(block, blocks);
            let place = place.filter(|_| memory.may_store(block, blocks) == blocks);
            let Some(place) = place else { return false };
            let stored = memory.store_meanwhile(place, in_block, from, note);
            memory.note_stored(block, blocks);
            stored
        };
        self.note_stored(inode, file, offset, from.len() as u64);
        stored.is_ok()
    }

    /// Where blocks of a pool with a cache are, if they lie one behind the other there.
    #[inline]
    fn locate_whole(&self, block: Block, blocks: u64) -> Option<Block> {
        let (place, there) = self.pool.memory().locate(block, blocks)?;
        (there >= blocks).then_some(place)
    }

    /// The block where `bytes` bytes at `offset` start, if they lie within the file and one behind the other.
    #[inline(always)]
    fn find_whole(&self, file: &BlockFile, offset: u64, bytes: usize) -> Option<Block> {
        let end = offset.checked_add(bytes as u64)?;
        // Acquire pairs with the growth of the size: the bytes below it are there.
        if end > file.size.load(Ordering::Acquire) {
            return None;
        }
        if is_within_block(offset, bytes) {
            return file.map.find_one(&self.nodes, offset / BLOCK);
        }
        if bytes == 0 {
            return None;
        }
        let most = blocks_of(in_block(offset), bytes);
        match file.map.find(&self.nodes, offset / BLOCK, most) {
            Found::Placed { block, blocks } if blocks >= most => Some(block),
            _ => None,
        }
    }

    /// Any read: of several extents, of holes, at the end of the file, while blocks are being taken away.
    #[inline(never)]
    pub(in crate::fs) fn read_blocks(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        to: &mut [u8],
    ) -> Result<usize> {
        let mut done = 0;
        while let Err(error) = self.read_part(asking, inode, file, offset, to, &mut done) {
            self.bring_if_away(
                error,
                asking,
                inode,
                file,
                offset + done as u64..offset + to.len() as u64,
            )?;
        }
        Ok(done)
    }

    /// Reads what follows the first `done` bytes, and adds to them.
    ///
    /// # Errors
    /// [`Error::Away`] where bytes must be brought first.
    fn read_part(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        to: &mut [u8],
        done: &mut usize,
    ) -> Result<()> {
        let _inside = inode.enter_as(file, asking)?;
        // Acquire: as in `find_whole`.
        let size = file.size.load(Ordering::Acquire);
        let left = size.saturating_sub(offset);
        let count = usize::try_from(left).map_or(to.len(), |left| left.min(to.len()));
        while *done < count {
            let at = offset + *done as u64;
            let in_block = in_block(at);
            let most = blocks_of(in_block, count - *done);
            let found = file.map.find(&self.nodes, at / BLOCK, most);
            match found {
                Found::Placed { block, blocks } => {
                    let (place, blocks) = self.pool.memory().locate(block, blocks).ok_or(Error::Away)?;
                    let bytes = bytes_of(blocks, in_block, count - *done);
                    let now = &mut to[*done..*done + bytes];
                    self.pool.memory().load_located(place, in_block, now)?;
                    self.pool
                        .count(asking.slot.index(), asking.cpu, place, Direction::Read, bytes);
                    *done += bytes;
                }
                Found::Empty { blocks } => {
                    let bytes = bytes_of(blocks, in_block, count - *done);
                    to[*done..*done + bytes].fill(0);
                    *done += bytes;
                }
            }
        }
        Ok(())
    }

    /// Any write: first writes, beyond the end, of several extents, while blocks are being taken away.
    #[inline(never)]
    pub(in crate::fs) fn write_blocks(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        if from.is_empty() {
            return Ok(0);
        }
        let from = &from[..room_for(offset, from)?];
        if kill_priv {
            self.kill_privileges(inode);
        }
        if offset + from.len() as u64 <= file.size.load(Ordering::Relaxed) {
            match self.write_blocks_within(asking, inode, file, offset, from) {
                // Another thread has cut the file meanwhile.
                Err(Error::TooBig) => {}
                result => return result,
            }
        }
        let _turn = file.extend(asking, self.is_durable())?;
        self.write_at(asking, inode, file, offset, from)
    }

    /// Writes within the body's size, which no write of it changes: a volume.
    pub(in crate::fs) fn write_blocks_within(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        let bytes = from.len() as u64;
        let written = self.write_parts(asking, inode, file, offset, from, |offset, from| {
            self.settled_if_full(asking, inode, file, offset, || {
                let _inside = inode.enter_as(file, asking)?;
                file.check_within(offset, from.len() as u64)?;
                self.write_inside(asking, inode, file, offset, from)
                    .map(|(written, _)| written)
            })
        })?;
        debug_assert!(written as u64 <= bytes);
        self.make_runs(asking, inode, file, offset, offset + written as u64);
        inode.touch_modified(self.now_ns());
        Ok(written)
    }

    /// Writes by `write`, which is given where to go on and what is left, and may do less; brings what it asks for.
    fn write_parts(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
        write: impl Fn(u64, &[u8]) -> Result<usize>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < from.len() {
            let (at, rest) = (offset + done as u64, &from[done..]);
            let result = write(at, rest).map_or_else(
                |error| {
                    self.bring_to_write(error, asking, inode, file, at, rest.len())
                        .map(|()| 0)
                },
                Ok,
            );
            match result {
                Ok(count) => done += count,
                // All of it is written again then, by a thread that waits.
                Err(error) if done == 0 || error == Error::Away => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes within the largest file, and grows the size.
    fn write_at(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        let zeroed = Zeroed::default();
        let written = self.write_parts(asking, inode, file, offset, from, |offset, from| {
            self.settled_if_full(asking, inode, file, offset, || {
                let _inside = inode.enter_as(file, asking)?;
                self.zero_gap(inode.ino, file, offset, Some(&zeroed))?;
                let (written, told) = self.write_inside(asking, inode, file, offset, from)?;
                let end = offset + written as u64;
                if file.size.load(Ordering::Relaxed) < end {
                    let ino = inode.ino;
                    if told < end {
                        self.tell_data(ino, file, &[Change::Grown { ino, bytes: end }]);
                    }
                    // Release: whoever sees the size sees the bytes.
                    file.size.fetch_max(end, Ordering::Release);
                }
                Ok(written)
            })
        })?;
        self.make_runs(asking, inode, file, offset, offset + written as u64);
        inode.touch_modified(self.now_ns());
        Ok(written)
    }

    /// Maps each 2 MiB of the file that a write just came to the end of as one run, where its blocks are one: a file
    /// written in order needs no map node per 2 MiB then, and its blocks are found without missing the cache.
    fn make_runs(&self, asking: &Asking<'_>, inode: &Inode, file: &BlockFile, from: u64, to: u64) {
        const RUN_BYTES: u64 = RUN_BLOCKS * BLOCK;
        let ended = from / RUN_BYTES..to / RUN_BYTES;
        if ended.is_empty() {
            return;
        }
        // A run that is not made now is made by nobody, and is as right.
        let Ok(inside) = inode.enter_as(file, asking) else {
            return;
        };
        // One before too: while the file had no more than it, the map had no level for runs.
        let runs = ended.start.saturating_sub(1)..ended.end;
        let many_wait = runs.fold(false, |many_wait, run| {
            many_wait | file.map.make_run(&self.nodes, run * RUN_BLOCKS)
        });
        drop(inside);
        if many_wait {
            self.settle(inode, file, asking.waits);
        }
    }

    /// Frees the map's nodes that wait. Returns false, without closing the gate, when there are none, or others close it and nobody `waits` here.
    pub(in crate::fs) fn settle(&self, inode: &Inode, file: &BlockFile, waits: bool) -> bool {
        if !file.map.is_unsettled() {
            return false;
        }
        let closed = inode.close_or_leave(file, &self.slots, waits);
        if closed.is_some() {
            file.map.settle(&self.nodes);
        }
        closed.is_some()
    }

    /// Gives the map's nodes back that were made for a block that then found no room, unless others close the gate and nobody waits here: they would be
    /// charged to the file's owner for as long as it lives.
    fn forget_unfilled(&self, asking: &Asking<'_>, inode: &Inode, file: &BlockFile, at: u64) {
        let has_bare_node = || {
            let _inside = inode.enter_as(file, asking).ok()?;
            let first = at / RUN_BLOCKS * RUN_BLOCKS;
            let found = file.map.find(&self.nodes, first, RUN_BLOCKS);
            Some(!file.map.is_blank() && found == Found::Empty { blocks: RUN_BLOCKS })
        };
        if has_bare_node() != Some(true) {
            return;
        }
        let Some(closed) = inode.close_or_leave(file, &self.slots, asking.waits) else {
            return;
        };
        if file.map.holes(&self.nodes, at..at + 1) == 1 {
            let removed = file.map.remove(&self.nodes, closed.taker, at..at + 1, &mut |_, _| {
                unreachable!("it is a hole")
            });
            removed.expect("a hole splits no run");
        }
    }

    /// Writes at the byte `at`; once more when there was no memory for nodes while nodes of this file wait. `write` enters the gate itself.
    fn settled_if_full<T>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        at: u64,
        write: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let mut result = write();
        if matches!(result, Err(Error::NoSpace)) {
            self.forget_unfilled(asking, inode, file, at / BLOCK);
        }
        if matches!(result, Err(Error::NoMetadata)) {
            if self.settle(inode, file, asking.waits) {
                result = write();
            } else if !asking.waits && file.map.is_unsettled() {
                return Err(Error::Away);
            }
        }
        result.map_err(|error| match error {
            Error::NoMetadata => self.metadata.refuse(),
            other => other,
        })
    }

    /// See [`Fs::append`].
    pub(in crate::fs) fn append_blocks(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        from: &[u8],
        kill_priv: bool,
    ) -> Result<(u64, usize)> {
        if kill_priv && !from.is_empty() {
            self.kill_privileges(inode);
        }
        let _one_at_a_time = file.appending.write();
        let offset = file.size.load(Ordering::Acquire);
        if from.is_empty() {
            return Ok((offset, 0));
        }
        let from = &from[..room_for(offset, from)?];
        self.write_at(asking, inode, file, offset, from)
            .map(|written| (offset, written))
    }

    /// Writes with the gate entered: fails only when nothing was written. Gives the bytes, and the size that the log has been told with the last blocks
    /// that were placed.
    fn write_inside(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        from: &[u8],
    ) -> Result<(usize, u64)> {
        self.check_writable()?;
        let (mut done, mut told) = (0, 0);
        while done < from.len() {
            let at = offset + done as u64;
            let rest = &from[done..];
            let in_block = in_block(at);
            let most = blocks_of(in_block, rest.len());
            match file.map.find(&self.nodes, at / BLOCK, most) {
                Found::Placed { block, blocks } => match self.overwrite(asking, inode, file, at, rest, (block, blocks))
                {
                    Ok(stored) => done += stored,
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error),
                },
                Found::Empty { blocks } => match self.fill(asking, inode, file, at, rest, blocks) {
                    Ok(filled) => {
                        done += filled;
                        if filled > 0 {
                            told = at + filled as u64;
                        }
                    }
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error),
                },
            }
        }
        Ok((done, told))
    }

    /// Writes at byte `at` into the first of some placed blocks; gives the bytes written.
    fn overwrite(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        at: u64,
        from: &[u8],
        (block, blocks): (Block, u64),
    ) -> Result<usize> {
        let (memory, in_block) = (self.pool.memory(), in_block(at));
        let Some((place, blocks)) = memory.locate(block, blocks) else {
            let whole = from.get(..BLOCK_BYTES).filter(|_| in_block == 0).ok_or(Error::Away)?;
            let node = self.node_for(inode, at / BLOCK, asking);
            memory
                .put(node, block, whole)
                .ok_or(Error::NoPlaces(block.member()))??;
            self.note_stored(inode, file, at, BLOCK);
            self.pool
                .count(asking.slot.index(), asking.cpu, block, Direction::Write, BLOCK_BYTES);
            return Ok(BLOCK_BYTES);
        };
        let blocks = memory.may_store(block, blocks);
        if blocks == 0 {
            return Err(Error::NoPlaces(block.member()));
        }
        let now = &from[..bytes_of(blocks, in_block, from.len())];
        let stored = self.store(file, at, (place, in_block), now);
        memory.note_stored(block, blocks_of(in_block, now.len()));
        stored?;
        self.note_stored(inode, file, at, now.len() as u64);
        self.pool
            .count(asking.slot.index(), asking.cpu, place, Direction::Write, now.len());
        Ok(now.len())
    }

    /// First write at byte `at`: places up to `most` blocks and fills them from `from`. Gives the bytes written; 0 when
    /// another thread was faster and the blocks are there now.
    fn fill(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        at: u64,
        from: &[u8],
        most: u64,
    ) -> Result<usize> {
        let node = self.node_for(inode, at / BLOCK, asking);
        let taker = self.taker(asking, inode, node);
        let in_block = in_block(at);
        // A small cache has no room for a whole run at a time.
        let may_be_run = most >= RUN_BLOCKS && self.pool.memory().fetch_max() >= RUN_BLOCKS;
        let mut begun = None;
        if (at / BLOCK).is_multiple_of(RUN_BLOCKS) && in_block == 0 && may_be_run {
            let run_bytes = BLOCK_BYTES * 512;
            if from.len() >= run_bytes {
                match self.fill_run(asking, inode, file, node, taker, at, &from[..run_bytes])? {
                    Run::Filled => return Ok(run_bytes),
                    Run::Begun(taken, made) => begun = Some((taken, made)),
                    Run::None => {}
                }
            }
        }
        let Some(mut places) = file.map.lock_empty(&self.nodes, taker, at / BLOCK, most)? else {
            return Ok(0);
        };
        let reserved = places.reserved();
        let memory = self.pool.memory();
        let (mut taken, made) = match begun.filter(|(taken, _)| taken.is_reserved() == reserved) {
            Some(begun) => begun,
            None => {
                let cpu = asking.cpu;
                let taken = self.pool.take(cpu, node, places.blocks(), at / BLOCK, reserved)?;
                let made = memory.make(node, taken.first(), taken.blocks());
                (taken, made)
            }
        };
        let blocks = made.min(places.blocks());
        if blocks == 0 {
            return Err(Error::NoPlaces(taken.first().member()));
        }
        taken.shorten(blocks);
        let block = taken.first();
        places.shorten(blocks);
        let bytes = bytes_of(blocks, in_block, from.len());
        let tail = (in_block + bytes) % BLOCK_BYTES;
        if in_block > 0 {
            self.zero_located(block, 0, in_block)?;
        }
        self.store_located(file, at, block, &from[..bytes])?;
        if tail > 0 {
            self.zero_located(block.plus(blocks - 1), tail, BLOCK_BYTES - tail)?;
        }
        self.published(asking, inode, file, at, places, taken, bytes);
        Ok(bytes)
    }

    /// The taker of nodes of the inode's map, for a thread of `node`.
    pub(super) fn taker(&self, asking: &Asking<'_>, inode: &Inode, node: NodeId) -> Taker {
        Taker {
            home: self.pool.node_index(node),
            user: inode.uid(),
            asker: inode.asker(asking.user),
        }
    }

    /// First write of a whole aligned 2 MiB.
    #[expect(clippy::too_many_arguments, reason = "what is to be filled, where, and for whom")]
    fn fill_run(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        node: NodeId,
        taker: Taker,
        at: u64,
        from: &[u8],
    ) -> Result<Run<'_, M>> {
        let Some(places) = file.map.lock_empty_run(&self.nodes, taker, at / BLOCK)? else {
            return Ok(Run::None);
        };
        let Some(taken) = self.pool.take_run(asking.cpu, node, places.reserved()) else {
            return Ok(Run::None);
        };
        match self.pool.memory().make(node, taken.first(), RUN_BLOCKS) {
            RUN_BLOCKS => {}
            0 => return Ok(Run::None),
            made => return Ok(Run::Begun(taken, made)),
        }
        self.store_located(file, at, taken.first(), from)?;
        self.published(asking, inode, file, at, places, taken, from.len());
        Ok(Run::Filled)
    }

    /// Stores bytes into blocks that can be located, one behind the other for the file.
    fn store_located(&self, file: &BlockFile, offset: u64, block: Block, from: &[u8]) -> Result<()> {
        let memory = self.pool.memory();
        let (mut done, mut block) = (0, block);
        while done < from.len() {
            let at = offset + done as u64;
            let rest = &from[done..];
            let most = blocks_of(in_block(at), rest.len());
            let (place, blocks) = memory.locate(block, most).ok_or(Error::Away)?;
            let now = &rest[..bytes_of(blocks, in_block(at), rest.len())];
            let stored = self.store(file, at, (place, in_block(at)), now);
            memory.note_stored(block, blocks);
            stored?;
            done += now.len();
            block = block.plus(blocks);
        }
        Ok(())
    }

    /// Zeroes bytes of a block that can be located.
    pub(super) fn zero_located(&self, block: Block, in_block: usize, bytes: usize) -> Result<()> {
        let memory = self.pool.memory();
        let place = memory.locate_one(block).ok_or(Error::Away)?;
        let zeroed = memory.zero(place, in_block, bytes);
        memory.note_stored(block, 1);
        Ok(zeroed?)
    }

    /// Shows blocks that are filled from byte `at` in the file. The log is told of its size with them: after a crash before the write has ended, no bytes of it
    /// lie behind the end, where they would be shown when the file grows.
    #[expect(clippy::too_many_arguments, reason = "what was filled, where, and for whom")]
    fn published(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        at: u64,
        places: Places<'_>,
        taken: Taken<'_, M>,
        bytes: usize,
    ) {
        if !places.reserved() {
            file.blocks.add(asking.cpu.0, places.blocks());
        }
        let block = taken.first();
        let (ino, blocks) = (inode.ino, places.blocks());
        // Not taken as dirty by a sync that does not find them in the map yet.
        let _publishing = self.is_durable().then(|| file.publishing.read());
        if self.is_durable() {
            let (first, end) = (at / BLOCK, at + bytes as u64);
            self.note_dirty(ino, file, first..first + blocks);
            let extent = Change::Extent {
                ino,
                at: first,
                blocks,
                first: Some(block),
            };
            let both = [extent, Change::Grown { ino, bytes: end }];
            let is_grown = file.size.load(Ordering::Relaxed) < end;
            self.tell_data(ino, file, &both[..1 + usize::from(is_grown)]);
        }
        places.publish(taken.record());
        let place = self.pool.memory().locate_one(block).unwrap_or(block);
        self.pool
            .count(asking.slot.index(), asking.cpu, place, Direction::Write, bytes);
    }
}

/// Result of a first write of a whole run.
enum Run<'a, M: Memory> {
    Filled,
    /// The first blocks that have frames, so many, are used by the caller: freeing a dirty one waits for the thread that writes it to the disk.
    Begun(Taken<'a, M>, u64),
    /// Something is in the way, or no such run is free.
    None,
}

/// How much of `from` fits between `offset` and the end of the largest file.
fn room_for(offset: u64, from: &[u8]) -> Result<usize> {
    let room = FILE_BYTES_MAX
        .checked_sub(offset)
        .filter(|room| *room > 0)
        .ok_or(Error::TooBig)?;
    Ok(usize::try_from(room).map_or(from.len(), |room| room.min(from.len())))
}

/// Whether bytes, one at least, lie within a block.
#[inline(always)]
fn is_within_block(offset: u64, bytes: usize) -> bool {
    bytes.wrapping_sub(1) < BLOCK_BYTES - in_block(offset)
}

/// Byte `at`'s offset within its block.
#[inline]
pub(in crate::fs) fn in_block(at: u64) -> usize {
    usize::try_from(at % BLOCK).expect("at % BLOCK is below 4096")
}

/// Blocks that `bytes` bytes touch which start `in_block` bytes behind a block's start.
#[inline]
pub(super) fn blocks_of(in_block: usize, bytes: usize) -> u64 {
    (in_block + bytes).div_ceil(BLOCK_BYTES) as u64
}

/// How many of `most` bytes lie in `blocks` blocks, `in_block` bytes behind the first's start.
#[inline]
fn bytes_of(blocks: u64, in_block: usize, most: usize) -> usize {
    usize::try_from(blocks * BLOCK).map_or(most, |bytes| (bytes - in_block).min(most))
}
