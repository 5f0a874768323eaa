//! The nodes of all block maps of a pool: pages of 512 entries, named by index so that the memory can be shared.
//!
//! Invariants: a free node is all holes; a node is freed only when no slot names the inode it belonged to.
//! Nodes come in slabs that belong to the NUMA node whose thread asked first: its threads touch, and so place, them.

use super::entry::Entry;
use super::region::Region;
use crate::sync::{AtomicU32, AtomicU64, Mutex};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

/// Entries of one node: one page of them.
pub(super) const FANOUT: usize = 512;
/// log2 of [`FANOUT`].
pub(super) const FANOUT_BITS: u32 = 9;

/// Nodes that one slab holds.
#[cfg(not(any(loom, miri)))]
pub(super) const SLAB_NODES: usize = 256;
#[cfg(any(loom, miri))]
pub(super) const SLAB_NODES: usize = 1;

/// One node of a block map.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(super) struct Node {
    pub(super) entries: [AtomicU64; FANOUT],
}

impl Default for Node {
    fn default() -> Self {
        Self {
            entries: std::array::from_fn(|_| AtomicU64::new(Entry::HOLE.0)),
        }
    }
}

/// All nodes of one pool.
#[derive(Debug)]
pub struct Nodes {
    region: Region,
    slabs_used: AtomicUsize,
    /// By slab.
    slab_homes: Box<[AtomicU16]>,
    /// Free nodes by home.
    free: Box<[Mutex<Vec<u32>>]>,
}

/// Every map node is in use: the files are too sparse for this pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesExhausted;

impl Nodes {
    /// No node yet, for threads of `homes` NUMA nodes.
    ///
    /// # Panics
    /// When the process may not have enough addresses.
    #[must_use]
    pub fn new(homes: usize) -> Self {
        let region = Region::new();
        Self {
            slab_homes: (0..region.nodes() / SLAB_NODES).map(|_| AtomicU16::new(0)).collect(),
            region,
            slabs_used: AtomicUsize::new(0),
            free: (0..homes.max(1)).map(|_| Mutex::default()).collect(),
        }
    }

    #[inline]
    pub(super) fn node(&self, index: u32) -> &Node {
        self.region.node(index)
    }

    /// A word beside each node, for a list of nodes.
    #[inline]
    pub(super) fn link(&self, index: u32) -> &AtomicU32 {
        self.region.link(index)
    }

    /// A node of holes from a slab of `home` (an index below the count given to [`Nodes::new`]).
    pub(super) fn take(&self, home: usize) -> Result<u32, NodesExhausted> {
        let mut free = self.free[home].lock();
        if let Some(index) = free.pop() {
            return Ok(index);
        }
        let slab = self.slabs_used.fetch_add(1, Ordering::Relaxed);
        let Some(slab_home) = self.slab_homes.get(slab) else {
            self.slabs_used.fetch_sub(1, Ordering::Relaxed);
            return Err(NodesExhausted);
        };
        // Relaxed: read under a free list's lock, by threads that got a node of this slab through one.
        slab_home.store(
            u16::try_from(home).expect("NUMA nodes are numbered by 16 bits"),
            Ordering::Relaxed,
        );
        let index = |i: usize| u32::try_from(slab * SLAB_NODES + i).expect("the region has fewer nodes");
        free.extend((1..SLAB_NODES).rev().map(index));
        Ok(index(0))
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
        let home = self.slab_homes[index as usize / SLAB_NODES].load(Ordering::Relaxed);
        self.free[usize::from(home)].lock().push(index);
    }

    /// Nodes in use, for tests and status.
    #[must_use]
    pub fn used(&self) -> usize {
        let free: usize = self.free.iter().map(|free| free.lock().len()).sum();
        self.slabs_used.load(Ordering::Relaxed) * SLAB_NODES - free
    }
}
