//! The monitor and the buddy allocators on every machine: the order of candidates is the latency matrix's.

use crate::members::{Model, filled_up, machines, monitor};
use homenode_policy::pool::{Buddy, Monitor, Thresholds};
use homenode_policy::{BLOCK_BYTES, MemberId, NodeId};

#[test]
fn candidates_are_in_the_order_of_the_matrix() {
    for (name, machine) in machines() {
        let mut monitor = monitor(&machine);
        // Nodes without CPUs too: a file's policy may ask in their name.
        for asking in machine.node_ids() {
            let mut model = Model::new(&machine, |_| 1);
            let mut expected = Vec::new();
            while let Some(home) = model.target(asking) {
                expected.push(MemberId(home.0));
                model.member(home).fat = true;
            }
            assert!(
                monitor.candidates(asking).eq(expected.iter().copied()),
                "{name}: from {asking}"
            );
            assert!(
                monitor.all_by_latency(asking).eq(expected.iter().copied()),
                "{name}: from {asking}"
            );
            let homes: Vec<MemberId> = filled_up(&mut monitor, asking).into_iter().map(MemberId).collect();
            assert_eq!(homes, expected, "{name}: from {asking}, one fat after the other");
        }
        monitor.check_invariants();
    }
}

/// Several members a node, whose numbers say nothing of their homes.
#[test]
fn members_of_one_node_follow_each_other() {
    for (name, machine) in machines() {
        let ids = machine.node_ids();
        let with_memory: Vec<NodeId> = machine
            .nodes()
            .iter()
            .filter(|node| node.memory_bytes > 0)
            .map(|node| node.id)
            .collect();
        let homes: Vec<NodeId> = with_memory.iter().rev().chain(&with_memory).copied().collect();
        let mut monitor = Monitor::new(&ids, &machine.latency().matrix, Thresholds::default());
        for (member, home) in (0..).map(MemberId).zip(&homes) {
            monitor.add(member, *home);
        }
        monitor.check_invariants();
        for asking in ids {
            let mut model = Model::new(&machine, |_| 1);
            let mut expected = Vec::new();
            while let Some(home) = model.target(asking) {
                expected.extend(
                    (0..)
                        .map(MemberId)
                        .zip(&homes)
                        .filter(|(_, other)| **other == home)
                        .map(|(member, _)| member),
                );
                model.member(home).fat = true;
            }
            assert!(monitor.candidates(asking).eq(expected), "{name}: from {asking}");
        }
    }
}

#[test]
fn every_member_can_be_used_to_its_last_block() {
    for (name, machine) in machines() {
        for node in machine.nodes() {
            let blocks = node.memory_bytes / BLOCK_BYTES as u64;
            let mut buddy = Buddy::new(blocks);
            buddy.free(0, blocks);
            assert_eq!(buddy.free_blocks(), blocks, "{name}: {}", node.id);
            let mut taken = 0;
            // 2 MiB less a block: so that all orders are asked for.
            while let Some((start, got)) = buddy.allocate_up_to(511) {
                assert!(
                    start + got <= blocks,
                    "{name}: {} has {blocks} blocks, and gave {got} at {start}",
                    node.id
                );
                taken += got;
            }
            assert_eq!(taken, blocks, "{name}: {}", node.id);
            buddy.check_invariants();
        }
    }
}
