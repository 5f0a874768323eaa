//! Room of the pool that a store of backing files may take.
//!
//! Everything that is not committed is lent to the store, whose files then share one limit with the pool's blocks. Whoever
//! commits blocks and finds too few takes room back, which the store gives while its files do not take it.
//!
//! A file without a name is gone only when the kernel says that nobody keeps it, a moment after unlink(2) or close(2). Until then
//! writers get room ahead: what the file is about to free, at most [`AHEAD_BLOCKS_MAX`]. So a pool may hold so much more than its
//! size while such files are there.

use super::{NoSpace, Pool};
use crate::Memory;
use crate::backing::BackingStore;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Blocks that are taken back at a time at least, where there are so many: 16 MiB.
const RECALL_BLOCKS: u64 = 4096;
/// Most room that is given ahead: 64 MiB, more than a writer takes until the kernel has said what is gone.
const AHEAD_BLOCKS_MAX: u64 = 16_384;

/// The store, and the blocks that its files may take.
#[derive(Debug, Default)]
pub(super) struct Lent {
    store: OnceLock<Arc<dyn BackingStore>>,
    room: Mutex<Room>,
    /// Whether room is given ahead.
    is_ahead: AtomicBool,
}

#[derive(Debug, Default)]
struct Room {
    /// Blocks of the pool.
    lent: u64,
    /// Blocks besides, which files without a name are about to free.
    ahead: u64,
    /// Blocks that fallocate promised to files and nobody has written.
    promised: u64,
}

impl<M: Memory> Pool<M> {
    /// Lends the pool's room to `store` from now on; false when there is a store already.
    pub fn lend_to(&self, store: Arc<dyn BackingStore>) -> bool {
        let is_first = self.lent.store.set(store).is_ok();
        self.lend();
        is_first
    }

    /// The store that the pool's room is lent to.
    pub fn store(&self) -> Option<&dyn BackingStore> {
        self.lent.store.get().map(|store| &**store)
    }

    /// Blocks that are lent, and those of them that are promised.
    pub(super) fn lent_and_promised(&self) -> (u64, u64) {
        let room = self.lent.room.lock();
        (room.lent, room.promised)
    }

    /// Lends what is not committed, with what CPUs were granted.
    pub(crate) fn lend_all(&self) {
        if self.store().is_some() {
            let _alone = self.seeking.write();
            self.empty_grants();
        }
        self.lend();
    }

    /// Lends what is not committed.
    pub(crate) fn lend(&self) {
        let Some(store) = self.store() else { return };
        let populated = self.shed();
        let mut room = self.lent.room.lock();
        let free = u64::try_from(self.uncommitted.load(Ordering::Relaxed)).unwrap_or(0);
        let more = self.commit_up_to(free.saturating_sub(populated));
        if more > 0 && store.resize(room.lent + room.ahead + more).is_ok() {
            room.lent += more;
        } else {
            self.uncommit(more);
        }
    }

    /// Gives the memory of members back of which no block is in use; returns the free blocks of the others that have memory. Those stay
    /// the pool's: lent, they would be there twice, as the rest of a run of 2 MiB is that was populated for its first blocks.
    fn shed(&self) -> u64 {
        let members = self.members.read().list.clone();
        // The free blocks of one that drains are no room of the pool.
        let in_service = members.iter().filter(|member| !member.space().draining);
        in_service.map(|member| member.shed(&self.memory)).sum()
    }

    /// Takes at least `blocks` blocks of room back, all or nothing.
    pub(super) fn recall(&self, blocks: u64) -> bool {
        let Some(store) = self.store() else { return false };
        let mut room = self.lent.room.lock();
        for wanted in [blocks.max(RECALL_BLOCKS), blocks] {
            let is_promised = room.lent < wanted + room.promised + store.used_blocks();
            if !is_promised && store.resize(room.lent + room.ahead - wanted).is_ok() {
                room.lent -= wanted;
                self.uncommit(wanted);
                return true;
            }
        }
        false
    }

    /// Changes what is promised to a file from `before` to `after` blocks.
    pub(crate) fn change_promised(&self, before: u64, after: u64) -> Result<(), NoSpace> {
        let mut room = self.lent.room.lock();
        let promised = room.promised - before + after;
        let used = || self.store().map_or(0, |store| store.used_blocks());
        if after > before && promised + used() > room.lent {
            return Err(NoSpace);
        }
        room.promised = promised;
        Ok(())
    }

    /// Blocks that the store's files may still take.
    pub(crate) fn room_of_files(&self) -> u64 {
        let room = self.lent.room.lock();
        room.lent
            .saturating_sub(self.store().map_or(0, |store| store.used_blocks()))
    }

    /// Whether nothing is promised to any file.
    pub(crate) fn promises_nothing(&self) -> bool {
        self.lent.room.lock().promised == 0
    }

    /// Whether anything is promised, and less than `margin` of what is lent is left besides.
    pub(crate) fn endangers_promises(&self, margin: u64) -> bool {
        let room = self.lent.room.lock();
        let used = self.store().map_or(0, |store| store.used_blocks());
        room.promised > 0 && room.lent.saturating_sub(used + room.promised) < margin
    }

    /// Gives room ahead when little is left, because a file lost its last name: `blocks` tells how many it takes.
    pub(crate) fn give_ahead(&self, blocks: impl FnOnce() -> u64) {
        let Some(store) = self.store() else { return };
        let mut room = self.lent.room.lock();
        if room.lent.saturating_sub(store.used_blocks()) >= AHEAD_BLOCKS_MAX {
            return;
        }
        let ahead = (room.ahead + blocks()).min(AHEAD_BLOCKS_MAX);
        if ahead > room.ahead && store.resize(room.lent + ahead).is_ok() {
            room.ahead = ahead;
            // Relaxed, here and below: who misses it leaves the room to the next one.
            self.lent.is_ahead.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the room ahead back, because there is no file without a name; what files have taken of it stays until it is free.
    pub(crate) fn end_ahead(&self) {
        if !self.lent.is_ahead.load(Ordering::Relaxed) {
            return;
        }
        let Some(store) = self.store() else { return };
        let mut room = self.lent.room.lock();
        if store.resize(room.lent).is_ok() {
            room.ahead = 0;
            self.lent.is_ahead.store(false, Ordering::Relaxed);
        }
    }
}
