//! From hwloc's tree of objects to our lists of parts.

use super::latency;
use homenode_policy::topology::{Cache, CacheKind, Cpu, Device, DeviceKind, Node, Parts};
use homenode_policy::{CpuId, NodeId};
use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::errors::RawHwlocError;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::{CacheType, OSDeviceType, ObjectType};
use hwlocality::topology::Topology;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Loads everything: also CPUs and nodes that this process may not use (others use the filesystem), and devices.
pub(super) fn load(builder: TopologyBuilder) -> Result<Topology, RawHwlocError> {
    builder
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .expect("INCLUDE_DISALLOWED is valid alone")
        .with_io_type_filter(TypeFilter::KeepImportant)
        .expect("KeepImportant is valid for devices")
        .build()
}

/// All that hwloc knows about the machine.
pub(super) fn parts(machine: &Topology) -> Parts {
    let objects = node_objects(machine);
    let cpu_homes = cpu_homes(&objects);
    let nodes: Vec<Node> = objects.iter().map(|object| node(machine, object, &cpu_homes)).collect();
    let cpus = cpus(machine);
    Parts {
        possible_cpus: cpus.iter().map(|cpu| cpu.id.0 + 1).max().unwrap_or(0),
        latency: latency::between(machine, &objects, &nodes),
        caches: caches(machine),
        devices: devices(machine, &nodes, &cpu_homes),
        nodes,
        cpus,
    }
}

/// The nodes that can be named by a kernel: numbers beyond 16 bits do not occur.
fn node_objects(machine: &Topology) -> Vec<&TopologyObject> {
    let objects = machine.objects_with_type(ObjectType::NUMANode);
    objects.filter(|object| id(object).is_some()).collect()
}

pub(super) fn id(object: &TopologyObject) -> Option<NodeId> {
    object.os_index()?.try_into().ok().map(NodeId)
}

/// CPU numbers of a set; an infinite set counts as empty.
pub(super) fn numbers(set: impl Deref<Target = CpuSet>) -> Vec<CpuId> {
    if set.weight().is_none() {
        return Vec::new();
    }
    let indices = set.iter_set().map(usize::from);
    indices.filter_map(|index| index.try_into().ok().map(CpuId)).collect()
}

/// Gives each CPU its one local node. hwloc may call several nodes local to a CPU: its DRAM, HBM beside it, a CXL
/// expander of the whole package. The kernel counts the CPU to the DRAM, which is the most local one, the one without a
/// special technology, the one with the lowest number, in this order.
fn cpu_homes(objects: &[&TopologyObject]) -> BTreeMap<CpuId, NodeId> {
    let mut ranked: Vec<_> = objects
        .iter()
        .filter_map(|object| {
            let cpus = numbers(object.complete_cpuset()?);
            let special = technology(object).is_some_and(|technology| technology != "DRAM" && technology != "DDR");
            Some((special, cpus.len(), id(object)?, cpus))
        })
        .collect();
    ranked.sort();
    let mut homes = BTreeMap::new();
    for (special, _, node, cpus) in ranked {
        // Where special memory is all there is (HBM-only machines), its CPUs are its own.
        for cpu in cpus {
            if !special || !homes.contains_key(&cpu) {
                homes.entry(cpu).or_insert(node);
            }
        }
    }
    homes
}

fn technology(object: &TopologyObject) -> Option<String> {
    let text = object.subtype()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn node(machine: &Topology, object: &TopologyObject, cpu_homes: &BTreeMap<CpuId, NodeId>) -> Node {
    let id = id(object).expect("nodes without an id were filtered out above");
    let memory_bytes = match object.attributes() {
        Some(ObjectAttributes::NUMANode(attributes)) => attributes.local_memory().map_or(0, u64::from),
        _ => 0,
    };
    let cpus = cpu_homes.iter().filter(|(_, home)| **home == id).map(|(cpu, _)| *cpu);
    Node {
        id,
        cpus: cpus.collect(),
        memory_bytes,
        technology: technology(object),
        latency_ns: latency::best_ns(machine, object),
        bandwidth_mib_per_s: latency::best_mib_per_s(machine, object),
    }
}

fn cpus(machine: &Topology) -> Vec<Cpu> {
    let number = |object: &TopologyObject| object.logical_index().try_into().ok();
    let mut known: BTreeMap<CpuId, Cpu> = BTreeMap::new();
    for id in numbers(machine.complete_cpuset()) {
        let offline = Cpu {
            id,
            core: None,
            package: None,
            online: false,
        };
        known.insert(id, offline);
    }
    for unit in machine.objects_with_type(ObjectType::PU) {
        let Some(id) = unit.os_index().and_then(|index| index.try_into().ok()).map(CpuId) else {
            continue;
        };
        let running = Cpu {
            id,
            core: unit.first_ancestor_with_type(ObjectType::Core).and_then(number),
            package: unit.first_ancestor_with_type(ObjectType::Package).and_then(number),
            online: true,
        };
        known.insert(id, running);
    }
    known.into_values().collect()
}

fn caches(machine: &Topology) -> Vec<Cache> {
    let caches = machine.objects().filter_map(|object| {
        let Some(ObjectAttributes::Cache(attributes)) = object.attributes() else {
            return None;
        };
        Some(Cache {
            level: attributes.depth().try_into().ok()?,
            kind: match attributes.cache_type() {
                CacheType::Data => CacheKind::Data,
                CacheType::Instruction => CacheKind::Instruction,
                _ => CacheKind::Unified,
            },
            bytes: attributes.size().map_or(0, u64::from),
            cpus: numbers(object.cpuset()?),
        })
    });
    caches.collect()
}

fn devices(machine: &Topology, nodes: &[Node], cpu_homes: &BTreeMap<CpuId, NodeId>) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for object in machine.objects_with_type(ObjectType::OSDevice) {
        let Some(name) = object.name().and_then(|name| name.to_str().ok()) else {
            continue;
        };
        let Some(ObjectAttributes::OSDevice(attributes)) = object.attributes() else {
            continue;
        };
        let kind = match attributes.device_type() {
            OSDeviceType::Storage if name.starts_with("pmem") || name.starts_with("dax") => DeviceKind::Pmem,
            OSDeviceType::Storage => DeviceKind::Block,
            OSDeviceType::Network => DeviceKind::Network,
            OSDeviceType::GPU | OSDeviceType::CoProcessor => DeviceKind::Accelerator,
            _ => continue,
        };
        devices.push(Device {
            name: name.to_owned(),
            kind,
            home: device_home(object, nodes, cpu_homes),
            queues: Vec::new(),
        });
    }
    devices
}

/// A device is at home on a node when all CPUs beside it are.
fn device_home(object: &TopologyObject, nodes: &[Node], cpu_homes: &BTreeMap<CpuId, NodeId>) -> Option<NodeId> {
    if let [only] = nodes {
        return Some(only.id);
    }
    let beside = object.first_non_io_ancestor()?;
    let mut homes = numbers(beside.cpuset()?)
        .into_iter()
        .map(|cpu| cpu_homes.get(&cpu).copied());
    let first = homes.next()??;
    homes.all(|home| home == Some(first)).then_some(first)
}
