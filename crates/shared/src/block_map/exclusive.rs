//! Operations on a map that only the thread that closed the inode's gate may call.

use super::entry::{Entry, Kind};
use super::inline::INLINE;
use super::nodes::{FANOUT, Nodes, NodesExhausted, Room, Taker};
use super::{BlockMap, Extent, RUN_BLOCKS, slot_of, span, split_empty};
use crate::sync::{AtomicU64, Ordering};
use homenode_policy::Block;
use std::ops::Range;

/// Fate of a placed extent in [`BlockMap::update`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It stays.
    Keep,
    /// Its bytes are now in as many blocks from here on.
    To(Block),
    /// Show its blocks one by one (a run only).
    Split,
}

impl BlockMap {
    /// Takes everything in `range` (file blocks) out and shows it to `taken` with its file block. `taker` is whom a node is
    /// taken for where a run must be split. *Exclusive.*
    ///
    /// # Errors
    /// When a run must be split and no map node may be taken: that run stays, and all else is out. Ranges of whole aligned
    /// runs, or up to [`BlockMap::LIMIT`] from one on, split nothing that is placed.
    pub fn remove(
        &self,
        nodes: &Nodes,
        taker: impl Into<Taker>,
        range: Range<u64>,
        taken: &mut dyn FnMut(u64, Extent),
    ) -> Result<(), NodesExhausted> {
        self.settle(nodes);
        let taker = taker.into();
        let has_tree = self.height() > 0;
        let mut inside = self.within(&range);
        if range.end >= Self::LIMIT {
            // The highest tree covers more than that: the whole of it goes, or its root would be left.
            inside.end = self.covered();
        }
        let mut removed = Ok(());
        for (entry, level, base) in self.tops(&inside) {
            removed = remove(nodes, taker, entry, level, base, &inside, taken).and(removed);
        }
        if has_tree && self.root().load(Ordering::Relaxed) == Entry::HOLE.0 {
            self.return_inline();
        }
        removed
    }

    /// Whether nothing is placed or reserved, and no node is used or waits. Says nothing while others fill holes.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        let words = self.entries.iter().chain([&self.retired]);
        // Relaxed: the caller knows that whoever filled a hole is done.
        words.map(|word| word.load(Ordering::Relaxed)).all(|word| word == 0)
    }

    /// Reserves what is a hole in `range`; gives how many blocks that were. *Exclusive.*
    ///
    /// # Errors
    /// When no map node is left; some of the range may be reserved then, and `count` holds how much.
    pub fn reserve(
        &self,
        nodes: &Nodes,
        taker: impl Into<Taker>,
        range: Range<u64>,
        count: &mut u64,
    ) -> Result<(), NodesExhausted> {
        let taker = taker.into();
        self.settle(nodes);
        while range.end > range.start.max(self.covered()) {
            if self.height() == 0 {
                self.leave_inline(nodes, taker, range.end - 1, 0)?;
            } else {
                self.grow(nodes, taker, Entry(self.root().load(Ordering::Relaxed)))?;
            }
        }
        let range = self.within(&range);
        self.tops(&range)
            .try_for_each(|(entry, level, base)| reserve(nodes, taker, entry, level, base, &range, count))
    }

    /// Holes in `range`, in blocks. *Exclusive.*
    #[must_use]
    pub fn holes(&self, nodes: &Nodes, range: Range<u64>) -> u64 {
        let inside = self.within(&range);
        let beyond = range.end.saturating_sub(range.start.max(self.covered()));
        let within = self.tops(&inside);
        beyond
            + within
                .map(|(entry, level, base)| holes(nodes, entry, level, base, &inside))
                .sum::<u64>()
    }

    /// Shows every placed extent in `range` to `change`, which may move it. *Exclusive.*
    ///
    /// # Errors
    /// The error of `change`, or a run must be split and no map node is left.
    pub fn update<E: From<NodesExhausted>>(
        &self,
        nodes: &Nodes,
        range: Range<u64>,
        change: &mut dyn FnMut(Block, u64) -> Result<Change, E>,
    ) -> Result<(), E> {
        self.settle(nodes);
        let range = self.within(&range);
        self.tops(&range)
            .try_for_each(|(entry, level, base)| update(nodes, entry, level, base, &range, change))
    }

    /// Panics when the tree is not as it must be at rest: entries of a kind that their level cannot have, or locked.
    pub fn check_invariants(&self, nodes: &Nodes) {
        for (entry, level, _) in self.tops(&(0..self.covered())) {
            check(nodes, entry, level);
        }
    }

    fn height(&self) -> u32 {
        Entry(self.root().load(Ordering::Relaxed)).height()
    }

    /// File blocks that have entries: of the tree, or the map's own.
    pub(super) fn covered(&self) -> u64 {
        match self.height() {
            0 => INLINE as u64,
            height => span(height),
        }
    }

    /// The part of `range` that has entries.
    pub(super) fn within(&self, range: &Range<u64>) -> Range<u64> {
        range.start..range.end.min(self.covered())
    }

    /// The root, or those of the map's own entries that `range` names; each with its level and its first file block.
    pub(super) fn tops(&self, range: &Range<u64>) -> impl Iterator<Item = (&AtomicU64, u32, u64)> + use<'_> {
        let level = self.height();
        let slot = |at: u64| usize::try_from(at).map_or(INLINE, |at| at.min(INLINE));
        let (first, end) = match level {
            0 => (slot(range.start), slot(range.end)),
            _ => (0, 1),
        };
        let tops = self.entries[..end].iter().enumerate().skip(first);
        tops.map(move |(i, entry)| (entry, level, i as u64))
    }
}

const NOT_MOVED: &str = "moved entries are behind a root that names a node";

/// The children of a node entry that overlap `range`, with their first file blocks.
pub(super) fn children<'a>(
    nodes: &'a Nodes,
    entry: Entry,
    level: u32,
    base: u64,
    range: &Range<u64>,
) -> impl Iterator<Item = (&'a AtomicU64, u64)> + use<'a> {
    let below = level - 1;
    let start = range.start.max(base);
    let end = range.end.min(base + span(level));
    let slots = if start < end {
        slot_of(start, below)..slot_of(end - 1, below) + 1
    } else {
        0..0
    };
    let first = slots.start as u64;
    let entries = &nodes.node(entry.to_node()).entries[slots];
    entries
        .iter()
        .enumerate()
        .map(move |(i, child)| (child, base + (first + i as u64) * span(below)))
}

fn covers(range: &Range<u64>, base: u64, level: u32) -> bool {
    range.start <= base && base + span(level) <= range.end
}

fn remove(
    nodes: &Nodes,
    taker: Taker,
    entry: &AtomicU64,
    level: u32,
    base: u64,
    range: &Range<u64>,
    taken: &mut dyn FnMut(u64, Extent),
) -> Result<(), NodesExhausted> {
    let value = Entry(entry.load(Ordering::Relaxed));
    debug_assert!(!value.is_locked());
    if range.is_empty() {
        return Ok(());
    }
    let extent = match value.kind() {
        Kind::Hole => return Ok(()),
        Kind::Moved => unreachable!("{NOT_MOVED}"),
        Kind::Node => {
            let mut removed = Ok(());
            for (child, base) in children(nodes, value, level, base, range) {
                removed = remove(nodes, taker, child, level - 1, base, range, taken).and(removed);
            }
            let entries = &nodes.node(value.to_node()).entries;
            let is_empty = |entry: &AtomicU64| entry.load(Ordering::Relaxed) == Entry::HOLE.0;
            if covers(range, base, level) || entries.iter().all(is_empty) {
                entry.store(Entry::HOLE.0, Ordering::Relaxed);
                nodes.give_back(value.to_node());
            }
            return removed;
        }
        Kind::Run | Kind::Reserved if !covers(range, base, level) => {
            split(nodes, taker, Room::Usual, entry, value)?;
            return remove(nodes, taker, entry, level, base, range, taken);
        }
        Kind::Reserved => Extent::Reserved { blocks: span(level) },
        Kind::Run | Kind::Block => Extent::Placed {
            block: value.to_block(),
            blocks: span(level),
        },
    };
    entry.store(Entry::HOLE.0, Ordering::Relaxed);
    taken(base, extent);
    Ok(())
}

fn reserve(
    nodes: &Nodes,
    taker: Taker,
    entry: &AtomicU64,
    level: u32,
    base: u64,
    range: &Range<u64>,
    count: &mut u64,
) -> Result<(), NodesExhausted> {
    let value = Entry(entry.load(Ordering::Relaxed));
    debug_assert!(!value.is_locked());
    match value.kind() {
        Kind::Hole if covers(range, base, level) => {
            entry.store(Entry::RESERVED.0, Ordering::Relaxed);
            *count += span(level);
            Ok(())
        }
        Kind::Hole if range.is_empty() => Ok(()),
        Kind::Hole => {
            split_empty(nodes, taker, entry, value, Room::Usual)?;
            reserve(nodes, taker, entry, level, base, range, count)
        }
        Kind::Node => children(nodes, value, level, base, range)
            .try_for_each(|(child, base)| reserve(nodes, taker, child, level - 1, base, range, count)),
        Kind::Reserved | Kind::Block | Kind::Run => Ok(()),
        Kind::Moved => unreachable!("{NOT_MOVED}"),
    }
}

fn holes(nodes: &Nodes, entry: &AtomicU64, level: u32, base: u64, range: &Range<u64>) -> u64 {
    let value = Entry(entry.load(Ordering::Relaxed));
    match value.kind() {
        Kind::Hole => range.end.min(base + span(level)).saturating_sub(range.start.max(base)),
        Kind::Node => children(nodes, value, level, base, range)
            .map(|(child, base)| holes(nodes, child, level - 1, base, range))
            .sum(),
        Kind::Reserved | Kind::Block | Kind::Run => 0,
        Kind::Moved => unreachable!("{NOT_MOVED}"),
    }
}

fn update<E: From<NodesExhausted>>(
    nodes: &Nodes,
    entry: &AtomicU64,
    level: u32,
    base: u64,
    range: &Range<u64>,
    change: &mut dyn FnMut(Block, u64) -> Result<Change, E>,
) -> Result<(), E> {
    let value = Entry(entry.load(Ordering::Relaxed));
    debug_assert!(!value.is_locked());
    match value.kind() {
        Kind::Hole | Kind::Reserved => Ok(()),
        Kind::Moved => unreachable!("{NOT_MOVED}"),
        Kind::Node => children(nodes, value, level, base, range)
            .try_for_each(|(child, base)| update(nodes, child, level - 1, base, range, change)),
        Kind::Block | Kind::Run if range.is_empty() => Ok(()),
        Kind::Block => {
            match change(value.to_block(), 1)? {
                Change::Keep => {}
                Change::To(block) => entry.store(Entry::block(block).0, Ordering::Release),
                Change::Split => unreachable!("one block cannot be split"),
            }
            Ok(())
        }
        Kind::Run => {
            if covers(range, base, level) {
                match change(value.to_block(), RUN_BLOCKS)? {
                    Change::Keep => return Ok(()),
                    Change::To(block) => {
                        entry.store(Entry::run(block).0, Ordering::Release);
                        return Ok(());
                    }
                    Change::Split => {}
                }
            }
            // Moving needs one node for each run of the member that is emptied, and is the administrator's.
            split(nodes, 0.into(), Room::Reserve, entry, value)?;
            update(nodes, entry, level, base, range, change)
        }
    }
}

/// Puts a node in place of a run or a reserved entry.
fn split(nodes: &Nodes, taker: Taker, room: Room, entry: &AtomicU64, value: Entry) -> Result<(), NodesExhausted> {
    if value.kind() == Kind::Reserved {
        return split_empty(nodes, taker, entry, value, room);
    }
    let index = nodes.take(taker, room)?;
    for (i, child) in nodes.node(index).entries.iter().enumerate() {
        child.store(Entry::block(value.to_block().plus(i as u64)).0, Ordering::Relaxed);
    }
    entry.store(Entry::node(index, 0).0, Ordering::Release);
    Ok(())
}

fn check(nodes: &Nodes, entry: &AtomicU64, level: u32) {
    let value = Entry(entry.load(Ordering::Relaxed));
    assert!(!value.is_locked(), "an entry is locked at rest");
    match value.kind() {
        Kind::Block => assert_eq!(level, 0, "a block is mapped at level {level}"),
        Kind::Run => assert_eq!(level, 1, "a run is mapped at level {level}"),
        Kind::Node => {
            assert!(level > 0, "a node hangs below a leaf");
            assert_eq!(nodes.node(value.to_node()).entries.len(), FANOUT);
            nodes
                .node(value.to_node())
                .entries
                .iter()
                .for_each(|child| check(nodes, child, level - 1));
        }
        Kind::Hole | Kind::Reserved => {}
        Kind::Moved => panic!("{NOT_MOVED}"),
    }
}
