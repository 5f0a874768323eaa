//! A device in memory: what it takes is copied at once, and told done when asked.
//!
//! Cost: a request is one bounds check of its buffer, one of its place and the copy; while it is copied the processor is asked
//! for the places of the next ones ([`copy::announce`]).

use super::{Arena, EFAULT};
use crate::copy;
use crate::memory::NodeMemory;
use homenode_engine::blk::{Done, Driver, DriverQueue, Errno, Late, Limits, Operation, Outcome, Slots, Tag};
use homenode_engine::{BLOCK_BYTES, Block, Memory, NodeId};
use std::io;
use std::sync::Arc;

/// Where a device's bytes are.
#[derive(Clone, Debug)]
pub enum Storage {
    /// Memory of its own.
    Arena(Arc<Arena>),
    /// Blocks of a member of a pool, populated. They are the device's alone and stay the member's while it is there.
    Member {
        /// The pool's memory.
        memory: Arc<NodeMemory>,
        /// The first of them.
        first: Block,
        /// How many they are.
        blocks: u64,
    },
}

/// The device.
#[derive(Clone, Debug)]
pub struct Ram {
    storage: Storage,
    buffers: Arc<Arena>,
    limits: Limits,
    homes: Vec<Option<NodeId>>,
}

/// Requests whose places are announced before they are copied. With one, copies of 512 bytes are a tenth slower.
const AHEAD: usize = 4;
/// As much of each place: the processor finds the rest by itself. With all of a page, copies of 4 KiB are a tenth slower.
const ANNOUNCED_BYTES: usize = 512;

impl Ram {
    /// The bytes of `storage`, in whole blocks of 512, with a hardware queue for each of `queues`, for requests that name
    /// memory of `buffers`.
    ///
    /// # Panics
    /// When there is no block, the member has not got the blocks, or the buffers are the storage.
    #[must_use]
    pub fn new(storage: Storage, buffers: Arc<Arena>, queues: &[Option<NodeId>]) -> Self {
        if let Storage::Arena(arena) = &storage {
            assert!(!Arc::ptr_eq(arena, &buffers), "a device is not its own buffer");
        }
        let bytes = storage.bytes();
        let limits = Limits {
            device_bytes: bytes / 512 * 512,
            can_discard: true,
            can_zero: true,
            ..Limits::of_bytes(0)
        };
        assert!(limits.device_bytes > 0, "a device has a block");
        storage.range(0, usize::try_from(bytes).unwrap_or(usize::MAX));
        Self {
            storage,
            buffers,
            limits,
            homes: queues.to_vec(),
        }
    }
}

impl Driver for Ram {
    type Queue = RamQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        self.homes.clone()
    }

    fn queue(&self, _index: usize) -> io::Result<RamQueue> {
        let depth = usize::from(self.limits.depth);
        Ok(RamQueue {
            storage: self.storage.clone(),
            buffers: Arc::clone(&self.buffers),
            finished: Vec::with_capacity(depth),
            depth,
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct RamQueue {
    storage: Storage,
    buffers: Arc<Arena>,
    finished: Vec<(Tag, Outcome)>,
    depth: usize,
}

impl DriverQueue for RamQueue {
    #[inline]
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64) -> usize {
        let count = batch.len().min(self.depth - self.finished.len());
        batch.iter().take(AHEAD).for_each(|tag| self.announce(*tag, slots));
        for (index, tag) in batch[..count].iter().enumerate() {
            if let Some(next) = batch.get(index + AHEAD) {
                self.announce(*next, slots);
            }
            let outcome = self.carry_out(*tag, slots);
            self.finished.push((*tag, outcome));
        }
        count
    }

    #[inline]
    fn poll(&mut self, _slots: &mut Slots, _now: u64, done: &mut Done) {
        let count = self.finished.len().min(done.room());
        for (tag, outcome) in self.finished.drain(..count) {
            done.push(tag, outcome);
        }
    }

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}

impl RamQueue {
    #[inline]
    fn announce(&self, tag: Tag, slots: &Slots) {
        let operation = slots.operation(tag);
        if operation.has_data() {
            let to_write = operation == Operation::Write;
            self.storage.announce(slots.offset(tag), ANNOUNCED_BYTES, to_write);
        }
    }

    #[inline]
    fn carry_out(&self, tag: Tag, slots: &Slots) -> Outcome {
        let is_write = match slots.operation(tag) {
            Operation::Read => false,
            Operation::Write => true,
            Operation::WriteZeroes => {
                let bytes = slots.bytes(tag);
                let at = self.storage.range(slots.offset(tag), bytes as usize);
                // SAFETY: `range` answers for as many mapped bytes.
                unsafe { copy::zero(at, bytes as usize) };
                return Ok(bytes);
            }
            // What is discarded may be read all the same; there is nothing to flush.
            Operation::Discard | Operation::Flush => return Ok(slots.bytes(tag)),
        };
        let (start, mut done) = (slots.offset(tag), 0);
        for segment in slots.segments(tag) {
            self.copy(
                start + u64::from(done),
                segment.buffer,
                segment.bytes as usize,
                is_write,
            )?;
            done += segment.bytes;
        }
        Ok(done)
    }

    #[inline]
    fn copy(&self, offset: u64, buffer: u64, bytes: usize, is_write: bool) -> Result<(), Errno> {
        let buffer = self.buffers.range(buffer, bytes).ok_or(EFAULT)?;
        let place = self.storage.range(offset, bytes);
        if is_write {
            // SAFETY: both ranges are mapped for `bytes`; storage and buffers are different mappings (see `Ram::new`), which
            // are reached by this module and the kernel only.
            unsafe { copy::store(place, buffer, bytes) }
        } else {
            // SAFETY: as above.
            unsafe { copy::load(buffer, place, bytes) }
        }
        Ok(())
    }
}

impl Storage {
    fn bytes(&self) -> u64 {
        match self {
            Self::Arena(arena) => arena.bytes(),
            Self::Member { blocks, .. } => blocks.saturating_mul(BLOCK_BYTES as u64),
        }
    }

    /// The address of these bytes of the device.
    ///
    /// # Panics
    /// When it has not got them: the layer above keeps to the limits, and members stay.
    #[inline]
    fn range(&self, offset: u64, bytes: usize) -> *mut u8 {
        match self {
            Self::Arena(arena) => arena
                .range(offset, bytes)
                .expect("requests keep to the device's limits"),
            Self::Member { memory, first, .. } => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                memory.address(*first, offset, bytes)
            }
        }
    }

    /// Asks the processor for bytes that are about to be copied.
    #[inline]
    fn announce(&self, offset: u64, bytes: usize, to_write: bool) {
        match self {
            Self::Arena(arena) => copy::announce(arena.guess(offset), bytes, to_write),
            Self::Member { memory, first, .. } => {
                memory.announce(*first, usize::try_from(offset).unwrap_or(0), bytes, to_write);
            }
        }
    }
}
