//! Finds what a machine could give to a pool, and where each piece is at home.
//!
//! The cluster manager of MBS-LVM (section 2.2) learns from firmware tables which memory is storage, and where. On Linux
//! the kernel has read these tables already, so this reads sysfs and /proc below a root directory: memory of each node
//! (with CPUs or without), persistent memory as disks and as dax devices, and NVMe disks.
//!
//! It only looks. Whether something may be used is said in [`Offer::in_use`]: nothing that is mounted, swapped to,
//! partitioned or held by another device may be. What lies on a disk that nobody uses now is not looked at.

mod disks;
mod memory;
mod persistent;

use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;
use std::fmt;
use std::path::{Path, PathBuf};

/// Something that could become a member of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The kernel's name: `node0`, `pmem0`, `dax0.0`, `nvme0n1`.
    pub name: String,
    /// Kind of the offer.
    pub kind: OfferKind,
    /// The node it is attached to, where the machine tells.
    pub home: Option<NodeId>,
    /// Its size.
    pub bytes: u64,
    /// How much of it nobody uses: free memory and page cache that can be dropped. Devices are used as a whole.
    pub free_bytes: Option<u64>,
    /// The device file, if it is one.
    pub path: Option<PathBuf>,
    /// Why it cannot be a member now.
    pub in_use: Option<InUse>,
}

/// Kind of memory or device that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OfferKind {
    /// Memory of a node with CPUs.
    Dram,
    /// Memory of a node without: CXL, HBM, persistent memory used as RAM.
    MemoryOnly,
    /// Persistent memory as a disk (`/dev/pmem0`), for files with DAX.
    Pmem,
    /// Memory as a device to map (`/dev/dax0.0`).
    Dax,
    /// An NVMe disk.
    Nvme,
}

/// Why an offer cannot be a member now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It, or a part of it, is mounted there.
    Mounted(String),
    /// It, or a part of it, is swap space.
    Swap,
    /// It has partitions.
    Partitioned,
    /// Other devices are built on it: LVM, RAID, encryption.
    Held(Vec<String>),
    /// Its memory was given to the kernel, as that node's or some node's.
    SystemMemory(Option<NodeId>),
    /// Persistent memory in a mode that cannot be mapped, or without a driver.
    Mode(String),
}

/// Returns the offers of the machine: memory by node, then devices by kind and name. `root` is `/`, or holds a recorded machine.
#[must_use]
pub fn offers(root: &Path) -> Vec<Offer> {
    let tree = Tree::new(root);
    let mut offers = memory::offers(&tree);
    let nodes: Vec<NodeId> = offers.iter().filter_map(|offer| offer.home).collect();
    let mut devices = persistent::offers(&tree);
    devices.extend(disks::nvme(&tree));
    if let [only] = nodes[..] {
        for device in &mut devices {
            device.home = device.home.or(Some(only));
        }
    }
    offers.extend(devices);
    // Memory nodes stay ordered by number: a sort that keeps the order of equals.
    offers.sort_by_key(|offer| offer.kind.max(OfferKind::MemoryOnly));
    offers
}

/// The home of a disk or a partition by its device number, as stat(2) tells it of a file; of a device over others (LVM, RAID, encryption)
/// where all of those are. `None` where the machine does not tell. `root` as in [`offers`].
#[must_use]
pub fn home_of_disk(root: &Path, (major, minor): (u32, u32)) -> Option<NodeId> {
    disks::home(&Tree::new(root), Path::new(&format!("sys/dev/block/{major}:{minor}")))
}

/// Use of a disk or a partition by its device number: it, or a part of it, is mounted, swap space or below another device. `None` also where only a
/// program has it open. `root` as in [`offers`].
#[must_use]
pub fn use_of_disk(root: &Path, (major, minor): (u32, u32)) -> Option<InUse> {
    disks::use_of(&Tree::new(root), Path::new(&format!("sys/dev/block/{major}:{minor}")))
}

impl fmt::Display for OfferKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dram => "dram",
            Self::MemoryOnly => "memory-only",
            Self::Pmem => "pmem",
            Self::Dax => "dax",
            Self::Nvme => "nvme",
        })
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(at) => write!(f, "mounted on {at}"),
            Self::Swap => write!(f, "swap space"),
            Self::Partitioned => write!(f, "has partitions"),
            Self::Held(by) => write!(f, "in use by {}", by.join(", ")),
            Self::SystemMemory(Some(node)) => write!(f, "is the memory of {node}"),
            Self::SystemMemory(None) => write!(f, "is system memory"),
            Self::Mode(mode) => write!(f, "cannot be mapped: {mode}"),
        }
    }
}

#[cfg(test)]
mod tests;
