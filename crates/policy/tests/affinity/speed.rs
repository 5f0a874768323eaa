//! How long a decision takes on a machine larger than any that is common.

use crate::world::{MB, World, cpus, with_policy};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Config, Policy, Previous, QueueKind, decide};
use std::time::{Duration, Instant};

/// 8 nodes of 16 CPUs, 4 disks of 32 queues, 4 cards of 16 pairs of queues, 1024 threads; all of it on wrong nodes.
fn large(busy_percent: u64) -> World {
    let mut world = World::new(&[16; 8], 21, 16);
    for disk in 0..4u32 {
        let queues: Vec<Vec<CpuId>> = (0..32).map(|queue| cpus(queue * 4..queue * 4 + 4)).collect();
        let home = u16::try_from(disk * 2).expect("the number is small");
        world.add_disk(&format!("nvme{disk}n1"), Some(home), &queues);
    }
    for card in 0..4u32 {
        let places: Vec<u32> = (0..16).map(|queue| (queue * 8 + card * 3) % 128).collect();
        let home = u16::try_from(card * 2 + 1).expect("the number is small");
        world.add_card(&format!("eth{card}"), Some(home), &places);
    }
    for index in 0..1024u32 {
        let thread = world.add_thread("worker", index * 7 % 128, busy_percent);
        world.add_disk_bytes(thread, &format!("nvme{}n1", index % 4), u64::from(1 + index % 97) * MB);
        world.add_stream(
            thread,
            &format!("eth{}", index / 4 % 4),
            index / 16 % 16,
            u64::from(index % 61) * MB,
        );
        let card = format!("eth{}", index / 4 % 4);
        world.add_sent_bytes(thread, Some(&card), u64::from(index % 31) * MB);
        if index % 4 == 0 {
            let inode = u64::from(index / 16);
            if index % 16 == 0 {
                let home = u16::try_from(index / 16 % 8).expect("the number is small");
                world.add_file(inode, home, MB << (inode % 6));
            }
            world.add_use(thread, inode, u64::from(1 + index % 53) * MB);
        }
    }
    // XPS as kernels set it at first: each queue of a card has its share of the CPUs.
    for queue in &mut world.snapshot.queues {
        if queue.kind == QueueKind::Transmit {
            queue.cpus = cpus(queue.index * 8..queue.index * 8 + 8);
        }
    }
    world.observe();
    world
}

/// Ten milliseconds are promised of the optimized program; here, without optimization and beside other tests, much more
/// is allowed.
#[test]
fn a_large_machine_is_decided_quickly() {
    let limit = if cfg!(debug_assertions) { 1000 } else { 100 };
    for (policy, busy_percent) in [
        (Policy::Local, 3),
        (Policy::Local, 12),
        (Policy::Spread, 3),
        (Policy::Pack, 3),
    ] {
        let mut world = large(busy_percent);
        assert_eq!((world.snapshot.threads.len(), world.snapshot.queues.len()), (1024, 256));
        let config = with_policy(policy);
        let mut previous = Previous::default();
        for what in ["at first", "settled"] {
            let mut times: Vec<Duration> = Vec::new();
            let mut plan = decide(&world.snapshot, &config, &previous);
            for _ in 0..9 {
                let start = Instant::now();
                plan = decide(&world.snapshot, &config, &previous);
                times.push(start.elapsed());
            }
            times.sort();
            println!(
                "{policy}, threads busy {busy_percent} %, {what}: {:?} (least {:?}), {} actions, {} to {}",
                times[4],
                times[0],
                plan.actions.len(),
                plan.cost_before,
                plan.cost_after
            );
            assert!(times[0] < Duration::from_millis(limit), "{policy}: {times:?}");
            previous = previous.after(&plan, &world.snapshot, &config);
            world.carry_out(&plan);
        }
    }
}

/// 8 nodes of 32 CPUs in caches of 8, 8 disks with a queue for each CPU, 4 cards of 64 pairs of queues, 20,000 threads, of
/// which 1,000 move bytes, 1,000 have a narrow mask, and the others compute a little.
fn huge() -> World {
    let mut world = World::new(&[32; 8], 21, 8);
    for disk in 0..8u16 {
        world.add_wide_disk(&format!("nvme{disk}n1"), Some(disk));
    }
    for card in 0..4u16 {
        let places: Vec<u32> = (0..64).map(|queue| (queue * 4 + u32::from(card)) % 256).collect();
        world.add_card(&format!("eth{card}"), Some(card * 2), &places);
    }
    for index in 0..20_000u32 {
        let thread = world.add_thread("worker", index * 7 % 256, 1);
        if index % 20 == 0 {
            world.add_disk_bytes(
                thread,
                &format!("nvme{}n1", index / 20 % 8),
                u64::from(1 + index % 97) * MB,
            );
            world.add_sent_bytes(
                thread,
                Some(&format!("eth{}", index / 20 % 4)),
                u64::from(index % 31) * MB,
            );
        }
        if index % 20 == 1 {
            let first = index / 20 % 32 * 8;
            world.snapshot.threads[thread].allowed = cpus(first..first + 8).into();
        }
    }
    world.observe();
    world
}

/// A period must fit in a second, with looking at the machine.
#[test]
fn a_huge_machine_is_decided_within_the_period() {
    let mut world = huge();
    let config = Config::default();
    let mut previous = Previous::default();
    for what in ["at first", "settled"] {
        // The least of some: what else the machine does counts for nothing.
        let decided = (0..3).map(|_| {
            let start = Instant::now();
            let plan = decide(&world.snapshot, &config, &previous);
            (start.elapsed(), plan)
        });
        let (took, plan) = decided.min_by_key(|(took, _)| *took).expect("three plans");
        let start = Instant::now();
        previous = previous.after(&plan, &world.snapshot, &config);
        println!(
            "{what}: {took:?}, and {:?} for the next period; {} actions",
            start.elapsed(),
            plan.actions.len()
        );
        assert!(took < Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 }));
        world.carry_out(&plan);
    }
}
