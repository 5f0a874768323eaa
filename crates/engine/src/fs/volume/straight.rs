//! Copies between a volume's blocks and memory that the engine may not refer to, such as the buffers of a device's requests.
//!
//! The caller gets the blocks' places, and copies by its own means while nobody can take the blocks away.

use super::Volume;
use crate::fs::Fs;

use crate::pool::Direction;
use crate::{BLOCK_BYTES, Block, Clock, CpuId, Memory};
use homenode_shared::{Found, SlotNumber};
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Part of a range of a volume, all of it in the pool or all of it in a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where it is: a block, and bytes behind that block's start. `None`: a hole, which reads as zeros.
    pub place: Option<(Block, usize)>,
    /// Bytes of the range in front of it.
    pub done: usize,
    /// Bytes of it.
    pub bytes: usize,
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Calls `copy` for one stretch after the other of `bytes` bytes from byte `offset` on, to copy them out of the volume, until
    /// one is on a disk only. Returns the bytes in front of that; 0 too when blocks are being taken away or the volume is smaller.
    /// [`Fs::begin_fetches`] brings what follows, and [`Fs::read_volume`] waits for it. `slot` is a slot of the calling thread's, on `cpu`.
    #[inline]
    pub fn read_straight(
        &self,
        (slot, cpu): (SlotNumber, CpuId),
        volume: &Volume,
        offset: u64,
        bytes: usize,
        mut copy: impl FnMut(&M, Stretch),
    ) -> usize {
        self.straight((slot, cpu), volume, (offset, bytes), Direction::Read, |stretch| {
            copy(self.pool.memory(), stretch);
            true
        })
    }

    /// Calls `copy` for one stretch after the other of `bytes` bytes from byte `offset` on, to copy them into the volume, until
    /// one is a hole. Returns the bytes in front of that; 0 too when blocks are being taken away or the volume is smaller. Use
    /// [`Fs::write_volume`] for what follows. `slot` is a slot of the calling thread's, on `cpu`.
    #[inline]
    pub fn write_straight(
        &self,
        (slot, cpu): (SlotNumber, CpuId),
        volume: &Volume,
        offset: u64,
        bytes: usize,
        mut copy: impl FnMut(&M, Stretch),
    ) -> usize {
        let done = self.straight((slot, cpu), volume, (offset, bytes), Direction::Write, |stretch| {
            let is_placed = stretch.place.is_some();
            if is_placed {
                copy(self.pool.memory(), stretch);
            }
            is_placed
        });
        if done > 0 {
            self.note_stored(&volume.inode, volume.file(), offset, done as u64);
            volume.inode.touch_modified(self.now_ns());
        }
        done
    }

    /// Goes through the stretches until `copy` returns false; the bytes that it did copy.
    #[inline]
    fn straight(
        &self,
        (slot, cpu): (SlotNumber, CpuId),
        volume: &Volume,
        (offset, bytes): (u64, usize),
        direction: Direction,
        mut copy: impl FnMut(Stretch) -> bool,
    ) -> usize {
        let (inode, file) = (&volume.inode, volume.file());
        let Some(_inside) = self.slots.enter(slot, &file.gate, inode.ino.0) else {
            return 0;
        };
        if direction == Direction::Write && self.check_writable().is_err() {
            return 0;
        }
        // Acquire: as in `Volume::check_range`.
        let size = file.size.load(Ordering::Acquire);
        if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
            return 0;
        }
        let mut done = 0;
        while done < bytes {
            let at = offset + done as u64;
            let in_block = usize::try_from(at % BLOCK).expect("at % BLOCK is below 4096");
            let most = (in_block + bytes - done).div_ceil(BLOCK_BYTES) as u64;
            let memory = self.pool.memory();
            let (block, blocks) = match file.map.find(&self.nodes, at / BLOCK, most) {
                Found::Placed { block, blocks } => match memory.locate(block, blocks) {
                    Some((place, blocks)) => {
                        let blocks = match direction {
                            Direction::Read => blocks,
                            Direction::Write => memory.may_store(block, blocks),
                        };
                        if blocks == 0 {
                            break;
                        }
                        (Some((block, place)), blocks)
                    }
                    // The way for all requests brings it.
                    None => break,
                },
                Found::Empty { blocks } => (None, blocks),
            };
            let found_bytes = usize::try_from(blocks * BLOCK).unwrap_or(usize::MAX) - in_block;
            let stretch_bytes = found_bytes.min(bytes - done);
            let is_write = direction == Direction::Write;
            let place = block.map(|(_, place)| {
                memory.announce(place, in_block, stretch_bytes, is_write);
                self.pool.count(slot.index(), cpu, place, direction, stretch_bytes);
                (place, in_block)
            });
            let stretch = Stretch {
                place,
                done,
                bytes: stretch_bytes,
            };
            if !copy(stretch) {
                break;
            }
            if let Some((block, _)) = block.filter(|_| is_write) {
                memory.note_stored(block, (in_block + stretch_bytes).div_ceil(BLOCK_BYTES) as u64);
            }
            if let Some((block, in_block)) = stretch.place
                && !memory.is_there(block, in_block, stretch_bytes)
            {
                // The way for all requests tells the error.
                return 0;
            }
            done += stretch_bytes;
        }
        done
    }
}
