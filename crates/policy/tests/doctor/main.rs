//! Findings of the doctor: each on a machine that has the problem, and none on a machine that has not.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod devices;
mod kernel;
mod memory;
mod queues;
mod threads;
#[allow(dead_code, reason = "what the tests of affinity make of it is more than these need")]
#[path = "../affinity/world.rs"]
mod world;

use homenode_policy::NodeId;
use homenode_policy::affinity::{Config, Cost, Previous, Snapshot, decide};
use homenode_policy::doctor::{Facts, Finding, NodeMemory, Problem, Verdict, findings, verdict};
use world::{MB, World};

/// Two nodes with four CPUs each.
fn two_nodes() -> World {
    World::new(&[4, 4], 20, 4)
}

fn found_with(facts: &Facts, snapshot: &Snapshot) -> Vec<Finding> {
    let plan = decide(snapshot, &Config::default(), &Previous::default());
    findings(facts, snapshot, &plan)
}

fn found(world: &World) -> Vec<Finding> {
    found_with(&Facts::default(), &world.snapshot)
}

/// The findings of a kind.
fn of_kind(findings: &[Finding], kind: &str) -> Vec<Finding> {
    let its = findings.iter().filter(|finding| finding.problem.kind() == kind);
    its.cloned().collect()
}

/// The one finding of a kind: what it is about, and what is wrong.
fn told(findings: &[Finding], kind: &str) -> String {
    let its = of_kind(findings, kind);
    assert_eq!(its.len(), 1, "{findings:?}");
    format!("{}: {}", its[0].problem.object(), its[0].problem)
}

/// A node with much memory, of which nothing is used.
fn memory(node: u16) -> NodeMemory {
    NodeMemory {
        node: NodeId(node),
        bytes: 1 << 30,
        free_bytes: 1 << 30,
        cache_bytes: 0,
        tmpfs_bytes: 0,
        foreign_pages: 0,
        missed_pages: 0,
        other_pages: 0,
        interleaved_pages: 0,
    }
}

fn verdict_of(world: &World) -> Verdict {
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    verdict(
        &world.snapshot,
        &plan,
        &findings(&Facts::default(), &world.snapshot, &plan),
    )
}

/// A reader on node 0, of a disk on node `home`.
fn with_reader(mut world: World, home: u16) -> World {
    world.add_wide_disk("disk", Some(home));
    let reader = world.add_thread("reader", 0, 20);
    world.add_disk_bytes(reader, "disk", 300 * MB);
    world
}

#[test]
fn a_single_node_has_nothing_to_gain() {
    let world = with_reader(World::new(&[8], 10, 4), 0);
    assert_eq!(found(&world), []);
    assert_eq!(verdict_of(&world), Verdict::OneNode);
    // Not even where a kernel tells nonsense.
    let facts = Facts {
        memory: vec![NodeMemory {
            foreign_pages: 1 << 30,
            other_pages: 1 << 30,
            ..memory(0)
        }],
        ..Facts::default()
    };
    assert_eq!(found_with(&facts, &world.snapshot), []);
}

#[test]
fn several_nodes_with_local_traffic_have_nothing_to_gain() {
    let world = with_reader(two_nodes(), 0);
    assert_eq!(found(&world), []);
    assert_eq!(verdict_of(&world), Verdict::AllLocal);
    assert_eq!(verdict_of(&two_nodes()), Verdict::AllLocal);
}

#[test]
fn the_verdict_includes_the_plans_gain() {
    let world = with_reader(two_nodes(), 1);
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    let gain = plan.cost_before.beyond(plan.cost_after);
    assert!(gain > Cost::default());
    assert_eq!(verdict_of(&world), Verdict::Findings { count: 1, gain });
}

#[test]
fn findings_are_sorted_by_gain() {
    let mut world = with_reader(two_nodes(), 1);
    let small = world.add_thread("small", 1, 5);
    world.add_disk_bytes(small, "disk", 20 * MB);
    let facts = Facts {
        fuse_rings: Some(false),
        ..Facts::default()
    };
    let findings = found_with(&facts, &world.snapshot);
    let kinds: Vec<&str> = findings.iter().map(|finding| finding.problem.kind()).collect();
    assert_eq!(kinds, ["far-threads", "far-threads", "no-fuse-rings"]);
    assert!(findings[0].gain > findings[1].gain && findings[1].gain > findings[2].gain);
    assert!(findings[0].problem.object().contains("reader"), "{findings:?}");
    world.snapshot.interrupts.reverse();
    world.snapshot.queues.reverse();
    assert_eq!(found_with(&facts, &world.snapshot), findings);
    let problems: Vec<Problem> = findings.into_iter().map(|finding| finding.problem).collect();
    assert!(!problems[2].is_of_nodes() && problems[0].is_of_nodes());
}
