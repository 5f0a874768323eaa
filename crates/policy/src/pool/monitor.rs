//! The monitor: decides which member a new block comes from.
//!
//! Owns, for each asking node, all members sorted by access latency, and for each member whether it is *fat* (no room)
//! or a *candidate* (has room). The target is the local member while it is not fat, else the nearest candidate.
//!
//! Invariants: every row names every member once, local ones first, then by latency, node, member; a member that is
//! draining is never a target. Between the two thresholds a member stays what it was, so that a single freed block does
//! not send writers back and forth.
//! Cost: [`Monitor::target`] reads one row until its first candidate and allocates nothing.
//! Source: MBS-LVM, section 2.4 and Algorithm 1 (FatNode, CandidateNode as a list sorted by access latency).

use crate::{MemberId, NodeId};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// When a member becomes fat, and when a candidate again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// A candidate becomes fat when more than this share of it is used. At most 100.
    pub fat_percent: u8,
    /// A fat member becomes a candidate again when less than this share of it is used. From 1 to `fat_percent`.
    pub candidate_percent: u8,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            fat_percent: 98,
            candidate_percent: 95,
        }
    }
}

impl Thresholds {
    /// Whether a member is fat now, if it `was` before. A full member always is.
    fn fat(self, was: bool, used_blocks: u64, capacity_blocks: u64) -> bool {
        let used = u128::from(used_blocks) * 100;
        let share = |percent: u8| u128::from(capacity_blocks) * u128::from(percent);
        used_blocks >= capacity_blocks
            || if was {
                used >= share(self.candidate_percent)
            } else {
                used > share(self.fat_percent)
            }
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    home: NodeId,
    full: bool,
    starved: bool,
    draining: bool,
}

impl Member {
    fn fat(&self) -> bool {
        self.full || self.starved
    }

    fn candidate(&self) -> bool {
        !self.fat() && !self.draining
    }
}

/// Chooses the member with the lowest access latency among those with room.
#[derive(Debug)]
pub struct Monitor {
    thresholds: Thresholds,
    nodes: Vec<NodeId>,
    /// `latency[a][b]` from node `nodes[a]` to memory of `nodes[b]`.
    latency: Vec<Vec<u32>>,
    /// Members by id; ids are never reused, so a removed member leaves a gap.
    members: Vec<Option<Member>>,
    /// Order of the members for each asking node. A last row, by home and member, is for nodes that are not in `nodes`.
    rows: Vec<Vec<MemberId>>,
}

/// Farther than any real node; for homes that the latency matrix does not know.
const UNKNOWN_LATENCY: u32 = u32::MAX;

impl Monitor {
    /// A monitor without members. `latency[a][b]` is the access latency (or any measure that orders nodes as it would,
    /// such as SLIT distances) from `nodes[a]` to memory of `nodes[b]`; it need not be symmetric.
    ///
    /// # Panics
    /// When the matrix is not `nodes` by `nodes`, a node is named twice, or the thresholds are out of order.
    #[must_use]
    pub fn new(nodes: &[NodeId], latency: &[Vec<u32>], thresholds: Thresholds) -> Self {
        let Thresholds {
            fat_percent,
            candidate_percent,
        } = thresholds;
        assert!(
            1 <= candidate_percent && candidate_percent <= fat_percent && fat_percent <= 100,
            "thresholds: 1 <= candidate ({candidate_percent}) <= fat ({fat_percent}) <= 100 does not hold"
        );
        assert!(
            latency.len() == nodes.len() && latency.iter().all(|row| row.len() == nodes.len()),
            "the latency matrix must have a row and a column for each of {} nodes",
            nodes.len()
        );
        for (index, node) in nodes.iter().enumerate() {
            assert!(!nodes[..index].contains(node), "{node} is named twice");
        }
        Self {
            thresholds,
            nodes: nodes.to_vec(),
            latency: latency.to_vec(),
            members: Vec::new(),
            rows: vec![Vec::new(); nodes.len() + 1],
        }
    }

    /// Adds an empty member, a candidate from now on. A `home` that [`Monitor::new`] was not told of counts as the
    /// farthest for every other node.
    ///
    /// # Panics
    /// When the member is there already.
    pub fn add(&mut self, member: MemberId, home: NodeId) {
        assert!(self.member(member).is_none(), "{member} is there already");
        if !self.nodes.contains(&home) {
            self.learn(home);
        }
        let index = usize::from(member.0);
        if self.members.len() <= index {
            self.members.resize(index + 1, None);
        }
        self.members[index] = Some(Member {
            home,
            full: false,
            starved: false,
            draining: false,
        });
        for row in 0..self.rows.len() {
            let key = self.key(row, member, home);
            let at = self.rows[row].partition_point(|other| self.key_of(row, *other) < key);
            self.rows[row].insert(at, member);
        }
    }

    /// Forgets a member. Here and below, one that is not (or no longer) there is ignored.
    pub fn remove(&mut self, member: MemberId) {
        if let Some(slot) = self.members.get_mut(usize::from(member.0)) {
            *slot = None;
            for row in &mut self.rows {
                row.retain(|other| *other != member);
            }
        }
    }

    /// Takes note of how full a member is. True when that made it fat or a candidate again.
    pub fn update(&mut self, member: MemberId, used_blocks: u64, capacity_blocks: u64) -> bool {
        let thresholds = self.thresholds;
        self.member_mut(member).is_some_and(|member| {
            let was = member.fat();
            member.full = thresholds.fat(member.full, used_blocks, capacity_blocks);
            was != member.fat()
        })
    }

    /// Whether the member would become fat, or a candidate again, with one of these numbers of used blocks.
    #[must_use]
    pub fn may_change(&self, member: MemberId, used_blocks: RangeInclusive<u64>, capacity_blocks: u64) -> bool {
        self.member(member).is_some_and(|member| {
            let fat = |used: &u64| self.thresholds.fat(member.full, *used, capacity_blocks);
            fat(used_blocks.start()) != member.full || fat(used_blocks.end()) != member.full
        })
    }

    /// Says that the member's home has no free memory to back more blocks with: it counts as fat until that is taken
    /// back.
    pub fn set_starved(&mut self, member: MemberId, starved: bool) {
        if let Some(member) = self.member_mut(member) {
            member.starved = starved;
        }
    }

    /// Says that the member is being emptied: it is no target, fat or not.
    pub fn set_draining(&mut self, member: MemberId, draining: bool) {
        if let Some(member) = self.member_mut(member) {
            member.draining = draining;
        }
    }

    /// Whether the member has no room. One that is not there has none.
    #[must_use]
    pub fn is_fat(&self, member: MemberId) -> bool {
        self.member(member).is_none_or(Member::fat)
    }

    /// The member to take new blocks from: a local one while it is not fat, else the nearest candidate; among equals the
    /// lowest node, then the lowest member. `None` when there is no candidate.
    #[must_use]
    pub fn target(&self, asking: NodeId) -> Option<MemberId> {
        self.candidates(asking).next()
    }

    /// The candidates, in the order in which [`Monitor::target`] would choose them.
    pub fn candidates(&self, asking: NodeId) -> impl Iterator<Item = MemberId> {
        self.row(asking)
            .filter(|(_, state)| state.candidate())
            .map(|(member, _)| member)
    }

    /// Every member that is not draining, nearest first: where to look when all are fat and some space is left.
    pub fn all_by_latency(&self, asking: NodeId) -> impl Iterator<Item = MemberId> {
        self.row(asking)
            .filter(|(_, state)| !state.draining)
            .map(|(member, _)| member)
    }

    /// Panics unless every row names every member once and in order.
    pub fn check_invariants(&self) {
        let present = self.members.iter().flatten().count();
        assert_eq!(
            self.rows.len(),
            self.nodes.len() + 1,
            "a row for each node and one for others"
        );
        for (index, row) in self.rows.iter().enumerate() {
            assert_eq!(row.len(), present, "row {index} names every member");
            assert!(
                row.iter().all(|member| self.member(*member).is_some()),
                "row {index} names only members"
            );
            assert!(
                row.is_sorted_by(|a, b| self.key_of(index, *a) < self.key_of(index, *b)),
                "row {index} is sorted without duplicates"
            );
        }
    }

    fn member(&self, member: MemberId) -> Option<&Member> {
        self.members.get(usize::from(member.0))?.as_ref()
    }

    fn member_mut(&mut self, member: MemberId) -> Option<&mut Member> {
        self.members.get_mut(usize::from(member.0))?.as_mut()
    }

    fn row(&self, asking: NodeId) -> impl Iterator<Item = (MemberId, &Member)> {
        let index = self.nodes.iter().position(|node| *node == asking);
        let row = &self.rows[index.unwrap_or(self.nodes.len())];
        row.iter().filter_map(|member| Some((*member, self.member(*member)?)))
    }

    /// Returns the sort key of a member in a row. Local members come first, whatever the matrix says: measured
    /// latencies may be noisy.
    fn key(&self, row: usize, member: MemberId, home: NodeId) -> (bool, u32, NodeId, MemberId) {
        let Some(asking) = self.nodes.get(row) else {
            return (true, UNKNOWN_LATENCY, home, member);
        };
        let column = self.nodes.iter().position(|node| *node == home);
        let latency = column.map_or(UNKNOWN_LATENCY, |column| self.latency[row][column]);
        (*asking != home, latency, home, member)
    }

    fn key_of(&self, row: usize, member: MemberId) -> (bool, u32, NodeId, MemberId) {
        let home = self.member(member).expect("a row names only members").home;
        self.key(row, member, home)
    }

    /// Gives a node that was not in the list a row of its own, so that it still finds its local members first.
    fn learn(&mut self, node: NodeId) {
        for row in &mut self.latency {
            row.push(UNKNOWN_LATENCY);
        }
        self.nodes.push(node);
        self.latency.push(vec![UNKNOWN_LATENCY; self.nodes.len()]);
        // It has no member yet, so the order for unknown nodes is right for it too.
        let others = self.rows.last().expect("the last row always exists").clone();
        self.rows.insert(self.nodes.len() - 1, others);
    }
}

#[cfg(test)]
mod tests;
