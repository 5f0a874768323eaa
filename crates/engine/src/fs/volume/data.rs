//! A volume's bytes: read, write, discard, zero. All within its size, which is looked at where nobody can change it: past the
//! gate.

use super::super::Asking;
use super::super::fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use super::super::{Error, Fs};
use super::{Volume, VolumeError};

use crate::{Clock, Memory};
use std::sync::atomic::Ordering;

impl<M: Memory, C: Clock> Fs<M, C> {
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
        volume.check_range(offset, from.len() as u64)?;
        let written = self.write(asking, &volume.inode, offset, from, false);
        written.map_err(|error| volume.refused(error, offset, from.len() as u64))
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
        let discarded = self.change_range(asking, volume, PUNCH_HOLE | KEEP_SIZE, offset, bytes);
        // Relaxed: who misses it looks again.
        self.has_discarded.store(true, Ordering::Relaxed);
        discarded
    }

    /// Lends files of the kernel the room that volumes have given up since the last call, as far as no block of a member is in use.
    pub fn lend_discarded(&self) {
        if self.has_discarded.swap(false, Ordering::Relaxed) {
            self.pool.lend_all();
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
        volume.check_range(offset, bytes)?;
        self.change_range(asking, volume, ZERO_RANGE | KEEP_SIZE, offset, bytes)
    }

    fn change_range(
        &self,
        asking: &Asking<'_>,
        volume: &Volume,
        mode: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(), VolumeError> {
        if bytes == 0 {
            return Ok(());
        }
        let done = self.fallocate(asking, &volume.inode, mode, offset, bytes);
        done.map_err(|error| volume.refused(error, offset, bytes))
    }
}

impl Volume {
    fn check_range(&self, offset: u64, bytes: u64) -> Result<(), VolumeError> {
        // Acquire: looked at again past the gate.
        let size = self.file().size.load(Ordering::Acquire);
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(()),
            _ => Err(self.out_of_range(offset, bytes)),
        }
    }

    /// The error of an operation; [`Error::TooBig`] when the volume became shorter meanwhile.
    fn refused(&self, error: Error, offset: u64, bytes: u64) -> VolumeError {
        match error {
            Error::TooBig => self.out_of_range(offset, bytes),
            error => error.into(),
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
