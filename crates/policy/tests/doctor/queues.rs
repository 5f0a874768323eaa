//! Queues of cards.

use super::*;
use crate::world::cpus;
use homenode_policy::CpuId;
use homenode_policy::affinity::QueueKind;

/// A card on node 1 with these queues, whose interrupts arrive there, each so often.
fn card(queues: u32, count: u64) -> World {
    let mut world = two_nodes();
    let places: Vec<u32> = (0..queues).map(|queue| 4 + queue % 4).collect();
    world.add_card("card", Some(1), &places);
    for interrupt in &mut world.snapshot.interrupts {
        interrupt.arrivals = vec![(interrupt.effective[0], count)];
    }
    // So that it is set.
    set(&mut world, QueueKind::Transmit, |_| 4..8);
    world
}

fn set(world: &mut World, kind: QueueKind, cpus_of: impl Fn(u32) -> std::ops::Range<u32>) {
    for queue in world.snapshot.queues.iter_mut().filter(|queue| queue.kind == kind) {
        queue.cpus = cpus(cpus_of(queue.index));
    }
}

#[test]
fn a_busy_card_with_few_queues_is_found() {
    let said = told(&found(&card(2, 100_000)), "few-queues");
    assert_eq!(said, "card: busy, with 2 queues for the 4 CPUs of node 1");
    let said = told(&found(&card(1, 100_000)), "few-queues");
    assert_eq!(said, "card: busy, with 1 queue for the 4 CPUs of node 1");
    assert_eq!(of_kind(&found(&card(2, 10_000)), "few-queues"), [], "not busy");
    assert_eq!(of_kind(&found(&card(4, 100_000)), "few-queues"), [], "enough");
    let with_max = |max| Facts {
        queues_max: [("card".to_owned(), max)].into(),
        ..Facts::default()
    };
    let said = told(&found_with(&with_max(3), &card(2, 100_000).snapshot), "few-queues");
    assert_eq!(
        said,
        "card: busy, with 2 queues for the 4 CPUs of node 1; it can have 3"
    );
    let all = found_with(&with_max(2), &card(2, 100_000).snapshot);
    assert_eq!(of_kind(&all, "few-queues"), [], "the card cannot have more queues");
}

#[test]
fn a_busy_card_with_unused_queues_is_found() {
    let with_used = |used| Facts {
        queues_used: [("card".to_owned(), used)].into(),
        ..Facts::default()
    };
    let found = |used, card: World| found_with(&with_used(used), &card.snapshot);
    let said = told(&found(1, card(4, 100_000)), "unused-queues");
    assert_eq!(said, "card: busy, and its RSS table sends packets to 1 of its 4 queues");
    assert_eq!(of_kind(&found(1, card(4, 2_000)), "unused-queues"), [], "not busy");
    assert_eq!(
        of_kind(&found(4, card(4, 100_000)), "unused-queues"),
        [],
        "all queues are used"
    );
    assert_eq!(
        of_kind(&found(4, card(8, 100_000)), "unused-queues"),
        [],
        "a queue for each CPU"
    );
    let few = found(1, card(2, 100_000));
    assert_eq!(
        (of_kind(&few, "few-queues").len(), of_kind(&few, "unused-queues").len()),
        (1, 0)
    );
}

#[test]
fn missing_xps_is_found() {
    let mut world = card(2, 5000);
    assert_eq!(of_kind(&found(&world), "no-xps"), []);
    set(&mut world, QueueKind::Transmit, |_| 0..0);
    assert_eq!(of_kind(&found(&world), "no-xps"), [], "all CPUs are equally near");
    world.snapshot.interrupts[0].effective = cpus(0..1);
    let said = told(&found(&world), "no-xps");
    assert!(
        said.starts_with("transmit queues 0, 1 of card: XPS is not set"),
        "{said}"
    );
    for interrupt in &mut world.snapshot.interrupts {
        interrupt.arrivals.clear();
    }
    assert_eq!(found(&world), [], "idle");
    let mut single = card(1, 5000);
    set(&mut single, QueueKind::Transmit, |_| 0..0);
    assert_eq!(of_kind(&found(&single), "no-xps"), [], "there is one queue");
}

#[test]
fn xps_across_nodes_is_found() {
    let mut world = card(2, 5000);
    set(
        &mut world,
        QueueKind::Transmit,
        |queue| if queue == 0 { 2..6 } else { 6..8 },
    );
    let said = told(&found(&world), "xps-crosses-nodes");
    assert!(said.starts_with("transmit queues 0 of card"), "{said}");
    set(&mut world, QueueKind::Transmit, |queue| 4 * queue..4 * queue + 4);
    assert_eq!(of_kind(&found(&world), "xps-crosses-nodes"), []);
    // With fewer queues than nodes some must be shared.
    let mut few = World::new(&[2, 2, 2, 2], 20, 2);
    few.add_card("card", Some(1), &[2, 3]);
    for interrupt in &mut few.snapshot.interrupts {
        interrupt.arrivals = vec![(CpuId(2), 5000)];
    }
    set(&mut few, QueueKind::Transmit, |_| 0..8);
    assert_eq!(of_kind(&found(&few), "xps-crosses-nodes"), []);
}

#[test]
fn rps_across_nodes_is_found() {
    let mut world = card(2, 5000);
    set(
        &mut world,
        QueueKind::Receive,
        |queue| if queue == 0 { 0..2 } else { 4..8 },
    );
    let said = told(&found(&world), "rps-crosses-nodes");
    assert!(
        said.starts_with("receive queues 0 of card: RPS hands packets"),
        "{said}"
    );
    set(&mut world, QueueKind::Receive, |_| 4..8);
    assert_eq!(of_kind(&found(&world), "rps-crosses-nodes"), []);
}
