//! Leaves that became runs, and their nodes, which wait until no thread can look at them any more.
//!
//! Invariants: a leaf whose 512 entries are placed does not change while the gate is open; its node stays as it is until
//! [`BlockMap::settle`], so a thread that still holds it reads right entries; a node waits in the list of one map only.
//! Cost: a scan of one node for each 2 MiB written; a word per map, and four bytes per node that ever waited.

use super::entry::{Entry, Kind};
use super::nodes::{FANOUT_BITS, Nodes};
use super::{BlockMap, RUN_BLOCKS, neighbours, slot_of};
use crate::sync::{AtomicU64, Ordering};
use homenode_policy::Block;

/// Nodes that wait in one map before the gate should be closed for them: of 128 MiB written in order.
const WAITING_MAX: u64 = 64;

impl BlockMap {
    /// Maps the aligned 2 MiB at file block `at` as one run, if its blocks lie one behind the other. For a thread inside
    /// the inode's gate, or with the gate closed.
    ///
    /// The leaf's node waits for [`BlockMap::settle`]. Returns true when so many wait that the caller should leave, close the gate, and settle.
    #[must_use]
    pub fn make_run(&self, nodes: &Nodes, at: u64) -> bool {
        let Some((entry, leaf, block)) = self.would_be_run(nodes, at) else {
            return false;
        };
        // Release: the bytes of all blocks, which the scan acquired with their entries, come before the run that shows them.
        // When it fails another thread has made the run.
        entry
            .compare_exchange(leaf.0, Entry::run(block).0, Ordering::Release, Ordering::Relaxed)
            .is_ok()
            && self.retire(nodes, leaf.to_node()) >= WAITING_MAX
    }

    /// Returns whether nodes wait for [`BlockMap::settle`].
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        // Relaxed: a hint; `settle` looks again.
        self.retired.load(Ordering::Relaxed) != 0
    }

    /// Frees the nodes of leaves that became runs. *Exclusive.*
    pub fn settle(&self, nodes: &Nodes) {
        // Relaxed, here and below: threads that were inside have left, and closing the gate acquired what they did.
        let mut head = self.retired.load(Ordering::Relaxed);
        if head == 0 {
            return;
        }
        self.retired.store(0, Ordering::Relaxed);
        while let Some(node) = waiting_first(head) {
            head = u64::from(nodes.link(node).load(Ordering::Relaxed));
            for entry in &nodes.node(node).entries {
                entry.store(Entry::HOLE.0, Ordering::Relaxed);
            }
            nodes.give_back(node);
        }
    }

    /// Puts a node into the list; returns how many are in it.
    fn retire(&self, nodes: &Nodes, node: u32) -> u64 {
        let mut head = self.retired.load(Ordering::Relaxed);
        loop {
            // Relaxed: read by whoever closes the gate, after this thread has left.
            nodes.link(node).store(first_word(head), Ordering::Relaxed);
            let count = (head >> COUNT_SHIFT) + 1;
            let new = count << COUNT_SHIFT | (u64::from(node) + 1);
            // Relaxed: as above. Nodes leave the list only while nobody is inside, so no head comes back.
            match self
                .retired
                .compare_exchange(head, new, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return count,
                Err(now) => head = now,
            }
        }
    }

    /// The entry one level above the leaves, the leaf it names, and the first block.
    fn would_be_run<'a>(&'a self, nodes: &'a Nodes, at: u64) -> Option<(&'a AtomicU64, Entry, Block)> {
        let mut entry = self.root();
        let mut value = Entry(entry.load(Ordering::Acquire));
        let mut level = value.height();
        if level < 2 || at >> (FANOUT_BITS * level) != 0 {
            return None;
        }
        while level > 1 && value.kind() == Kind::Node {
            level -= 1;
            entry = &nodes.node(value.to_node()).entries[slot_of(at, level)];
            value = Entry(entry.load(Ordering::Acquire));
        }
        if value.kind() != Kind::Node {
            return None;
        }
        let entries = &nodes.node(value.to_node()).entries;
        let first = Entry(entries[0].load(Ordering::Acquire));
        let is_run = first.kind() == Kind::Block
            && first.to_block().index().is_multiple_of(RUN_BLOCKS)
            && neighbours(first, &entries[1..], RUN_BLOCKS) == RUN_BLOCKS;
        is_run.then(|| (entry, value, first.to_block()))
    }
}

/// The list's count lies above its first node's index plus 1.
const COUNT_SHIFT: u32 = 32;

#[allow(clippy::cast_possible_truncation, reason = "the low half")]
fn first_word(head: u64) -> u32 {
    head as u32
}

fn waiting_first(head: u64) -> Option<u32> {
    first_word(head).checked_sub(1)
}
