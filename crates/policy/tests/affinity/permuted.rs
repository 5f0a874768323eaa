//! Eight nodes of one CPU, and a reader on each whose buffers are on another: none has room at home before another leaves.

use crate::seeded;
use crate::world::{MB, World, cpus, dwelling};
use homenode_policy::NodeId;
use homenode_policy::affinity::{Config, Previous, Reason, Why, decide};
use proptest::prelude::*;

const NODES: u16 = 8;
/// Bytes a second of readers in a guest whose CPUs are emulated.
const SLOW: [u64; 8] = [3 * MB, 4 * MB, 5 * MB, 6 * MB, 7 * MB, 3 * MB, 4 * MB, 5 * MB];
/// Less than is looked at.
const SMALL: u64 = 666_504;

/// A reader on each node; `homes` has the nodes of their buffers.
fn readers(homes: &[u16], rates: &[u64], busy_percent: u64) -> World {
    let mut world = World::new(&[1; NODES as usize], 20, 2);
    for (node, (home, rate)) in (0..).zip(homes.iter().zip(rates)) {
        let reader = world.add_thread("reader", node, busy_percent);
        world.fixed.push((reader, NodeId(*home), *rate));
    }
    world.observe();
    world
}

/// Each reader's buffers are on the node after its own.
fn shifted(rates: &[u64], busy_percent: u64) -> World {
    let homes: Vec<u16> = (0..NODES).map(|node| (node + 1) % NODES).collect();
    readers(&homes, rates, busy_percent)
}

fn set_rate(world: &mut World, reader: usize, bytes: u64) {
    world.fixed[reader].2 = bytes;
    world.observe();
}

/// The readers that may run elsewhere than at home.
fn misplaced(world: &World) -> Vec<usize> {
    let at_home = |(reader, home, _): &&(usize, NodeId, u64)| {
        world.snapshot.threads[*reader].allowed[..] == cpus([u32::from(home.0)])
    };
    let away = world.fixed.iter().filter(|one| !at_home(one));
    away.map(|(reader, ..)| *reader).collect()
}

fn after_one_plan(mut world: World) -> World {
    world.period(&Config::default(), &mut Previous::default());
    world
}

#[test]
fn readers_in_a_cycle_move_home_in_one_plan() {
    for length in 1..=NODES {
        // The first nodes are one cycle, the others another.
        let next = |node: u16| match node < length {
            true => (node + 1) % length,
            false => length + (node - length + 1) % (NODES - length),
        };
        let homes: Vec<u16> = (0..NODES).map(next).collect();
        for busy_percent in [15, 70] {
            let done = after_one_plan(readers(&homes, &SLOW, busy_percent));
            assert_eq!(misplaced(&done), [0; 0], "cycle of {length}, {busy_percent} % busy");
        }
    }
}

#[test]
fn readers_in_any_order_move_home_in_one_plan() {
    let homes = || Just((0..NODES).collect::<Vec<_>>()).prop_shuffle();
    let slow = (homes(), proptest::collection::vec(3 * MB..7 * MB, 8), 1..=100_u64);
    let fast = (homes(), proptest::collection::vec(500 * MB..3000 * MB, 8), 1..=100_u64);
    seeded::check(200, prop_oneof![slow, fast], |(homes, rates, busy_percent)| {
        let done = after_one_plan(readers(&homes, &rates, busy_percent));
        prop_assert_eq!(misplaced(&done), vec![0; 0]);
        Ok(())
    });
}

#[test]
fn a_reader_with_too_small_a_gain_is_not_bound_near_its_buffers() {
    let mut rates = SLOW;
    rates[3] = 11 * MB / 10;
    let mut world = shifted(&rates, 15);
    let mut previous = Previous::default();
    let plan = world.period(&Config::default(), &mut previous);
    assert!(
        matches!(plan.stay(&world.target(3)).unwrap().why, Why::TooLittle { .. }),
        "{plan:?}"
    );
    assert_eq!(misplaced(&world), [3]);
    assert_eq!(world.snapshot.threads[3].allowed[..], world.snapshot.online);
    // More bytes, or the scheduler, bring it home, and there it is kept.
    let mut busier = world.clone();
    set_rate(&mut busier, 3, 5 * MB);
    busier.period(&Config::default(), &mut previous.clone());
    assert_eq!(misplaced(&busier), [0; 0]);
    world.snapshot.threads[3].cpu = cpus([4])[0];
    let plan = world.period(&Config::default(), &mut previous);
    assert!(matches!(
        plan.action(&world.target(3)).unwrap().reason,
        Reason::Kept { node: NodeId(4), .. }
    ));
}

#[test]
fn readers_that_fill_their_cpus_move_home_in_one_plan() {
    assert_eq!(misplaced(&after_one_plan(shifted(&SLOW, 100))), [0; 0]);
}

/// Readers and a server's thread fill each CPU together, and others run a little: every period shows other shares.
#[test]
fn varying_loads_of_full_cpus_move_no_thread() {
    let homes = || Just((0..NODES).collect::<Vec<_>>()).prop_shuffle();
    let percents = || proptest::collection::vec((31..43_u64, 40..60_u64, 0..8_u64, 0..100_u64), 8);
    let worlds = (
        homes(),
        proptest::collection::vec(3 * MB..7 * MB, 8),
        proptest::collection::vec(percents(), 12),
    );
    let config = dwelling(0);
    seeded::check(50, worlds, |(homes, rates, periods)| {
        let mut world = readers(&homes, &rates, 50);
        for node in 0..2 * u32::from(NODES) {
            let other = world.add_thread("other", node % u32::from(NODES), 0);
            world.snapshot.threads[other].allowed = cpus([node % u32::from(NODES)]).into();
        }
        let mut previous = Previous::default();
        for (index, percents) in periods.iter().enumerate() {
            for (node, (reads, serves, rest, waits)) in percents.iter().enumerate() {
                let here = |reader: &usize| world.snapshot.threads[*reader].cpu.0 as usize == node;
                let reader = (0..8).find(here).expect("a reader on each CPU");
                let took = [(reader, *reads), (8 + node, *serves), (16 + node, *rest)];
                for (thread, percent) in took {
                    let it = &mut world.snapshot.threads[thread];
                    it.cpu_ns = percent * 10_000_000;
                    // Those who run rarely wait for the others.
                    it.waited_ns = if thread < 16 {
                        it.cpu_ns * waits / 300
                    } else {
                        waits * 10_000_000
                    };
                }
            }
            let plan = world.period(&config, &mut previous);
            prop_assert_eq!(misplaced(&world), vec![0; 0], "period {}: {:?}", index, plan);
            prop_assert!(index == 0 || plan.actions.is_empty(), "period {}: {:?}", index, plan);
        }
        Ok(())
    });
}

/// Two readers of one node's buffers, on its only CPU: each has half of it, or it is enough for both.
#[test]
fn a_reader_leaves_a_full_cpu_only_if_others_wait_for_it() {
    let there = |waited_percent: u64| {
        let mut world = World::new(&[1, 1], 20, 2);
        for _ in 0..2 {
            let reader = world.add_thread("reader", 0, 49);
            world.snapshot.threads[reader].waited_ns = waited_percent * 10_000_000;
            world.fixed.push((reader, NodeId(0), 5 * MB));
        }
        world.observe();
        let done = after_one_plan(world);
        done.snapshot
            .threads
            .iter()
            .filter(|reader| reader.cpu == cpus([1])[0])
            .count()
    };
    assert_eq!((there(0), there(50)), (0, 1));
}

/// Each has two hundredths of the only CPU, and waited for it all the rest of the time. Another one is idle.
#[test]
fn some_of_many_readers_that_share_a_full_cpu_leave_it() {
    let mut world = World::new(&[1, 1], 20, 2);
    let mut previous = Previous::default();
    for _ in 0..48 {
        let reader = world.add_thread("reader", 0, 2);
        world.snapshot.threads[reader].waited_ns = 980_000_000;
        world.snapshot.threads[reader].allowed = cpus([0]).into();
        previous.note(world.target(reader), cpus([0]));
        world.fixed.push((reader, NodeId(0), 5 * MB));
    }
    world.observe();
    world.period(&Config::default(), &mut previous);
    let mut readers = world.snapshot.threads.iter();
    assert!(readers.any(|reader| reader.cpu == cpus([1])[0]));
}

/// Two threads that are bound to one CPU of a node of eight.
#[test]
fn a_full_cpu_has_a_cost_beside_idle_ones() {
    let cost = |waited_percent: u64| {
        let mut world = World::new(&[8, 8], 20, 8);
        for _ in 0..2 {
            let reader = world.add_thread("reader", 0, 50);
            world.snapshot.threads[reader].waited_ns = waited_percent * 10_000_000;
            world.snapshot.threads[reader].allowed = cpus([0]).into();
            world.fixed.push((reader, NodeId(0), 500 * MB));
        }
        world.observe();
        let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
        plan.cost_before.bytes_per_s()
    };
    // Both want 80 % of it, and 20 % more are borne.
    assert_eq!((cost(10), cost(50)), (0, 2_400_000_000));
}

/// Tests a reader put on another node than its buffers, because a reader that has just moved has their CPU.
#[test]
fn a_displaced_reader_makes_way_even_with_little_traffic() {
    let mut world = shifted(&[0; NODES as usize], 70);
    let config = dwelling(3);
    let mut previous = Previous::default();
    world.snapshot.threads[2].cpu = cpus([3])[0];
    world.fixed[2] = (2, NodeId(2), SLOW[2]);
    world.observe();
    assert_eq!(world.period(&config, &mut previous).actions.len(), 1);
    for (reader, rate) in SLOW.into_iter().enumerate() {
        set_rate(&mut world, reader, rate);
    }
    world.fixed[2] = (2, NodeId(3), SMALL);
    world.observe();
    let plan = world.period(&config, &mut previous);
    let put = plan.action(&world.target(1)).unwrap();
    assert!(matches!(put.reason, Reason::Relieved { .. }), "{put:?}");
    assert_eq!(put.to, cpus([3]));
    assert_eq!(plan.stay(&world.target(2)).unwrap().why, Why::Dwell { periods_left: 2 });
    assert_eq!(misplaced(&world), [1, 2]);
    set_rate(&mut world, 1, SMALL);
    set_rate(&mut world, 2, SLOW[2]);
    for periods_left in [2, 1] {
        let plan = world.period(&config, &mut previous);
        assert_eq!(plan.stay(&world.target(1)).unwrap().why, Why::Dwell { periods_left });
        assert_eq!(plan.actions, []);
    }
    world.period(&config, &mut previous);
    assert_eq!(misplaced(&world), [0; 0]);
    for _ in 0..10 {
        assert_eq!(world.period(&config, &mut previous).actions, []);
    }
}

/// Readers of files, some of which have been moved before anybody knew where their files are.
#[test]
fn files_stay_while_resting_threads_block_their_places() {
    let mut world = World::new(&[1; NODES as usize], 20, 2);
    for node in 0..NODES {
        let reader = world.add_thread("reader", u32::from(node), 70);
        let inode = u64::from(node) + 1;
        world.add_file(inode, (node + 1) % NODES, 12 * MB);
        world.add_use(reader, inode, 6 * MB);
        world.fixed.push((reader, NodeId((node + 1) % NODES), 0));
    }
    let config = dwelling(3);
    let mut previous = Previous::default();
    // Two have buffers at each other's place besides, and change places.
    for (reader, home) in [(2, 5), (5, 2)] {
        world.fixed.push((reader, NodeId(home), 100 * MB));
    }
    for reader in [0, 1, 3, 4, 6, 7] {
        world.uses[reader].bytes = 1000;
    }
    world.observe();
    let plan = world.period(&config, &mut previous);
    assert_eq!((plan.actions.len(), plan.files.len()), (2, 0), "{plan:?}");
    world.fixed.truncate(usize::from(NODES));
    world.uses.iter_mut().for_each(|it| it.bytes = 6 * MB);
    world.observe();
    for _ in 0..8 {
        assert_eq!(world.period(&config, &mut previous).files, []);
    }
    assert_eq!(misplaced(&world), [0; 0]);
}

/// Divides the time of each CPU fairly among threads that would take so much of it, in percent; they wait the rest of that time.
fn share(world: &mut World, demands: &[u64]) {
    for cpu in world.snapshot.online.clone() {
        let mut here: Vec<usize> = (0..demands.len())
            .filter(|it| world.snapshot.threads[*it].cpu == cpu)
            .collect();
        here.sort_by_key(|it| demands[*it]);
        let mut left = 100;
        for (index, thread) in here.iter().enumerate() {
            let took = demands[*thread].min(left / (here.len() - index) as u64);
            left -= took;
            let it = &mut world.snapshot.threads[*thread];
            it.cpu_ns = took * 10_000_000;
            it.waited_ns = (demands[*thread] - took) * 10_000_000;
        }
    }
}

/// Readers take whatever their CPUs have, and threads that may run anywhere come by. Where some readers' buffers are is not known at first.
/// All readers are at home as soon as it is known, and stay.
#[test]
fn threads_that_come_by_move_no_reader() {
    let homes = || Just((0..NODES).collect::<Vec<_>>()).prop_shuffle();
    let visits = || proptest::collection::vec((0..NODES, prop_oneof![3 => 0..40_u64, 1 => 40..=100_u64]), 3);
    let worlds = (
        homes(),
        proptest::collection::vec((0..u32::from(NODES), 3 * MB..15 * MB, 0..3_usize), 8),
        proptest::collection::vec(visits(), 20),
    );
    seeded::check(200, worlds, |(homes, rates, periods)| {
        let mut world = readers(&homes, &[0; NODES as usize], 100);
        for (reader, (cpu, ..)) in rates.iter().enumerate() {
            world.snapshot.threads[reader].cpu = cpus([*cpu])[0];
        }
        for _ in 0..3 {
            world.add_thread("other", 0, 0);
        }
        let mut previous = Previous::default();
        for (index, visits) in periods.iter().enumerate() {
            for (reader, (_, rate, unknown)) in rates.iter().enumerate() {
                set_rate(&mut world, reader, if index < *unknown { 0 } else { *rate });
            }
            let mut demands = vec![100; usize::from(NODES)];
            for (visitor, (node, percent)) in visits.iter().enumerate() {
                world.snapshot.threads[usize::from(NODES) + visitor].cpu = cpus([u32::from(*node)])[0];
                demands.push(*percent);
            }
            share(&mut world, &demands);
            let plan = world.period(&Config::default(), &mut previous);
            prop_assert!(
                index <= 2 || plan.actions.is_empty(),
                "period {index}: {:?}",
                plan.actions
            );
            let unknown: Vec<usize> = (0..8).filter(|reader| index < rates[*reader].2).collect();
            prop_assert_eq!(misplaced(&world), unknown, "period {}: {:?}", index, plan);
        }
        Ok(())
    });
}

/// Nine readers have eight CPUs: nothing is gained by changing from period to period which two share one.
#[test]
fn a_reader_too_many_settles() {
    let homes = || proptest::collection::vec(0..NODES, 9);
    seeded::check(
        100,
        (homes(), proptest::collection::vec(3 * MB..15 * MB, 9)),
        |(homes, rates)| {
            let mut world = readers(&homes[..8], &rates, 100);
            let last = world.add_thread("reader", 0, 100);
            let visitor = world.add_thread("other", 0, 0);
            world.fixed.push((last, NodeId(homes[8]), rates[8]));
            world.observe();
            let mut previous = Previous::default();
            for index in 0..60_u32 {
                world.snapshot.threads[visitor].cpu = cpus([index * 3 % u32::from(NODES)])[0];
                let mut demands = [100; 10];
                demands[visitor] = u64::from(index) * 37 % 100;
                share(&mut world, &demands);
                let plan = world.period(&Config::default(), &mut previous);
                prop_assert!(
                    index < 25 || plan.actions.is_empty(),
                    "period {index}: {:?}",
                    plan.actions
                );
            }
            Ok(())
        },
    );
}

/// Fifteen readers have eight CPUs, which are enough for them, and a thread that may run anywhere waits for one of these.
#[test]
fn a_thread_that_may_run_anywhere_makes_no_cpus_too_busy() {
    let mut world = World::new(&[8, 8], 20, 8);
    for index in 0..15 {
        let reader = world.add_thread("reader", index % 8, 50);
        world.snapshot.threads[reader].waited_ns = 50_000_000;
        world.fixed.push((reader, NodeId(0), 10 * MB));
    }
    let other = world.add_thread("other", 0, 40);
    world.snapshot.threads[other].waited_ns = 400_000_000;
    world.observe();
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    assert!(plan.actions.iter().all(|action| !action.moves()), "{plan:?}");
    assert_eq!(plan.cost_before.bytes_per_s(), 0);
}
