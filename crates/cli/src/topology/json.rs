//! The topology as JSON, `output_version` 1.

use homenode_linux::topology::Source;
use homenode_policy::NodeId;
use homenode_policy::topology::{Cache, Cpu, Device, Latency, LatencySource, Node, NodeKind, Topology};
use serde::Serialize;

/// Output of `homenode topology --json`.
#[derive(Serialize)]
pub(crate) struct Machine<'a> {
    output_version: u32,
    source: String,
    nodes: Vec<NodeReport<'a>>,
    cpus: Vec<CpuReport<'a>>,
    /// The node of every possible CPU, by CPU number.
    cpu_nodes: &'a [NodeId],
    caches: &'a [Cache],
    latency: LatencyReport<'a>,
    /// A queue without `cpus` takes requests of every CPU.
    devices: &'a [Device],
}

#[derive(Serialize)]
struct NodeReport<'a> {
    #[serde(flatten)]
    node: &'a Node,
    kind: NodeKind,
}

#[derive(Serialize)]
struct CpuReport<'a> {
    #[serde(flatten)]
    cpu: &'a Cpu,
    node: Option<NodeId>,
}

/// `matrix[a][b]`: from the a-th to the b-th of `nodes`.
#[derive(Serialize)]
struct LatencyReport<'a> {
    #[serde(flatten)]
    latency: &'a Latency,
    unit: &'static str,
}

pub(crate) fn machine<'a>(topology: &'a Topology, source: &Source) -> Machine<'a> {
    let source = match source {
        Source::Live => "live".to_owned(),
        Source::Xml(path) => path.display().to_string(),
        Source::Synthetic(description) => description.clone(),
    };
    let nodes = topology.nodes().iter();
    let cpus = topology.cpus().iter();
    Machine {
        output_version: 1,
        source,
        nodes: nodes
            .map(|node| NodeReport {
                node,
                kind: node.kind(),
            })
            .collect(),
        cpus: cpus
            .map(|cpu| CpuReport {
                cpu,
                node: topology.cpu_nodes().get(cpu.id.0 as usize).copied(),
            })
            .collect(),
        cpu_nodes: topology.cpu_nodes(),
        caches: topology.caches(),
        latency: LatencyReport {
            latency: topology.latency(),
            unit: match topology.latency().source {
                LatencySource::Hmat | LatencySource::Measured => "ns",
                _ => "relative",
            },
        },
        devices: topology.devices(),
    }
}
