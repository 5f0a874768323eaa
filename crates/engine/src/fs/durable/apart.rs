//! Fsync in two parts, and whether an operation may wait for a device: for a server whose threads have others to serve.

use super::{BLOCK, RECORDS_BYTES_MAX, Settling, blocks_in};
use crate::fs::{Error, Fs, Inode, Result};
use crate::log::{Effect, Room};
use crate::{Clock, Memory};
use homenode_shared::Slot;
use std::sync::atomic::Ordering;

/// Blocks of a pool that is nearly full: more than a request takes, but for fallocate.
const NEARLY_FULL_BLOCKS: u64 = 4096;
/// Most bytes of persistent memory that are made durable in a short time: a fraction of a millisecond.
const SHORT_BYTES: u64 = 1 << 20;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// First part of [`Fs::sync`]: makes an inode's bytes durable, or copies them to the log, and appends that they count. After it
    /// [`Fs::end_sync`] makes all inodes durable for which this was done before.
    ///
    /// # Errors
    /// The errors of [`Fs::sync`].
    pub fn begin_sync(&self, slot: &Slot, inode: &Inode) -> Result<()> {
        let Some(journal) = self.written_log() else {
            return Ok(());
        };
        if let Some(file) = inode.blocks() {
            let room = self.is_unsettled(file).then(|| self.room_to_sync());
            let _room = room.transpose()?;
            file.is_synced.store(true, Ordering::Relaxed);
            self.settle_file(journal, slot, inode, file, Settling::IfNeeded)?;
        }
        Ok(())
    }

    /// Second part of [`Fs::sync`], once for any number of inodes.
    ///
    /// # Errors
    /// The errors of [`Fs::sync`]: nothing that was settled counts as durable then.
    pub fn end_sync(&self, slot: &Slot) -> Result<()> {
        let Some(journal) = self.written_log() else {
            return Ok(());
        };
        // It appends for renames alone, and those were promised room.
        let _room = self.room_to_sync();
        self.force(journal, slot, None)
    }

    /// Room in the log for what a sync appends. A log that failed is told by the sync itself, as EIO.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where the rest of the log is kept for operations that free something; the errors of [`Fs::sync_all`], if these keep
    /// room from being given back.
    fn room_to_sync(&self) -> Result<Option<Room<'_>>> {
        match self.admit_bytes(Effect::Keeps, 0) {
            Err(Error::ReadOnly | Error::Busy) => Ok(None),
            room => room,
        }
    }

    /// Whether a read may wait for a disk.
    pub fn reads_disks(&self) -> bool {
        self.pool.memory().fetch_max() < u64::MAX
    }

    /// Whether [`Fs::sync`] waits for a device, or may wait for other syncs: that of the same file, or of one that was renamed.
    pub fn waits_to_sync(&self, inode: &Inode) -> bool {
        self.written_log().is_some_and(|journal| {
            // Where bytes are copied to the log, a forced write costs more than the copy.
            self.pool.memory().inline_bytes_max() > 0
                || journal.has_needs()
                || inode.blocks().is_some_and(|file| file.syncing.is_locked())
        })
    }

    /// Whether [`Fs::begin_sync`] may wait long for a device by itself: for many bytes, or for a snapshot.
    pub fn begins_long(&self, inode: &Inode) -> bool {
        let (Some(journal), Some(file)) = (self.written_log(), inode.blocks()) else {
            return false;
        };
        let blocks = [&file.dirty, &file.saving].map(|ranges| blocks_in(&ranges.list()));
        let bytes = blocks[0].saturating_add(blocks[1]).saturating_mul(BLOCK);
        let short = match self.pool.memory().inline_bytes_max() {
            // By writing the processor's caches back.
            0 => SHORT_BYTES,
            inline => inline as u64,
        };
        bytes > short || journal.is_too_long()
    }

    /// Whether a change that `adds` something, or else takes something away, may wait for a device: for a snapshot, for room in the log, or
    /// for freed blocks.
    #[inline]
    pub fn may_wait(&self, adds: bool) -> bool {
        self.written_log().is_some_and(|journal| {
            journal.is_too_long()
                || journal.is_short()
                || journal.has_promised_much(RECORDS_BYTES_MAX)
                || journal.naming.is_locked_exclusive()
                || adds && self.pool.uncommitted_blocks() < NEARLY_FULL_BLOCKS
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::BLOCK_BYTES;
    use crate::fs::placement::tests::durable_pool;

    #[test]
    fn a_change_may_wait_while_much_is_promised() {
        const SEGMENT_BLOCKS: u32 = 64;
        let fs = durable_pool(SEGMENT_BLOCKS);
        assert!(!fs.may_wait(false));
        let journal = fs.journal.as_deref().expect("a durable pool has a log");
        let much = journal.count(u64::from(SEGMENT_BLOCKS) * BLOCK_BYTES as u64);
        assert!(fs.may_wait(false), "it would take segments, or wait for them");
        drop(much);
        assert!(!fs.may_wait(false));
    }
}
