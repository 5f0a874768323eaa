//! The entries of a small map, which lie in the map itself: a file of a few blocks needs no node.
//!
//! While the root (the first entry) names no node, the map's own entries are those of the first file blocks. A map that
//! outgrows them *moves* into a node with the gate open: every entry that is not placed is locked in ascending order, all
//! are copied into the node, the root is made to name it, and the locked ones become [`Kind::Moved`]. Placed entries stay
//! as they are: what they say is right until the gate is closed, and nobody looks at them who has seen the new root.
//!
//! Invariants: when the root names no node and nobody moves, no entry is `Moved`; the thread that holds the lock of an
//! entry to move it is the only one that can make the root a node; entries are holes again when the map is empty.
//! Cost: eight bytes a block for every file; docs/decisions/009-maps.md tells how many were chosen.

use super::entry::{Entry, Kind};
use super::nodes::{Nodes, NodesExhausted, Room, Taker};
use super::places::try_lock;
use super::{BlockMap, Found, empty_neighbours, height_for, neighbours};
use crate::sync::{AtomicU64, Backoff, Ordering};
use homenode_policy::Block;

/// File blocks whose entries lie in the map itself.
#[cfg(not(loom))]
pub(super) const INLINE: usize = 8;
#[cfg(loom)]
pub(super) const INLINE: usize = 2;

impl BlockMap {
    /// [`BlockMap::find_one`] where `root`, just loaded, names no node.
    #[inline]
    pub(super) fn find_one_inline(&self, nodes: &Nodes, at: u64, root: Entry) -> Option<Block> {
        let slot = inline_slot(at)?;
        let value = self.inline_entry(slot, root);
        match value.kind() {
            Kind::Block => Some(value.to_block()),
            Kind::Moved => match self.find(nodes, at, 1) {
                Found::Placed { block, .. } => Some(block),
                Found::Empty { .. } => None,
            },
            _ => None,
        }
    }

    /// [`BlockMap::find`] where `root`, just loaded, names no node.
    #[inline]
    pub(super) fn find_inline(&self, nodes: &Nodes, at: u64, most: u64, root: Entry) -> Found {
        let Some(slot) = inline_slot(at) else {
            return Found::Empty { blocks: most };
        };
        let value = self.inline_entry(slot, root);
        let behind = &self.entries[slot + 1..];
        match value.kind() {
            Kind::Block => Found::Placed {
                block: value.to_block(),
                blocks: neighbours(value, behind, most),
            },
            Kind::Moved => self.find(nodes, at, most),
            _ => {
                let blocks = empty_neighbours(behind, most);
                // Nothing was behind the last one either when the root was loaded.
                let reaches_end = blocks > behind.len() as u64;
                Found::Empty {
                    blocks: if reaches_end { most } else { blocks },
                }
            }
        }
    }

    #[inline]
    fn inline_entry(&self, slot: usize, root: Entry) -> Entry {
        if slot == 0 {
            root
        } else {
            // Acquire: as in `find`; and whoever sees it moved sees the new root.
            Entry(self.entries[slot].load(Ordering::Acquire))
        }
    }

    /// Moves the entries into a node, so that the tree can cover file block `at` or have entries of level `wanted`; not all
    /// of it may be done when this returns: look again.
    pub(super) fn leave_inline(&self, nodes: &Nodes, taker: Taker, at: u64, wanted: u32) -> Result<(), NodesExhausted> {
        let index = nodes.take(taker, Room::Usual)?;
        let children = &nodes.node(index).entries;
        let mut before = [(Entry::HOLE, false); INLINE];
        for (entry, before) in self.entries.iter().zip(&mut before) {
            let Some(held) = hold(entry) else {
                // Another thread has moved them, so all the entries before this one are placed: none is locked.
                nodes.give_back(index);
                return Ok(());
            };
            *before = held;
        }
        let is_empty = before.iter().all(|(value, _)| *value == Entry::HOLE);
        let height = if is_empty {
            height_for(at).max(wanted + 1)
        } else {
            for (child, (value, _)) in children.iter().zip(before) {
                child.store(value.0, Ordering::Relaxed);
            }
            1
        };
        let (root, root_is_locked) = before[0];
        let expected = if root_is_locked { root.locked() } else { root };
        // Release: whoever sees the new root sees the node's entries.
        let moved = self.entries[0].compare_exchange(
            expected.0,
            Entry::node(index, height).0,
            Ordering::Release,
            Ordering::Relaxed,
        );
        if moved.is_err() {
            debug_assert!(
                before.iter().all(|(_, is_locked)| !is_locked),
                "a lock keeps others from moving"
            );
            for child in &children[..INLINE] {
                child.store(Entry::HOLE.0, Ordering::Relaxed);
            }
            nodes.give_back(index);
            return Ok(());
        }
        for (entry, (_, is_locked)) in self.entries.iter().zip(before).skip(1) {
            if is_locked {
                // Release: whoever sees it moved sees the new root.
                entry.store(Entry::MOVED.0, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Makes the map's own entries holes again, when the tree is gone. *Exclusive.*
    pub(super) fn return_inline(&self) {
        for entry in &self.entries {
            // Relaxed: opening the gate shows it to others.
            entry.store(Entry::HOLE.0, Ordering::Relaxed);
        }
    }
}

/// Locks the entry unless it is placed. Returns what it was before, and whether it is locked now; `None` when the entries
/// have moved.
fn hold(entry: &AtomicU64) -> Option<(Entry, bool)> {
    let mut backoff = Backoff::default();
    loop {
        // Acquire: the bytes of a placed block are visible to whoever finds it through the node.
        let value = Entry(entry.load(Ordering::Acquire));
        match value.kind() {
            Kind::Block => return Some((value, false)),
            Kind::Hole | Kind::Reserved if value.is_locked() => backoff.wait(),
            Kind::Hole | Kind::Reserved if try_lock(entry, value) => return Some((value, true)),
            Kind::Hole | Kind::Reserved => {}
            Kind::Node | Kind::Moved => return None,
            Kind::Run => unreachable!("a run lies above the leaves"),
        }
    }
}

#[inline]
pub(super) fn inline_slot(at: u64) -> Option<usize> {
    usize::try_from(at).ok().filter(|at| *at < INLINE)
}
