//! From period to period: steady loads settle, uneven ones do not make things hop, and the order of what was seen does
//! not matter.

use crate::seeded;
use crate::world::{MB, World, dwelling, with_policy};
use crate::worlds::{middle, small};
use homenode_policy::affinity::{Action, Config, Interrupt, Policy, Previous, Target, decide};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        3 => Just(Policy::Local),
        1 => Just(Policy::Spread),
        1 => Just(Policy::Pack),
        1 => Just(Policy::SingleCore),
    ]
}

#[test]
fn a_steady_load_settles_in_three_periods_and_two_dwell_times() {
    seeded::check(
        300,
        (prop_oneof![small(), middle()], policies(), 0..12u64),
        |(mut world, policy, dwell_periods)| {
            let config = Config {
                policy,
                dwell_periods,
                ..Config::default()
            };
            // Times of waiting would differ after each move.
            world
                .snapshot
                .threads
                .iter_mut()
                .for_each(|thread| thread.waited_ns = 0);
            let (mut previous, mut history) = (Previous::default(), String::new());
            for round in 0..20 + 2 * dwell_periods {
                let plan = world.period(&config, &mut previous);
                for action in &plan.actions {
                    writeln!(history, "period {round}: {action:?}").expect("writing to a string cannot fail");
                }
                // A first plan may need a correction, for which the threads that it moved wait out their dwell time. A thread that moved a period later
                // is too late for that correction, and may change places with one that took part in it, after as long again.
                prop_assert!(round < 3 + 2 * dwell_periods || plan.actions.is_empty(), "{history}");
            }
            Ok(())
        },
    );
}

/// Each half of what was bound to two full CPUs had its reason to go to the other CPUs whenever the other half had gone there.
#[test]
fn two_busy_queues_and_their_threads_do_not_change_places_for_ever() {
    let mut world = World::new(&[4], 21, 2);
    world.add_card("eth0", Some(0), &[0, 1]);
    for (cpu, busy) in [(0, 5), (2, 80), (0, 57), (2, 52)] {
        world.add_thread("worker", cpu, busy);
    }
    for (thread, queue, bytes) in [(0, 0, 1559), (0, 1, 1211), (1, 1, 442), (2, 0, 1132), (3, 1, 1250)] {
        world.add_stream(thread, "eth0", queue, bytes * MB);
    }
    world.observe();
    let (config, mut previous) = (dwelling(2), Previous::default());
    let moves: Vec<usize> = (0..20)
        .map(|_| world.period(&config, &mut previous).actions.len())
        .collect();
    assert!(moves[0] > 0 && moves[7..].iter().all(|count| *count == 0), "{moves:?}");
}

#[test]
fn an_oscillating_load_moves_no_target_twice_in_the_dwell_time() {
    seeded::check(
        100,
        (middle(), middle(), policies(), 1..9u64),
        |(one, other, policy, dwell_periods)| {
            let config = Config {
                policy,
                dwell_periods,
                ..Config::default()
            };
            let mut world = one.clone();
            let mut previous = Previous::default();
            let mut moved: BTreeMap<Target, u64> = BTreeMap::new();
            for round in 0..30 {
                // The same threads with the bytes of one world, then of the other.
                let source = if round % 2 == 0 { &one } else { &other };
                for (index, thread) in world.snapshot.threads.iter_mut().enumerate() {
                    let Some(like) = source.snapshot.threads.get(index) else {
                        continue;
                    };
                    thread.disk.clone_from(&like.disk);
                    thread.sent.clone_from(&like.sent);
                    thread.cpu_ns = like.cpu_ns;
                }
                world.fixed.clone_from(&source.fixed);
                world.fixed.retain(|(thread, node, _)| {
                    *thread < world.snapshot.threads.len() && world.snapshot.topology.node(*node).is_some()
                });
                for (index, stream) in world.streams.iter_mut().enumerate() {
                    stream.bytes = source.streams.get(index).map_or(0, |stream| stream.bytes);
                }
                world.observe();
                let actions = world.period(&config, &mut previous).actions.into_iter();
                for action in actions.filter(Action::moves) {
                    if let Some(last) = moved.insert(action.target.clone(), round) {
                        prop_assert!(round - last >= dwell_periods, "{} in {last} and {round}", action.target);
                    }
                }
            }
            Ok(())
        },
    );
}

#[test]
fn no_interrupt_moves_to_an_isolated_cpu() {
    seeded::check(
        300,
        (prop_oneof![small(), middle()], policies(), any::<u64>()),
        |(mut world, policy, chosen)| {
            let config = with_policy(policy);
            let online = world.snapshot.online.iter();
            let isolated = online.filter(|cpu| chosen >> (cpu.0 % 64) & 1 == 1);
            world.snapshot.isolated = isolated.copied().collect();
            let found = world.snapshot.interrupts.iter();
            let found: BTreeMap<u32, Vec<_>> = found.map(|it| (it.number, it.affinity.clone())).collect();
            let mut previous = Previous::default();
            for _ in 0..8 {
                let plan = world.period(&config, &mut previous);
                for action in &plan.actions {
                    let Target::Interrupt(number) = action.target else {
                        continue;
                    };
                    // It may go back to where it was found.
                    let may_have = |cpu| !world.snapshot.isolated.contains(cpu) || found[&number].contains(cpu);
                    prop_assert!(action.to.iter().all(may_have), "{action:?}");
                }
            }
            Ok(())
        },
    );
}

#[test]
fn plans_do_not_depend_on_the_snapshots_order() {
    seeded::check(
        100,
        (middle(), policies(), any::<u64>()),
        |(mut world, policy, seed)| {
            let config = with_policy(policy);
            let plan = decide(&world.snapshot, &config, &Previous::default());
            let key = |index: usize| (index as u64 + 1).wrapping_mul(seed | 1) >> 7;
            let snapshot = &mut world.snapshot;
            shuffle(&mut snapshot.threads, key);
            shuffle(&mut snapshot.queues, key);
            shuffle(&mut snapshot.interrupts, key);
            shuffle(&mut snapshot.files, key);
            prop_assert_eq!(plan, decide(&world.snapshot, &config, &Previous::default()));
            Ok(())
        },
    );
}

fn shuffle<T>(list: &mut Vec<T>, key: impl Fn(usize) -> u64) {
    let mut keyed: Vec<(u64, T)> = list
        .drain(..)
        .enumerate()
        .map(|(index, item)| (key(index), item))
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    list.extend(keyed.into_iter().map(|(_, item)| item));
}

/// Cpusets, running CPUs and managed interrupts are seen to by the world, which panics as a kernel refuses.
#[test]
fn foreign_masks_are_left_alone() {
    seeded::check(300, (middle(), policies()), |(mut world, policy)| {
        let config = Config {
            policy,
            dwell_periods: 1,
            hysteresis_percent: 0,
            ..Config::default()
        };
        let found = world.snapshot.clone();
        let mut previous = Previous::default();
        for _ in 0..4 {
            world.period(&config, &mut previous);
        }
        for (before, after) in found.threads.iter().zip(&world.snapshot.threads) {
            let foreign = before.allowed != before.cpuset;
            prop_assert!(
                !foreign || before.allowed == after.allowed,
                "{before:?} became {after:?}"
            );
        }
        let managed = |interrupts: &[Interrupt]| -> Vec<Interrupt> {
            interrupts
                .iter()
                .filter(|interrupt| interrupt.managed)
                .cloned()
                .collect()
        };
        prop_assert_eq!(managed(&found.interrupts), managed(&world.snapshot.interrupts));
        Ok(())
    });
}

#[test]
fn a_swinging_thread_moves_once_a_dwell_time() {
    let mut world = World::new(&[2, 2], 21, 2);
    world.add_wide_disk("nvme0n1", Some(0));
    world.add_wide_disk("nvme1n1", Some(1));
    let thread = world.add_thread("fio", 0, 10);
    let config = dwelling(5);
    let mut previous = Previous::default();
    let mut moves = Vec::new();
    for round in 0..40u64 {
        world.snapshot.threads[thread].disk.clear();
        let disk = ["nvme1n1", "nvme0n1"][(round % 2) as usize];
        world.add_disk_bytes(thread, disk, 500 * MB);
        if !world.period(&config, &mut previous).actions.is_empty() {
            moves.push(round);
        }
    }
    assert_eq!(moves, [0, 5, 10, 15, 20, 25, 30, 35]);
}
