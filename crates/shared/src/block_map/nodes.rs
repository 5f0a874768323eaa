//! The nodes of all block maps of a pool: pages of 512 entries, named by index so that the memory can be shared.
//!
//! Invariants: a free node is all holes; a node is freed only when no slot names the inode it belonged to.
//! Nodes come in slabs that belong to the NUMA node whose thread asked first: its threads touch, and so place, them.

use super::entry::Entry;
use super::region::Region;
use crate::sync::{AtomicU32, AtomicU64, Mutex};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

/// Entries of one node: one page of them.
pub(super) const FANOUT: usize = 1 << FANOUT_BITS;
/// log2 of [`FANOUT`]. Models have little trees: what they check does not depend on it.
pub(super) const FANOUT_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

#[cfg(not(any(loom, miri)))]
pub(super) const SLAB_NODES: usize = 256;
#[cfg(any(loom, miri))]
pub(super) const SLAB_NODES: usize = 1;

/// A node of a block map.
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

/// Words that are kept beside a node.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Beside {
    /// The next node in a list.
    link: AtomicU32,
    /// The user whom a node that is used is counted for.
    user: AtomicU32,
}

/// Whom a node is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taker {
    /// Index of the NUMA node whose threads will look at it: below the count given to [`Nodes::new`].
    pub home: usize,
    /// The user it is counted for until it is freed.
    pub user: u32,
    /// The user who asks for it.
    pub asker: Asker,
}

/// A user who asks for memory, beside the one who is charged with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asker {
    /// The user who is charged.
    #[default]
    Owner,
    /// Root.
    Root,
    /// Another user, or perhaps one.
    Other,
}

impl From<usize> for Taker {
    /// User 0 on that home.
    fn from(home: usize) -> Self {
        Self {
            home,
            user: 0,
            asker: Asker::Owner,
        }
    }
}

/// Decides whether a user may have another node.
pub trait Allowance: std::fmt::Debug + Send + Sync {
    /// `all` nodes are used, the new one among them; `own` tells how many of them are the taker's user's.
    fn may_take(&self, taker: Taker, all: usize, own: &dyn Fn() -> usize) -> bool;
}

/// Free nodes of a home that keep their memory: at least so many, and less than twice as many.
const WARM: usize = 256;

/// Which nodes may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Nodes below the limit.
    Usual,
    /// Nodes beyond the limit too: to split a run that moves to another member, which a user cannot ask for.
    Reserve,
}

/// All nodes of one pool.
///
/// A node takes [`Nodes::NODE_BYTES`] of memory while it is used. At most [`Nodes::limit`] are used at a time, and more only
/// while a member is emptied. Free nodes go back to the kernel, but for some hundreds of each home.
#[derive(Debug)]
pub struct Nodes {
    region: Region,
    limit: AtomicUsize,
    allowance: OnceLock<Box<dyn Allowance>>,
    used: AtomicUsize,
    slabs_used: AtomicUsize,
    /// Home node of each slab.
    slab_homes: Box<[AtomicU16]>,
    /// Free nodes by home.
    free: Box<[Mutex<Free>]>,
}

/// Free nodes of one home.
#[derive(Debug, Default)]
struct Free {
    /// Nodes that have memory.
    warm: Vec<u32>,
    /// Nodes that were never touched, or went back to the kernel: zeros once they are touched, which are holes.
    cold: Vec<u32>,
    /// Nodes of this home that are used, by user.
    by_user: BTreeMap<u32, usize>,
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
            allowance: OnceLock::new(),
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

    /// Asks `allowance` from now on for each node but those that taking blocks away needs.
    ///
    /// # Panics
    /// When it was called before.
    pub fn set_allowance(&self, allowance: Box<dyn Allowance>) {
        self.allowance.set(allowance).expect("the allowance is set once");
    }

    /// Nodes that are used and counted for `user`.
    #[must_use]
    pub fn used_by(&self, user: u32) -> usize {
        let homes = self.free.iter();
        homes
            .map(|free| free.lock().by_user.get(&user).copied().unwrap_or(0))
            .sum()
    }

    /// Nodes that are used, by the user they are counted for.
    #[must_use]
    pub fn by_user(&self) -> BTreeMap<u32, usize> {
        let mut all = BTreeMap::new();
        for free in &self.free {
            for (user, nodes) in &free.lock().by_user {
                *all.entry(*user).or_default() += nodes;
            }
        }
        all
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

    #[inline]
    pub(super) fn node(&self, index: u32) -> &Node {
        self.region.node(index)
    }

    /// A word beside each node, for a list of nodes.
    #[inline]
    pub(super) fn link(&self, index: u32) -> &AtomicU32 {
        &self.region.beside(index).link
    }

    /// A node of holes from a slab of the taker's home.
    pub(super) fn take(&self, taker: Taker, room: Room) -> Result<u32, NodesExhausted> {
        let before = self.used.fetch_add(1, Ordering::Relaxed);
        let is_allowed = match room {
            Room::Usual => before < self.limit() && self.allows(taker, before + 1),
            Room::Reserve => true,
        };
        if !is_allowed {
            self.used.fetch_sub(1, Ordering::Relaxed);
            return Err(NodesExhausted);
        }
        self.take_free(taker)
            .inspect_err(|_| _ = self.used.fetch_sub(1, Ordering::Relaxed))
    }

    fn allows(&self, taker: Taker, all: usize) -> bool {
        let allowance = self.allowance.get();
        allowance.is_none_or(|allowance| allowance.may_take(taker, all, &|| self.used_by(taker.user)))
    }

    fn take_free(&self, taker: Taker) -> Result<u32, NodesExhausted> {
        let mut free = self.free[taker.home].lock();
        let index = self.find_free(&mut free, taker.home)?;
        *free.by_user.entry(taker.user).or_default() += 1;
        // Relaxed: read by the thread that frees the node.
        self.region.beside(index).user.store(taker.user, Ordering::Relaxed);
        Ok(index)
    }

    fn find_free(&self, free: &mut Free, home: usize) -> Result<u32, NodesExhausted> {
        if let Some(index) = free.warm.pop().or_else(|| free.cold.pop()) {
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
        let index = |i: usize| u32::try_from(slab * SLAB_NODES + i).expect("the region has fewer than 2^32 nodes");
        free.cold.extend((1..SLAB_NODES).rev().map(index));
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
        let user = self.region.beside(index).user.load(Ordering::Relaxed);
        let mut cooling: Vec<u32> = {
            let Free { warm, by_user, .. } = &mut *free.lock();
            let own = by_user.get_mut(&user).expect("each node in use is counted for a user");
            *own -= 1;
            if *own == 0 {
                by_user.remove(&user);
            }
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
