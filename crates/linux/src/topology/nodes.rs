//! Nodes as the kernel lists them, and the figures of their memory.

use super::sysfs::{Tree, number_after, parse_list};
use homenode_policy::NodeId;
use std::path::Path;

pub(crate) const NODES: &str = "sys/devices/system/node";

/// The nodes with an entry `nodeN` in a directory, ascending.
pub(crate) fn ids(tree: &Tree, directory: impl AsRef<Path>) -> Vec<NodeId> {
    let number = |name: &String| {
        let number = number_after(name, "node")?.try_into().ok()?;
        (*name == format!("node{number}")).then_some(NodeId(number))
    };
    tree.names(directory).iter().filter_map(number).collect()
}

/// Reads a list of nodes such as `0-3,8`.
pub(crate) fn list(text: &str) -> Option<Vec<NodeId>> {
    let node = |number| u16::try_from(number).ok().map(NodeId);
    parse_list(text.trim())?.into_iter().map(node).collect()
}

/// Whether a node is told to have memory only.
pub(crate) fn has_no_cpus(tree: &Tree, node: NodeId) -> bool {
    let cpus = tree.text(format!("{NODES}/node{}/cpulist", node.0));
    cpus.is_some_and(|list| list.is_empty())
}

/// The nodes with memory, ascending, and its figures. A kernel without NUMA has one node, 0. The figures of the only node with memory are
/// the machine's: kernels that set memory up on demand count it for the node only when it is first needed.
pub(crate) fn with_memory(tree: &Tree) -> Vec<(NodeId, Meminfo)> {
    let ids = ids(tree, NODES);
    let own = |node: &NodeId| {
        let text = tree.text(format!("{NODES}/node{}/meminfo", node.0))?;
        Some((*node, Meminfo::parse(&text))).filter(|(_, info)| info.total > 0)
    };
    let mut found: Vec<(NodeId, Meminfo)> = ids.iter().filter_map(own).collect();
    if ids.is_empty() {
        found.push((NodeId(0), Meminfo::default()));
    }
    if let ([(_, only)], Some(machine)) = (&mut found[..], tree.text("proc/meminfo")) {
        only.note(&machine);
    }
    found.retain(|(_, info)| info.total > 0);
    found
}

/// The figures of a meminfo file, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meminfo {
    pub(crate) total: u64,
    pub(crate) free: u64,
    /// Page cache that can be dropped once it is written.
    pub(crate) file: u64,
    pub(crate) dirty: u64,
    pub(crate) slab: u64,
    /// Page cache in which files in memory are counted, too; of a node only.
    pub(crate) file_pages: u64,
    pub(crate) shmem: u64,
}

impl Meminfo {
    /// Reads the lines of a node's meminfo (`Node 0 MemFree: 8 kB`) or of the machine's (`MemFree: 8 kB`).
    pub(crate) fn parse(text: &str) -> Self {
        let mut info = Self::default();
        info.note(text);
        info
    }

    /// Takes over the figures that are in the text.
    fn note(&mut self, text: &str) {
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let number = value.split_whitespace().next().and_then(|number| number.parse().ok());
            let bytes = number.unwrap_or(0_u64).saturating_mul(1024);
            match name.split_whitespace().next_back().unwrap_or(name) {
                "MemTotal" => self.total = bytes,
                "MemFree" => self.free = bytes,
                // Each second one follows the first in all kernels.
                "Active(file)" => self.file = bytes,
                "Inactive(file)" => self.file = self.file.saturating_add(bytes),
                "Dirty" => self.dirty = bytes,
                "Writeback" => self.dirty = self.dirty.saturating_add(bytes),
                "SReclaimable" => self.slab = bytes,
                "FilePages" => self.file_pages = bytes,
                "Shmem" => self.shmem = bytes,
                _ => {}
            }
        }
    }

    /// Page cache that can be dropped.
    pub(crate) fn clean_cache(&self) -> u64 {
        self.file.saturating_sub(self.dirty)
    }
}
