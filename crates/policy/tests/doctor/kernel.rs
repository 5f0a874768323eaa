//! Settings of the kernel.

use super::*;
use homenode_policy::doctor::{Balancing, ZoneReclaim};

fn judged(facts: &Facts) -> Vec<Finding> {
    found_with(facts, &two_nodes().snapshot)
}

#[test]
fn useless_numa_balancing_is_found() {
    let facts = |on, hint_faults, migrated_pages| Facts {
        balancing: Some(Balancing {
            on,
            hint_faults,
            migrated_pages,
        }),
        ..Facts::default()
    };
    assert_eq!(
        told(&judged(&facts(true, 50_000, 100)), "idle-numa-balancing"),
        "kernel.numa_balancing: on: 50000 faults a second to find pages to move, and 100 moved"
    );
    assert_eq!(judged(&facts(true, 50_000, 5000)), [], "balancing moves enough pages");
    assert_eq!(judged(&facts(true, 500, 0)), [], "balancing costs little");
    assert_eq!(judged(&facts(false, 50_000, 0)), [], "balancing is off");
}

#[test]
fn zone_reclaim() {
    let facts = |mode| Facts {
        zone_reclaim: Some(ZoneReclaim { mode, reclaims: 7 }),
        ..Facts::default()
    };
    assert_eq!(
        told(&judged(&facts(1)), "zone-reclaim"),
        "vm.zone_reclaim_mode: 1: a full node drops page cache though others have room (7 times since boot)"
    );
    assert_eq!(judged(&facts(0)), []);
}

#[test]
fn missing_features_of_pools_are_reported_without_changing_the_verdict() {
    let facts = |rings, denied| Facts {
        fuse_rings: rings,
        huge_tmpfs_denied: denied,
        ..Facts::default()
    };
    let lacking = facts(Some(false), Some(true));
    for world in [two_nodes(), World::new(&[4], 10, 4)] {
        let findings = found_with(&lacking, &world.snapshot);
        let kinds: Vec<&str> = findings.iter().map(|finding| finding.problem.kind()).collect();
        assert_eq!(kinds, ["no-fuse-rings", "no-huge-pages"]);
        let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
        let verdict = verdict(&world.snapshot, &plan, &findings);
        assert!(!matches!(verdict, Verdict::Findings { .. }), "{verdict:?}");
    }
    for well in [facts(Some(true), Some(false)), facts(None, None)] {
        assert_eq!(judged(&well), []);
    }
}
