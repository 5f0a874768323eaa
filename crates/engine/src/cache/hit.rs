//! Copies within one block that is in a frame.
//!
//! Most frames are where their run's guess says. There the bytes are asked for before the block's word has come from memory, which only confirms the guess
//! then; and the copy begins at the guess's address while the processor waits for the word.
//!
//! A store makes its frame dirty ahead of its bytes, and looks behind them that it is so still. Words are changed by instructions that wait for all
//! earlier stores: behind the bytes they would wait for these, half the time of a copy.

use super::{Cache, Cached, Disk};
use crate::{Disks, Meanwhile, MemoryError};

impl<M: Disks> Cached<M> {
    /// See [`Memory::load_block`](crate::Memory::load_block).
    #[inline(always)]
    pub(super) fn load_hit(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: u64,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        if let Some(guess) = disk.index.guess(at) {
            let confirm = || disk.index.find(at) == Some(guess);
            let loaded = self.below.load_if(cache.block(guess), offset, to, confirm, meanwhile);
            if loaded.is_some() {
                return loaded;
            }
        }
        self.load_elsewhere((cache, disk), at, offset, to, meanwhile)
    }

    #[inline(never)]
    fn load_elsewhere(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: u64,
        offset: usize,
        to: &mut [u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        let frame = disk.index.warm(at).ok()?;
        Some(self.below.load_meanwhile(cache.block(frame), offset, to, meanwhile))
    }

    /// See [`Memory::store_block`](crate::Memory::store_block).
    #[inline(always)]
    pub(super) fn store_hit(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: u64,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        if let Some(guess) = disk.index.guess(at) {
            let confirm = || disk.index.find_to_store(at) == Some((guess, true));
            let stored = self
                .below
                .store_if(cache.block(guess), offset, from, confirm, meanwhile);
            if stored.is_some() {
                cache.note_stored(disk, at, 1);
                return stored;
            }
        }
        self.store_elsewhere((cache, disk), at, offset, from, meanwhile)
    }

    /// A store into a block that is clean, or not where it is likely to be.
    #[inline(never)]
    fn store_elsewhere(
        &self,
        (cache, disk): (&Cache, &Disk),
        at: u64,
        offset: usize,
        from: &[u8],
        meanwhile: impl Meanwhile,
    ) -> Option<Result<(), MemoryError>> {
        // Where it is clean that is a guess, too.
        let (mut frame, is_dirty) = disk.index.find_to_store(at)?;
        if !is_dirty {
            if cache.room_for_dirt(disk) == 0 {
                return None;
            }
            // Ahead of what waits for all earlier stores.
            self.below.announce(cache.block(frame), offset, from.len(), true);
            let (sure, was_clean) = disk.index.warm_to_store(at).ok()?;
            if was_clean {
                cache.note_dirty(disk, sure);
            }
            frame = sure;
        }
        let stored = self.below.store_meanwhile(cache.block(frame), offset, from, meanwhile);
        cache.note_stored(disk, at, 1);
        Some(stored)
    }
}
