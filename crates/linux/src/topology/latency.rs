//! How far the nodes are from each other: the best the machine tells.
//!
//! In this order: nanoseconds from the heterogeneous memory attribute table, when it speaks of every pair of CPUs and
//! memory (kernels often publish the local values only); a distance matrix, which is the firmware's SLIT, or what
//! somebody measured and noted in the XML file; else distances made up from the tree.

use homenode_policy::topology::{Latency, LatencySource, Node};
use hwlocality::bitmap::BitmapCow;
use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::memory::attribute::{Initiator, MemoryAttribute};
use hwlocality::object::TopologyObject;
use hwlocality::object::distance::{Distances, DistancesKind};
use hwlocality::object::types::ObjectType;
use hwlocality::topology::Topology;
use std::ptr;

/// The scale of SLIT.
const LOCAL: u32 = 10;
/// Distance that Linux assumes between nodes when there is no SLIT.
const REMOTE: u32 = 20;
/// Within a package: what firmware reports for sub-NUMA clusters.
const SAME_PACKAGE: u32 = 12;
/// Within a group of packages, as boards of a large machine are.
const SAME_GROUP: u32 = 16;

/// Latencies from the CPUs of each node to the memory of each; `objects` and `nodes` are in the same order.
pub(super) fn between(machine: &Topology, objects: &[&TopologyObject], nodes: &[Node]) -> Latency {
    let found = attributes(machine, objects, nodes)
        .map(|matrix| (LatencySource::Hmat, matrix))
        .or_else(|| distances(machine, objects));
    let (source, matrix) = found.unwrap_or_else(|| (LatencySource::Assumed, assumed(objects)));
    Latency { source, matrix }
}

/// Read latency of a node's memory from the CPUs nearest to it.
pub(super) fn best_ns(machine: &Topology, object: &TopologyObject) -> Option<u32> {
    let all = values(MemoryAttribute::read_latency(machine), object)
        .or_else(|| values(MemoryAttribute::latency(machine), object))?;
    all.into_iter().min().map(clamp)
}

/// Read bandwidth of a node's memory from the CPUs nearest to it.
pub(super) fn best_mib_per_s(machine: &Topology, object: &TopologyObject) -> Option<u64> {
    let all = values(MemoryAttribute::read_bandwidth(machine), object)
        .or_else(|| values(MemoryAttribute::bandwidth(machine), object))?;
    all.into_iter().max()
}

fn values(attribute: MemoryAttribute<'_>, object: &TopologyObject) -> Option<Vec<u64>> {
    let (_, values) = attribute.initiators(object).ok()?;
    (!values.is_empty()).then_some(values)
}

fn clamp(value: u64) -> u32 {
    value.try_into().unwrap_or(u32::MAX)
}

/// The attribute table, if it knows every pair that can occur: CPUs here, memory there.
fn attributes(machine: &Topology, objects: &[&TopologyObject], nodes: &[Node]) -> Option<Vec<Vec<u32>>> {
    let one_way = |from: usize, to: usize| {
        let mut cpus = CpuSet::new();
        for cpu in &nodes[from].cpus {
            cpus.set(cpu.0 as usize);
        }
        let initiator = || Some(Initiator::CpuSet(BitmapCow::from(&cpus)));
        let value = |attribute: MemoryAttribute<'_>| attribute.value(initiator(), objects[to]).ok().flatten();
        value(MemoryAttribute::read_latency(machine)).or_else(|| value(MemoryAttribute::latency(machine)))
    };
    let mut known = vec![vec![None; nodes.len()]; nodes.len()];
    for (from, row) in known.iter_mut().enumerate() {
        for (to, cell) in row.iter_mut().enumerate() {
            if !nodes[from].cpus.is_empty() && nodes[to].memory_bytes > 0 {
                *cell = Some(clamp(one_way(from, to)?));
            }
        }
    }
    // Pairs that cannot occur (nobody asks from there, or nothing is stored there) still want a number: the way back; else the farthest, and for
    // a node's own a local access somewhere, as in SLIT: others are so many times as far.
    let all = || known.iter().flatten().flatten().copied();
    let (nearest, farthest) = (all().min()?, all().max()?);
    let index = 0..nodes.len();
    let cell = |from: usize, to: usize| {
        let other = if from == to { nearest } else { farthest };
        known[from][to].or(known[to][from]).unwrap_or(other)
    };
    Some(
        index
            .clone()
            .map(|from| index.clone().map(|to| cell(from, to)).collect())
            .collect(),
    )
}

/// The first distance matrix that covers all nodes and means latency; the firmware's own before others.
fn distances(machine: &Topology, objects: &[&TopologyObject]) -> Option<(LatencySource, Vec<Vec<u32>>)> {
    let all = machine.distances_with_type(None, ObjectType::NUMANode).ok()?;
    let mut useful: Vec<_> = all
        .iter()
        .filter(|distances| !distances.kind().contains(DistancesKind::MEANS_BANDWIDTH))
        .filter_map(|distances| {
            let source = if distances.kind().contains(DistancesKind::FROM_USER) {
                LatencySource::Measured
            } else {
                LatencySource::Slit
            };
            Some((source, matrix(distances, objects)?))
        })
        .collect();
    // Somebody who measured and noted it down knows better than the firmware's table.
    useful.sort_by_key(|(source, _)| *source != LatencySource::Measured);
    useful.into_iter().next()
}

fn matrix(distances: &Distances<'_>, objects: &[&TopologyObject]) -> Option<Vec<Vec<u32>>> {
    let count = distances.num_objects();
    let place = |object: &TopologyObject| {
        distances
            .objects()
            .position(|other| other.is_some_and(|other| ptr::eq(other, object)))
    };
    let places: Vec<usize> = objects.iter().map(|object| place(object)).collect::<Option<_>>()?;
    let values = distances.distances();
    let cell = |from: usize, to: usize| clamp(values[from * count + to]);
    Some(
        places
            .iter()
            .map(|from| places.iter().map(|to| cell(*from, *to)).collect())
            .collect(),
    )
}

/// Distances by what two nodes have in common.
fn assumed(objects: &[&TopologyObject]) -> Vec<Vec<u32>> {
    let row = |a: &TopologyObject| {
        let cell = |b: &&TopologyObject| if ptr::eq(a, *b) { LOCAL } else { apart(a, b) };
        objects.iter().map(cell).collect()
    };
    objects.iter().map(|object| row(object)).collect()
}

fn apart(a: &TopologyObject, b: &TopologyObject) -> u32 {
    let Some(common) = a.first_common_ancestor(b) else {
        return REMOTE;
    };
    let package = ObjectType::Package;
    if common.object_type() == package || common.first_ancestor_with_type(package).is_some() {
        SAME_PACKAGE
    } else if common.object_type() == ObjectType::Group {
        SAME_GROUP
    } else {
        REMOTE
    }
}
