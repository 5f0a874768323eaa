//! Memory of the nodes.

use super::{Offer, OfferKind};
use crate::topology::nodes::{self, Meminfo};
use crate::topology::sysfs::Tree;
use homenode_policy::NodeId;

/// The nodes that have memory, ascending. Clean page cache counts as free.
pub(super) fn offers(tree: &Tree) -> Vec<Offer> {
    let offer = |(home, info): (NodeId, Meminfo)| Offer {
        name: format!("node{}", home.0),
        kind: if nodes::has_no_cpus(tree, home) {
            OfferKind::MemoryOnly
        } else {
            OfferKind::Dram
        },
        home: Some(home),
        bytes: info.total,
        free_bytes: Some(info.free.saturating_add(info.clean_cache()).min(info.total)),
        path: None,
        in_use: None,
    };
    nodes::with_memory(tree).into_iter().map(offer).collect()
}
