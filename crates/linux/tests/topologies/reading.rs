//! Tests that each machine is read as its kernel or its description says, and that unreadable input is named.

use crate::facts;
use crate::members::file;
use homenode_linux::topology::{Source, read};
use homenode_policy::topology::{DeviceKind, LatencySource, NodeKind, Topology};
use homenode_policy::{CpuId, NodeId};

fn cpus(numbers: &[u32]) -> Vec<CpuId> {
    numbers.iter().copied().map(CpuId).collect()
}

fn every_machine() -> impl Iterator<Item = (facts::Machine, Topology)> {
    facts::machines().into_iter().map(|facts| {
        let topology = read(&Source::Xml(facts.xml.clone())).expect("recorded machines can be read");
        (facts, topology)
    })
}

#[test]
fn nodes_and_distances_are_read() {
    for (facts, topology) in every_machine() {
        let name = &facts.name;
        let source = match topology.latency().source {
            LatencySource::Hmat => "hmat",
            LatencySource::Slit => "slit",
            LatencySource::Measured => "measured",
            LatencySource::Assumed => "assumed",
        };
        assert_eq!(source, facts.latency, "{name}");
        assert_eq!(topology.nodes().len(), facts.nodes.len(), "{name}");
        for ((node, fact), row) in topology
            .nodes()
            .iter()
            .zip(&facts.nodes)
            .zip(&topology.latency().matrix)
        {
            assert_eq!(node.id, NodeId(fact.id), "{name}");
            assert_eq!(node.memory_bytes, fact.kib << 10, "{name}: {}", node.id);
            assert_eq!(node.cpus, cpus(&fact.cpus), "{name}: {}", node.id);
            let kind = match (fact.kib, fact.cpus.len()) {
                (0, 0) => NodeKind::Empty,
                (0, _) => NodeKind::CpuOnly,
                (_, 0) => NodeKind::MemoryOnly,
                _ => NodeKind::Dram,
            };
            assert_eq!(node.kind(), kind, "{name}: {}", node.id);
            if let Some(distances) = &fact.distances {
                assert_eq!(row, distances, "{name}: from {}", node.id);
            }
        }
    }
}

#[test]
fn cpus_and_their_nodes_are_read() {
    for (facts, topology) in every_machine() {
        let name = &facts.name;
        let known = topology.cpus().iter().map(|cpu| cpu.id.0);
        assert!(known.eq(facts.present.iter().copied()), "{name}: {:?}", topology.cpus());
        let online = topology.cpus().iter().filter(|cpu| cpu.online).map(|cpu| cpu.id.0);
        assert!(online.eq(facts.online.iter().copied()), "{name}: {:?}", topology.cpus());
        // The file knows nothing of CPUs that are not there: of those that may come only the running machine tells.
        assert!(topology.cpu_nodes().len() <= facts.possible.len(), "{name}");

        // Whoever asks from there has a node: its own, or that of the nearest lower CPU with one, or else of the first.
        let claimed = |cpu: u32| {
            facts
                .nodes
                .iter()
                .find(|node| node.cpus.contains(&cpu))
                .map(|node| node.id)
        };
        let first = facts
            .present
            .iter()
            .find_map(|cpu| claimed(*cpu))
            .expect("some CPU has a node");
        for cpu in &facts.present {
            let expected = (0..=*cpu).rev().find_map(claimed).unwrap_or(first);
            assert_eq!(
                topology.cpu_nodes()[*cpu as usize],
                NodeId(expected),
                "{name}: CPU {cpu}"
            );
        }
        for node in facts.nodes.iter().filter(|node| node.cpus.is_empty()) {
            assert!(
                !topology.cpu_nodes().contains(&NodeId(node.id)),
                "{name}: no CPU, so node {} never asks",
                node.id
            );
        }
    }
}

#[test]
fn homes_of_devices_are_read() {
    for (facts, topology) in every_machine() {
        let mut found: Vec<facts::Device> = topology
            .devices()
            .iter()
            .map(|device| facts::Device {
                name: device.name.clone(),
                kind: match device.kind {
                    DeviceKind::Block => "block",
                    DeviceKind::Pmem => "pmem",
                    DeviceKind::Network => "network",
                    DeviceKind::Accelerator => "accelerator",
                }
                .to_owned(),
                home: device.home.map(|home| home.0),
            })
            .collect();
        found.sort();
        assert_eq!(found, facts.devices, "{}", facts.name);
    }
}

#[test]
fn cores_and_caches_are_read() {
    for (facts, topology) in every_machine() {
        for cpu in topology.cpus().iter().filter(|cpu| cpu.online) {
            assert!(cpu.core.is_some() && cpu.package.is_some(), "{}: {cpu:?}", facts.name);
        }
        for cache in topology.caches() {
            assert!(cache.bytes > 0 && !cache.cpus.is_empty(), "{}: {cache:?}", facts.name);
        }
    }
}

#[test]
fn a_synthetic_description_is_read() {
    let machine = read(&"node:4 core:8 pu:1".parse().unwrap()).unwrap();
    assert_eq!(machine.node_ids(), [0, 1, 2, 3].map(NodeId));
    assert_eq!(machine.cpu_nodes().len(), 32);
    assert_eq!(machine.node(NodeId(3)).unwrap().cpus.len(), 8);
}

#[test]
fn this_machine() {
    let machine = read(&Source::Live).unwrap();
    let present = std::thread::available_parallelism().unwrap().get();
    assert!(machine.cpus().iter().filter(|cpu| cpu.online).count() >= present);
    assert!(machine.nodes().iter().any(|node| node.kind() == NodeKind::Dram));
    assert!(machine.cpu_nodes().iter().all(|node| machine.node(*node).is_some()));
}

#[test]
fn bad_input_is_named_with_its_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let good = std::fs::read(file("four-nodes")).unwrap();
    let broken = [
        write("empty.xml", b""),
        write("text.xml", b"four nodes, please"),
        write("other.xml", b"<?xml version=\"1.0\"?><svg></svg>"),
        write("named-only.xml", b"<topology"),
        write("no-nodes.xml", b"<topology version=\"2.0\"></topology>"),
        write("binary.xml", &[0xff, 0xfe, 0, 1, 2]),
        write("nul.xml", b"<topology version=\"2.0\">\0</topology>"),
        write("half.xml", &good[..good.len() / 2]),
    ];
    for path in broken {
        let message = read(&Source::Xml(path.clone())).unwrap_err().to_string();
        assert!(
            message.contains(path.to_str().unwrap()) && message.contains("lstopo"),
            "{message}"
        );
    }
    let missing = directory.path().join("missing.xml");
    let message = read(&Source::Xml(missing.clone())).unwrap_err().to_string();
    assert!(
        message.contains(missing.to_str().unwrap()) && message.contains("No such file"),
        "{message}"
    );
    for description in [
        "node:4 core:",
        "pu:1 node:4",
        "foo:3 pu:1",
        "node:0 pu:1",
        "node:-1 pu:2",
        "::",
        "node:2\0 pu:1",
    ] {
        let message = read(&Source::Synthetic(description.to_owned()))
            .unwrap_err()
            .to_string();
        assert!(message.contains(description) && message.contains("pu"), "{message}");
    }
    let message = read(&Source::Synthetic("node:70000 pu:1".to_owned()))
        .unwrap_err()
        .to_string();
    assert!(message.contains("smaller"), "{message}");
}
