//! Status of the pool, for people and tests.

use super::grants::add_spill;
use super::{Access, MemberKind, Pool, Spill};
use crate::{MemberId, Memory, NodeId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// State of one member; sizes in blocks of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub id: MemberId,
    /// Kind of storage that holds the member's bytes.
    pub kind: MemberKind,
    /// Its home.
    pub home: NodeId,
    /// All its blocks.
    pub capacity: u64,
    /// Blocks that are backed by memory already.
    pub populated: u64,
    /// Blocks that hold data; grants do not count.
    pub used: u64,
    /// Not a candidate: too full, or its node is starved.
    pub fat: bool,
    /// Takes no new blocks.
    pub draining: bool,
}

/// State of the pool; sizes in blocks of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// All members, ascending.
    pub members: Vec<MemberStatus>,
    /// The access matrix, without its empty cells.
    pub accesses: Vec<Access>,
    /// Spills since the pool came up.
    pub spills: Vec<Spill>,
    /// Blocks of all members that are not being drained, and of those the data that drained ones still hold.
    pub capacity: u64,
    /// Hold data.
    pub used: u64,
    /// Promised by fallocate and not yet placed.
    pub reserved: u64,
    /// Taken by backing files of the kernel.
    pub backing: u64,
}

impl Status {
    /// Blocks that can still be written or reserved.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used + self.reserved + self.backing)
    }
}

impl<M: Memory> Pool<M> {
    /// The pool's state now. Exact when nobody writes.
    pub fn status(&self) -> Status {
        let mut granted = BTreeMap::<MemberId, u64>::new();
        let mut credits = 0;
        let mut spills = Vec::new();
        for cpu in &self.grants {
            let grants = cpu.0.lock();
            grants
                .held()
                .for_each(|(first, blocks)| *granted.entry(first.member()).or_default() += blocks);
            grants.spills().iter().for_each(|spill| add_spill(&mut spills, *spill));
            credits += grants.credit;
        }
        for spill in self.spills_of_files() {
            add_spill(&mut spills, spill);
        }
        let members: Vec<_> = self.members.read().list.clone();
        let members: Vec<MemberStatus> = members
            .iter()
            .map(|member| {
                let space = member.space();
                // Superblocks alone do not keep a member from being taken out.
                let superblocks = if space.draining { 0 } else { member.superblocks() };
                let held = member.held(&space) + superblocks;
                MemberStatus {
                    id: member.id,
                    kind: member.kind,
                    home: member.home,
                    capacity: member.blocks,
                    populated: space.populated,
                    used: held.saturating_sub(granted.get(&member.id).copied().unwrap_or(0)),
                    fat: self.monitor.lock().is_fat(member.id),
                    draining: space.draining,
                }
            })
            .collect();
        let counts = |member: &MemberStatus| if member.draining { member.used } else { member.capacity };
        Status {
            capacity: members.iter().map(counts).sum(),
            used: members.iter().map(|member| member.used).sum(),
            reserved: self.reserved.load(Ordering::Relaxed).saturating_sub(credits) + self.lent_and_promised().1,
            backing: self.store().map_or(0, |store| store.used_blocks()),
            accesses: self.accounts.accesses(),
            spills,
            members,
        }
    }

    /// Panics when the books do not agree. At rest only.
    pub fn check_invariants(&self) {
        let status = self.status();
        let members = self.members.read();
        members.list.iter().for_each(|member| member.space().check_invariants());
        self.monitor.lock().check_invariants();
        let granted: u64 = self
            .grants
            .iter()
            .map(|cpu| cpu.0.lock().held().map(|(_, n)| n).sum::<u64>())
            .sum();
        let credits: u64 = self.grants.iter().map(|cpu| cpu.0.lock().credit).sum();
        let (lent, promised) = self.lent_and_promised();
        let uncommitted = self.uncommitted.load(Ordering::Relaxed) + super::signed(granted + credits);
        assert_eq!(
            uncommitted + super::signed(lent - promised),
            super::signed(status.free() + status.backing),
            "uncommitted blocks do not match {status:?}"
        );
    }
}
