//! The block map of an inode: a radix tree like a page table, from the file's blocks to the pool's.
//!
//! An entry one level above the leaves maps an aligned 2 MiB run or a node of 512 blocks. Threads inside the inode's gate
//! read it and fill holes without a lock on the tree: filling locks single entries. Taking blocks away is for whoever
//! closed the gate ([`crate::Slots::close`]): those methods say *exclusive*.
//!
//! Invariants: an entry goes hole → (locked) → placed while the gate is open, and back only while it is closed; a full leaf
//! may become a run at any time; nodes are freed only while it is closed; a locked entry is a hole (or reserved) to readers.
//! Cost: one load per level; a file of a few blocks needs no node at all.

mod entry;
mod exclusive;
mod inline;
mod nodes;
mod places;
mod region;
mod runs;
mod shift;

pub use exclusive::Change;
pub use nodes::{Allowance, Asker, Nodes, NodesExhausted, Taker};
pub use places::Places;

use crate::sync::{AtomicU64, Backoff, Ordering};
use entry::{Entry, Kind};
use homenode_policy::Block;
use inline::{INLINE, inline_slot};
use nodes::{FANOUT, FANOUT_BITS, Room};

/// Blocks of a 2 MiB run.
pub const RUN_BLOCKS: u64 = FANOUT as u64;

/// The map of one file.
#[derive(Debug)]
pub struct BlockMap {
    /// The first is the root; while it names no node, these are the entries of the first file blocks: see [`inline`].
    entries: [AtomicU64; INLINE],
    /// Nodes that wait to be freed: see [`runs`].
    retired: AtomicU64,
}

/// Answer of [`BlockMap::find`]: placed or empty blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// `blocks` file blocks from there on lie one behind the other from `block`.
    Placed {
        /// The first.
        block: Block,
        /// How many, at least 1.
        blocks: u64,
    },
    /// Nothing is placed in `blocks` file blocks from there on.
    Empty {
        /// How many, at least 1.
        blocks: u64,
    },
}

/// Extent of a map: blocks of the pool, or room reserved for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// `blocks` blocks from `block` on.
    Placed {
        /// The first.
        block: Block,
        /// How many.
        blocks: u64,
    },
    /// Room for `blocks` blocks that were never written.
    Reserved {
        /// How many.
        blocks: u64,
    },
}

impl Default for BlockMap {
    fn default() -> Self {
        Self {
            entries: std::array::from_fn(|_| AtomicU64::new(Entry::HOLE.0)),
            retired: AtomicU64::new(0),
        }
    }
}

impl BlockMap {
    /// File blocks a map can name: all that a 63-bit file offset reaches.
    pub const LIMIT: u64 = 1 << 51;
    /// File blocks of a map that takes no node.
    pub const INLINE_BLOCKS: u64 = INLINE as u64;

    /// The pool's block at file block `at`, if it is placed: [`BlockMap::find`] for one block, in few instructions.
    #[inline(always)]
    #[must_use]
    pub fn find_one(&self, nodes: &Nodes, at: u64) -> Option<Block> {
        // Acquire, as in `find`.
        let mut value = Entry(self.root().load(Ordering::Acquire));
        if value.kind() != Kind::Node {
            return self.find_one_inline(nodes, at, value);
        }
        let mut shift = FANOUT_BITS * value.height();
        if at >> shift != 0 {
            return None;
        }
        loop {
            shift -= FANOUT_BITS;
            value = Entry(nodes.node(value.to_node()).entries[slot_at(at, shift)].load(Ordering::Acquire));
            match value.kind() {
                Kind::Run => return Some(value.to_block().plus(at & (RUN_BLOCKS - 1))),
                Kind::Block => return Some(value.to_block()),
                Kind::Node => {}
                _ => return None,
            }
        }
    }

    /// Finds the extent from file block `at` on, up to `most` (at least 1) blocks. The extent may end early; ask again there.
    #[inline]
    #[must_use]
    pub fn find(&self, nodes: &Nodes, at: u64, most: u64) -> Found {
        // Acquire on every entry: what was written before it was published is visible.
        let root = Entry(self.root().load(Ordering::Acquire));
        let mut level = root.height();
        if level == 0 {
            return self.find_inline(nodes, at, most, root);
        }
        if at >> (FANOUT_BITS * level) != 0 {
            return Found::Empty { blocks: most };
        }
        let mut node = root.to_node();
        loop {
            level -= 1;
            let entries = &nodes.node(node).entries;
            let slot = slot_of(at, level);
            let value = Entry(entries[slot].load(Ordering::Acquire));
            match value.kind() {
                Kind::Node => node = value.to_node(),
                Kind::Block => {
                    let blocks = if most == 1 {
                        1
                    } else {
                        neighbours(value, &entries[slot + 1..], most)
                    };
                    return Found::Placed {
                        block: value.to_block(),
                        blocks,
                    };
                }
                Kind::Run => {
                    let inside = at & (RUN_BLOCKS - 1);
                    let blocks = most.min(RUN_BLOCKS - inside);
                    return Found::Placed {
                        block: value.to_block().plus(inside),
                        blocks,
                    };
                }
                Kind::Hole | Kind::Reserved if level == 0 => {
                    return Found::Empty {
                        blocks: empty_neighbours(&entries[slot + 1..], most),
                    };
                }
                Kind::Hole | Kind::Reserved => {
                    return Found::Empty {
                        blocks: most.min(span(level) - (at & (span(level) - 1))),
                    };
                }
                Kind::Moved => unreachable!("only a map's own entries move"),
            }
        }
    }

    /// Locks up to `most` empty entries of one kind from file block `at` on, within one node. `None` when something is
    /// placed at `at` by now. `taker` is whom new nodes are taken for.
    ///
    /// # Errors
    /// When no map node is left.
    pub fn lock_empty<'a>(
        &'a self,
        nodes: &'a Nodes,
        taker: impl Into<Taker>,
        at: u64,
        most: u64,
    ) -> Result<Option<Places<'a>>, NodesExhausted> {
        let taker = taker.into();
        // Blocks that do not all fit into the map's own entries go into a node at once.
        let is_small = || Entry(self.root().load(Ordering::Acquire)).height() == 0;
        if inline_slot(at).is_some_and(|slot| most > (INLINE - slot) as u64) && is_small() {
            self.leave_inline(nodes, taker, at, 0)?;
        }
        let entries = self.entries_at(nodes, taker, at, 0)?;
        Ok(entries.and_then(|entries| Places::lock(entries, most, false)))
    }

    /// Locks the entry of the aligned 2 MiB at file block `at` when nothing at all is in it.
    ///
    /// # Errors
    /// When no map node is left.
    pub fn lock_empty_run<'a>(
        &'a self,
        nodes: &'a Nodes,
        taker: impl Into<Taker>,
        at: u64,
    ) -> Result<Option<Places<'a>>, NodesExhausted> {
        let taker = taker.into();
        debug_assert_eq!(at % RUN_BLOCKS, 0);
        let entries = self.entries_at(nodes, taker, at, 1)?;
        Ok(entries.and_then(|entries| Places::lock(entries, 1, true)))
    }

    /// The entries of level `wanted` from the one of file block `at` to the end of its node; makes what is missing above.
    /// `None` when something placed, or a node, is in the way.
    fn entries_at<'a>(
        &'a self,
        nodes: &'a Nodes,
        taker: Taker,
        at: u64,
        wanted: u32,
    ) -> Result<Option<&'a [AtomicU64]>, NodesExhausted> {
        debug_assert!(at < Self::LIMIT);
        let mut backoff = Backoff::default();
        'root: loop {
            let root = Entry(self.root().load(Ordering::Acquire));
            let mut level = root.height();
            if level == 0 {
                if let (0, Some(slot)) = (wanted, inline_slot(at)) {
                    return Ok(Some(&self.entries[slot..]));
                }
                self.leave_inline(nodes, taker, at, wanted)?;
                continue 'root;
            }
            if at >> (FANOUT_BITS * level) != 0 {
                self.grow(nodes, taker, root)?;
                continue 'root;
            }
            let mut entries = std::slice::from_ref(self.root());
            let mut value = root;
            while level > wanted {
                match value.kind() {
                    Kind::Node => {
                        level -= 1;
                        entries = &nodes.node(value.to_node()).entries[slot_of(at, level)..];
                    }
                    Kind::Block | Kind::Run => return Ok(None),
                    Kind::Hole | Kind::Reserved if value.is_locked() => backoff.wait(),
                    Kind::Hole | Kind::Reserved => split_empty(nodes, taker, &entries[0], value, Room::Usual)?,
                    Kind::Moved => unreachable!("only a map's own entries move"),
                }
                value = Entry(entries[0].load(Ordering::Acquire));
            }
            return Ok(if value.kind() == Kind::Node {
                None
            } else {
                Some(entries)
            });
        }
    }

    /// Puts one more level on top of `root`, a node. May do nothing: look again.
    fn grow(&self, nodes: &Nodes, taker: Taker, root: Entry) -> Result<(), NodesExhausted> {
        let index = nodes.take(taker, Room::Usual)?;
        let first = &nodes.node(index).entries[0];
        first.store(Entry::node(root.to_node(), 0).0, Ordering::Relaxed);
        // Release: whoever sees the new root sees the node's first entry.
        let new = Entry::node(index, root.height() + 1).0;
        if self
            .root()
            .compare_exchange(root.0, new, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            first.store(Entry::HOLE.0, Ordering::Relaxed);
            nodes.give_back(index);
        }
        Ok(())
    }

    #[inline(always)]
    fn root(&self) -> &AtomicU64 {
        &self.entries[0]
    }
}

/// Puts a node in place of the empty entry `value`, all of the same kind. May do nothing: look again.
fn split_empty(nodes: &Nodes, taker: Taker, entry: &AtomicU64, value: Entry, room: Room) -> Result<(), NodesExhausted> {
    let index = nodes.take(taker, room)?;
    let children = &nodes.node(index).entries;
    let fill = |value: Entry| {
        children
            .iter()
            .for_each(|child| child.store(value.0, Ordering::Relaxed))
    };
    if value != Entry::HOLE {
        fill(value);
    }
    // Release: whoever sees the node sees its entries.
    if entry
        .compare_exchange(value.0, Entry::node(index, 0).0, Ordering::Release, Ordering::Relaxed)
        .is_err()
    {
        fill(Entry::HOLE);
        nodes.give_back(index);
    }
    Ok(())
}

/// How many file blocks lie one behind the other: `first` and those of the entries behind it, up to `most`.
#[inline]
fn neighbours(first: Entry, behind: &[AtomicU64], most: u64) -> u64 {
    let mut count = 1;
    let mut next = first.0.wrapping_add(Entry::NEXT_BLOCK);
    for entry in behind {
        if count == most || entry.load(Ordering::Acquire) != next {
            break;
        }
        count += 1;
        next = next.wrapping_add(Entry::NEXT_BLOCK);
    }
    count
}

/// How many file blocks are empty from an empty one on: it and those of the entries behind it, up to `most`.
#[inline]
fn empty_neighbours(behind: &[AtomicU64], most: u64) -> u64 {
    let more = behind.iter().take(usize::try_from(most - 1).unwrap_or(FANOUT));
    let is_empty = |entry: &&AtomicU64| {
        // Relaxed: nothing is read behind an empty entry.
        matches!(Entry(entry.load(Ordering::Relaxed)).kind(), Kind::Hole | Kind::Reserved)
    };
    1 + more.take_while(is_empty).count() as u64
}

/// File blocks that an entry of `level` covers.
#[inline]
const fn span(level: u32) -> u64 {
    1 << (FANOUT_BITS * level)
}

/// Which entry of a node of that level is file block `at`'s.
#[inline]
const fn slot_of(at: u64, level: u32) -> usize {
    slot_at(at, FANOUT_BITS * level)
}

/// Index of file block `at` in a node whose entries cover 2^`shift` file blocks each.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "nine bits remain")]
const fn slot_at(at: u64, shift: u32) -> usize {
    (at >> shift) as usize & (FANOUT - 1)
}

/// Height of the lowest tree that covers file block `at`.
const fn height_for(at: u64) -> u32 {
    (u64::BITS - at.leading_zeros()).div_ceil(FANOUT_BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use homenode_policy::MemberId;

    /// Puts a block into an empty place.
    fn place(map: &BlockMap, nodes: &Nodes, at: u64, block: Block) {
        let places = map.lock_empty(nodes, 0, at, 1).expect("map nodes are left");
        places.expect("the place is empty").publish(block);
    }

    #[test]
    fn a_map_node_is_freed_with_its_last_entry() {
        let (nodes, map) = (Nodes::new(1), BlockMap::default());
        for at in [0, 511, 512, 1 << 20] {
            place(&map, &nodes, at, Block::new(MemberId(0), at));
        }
        assert!(nodes.used() > 3 && !map.is_blank());
        for at in [0, 512, 1 << 20, 511] {
            map.remove(&nodes, 0, at..at + 1, &mut |_, _| {})
                .expect("no run is split");
        }
        assert!(nodes.used() == 0 && map.is_blank());
    }

    #[test]
    fn a_full_node_of_neighbours_becomes_a_run() {
        let (nodes, map) = (Nodes::new(1), BlockMap::default());
        // The second stretch is not aligned in the pool.
        let block = |at: u64| {
            let shift = if (512..1024).contains(&at) { 7000 } else { 1024 };
            Block::new(MemberId(2), at + shift)
        };
        for at in 0..1536 {
            place(&map, &nodes, at, block(at));
        }
        let before = nodes.used();
        for at in [0, 512, 1024, 1024, 2048] {
            assert!(!map.make_run(&nodes, at), "few nodes wait");
        }
        assert_eq!(nodes.used(), before, "nodes were freed under a reader");
        map.settle(&nodes);
        assert_eq!(nodes.used(), before - 2, "the second stretch became a run");
        map.check_invariants(&nodes);
        for at in [0, 511, 512, 1023, 1024, 1535] {
            assert_eq!(map.find_one(&nodes, at), Some(block(at)));
        }
    }

    #[test]
    fn many_waiting_map_nodes_request_settling_and_are_freed_with_the_map() {
        let (nodes, map) = (Nodes::new(1), BlockMap::default());
        let mut asked = Vec::new();
        for run in 0..66 {
            for at in run * 512..(run + 1) * 512 {
                place(&map, &nodes, at, Block::new(MemberId(0), at + 512));
            }
            let first = if run == 1 { 0 } else { run };
            for run in first..=run {
                if map.make_run(&nodes, run * 512) {
                    asked.push(run);
                }
            }
        }
        assert_eq!(asked, [63, 64, 65]);
        assert_eq!(nodes.used(), 67);
        map.remove(&nodes, 0, 0..BlockMap::LIMIT, &mut |_, _| {})
            .expect("no run is split");
        assert_eq!(nodes.used(), 0);
    }

    #[test]
    fn the_full_length_of_a_hole_is_found() {
        let (nodes, map) = (Nodes::new(1), BlockMap::default());
        for at in [3, 40] {
            place(&map, &nodes, at, Block::new(MemberId(0), at));
        }
        assert_eq!(map.find(&nodes, 4, 100), Found::Empty { blocks: 36 });
        assert_eq!(map.find(&nodes, 4, 7), Found::Empty { blocks: 7 });
        assert_eq!(map.find(&nodes, 41, 1000), Found::Empty { blocks: 512 - 41 });
        assert_eq!(map.find(&nodes, 512, 1000), Found::Empty { blocks: 1000 });
        let all = map
            .lock_empty(&nodes, 0, 4, 100)
            .expect("map nodes are left")
            .expect("the place is empty");
        assert_eq!(all.blocks(), 36);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
