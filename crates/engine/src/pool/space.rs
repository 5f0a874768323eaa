//! Committing, taking, freeing and reserving blocks; draining a member.

use super::grants::Grants;
use super::member::{Member, Space};
use super::taken::Taken;
use super::{Pool, PoolError, signed};
use crate::{Block, CpuId, MemberId, Memory, NodeId};
use homenode_shared::RUN_BLOCKS;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;

/// All CPUs' grants together take at most one part in this many of what is left.
const GRANT_SHARE: u64 = 16;
/// Blocks of the smallest grant.
const GRANT_BLOCKS_MIN: u64 = 16;

/// No block is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSpace;

impl<M: Memory> Pool<M> {
    /// Up to `want` (at least 1) consecutive blocks for a writer on `asking`, from the grant of `cpu`. `reserved`: they
    /// were reserved before, so the pool has room for them. `file_block` is where they are to lie in the file.
    pub(crate) fn take(
        &self,
        cpu: CpuId,
        asking: NodeId,
        want: u64,
        file_block: u64,
        reserved: bool,
    ) -> Result<Taken<'_, M>, NoSpace> {
        let grants = &self.grants[cpu.0 as usize % self.grants.len()].0;
        let granted = grants.lock().take(asking, want, file_block);
        let (first, got) = match granted {
            Some(run) => run,
            // Not under the lock: it may populate, and it may have to empty every CPU's grants.
            None => match self.refill(grants, asking, want) {
                Ok(run) => run,
                Err(NoSpace) if reserved => {
                    let find = || self.allocate_near(asking, want, want);
                    // A drain that is about to be refused hides its member, and members change while one after the other is looked at.
                    let find_alone = || {
                        let _alone = self.seeking.write();
                        self.empty_grants();
                        find()
                    };
                    let (first, got) = find().or_else(find_alone).ok_or(NoSpace)?;
                    self.reserved.fetch_sub(got, Ordering::Relaxed);
                    self.count_spill(cpu, asking, first, got);
                    return Ok(Taken::new(self, (first, got), reserved));
                }
                Err(NoSpace) => return Err(NoSpace),
            },
        };
        if reserved {
            grants.lock().credit += got;
        }
        self.count_spill(cpu, asking, first, got);
        Ok(Taken::new(self, (first, got), reserved))
    }

    /// An aligned 2 MiB run of the member that the monitor names for `asking`, if it has one.
    pub(crate) fn take_run(&self, cpu: CpuId, asking: NodeId, reserved: bool) -> Option<Taken<'_, M>> {
        let _seeking = self.seeking.read();
        if !self.commit_exactly(RUN_BLOCKS) {
            return None;
        }
        let target = self.monitor.lock().target(asking);
        let run = target.and_then(|id| self.member(id)).and_then(|member| {
            let enough = |space: &Space| space.has_run();
            // An error or nothing left to populate: what is free may still do.
            let _ = member.populate_next(&self.memory, enough);
            let mut space = member.space();
            let run = space.allocate_run(member.id);
            self.note_use(&member, &space);
            run
        });
        match run {
            Some(first) => {
                if reserved {
                    self.unreserve(RUN_BLOCKS);
                }
                self.count_spill(cpu, asking, first, RUN_BLOCKS);
            }
            None => self.uncommit(RUN_BLOCKS),
        }
        run.map(|first| Taken::new(self, (first, RUN_BLOCKS), reserved))
    }

    /// Up to `want` consecutive blocks of members whose home is `node`, for data that moves there: outside grants.
    pub(crate) fn take_on(&self, node: NodeId, want: u64) -> Option<Taken<'_, M>> {
        let members = self.members_on(node);
        let run = self.seek(want, || {
            self.commit_run(want, |blocks| {
                members.iter().find_map(|id| self.allocate_in(*id, blocks, blocks))
            })
        });
        run.map(|run| Taken::new(self, run, false))
    }

    /// Up to `want` consecutive blocks as near to `node` as there are, for data that must leave it: outside grants, and
    /// not a spill.
    pub(crate) fn take_near(&self, node: NodeId, want: u64) -> Option<Taken<'_, M>> {
        let run = self.seek(want, || {
            self.commit_run(want, |blocks| self.allocate_near(node, blocks, blocks))
        });
        run.map(|run| Taken::new(self, run, false))
    }

    /// Exactly `blocks` consecutive blocks, a power of two, outside grants: for the log.
    pub(crate) fn take_whole(&self, blocks: u64) -> Option<Block> {
        let order = blocks.trailing_zeros();
        debug_assert!(blocks.is_power_of_two());
        self.seek(blocks, || {
            if !self.commit_exactly(blocks) {
                return None;
            }
            let members = self.members.read().list.clone();
            let first = members.iter().find_map(|member| {
                let mut space = member.space();
                let first = space.allocate_whole(member.id, order);
                self.note_use(member, &space);
                first
            });
            if first.is_none() {
                self.uncommit(blocks);
            }
            first
        })
    }

    /// Whether so many blocks may be committed, with all grants taken back where needed, and what is lent and not taken.
    pub(crate) fn can_commit(&self, blocks: u64) -> bool {
        let has_room = || self.uncommitted_blocks() + self.room_of_files() >= blocks;
        has_room() || {
            let _alone = self.seeking.write();
            self.empty_grants();
            has_room()
        }
    }

    /// Commits up to `want` blocks and allocates them; gives back what that does not use.
    fn commit_run(&self, want: u64, allocate: impl Fn(u64) -> Option<(Block, u64)>) -> Option<(Block, u64)> {
        let committed = self.commit_up_to(want);
        let run = (committed > 0).then(|| allocate(committed)).flatten();
        self.uncommit(committed - run.map_or(0, |(_, blocks)| blocks));
        run
    }

    fn members_on(&self, node: NodeId) -> Vec<MemberId> {
        let members = self.members.read();
        let here = members.list.iter().filter(|member| member.home == node);
        here.map(|member| member.id).collect()
    }

    /// Whether a member that takes blocks is at home on `node`.
    pub(crate) fn has_member_on(&self, node: NodeId) -> bool {
        self.members
            .read()
            .list
            .iter()
            .any(|member| member.home == node && !member.space().draining)
    }

    /// The home of the `n`th member that takes blocks, counted round and round; the first node if none does.
    pub(crate) fn nth_home(&self, n: u64) -> NodeId {
        let members = self.members.read();
        let in_service = || members.list.iter().filter(|member| !member.space().draining);
        let count = in_service().count().max(1) as u64;
        let at = usize::try_from(n % count).expect("n % count fits a usize");
        in_service().nth(at).map_or(self.nodes()[0], |member| member.home)
    }

    /// Gives blocks back. Files free what their maps recorded by `Fs::free_blocks` alone.
    pub(crate) fn free(&self, first: Block, blocks: u64) {
        self.memory.forget(first, blocks);
        let member = self
            .member(first.member())
            .expect("a member with data stays in the pool");
        let mut space = member.space();
        space.free(first, blocks);
        if !space.draining {
            self.uncommit(blocks);
        }
        space.starved = false;
        self.note_use(&member, &space);
    }

    /// Keeps room for `blocks` blocks.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<(), NoSpace> {
        self.seek(blocks, || self.commit_exactly(blocks).then_some(()))
            .ok_or(NoSpace)?;
        self.reserved.fetch_add(blocks, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps room for blocks that were taken for a reservation and are about to be freed.
    pub(super) fn keep_room(&self, blocks: u64) {
        // Before they are free: else the room could be somebody else's meanwhile.
        self.uncommitted.fetch_sub(signed(blocks), Ordering::Relaxed);
        self.reserved.fetch_add(blocks, Ordering::Relaxed);
    }

    /// The room is not needed any more.
    pub(crate) fn unreserve(&self, blocks: u64) {
        self.reserved.fetch_sub(blocks, Ordering::Relaxed);
        self.uncommit(blocks);
    }

    /// [`Pool::empty_grants`] of one who seeks nothing.
    pub(super) fn take_grants_back(&self) {
        let _alone = self.seeking.write();
        self.empty_grants();
    }

    /// Takes back what all CPUs were granted and have not used.
    pub(super) fn empty_grants(&self) {
        for cpu in &self.grants {
            let mut grants = cpu.0.lock();
            let credit = std::mem::take(&mut grants.credit);
            let runs = grants.take_all();
            drop(grants);
            self.unreserve(credit);
            runs.for_each(|(first, blocks)| self.free(first, blocks));
        }
    }

    /// From now on `id` takes no new blocks; gives how many it holds. Follow with [`Pool::cancel_drain`] if they cannot all
    /// be moved.
    pub(crate) fn start_drain(&self, id: MemberId) -> Result<u64, PoolError> {
        let member = self.member(id).ok_or(PoolError::UnknownMember(id))?;
        // Two drains must not take the last two members; and nobody is told that the pool is full because of one that
        // cannot be.
        let _alone = self.seeking.write();
        let others = self
            .members
            .read()
            .list
            .iter()
            .filter(|other| other.id != id && !other.space().draining)
            .count();
        if others == 0 {
            return Err(PoolError::Last(id));
        }
        let leaving = {
            let space = member.space();
            (!space.draining).then(|| member.unused(&space))
        };
        if let Some(blocks) = leaving
            && self.store().is_some()
            && !self.make_room(blocks)
        {
            self.lend();
            return Err(PoolError::NoSpace(id));
        }
        {
            let mut space = member.space();
            if !space.draining {
                space.draining = true;
                // Its free blocks leave the pool. What is granted or holds data is committed already, and is not given back to
                // the uncommitted space when it is freed.
                self.uncommitted
                    .fetch_sub(signed(member.unused(&space)), Ordering::Relaxed);
                self.monitor.lock().set_draining(id, true);
            }
        }
        self.empty_grants();
        let held = member.held(&member.space());
        if !self.make_room(held) {
            self.cancel_drain(id);
            return Err(PoolError::NoSpace(id));
        }
        Ok(held)
    }

    /// `id` takes blocks again.
    pub(crate) fn cancel_drain(&self, id: MemberId) {
        let Some(member) = self.member(id) else { return };
        let mut space = member.space();
        if space.draining {
            space.draining = false;
            self.uncommit(member.unused(&space));
            self.monitor.lock().set_draining(id, false);
        }
        drop(space);
        self.lend();
    }

    /// Takes room back that was lent until `blocks` blocks are not committed; false when the store's files take it.
    fn make_room(&self, blocks: u64) -> bool {
        let missing = signed(blocks) - self.uncommitted.load(Ordering::Relaxed);
        missing <= 0 || self.recall(missing.unsigned_abs())
    }

    /// Tells the monitor how full a member is. With the member's space locked, so that the last one to change it tells last.
    pub(super) fn note_use(&self, member: &Member, space: &Space) {
        let mut monitor = self.monitor.lock();
        let used = member.blocks - member.unused(space) + member.files.load(Ordering::Relaxed);
        monitor.update(member.id, used, member.blocks);
        // What is populated already needs nothing from the node.
        let is_starved = space.starved && space.free_blocks() == 0 || member.has_starved_home.load(Ordering::Relaxed);
        monitor.set_starved(member.id, is_starved);
    }

    /// A run for `asking`, 2 MiB or less where that is much of what is left: `want` blocks of it for the caller, the others
    /// into `grants`.
    fn refill(&self, grants: &Mutex<Grants>, asking: NodeId, want: u64) -> Result<(Block, u64), NoSpace> {
        let left = self.uncommitted_blocks();
        let share = left / (GRANT_SHARE * self.grants.len() as u64);
        self.seek(want, || {
            let most = share.clamp(GRANT_BLOCKS_MIN, RUN_BLOCKS);
            let (first, blocks) = self.commit_run(most, |blocks| self.allocate_near(asking, blocks, want))?;
            let got = want.min(blocks);
            grants.lock().put(asking, first.plus(got), blocks - got);
            Some((first, got))
        })
        .ok_or(NoSpace)
    }

    /// Tries `find` once among others, who may hold more than they need for a moment; and when it finds nothing, alone and
    /// with all grants taken back, and room for `want` blocks that was lent.
    fn seek<T>(&self, want: u64, find: impl Fn() -> Option<T>) -> Option<T> {
        let among_others = self.seeking.read();
        let found = find();
        drop(among_others);
        found.or_else(|| {
            let _alone = self.seeking.write();
            self.empty_grants();
            find().or_else(|| self.make_room(want).then(&find).flatten())
        })
    }

    /// Up to `blocks` blocks, `want` of them for now, of the member nearest to `asking` that has any: candidates first
    /// (Algorithm 1 of MBS-LVM).
    fn allocate_near(&self, asking: NodeId, blocks: u64, want: u64) -> Option<(Block, u64)> {
        let mut last = None;
        loop {
            let target = self.monitor.lock().target(asking);
            // The same one again: it is still called a candidate, but gave nothing.
            if target.is_none() || target == last {
                break;
            }
            last = target;
            if let Some(run) = target.and_then(|id| self.allocate_in(id, blocks, want)) {
                return Some(run);
            }
        }
        let nearest: Vec<MemberId> = self.monitor.lock().all_by_latency(asking).collect();
        nearest.into_iter().find_map(|id| self.allocate_in(id, blocks, want))
    }

    fn allocate_in(&self, id: MemberId, blocks: u64, want: u64) -> Option<(Block, u64)> {
        let member = self.member(id)?;
        if want >= RUN_BLOCKS {
            // An error or nothing left to populate: what is free may still do.
            let _ = member.populate_next(&self.memory, Space::has_run);
        }
        loop {
            {
                let mut space = member.space();
                let run = space.allocate(id, blocks, want);
                self.note_use(&member, &space);
                if run.is_some() || space.draining {
                    return run;
                }
            }
            let populated = member.populate_next(&self.memory, |space| space.free_blocks() > 0);
            if populated != Ok(true) {
                self.note_use(&member, &member.space());
                return None;
            }
        }
    }

    fn commit_exactly(&self, blocks: u64) -> bool {
        let Ok(wanted) = i64::try_from(blocks) else {
            return false;
        };
        let take = |left: i64| (left >= wanted).then(|| left - wanted);
        self.uncommitted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }

    pub(super) fn commit_up_to(&self, most: u64) -> u64 {
        let some = |left: i64| left.clamp(0, signed(most));
        let before = self
            .uncommitted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left - some(left)));
        some(before.expect("the closure always returns Some")).unsigned_abs()
    }

    /// Blocks that are in nobody's hands, but for what CPUs were granted; a figure.
    pub(crate) fn uncommitted_blocks(&self) -> u64 {
        u64::try_from(self.uncommitted.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub(super) fn uncommit(&self, blocks: u64) {
        self.uncommitted.fetch_add(signed(blocks), Ordering::Relaxed);
    }

    fn count_spill(&self, cpu: CpuId, asking: NodeId, first: Block, blocks: u64) {
        let home = self.home(first.member());
        if home != asking {
            self.grants[cpu.0 as usize % self.grants.len()]
                .0
                .lock()
                .count_spill(asking, home, blocks);
        }
    }
}
