//! The nodes of all block maps of a pool: pages of 512 entries, named by index so that the memory can be shared.
//!
//! Invariants: a free node is all holes; a node is freed only when no slot names the inode it belonged to.
//! Nodes come in slabs that belong to the NUMA node whose thread asked first: its threads touch, and so place, them.

use super::entry::Entry;
use super::region::Region;
use crate::sync::{AtomicU32, AtomicU64, Mutex};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

/// Entries of one node: one page of them.
pub(super) const FANOUT: usize = 1 << FANOUT_BITS;
/// log2 of [`FANOUT`]. Models have little trees: what they check does not depend on it.
pub(super) const FANOUT_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

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

/// Free nodes of a home that keep their memory: at least so many, and less than twice as many.
const WARM: usize = 256;

/// Nodes beyond the limit that are kept for taking blocks away.
const RESERVE: usize = 256;

/// Which nodes may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Those below the limit.
    Usual,
    /// Some beyond the limit too: to split what is partly taken away, so that deleting works when nothing else does.
    Reserve,
}

/// All nodes of one pool.
///
/// A node takes [`Nodes::NODE_BYTES`] of memory while it is used. At most [`Nodes::limit`] are used at a time, and a few
/// more while blocks are taken away. Free nodes go back to the kernel, but for some hundreds of each home.
#[derive(Debug)]
pub struct Nodes {
    region: Region,
    limit: AtomicUsize,
    used: AtomicUsize,
    slabs_used: AtomicUsize,
    /// By slab.
    slab_homes: Box<[AtomicU16]>,
    /// By home.
    free: Box<[Mutex<Free>]>,
}

/// Free nodes of one home.
#[derive(Debug, Default)]
struct Free {
    /// Those that have memory.
    warm: Vec<u32>,
    /// Those that were never touched, or went back to the kernel: zeros once they are touched, which are holes.
    cold: Vec<u32>,
}

/// No map node may be used: the files are too sparse for this pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesExhausted;

impl Nodes {
    /// Memory of one node.
    pub const NODE_BYTES: usize = size_of::<Node>();

    /// No node yet, for threads of `homes` NUMA nodes. The limit is what the region has addresses for.
    ///
    /// # Panics
    /// When the process may not have enough addresses.
    #[must_use]
    pub fn new(homes: usize) -> Self {
        let region = Region::new();
        Self {
            limit: AtomicUsize::new(region.nodes()),
            used: AtomicUsize::new(0),
            slab_homes: (0..region.nodes() / SLAB_NODES).map(|_| AtomicU16::new(0)).collect(),
            region,
            slabs_used: AtomicUsize::new(0),
            free: (0..homes.max(1)).map(|_| Mutex::default()).collect(),
        }
    }

    /// Nodes that may be used. A limit below [`Nodes::used`] refuses new ones until enough are freed.
    pub fn set_limit(&self, nodes: usize) {
        // Relaxed, here and below: a count orders nothing.
        self.limit.store(nodes, Ordering::Relaxed);
    }

    /// Nodes that may be used.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Nodes in use, in O(1); those count that wait until a file's gate is closed.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// More than three quarters of the limit are used.
    pub(super) fn are_scarce(&self) -> bool {
        self.used() > self.limit() / 4 * 3
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
    pub(super) fn take(&self, home: usize, room: Room) -> Result<u32, NodesExhausted> {
        let extra = if room == Room::Reserve { RESERVE } else { 0 };
        if self.used.fetch_add(1, Ordering::Relaxed) >= self.limit().saturating_add(extra) {
            self.used.fetch_sub(1, Ordering::Relaxed);
            return Err(NodesExhausted);
        }
        self.take_free(home)
            .inspect_err(|_| _ = self.used.fetch_sub(1, Ordering::Relaxed))
    }

    fn take_free(&self, home: usize) -> Result<u32, NodesExhausted> {
        let mut free = self.free[home].lock();
        let Free { warm, cold } = &mut *free;
        if let Some(index) = warm.pop().or_else(|| cold.pop()) {
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
        cold.extend((1..SLAB_NODES).rev().map(index));
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
        self.used.fetch_sub(1, Ordering::Relaxed);
        let home = self.slab_homes[index as usize / SLAB_NODES].load(Ordering::Relaxed);
        let free = &self.free[usize::from(home)];
        let mut cooling: Vec<u32> = {
            let warm = &mut free.lock().warm;
            warm.push(index);
            if warm.len() < 2 * WARM {
                return;
            }
            // Those that were freed first.
            warm.drain(..WARM).collect()
        };
        // Without the lock: nobody else knows of these nodes, and the kernel takes its time.
        cooling.sort_unstable();
        for stretch in cooling.chunk_by(|one, next| one + 1 == *next) {
            self.region.forget(stretch[0], stretch.len());
        }
        free.lock().cold.extend(cooling);
    }
}
