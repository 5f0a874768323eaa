//! Threads far from their devices and their buffers.

use super::*;
use crate::world::cpus;

#[test]
fn threads_that_the_plan_moves_share_one_finding() {
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
fn many_threads_are_counted() {
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
fn near_or_quiet_threads_are_no_finding() {
    for (home, bytes) in [(0, 300 * MB), (1, 1000)] {
        let mut world = two_nodes();
        world.add_wide_disk("disk", Some(home));
        let reader = world.add_thread("reader", 0, 20);
        world.add_disk_bytes(reader, "disk", bytes);
        assert_eq!(found(&world), [], "{home} {bytes}");
    }
}

#[test]
fn threads_pinned_far_away_are_found() {
    let mut world = with_reader(two_nodes(), 1);
    world.snapshot.threads[0].allowed = cpus(0..2).into();
    let findings = found(&world);
    let said = told(&findings, "held-threads");
    assert_eq!(
        said,
        "thread 1000 of reader: on node 0, far from disk on node 1, and cannot move: someone has set its mask so"
    );
    assert!(findings[0].gain.unwrap().bytes_per_s() > 0);
    // Whoever is pinned near its disk, or may be near it, is well.
    world.snapshot.threads[0].allowed = cpus(4..6).into();
    world.snapshot.threads[0].cpu = homenode_policy::CpuId(4);
    assert_eq!(found(&world), []);
}

#[test]
fn threads_kept_far_by_their_cpuset_are_found() {
    let mut world = with_reader(two_nodes(), 1);
    world.snapshot.threads[0].allowed = cpus(0..4).into();
    world.snapshot.threads[0].cpuset = cpus(0..4).into();
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
    world.snapshot.threads[both].allowed = cpus(0..2).into();
    world.observe();
    assert_eq!(of_kind(&found(&world), "held-threads"), []);
}

/// Two readers on node 0 of buffers on node 1, with a little on their own; the first one also moves some network bytes.
fn buffer_readers() -> World {
    let mut world = two_nodes();
    for _ in 0..2 {
        let reader = world.add_thread("reader", 1, 20);
        world.fixed.push((reader, NodeId(1), 900 * MB));
        world.fixed.push((reader, NodeId(0), 100 * MB));
    }
    world.add_sent_bytes(0, None, 50 * MB);
    world.observe();
    world
}

#[test]
fn threads_far_from_their_buffers_are_found() {
    let world = buffer_readers();
    let findings = found(&world);
    assert_eq!(
        told(&findings, "far-buffers"),
        "threads 1000, 1001 of reader: on node 0, far from their buffers: 90 % of 2.0 GB/s are on node 1"
    );
    assert_eq!(findings[0].gain.unwrap().bytes_per_s(), 1600 * MB);
}

#[test]
fn threads_kept_far_from_their_buffers_are_found() {
    let mut world = buffer_readers();
    world.snapshot.threads[0].allowed = cpus(0..2).into();
    world.snapshot.threads[1].allowed = cpus(0..4).into();
    world.snapshot.threads[1].cpuset = cpus(0..4).into();
    let findings = of_kind(&found(&world), "far-buffers");
    let said: Vec<String> = findings.iter().map(|finding| finding.problem.to_string()).collect();
    let far = "on node 0, far from its buffers: 90 % of 1.0 GB/s are on node 1, and cannot move: ";
    assert_eq!(
        said,
        [
            format!("{far}someone has set its mask so"),
            format!("{far}its cpuset has no CPU there")
        ]
    );
    // A file of theirs can come instead.
    world.add_file(7, 1, 100 * MB);
    world.fixed.clear();
    for reader in 0..2 {
        world.add_use(reader, 7, 900 * MB);
    }
    world.observe();
    let findings = found(&world);
    assert_eq!(
        told(&findings, "far-buffers"),
        "threads 1000, 1001 of reader: on node 0, far from their buffers: 100 % of 1.8 GB/s are on node 1; files of \
         the pool can come to them"
    );
    assert_eq!(findings[0].gain.unwrap().bytes_per_s(), 1800 * MB);
}

#[test]
fn threads_near_their_buffers_or_with_device_traffic_are_no_finding() {
    let mut world = buffer_readers();
    for thread in &mut world.snapshot.threads {
        thread.cpu = homenode_policy::CpuId(4);
    }
    assert_eq!(found(&world), []);
    let mut world = with_reader(two_nodes(), 0);
    world.fixed.push((0, NodeId(1), 100 * MB));
    world.observe();
    assert_eq!(found(&world), []);
}
