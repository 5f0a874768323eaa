//! Members of a durable pool: they join it, and leave it when they are drained.
//!
//! A crash at any point leaves the pool with the member or without it. A file that was to become a member, or was one, may keep its superblocks:
//! the pool's own do not list it (`log::gather`).

use super::{Error, Fs};
use crate::log::planted::{Planted, is_planted};
use crate::log::{Journal, MemberRecord};
use crate::pool::PoolError;
use crate::{BLOCK_BYTES, Block, Clock, MemberId, Memory, MemoryError, NodeId};

/// Blocks at each end of a member that leaves which are filled with zeros: those that are looked at before a file becomes a member.
const CLEARED_BLOCKS: u64 = 256;

type Result<T> = std::result::Result<T, PoolError>;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Adds a member to a durable pool, in use from now on. The memory behind it is there, under the number that
    /// [`Pool::next_member`](crate::pool::Pool::next_member) told, and `identity` its part of the pool's witness. Members come and go one at a time.
    ///
    /// # Errors
    /// [`PoolError::Unwritable`] when the new member cannot be written, [`PoolError::Log`] when another one cannot: the member may be the pool's then,
    /// when it is opened again. [`PoolError::Full`], [`PoolError::TooMany`].
    ///
    /// # Panics
    /// When the pool is not durable, or the member has no room for two superblocks.
    pub fn add_member(&self, member: MemberRecord, home: NodeId, identity: u128) -> Result<()> {
        let journal = self.journal.as_deref().expect("the pool is durable");
        let _one_at_a_time = journal.settling.lock();
        if usize::from(member.id.0) >= MemberId::LIMIT {
            return Err(PoolError::TooMany);
        }
        // Its memory is there already: no other member can have the number.
        self.check_members().inspect_err(|_| self.pool.skip_member(member.id))?;
        if journal.join(&self.pool, member, identity).is_err() {
            self.pool.skip_member(member.id);
            if journal.has_failed() {
                return Err(PoolError::Log);
            }
            self.wipe([0, member.blocks - 1].map(|index| Block::new(member.id, index)));
            return Err(PoolError::Unwritable(member.id));
        }
        let ends = [0..1, member.blocks - 1..member.blocks];
        self.pool.restore(member.id, member.kind, home, member.blocks, &ends);
        Ok(())
    }

    /// Whether a member can join a durable pool now.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], [`PoolError::Log`] after a failure of the log, [`PoolError::Full`] when the superblocks have no room.
    pub fn check_members(&self) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if journal.is_read_only() {
            return Err(PoolError::ReadOnly);
        }
        if journal.has_failed() {
            return Err(PoolError::Log);
        }
        journal.takes_members().then_some(()).ok_or(PoolError::Full)
    }

    /// Takes a drained member out of a durable pool, and wipes its superblocks. Its memory may go afterwards. `identity` is its part of
    /// the pool's witness.
    ///
    /// # Errors
    /// [`PoolError::NotEmpty`] for a member that was not drained; [`PoolError::Log`] when the others cannot be written.
    ///
    /// # Panics
    /// When the pool is not durable.
    pub fn remove_member(&self, member: MemberId, identity: u128) -> Result<()> {
        let journal = self.journal.as_deref().expect("the pool is durable");
        // No commit between: it makes all members durable that the pool has.
        let _one_at_a_time = journal.settling.lock();
        self.pool.check_drained(member)?;
        if journal.has_failed() {
            return Err(PoolError::Log);
        }
        let ends = self.pool.ends(member);
        if is_planted(Planted::WipedFirst) {
            self.wipe(ends);
        }
        journal
            .leave(&self.pool, member, identity)
            .map_err(|MemoryError| PoolError::Log)?;
        self.pool.remove(member)?;
        self.wipe(ends);
        self.clear(ends);
        // Of files that had blocks there: a sync may be about to make those durable.
        journal.await_syncs();
        Ok(())
    }

    /// Wipes superblocks of a file that is no member, as far as that is possible: it is none, whatever they say.
    fn wipe(&self, superblocks: [Block; 2]) {
        let memory = self.pool.memory();
        for block in superblocks {
            let wiped = memory.zero(block, 0, BLOCK_BYTES);
            let _ = wiped.and_then(|()| memory.persist(block, 0, BLOCK_BYTES));
        }
    }

    /// Fills both ends of a former member's file with zeros, so that nobody takes what is left there for other data.
    fn clear(&self, [first, last]: [Block; 2]) {
        let at = |index: u64| Block::new(first.member(), index);
        let blocks = CLEARED_BLOCKS.min(last.index());
        for index in (1..blocks).chain(last.index() - blocks..last.index()) {
            // As far as that is possible.
            let _ = self.pool.memory().zero(at(index), 0, BLOCK_BYTES);
        }
        let memory = self.pool.memory();
        let _ = memory.persist_all(first.member());
        // What could not be written is not to be written later.
        memory.forget(at(1), blocks - 1);
        memory.forget(at(last.index() - blocks), blocks);
    }

    /// Moves the log off members that drain, and gives blocks back that were freed on them. Without a log there is nothing to do.
    pub(super) fn move_log(&self, member: MemberId) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if journal.is_read_only() {
            return Err(PoolError::ReadOnly);
        }
        if journal.has_failed() {
            return Err(PoolError::Log);
        }
        let slot = self.slots.claim().ok_or(PoolError::Busy)?;
        let _one_at_a_time = journal.settling.lock();
        let moved = self.stock_spare(journal).and_then(|()| {
            if journal.must_move(&self.pool) {
                self.write_snapshot(journal, &slot)?;
                // The segments that it took the place of.
                self.stock_spare(journal)
            } else {
                self.settle_all(journal, &slot)
            }
        });
        moved.map_err(|error| undrained(member, error))
    }

    /// Has as many empty segments as there should be, none of them on a member that drains.
    fn stock_spare(&self, journal: &Journal) -> super::Result<()> {
        journal.restock(&self.pool).then_some(()).ok_or(Error::NoSpace)
    }
}

/// Why a member was not drained.
pub(super) fn undrained(member: MemberId, error: Error) -> PoolError {
    match error {
        Error::NoSpace => PoolError::NoSpace(member),
        Error::ReadOnly => PoolError::Log,
        Error::Busy => PoolError::Busy,
        _ => PoolError::Io(member),
    }
}
