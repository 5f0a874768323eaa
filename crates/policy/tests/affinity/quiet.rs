//! Bound threads that move nothing any more: their masks go back, and do not go to and fro.

use crate::threads::far_reader;
use crate::world::{MB, World, cpus, why, with_policy};
use homenode_policy::affinity::{Config, Plan, Policy, Previous, Target, ThreadId, Why, decide};

/// Periods without bytes after which a thread gets its mask back, by default.
const QUIET_PERIODS: u64 = 60;

fn period(world: &mut World, previous: &mut Previous) -> Plan {
    world.period(&Config::default(), previous)
}

/// A thread that was bound near its disk in the period before.
fn bound_reader() -> (World, Previous, ThreadId) {
    let mut world = far_reader();
    let mut previous = Previous::default();
    assert_eq!(period(&mut world, &mut previous).actions.len(), 1);
    let id = world.snapshot.threads[0].id;
    (world, previous, id)
}

/// Runs periods until a thread gets its mask back; how many, this one included.
fn periods_until_returned(world: &mut World, previous: &mut Previous) -> u64 {
    for count in 1..10_000 {
        let plan = period(world, previous);
        if let Some(one) = plan.returns.first() {
            assert_eq!(one.quiet_periods, Some(count));
            return count;
        }
    }
    panic!("never returned")
}

#[test]
fn a_bound_thread_that_only_computes_gets_its_mask_back() {
    let (mut world, mut previous, id) = bound_reader();
    world.snapshot.threads[0].disk[0].bytes = 0;
    let plan = period(&mut world, &mut previous.clone());
    let periods = QUIET_PERIODS;
    assert_eq!(why(&plan, &Target::Thread(id)), &Why::Quiet { periods });
    assert_eq!(periods_until_returned(&mut world, &mut previous), QUIET_PERIODS);
    assert_eq!(world.snapshot.threads[0].allowed[..], cpus(0..4));
    let plan = period(&mut world, &mut previous);
    assert_eq!(
        (why(&plan, &Target::Thread(id)), &plan.returns[..]),
        (&Why::Compute, &[][..])
    );
}

/// No snapshot has it.
#[test]
fn a_bound_thread_that_sleeps_gets_its_mask_back() {
    let (mut world, mut previous, id) = bound_reader();
    world.snapshot.threads.clear();
    for _ in 1..QUIET_PERIODS {
        assert_eq!(period(&mut world, &mut previous).returns, []);
    }
    assert_eq!(period(&mut world, &mut previous).returns[0].thread, id);
}

#[test]
fn a_bound_thread_whose_bytes_cannot_be_read_any_more_keeps_its_mask() {
    let (mut world, mut previous, id) = bound_reader();
    period(&mut world, &mut previous);
    world.snapshot.threads[0].disk[0].bytes = 0;
    world.snapshot.threads[0].is_unread = true;
    for _ in 0..2 * QUIET_PERIODS {
        let plan = period(&mut world, &mut previous);
        assert_eq!(
            (why(&plan, &Target::Thread(id)), &plan.returns[..]),
            (&Why::Unread, &[][..])
        );
    }
    world.snapshot.threads[0].is_unread = false;
    assert_eq!(periods_until_returned(&mut world, &mut previous), QUIET_PERIODS);
}

#[test]
fn a_bound_thread_whose_sockets_never_could_be_read_gets_its_mask_back() {
    let (mut world, mut previous, _) = bound_reader();
    world.snapshot.threads[0].is_unread = true;
    period(&mut world, &mut previous);
    world.snapshot.threads[0].disk[0].bytes = 0;
    assert_eq!(periods_until_returned(&mut world, &mut previous), QUIET_PERIODS);
}

#[test]
fn a_thread_that_moves_a_third_of_the_least_rate_keeps_its_mask() {
    let (mut world, mut previous, _) = bound_reader();
    world.snapshot.threads[0].disk[0].bytes = MB / 3;
    for _ in 0..10 * QUIET_PERIODS {
        assert_eq!(period(&mut world, &mut previous).returns, []);
    }
}

#[test]
fn each_time_a_thread_is_bound_again_it_keeps_its_mask_twice_as_long() {
    let (mut world, mut previous, id) = bound_reader();
    for times in [1, 2, 4, 8, 16, 32, 32] {
        world.snapshot.threads[0].disk[0].bytes = 0;
        assert_eq!(periods_until_returned(&mut world, &mut previous), times * QUIET_PERIODS);
        world.snapshot.threads[0].cpu = cpus([0])[0];
        world.snapshot.threads[0].disk[0].bytes = 500 * MB;
        assert!(period(&mut world, &mut previous).action(&Target::Thread(id)).is_some());
    }
}

/// A job every five minutes, for ten seconds.
#[test]
fn a_thread_that_pauses_regularly_soon_stays_bound() {
    let (mut world, mut previous, _) = bound_reader();
    let mut returns = 0;
    for second in 0..100 * 300 {
        world.snapshot.threads[0].disk[0].bytes = if second % 300 < 10 { 500 * MB } else { 0 };
        returns += period(&mut world, &mut previous).returns.len();
    }
    assert_eq!(returns, 3, "60, 120 and 240 seconds are less than a pause");
}

#[test]
fn a_child_that_moves_little_is_not_placed_for_its_inherited_mask() {
    let (mut world, mut previous, _) = bound_reader();
    let child = world.add_thread("cc1", 2, 90);
    world.add_disk_bytes(child, "nvme0n1", 1000);
    world.snapshot.threads[child].allowed = cpus([2, 3]).into();
    previous.inherit(world.snapshot.threads[child].id, cpus([2, 3]));
    let config = with_policy(Policy::Spread);
    let plan = decide(&world.snapshot, &config, &previous);
    assert_eq!(why(&plan, &world.target(child)), &Why::Small { bytes_per_s: 1000 });
}

#[test]
fn a_quiet_child_of_a_bound_thread_gets_its_mask_back_after_the_dwell_time() {
    let (mut world, mut previous, _) = bound_reader();
    let (quiet, busy) = (world.add_thread("cc1", 2, 90), world.add_thread("reader", 2, 20));
    world.add_disk_bytes(busy, "nvme0n1", 500 * MB);
    for child in [quiet, busy] {
        world.snapshot.threads[child].allowed = cpus([2, 3]).into();
        world.snapshot.threads[child].id.started = 9;
        previous.inherit(world.snapshot.threads[child].id, cpus([2, 3]));
    }
    let quiet = world.target(quiet);
    let dwell = Config::default().dwell_periods;
    for _ in 1..dwell {
        let plan = period(&mut world, &mut previous);
        assert_eq!(why(&plan, &quiet), &Why::Quiet { periods: dwell });
        assert_eq!(plan.returns, []);
    }
    let plan = period(&mut world, &mut previous);
    assert_eq!(plan.returns.len(), 1);
    assert_eq!(Target::Thread(plan.returns[0].thread), quiet);
    // It moved bytes of its own: from now on it counts as bound.
    world.snapshot.threads[busy].disk[0].bytes = 0;
    for _ in 1..QUIET_PERIODS {
        assert_eq!(period(&mut world, &mut previous).returns, []);
    }
    assert_eq!(period(&mut world, &mut previous).returns.len(), 1);
}

#[test]
fn a_busy_bound_thread_gets_its_mask_back_when_its_policy_is_off() {
    let (mut world, mut previous, id) = bound_reader();
    let off = with_policy(Policy::Off);
    let mut periods = 0;
    let plan = loop {
        let plan = world.period(&off, &mut previous);
        periods += 1;
        if !plan.returns.is_empty() {
            break plan;
        }
        assert!(periods < 100, "never returned");
    };
    assert_eq!(plan.returns[0].thread, id);
    assert!(
        plan.returns[0].to_string().contains("its policy is off"),
        "{}",
        plan.returns[0]
    );
    assert_eq!(
        periods,
        Config::default().dwell_periods,
        "after the dwell time of its move"
    );
    assert!(world.period(&off, &mut previous).is_idle());
}

#[test]
fn what_could_not_be_changed_waits_and_is_planned_again() {
    let mut world = far_reader();
    let target = world.target(0);
    let mut previous = Previous::default();
    let plan = decide(world.observe(), &Config::default(), &previous);
    assert!(plan.action(&target).is_some());
    previous.postpone(target.clone());
    let mut waited = 0;
    loop {
        let plan = decide(&world.snapshot, &Config::default(), &previous);
        previous = previous.after(&Plan::default(), &world.snapshot, &Config::default());
        match plan.action(&target) {
            Some(_) => break,
            None => assert!(matches!(why(&plan, &target), Why::Dwell { .. })),
        }
        waited += 1;
    }
    assert_eq!(waited, Config::default().dwell_periods.max(10));
}
