//! Affinity on every machine: what is planned for the same load, against a table that was looked at.
//!
//! The load: a disk and a network card at home on the last node with CPUs; the card's interrupts, and all threads, on
//! the first one.

use crate::members::machines;
use crate::world::{MB, World};
use homenode_policy::affinity::{Config, Plan, Policy, Previous, Target, decide};
use homenode_policy::topology::Topology;
use homenode_policy::{CpuId, NodeId};
use std::fmt::Write;

const TABLE: &str = include_str!("affinity.golden");

/// CPUs by node, of the nodes that have some that run.
fn by_node(topology: &Topology) -> Vec<(NodeId, Vec<u32>)> {
    let online = |cpu: &CpuId| topology.cpus().iter().any(|known| known.id == *cpu && known.online);
    let nodes = topology.nodes().iter().map(|node| {
        let cpus = node.cpus.iter().copied().filter(online);
        (node.id, cpus.map(|cpu| cpu.0).collect::<Vec<_>>())
    });
    nodes.filter(|(_, cpus)| !cpus.is_empty()).collect()
}

fn loaded(topology: Topology) -> World {
    let nodes = by_node(&topology);
    let (first, home) = (&nodes[0].1, nodes[nodes.len() - 1].0.0);
    let mut world = World::of(topology);
    world.add_wide_disk("disk", Some(home));
    let places: Vec<u32> = first.iter().copied().cycle().take(3).collect();
    world.add_card("card", Some(home), &places);
    let on = |index: usize| first[index % first.len()];
    for index in 0..2 {
        let reader = world.add_thread("reader", on(index), 20);
        world.add_disk_bytes(reader, "disk", 300 * MB);
        let server = world.add_thread("server", on(index), 20);
        world.add_stream(
            server,
            "card",
            u32::try_from(index).expect("the test's world is consistent"),
            200 * MB,
        );
    }
    let both = world.add_thread("datanode", on(0), 20);
    world.add_stream(both, "card", 2, 250 * MB);
    world.add_disk_bytes(both, "disk", 250 * MB);
    let caged = world.add_thread("caged", on(0), 10);
    world.add_disk_bytes(caged, "disk", 100 * MB);
    let cage: Vec<CpuId> = first.iter().copied().map(CpuId).collect();
    world.snapshot.threads[caged].cpuset = cage[..].into();
    world.snapshot.threads[caged].allowed = cage.into();
    world.add_thread("compute", on(1), 100);
    world.observe();
    world
}

/// Writes CPUs as the kernel writes lists: `0-3,8`.
fn list(cpus: &[CpuId]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for CpuId(cpu) in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => runs.push((*cpu, *cpu)),
        }
    }
    let run = |(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

fn told(plan: &Plan, policy: Policy, world: &World) -> String {
    let mut text = format!("{policy}: {} to {}\n", plan.cost_before, plan.cost_after);
    for action in &plan.actions {
        let name = match &action.target {
            Target::Thread(id) => {
                let mut threads = world.snapshot.threads.iter();
                threads
                    .find(|thread| thread.id == *id)
                    .expect("the test's world is consistent")
                    .name
                    .clone()
            }
            target => target.to_string(),
        };
        write!(text, "  {name}: {} to {}", list(&action.from), list(&action.to)).expect("a String never fails");
        match policy {
            Policy::Local => writeln!(text, ", {}", action.reason).expect("writing to a string cannot fail"),
            _ => text.push('\n'),
        }
    }
    text
}

/// Set HOMENODE_TABLE to a file to have the table written there, after a change that is meant.
#[test]
fn plans_match_the_golden_table() {
    let mut table = String::new();
    for (name, topology) in machines() {
        writeln!(table, "# {name}").expect("writing to a string cannot fail");
        for policy in [Policy::Local, Policy::Spread, Policy::Pack, Policy::SingleCore] {
            let world = loaded(topology.clone());
            let config = Config {
                policy,
                ..Config::default()
            };
            let plan = decide(&world.snapshot, &config, &Previous::default());
            table += &told(&plan, policy, &world);
        }
    }
    if let Some(file) = std::env::var_os("HOMENODE_TABLE") {
        std::fs::write(file, &table).expect("the test's world is consistent");
    }
    for (planned, expected) in table.lines().zip(TABLE.lines()) {
        assert_eq!(
            planned, expected,
            "differs from crates/linux/tests/topologies/affinity.golden"
        );
    }
    assert_eq!(
        table.lines().count(),
        TABLE.lines().count(),
        "a machine is missing in crates/linux/tests/topologies/affinity.golden: HOMENODE_TABLE=FILE writes it"
    );
}

#[test]
fn policy_local_leaves_no_movable_thread_far() {
    for (name, topology) in machines() {
        let mut world = loaded(topology);
        let nodes = by_node(&world.snapshot.topology);
        let home = nodes[nodes.len() - 1].0;
        let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
        assert!(plan.cost_after <= plan.cost_before, "{name}");
        assert_eq!(plan.actions.is_empty(), nodes.len() == 1, "{name}: {plan:?}");
        let previous = Previous::default().after(&plan, &world.snapshot, &Config::default());
        world.carry_out(&plan);
        let room = nodes[nodes.len() - 1].1.len() > 1;
        for thread in world
            .snapshot
            .threads
            .iter()
            .filter(|thread| room && !thread.disk.is_empty())
        {
            let may = thread.cpuset.iter().any(|cpu| world.snapshot.node(*cpu) == Some(home));
            let near = world.snapshot.node(thread.cpu) == Some(home);
            assert_eq!(near, may, "{name}: {}", thread.name);
        }
        let next = decide(&world.snapshot, &Config::default(), &previous);
        assert_eq!(next.actions, [], "{name}: settled");
    }
}
