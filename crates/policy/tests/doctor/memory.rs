//! Memory of nodes.

use super::*;
use homenode_policy::doctor::{Balancing, Tmpfs};
use homenode_policy::topology::{Node, Parts, Topology};

/// Two nodes whose memory is this, and a thread that runs on node 1.
fn judged(nodes: [NodeMemory; 2]) -> Vec<Finding> {
    found_with(&facts(nodes), &running_on_node_1().snapshot)
}

fn facts(nodes: [NodeMemory; 2]) -> Facts {
    Facts {
        memory: nodes.to_vec(),
        ..Facts::default()
    }
}

fn running_on_node_1() -> World {
    let mut world = two_nodes();
    world.add_thread("worker", 5, 100);
    world
}

#[test]
fn page_cache_on_one_node_is_found() {
    let full = NodeMemory {
        cache_bytes: 600 << 20,
        free_bytes: 100 << 20,
        ..memory(0)
    };
    assert_eq!(
        told(&judged([full, memory(1)]), "page-cache-on-one-node"),
        "page cache on node 0: 600 MiB, 100 % of all, with 1024 MiB free on other nodes, whose threads run"
    );
    let half = NodeMemory {
        cache_bytes: 300 << 20,
        ..memory(1)
    };
    assert_eq!(judged([full, half]), [], "67 % of two nodes");
    let without_room = NodeMemory {
        free_bytes: 1 << 20,
        ..memory(1)
    };
    assert_eq!(judged([full, without_room]), [], "the other node has no room");
    let little = NodeMemory {
        cache_bytes: 50 << 20,
        ..memory(0)
    };
    assert_eq!(judged([little, memory(1)]), [], "little memory is in use");
    let idle = two_nodes();
    assert_eq!(found_with(&facts([full, memory(1)]), &idle.snapshot), [], "no thread");
    let mut at_home = two_nodes();
    at_home.add_thread("worker", 0, 100);
    assert_eq!(
        found_with(&facts([full, memory(1)]), &at_home.snapshot),
        [],
        "all threads run on the full node"
    );
}

#[test]
fn tmpfs_on_one_node_is_found() {
    let full = NodeMemory {
        tmpfs_bytes: 500 << 20,
        ..memory(1)
    };
    let mut world = two_nodes();
    world.add_thread("worker", 0, 100);
    let mount = |at: &str, policy: &str| Tmpfs {
        at: at.to_owned(),
        policy: policy.to_owned(),
        used_bytes: 200 << 20,
    };
    let facts = Facts {
        tmpfs: vec![
            mount("/dev/shm", ""),
            mount("/data/1", "bind:1"),
            mount("/spread", "interleave:0-1"),
        ],
        ..facts([memory(0), full])
    };
    assert_eq!(
        told(&found_with(&facts, &world.snapshot), "tmpfs-on-one-node"),
        "tmpfs and shared memory on node 1: 500 MiB, 100 % of all, with 1024 MiB free on other nodes, whose threads run; \
         /dev/shm has 200 MiB, mpol=default; /data/1 has 200 MiB, mpol=bind:1"
    );
}

#[test]
fn a_full_node() {
    let full = NodeMemory {
        bytes: 512 << 20,
        foreign_pages: 3000,
        ..memory(0)
    };
    let gave = NodeMemory {
        missed_pages: 3000,
        other_pages: 3000,
        ..memory(1)
    };
    let findings = judged([full, gave]);
    assert_eq!(
        told(&findings, "node-full"),
        "node 0: full: 3000 pages in the period came from node 1 instead; it has 512 MiB, the largest node 1024 MiB"
    );
    assert_eq!(of_kind(&findings, "memory-placed-far"), [], "these are the same pages");
    let few = NodeMemory {
        foreign_pages: 200,
        ..memory(0)
    };
    assert_eq!(judged([few, memory(1)]), []);
}

#[test]
fn memory_placed_far_by_a_policy_is_found() {
    let far = NodeMemory {
        other_pages: 9000,
        interleaved_pages: 1000,
        ..memory(0)
    };
    let said = told(&judged([far, memory(1)]), "memory-placed-far");
    assert_eq!(
        said,
        "memory of node 0: 8000 pages in the period for CPUs of other nodes, as a memory policy or a driver wanted"
    );
    let both = NodeMemory {
        other_pages: 2000,
        ..memory(1)
    };
    let said = told(&judged([far, both]), "memory-placed-far");
    assert!(said.starts_with("memory of nodes 0, 1: 10000 pages"), "{said}");
    let interleaved = NodeMemory {
        other_pages: 9000,
        interleaved_pages: 18_000,
        ..memory(0)
    };
    assert_eq!(judged([interleaved, memory(1)]), []);
    let balancing = |on| Balancing {
        on,
        hint_faults: 0,
        migrated_pages: 0,
    };
    for (on, ends) in [(true, "wanted"), (false, "none comes near later")] {
        let facts = Facts {
            balancing: Some(balancing(on)),
            ..facts([far, memory(1)])
        };
        let said = told(&found_with(&facts, &running_on_node_1().snapshot), "memory-placed-far");
        assert!(said.ends_with(ends), "{said}");
    }
}

/// Node 0 as it was, node 1 with other memory or without its CPUs.
fn changed(change: impl Fn(&mut Node)) -> World {
    let old = running_on_node_1().snapshot;
    let mut nodes = old.topology.nodes().to_vec();
    change(&mut nodes[1]);
    let parts = Parts {
        nodes,
        cpus: old.topology.cpus().to_vec(),
        possible_cpus: 8,
        latency: old.topology.latency().clone(),
        ..Parts::default()
    };
    let mut world = World::of(Topology::new(parts).unwrap());
    world.snapshot.threads = old.threads;
    world
}

#[test]
fn threads_on_a_node_without_memory_are_found() {
    let mut world = changed(|node| node.memory_bytes = 0);
    assert_eq!(
        told(&found(&world), "node-without-memory"),
        "node 1: has no memory, and threads keep its CPUs busy (100 % of one): all they use is remote"
    );
    let placed = NodeMemory {
        other_pages: 90_000,
        ..memory(0)
    };
    let facts = Facts {
        memory: vec![placed],
        ..Facts::default()
    };
    assert_eq!(
        of_kind(&found_with(&facts, &world.snapshot), "memory-placed-far"),
        [],
        "the threads cannot move"
    );
    world.snapshot.threads[0].cpu_ns = 10_000_000;
    assert_eq!(found(&world), [], "few threads run there");
}

#[test]
fn used_memory_on_a_node_without_cpus_is_found() {
    let world = changed(|node| node.cpus.clear());
    let used = NodeMemory {
        free_bytes: 512 << 20,
        ..memory(1)
    };
    assert_eq!(
        told(
            &found_with(&facts([memory(0), used]), &world.snapshot),
            "node-without-cpus"
        ),
        "node 1: has no CPUs, and 512 MiB are in use there: remote for all"
    );
    assert_eq!(found_with(&facts([memory(0), memory(1)]), &world.snapshot), []);
}
