//! Interrupts and queues that the kernel or a driver sets anew, and those that a person does.

use crate::threads::bound_receiver;
use crate::world::{World, cpus, dwelling, why};
use homenode_policy::affinity::{Plan, Previous, Target, Why};

const INTERRUPT: Target = Target::Interrupt(100);

/// An interrupt that was moved to its receiver.
fn moved() -> (World, Previous) {
    let mut world = bound_receiver();
    world.observe();
    let mut previous = Previous::default();
    let plan = period(&mut world, &mut previous);
    assert!(plan.action(&INTERRUPT).is_some(), "{plan:?}");
    world.carry_out(&plan);
    (world, previous)
}

fn period(world: &mut World, previous: &mut Previous) -> Plan {
    world.decide(&dwelling(0), previous)
}

fn set(world: &mut World, number: u32) {
    world.snapshot.interrupts[0].affinity = cpus([number]);
    world.snapshot.interrupts[0].effective = cpus([number]);
    world.observe();
}

#[test]
fn an_interrupt_that_lost_its_cpus_with_a_restart_is_taken_up_again() {
    for by_device in [false, true] {
        let (mut world, mut previous) = moved();
        set(&mut world, 3);
        world.snapshot.has_restarted = !by_device;
        world.snapshot.restarted = if by_device { vec!["eth0".to_owned()] } else { vec![] };
        let plan = period(&mut world, &mut previous);
        assert_eq!(plan.resets.len(), 1);
        assert_eq!((&plan.resets[0].target, &plan.resets[0].now), (&INTERRUPT, &cpus([3])));
        assert!(plan.action(&INTERRUPT).is_some(), "{plan:?}");
        world.carry_out(&plan);
        (world.snapshot.has_restarted, world.snapshot.restarted) = (false, vec![]);
        assert_eq!(period(&mut world, &mut previous).resets, []);
    }
}

#[test]
fn an_interrupt_that_stayed_after_a_restart_is_ours_where_it_is() {
    let (mut world, mut previous) = moved();
    set(&mut world, 3);
    // Nobody needs it elsewhere for now.
    world.streams.clear();
    world.observe();
    world.snapshot.has_restarted = true;
    assert_eq!(period(&mut world, &mut previous).resets.len(), 1);
    world.snapshot.has_restarted = false;
    for _ in 0..3 {
        let plan = period(&mut world, &mut previous);
        assert!(!matches!(why(&plan, &INTERRUPT), Why::TakenOver), "{plan:?}");
    }
}

#[test]
fn an_interrupt_set_while_another_card_restarts_is_somebodys() {
    let (mut world, mut previous) = moved();
    set(&mut world, 3);
    world.snapshot.restarted = vec!["eth1".to_owned()];
    assert_eq!(why(&period(&mut world, &mut previous), &INTERRUPT), &Why::TakenOver);
}

#[test]
fn an_interrupt_that_somebody_set_stays_theirs_through_a_restart() {
    let (mut world, mut previous) = moved();
    set(&mut world, 3);
    let plan = period(&mut world, &mut previous);
    assert_eq!(why(&plan, &INTERRUPT), &Why::TakenOver);
    world.snapshot.has_restarted = true;
    let plan = period(&mut world, &mut previous);
    assert_eq!((why(&plan, &INTERRUPT), &plan.resets[..]), (&Why::TakenOver, &[][..]));
}
