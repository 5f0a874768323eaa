//! The nodes of all block maps of a pool: slabs of 4 KiB nodes, named by index so that the memory can be shared.
//!
//! Invariants: a free node is all holes; a node is freed only when no slot names the inode it belonged to.
//! Slabs belong to the NUMA node whose thread asked first: its threads touch, and so place, their nodes.

use super::entry::Entry;
use crate::sync::AtomicU64;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Entries of one node: one page of them.
pub(super) const FANOUT: usize = 512;
/// log2 of [`FANOUT`].
pub(super) const FANOUT_BITS: u32 = 9;

/// Nodes that one slab holds: 4 MiB, touched as they are used.
#[cfg(not(loom))]
const SLAB_NODES: usize = 1024;
#[cfg(loom)]
const SLAB_NODES: usize = 1;
/// Slabs at most: 64 Mi nodes map 128 TiB of whole 2 MiB runs.
#[cfg(not(loom))]
const SLABS: usize = 65536;
#[cfg(loom)]
const SLABS: usize = 2;

/// One node of a block map.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(super) struct Node {
    pub(super) entries: [AtomicU64; FANOUT],
}

/// All nodes of one pool.
#[derive(Debug)]
pub struct Nodes {
    slabs: Box<[OnceLock<Slab>]>,
    slabs_used: AtomicUsize,
    /// Free nodes by home.
    free: Box<[Mutex<Vec<u32>>]>,
}

#[derive(Debug)]
struct Slab {
    home: usize,
    nodes: Box<[Node]>,
}

/// Every map node is in use: the files are too sparse for this pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesExhausted;

impl Nodes {
    /// Slabs for threads of `homes` NUMA nodes.
    #[must_use]
    pub fn new(homes: usize) -> Self {
        Self {
            slabs: (0..SLABS).map(|_| OnceLock::new()).collect(),
            slabs_used: AtomicUsize::new(0),
            free: (0..homes.max(1)).map(|_| Mutex::default()).collect(),
        }
    }

    #[inline]
    pub(super) fn node(&self, index: u32) -> &Node {
        let slab = self.slabs[index as usize / SLAB_NODES]
            .get()
            .expect("an entry names nodes of filled slabs only");
        &slab.nodes[index as usize % SLAB_NODES]
    }

    /// A node of holes from a slab of `home` (an index below the count given to [`Nodes::new`]).
    pub(super) fn take(&self, home: usize) -> Result<u32, NodesExhausted> {
        let mut free = self.free[home].lock();
        if let Some(index) = free.pop() {
            return Ok(index);
        }
        let slab = self.slabs_used.fetch_add(1, Ordering::Relaxed);
        if slab >= SLABS {
            self.slabs_used.fetch_sub(1, Ordering::Relaxed);
            return Err(NodesExhausted);
        }
        assert!(
            self.slabs[slab]
                .set(Slab {
                    home,
                    nodes: zeroed_nodes()
                })
                .is_ok(),
            "slab numbers are given out once"
        );
        let first = u32::try_from(slab * SLAB_NODES).expect("SLABS * SLAB_NODES fits");
        let last = first + u32::try_from(SLAB_NODES).expect("fits") - 1;
        free.extend((first + 1..=last).rev());
        Ok(first)
    }

    /// Gives back a node whose entries are all holes.
    pub(super) fn give_back(&self, index: u32) {
        debug_assert!(
            self.node(index)
                .entries
                .iter()
                .all(|entry| entry.load(Ordering::Relaxed) == Entry::HOLE.0),
            "a freed node is all holes"
        );
        let home = self.slabs[index as usize / SLAB_NODES]
            .get()
            .expect("it was taken")
            .home;
        self.free[home].lock().push(index);
    }

    /// Nodes in use, for tests and status.
    #[must_use]
    pub fn used(&self) -> usize {
        let free: usize = self.free.iter().map(|free| free.lock().len()).sum();
        self.slabs_used.load(Ordering::Relaxed) * SLAB_NODES - free
    }
}

#[cfg(not(loom))]
fn zeroed_nodes() -> Box<[Node]> {
    let nodes = Box::<[Node]>::new_zeroed_slice(SLAB_NODES);
    // SAFETY: a Node is an array of AtomicU64, for which all-zero bytes are a valid value (a hole).
    unsafe { nodes.assume_init() }
}

#[cfg(loom)]
fn zeroed_nodes() -> Box<[Node]> {
    (0..SLAB_NODES)
        .map(|_| Node {
            entries: std::array::from_fn(|_| AtomicU64::new(0)),
        })
        .collect()
}
