//! The recorded machines of tests/topologies: they are read right, and the monitor does on each what the paper says.

use homenode_linux::topology::{Source, read};
use homenode_policy::pool::{Monitor, Thresholds};
use homenode_policy::topology::{LatencySource, NodeKind, Topology};
use homenode_policy::{MemberId, NodeId};
use std::path::{Path, PathBuf};

const MACHINES: [&str; 5] = [
    "one-node",
    "four-nodes",
    "two-sockets-four-nodes-each",
    "eight-sockets",
    "cxl",
];

fn file(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/topologies");
    directory.join(name).with_extension("xml")
}

fn machine(name: &str) -> Topology {
    read(&Source::Xml(file(name))).expect("recorded machines can be read")
}

fn ids(numbers: &[u16]) -> Vec<NodeId> {
    numbers.iter().copied().map(NodeId).collect()
}

/// One member on each node with memory, with the node's number as its id.
fn monitor(machine: &Topology) -> Monitor {
    let mut monitor = Monitor::new(&machine.node_ids(), &machine.latency().matrix, Thresholds::default());
    for node in machine.nodes().iter().filter(|node| node.memory_bytes > 0) {
        monitor.add(MemberId(node.id.0), node.id);
    }
    monitor.check_invariants();
    monitor
}

/// The homes that a writer on `asking` gets as one member after the other becomes fat.
fn filled_up(monitor: &mut Monitor, asking: NodeId) -> Vec<u16> {
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

#[test]
fn every_machine_is_used_local_first_and_then_by_latency() {
    for name in MACHINES {
        let machine = machine(name);
        let mut monitor = monitor(&machine);
        let index = |id: NodeId| machine.node_ids().iter().position(|other| *other == id).unwrap();
        for node in machine.nodes().iter().filter(|node| !node.cpus.is_empty()) {
            let homes = filled_up(&mut monitor, node.id);
            assert_eq!(
                homes.len(),
                machine.nodes().len(),
                "{name}: every member is used from {}",
                node.id
            );
            assert_eq!(NodeId(homes[0]), node.id, "{name}: local first");
            let latency = |home: &u16| machine.latency().matrix[index(node.id)][index(NodeId(*home))];
            assert!(
                homes[1..].is_sorted_by_key(|home| (latency(home), *home)),
                "{name}: {homes:?} from {}",
                node.id
            );
        }
        monitor.check_invariants();
    }
}

#[test]
fn every_cpu_of_every_machine_has_its_node() {
    for (name, nodes, cpus_per_node) in [
        ("one-node", 1, 16),
        ("four-nodes", 4, 8),
        ("two-sockets-four-nodes-each", 8, 8),
        ("eight-sockets", 8, 8),
    ] {
        let machine = machine(name);
        assert_eq!(machine.nodes().len(), nodes, "{name}");
        let expected: Vec<u16> = (0..nodes * cpus_per_node)
            .map(|cpu| u16::try_from(cpu / cpus_per_node).unwrap())
            .collect();
        assert_eq!(machine.cpu_nodes(), ids(&expected), "{name}");
        for node in machine.nodes() {
            assert_eq!(
                (node.kind(), node.cpus.len()),
                (NodeKind::Dram, cpus_per_node),
                "{name}"
            );
        }
        assert!(
            machine
                .cpus()
                .iter()
                .all(|cpu| cpu.online && cpu.core == Some(cpu.id.0 / 2)),
            "{name}"
        );
        assert!(
            machine.caches().iter().any(|cache| cache.level == 3 && cache.bytes > 0),
            "{name}"
        );
    }
}

#[test]
fn four_nodes_in_a_square() {
    let machine = machine("four-nodes");
    assert_eq!(machine.latency().source, LatencySource::Slit);
    assert_eq!(machine.nodes()[2].memory_bytes, 16 << 30);
    let mut monitor = monitor(&machine);
    assert_eq!(filled_up(&mut monitor, NodeId(0)), [0, 1, 2, 3]);
    assert_eq!(filled_up(&mut monitor, NodeId(1)), [1, 0, 3, 2]);
    assert_eq!(filled_up(&mut monitor, NodeId(3)), [3, 1, 2, 0]);
}

#[test]
fn eight_sockets_in_a_cube() {
    let machine = machine("eight-sockets");
    assert_eq!(machine.latency().matrix[0], [10, 16, 16, 22, 16, 22, 22, 28]);
    assert_eq!(filled_up(&mut monitor(&machine), NodeId(5)), [5, 1, 4, 7, 0, 3, 6, 2]);
}

#[test]
fn without_distances_nodes_of_the_same_package_are_nearer() {
    let machine = machine("two-sockets-four-nodes-each");
    assert_eq!(machine.latency().source, LatencySource::Assumed);
    assert_eq!(machine.latency().matrix[0], [10, 12, 12, 12, 20, 20, 20, 20]);
    assert_eq!(filled_up(&mut monitor(&machine), NodeId(6)), [6, 4, 5, 7, 0, 1, 2, 3]);
}

#[test]
fn cxl_expanders_are_memory_only_and_far() {
    let machine = machine("cxl");
    let kinds: Vec<NodeKind> = machine.nodes().iter().map(|node| node.kind()).collect();
    use NodeKind::{Dram, MemoryOnly};
    assert_eq!(kinds, [Dram, MemoryOnly, Dram, MemoryOnly]);
    assert_eq!(machine.nodes()[1].technology.as_deref(), Some("CXL"));
    assert_eq!(
        (machine.nodes()[1].latency_ns, machine.nodes()[1].bandwidth_mib_per_s),
        (Some(240), Some(30_000))
    );
    assert_eq!(machine.cpu_nodes()[7..9], ids(&[0, 2]));
    assert_eq!(machine.latency().source, LatencySource::Hmat);
    assert_eq!(machine.latency().matrix[0], [85, 240, 140, 330]);
    assert_eq!(machine.latency().matrix[2], [150, 320, 85, 240], "not symmetric");
    let mut monitor = monitor(&machine);
    assert_eq!(filled_up(&mut monitor, NodeId(0)), [0, 2, 1, 3]);
    assert_eq!(filled_up(&mut monitor, NodeId(2)), [2, 0, 3, 1]);
}

#[test]
fn a_description_of_a_machine() {
    let machine = read(&"node:4 core:8 pu:1".parse().unwrap()).unwrap();
    assert_eq!(machine.node_ids(), ids(&[0, 1, 2, 3]));
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
