//! The paper's order worked out by hand, on machines of well known shapes.

use crate::members::{filled_up, machine, monitor};
use homenode_policy::NodeId;
use homenode_policy::topology::{LatencySource, NodeKind};

fn ids(numbers: &[u16]) -> Vec<NodeId> {
    numbers.iter().copied().map(NodeId).collect()
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
fn nodes_of_the_same_package_are_nearer_without_distances() {
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
    // Nobody asks from there: the way back, and as its own the local access that others are compared with.
    assert_eq!(machine.latency().matrix[1], [240, 85, 320, 330]);
    let mut monitor = monitor(&machine);
    assert_eq!(filled_up(&mut monitor, NodeId(0)), [0, 2, 1, 3]);
    assert_eq!(filled_up(&mut monitor, NodeId(2)), [2, 0, 3, 1]);
}
