//! Facts about a machine besides its snapshot.

use crate::NodeId;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Memory, mounts, settings and helpers of one machine. Counts are of the snapshot's period unless they say otherwise;
/// what could not be read, or what this kernel does not have, is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Memory of each node, ascending by node; empty where the kernel tells none.
    pub memory: Vec<NodeMemory>,
    /// Mounts of tmpfs that hold something, the fullest first.
    pub tmpfs: Vec<Tmpfs>,
    /// Other programs on this machine that place interrupts or threads, ascending.
    pub helpers: Vec<Helper>,
    /// The kernel's own moving of pages and threads towards each other.
    pub balancing: Option<Balancing>,
    /// Whether a full node's page cache is thrown away before another node's memory is taken.
    pub zone_reclaim: Option<ZoneReclaim>,
    /// Whether the kernel gives no tmpfs huge pages, whatever its mount asks for.
    pub huge_tmpfs_denied: Option<bool>,
    /// Whether FUSE mounts may be served by rings; none where the kernel has no rings.
    pub fuse_rings: Option<bool>,
    /// PCI addresses of devices, by their names.
    pub addresses: BTreeMap<String, String>,
    /// How many receive queues a card can have, by its name.
    pub queues_max: BTreeMap<String, u64>,
    /// How many receive queues a card's RSS table names, by its name, where somebody has set the table.
    pub queues_used: BTreeMap<String, u64>,
}

/// Memory of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NodeMemory {
    /// Which.
    pub node: NodeId,
    /// All of it.
    pub bytes: u64,
    /// Nobody uses this.
    pub free_bytes: u64,
    /// Page cache of files on disks.
    pub cache_bytes: u64,
    /// Files in memory: tmpfs, shared memory, memfd.
    pub tmpfs_bytes: u64,
    /// Pages that were wanted from this node, which had none to give, and came from another.
    pub foreign_pages: u64,
    /// Pages of this node that were wanted from another.
    pub missed_pages: u64,
    /// Pages of this node that were given to CPUs of others.
    pub other_pages: u64,
    /// Pages of this node that an interleaving policy chose.
    pub interleaved_pages: u64,
}

/// A mount of tmpfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Where.
    pub at: String,
    /// Its memory policy, such as `bind:0`; empty for the default one: the node of who writes first.
    pub policy: String,
    /// Bytes in use in the mount.
    pub used_bytes: u64,
}

/// A program that places interrupts or threads by its own lights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Helper {
    /// Spreads interrupts.
    Irqbalance,
    /// Moves processes between nodes.
    Numad,
    /// With a profile that sets affinities of interrupts or threads.
    Tuned,
    /// systemd's `.link` files, with RPS or numbers of queues for cards that are there.
    SystemdLink,
}

/// `kernel.numa_balancing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// Whether it is on.
    pub on: bool,
    /// Faults that it made programs take, to learn who uses a page.
    pub hint_faults: u64,
    /// Pages that it moved.
    pub migrated_pages: u64,
}

/// `vm.zone_reclaim_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneReclaim {
    /// 0 is off.
    pub mode: u32,
    /// How often it was tried since boot.
    pub reclaims: u64,
}

impl fmt::Display for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Irqbalance => "irqbalance",
            Self::Numad => "numad",
            Self::Tuned => "tuned",
            Self::SystemdLink => "systemd's .link files",
        })
    }
}
