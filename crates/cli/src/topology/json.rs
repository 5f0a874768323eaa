//! The topology as JSON, `output_version` 1.

use homenode_linux::topology::Source;
use homenode_policy::topology::{CacheKind, DeviceKind, LatencySource, NodeKind, Topology};
use homenode_policy::{CpuId, NodeId};
use serde::Serialize;

/// Output of `homenode topology --json`.
#[derive(Serialize)]
pub(crate) struct Machine<'a> {
    output_version: u32,
    source: String,
    nodes: Vec<Node<'a>>,
    cpus: Vec<Cpu>,
    /// The node of every possible CPU, by CPU number.
    cpu_nodes: Vec<u16>,
    caches: Vec<Cache>,
    latency: Latency<'a>,
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
struct Node<'a> {
    node: u16,
    kind: &'static str,
    memory_bytes: u64,
    cpus: Vec<u32>,
    technology: Option<&'a str>,
    latency_ns: Option<u32>,
    bandwidth_mib_per_s: Option<u64>,
}

#[derive(Serialize)]
struct Cpu {
    cpu: u32,
    node: Option<u16>,
    core: Option<u32>,
    package: Option<u32>,
    online: bool,
}

#[derive(Serialize)]
struct Cache {
    level: u8,
    kind: &'static str,
    bytes: u64,
    cpus: Vec<u32>,
}

/// `matrix[a][b]`: from the a-th to the b-th of `nodes`.
#[derive(Serialize)]
struct Latency<'a> {
    source: &'static str,
    unit: &'static str,
    matrix: &'a [Vec<u32>],
}

#[derive(Serialize)]
struct Device<'a> {
    name: &'a str,
    kind: &'static str,
    home: Option<u16>,
    queues: Vec<Queue<'a>>,
}

/// Without `cpus`, every CPU may submit to it.
#[derive(Serialize)]
struct Queue<'a> {
    name: &'a str,
    cpus: Vec<u32>,
}

pub(super) fn of(topology: &Topology, source: &Source) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&machine(topology, source))? + "\n")
}

pub(crate) fn machine<'a>(topology: &'a Topology, source: &Source) -> Machine<'a> {
    let source = match source {
        Source::Live => "live".to_owned(),
        Source::Xml(path) => path.display().to_string(),
        Source::Synthetic(description) => description.clone(),
    };
    Machine {
        output_version: 1,
        source,
        nodes: nodes(topology),
        cpus: cpus(topology),
        cpu_nodes: topology.cpu_nodes().iter().map(|node| node.0).collect(),
        caches: caches(topology),
        latency: Latency {
            source: latency_source(topology.latency().source),
            unit: match topology.latency().source {
                LatencySource::Hmat | LatencySource::Measured => "ns",
                _ => "relative",
            },
            matrix: &topology.latency().matrix,
        },
        devices: devices(topology),
    }
}

fn numbers(cpus: &[CpuId]) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}

fn nodes(topology: &Topology) -> Vec<Node<'_>> {
    let nodes = topology.nodes().iter().map(|node| Node {
        node: node.id.0,
        kind: kind(node.kind()),
        memory_bytes: node.memory_bytes,
        cpus: numbers(&node.cpus),
        technology: node.technology.as_deref(),
        latency_ns: node.latency_ns,
        bandwidth_mib_per_s: node.bandwidth_mib_per_s,
    });
    nodes.collect()
}

fn cpus(topology: &Topology) -> Vec<Cpu> {
    let cpus = topology.cpus().iter().map(|cpu| Cpu {
        cpu: cpu.id.0,
        node: topology.cpu_nodes().get(cpu.id.0 as usize).map(|node| node.0),
        core: cpu.core,
        package: cpu.package,
        online: cpu.online,
    });
    cpus.collect()
}

fn caches(topology: &Topology) -> Vec<Cache> {
    let caches = topology.caches().iter().map(|cache| Cache {
        level: cache.level,
        kind: match cache.kind {
            CacheKind::Unified => "unified",
            CacheKind::Data => "data",
            CacheKind::Instruction => "instruction",
        },
        bytes: cache.bytes,
        cpus: numbers(&cache.cpus),
    });
    caches.collect()
}

fn devices(topology: &Topology) -> Vec<Device<'_>> {
    let devices = topology.devices().iter().map(|device| Device {
        name: &device.name,
        kind: device_kind(device.kind),
        home: device.home.map(|NodeId(home)| home),
        queues: device
            .queues
            .iter()
            .map(|queue| Queue {
                name: &queue.name,
                cpus: numbers(&queue.cpus),
            })
            .collect(),
    });
    devices.collect()
}

pub(super) fn kind(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Dram => "dram",
        NodeKind::MemoryOnly => "memory-only",
        NodeKind::CpuOnly => "cpu-only",
        NodeKind::Empty => "empty",
    }
}

pub(super) fn device_kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Block => "block",
        DeviceKind::Pmem => "pmem",
        DeviceKind::Network => "network",
        DeviceKind::Accelerator => "accelerator",
    }
}

fn latency_source(source: LatencySource) -> &'static str {
    match source {
        LatencySource::Hmat => "hmat",
        LatencySource::Slit => "slit",
        LatencySource::Measured => "measured",
        LatencySource::Assumed => "assumed",
    }
}
