//! Stores that hit.
//!
//! A store makes its frame dirty ahead of its bytes, and looks behind them that it is so still. Words are changed by instructions that wait for all
//! earlier stores: behind the bytes they would wait for these, half the time of a copy.

use super::{Cache, Cached, Disk};
use crate::Block;

/// Cached blocks that are about to be stored into, inside a slot.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    cache: &'a Cache,
    disk: &'a Disk,
    /// The first.
    at: u64,
    is_ready: bool,
}

impl<M> Cached<M> {
    /// See [`Memory::spot`](crate::Memory::spot).
    #[inline(always)]
    pub(super) fn spot_of(&self, at: Block) -> Option<(Block, Option<Spot<'_>>)> {
        let Some((cache, disk)) = self.disk(at.member()) else {
            return Some((at, None));
        };
        let (frame, is_ready) = disk.index.find_to_store(at.index())?;
        let at = at.index();
        let spot = Spot {
            cache,
            disk,
            at,
            is_ready,
        };
        Some((cache.block(frame), Some(spot)))
    }
}

impl Spot<'_> {
    /// Whether the place that was told is the block's, and dirty. If not, it is a guess.
    #[inline(always)]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Makes the first block dirty; returns its place, or `None` where it must be fetched.
    #[inline(never)]
    #[must_use]
    pub fn make_ready(&self) -> Option<Block> {
        let (frame, was_clean) = self.disk.index.warm_to_store(self.at).ok()?;
        if was_clean {
            self.cache.note_dirty(self.disk, frame);
        }
        Some(self.cache.block(frame))
    }

    /// Notes that bytes of the first block were stored.
    #[inline(always)]
    pub fn note_stored(&self) {
        self.cache.note_stored(self.disk, self.at, 1);
    }
}
