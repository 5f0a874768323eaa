//! A device in memory: what it takes is copied at once.
//!
//! Cost: a request is one bounds check of its buffer, one of its place and the copy; while it is copied the processor is asked
//! for the places of the next ones ([`copy::announce`]).

use super::{Arena, EFAULT};
use crate::copy;
use crate::memory::NodeMemory;
use homenode_engine::blk::{Done, Driver, DriverQueue, Late, Limits, Operation, Outcome, Slots, Tag};
use homenode_engine::{BLOCK_BYTES, Block, NodeId};
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

/// Copies that are prepared at a time: as many as requests accumulate.
const COPIES: usize = 32;
/// Copies whose places are announced before they begin: a bare loop over random places gains a tenth by it, at 4 KiB.
const AHEAD: usize = 4;
/// Bytes announced of each place: the processor finds the rest by itself. A bare loop over random places gains nothing when
/// a whole page is announced.
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
        Ok(RamQueue {
            storage: self.storage.clone(),
            buffers: Arc::clone(&self.buffers),
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct RamQueue {
    storage: Storage,
    buffers: Arc<Arena>,
}

impl DriverQueue for RamQueue {
    #[inline]
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        for part in batch.chunks(COPIES) {
            self.carry_out(part, slots, done);
        }
        batch.len()
    }

    fn poll(&mut self, _slots: &mut Slots, _now: u64, _done: &mut Done) {}

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}

/// A copy whose ends are within the storage and the buffers.
#[derive(Clone, Copy)]
struct Move {
    place: *mut u8,
    buffer: *mut u8,
    bytes: usize,
    is_write: bool,
}

impl RamQueue {
    /// At most [`COPIES`] requests. First all are looked at, and the first [`AHEAD`] announced, so that memory is at work meanwhile. Then
    /// all are copied: with nothing between them the processor fetches for several copies at once (a tenth faster at 512 bytes).
    #[inline]
    fn carry_out(&self, part: &[Tag], slots: &Slots, done: &mut Done) {
        let mut moves = [const { None::<Move> }; COPIES];
        let mut count = 0;
        for tag in part {
            let outcome = match slots.operation(*tag) {
                Operation::Read | Operation::Write => self.prepare(*tag, slots, |ready| {
                    if count == COPIES {
                        ready.carry_out();
                    } else {
                        if count < AHEAD {
                            ready.announce();
                        }
                        moves[count] = Some(ready);
                        count += 1;
                    }
                }),
                Operation::WriteZeroes => {
                    let bytes = slots.bytes(*tag);
                    let at = self.storage.range(slots.offset(*tag), bytes as usize);
                    // SAFETY: `range` answers for as many mapped bytes.
                    unsafe { copy::zero(at, bytes as usize) };
                    Ok(bytes)
                }
                // What is discarded may be read all the same; there is nothing to flush.
                Operation::Discard | Operation::Flush => Ok(slots.bytes(*tag)),
            };
            done.push(*tag, outcome);
        }
        let moves = &moves[..count];
        for (index, ready) in moves.iter().flatten().enumerate() {
            if let Some(Some(next)) = moves.get(index + AHEAD) {
                next.announce();
            }
            ready.carry_out();
        }
    }

    /// Gives each segment's copy to `ready`.
    #[inline]
    fn prepare(&self, tag: Tag, slots: &Slots, mut ready: impl FnMut(Move)) -> Outcome {
        let is_write = slots.operation(tag) == Operation::Write;
        let (start, mut done) = (slots.offset(tag), 0);
        for segment in slots.segments(tag) {
            let bytes = segment.bytes as usize;
            ready(Move {
                buffer: self.buffers.range(segment.buffer, bytes).ok_or(EFAULT)?,
                place: self.storage.range(start + u64::from(done), bytes),
                bytes,
                is_write,
            });
            done += segment.bytes;
        }
        Ok(done)
    }
}

impl Move {
    /// Asks the processor for the place.
    #[inline]
    fn announce(&self) {
        copy::announce(self.place, ANNOUNCED_BYTES, self.is_write);
    }

    #[inline]
    fn carry_out(self) {
        if self.is_write {
            // SAFETY: both ranges are mapped for `bytes` and stay so while the queue is there; storage and buffers are different
            // mappings (see `Ram::new`), which are reached by this module and the kernel only.
            unsafe { copy::store(self.place, self.buffer, self.bytes) }
        } else {
            // SAFETY: as above.
            unsafe { copy::load(self.buffer, self.place, self.bytes) }
        }
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
                .expect("the block layer admits only requests within the device"),
            Self::Member { memory, first, .. } => {
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                memory.address(*first, offset, bytes)
            }
        }
    }
}
