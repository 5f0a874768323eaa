use super::*;

fn nodes(count: u16) -> Vec<NodeId> {
    (0..count).map(NodeId).collect()
}

/// Four nodes in a square: neighbours at 16, the opposite one at 22.
fn square() -> Monitor {
    let latency = [[10, 16, 16, 22], [16, 10, 22, 16], [16, 22, 10, 16], [22, 16, 16, 10]];
    let latency: Vec<Vec<u32>> = latency.iter().map(|row| row.to_vec()).collect();
    let mut monitor = Monitor::new(&nodes(4), &latency, Thresholds::default());
    for node in 0..4 {
        monitor.add(MemberId(node), NodeId(node));
    }
    monitor.check_invariants();
    monitor
}

fn order(members: impl Iterator<Item = MemberId>) -> Vec<u16> {
    members.map(|member| member.0).collect()
}

#[test]
fn targets_go_from_local_to_nearest_to_next() {
    let mut monitor = square();
    assert_eq!(order(monitor.candidates(NodeId(1))), [1, 0, 3, 2]);
    assert!(monitor.update(MemberId(1), 99, 100));
    assert_eq!(monitor.target(NodeId(1)), Some(MemberId(0)));
    assert!(monitor.update(MemberId(0), 100, 100));
    assert_eq!(monitor.target(NodeId(1)), Some(MemberId(3)));
    assert!(monitor.update(MemberId(3), 100, 100));
    assert_eq!(monitor.target(NodeId(1)), Some(MemberId(2)));
    assert!(monitor.update(MemberId(2), 100, 100));
    assert_eq!(monitor.target(NodeId(1)), None);
    assert_eq!(order(monitor.all_by_latency(NodeId(1))), [1, 0, 3, 2]);
    // Files are deleted: the local member is the target again.
    assert!(monitor.update(MemberId(1), 10, 100));
    assert_eq!(monitor.target(NodeId(1)), Some(MemberId(1)));
    monitor.check_invariants();
}

#[test]
fn a_member_stays_fat_between_the_thresholds() {
    let mut monitor = square();
    let member = MemberId(0);
    assert!(
        !monitor.update(member, 98, 100),
        "exactly at the threshold is not above it"
    );
    assert!(!monitor.is_fat(member));
    assert!(monitor.update(member, 99, 100));
    assert!(!monitor.update(member, 97, 100));
    assert!(
        !monitor.update(member, 95, 100),
        "exactly at the lower threshold is not below it"
    );
    assert!(monitor.is_fat(member));
    assert!(monitor.update(member, 94, 100));
    assert!(!monitor.update(member, 97, 100));
    assert!(!monitor.is_fat(member));
}

#[test]
fn small_members_are_fat_only_when_full() {
    let mut monitor = square();
    for capacity in 1..=49 {
        assert!(!monitor.update(MemberId(0), capacity - 1, capacity) || capacity == 1);
        assert!(!monitor.is_fat(MemberId(0)), "{capacity}");
        assert!(monitor.update(MemberId(0), capacity, capacity));
        assert!(monitor.update(MemberId(0), 0, capacity));
    }
    assert!(monitor.update(MemberId(0), 0, 0), "no capacity, no room");
    let huge = u64::MAX / 2;
    assert!(monitor.update(MemberId(0), 1, huge));
    assert!(monitor.update(MemberId(0), huge - 1, huge));
}

#[test]
fn every_pair_of_thresholds_leaves_a_full_member_fat() {
    for fat_percent in 1..=100 {
        for candidate_percent in 1..=fat_percent {
            let thresholds = Thresholds {
                fat_percent,
                candidate_percent,
            };
            for was in [false, true] {
                assert!(thresholds.fat(was, 7, 7));
                assert!(!thresholds.fat(was, 0, 7));
            }
        }
    }
}

#[test]
#[should_panic(expected = "thresholds")]
fn thresholds_out_of_order_are_refused() {
    let thresholds = Thresholds {
        fat_percent: 90,
        candidate_percent: 91,
    };
    let _ = Monitor::new(&[], &[], thresholds);
}

#[test]
fn starved_counts_as_fat_and_draining_is_no_target() {
    let mut monitor = square();
    monitor.set_starved(MemberId(0), true);
    assert!(monitor.is_fat(MemberId(0)));
    assert_eq!(monitor.target(NodeId(0)), Some(MemberId(1)));
    assert!(!monitor.update(MemberId(0), 100, 100), "a fat member stayed fat");
    monitor.set_starved(MemberId(0), false);
    assert!(monitor.is_fat(MemberId(0)), "full by now");
    assert!(monitor.update(MemberId(0), 0, 100));
    monitor.set_draining(MemberId(0), true);
    assert!(!monitor.is_fat(MemberId(0)));
    assert_eq!(monitor.target(NodeId(0)), Some(MemberId(1)));
    assert_eq!(order(monitor.all_by_latency(NodeId(0))), [1, 2, 3]);
    monitor.set_draining(MemberId(0), false);
    assert_eq!(monitor.target(NodeId(0)), Some(MemberId(0)));
}

#[test]
fn the_local_member_comes_first_despite_the_matrix() {
    // Asymmetric, and node 0 measured slower to itself than to node 1.
    let latency = [vec![120, 100], vec![200, 90]];
    let mut monitor = Monitor::new(&nodes(2), &latency, Thresholds::default());
    monitor.add(MemberId(0), NodeId(1));
    monitor.add(MemberId(1), NodeId(0));
    assert_eq!(order(monitor.candidates(NodeId(0))), [1, 0]);
    assert_eq!(order(monitor.candidates(NodeId(1))), [0, 1]);
}

#[test]
fn members_of_one_node_are_used_by_id() {
    let mut monitor = square();
    monitor.add(MemberId(9), NodeId(1));
    monitor.add(MemberId(5), NodeId(1));
    assert_eq!(order(monitor.candidates(NodeId(1))), [1, 5, 9, 0, 3, 2]);
    monitor.remove(MemberId(5));
    monitor.remove(MemberId(5));
    monitor.check_invariants();
    assert_eq!(order(monitor.candidates(NodeId(0))), [0, 1, 9, 2, 3]);
    assert!(monitor.is_fat(MemberId(5)));
    assert!(!monitor.update(MemberId(5), 1, 100));
}

#[test]
fn unknown_nodes_fall_back_to_members_by_id() {
    let mut monitor = square();
    assert_eq!(order(monitor.candidates(NodeId(77))), [0, 1, 2, 3]);
    monitor.add(MemberId(4), NodeId(77));
    monitor.check_invariants();
    assert_eq!(
        order(monitor.candidates(NodeId(77))),
        [4, 0, 1, 2, 3],
        "the node's own member comes first"
    );
    assert_eq!(
        order(monitor.candidates(NodeId(3))),
        [3, 1, 2, 0, 4],
        "the farthest for others"
    );
    assert_eq!(order(monitor.candidates(NodeId(78))), [0, 1, 2, 3, 4]);
    monitor.add(MemberId(6), NodeId(60));
    monitor.check_invariants();
    assert_eq!(order(monitor.candidates(NodeId(0))), [0, 1, 2, 3, 6, 4]);
}

#[test]
fn a_pool_without_members_has_no_target() {
    let monitor = Monitor::new(&[], &[], Thresholds::default());
    monitor.check_invariants();
    assert_eq!(monitor.target(NodeId(0)), None);
    assert_eq!(monitor.all_by_latency(NodeId(0)).count(), 0);
}
