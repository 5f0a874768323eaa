//! Settings of the kernel, and programs that place things themselves.

use super::memory::named_counts;
use crate::affinity::act::conflicts::conflicts;
use crate::topology::sysfs::Tree;
use homenode_policy::doctor::{Balancing, Helper, ZoneReclaim};
use homenode_policy::topology::{Device, DeviceKind, Topology};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const BALANCING: &str = "proc/sys/kernel/numa_balancing";
pub(super) const ZONE_RECLAIM: &str = "proc/sys/vm/zone_reclaim_mode";
const COUNTS: &str = "proc/vmstat";
const HUGE_TMPFS: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
const FUSE_RINGS: &str = "sys/module/fuse/parameters/enable_uring";
const CPUS: &str = "proc/cpuinfo";

/// Faults and moved pages since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BalancingCounts {
    hint_faults: u64,
    migrated_pages: u64,
}

pub(super) fn balancing_counts(tree: &Tree) -> BalancingCounts {
    let counts = named_counts(&tree.text(COUNTS).unwrap_or_default());
    let count = |name| counts.get(name).copied().unwrap_or(0);
    BalancingCounts {
        hint_faults: count("numa_hint_faults"),
        migrated_pages: count("numa_pages_migrated"),
    }
}

/// Returns the state of NUMA balancing; `None` of kernels that do not balance.
pub(super) fn balancing(tree: &Tree, before: &BalancingCounts) -> Option<Balancing> {
    let mode: u32 = tree.number(BALANCING)?;
    let now = balancing_counts(tree);
    Some(Balancing {
        on: mode != 0,
        hint_faults: now.hint_faults.saturating_sub(before.hint_faults),
        migrated_pages: now.migrated_pages.saturating_sub(before.migrated_pages),
    })
}

/// Returns mode and use of zone reclaim; `None` of kernels without NUMA.
pub(super) fn zone_reclaim(tree: &Tree) -> Option<ZoneReclaim> {
    let mode = tree.number(ZONE_RECLAIM)?;
    let counts = named_counts(&tree.text(COUNTS).unwrap_or_default());
    let count = |name| counts.get(name).copied().unwrap_or(0_u64);
    let reclaims = count("zone_reclaim_success").saturating_add(count("zone_reclaim_failed"));
    Some(ZoneReclaim { mode, reclaims })
}

/// The choice is in brackets: `always within_size advise [never] deny force`.
pub(super) fn huge_tmpfs_denied(tree: &Tree) -> Option<bool> {
    Some(tree.text(HUGE_TMPFS)?.contains("[deny]"))
}

pub(super) fn fuse_rings(tree: &Tree) -> Option<bool> {
    match &*tree.text(FUSE_RINGS)? {
        "Y" => Some(true),
        "N" => Some(false),
        _ => None,
    }
}

/// Finds the programs that acting on a plan gives way to. The names of processes are read through the tree, so that a
/// recording has these names; a recording has none of the files that tell tuned's profile, so that tuned is not found there.
pub(super) fn helpers(tree: &Tree) -> Vec<Helper> {
    let mut processes = Vec::new();
    // Without /proc there are no processes to be found.
    let _ = tree.numbers("proc", &mut processes);
    for process in processes {
        tree.text(format!("proc/{process}/comm"));
    }
    let mut found: Vec<Helper> = conflicts(&tree.path(""))
        .into_iter()
        .map(|conflict| conflict.who)
        .collect();
    found.dedup();
    found
}

/// x86 tells; other architectures leave it open.
pub(super) fn is_virtual(tree: &Tree) -> Option<bool> {
    let text = tree.text(CPUS)?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags"))?;
    Some(flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// Returns the PCI addresses of devices without a known home, where an operator can tell the kernel the home.
pub(super) fn addresses(tree: &Tree, topology: &Topology) -> BTreeMap<String, String> {
    let homeless = topology.devices().iter().filter(|device| device.home.is_none());
    let address = |device: &Device| {
        let place = match device.kind {
            DeviceKind::Network => format!("sys/class/net/{}/device", device.name),
            _ => format!("sys/block/{}", device.name),
        };
        let above = tree.above(place);
        let address = above.iter().filter_map(|path| pci_address(path)).next()?;
        Some((device.name.clone(), address.to_owned()))
    };
    homeless.filter_map(address).collect()
}

/// `0000:3b:00.0`, the last part of a path.
fn pci_address(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let is_hexadecimal = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    (parts.len() == 4 && parts.iter().all(is_hexadecimal)).then_some(name)
}
