//! On small machines: against every placement there is, and against what irqbalance does.

use crate::seeded;
use crate::slow_cost::{Placement, Way};
use crate::world::{MB, World};
use crate::worlds::{middle, small};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Config, Cost, Previous, decide};
use proptest::prelude::*;

/// Nothing holds a move back but its price.
fn eager(price_mb: u64) -> Config {
    Config {
        hysteresis_percent: 0,
        dwell_periods: 0,
        migration_price: Cost::new(price_mb * MB, 100),
        // Files are in `buffers`.
        moves_files: false,
        ..Config::default()
    }
}

fn moves(world: &World, placement: &Placement) -> f64 {
    let found = world.placement();
    let threads = found
        .threads
        .iter()
        .zip(&placement.threads)
        .filter(|(a, b)| a != b)
        .count();
    let queues = found
        .queues
        .iter()
        .zip(&placement.queues)
        .filter(|(a, b)| a != b)
        .count();
    (threads + queues) as f64
}

/// Where the world is when the plan is carried out.
fn planned(world: &World, config: &Config) -> (Placement, f64) {
    let plan = decide(&world.snapshot, config, &Previous::default());
    let before = world.slow_cost(&world.placement());
    let told = plan.cost_before.bytes_per_s() as f64;
    assert!(
        (told - before).abs() <= before / 100.0 + 1e5,
        "before: {told}, should be {before}"
    );
    let mut done = world.clone();
    done.carry_out(&plan);
    let placement = done.placement();
    let after = world.slow_cost(&placement);
    let told = plan.cost_after.bytes_per_s() as f64;
    assert!(
        (told - after).abs() <= after / 100.0 + 1e5,
        "after: {told}, should be {after}"
    );
    (placement, after)
}

/// The places a thread may have: where it is, all of its cpuset's CPUs that share a cache, and those of them from which
/// its disk is nearest.
fn choices(world: &World, thread: usize) -> Vec<Vec<CpuId>> {
    let it = &world.snapshot.threads[thread];
    let found = world.placement();
    let mut choices = vec![found.threads[thread].clone()];
    let moves = it.sent_bytes() + (it.disk.len() + it.received.len() + it.memory.len()) as u64;
    if it.allowed != it.cpuset || moves == 0 {
        return choices;
    }
    let mut ways = world.ways(thread);
    ways.retain(|way| matches!(way, Way::Disk(..)));
    for cpu in &*it.cpuset {
        let domain = world.domain(*cpu);
        let together: Vec<CpuId> = it.cpuset.iter().copied().filter(|cpu| domain.contains(cpu)).collect();
        let cost = |cpu: &CpuId| world.way_cost(&ways, &[*cpu], &found.queues);
        let least = together.iter().map(cost).fold(f64::INFINITY, f64::min);
        let nearest = together.iter().copied().filter(|cpu| cost(cpu) <= least).collect();
        for choice in [nearest, together] {
            if !choices.contains(&choice) {
                choices.push(choice);
            }
        }
    }
    choices
}

/// Every combination of one index below each limit.
fn combinations(limits: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for limit in limits {
        let longer = |start: Vec<usize>| (0..*limit).map(move |next| [&start[..], &[next]].concat());
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// The least that cost and moves together can be.
fn least(world: &World, price: f64) -> f64 {
    let count = world.snapshot.threads.len();
    let choices: Vec<Vec<Vec<CpuId>>> = (0..count).map(|thread| choices(world, thread)).collect();
    let ways: Vec<Vec<Way<'_>>> = (0..count).map(|thread| world.ways(thread)).collect();
    let limits: Vec<usize> = choices.iter().map(Vec::len).collect();
    let facts = world.queue_facts();
    let threads: Vec<(Vec<usize>, Placement)> = combinations(&limits)
        .into_iter()
        .map(|picked| {
            let cpus = picked
                .iter()
                .zip(&choices)
                .map(|(picked, choices)| choices[*picked].clone());
            let placement = Placement {
                threads: cpus.collect(),
                queues: Vec::new(),
            };
            (picked, placement)
        })
        .collect();
    let mut least = f64::INFINITY;
    let found = world.placement();
    for picked in combinations(&vec![world.snapshot.online.len(); found.queues.len()]) {
        let queues: Vec<CpuId> = picked.iter().map(|cpu| world.snapshot.online[*cpu]).collect();
        let alone = Placement {
            threads: vec![vec![]; count],
            queues: queues.clone(),
        };
        let base = world.slow_cost_of_queues(&alone, &facts) + price * moves_of_queues(&found, &queues);
        let costs: Vec<Vec<f64>> = (0..count)
            .map(|thread| {
                let cost = |from: &Vec<CpuId>| world.way_cost(&ways[thread], from, &queues);
                let moved = |from: &Vec<CpuId>| if *from == found.threads[thread] { 0.0 } else { price };
                choices[thread].iter().map(|from| cost(from) + moved(from)).collect()
            })
            .collect();
        for (picked, placement) in &threads {
            let bytes: f64 = picked.iter().zip(&costs).map(|(picked, costs)| costs[*picked]).sum();
            if base + bytes < least {
                let all = Placement {
                    queues: queues.clone(),
                    ..placement.clone()
                };
                least = least.min(base + bytes + world.overload_cost(&all, &facts));
            }
        }
    }
    least
}

fn moves_of_queues(found: &Placement, queues: &[CpuId]) -> f64 {
    found.queues.iter().zip(queues).filter(|(a, b)| a != b).count() as f64
}

impl World {
    /// Cost of the queues' bytes that no thread is known to take: the same wherever threads run.
    fn slow_cost_of_queues(&self, placement: &Placement, facts: &[(f64, f64)]) -> f64 {
        let unknown = placement.queues.iter().zip(facts);
        unknown
            .map(|(cpu, (unknown, _))| self.way_cost(&[Way::Card(1, 0)], &[*cpu], &[*cpu]) * unknown)
            .sum()
    }

    /// Places interrupts like irqbalance: the busiest first. Each goes to the node, then the cache, then the CPU that has the
    /// least of them so far. Threads stay: irqbalance knows nothing of them.
    fn irqbalance(&self) -> Placement {
        let mut placement = self.placement();
        let facts = self.queue_facts();
        let mut order: Vec<usize> = (0..facts.len()).collect();
        order.sort_by(|a, b| facts[*b].1.total_cmp(&facts[*a].1));
        let mut taken: Vec<(CpuId, f64)> = Vec::new();
        for queue in order {
            let load = |cpus: &[CpuId]| -> f64 {
                let here = taken.iter().filter(|(cpu, _)| cpus.contains(cpu));
                here.map(|(_, load)| load + 1.0).sum::<f64>() / cpus.len() as f64
            };
            let node = |cpu: &CpuId| {
                let node = self.snapshot.node(*cpu).expect("the test's world is consistent");
                self.snapshot
                    .topology
                    .node(node)
                    .expect("the test's world is consistent")
                    .cpus
                    .clone()
            };
            let key = |cpu: &CpuId| {
                [
                    load(&node(cpu)),
                    load(&self.domain(*cpu)),
                    load(&[*cpu]),
                    f64::from(cpu.0),
                ]
            };
            let online = self.snapshot.online.iter().copied();
            let cpu = online
                .min_by(|a, b| key(a).partial_cmp(&key(b)).expect("the test's world is consistent"))
                .expect("the test's world is consistent");
            taken.push((cpu, facts[queue].1));
            placement.queues[queue] = cpu;
        }
        placement
    }
}

#[test]
fn at_most_five_percent_above_the_optimum() {
    let worst = std::cell::Cell::new(1.0f64);
    let property = |(world, price_mb): (World, u64)| {
        let (placement, after) = planned(&world, &eager(price_mb));
        let price = (price_mb * MB) as f64;
        let value = after + price * moves(&world, &placement);
        let least = least(&world, price);
        prop_assert!(
            value <= least * 1.05 + 1e5,
            "{value}, and {least} is possible: {placement:?}"
        );
        worst.set(worst.get().max((value + 1e5) / (least + 1e5)));
        Ok(())
    };
    seeded::check(150, (small(), 0..50u64), property);
    // Without shakes the search misses one world of each, as `small` makes them now.
    for seed in [50, 120] {
        seeded::check_seed(seed, 150, (small(), 0..50u64), property);
    }
    println!("at worst {:.4} of the optimum", worst.get());
}

#[test]
fn never_worse_than_irqbalance() {
    seeded::check(300, middle(), |world| {
        let (_, after) = planned(&world, &eager(0));
        let other = world.slow_cost(&world.irqbalance());
        prop_assert!(after <= other * 1.000_1 + 1e5, "{after}, and irqbalance {other}");
        Ok(())
    });
}
