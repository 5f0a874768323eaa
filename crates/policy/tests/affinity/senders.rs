//! Flows that go over to a queue of the CPU their thread moves to, as XPS gives it: they find it where the thread is.

use crate::seeded;
use crate::world::{MB, World, cpus, with_policy};
use crate::worlds::middle;
use homenode_policy::affinity::{Config, Plan, Policy, Previous, QueueKind, Reason, Target, decide};
use homenode_policy::{CpuId, NodeId};
use proptest::prelude::*;

/// Gives each queue of the card its share of the CPUs, as kernels do at first.
fn with_senders(world: &mut World) {
    let online = world.snapshot.online.clone();
    let queues = world.snapshot.queues.iter_mut();
    let mut queues: Vec<_> = queues.filter(|queue| queue.kind == QueueKind::Transmit).collect();
    let share = online.len().div_ceil(queues.len());
    for (queue, cpus) in queues.iter_mut().zip(online.chunks(share)) {
        queue.cpus = cpus.to_vec();
    }
}

/// Every flow goes through a queue that its thread's CPU sends through.
fn go_over(world: &mut World) {
    for (index, stream) in world.streams.iter_mut().enumerate() {
        let cpu = world.snapshot.threads[stream.thread].cpu;
        let queues = world.snapshot.queues.iter();
        let sends = queues.filter(|queue| queue.kind == QueueKind::Transmit && queue.cpus.contains(&cpu));
        let sends: Vec<u32> = sends.map(|queue| queue.index).collect();
        if !sends.is_empty() {
            stream.queue = sends[index % sends.len()];
        }
    }
    world.observe();
}

/// Returns for each flow whether its packets are processed on its thread's node.
fn local(world: &World) -> Vec<bool> {
    let node = |cpu: CpuId| world.snapshot.node(cpu);
    let queues = world.card_queues();
    let is_local = |stream: &crate::world::Stream| {
        let queue = queues.iter().find(|queue| queue.index == stream.queue);
        let number = queue.and_then(|queue| queue.interrupt);
        let mut interrupts = world.snapshot.interrupts.iter();
        let arrives = interrupts
            .find(|it| Some(it.number) == number)
            .expect("the test's world is consistent");
        node(arrives.effective[0]) == node(world.snapshot.threads[stream.thread].cpu)
    };
    world.streams.iter().map(is_local).collect()
}

fn transmit(index: u32) -> Target {
    Target::of_queue("eth0", QueueKind::Transmit, index).expect("queues of a card have targets")
}

/// Four nodes of two CPUs; a card of four queues at home on node 1, all interrupts on CPU 0.
fn four_nodes() -> World {
    let mut world = World::new(&[2, 2, 2, 2], 20, 2);
    world.add_card("eth0", Some(1), &[0, 0, 0, 0]);
    with_senders(&mut world);
    world
}

fn add_reader(world: &mut World, cpu: u32, queue: u32) -> usize {
    let reader = world.add_thread("reader", cpu, 10);
    world.add_stream(reader, "eth0", queue, 100 * MB);
    reader
}

fn once(world: &mut World) -> (Plan, Previous) {
    world.observe();
    let mut previous = Previous::default();
    let plan = world.period(&Config::default(), &mut previous);
    go_over(world);
    (plan, previous)
}

/// Nothing is left for a second plan: of the same run, and of one that only knows what was set.
fn check_settled(world: &World, plan: &Plan, previous: &Previous) {
    let again = decide(&world.snapshot, &Config::default(), previous);
    assert_eq!(again.actions, []);
    let mut noted = Previous::default();
    for action in &plan.actions {
        noted.note(action.target.clone(), action.to.clone());
    }
    let again = decide(&world.snapshot, &Config::default(), &noted);
    assert_eq!(again.actions, []);
}

#[test]
fn a_queue_makes_way_for_the_readers_queue() {
    let mut world = four_nodes();
    let reader = add_reader(&mut world, 2, 2);
    world.confine(reader, [2, 3]);
    let (plan, previous) = once(&mut world);
    let came = plan.action(&transmit(2)).expect("the reader's queue moves");
    assert_eq!(came.to, cpus([2, 3]));
    let way = plan.action(&transmit(1)).expect("the other queue moves");
    // It has no other CPU, and gets those of where it is.
    assert_eq!((&way.from, &way.to), (&cpus([2, 3]), &cpus([0, 1])));
    assert!(matches!(way.reason, Reason::MadeWay { node: NodeId(1), .. }));
    assert_eq!(local(&world), [true]);
    check_settled(&world, &plan, &previous);
}

#[test]
fn a_queue_with_other_cpus_keeps_them() {
    let mut world = four_nodes();
    for queue in world
        .snapshot
        .queues
        .iter_mut()
        .filter(|queue| queue.kind == QueueKind::Transmit)
    {
        queue.cpus = cpus(0..8);
    }
    let reader = add_reader(&mut world, 2, 2);
    world.confine(reader, [2, 3]);
    let (plan, previous) = once(&mut world);
    for index in [0, 1, 3] {
        let way = plan.action(&transmit(index)).expect("all other queues move");
        assert_eq!(way.to, cpus([0, 1, 4, 5, 6, 7]));
    }
    assert_eq!(local(&world), [true]);
    check_settled(&world, &plan, &previous);
}

/// Two threads share a queue; one may go to where its disk is only, and the idle queue of there comes along.
#[test]
fn an_idle_queue_moves_to_a_thread_whose_queue_stays() {
    for isolated in [&[][..], &[6], &[6, 7]] {
        move_an_idle_queue(isolated);
    }
}

/// No interrupt moves to an isolated CPU.
fn move_an_idle_queue(isolated: &[u32]) {
    let mut world = four_nodes();
    world.snapshot.isolated = isolated.iter().copied().map(CpuId).collect();
    world.add_wide_disk("nvme0n1", Some(3));
    let stays = add_reader(&mut world, 0, 0);
    world.confine(stays, [0, 1]);
    world.streams[0].bytes = 1000 * MB;
    let goes = add_reader(&mut world, 0, 0);
    world.add_disk_bytes(goes, "nvme0n1", 900 * MB);
    world.confine(goes, [4, 5, 6, 7]);
    world.snapshot.threads[goes].cpu = CpuId(4);
    let (plan, previous) = once(&mut world);
    assert_eq!(plan.action(&transmit(0)), None, "the shared queue stays: {plan:?}");
    let came = plan.action(&Target::Interrupt(103));
    if isolated.len() == 2 {
        assert_eq!(came, None);
        return;
    }
    let came = came.expect("the idle queue of node 3 moves");
    assert!(came.to.iter().all(|cpu| !isolated.contains(&cpu.0)), "{came:?}");
    assert!(matches!(came.reason, Reason::NearSenders { node: NodeId(3), .. }));
    assert_eq!(world.snapshot.node(came.to[0]), Some(NodeId(3)));
    assert_eq!(local(&world), [true, true]);
    check_settled(&world, &plan, &previous);
}

/// Packets that are processed on one CPU are answered from there, so flows of several threads can share its queue.
#[test]
fn a_thread_that_loses_its_queue_gets_another() {
    let mut world = four_nodes();
    for (node, bytes) in [([0, 1], 40 * MB), ([2, 3], 100 * MB)] {
        let reader = world.add_thread("reader", node[0], 10);
        world.add_stream(reader, "eth0", 0, bytes);
        world.confine(reader, node);
    }
    // It moves nothing of the network, and so no queue of the card.
    let fio = world.add_thread("fio", 0, 10);
    world.add_wide_disk("nvme0n1", Some(3));
    world.add_disk_bytes(fio, "nvme0n1", 500 * MB);
    let (plan, previous) = once(&mut world);
    assert_eq!(plan.action(&transmit(0)).unwrap().to, cpus([2, 3]), "{plan:?}");
    assert_eq!(local(&world), [true, true], "{plan:?}");
    let node_3 = |action: &&homenode_policy::affinity::Action| action.to.iter().any(|cpu| cpu.0 >= 6);
    let there: Vec<_> = plan
        .actions
        .iter()
        .filter(node_3)
        .map(|action| &action.target)
        .collect();
    assert_eq!(there, [&Target::Thread(world.snapshot.threads[fio].id)]);
    check_settled(&world, &plan, &previous);
}

/// A mask of XPS keeps CPUs that were taken offline; no plan hands them on.
#[test]
fn an_offline_cpu_gets_no_queue() {
    let mut world = four_nodes();
    let queues = world.snapshot.queues.iter_mut();
    let sending = queues.filter(|queue| queue.kind == QueueKind::Transmit);
    for (queue, own) in sending.zip([[0, 1], [6, 7], [4, 5], [2, 3]]) {
        queue.cpus = cpus(own.into_iter().chain([99]));
    }
    for (node, bytes) in [([0, 1], 40 * MB), ([2, 3], 100 * MB)] {
        let reader = world.add_thread("reader", node[0], 10);
        world.add_stream(reader, "eth0", 0, bytes);
        world.confine(reader, node);
    }
    let (plan, _) = once(&mut world);
    let sends = plan.actions.iter();
    let sends: Vec<_> = sends
        .filter(|action| matches!(action.reason, Reason::NearSenders { .. }))
        .collect();
    assert!(!sends.is_empty(), "{plan:?}");
    assert!(
        plan.actions.iter().all(|action| !action.to.contains(&CpuId(99))),
        "{plan:?}"
    );
}

#[test]
fn unmovable_queues_do_not_make_way() {
    let planned = |previous: &Previous, movable: bool, policy: Policy| {
        let mut world = four_nodes();
        let reader = add_reader(&mut world, 2, 2);
        world.confine(reader, [2, 3]);
        let mut queues = world.snapshot.queues.iter_mut();
        let other = queues.find(|queue| queue.kind == QueueKind::Transmit && queue.index == 1);
        other.expect("the world has four queues").movable = movable;
        let config = with_policy(policy);
        decide(world.observe(), &config, previous)
    };
    let free = Previous::default();
    assert!(planned(&free, true, Policy::Local).action(&transmit(1)).is_some());
    assert_eq!(planned(&free, false, Policy::Local).action(&transmit(1)), None);
    assert_eq!(planned(&free, true, Policy::Off).action(&transmit(1)), None);
    let mut refused = Previous::default();
    refused.refuse(transmit(1));
    assert_eq!(planned(&refused, true, Policy::Local).action(&transmit(1)), None);
    let mut taken = Previous::default();
    taken.note(transmit(1), cpus([4]));
    assert_eq!(planned(&taken, true, Policy::Local).action(&transmit(1)), None);
}

/// Whatever a flow's thread or queue has moved for is not lost when the flow goes over.
#[test]
fn flows_that_change_queues_stay_local() {
    seeded::check(300, middle(), |mut world| {
        with_senders(&mut world);
        go_over(&mut world);
        let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
        for queue in world
            .snapshot
            .queues
            .iter()
            .filter(|queue| queue.kind == QueueKind::Transmit)
        {
            let to = plan
                .action(&transmit(queue.index))
                .map_or(&queue.cpus, |action| &action.to);
            prop_assert!(
                queue.cpus.is_empty() || !to.is_empty(),
                "queue {} has no sender",
                queue.index
            );
        }
        world.carry_out(&plan);
        let planned = local(&world);
        go_over(&mut world);
        for (index, after) in local(&world).into_iter().enumerate() {
            prop_assert!(after || !planned[index], "flow {index}: {:?}", plan.actions);
        }
        Ok(())
    });
}
