use super::*;
use alloc::borrow::ToOwned;

fn cpus(numbers: impl IntoIterator<Item = u32>) -> Vec<CpuId> {
    numbers.into_iter().map(CpuId).collect()
}

/// Two nodes of two CPUs and a memory-only node, given in the wrong order.
fn parts() -> Parts {
    let node = |id, numbers: &[u32], memory_bytes| Node {
        cpus: cpus(numbers.iter().copied()),
        memory_bytes,
        ..Node::new(NodeId(id))
    };
    let cpu = |id| Cpu {
        id: CpuId(id),
        core: Some(id),
        package: Some(id / 2),
        online: true,
    };
    Parts {
        nodes: vec![node(2, &[], 7), node(0, &[1, 0], 5), node(1, &[4, 3], 6)],
        cpus: [4, 3, 1, 0].map(cpu).to_vec(),
        possible_cpus: 8,
        caches: vec![],
        latency: Latency {
            source: LatencySource::Slit,
            matrix: vec![vec![22, 20, 21], vec![2, 0, 1], vec![12, 10, 11]],
        },
        devices: vec![Device {
            name: "nvme0n1".to_owned(),
            kind: DeviceKind::Block,
            home: Some(NodeId(1)),
            queues: vec![DeviceQueue {
                name: "0".to_owned(),
                cpus: cpus(0..8),
            }],
        }],
    }
}

#[test]
fn nodes_and_the_matrix_are_sorted_together() {
    let topology = Topology::new(parts()).unwrap();
    assert_eq!(topology.node_ids(), [NodeId(0), NodeId(1), NodeId(2)]);
    assert_eq!(topology.latency().matrix, [[0, 1, 2], [10, 11, 12], [20, 21, 22]]);
    assert_eq!(topology.nodes()[1].cpus, cpus([3, 4]));
    assert_eq!(topology.node(NodeId(2)).unwrap().kind(), NodeKind::MemoryOnly);
    assert_eq!(topology.node(NodeId(3)), None);
}

#[test]
fn every_possible_cpu_has_a_node() {
    let topology = Topology::new(parts()).unwrap();
    let nodes: Vec<u16> = topology.cpu_nodes().iter().map(|node| node.0).collect();
    // 2 is not there: as 1. 5 to 7 may be plugged later: as 4.
    assert_eq!(nodes, [0, 0, 0, 1, 1, 1, 1, 1]);

    let mut parts = parts();
    parts.nodes[1].cpus.clear();
    let nodes = Topology::new(parts.clone()).unwrap().cpu_nodes().to_vec();
    assert_eq!(nodes, [NodeId(1); 8], "CPUs before the first claimed one go with it");

    parts.nodes[2].cpus.clear();
    parts.nodes[1].memory_bytes = 0;
    let nodes = Topology::new(parts).unwrap().cpu_nodes().to_vec();
    assert_eq!(nodes, [NodeId(1); 8], "no CPU claimed: the first node with memory");
}

#[test]
fn node_kinds_follow_from_memory_and_cpus() {
    let mut node = Node::new(NodeId(0));
    assert_eq!(node.kind(), NodeKind::Empty);
    node.cpus = cpus([0]);
    assert_eq!(node.kind(), NodeKind::CpuOnly);
    node.memory_bytes = 1;
    assert_eq!(node.kind(), NodeKind::Dram);
}

#[test]
fn inconsistent_topologies_are_refused() {
    let refused = |change: fn(&mut Parts), error: TopologyError| {
        let mut parts = parts();
        change(&mut parts);
        assert_eq!(Topology::new(parts), Err(error));
    };
    refused(|parts| *parts = Parts::default(), TopologyError::NoNode);
    refused(
        |parts| parts.nodes[0].id = NodeId(1),
        TopologyError::NodeTwice(NodeId(1)),
    );
    refused(|parts| parts.cpus[0].id = CpuId(3), TopologyError::CpuTwice(CpuId(3)));
    refused(
        |parts| parts.nodes[2].cpus.push(CpuId(0)),
        TopologyError::CpuOfTwoNodes(CpuId(0)),
    );
    refused(|parts| parts.possible_cpus = 4, TopologyError::CpuNotPossible(CpuId(4)));
    refused(
        |parts| parts.possible_cpus = u32::MAX,
        TopologyError::CpuNotPossible(CpuId(u32::MAX - 1)),
    );
    refused(
        |parts| parts.nodes[0].cpus.push(CpuId(7)),
        TopologyError::UnknownCpu(CpuId(7)),
    );
    refused(
        |parts| parts.devices[0].queues[0].cpus.push(CpuId(8)),
        TopologyError::UnknownCpu(CpuId(8)),
    );
    refused(
        |parts| parts.devices[0].home = Some(NodeId(9)),
        TopologyError::UnknownHome(NodeId(9)),
    );
    refused(|parts| parts.latency.matrix[1].truncate(2), TopologyError::LatencyShape);
    refused(
        |parts| {
            parts.caches.push(Cache {
                level: 1,
                kind: CacheKind::Data,
                bytes: 1,
                cpus: cpus([6]),
            });
        },
        TopologyError::UnknownCpu(CpuId(6)),
    );
}
