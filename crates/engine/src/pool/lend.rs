//! Room of the pool that a store of backing files may take.
//!
//! Everything that is not committed is lent to the store, whose files then share one limit with the pool's blocks. Whoever
//! commits blocks and finds too few takes room back, which the store gives while its files do not take it.
//!
//! A file without a name is gone only when the kernel says that nobody keeps it, a moment after unlink(2) or close(2). Until then
//! writers get room ahead: what the file is about to free, at most [`AHEAD_BLOCKS_MAX`]. So a pool may hold so much more than its
//! size while such files are there.

use super::grants::add_spill;
use super::member::Member;
use super::{NoSpace, Pool, Spill};
use crate::backing::BackingStore;
use crate::fs::Ino;
use crate::{BLOCK_BYTES, MemberId, Memory, NodeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Blocks that are taken back at a time at least, where there are so many: 16 MiB.
const RECALL_BLOCKS: u64 = 4096;
/// Most room that is given ahead: 64 MiB, more than a writer takes until the kernel has said what is gone.
const AHEAD_BLOCKS_MAX: u64 = 16_384;
/// Blocks that writers may take while room is measured: 1 MiB.
const AHEAD_BLOCKS_SLACK: u64 = 256;

/// The store, and the blocks that its files may take.
#[derive(Debug, Default)]
pub(super) struct Lent {
    store: OnceLock<Arc<dyn BackingStore>>,
    room: Mutex<Room>,
    spills: Mutex<Vec<Spill>>,
    /// Whether room is given ahead.
    is_ahead: AtomicBool,
    /// Files that are gone, whose blocks are being freed, and requests to free some.
    discarding: Arc<AtomicU32>,
}

/// Blocks are being freed, or soon will be, until this is dropped.
#[derive(Debug)]
pub struct Discarding(Arc<AtomicU32>);

impl Drop for Discarding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Room {
    /// Blocks of the pool.
    lent: u64,
    /// Blocks besides, which files without a name are about to free.
    ahead: u64,
    /// Blocks of files without a name, as they were counted when they lost it; room for at most [`AHEAD_BLOCKS_MAX`] is given ahead.
    leaving: u64,
    /// The file that last lost its name while it was open, and blocks given ahead of it: the kernel tells of its last close later.
    unclosed: Option<(Ino, u64)>,
    /// Blocks that fallocate promised to files and nobody has written.
    promised: u64,
}

impl Room {
    /// Blocks that are to be given ahead.
    fn wanted_ahead(&self) -> u64 {
        let unclosed = self.unclosed.map_or(0, |(_, blocks)| blocks);
        (self.leaving + unclosed).min(AHEAD_BLOCKS_MAX)
    }

    /// Whether so much is left that none is given ahead.
    fn has_enough(&self, store: &dyn BackingStore) -> bool {
        self.lent.saturating_sub(store.used_blocks()) >= AHEAD_BLOCKS_MAX
    }
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
            self.take_grants_back();
        }
        self.lend();
    }

    /// Lends what is not committed.
    pub(crate) fn lend(&self) {
        let Some(store) = self.store() else { return };
        let populated = self.shed();
        let mut room = self.lent.room.lock();
        let free = self.uncommitted_blocks();
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
    pub fn room_of_files(&self) -> u64 {
        let room = self.lent.room.lock();
        room.lent
            .saturating_sub(self.store().map_or(0, |store| store.used_blocks()))
    }

    /// Whether a node would become fat if all files lay there.
    pub(crate) fn may_files_fill_a_node(&self) -> bool {
        let members = self.members.read().list.clone();
        let rooms = members.iter().map(|member| member.unused(&member.space()));
        let least = rooms.min().unwrap_or(0);
        self.store().is_some_and(|store| store.used_blocks() >= least / 10 * 9)
    }

    /// Whether a node may become fat, or a candidate again, after files grew and shrank by so many blocks.
    pub(crate) fn may_nodes_change(&self, grown: u64, shrunk: u64) -> bool {
        let members = self.members.read().list.clone();
        members.iter().any(|member| {
            let space = member.space();
            let (own, files) = (
                member.blocks - member.unused(&space),
                member.files.load(Ordering::Relaxed),
            );
            let used = own + files.saturating_sub(shrunk)..=own + files + grown;
            self.monitor.lock().may_change(member.id, used, member.blocks)
        })
    }

    /// Counts what the store's files take on each node, in bytes, as used on the members there.
    pub(crate) fn note_files(&self, by_node: &[(NodeId, u64)]) {
        let blocks = |(node, bytes): &(NodeId, u64)| (*node, bytes / BLOCK_BYTES as u64);
        let mut left: BTreeMap<NodeId, u64> = by_node.iter().map(blocks).collect();
        for member in self.members.read().list.clone() {
            let space = member.space();
            let left = left.entry(member.home).or_default();
            let here = if space.draining {
                0
            } else {
                member.unused(&space).min(*left)
            };
            *left -= here;
            member.files.store(here, Ordering::Relaxed);
            self.note_use(&member, &space);
        }
    }

    /// Takes note which nodes have no free memory for pages of files: they count as fat.
    pub fn note_starved(&self, nodes: &[NodeId]) {
        for member in self.members.read().list.clone() {
            let is_starved = nodes.contains(&member.home);
            if member.has_starved_home.swap(is_starved, Ordering::Relaxed) != is_starved {
                self.note_use(&member, &member.space());
            }
        }
    }

    /// Counts a spill of files.
    pub(crate) fn note_spill(&self, spill: Spill) {
        if spill.bytes > 0 {
            add_spill(&mut self.lent.spills.lock(), spill);
        }
    }

    pub(super) fn spills_of_files(&self) -> Vec<Spill> {
        self.lent.spills.lock().clone()
    }

    /// Homes of the candidates, or of all members in service when there is none; ascending.
    pub(crate) fn homes_with_room(&self) -> Vec<NodeId> {
        let members = self.members.read().list.clone();
        let in_service = |member: &&Arc<Member>| !member.space().draining;
        let homes = |is_wanted: &dyn Fn(&Member) -> bool| -> Vec<NodeId> {
            let wanted = members.iter().filter(in_service).filter(|member| is_wanted(member));
            let homes: BTreeSet<NodeId> = wanted.map(|member| member.home).collect();
            homes.into_iter().collect()
        };
        let candidates = homes(&|member| !self.monitor.lock().is_fat(member.id));
        if candidates.is_empty() {
            homes(&|_| true)
        } else {
            candidates
        }
    }

    /// Blocks that members on a node take until they are fat, files counted.
    pub fn room_on(&self, node: NodeId) -> u64 {
        let members = self.members.read().list.clone();
        let there = members.iter().filter(|member| member.home == node);
        let room = |member: &Arc<Member>| {
            let space = member.space();
            let files = member.files.load(Ordering::Relaxed);
            if space.draining {
                0
            } else {
                // The monitor's threshold leaves 2 %.
                member.unused(&space).saturating_sub(files + member.blocks / 50)
            }
        };
        there.map(room).sum()
    }

    /// Homes of the candidates, or of all members in service when there is none; the nearest to `node` first.
    pub(crate) fn homes_near(&self, node: NodeId) -> Vec<NodeId> {
        let with_room = self.homes_with_room();
        let members: Vec<MemberId> = self.monitor.lock().all_by_latency(node).collect();
        let mut homes: Vec<NodeId> = members.into_iter().map(|member| self.home(member)).collect();
        homes.retain(|home| with_room.contains(home));
        homes.dedup();
        homes
    }

    /// Whether anything is promised, and less than `margin` of what is lent is left besides.
    pub(crate) fn endangers_promises(&self, margin: u64) -> bool {
        let room = self.lent.room.lock();
        let used = self.store().map_or(0, |store| store.used_blocks());
        room.promised > 0 && room.lent.saturating_sub(used + room.promised) < margin
    }

    /// Whether promises are to be made real: half of them, and `margin`, are not left besides. Others write on meanwhile, and take no more
    /// than that if they write at most half as fast as the kernel makes promises real: 4.0 GB/s, and 1.4 GB/s below the end of a file, where
    /// a writer writes 3.1 (a guest of two CPUs). More room is not kept: room that is made real early does not lie with its writers.
    pub(crate) fn is_time_for_promises(&self, margin: u64) -> bool {
        let promised = self.lent.room.lock().promised;
        self.endangers_promises(margin + promised / 2)
    }

    /// Notes that `file`, which takes so many blocks, has neither a name nor an open; returns the blocks that are counted for it: none when
    /// there is room enough.
    pub(crate) fn give_ahead(&self, file: Ino, blocks: impl FnOnce() -> u64) -> u64 {
        let Some(store) = self.store() else { return 0 };
        let mut room = self.lent.room.lock();
        room.unclosed.take_if(|(unclosed, _)| *unclosed == file);
        if room.has_enough(store) {
            return 0;
        }
        let blocks = blocks();
        room.leaving += blocks;
        self.settle(&mut room, store);
        blocks
    }

    /// Notes that `file` lost its name while it was open. Its last close may be on its way, or never come: a part of the room is given ahead of the
    /// last such file only.
    pub(crate) fn give_ahead_of_close(&self, file: Ino, blocks: impl FnOnce() -> u64) {
        let Some(store) = self.store() else { return };
        let mut room = self.lent.room.lock();
        if !room.has_enough(store) {
            room.unclosed = Some((file, blocks().min(AHEAD_BLOCKS_MAX / 4)));
            self.settle(&mut room, store);
        }
    }

    /// Takes blocks back that were given ahead of `file`, now that it is gone.
    pub(crate) fn take_back_ahead(&self, file: Ino, blocks: u64) {
        if let Some(store) = self
            .store()
            .filter(|_| blocks > 0 || self.lent.is_ahead.load(Ordering::Relaxed))
        {
            let mut room = self.lent.room.lock();
            room.leaving -= blocks;
            room.unclosed.take_if(|(unclosed, _)| *unclosed == file);
            // Little is left to the next look: to change the store's limit takes four system calls.
            if room.wanted_ahead() + AHEAD_BLOCKS_SLACK <= room.ahead {
                self.settle(&mut room, store);
            }
        }
    }

    /// Whether little room is left, and so many files wait to be gone that soon none could be given ahead of more.
    pub fn is_ahead_short(&self) -> bool {
        let (true, Some(store)) = (self.lent.is_ahead.load(Ordering::Relaxed), self.store()) else {
            return false;
        };
        let room = self.lent.room.lock();
        room.leaving >= AHEAD_BLOCKS_MAX / 2 && !room.has_enough(store)
    }

    /// Tells that blocks of files that are gone are being freed, or soon will be, until what it gives is dropped.
    #[must_use]
    pub fn note_discarding(&self) -> Discarding {
        // Relaxed, as all of it: who sees it late waits a moment longer, or less.
        self.lent.discarding.fetch_add(1, Ordering::Relaxed);
        Discarding(Arc::clone(&self.lent.discarding))
    }

    /// Whether blocks of files that are gone are being freed, or soon will be.
    pub fn is_discarding(&self) -> bool {
        self.lent.discarding.load(Ordering::Relaxed) > 0
    }

    /// Takes room back that was given ahead of files that are gone, where that could not be done at once.
    pub(crate) fn settle_ahead(&self) {
        if self.lent.is_ahead.load(Ordering::Relaxed)
            && let Some(store) = self.store()
        {
            self.settle(&mut self.lent.room.lock(), store);
        }
    }

    /// Has the store give as much room ahead as files without a name take.
    fn settle(&self, room: &mut Room, store: &dyn BackingStore) {
        let wanted = room.wanted_ahead();
        // A file that is removed while something runs on it takes its blocks until that ends.
        if wanted < room.ahead && store.has_leaving() {
            return;
        }
        // What others have taken of it stays until it is free; no more is to be taken meanwhile.
        let taken = store.used_blocks().saturating_sub(room.lent) + AHEAD_BLOCKS_SLACK;
        for ahead in [wanted, taken.min(room.ahead)] {
            if ahead == room.ahead || store.resize(room.lent + ahead).is_ok() {
                room.ahead = ahead;
                break;
            }
        }
        // Relaxed: who misses it leaves the room to the next look.
        self.lent.is_ahead.store(room.ahead > 0, Ordering::Relaxed);
    }
}
