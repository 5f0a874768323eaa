//! Machines and their members, for the tests beside this.

use crate::facts;
use homenode_linux::topology::{Source, read};
use homenode_policy::pool::{Monitor, Thresholds};
use homenode_policy::topology::Topology;
use homenode_policy::{MemberId, NodeId};
use std::path::{Path, PathBuf};

pub(crate) fn file(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies");
    directory.join(name).with_extension("xml")
}

pub(crate) fn machine(name: &str) -> Topology {
    read(&Source::Xml(file(name))).expect("recorded machines can be read")
}

/// Every machine with its name.
pub(crate) fn machines() -> impl Iterator<Item = (String, Topology)> {
    facts::machines().into_iter().map(|facts| {
        let topology = machine(&facts.name);
        (facts.name, topology)
    })
}

/// Returns a monitor with one member on each node with memory, with the node's number as its id.
pub(crate) fn monitor(machine: &Topology) -> Monitor {
    let mut monitor = Monitor::new(&machine.node_ids(), &machine.latency().matrix, Thresholds::default());
    for node in machine.nodes().iter().filter(|node| node.memory_bytes > 0) {
        monitor.add(MemberId(node.id.0), node.id);
    }
    monitor.check_invariants();
    monitor
}

/// The homes that a writer on `asking` gets as one member after the other becomes fat.
pub(crate) fn filled_up(monitor: &mut Monitor, asking: NodeId) -> Vec<u16> {
    let mut homes = Vec::new();
    while let Some(target) = monitor.target(asking) {
        homes.push(target.0);
        assert!(monitor.update(target, 99, 100), "{target} becomes fat");
    }
    for home in &homes {
        assert!(
            monitor.update(MemberId(*home), 0, 100),
            "files deleted: a candidate again"
        );
    }
    homes
}

/// Model of a pool of one member a node, in the slowest and plainest way. Bytes are counted in runs of 2 MiB.
pub(crate) struct Model {
    latency: Vec<(NodeId, Vec<(NodeId, u32)>)>,
    pub(crate) members: Vec<ModelMember>,
}

#[derive(Debug)]
pub(crate) struct ModelMember {
    pub(crate) home: NodeId,
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) fat: bool,
}

impl Model {
    /// Empty members; `runs` tells their sizes.
    pub(crate) fn new(machine: &Topology, runs: impl Fn(u64) -> u64) -> Self {
        let ids = machine.node_ids();
        let row = |row: &Vec<u32>| ids.iter().copied().zip(row.iter().copied()).collect();
        let with_memory = machine.nodes().iter().filter(|node| node.memory_bytes > 0);
        Self {
            latency: ids
                .iter()
                .copied()
                .zip(machine.latency().matrix.iter().map(row))
                .collect(),
            members: with_memory
                .map(|node| ModelMember {
                    home: node.id,
                    capacity: runs(node.memory_bytes),
                    used: 0,
                    fat: false,
                })
                .collect(),
        }
    }

    fn latency(&self, from: NodeId, to: NodeId) -> u32 {
        let row = self
            .latency
            .iter()
            .find(|(node, _)| *node == from)
            .expect("a known node");
        row.1.iter().find(|(node, _)| *node == to).expect("a known node").1
    }

    /// The home that a writer on `asking` gets: its own, else the nearest with room, of equals the lowest.
    pub(crate) fn target(&self, asking: NodeId) -> Option<NodeId> {
        let mut best: Option<NodeId> = None;
        for member in self.members.iter().filter(|member| !member.fat) {
            if member.home == asking {
                return Some(asking);
            }
            let nearer = |best: NodeId| {
                let (here, there) = (self.latency(asking, member.home), self.latency(asking, best));
                here < there || here == there && member.home < best
            };
            if best.is_none_or(nearer) {
                best = Some(member.home);
            }
        }
        best
    }

    pub(crate) fn member(&mut self, home: NodeId) -> &mut ModelMember {
        self.members
            .iter_mut()
            .find(|member| member.home == home)
            .expect("the node has a member")
    }
}

impl ModelMember {
    /// Fat above 98 %, until below 95 %.
    pub(crate) fn set_used(&mut self, used: u64) {
        self.used = used;
        let percent = used * 100;
        self.fat = if self.fat {
            percent >= 95 * self.capacity
        } else {
            percent > 98 * self.capacity
        };
    }
}
