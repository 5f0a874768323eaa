//! A volume's bytes: read, write, discard, zero. All within its size, which is looked at where nobody can change it: past the
//! gate.

use super::super::Asking;
use super::super::data::in_block;
use super::super::fallocate_mode::{KEEP_SIZE, PUNCH_HOLE};
use super::super::{Error, Fs};
use super::{Volume, VolumeError};
use crate::log::Log;
use crate::pool::Direction;
use crate::{BLOCK_BYTES, Clock, Memory};
use homenode_shared::Found;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl<M: Memory, C: Clock, L: Log> Fs<M, C, L> {
    /// Reads all of `to` from byte `offset` on. What was never written, or was discarded, reads as zeros.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`].
    pub fn read_volume(
        &self,
        asking: &Asking<'_>,
        volume: &Volume,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), VolumeError> {
        volume.check_range(offset, to.len() as u64)?;
        let read = self.read(asking, &volume.inode, offset, to)?;
        if read < to.len() {
            // It became shorter meanwhile.
            return Err(volume.out_of_range(offset, to.len() as u64));
        }
        Ok(())
    }

    /// Writes `from` at byte `offset`; gives the bytes written, fewer only when the pool is full.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when nothing could be written, [`VolumeError::OutOfRange`].
    pub fn write_volume(
        &self,
        asking: &Asking<'_>,
        volume: &Volume,
        offset: u64,
        from: &[u8],
    ) -> Result<usize, VolumeError> {
        let (inode, file) = (&volume.inode, volume.file());
        if self.write_whole(asking.slot.number(), || asking.cpu, inode, offset, from) {
            return Ok(from.len());
        }
        let written = {
            let _inside = inode.enter(file, asking.slot);
            volume.check_range(offset, from.len() as u64)?;
            self.write_inside(asking, inode, file, offset, from)?
        };
        self.make_runs(inode, file, offset, offset + written as u64);
        inode.touch_modified(self.now_ns());
        Ok(written)
    }

    /// Gives up `bytes` bytes from `offset` on: whole blocks of them are free at once. All of them read as zeros then.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`]; [`Error::NoSpace`] when the pool's table has no room to split a run of 2 MiB.
    pub fn discard_volume(
        &self,
        asking: &Asking<'_>,
        volume: &Volume,
        offset: u64,
        bytes: u64,
    ) -> Result<(), VolumeError> {
        volume.check_range(offset, bytes)?;
        match self.fallocate(asking, &volume.inode, PUNCH_HOLE | KEEP_SIZE, offset, bytes) {
            // Nothing to do.
            Err(Error::Invalid) if bytes == 0 => Ok(()),
            done => Ok(done?),
        }
    }

    /// Writes `bytes` zeros from `offset` on. Blocks that are there stay, so that writing them again finds room; holes stay holes,
    /// so it needs none. Readers and writers go on meanwhile.
    ///
    /// # Errors
    /// [`VolumeError::OutOfRange`].
    pub fn zero_volume(
        &self,
        asking: &Asking<'_>,
        volume: &Volume,
        offset: u64,
        bytes: u64,
    ) -> Result<(), VolumeError> {
        let (inode, file) = (&volume.inode, volume.file());
        let _inside = inode.enter(file, asking.slot);
        volume.check_range(offset, bytes)?;
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let first = at / BLOCK;
            let found = file.map.find(&self.nodes, first, end.div_ceil(BLOCK) - first);
            let (Found::Placed { blocks, .. } | Found::Empty { blocks }) = found;
            let next = ((first + blocks) * BLOCK).min(end);
            if let Found::Placed { block, .. } = found {
                let bytes = usize::try_from(next - at).expect("a placed extent is mapped memory");
                self.pool.memory().zero(block, in_block(at), bytes);
                self.pool
                    .count(asking.slot.index(), asking.cpu, block, Direction::Write, bytes);
            }
            at = next;
        }
        inode.touch_modified(self.now_ns());
        Ok(())
    }
}

impl Volume {
    fn check_range(&self, offset: u64, bytes: u64) -> Result<(), VolumeError> {
        // Acquire: the size is past the gate, or looked at again there.
        let size = self.file().size.load(Ordering::Acquire);
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(self.out_of_range(offset, bytes)),
        }
    }

    fn out_of_range(&self, offset: u64, bytes: u64) -> VolumeError {
        VolumeError::OutOfRange {
            offset,
            bytes,
            size_bytes: self.size_bytes(),
        }
    }
}
