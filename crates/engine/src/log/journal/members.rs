//! Members that join a pool and leave it, as the log and the superblocks see them.

use super::{Failed, Journal, MemoryError, SPARE_SEGMENTS, write_superblocks};
use crate::log::planted::{Planted, is_planted};
use crate::log::scan::Segment;
use crate::log::superblock::{MEMBERS_MAX, MemberRecord};
use crate::pool::Pool;
use crate::{MemberId, Memory};
use std::sync::atomic::Ordering;

impl Journal {
    /// Whether the superblocks have room for another member.
    pub(crate) fn takes_members(&self) -> bool {
        self.superblock.lock().members.len() < MEMBERS_MAX
    }

    /// Puts a member into the pool's table of members, in all superblocks. Its own come first, durable: a crash before the others leaves
    /// the pool as it was, and a file that belongs to no pool. Their generation is below the pool's own, so that no such file counts. `identity` is its part of the witness.
    ///
    /// # Errors
    /// [`MemoryError`]; the log has failed when it is not known what the superblocks say.
    pub(crate) fn join<M: Memory>(
        &self,
        pool: &Pool<M>,
        member: MemberRecord,
        identity: u128,
    ) -> Result<(), MemoryError> {
        let mut joining = self.superblock.lock().clone();
        joining.members.push(member);
        joining.generation -= 1;
        if !is_planted(Planted::ListedFirst) {
            let written = write_superblocks(pool.memory(), &mut joining, &[member], false);
            written.map_err(|Failed { .. }| MemoryError)?;
        }
        self.change_superblock(pool, |superblock| {
            superblock.members.push(member);
            superblock.witness ^= identity;
        })
    }

    /// Takes a member out of the pool's table of members, in the superblocks of the others. `identity` is its part of the witness.
    ///
    /// # Errors
    /// The errors of [`Journal::join`].
    pub(crate) fn leave<M: Memory>(&self, pool: &Pool<M>, id: MemberId, identity: u128) -> Result<(), MemoryError> {
        self.change_superblock(pool, |superblock| {
            superblock.members.retain(|member| member.id != id);
            superblock.witness ^= identity;
        })
    }

    /// Takes empty segments until there are as many as there should be on members that stay, and gives back those on members that drain; false
    /// when the pool has no room for them.
    pub(crate) fn restock<M: Memory>(&self, pool: &Pool<M>) -> bool {
        let _one_at_a_time = self.filling.lock();
        let is_leaving = |(first, _): &&Segment| pool.is_draining(first.member());
        let leaving = self.spare.lock().iter().filter(is_leaving).count();
        // Not before: others are promised room in them.
        let is_full = self.fill(pool, SPARE_SEGMENTS + leaving);
        if is_full {
            self.leave_spare(pool);
        }
        is_full
    }

    /// Gives empty segments back that lie on members that drain.
    fn leave_spare<M: Memory>(&self, pool: &Pool<M>) {
        let leaving: Vec<Segment> = {
            let mut spare = self.spare.lock();
            let (leaving, stay) = spare.drain(..).partition(|(first, _)| pool.is_draining(first.member()));
            *spare = stay;
            if !leaving.is_empty() {
                self.short.store(true, Ordering::Relaxed);
            }
            leaving
        };
        leaving
            .into_iter()
            .for_each(|(first, blocks)| pool.free(first, blocks.into()));
    }

    /// Whether a part of the log lies on a member that drains.
    pub(crate) fn must_move<M: Memory>(&self, pool: &Pool<M>) -> bool {
        let segments = self.writer.lock().segments.clone();
        segments.iter().any(|(first, _)| pool.is_draining(first.member()))
    }
}
