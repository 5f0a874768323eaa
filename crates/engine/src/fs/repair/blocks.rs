//! Blocks that files claim: each is given to one of them.
//!
//! Decides between two claims to a block: the later one in the log counts. The other file gets a hole there.

use super::tree::Tree;
use super::{Damage, Remedy};
use crate::Block;
use crate::fs::restore::within;
use crate::fs::{Ino, OpenError, Replayed};
use crate::log::{Change, Claim, Part, Record, Segment, Superblock, salvage};
use crate::{MemberId, Memory};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Ranges of addresses in use, each with the file that has it; none has superblocks, the log, and what no member has.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, (u64, Option<Ino>)>);

impl Ranges {
    /// Parts of a range that are taken, with who has them.
    fn met(&self, range: &Range<u64>) -> Vec<(Range<u64>, Option<Ino>)> {
        let before = self.0.range(..range.start).next_back();
        let first = before
            .filter(|(_, (end, _))| *end > range.start)
            .map(|(start, _)| *start);
        let met = self.0.range(first.unwrap_or(range.start)..range.end);
        met.map(|(start, (end, owner))| ((*start).max(range.start)..(*end).min(range.end), *owner))
            .collect()
    }

    /// Takes what is free of a range, and returns what is not, with who has it.
    fn take(&mut self, range: Range<u64>, owner: Option<Ino>) -> Vec<(Range<u64>, Option<Ino>)> {
        let met = self.met(&range);
        let mut at = range.start;
        for (taken, _) in &met {
            if at < taken.start {
                self.0.insert(at, (taken.start, owner));
            }
            at = taken.end;
        }
        if at < range.end {
            self.0.insert(at, (range.end, owner));
        }
        met
    }

    /// The file that has all of a range.
    fn owner(&self, range: Range<u64>) -> Option<Ino> {
        let (_, (end, owner)) = self.0.range(..=range.start).next_back()?;
        owner.filter(|_| range.end <= *end)
    }
}

/// Claims of files to blocks.
#[derive(Debug)]
pub(super) struct Claims {
    taken: Ranges,
    /// Blocks that are neither superblocks nor the log's.
    blocks: u64,
    /// When the log made a claim, by the file and the difference between a file block and its place.
    order: HashMap<(Ino, u64), u64>,
}

fn addresses(first: Block, blocks: u64) -> Range<u64> {
    first.to_raw()..first.to_raw() + blocks
}

fn key(ino: Ino, at: u64, first: Block) -> (Ino, u64) {
    (ino, first.to_raw().wrapping_sub(at))
}

impl Claims {
    /// Nobody's claims yet: only what is not for files is taken.
    pub(super) fn new(superblock: &Superblock, replayed: &Replayed) -> Self {
        let mut taken = Ranges::default();
        let mut at = 0;
        for member in &superblock.members {
            taken.take(at..Block::new(member.id, 1).to_raw(), None);
            at = Block::new(member.id, member.blocks - 1).to_raw();
        }
        taken.take(at..u64::MAX, None);
        let mut claims = Self {
            taken,
            blocks: replayed.blocks_for_files(superblock),
            order: HashMap::new(),
        };
        claims.keep_for_log(&replayed.snapshot);
        claims.keep_for_log(&replayed.tail.segments);
        claims
    }

    /// Keeps segments of the log from all files.
    pub(super) fn keep_for_log(&mut self, segments: &[Segment]) {
        for (first, blocks) in segments {
            self.taken.take(addresses(*first, u64::from(*blocks)), None);
        }
    }

    /// Reads once more when each claim was made.
    pub(super) fn order<M: Memory>(&mut self, memory: &M, superblock: &Superblock) {
        let is_within = |segment| within(superblock, segment);
        let (order, mut nth) = (&mut self.order, 0);
        for (head, part) in [(superblock.snapshot, Part::Snapshot), (superblock.tail, Part::Tail)] {
            salvage(memory, head, part, &is_within, &mut |group, _| {
                for record in group.records {
                    if let Record::Change(Change::Extent {
                        ino,
                        at,
                        first: Some(first),
                        ..
                    }) = record?
                    {
                        nth += 1;
                        order.insert(key(ino, at, first), nth);
                    }
                }
                Ok(())
            });
        }
    }

    /// Everything that is in use in the old state, whoever has it.
    pub(super) fn all(&self, tree: &Tree<'_>) -> Ranges {
        let mut used = self.taken.clone();
        for (ino, node) in &tree.inodes {
            for (blocks, first) in node.extents.values() {
                if let Some(first) = first {
                    used.take(addresses(*first, *blocks), Some(*ino));
                }
            }
        }
        used
    }

    /// Takes blocks from files that changes which are lost have `given` to others, whose bytes may be there by now. Gives each other block to one
    /// file, and takes it from the others; then drops promises when there is no room for them.
    pub(super) fn mend(&mut self, tree: &mut Tree<'_>, given: Vec<Claim>) {
        take_given(tree, given);
        let mut claims = Vec::new();
        let mut promised = 0_u64;
        for (ino, node) in &tree.inodes {
            for (at, (blocks, first)) in &node.extents {
                match first {
                    Some(first) => {
                        let order = self.order.get(&key(*ino, *at, *first)).copied().unwrap_or(0);
                        claims.push((std::cmp::Reverse(order), *ino, *at, *first, *blocks));
                    }
                    None => promised = promised.saturating_add(*blocks),
                }
            }
        }
        claims.sort_unstable();
        let mut in_use = 0;
        for (_, ino, at, first, blocks) in claims {
            let met = self.taken.take(addresses(first, blocks), Some(ino));
            let lost: u64 = met.iter().map(|(range, _)| range.end - range.start).sum();
            in_use += blocks - lost;
            if met.is_empty() {
                continue;
            }
            for (range, _) in &met {
                let node = tree.inodes.get_mut(&ino).expect("an inode with claims is in the tree");
                node.cut(at, at + (range.start - first.to_raw()), range.end - range.start);
            }
            let damage = if met.iter().any(|(_, owner)| owner.is_none()) {
                Damage::Outside { ino, first, blocks }
            } else {
                Damage::Twice { ino, first, blocks }
            };
            tree.tell(damage, Remedy::Hole(lost));
        }
        if promised.saturating_add(in_use) > self.blocks {
            for node in tree.inodes.values_mut() {
                node.extents.retain(|_, (_, first)| first.is_some());
            }
            tree.tell(Damage::Promised(promised), Remedy::PromisesDropped);
        }
    }

    /// Whether blocks are one file's by now, and nothing else.
    pub(super) fn is_for_files(&self, first: Block, blocks: u64) -> bool {
        // Two pieces of one file may lie side by side.
        let mut at = first.to_raw();
        let end = at + blocks;
        while at < end {
            match self.taken.0.range(..=at).next_back() {
                Some((_, (piece_end, Some(_)))) if *piece_end > at => at = *piece_end,
                _ => return false,
            }
        }
        true
    }

    /// Whether the block is that file's by now.
    pub(super) fn is_of(&self, block: Block, ino: Ino) -> bool {
        self.taken.owner(addresses(block, 1)) == Some(ino)
    }

    /// Segments of the log that nothing lies in, now or in the old state.
    pub(super) fn free_segments(
        &self,
        used: &Ranges,
        superblock: &Superblock,
        blocks: u32,
        wanted: usize,
    ) -> Result<Vec<Segment>, OpenError> {
        let mut used = used.clone();
        let mut free = Vec::with_capacity(wanted);
        let step = u64::from(blocks);
        let all = superblock.members.iter().flat_map(|member| {
            let starts = (0..member.blocks).step_by(blocks as usize);
            starts.map(|index| (member.id, index))
        });
        let all: &mut dyn Iterator<Item = (MemberId, u64)> = &mut all.into_iter();
        for (member, index) in all {
            if free.len() == wanted {
                break;
            }
            let first = Block::new(member, index);
            let range = addresses(first, step);
            let is_free = {
                let before = used.0.range(..range.end).next_back();
                before.is_none_or(|(_, (end, _))| *end <= range.start)
            };
            if is_free {
                used.take(range, None);
                free.push((first, blocks));
            }
        }
        if free.len() < wanted {
            return Err(OpenError::NoRoom(wanted as u64 * step * crate::BLOCK_BYTES as u64));
        }
        Ok(free)
    }
}

fn take_given(tree: &mut Tree<'_>, given: Vec<Claim>) {
    // The last one counts.
    let mut last = Ranges::default();
    for (first, blocks, ino) in given.into_iter().rev() {
        last.take(addresses(first, blocks), Some(ino));
    }
    let (mut damage, inodes) = (Vec::new(), &mut tree.inodes);
    for (ino, node) in inodes {
        let extents: Vec<_> = node.extents.iter().map(|(at, extent)| (*at, *extent)).collect();
        for (at, (blocks, first)) in extents {
            let Some(first) = first else { continue };
            let mut met = last.met(&addresses(first, blocks));
            met.retain(|(_, owner)| *owner != Some(*ino));
            for (range, _) in &met {
                node.cut(at, at + (range.start - first.to_raw()), range.end - range.start);
            }
            let lost = met.iter().map(|(range, _)| range.end - range.start).sum();
            if lost > 0 {
                let ino = *ino;
                damage.push((Damage::GivenOn { ino, first, blocks }, Remedy::Hole(lost)));
            }
        }
    }
    for (damage, remedy) in damage {
        tree.tell(damage, remedy);
    }
}
