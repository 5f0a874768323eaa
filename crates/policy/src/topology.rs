//! The machine: nodes, CPUs, caches, devices and how far they are from each other.
//!
//! A [`Topology`] is checked once, in [`Topology::new`]; whoever holds one may rely on it: every node a CPU, a device or
//! the latency matrix speaks of exists, and no CPU has two nodes. It does not change; a machine that does is read again.

mod parts;

use crate::{CpuId, NodeId};
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
pub use parts::{
    Cache, CacheKind, Cpu, Device, DeviceKind, DeviceQueue, Latency, LatencySource, Node, NodeKind, Parts,
};

/// CPU numbers are below this. Linux for x86 goes up to 8192; a file that names more is broken.
pub const CPUS_MAX: u32 = 1 << 16;

/// A machine whose description was found consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    parts: Parts,
    cpu_nodes: Vec<NodeId>,
}

impl Topology {
    /// Checks `parts` and sorts everything by number or name.
    ///
    /// # Errors
    /// The first thing that does not fit together.
    pub fn new(mut parts: Parts) -> Result<Self, TopologyError> {
        sort(&mut parts)?;
        check_nodes(&parts.nodes)?;
        check_cpus(&parts)?;
        check_devices(&parts)?;
        let cpu_nodes = cpu_nodes(&parts);
        Ok(Self { parts, cpu_nodes })
    }

    /// The nodes, ascending. At least one.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.parts.nodes
    }

    /// The numbers of the nodes, ascending: the rows and columns of [`Topology::latency`].
    #[must_use]
    pub fn node_ids(&self) -> Vec<NodeId> {
        self.parts.nodes.iter().map(|node| node.id).collect()
    }

    /// The node with that number.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.parts.nodes.iter().find(|node| node.id == id)
    }

    /// The known CPUs, ascending.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.parts.cpus
    }

    /// The local node of every possible CPU, by CPU number. A CPU that no node claims (offline since boot, or not
    /// plugged yet) gets the node of the nearest lower numbered CPU that has one, else of the nearest higher one, else
    /// the first node with memory.
    #[must_use]
    pub fn cpu_nodes(&self) -> &[NodeId] {
        &self.cpu_nodes
    }

    /// The caches, nearest to the cores first.
    #[must_use]
    pub fn caches(&self) -> &[Cache] {
        &self.parts.caches
    }

    /// How far the nodes are from each other, in the order of [`Topology::nodes`].
    #[must_use]
    pub fn latency(&self) -> &Latency {
        &self.parts.latency
    }

    /// The devices by kind and name.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.parts.devices
    }
}

/// Why a description is no topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is not one node.
    NoNode,
    /// Two nodes have this number.
    NodeTwice(NodeId),
    /// Two CPUs have this number.
    CpuTwice(CpuId),
    /// Two nodes claim this CPU.
    CpuOfTwoNodes(CpuId),
    /// The CPU's number is not below the number of possible CPUs, or that is above [`CPUS_MAX`].
    CpuNotPossible(CpuId),
    /// A node, cache or queue names a CPU that is not there.
    UnknownCpu(CpuId),
    /// A device is at home on a node that is not there.
    UnknownHome(NodeId),
    /// The latency matrix does not have a row and a column for each node.
    LatencyShape,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => write!(f, "there is no NUMA node"),
            Self::NodeTwice(node) => write!(f, "{node} appears twice"),
            Self::CpuTwice(cpu) => write!(f, "CPU {} appears twice", cpu.0),
            Self::CpuOfTwoNodes(cpu) => write!(f, "two nodes claim CPU {}", cpu.0),
            Self::CpuNotPossible(cpu) => write!(f, "CPU {} is beyond the possible CPUs", cpu.0),
            Self::UnknownCpu(cpu) => write!(f, "CPU {} is named but does not exist", cpu.0),
            Self::UnknownHome(node) => write!(f, "a device is at home on {node}, which does not exist"),
            Self::LatencyShape => write!(f, "the latency matrix does not have a row and a column for each node"),
        }
    }
}

impl core::error::Error for TopologyError {}

/// Sorts everything; rows and columns of the matrix follow their nodes.
fn sort(parts: &mut Parts) -> Result<(), TopologyError> {
    let count = parts.nodes.len();
    let matrix = &parts.latency.matrix;
    if matrix.len() != count || matrix.iter().any(|row| row.len() != count) {
        return Err(TopologyError::LatencyShape);
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|index| parts.nodes[*index].id);
    parts.latency.matrix = order
        .iter()
        .map(|row| order.iter().map(|column| matrix[*row][*column]).collect())
        .collect();
    parts.nodes.sort_by_key(|node| node.id);
    parts.cpus.sort_by_key(|cpu| cpu.id);
    for node in &mut parts.nodes {
        node.cpus.sort_unstable();
    }
    for cache in &mut parts.caches {
        cache.cpus.sort_unstable();
    }
    parts
        .caches
        .sort_by(|a, b| (a.level, a.kind, &a.cpus).cmp(&(b.level, b.kind, &b.cpus)));
    parts.devices.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    Ok(())
}

fn check_nodes(nodes: &[Node]) -> Result<(), TopologyError> {
    if nodes.is_empty() {
        return Err(TopologyError::NoNode);
    }
    match nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
        Some(pair) => Err(TopologyError::NodeTwice(pair[0].id)),
        None => Ok(()),
    }
}

fn check_cpus(parts: &Parts) -> Result<(), TopologyError> {
    if let Some(pair) = parts.cpus.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(TopologyError::CpuTwice(pair[0].id));
    }
    let possible = parts.possible_cpus.min(CPUS_MAX);
    if possible < parts.possible_cpus {
        return Err(TopologyError::CpuNotPossible(CpuId(parts.possible_cpus - 1)));
    }
    if let Some(cpu) = parts.cpus.last().filter(|cpu| cpu.id.0 >= possible) {
        return Err(TopologyError::CpuNotPossible(cpu.id));
    }
    let known: BTreeSet<CpuId> = parts.cpus.iter().map(|cpu| cpu.id).collect();
    let mut claimed = BTreeSet::new();
    for cpu in parts.nodes.iter().flat_map(|node| &node.cpus) {
        if !known.contains(cpu) {
            return Err(TopologyError::UnknownCpu(*cpu));
        }
        if !claimed.insert(*cpu) {
            return Err(TopologyError::CpuOfTwoNodes(*cpu));
        }
    }
    let unknown = parts
        .caches
        .iter()
        .flat_map(|cache| &cache.cpus)
        .find(|cpu| !known.contains(cpu));
    unknown.map_or(Ok(()), |cpu| Err(TopologyError::UnknownCpu(*cpu)))
}

fn check_devices(parts: &Parts) -> Result<(), TopologyError> {
    for device in &parts.devices {
        let known = |home: &NodeId| parts.nodes.iter().any(|node| node.id == *home);
        if let Some(home) = device.home.filter(|home| !known(home)) {
            return Err(TopologyError::UnknownHome(home));
        }
        // Kernels map CPUs to queues that are possible and not there yet.
        let mut cpus = device.queues.iter().flat_map(|queue| &queue.cpus);
        if let Some(cpu) = cpus.find(|cpu| cpu.0 >= parts.possible_cpus) {
            return Err(TopologyError::UnknownCpu(*cpu));
        }
    }
    Ok(())
}

/// The rule of [`Topology::cpu_nodes`].
fn cpu_nodes(parts: &Parts) -> Vec<NodeId> {
    let mut claimed: Vec<Option<NodeId>> = vec![None; parts.possible_cpus as usize];
    for node in &parts.nodes {
        for cpu in &node.cpus {
            claimed[cpu.0 as usize] = Some(node.id);
        }
    }
    let with_memory = parts.nodes.iter().find(|node| node.memory_bytes > 0);
    let last_resort = with_memory.unwrap_or(&parts.nodes[0]).id;
    let mut nearest = claimed.iter().flatten().next().copied().unwrap_or(last_resort);
    claimed
        .into_iter()
        .map(|claimed| {
            nearest = claimed.unwrap_or(nearest);
            nearest
        })
        .collect()
}

#[cfg(test)]
mod tests;
