//! Threads far from their devices.

use super::*;
use crate::world::cpus;

#[test]
fn those_that_the_plan_moves_are_told_together() {
    let mut world = with_reader(two_nodes(), 1);
    let second = world.add_thread("reader", 1, 20);
    world.add_disk_bytes(second, "disk", 100 * MB);
    let findings = found(&world);
    let said = told(&findings, "far-threads");
    assert_eq!(
        said,
        "threads 1000, 1001 of reader: on node 0, disk-bound, far from the queues of disk: they belong on node 1"
    );
    // Half of 400 MB/s at twice the distance: the device's own access.
    assert_eq!(findings[0].gain.unwrap().bytes_per_s(), 200 * MB);
}

#[test]
fn many_are_counted() {
    let mut world = two_nodes();
    world.add_wide_disk("disk", Some(1));
    for index in 0..6 {
        let reader = world.add_thread("reader", index % 4, 5);
        world.add_disk_bytes(reader, "disk", 50 * MB);
    }
    let said = told(&found(&world), "far-threads");
    assert!(
        said.starts_with("threads 1000, 1001, 1002, 1003 and 2 more of reader"),
        "{said}"
    );
}

#[test]
fn those_that_are_near_or_move_little_are_not_told() {
    for (home, bytes) in [(0, 300 * MB), (1, 1000)] {
        let mut world = two_nodes();
        world.add_wide_disk("disk", Some(home));
        let reader = world.add_thread("reader", 0, 20);
        world.add_disk_bytes(reader, "disk", bytes);
        assert_eq!(found(&world), [], "{home} {bytes}");
    }
}

#[test]
fn those_that_someone_has_pinned_there() {
    let mut world = with_reader(two_nodes(), 1);
    world.snapshot.threads[0].allowed = cpus(0..2);
    let findings = found(&world);
    let said = told(&findings, "held-threads");
    assert_eq!(
        said,
        "thread 1000 of reader: on node 0, far from disk on node 1, and cannot move: someone has set its mask so"
    );
    assert!(findings[0].gain.unwrap().bytes_per_s() > 0);
    // Whoever is pinned near its disk, or may be near it, is well.
    world.snapshot.threads[0].allowed = cpus(4..6);
    world.snapshot.threads[0].cpu = homenode_policy::CpuId(4);
    assert_eq!(found(&world), []);
}

#[test]
fn those_that_their_cpuset_keeps_there() {
    let mut world = with_reader(two_nodes(), 1);
    world.snapshot.threads[0].allowed = cpus(0..4);
    world.snapshot.threads[0].cpuset = cpus(0..4);
    let said = told(&found(&world), "held-threads");
    assert!(said.ends_with("its cpuset has no CPU there"), "{said}");
}

#[test]
fn pinned_threads_of_the_network_are_left_alone() {
    let mut world = two_nodes();
    world.add_wide_disk("disk", Some(1));
    world.add_card("card", Some(0), &[0]);
    let both = world.add_thread("both", 0, 20);
    world.add_disk_bytes(both, "disk", 50 * MB);
    world.add_stream(both, "card", 0, 200 * MB);
    world.snapshot.threads[both].allowed = cpus(0..2);
    world.observe();
    assert_eq!(of_kind(&found(&world), "held-threads"), []);
}
