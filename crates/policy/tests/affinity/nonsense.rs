//! Whatever is sensed or configured, there is a plan that can be carried out.

use crate::seeded;
use crate::world::{World, cpus, with_policy};
use crate::worlds::middle;
use homenode_policy::affinity::{Config, Cost, DeviceBytes, Policy, Previous, Received, decide};
use homenode_policy::{CpuId, NodeId};
use proptest::prelude::*;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::MAX / 2), any::<u64>()]
}

/// CPUs that are there, that are not, twice, or none.
fn set() -> impl Strategy<Value = Vec<CpuId>> {
    proptest::collection::vec(prop_oneof![0..40u32, Just(u32::MAX)], 0..6).prop_map(cpus)
}

fn spoil(world: &mut World, numbers: &[u64], sets: &[Vec<CpuId>]) {
    let mut numbers = numbers.iter().copied().cycle();
    let mut number = || numbers.next().expect("the iterator cycles");
    let mut sets = sets.iter().cloned().cycle();
    let mut set = || sets.next().expect("the iterator cycles");
    let snapshot = &mut world.snapshot;
    snapshot.period_ns = number();
    if number() % 4 == 1 {
        snapshot.online = set();
    }
    for thread in &mut snapshot.threads {
        thread.cpu_ns = number();
        thread.sent.iter_mut().for_each(|sent| sent.bytes = number());
        thread.disk.iter_mut().for_each(|disk| disk.bytes = number());
        thread.received.iter_mut().for_each(|way| way.bytes = number());
        thread.memory.iter_mut().for_each(|(_, bytes)| *bytes = number());
        thread.files.iter_mut().for_each(|(_, rate)| *rate = number());
        if number() % 3 == 1 {
            (thread.allowed, thread.cpuset) = (set().into(), set().into());
        }
        if number() % 5 == 1 {
            for cpu in [Some(CpuId(u32::MAX)), None] {
                for device in [Some("eth0"), Some("br0"), None] {
                    thread.received.push(Received {
                        cpu,
                        queue: device.map(|device| (device.to_owned(), 1)),
                        bytes: number(),
                    });
                }
            }
            thread.disk.iter_mut().for_each(|disk| disk.device = None);
            for device in ["eth0", "br0"] {
                thread.sent.push(DeviceBytes {
                    device: Some(device.to_owned()),
                    bytes: number(),
                });
            }
        }
    }
    for file in &mut snapshot.files {
        file.lies.push((NodeId(77), number()));
        file.lies.iter_mut().for_each(|(_, bytes)| *bytes = number());
        file.room.iter_mut().for_each(|(_, bytes)| *bytes = number());
    }
    for interrupt in &mut snapshot.interrupts {
        interrupt.arrivals.push((CpuId(u32::MAX), number()));
        interrupt.arrivals.push((CpuId(0), number()));
        if number() % 3 == 1 {
            (interrupt.affinity, interrupt.effective) = (set(), set());
        }
    }
    for queue in &mut snapshot.queues {
        if number() % 3 == 1 {
            queue.cpus = set();
            queue.interrupt = Some(u32::MAX);
        }
    }
}

#[test]
fn planning_survives_arbitrary_input() {
    let numbers = proptest::collection::vec(number(), 31);
    let sets = proptest::collection::vec(set(), 7);
    let policy = proptest::sample::select(&Policy::ALL);
    let actions = std::cell::Cell::new(0);
    seeded::check(
        400,
        (middle(), numbers, sets, policy),
        |(mut world, numbers, sets, policy)| {
            let small = |number: u64| u32::try_from(number & 0xffff_ffff).expect("the number is masked to 32 bits");
            let usual = with_policy(policy);
            let config = if numbers[5] % 2 == 0 {
                usual
            } else {
                Config {
                    dwell_periods: numbers[0],
                    hysteresis_percent: small(numbers[1]),
                    rate_bytes_per_s_min: numbers[2],
                    busy_percent_max: small(numbers[3]),
                    migration_price: Cost::new(numbers[4], 100),
                    ..usual
                }
            };
            spoil(&mut world, &numbers, &sets);
            let mut previous = Previous::default();
            for _ in 0..3 {
                let plan = decide(&world.snapshot, &config, &previous);
                actions.set(actions.get() + plan.actions.len());
                for action in &plan.actions {
                    prop_assert!(
                        action.to.iter().all(|cpu| world.snapshot.online.contains(cpu)),
                        "{action:?}"
                    );
                    prop_assert!(plan.stay(&action.target).is_none(), "{action:?}");
                }
                previous = previous.after(&plan, &world.snapshot, &config);
            }
            Ok(())
        },
    );
    assert!(actions.get() > 100, "too few plans had actions: {actions:?}");
}
