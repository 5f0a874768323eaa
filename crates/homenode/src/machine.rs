//! This machine, as far as a pool needs to know it.

use crate::{CpuId, Error, NodeId};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::pool::Machine as EngineMachine;
use homenode_linux::topology;

/// Files that the machine may have open at a time: a file of the kernel is one of them, and other programs want theirs.
fn open_files_max() -> u64 {
    let read = std::fs::read_to_string("/proc/sys/fs/file-max").ok();
    read.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX)
}

/// Memory is mapped, given back and made durable in blocks.
fn require_pages(bytes: usize) -> Result<(), Error> {
    match bytes {
        BLOCK_BYTES => Ok(()),
        other => Err(Error::PageSize(other)),
    }
}

/// The nodes of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) engine: EngineMachine,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) cpus: Vec<CpuId>,
    pub(crate) memory_bytes: u64,
}

impl Machine {
    /// Reads the running machine, for a pool of at most `files_max` files, or as many as the machine may have.
    pub(crate) fn read(files_max: Option<u64>) -> Result<Self, Error> {
        require_pages(rustix::param::page_size())?;
        let topology = topology::read(&topology::Source::Live)?;
        let allowed = homenode_linux::memory::allowed_nodes();
        let node = |node: &homenode_policy::topology::Node| Node {
            id: node.id,
            cpus: node.cpus.clone(),
            // What the kernel says now: a node's figure in the topology may be from before memory was brought online. None where this process
            // may not take any: members would lie elsewhere, and nobody would say so.
            memory_bytes: match &allowed {
                Some(allowed) if !allowed.contains(&node.id) => 0,
                _ => homenode_linux::memory::total_bytes(node.id).unwrap_or(node.memory_bytes),
            },
        };
        let nodes: Vec<Node> = topology.nodes().iter().map(node).collect();
        let memory_bytes: u64 = nodes.iter().map(|node| node.memory_bytes).sum();
        let engine = EngineMachine {
            cpu_nodes: topology.cpu_nodes().to_vec(),
            nodes: topology.node_ids(),
            latency: topology.latency().matrix.clone(),
            // What one user may have is half of it.
            files_max: files_max.unwrap_or_else(|| (memory_bytes / 2048).min(open_files_max() / 2)),
        };
        Ok(Self { engine, nodes })
    }

    /// The nodes with memory, ascending.
    pub(crate) fn with_memory(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.memory_bytes > 0)
    }

    /// Whether all CPUs and all memory are on one node.
    pub(crate) fn has_one_node(&self) -> bool {
        self.nodes.len() < 2
    }

    pub(crate) fn cpus_of(&self, id: NodeId) -> &[CpuId] {
        let node = self.nodes.iter().find(|node| node.id == id);
        node.map_or(&[], |node| &node.cpus)
    }

    /// The node with that number, if it has memory.
    pub(crate) fn node(&self, id: NodeId) -> Result<&Node, Error> {
        self.with_memory()
            .find(|node| node.id == id)
            .ok_or_else(|| Error::UnknownNode {
                node: id,
                known: self.with_memory().map(|node| node.id).collect(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_pages_are_refused() {
        assert!(require_pages(4096).is_ok());
        let told = require_pages(65_536).map_err(|error| error.to_string());
        assert!(told.is_err_and(|told| told.contains("65536")));
    }
}
