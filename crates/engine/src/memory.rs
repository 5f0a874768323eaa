//! Interface to the machine: memory to copy to and from, disks, and the time.

use crate::cache::Fetch;
use crate::{Block, MemberId, NodeId};
use homenode_shared::Slots;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An act while the bytes of a copy are on their way. A trait, because `inline(always)` cannot be put on a closure.
pub trait Meanwhile: Copy {
    /// Acts inside the slot of the copy, once for each that is made, whether or not it fails; `place` is where the bytes are. Removes no member and enters no inode.
    fn act(self, place: Block);
}

/// The bytes of the members. Implemented over mapped memory by `homenode-linux`, and by tests.
///
/// Every range starts `offset` bytes behind the start of a block and may run on over the following blocks of the same
/// member. The engine only names blocks it has taken from the member's allocator, so ranges are within populated memory.
/// After a failed copy the bytes it was to write are undefined; the engine shows them to nobody but a reader of a file that
/// had those blocks before.
/// Two threads may copy to and from the same bytes at once: the result is a mix of both, never a fault.
///
/// Blocks of a disk are cached ([`crate::cache`]): their bytes come and go. What copies without waiting asks by [`Memory::locate`] where they are,
/// inside a slot; the other methods wait for the disk, and are called where nothing is held that others need to go on.
pub trait Memory: Send + Sync + 'static {
    /// Copies `to.len()` bytes out of the pool.
    ///
    /// # Errors
    /// [`MemoryError`], here and below: the member could not do it.
    fn load(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `from` into the pool.
    ///
    /// # Errors
    /// As [`Memory::load`].
    fn store(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError>;

    /// [`Memory::store`] where nothing was stored since the bytes were made durable, and they are made so soon: a member may have a faster way for it.
    ///
    /// # Errors
    /// Those of [`Memory::store`].
    fn store_clean(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.store(to, offset, from)
    }

    /// Shows bytes of blocks in the place of those that are there, in a pool that is only read: nothing is written. To be called once, before anything is
    /// read. Bytes that are not there stay away.
    ///
    /// # Errors
    /// The errors of [`Memory::store`].
    fn show_instead(&self, mut blocks: BTreeMap<Block, Arc<[u8]>>) -> Result<(), MemoryError> {
        blocks.retain(|at, bytes| self.is_there(*at, 0, bytes.len()));
        blocks.iter().try_for_each(|(at, bytes)| self.store(*at, 0, bytes))
    }

    /// Says that a copy is about to come: it begins early if copies of that many bytes gain by that.
    #[inline]
    fn announce(&self, at: Block, offset: usize, bytes: usize, to_write: bool) {
        let _ = (at, offset, bytes, to_write);
    }

    /// Writes `bytes` zeros.
    ///
    /// # Errors
    /// As [`Memory::load`].
    fn zero(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError>;

    /// Copies `blocks` whole blocks within the pool; the ranges do not overlap.
    ///
    /// # Errors
    /// As [`Memory::load`].
    fn copy(&self, from: Block, to: Block, blocks: u64) -> Result<(), MemoryError>;

    /// Makes `blocks` blocks from block index `first` of `member` present on the member's home, so that no later access
    /// faults. May take long (milliseconds per 2 MiB). Called with aligned 2 MiB runs (the last may be shorter).
    ///
    /// # Errors
    /// [`Starved`] when the home node has not enough free memory for it now; nothing is populated then.
    fn populate(&self, member: MemberId, first: u64, blocks: u64) -> Result<(), Starved>;

    /// Whether bytes that were copied past this trait are the member's, and not something in the place of what it did not give.
    #[inline]
    fn is_there(&self, at: Block, offset: usize, bytes: usize) -> bool {
        let _ = (at, offset, bytes);
        true
    }

    /// Makes bytes durable: all stores to them that returned before the call. Blocks until they are.
    ///
    /// # Errors
    /// [`MemoryError`] when some of them are not; they stay to be made durable by a later call.
    fn persist(&self, at: Block, offset: usize, bytes: usize) -> Result<(), MemoryError> {
        let _ = (at, offset, bytes);
        Ok(())
    }

    /// [`Memory::persist`] of stretches of one member: the first block of each, and its bytes. One flush of a device is enough for all. Goes on
    /// behind a stretch that fails.
    ///
    /// # Errors
    /// The errors of [`Memory::persist`], for any of the stretches.
    fn persist_each(&self, stretches: &[(Block, usize)]) -> Result<(), MemoryError> {
        let persisted = stretches.iter().map(|(at, bytes)| self.persist(*at, 0, *bytes));
        persisted.fold(Ok(()), Result::and)
    }

    /// Makes all bytes of `member` durable that were stored before the call.
    ///
    /// # Errors
    /// Those of [`Memory::persist`].
    fn persist_all(&self, member: MemberId) -> Result<(), MemoryError> {
        let _ = member;
        Ok(())
    }

    /// Whether blocks of `member` are cached: nobody waits inside a slot until they are persisted.
    #[inline]
    fn is_cached(&self, member: MemberId) -> bool {
        let _ = member;
        false
    }

    /// Whether stores may be lost when persisting some bytes of `member` has failed. Else what could not be persisted is there still, and may be later.
    fn has_lost(&self, member: MemberId) -> bool {
        let _ = member;
        true
    }

    /// How many of the first of `blocks` blocks, which were located, may be stored into now, in the same slot: the others when there are
    /// [places](Memory::wait_for_places) for them.
    #[inline(always)]
    fn may_store(&self, at: Block, blocks: u64) -> u64 {
        let _ = at;
        blocks
    }

    /// Most bytes of a file that are better written to the log beside its records, and persisted with them, than persisted where they lie.
    fn inline_bytes_max(&self) -> usize {
        0
    }

    /// [`Memory::store`] of bytes behind which those of the same block do not count: the end of a log.
    ///
    /// # Errors
    /// Those of [`Memory::store`].
    fn append(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.store_clean(to, offset, from)
    }

    /// Where the bytes of a block are now, inside a slot and until that is left; `None` when they must be [fetched](Memory::fetch) first.
    #[inline(always)]
    fn locate_one(&self, at: Block) -> Option<Block> {
        Some(at)
    }

    /// [`Memory::locate_one`] of the first of `most` blocks, and how many of them lie one behind the other there.
    #[inline(always)]
    fn locate(&self, at: Block, most: u64) -> Option<(Block, u64)> {
        Some((at, most))
    }

    /// [`Memory::load`] from where blocks were located, in the same slot.
    ///
    /// # Errors
    /// As [`Memory::load`].
    #[inline(always)]
    fn load_located(&self, from: Block, offset: usize, to: &mut [u8]) -> Result<(), MemoryError> {
        self.load(from, offset, to)
    }

    /// [`Memory::store`] to where blocks were located, in the same slot.
    ///
    /// # Errors
    /// As [`Memory::load`].
    #[inline(always)]
    fn store_located(&self, to: Block, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.store(to, offset, from)
    }

    /// [`Memory::load_located`], with `meanwhile` done while the bytes are on their way.
    ///
    /// # Errors
    /// [`MemoryError`], for the reasons of [`Memory::load`].
    #[inline(always)]
    fn load_meanwhile(
        &self,
        from: Block,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Result<(), MemoryError> {
        self.announce(from, offset, to.len(), false);
        meanwhile.act(from);
        self.load_located(from, offset, to)
    }

    /// [`Memory::store_located`], as [`Memory::load_meanwhile`].
    ///
    /// # Errors
    /// [`MemoryError`], for the reasons of [`Memory::load`].
    #[inline(always)]
    fn store_meanwhile(
        &self,
        to: Block,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Result<(), MemoryError> {
        self.announce(to, offset, from.len(), true);
        meanwhile.act(to);
        self.store_located(to, offset, from)
    }

    /// [`Memory::load_meanwhile`] from where bytes are likely to be; `None`, and nothing done, unless `confirm` tells that they are there, while they are on
    /// their way.
    #[inline(always)]
    fn load_if(
        &self,
        from: Block,
        offset: usize,
        to: &mut [u8],
        confirm: impl FnOnce() -> bool,
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        confirm().then(|| self.load_meanwhile(from, offset, to, meanwhile))
    }

    /// [`Memory::store_meanwhile`] to where bytes are likely to be, as [`Memory::load_if`].
    #[inline(always)]
    fn store_if(
        &self,
        to: Block,
        offset: usize,
        from: &[u8],
        confirm: impl FnOnce() -> bool,
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        confirm().then(|| self.store_meanwhile(to, offset, from, meanwhile))
    }

    /// [`Memory::load_meanwhile`] of bytes within one block, inside a slot, wherever they are; `None` when they must be [fetched](Memory::fetch) first.
    #[inline(always)]
    fn load_block(
        &self,
        from: Block,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        Some(self.load_meanwhile(from, offset, to, meanwhile))
    }

    /// [`Memory::store_meanwhile`], as [`Memory::load_block`], and notes it; `None` also where no more may be stored before there are
    /// [places](Memory::wait_for_places).
    #[inline(always)]
    fn store_block(
        &self,
        to: Block,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        Some(self.store_meanwhile(to, offset, from, meanwhile))
    }

    /// Whether a block can be located; it counts as no use. A guess.
    #[inline(always)]
    fn is_here(&self, at: Block) -> bool {
        let _ = at;
        true
    }

    /// Ends what was [begun](Memory::fetch_soon) of blocks around this one and has come; never waits.
    fn end_fetches(&self, at: Block) {
        let _ = at;
    }

    /// Notes that bytes of `blocks` blocks were stored where they were located, in the same slot.
    #[inline(always)]
    fn note_stored(&self, at: Block, blocks: u64) {
        let _ = (at, blocks);
    }

    /// Gives blocks that nobody can read a place each, if possible on `node`, for bytes that are about to be stored: as many of the first as can be
    /// done at once.
    #[inline(always)]
    fn make(&self, node: NodeId, at: Block, blocks: u64) -> u64 {
        let _ = (node, at);
        blocks
    }

    /// Stores a whole block that could not be located, at a place on `node` if possible; `None` when that cannot be done at once.
    ///
    /// # Errors
    /// Those of [`Memory::store`].
    fn put(&self, node: NodeId, at: Block, from: &[u8]) -> Option<Result<(), MemoryError>> {
        let _ = node;
        Some(self.store(at, 0, from))
    }

    /// Brings bytes of blocks to where they can be located, if possible on `node`: for the time being. Blocks until they are there.
    ///
    /// # Errors
    /// [`MemoryError`] when they cannot be read.
    fn fetch(&self, node: NodeId, at: Block, blocks: u64) -> Result<(), MemoryError> {
        let _ = (node, at, blocks);
        Ok(())
    }

    /// Begins to fetch some of the first of `blocks` blocks, for a caller who reads them himself; `None` when that cannot be done at once, or not so.
    fn begin_fetch(&self, node: NodeId, at: Block, blocks: u64) -> Option<Fetch> {
        let _ = (node, at, blocks);
        None
    }

    /// Whether a block that could not be located is being read.
    fn is_coming(&self, at: Block) -> bool {
        let _ = at;
        false
    }

    /// Whether a block that could not be located is being read, or its disk carries out as many reads as it may.
    fn is_busy(&self, at: Block) -> bool {
        let _ = at;
        false
    }

    /// Ends a fetch, when all of its bytes were read, or else when that has failed.
    fn end_fetch(&self, fetch: Fetch, is_read: bool) {
        let _ = (fetch, is_read);
    }

    /// Begins to [fetch](Memory::fetch) stretches of blocks, each to a node if possible, while the caller goes on. May do nothing. When they are `marked`, the
    /// first block that is fetched cannot be located before somebody fetches it: who reads in order and comes there knows that it is time to ask for
    /// more.
    fn fetch_soon(&self, stretches: &[(NodeId, Block, u64)], marked: bool) {
        let _ = (stretches, marked);
    }

    /// Notes that blocks are not likely to be wanted soon.
    fn cool(&self, at: Block, blocks: u64) {
        let _ = (at, blocks);
    }

    /// Blocks that can be fetched at a time and are all there afterwards, most likely.
    fn fetch_max(&self) -> u64 {
        u64::MAX
    }

    /// Waits until there are places for new bytes of `blocks` blocks of `member`, or for as many as there can be.
    ///
    /// # Errors
    /// [`MemoryError`] when there are none for long, because dirty blocks of it cannot be written.
    fn wait_for_places(&self, node: NodeId, member: MemberId, blocks: u64) -> Result<(), MemoryError> {
        let _ = (node, member, blocks);
        Ok(())
    }

    /// Forgets the bytes of blocks that are nobody's any more.
    fn forget(&self, at: Block, blocks: u64) {
        let _ = (at, blocks);
    }

    /// Members that blocks are located in, and that are no members of a pool, each with its home.
    fn homes(&self) -> Vec<(MemberId, NodeId)> {
        Vec::new()
    }

    /// The slots in which blocks are located, where that matters.
    fn slots(&self) -> Option<Arc<Slots>> {
        None
    }

    /// Gives all memory of `member` back, of which no block is in use; false when it stays. Its blocks are populated anew before they
    /// are used again.
    fn depopulate(&self, member: MemberId) -> bool {
        let _ = member;
        false
    }
}

/// Sorts stretches, and divides them by their members: for [`Memory::persist_each`].
pub(crate) fn by_member(stretches: &mut [(Block, usize)]) -> impl Iterator<Item = &[(Block, usize)]> {
    stretches.sort_unstable();
    stretches.chunk_by(|(one, _), (other, _)| one.member() == other.member())
}

/// Disks that blocks of memory are read from and written to, by requests of whole blocks that block until they are done: what is below a cache.
///
/// `frames` are blocks of members in memory, one for each block of the disk, in the order of the disk's blocks; they need not lie one behind the
/// other. At most [`Disks::BLOCKS_MAX`] in a call.
pub trait Disks: Memory {
    /// Most blocks of a call: 1 MiB.
    const BLOCKS_MAX: usize = 256;

    /// Whether `member` is a disk.
    fn is_disk(&self, member: MemberId) -> bool;

    /// Reads the blocks from `first` on into `frames`.
    ///
    /// # Errors
    /// [`MemoryError`] when not all of them were read; what the frames hold then is undefined.
    fn read(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError>;

    /// Returns the transfer that reads the blocks from `first` on into `frames`; `None` when only [`Disks::read`] can read them.
    fn transfer(&self, first: Block, frames: &[Block]) -> Option<Transfer> {
        let _ = (first, frames);
        None
    }

    /// Begins reads of `member`, whose ends [`Disks::take_reads`] tells to any thread. Returns those that it cannot carry out so.
    fn begin_reads(&self, member: MemberId, fetches: Vec<Fetch>) -> Vec<Fetch> {
        let _ = member;
        fetches
    }

    /// Whether reads of `member` were begun whose ends were not told.
    fn has_reads(&self, member: MemberId) -> bool {
        let _ = member;
        false
    }

    /// Calls `ended` with the reads of `member` that have ended, and whether all of their bytes came. When it `waits`, blocks until there is one, or for a
    /// moment; not at all when none is under way. For one thread at a time.
    fn take_reads(&self, member: MemberId, waits: bool, ended: &mut dyn FnMut(Fetch, bool)) {
        let _ = (member, waits, ended);
    }

    /// The frame of a read of the block `at` that its disk has presumably ended, and that the thread which began it does not end: it sleeps, or has no CPU.
    fn left_frame(&self, at: Block) -> Option<u32> {
        let _ = at;
        None
    }

    /// Begins no more reads of `member`, waits until those that were begun have ended, and calls `ended` with them, whatever became of them.
    fn close_reads(&self, member: MemberId, ended: &mut dyn FnMut(Fetch)) {
        let _ = (member, ended);
    }

    /// Writes `frames` to the blocks from `first` on.
    ///
    /// # Errors
    /// [`MemoryError`] when not all of them were written; each may be old or new then.
    fn write(&self, first: Block, frames: &[Block]) -> Result<(), MemoryError>;

    /// Most writes of `member` that [`Disks::write_each`] carries out, all at the same time.
    fn writes_at_a_time(&self, member: MemberId) -> usize {
        let _ = member;
        1
    }

    /// Carries out writes of one member, of [`Disks::BLOCKS_MAX`] frames in all at most, and notes which were written whole.
    fn write_each(&self, writes: &mut [FrameWrite<'_>]) {
        for write in writes {
            write.is_written = self.write(write.first, write.frames).is_ok();
        }
    }

    /// Makes all writes durable that returned before the call.
    ///
    /// # Errors
    /// [`MemoryError`] when that is not sure: of none of those that were not durable before.
    fn flush(&self, member: MemberId) -> Result<(), MemoryError>;
}

/// A write of frames to the blocks of a disk from `first` on.
#[derive(Debug)]
pub struct FrameWrite<'a> {
    /// First block.
    pub first: Block,
    /// Frames, [`Disks::BLOCKS_MAX`] at most.
    pub frames: &'a [Block],
    /// Whether all of them were written.
    pub is_written: bool,
}

/// A read of a disk that is carried out by other means than [`Disks::read`]: pieces of memory that are read from byte `offset` of a file on.
#[derive(Debug)]
pub struct Transfer {
    /// Descriptor of the file.
    pub descriptor: i32,
    /// Where the bytes are in it.
    pub offset: u64,
    /// Address and number of bytes of each piece of memory, which nobody else uses.
    pub pieces: Vec<(usize, usize)>,
    /// Keeps the file and the addresses. Dropped when the read has ended.
    pub alive: Arc<dyn Any + Send + Sync>,
}

/// A member could not read or write its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the member's bytes cannot be read or written")]
pub struct MemoryError;

/// The home node has no free memory left to populate blocks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has no free memory left")]
pub struct Starved;

/// The time of day.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since the epoch; a coarse clock (a few ms) is enough.
    fn now_ns(&self) -> i64;
}
