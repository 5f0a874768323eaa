//! Memory of the nodes.

use super::{Offer, OfferKind};
use crate::topology::sysfs::{Tree, meminfo_bytes, number_after};
use homenode_policy::NodeId;

const NODES: &str = "sys/devices/system/node";

/// The nodes that have memory, ascending. A kernel without NUMA has one node, 0. The figures of the only node with memory
/// are the machine's: kernels that set memory up on demand count it for the node only when it is first needed.
pub(super) fn offers(tree: &Tree) -> Vec<Offer> {
    let directories = tree.names(NODES).into_iter();
    let nodes: Vec<u16> = directories
        .filter_map(|name| number_after(&name, "node")?.try_into().ok())
        .collect();
    let one = |number: &u16| {
        let directory = format!("{NODES}/node{number}");
        let has_cpus = tree
            .text(format!("{directory}/cpulist"))
            .is_some_and(|list| !list.is_empty());
        let kind = if has_cpus {
            OfferKind::Dram
        } else {
            OfferKind::MemoryOnly
        };
        offer(NodeId(*number), kind, &tree.text(format!("{directory}/meminfo"))?)
    };
    let offers: Vec<Offer> = nodes.iter().filter_map(one).collect();
    let machine = tree.text("proc/meminfo");
    match (&offers[..], machine) {
        ([only], Some(machine)) => {
            let home = only.home.expect("memory of a node has that node as home");
            offer(home, only.kind, &machine).into_iter().collect()
        }
        ([], Some(machine)) if nodes.is_empty() => offer(NodeId(0), OfferKind::Dram, &machine).into_iter().collect(),
        _ => offers,
    }
}

/// Returns the offer of a node by its meminfo file; `None` without memory. Clean page cache counts as free.
fn offer(home: NodeId, kind: OfferKind, meminfo: &str) -> Option<Offer> {
    let field = |name: &str| meminfo_bytes(meminfo, name).unwrap_or(0);
    let bytes = field("MemTotal");
    let cache = field("Active(file)").saturating_add(field("Inactive(file)"));
    let dirty = field("Dirty").saturating_add(field("Writeback"));
    let free_bytes = field("MemFree").saturating_add(cache.saturating_sub(dirty)).min(bytes);
    (bytes > 0).then(|| Offer {
        name: format!("node{}", home.0),
        kind,
        home: Some(home),
        bytes,
        free_bytes: Some(free_bytes),
        path: None,
        in_use: None,
    })
}
