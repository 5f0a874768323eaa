//! Threads and the buffers they copy from and to: threads go to them, or files come to threads.

use crate::seeded;
use crate::world::{MB, World, cpus, dwelling, file, why, with_policy};
use crate::worlds::middle;
use homenode_policy::NodeId;
use homenode_policy::affinity::cost::BUFFER_BYTES_PER_S_MAX;
use homenode_policy::affinity::{
    Class, Config, FileReason, MoveFile, Plan, Policy, Previous, Reason, Target, Why, decide,
};
use proptest::prelude::*;

const FAR: u64 = 1000 * MB;

fn two_nodes() -> World {
    World::new(&[2, 2], 20, 2)
}

/// A thread on node 0 with nine tenths of its buffers on node 1.
fn far_reader() -> World {
    let mut world = two_nodes();
    let reader = world.add_thread("reader", 0, 20);
    world.fixed = vec![(reader, NodeId(0), FAR / 9), (reader, NodeId(1), FAR)];
    world.observe();
    world
}

/// Threads on node 0, as many as told, that use a file on node 1 at 1 GB/s each.
fn users(threads: usize, file_bytes: u64) -> World {
    let mut world = two_nodes();
    world.add_file(7, 1, file_bytes);
    for _ in 0..threads {
        let reader = world.add_thread("reader", 0, 20);
        world.add_use(reader, 7, FAR);
    }
    world.observe();
    world
}

fn plan(world: &World) -> Plan {
    decide(&world.snapshot, &Config::default(), &Previous::default())
}

/// The one file that moves.
fn moved(plan: &Plan) -> &MoveFile {
    let [one] = &plan.files[..] else { panic!("{plan:?}") };
    assert_eq!((one.file, one.to), (file(7), NodeId(0)));
    one
}

#[test]
fn a_thread_far_from_its_buffers_moves_to_them() {
    let world = far_reader();
    let plan = plan(&world);
    let action = plan.action(&world.target(0)).unwrap();
    assert_eq!(action.to, cpus(2..4));
    assert_eq!(
        action.reason,
        Reason::NearBuffers {
            thread: "reader-1000".to_owned(),
            home: NodeId(1),
            percent: 90,
            bytes_per_s: FAR + FAR / 9,
            node: NodeId(1),
        }
    );
    assert_eq!(
        action.reason.to_string(),
        "reader-1000: its buffers are on node 1: 90 % of 1.1 GB/s"
    );
    assert_eq!(
        (plan.cost_before.bytes_per_s(), plan.cost_after.bytes_per_s()),
        (FAR, FAR / 9)
    );
}

#[test]
fn a_rate_above_any_cpus_copy_rate_is_capped() {
    let mut world = far_reader();
    world.fixed = vec![(0, NodeId(1), u64::MAX / 4)];
    world.observe();
    assert_eq!(plan(&world).cost_before.bytes_per_s(), BUFFER_BYTES_PER_S_MAX);
}

#[test]
fn a_thread_moves_as_near_as_its_cpuset_allows() {
    let mut world = World::new(&[2, 2, 2], 20, 2);
    let reader = world.add_thread("reader", 0, 20);
    world.fixed.push((reader, NodeId(2), FAR));
    world.confine(reader, 0..4);
    world.observe();
    // All are as far.
    let far = plan(&world);
    assert_eq!(why(&far, &world.target(reader)), &Why::Best);
}

#[test]
fn a_near_thread_stays_and_few_bytes_move_nothing() {
    let mut world = far_reader();
    world.snapshot.threads[0].cpu = cpus([2])[0];
    let kept = plan(&world);
    assert!(matches!(
        kept.action(&world.target(0)).unwrap().reason,
        Reason::Kept { node: NodeId(1), .. }
    ));
    let mut world = two_nodes();
    let reader = world.add_thread("reader", 0, 20);
    world.fixed.push((reader, NodeId(1), 1000));
    world.observe();
    assert_eq!(
        why(&plan(&world), &world.target(reader)),
        &Why::Small { bytes_per_s: 1000 }
    );
}

#[test]
fn a_gain_below_the_hysteresis_moves_nothing() {
    let mut world = two_nodes();
    let reader = world.add_thread("reader", 0, 20);
    world.fixed = vec![(reader, NodeId(0), 95 * FAR / 100), (reader, NodeId(1), FAR)];
    world.observe();
    // Its mask was narrowed by an earlier run, so that it is not bound to where it is.
    world.snapshot.threads[reader].allowed = cpus(0..2).into();
    let mut previous = Previous::default();
    previous.note(world.target(reader), cpus(0..2));
    let plan = decide(&world.snapshot, &Config::default(), &previous);
    let Why::TooLittle { gain, price } = why(&plan, &world.target(reader)) else {
        panic!("{plan:?}")
    };
    assert!(gain < price && gain.bytes_per_s() == FAR / 20, "{gain} {price}");
}

#[test]
fn a_thread_with_more_disk_bytes_stays_near_its_disk() {
    for (disk_mb, class, moves) in [(4000, Class::Disk, false), (500, Class::Buffers, true)] {
        let mut world = far_reader();
        world.add_wide_disk("nvme0n1", Some(0));
        world.add_disk_bytes(0, "nvme0n1", disk_mb * MB);
        let thread_bytes = &world.snapshot.threads[0];
        let found = Class::of(0, disk_mb * MB, thread_bytes.memory_bytes(), 1);
        assert_eq!(found, class);
        let plan = plan(&world);
        let goes = plan
            .action(&world.target(0))
            .is_some_and(|action| action.to == cpus(2..4));
        assert_eq!(goes, moves, "{plan:?}");
    }
}

#[test]
fn device_policies_do_not_place_threads_without_devices() {
    let world = far_reader();
    for policy in [Policy::Spread, Policy::Pack, Policy::SingleCore] {
        let config = with_policy(policy);
        let plan = decide(&world.snapshot, &config, &Previous::default());
        assert_eq!(why(&plan, &world.target(0)), &Why::DeviceUnknown);
    }
}

#[test]
fn a_file_moves_to_a_thread_that_cannot_move() {
    let by_cpuset = |world: &mut World| {
        world.confine(0, 0..2);
    };
    let by_others = |world: &mut World| world.snapshot.threads[0].allowed = cpus([0]).into();
    for (hold, expected) in [(by_cpuset as fn(&mut World), Why::OnePlace), (by_others, Why::Foreign)] {
        let mut world = users(1, 100 * MB);
        hold(&mut world);
        let plan = plan(&world);
        assert_eq!(why(&plan, &world.target(0)), &expected);
        let one = moved(&plan);
        assert_eq!(
            (one.reason, one.threads, one.bytes, one.saved_bytes_per_s),
            (FileReason::Held, 1, 100 * MB, FAR)
        );
        assert_eq!(
            one.to_string(),
            "a thread on node 0 uses it and cannot move: 1.0 GB/s cross nodes"
        );
        assert_eq!(
            (plan.cost_before.bytes_per_s(), plan.cost_after.bytes_per_s()),
            (FAR, 0)
        );
    }
}

#[test]
fn a_file_stays_if_moving_is_too_dear_full_or_disabled() {
    let mut world = users(1, 2600 * MB);
    world.snapshot.threads[0].allowed = cpus([0]).into();
    assert_eq!(plan(&world).files, [], "4 bytes of remote access a byte, within 10 s");
    let mut world = users(1, 100 * MB);
    world.snapshot.threads[0].allowed = cpus([0]).into();
    let config = Config {
        moves_files: false,
        ..Config::default()
    };
    assert_eq!(decide(&world.snapshot, &config, &Previous::default()).files, []);
    let off = with_policy(Policy::Off);
    assert_eq!(decide(&world.snapshot, &off, &Previous::default()).files, []);
    world.snapshot.threads[0].is_new = true;
    assert_eq!(plan(&world).files, [], "a new thread moves no file");
    world.snapshot.threads[0].is_new = false;
    assert_eq!(plan(&world).files.len(), 1);
    world.snapshot.files[0].room[0].1 = 99 * MB;
    assert_eq!(plan(&world).files, []);
}

#[test]
fn a_small_file_moves_to_its_threads_and_threads_move_to_a_large_file() {
    // Two moves cost 2 MiB/s.
    let world = users(2, 2 * MB);
    let small = plan(&world);
    assert_eq!(moved(&small).reason, FileReason::Together);
    assert!(
        (0..2).all(|index| small.action(&world.target(index)).is_none_or(|action| !action.moves())),
        "{small:?}"
    );
    let world = users(2, 8 * MB);
    let large = plan(&world);
    assert_eq!(large.files, []);
    assert!((0..2).all(|index| large.action(&world.target(index)).unwrap().to == cpus(2..4)));
    let world = users(1, MB / 8);
    assert_eq!(plan(&world).files, [], "a single thread moves to the file");
}

#[test]
fn a_file_moves_to_a_thread_held_by_its_disk() {
    let mut world = users(1, 100 * MB);
    world.add_wide_disk("nvme0n1", Some(0));
    world.add_disk_bytes(0, "nvme0n1", 4000 * MB);
    let plan = plan(&world);
    assert_eq!(moved(&plan).reason, FileReason::Placed);
    assert_eq!(
        (plan.cost_before.bytes_per_s(), plan.cost_after.bytes_per_s()),
        (FAR, 0)
    );
}

#[test]
fn a_file_used_by_two_nodes_stays() {
    let mut world = users(2, 100 * MB);
    world.snapshot.threads[0].allowed = cpus([0]).into();
    world.snapshot.threads[1].allowed = cpus([2]).into();
    world.snapshot.threads[1].cpu = cpus([2])[0];
    assert_eq!(plan(&world).files, []);
}

#[test]
fn a_moved_file_rests_twice_as_long_after_each_move() {
    let mut world = users(2, 100 * MB);
    world.snapshot.threads[0].allowed = cpus([0]).into();
    world.snapshot.threads[1].allowed = cpus([2]).into();
    world.snapshot.threads[1].cpu = cpus([2])[0];
    let config = dwelling(3);
    let (mut previous, mut moves) = (Previous::default(), Vec::new());
    for period in 0..30 {
        // Both take turns, a period each.
        world.uses[0].bytes = FAR * (1 - period % 2);
        world.uses[1].bytes = FAR * (period % 2);
        world.observe();
        let plan = world.period(&config, &mut previous);
        moves.extend(plan.files.iter().map(|_| period));
    }
    assert_eq!(moves, [0, 3, 10, 23]);
}

#[test]
fn a_moved_file_rests_also_when_a_pause_takes_it_out_of_the_snapshot() {
    let mut world = users(2, 100 * MB);
    world.snapshot.threads[0].allowed = cpus([0]).into();
    world.snapshot.threads[1].allowed = cpus([2]).into();
    world.snapshot.threads[1].cpu = cpus([2])[0];
    let config = dwelling(4);
    let (mut previous, mut moves) = (Previous::default(), Vec::new());
    for period in 0..20 {
        // Both take turns, with a pause behind each.
        world.uses[0].bytes = FAR * u64::from(period % 4 == 0);
        world.uses[1].bytes = FAR * u64::from(period % 4 == 2);
        world.observe();
        if period % 2 == 1 {
            let files = std::mem::take(&mut world.snapshot.files);
            world.decide(&config, &mut previous);
            world.snapshot.files = files;
            continue;
        }
        let plan = world.period(&config, &mut previous);
        moves.extend(plan.files.iter().map(|_| period));
    }
    assert_eq!(moves, [0, 6, 12, 18]);
}

/// Cpusets are seen to by the world, which panics as a kernel refuses.
#[test]
fn plans_with_files_have_exact_costs_and_no_other_moves() {
    let (files, threads) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    seeded::check(400, (middle(), 0..30u32), |(world, hysteresis_percent)| {
        let config = Config {
            hysteresis_percent,
            ..Config::default()
        };
        let plan = decide(&world.snapshot, &config, &Previous::default());
        let mut done = world.clone();
        done.carry_out(&plan);
        prop_assert!(
            plan.cost_after <= plan.cost_before,
            "{} {}",
            plan.cost_before,
            plan.cost_after
        );
        // Files lie elsewhere after the plan; load that CPUs bear is that of before.
        let (after, facts) = (done.placement(), done.queue_facts());
        let borne = world.overload_cost(&after, &facts) - done.overload_cost(&after, &facts);
        for (told, found) in [
            (plan.cost_before, world.slow_cost(&world.placement())),
            (plan.cost_after, done.slow_cost(&after) + borne),
        ] {
            let told = told.bytes_per_s() as f64;
            prop_assert!((told - found).abs() <= found / 100.0 + 1e5, "{told}, should be {found}");
        }
        for thread in &world.snapshot.threads {
            let action = plan.action(&Target::Thread(thread.id));
            prop_assert!(thread.allowed == thread.cpuset || action.is_none(), "{action:?}");
            threads.set(
                threads.get()
                    + usize::from(matches!(
                        action.map(|action| &action.reason),
                        Some(Reason::NearBuffers { .. })
                    )),
            );
        }
        for one in &plan.files {
            prop_assert!(one.cost_after < one.cost_before, "{one:?}");
        }
        files.set(files.get() + plan.files.len());
        Ok(())
    });
    assert!(files.get() > 50 && threads.get() > 50, "{files:?} {threads:?}");
}
