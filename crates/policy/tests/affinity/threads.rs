//! Decisions for single threads, queues and interrupts, worked out by hand on two nodes of two CPUs each.

use crate::world::{MB, World, cpus, dwelling, why, with_policy};
use homenode_policy::affinity::{
    Class, Config, Plan, Policy, Previous, Queue, QueueKind, Reason, Received, Target, ThreadId, Why, decide,
};
use homenode_policy::{CpuId, NodeId};

fn two_nodes() -> World {
    World::new(&[2, 2], 21, 2)
}

fn plan(world: &mut World) -> Plan {
    world.observe();
    decide(&world.snapshot, &Config::default(), &Previous::default())
}

/// A thread on node 0 that reads a disk at home on node 1.
pub(crate) fn far_reader() -> World {
    let mut world = two_nodes();
    world.add_wide_disk("nvme0n1", Some(1));
    let fio = world.add_thread("fio", 0, 20);
    world.add_disk_bytes(fio, "nvme0n1", 500 * MB);
    world
}

#[test]
fn only_the_thread_moves_to_its_disk() {
    let mut world = far_reader();
    let plan = plan(&mut world);
    let [action] = &plan.actions[..] else {
        panic!("{plan:?}")
    };
    assert_eq!((&action.from, &action.to), (&cpus(0..4), &cpus(2..4)));
    assert_eq!(
        action.reason,
        Reason::NearQueues {
            thread: "fio-1000".to_owned(),
            class: Class::Disk,
            device: "nvme0n1".to_owned(),
            node: NodeId(1),
        }
    );
    assert_eq!(
        action.reason.to_string(),
        "fio-1000 is disk-bound: to node 1, near the queues of nvme0n1"
    );
    // Distance 21 is 110 % beyond local, and the device's own access counts half.
    assert_eq!(plan.cost_before.to_string(), "275.0 MB/s");
    assert_eq!(
        (action.cost_before, action.cost_after),
        (plan.cost_before, plan.cost_after)
    );
    assert_eq!(plan.cost_after.to_string(), "0.0 MB/s");
    for interrupt in 100..104 {
        assert_eq!(why(&plan, &Target::Interrupt(interrupt)), &Why::Managed);
    }
}

#[test]
fn a_thread_moves_to_cpus_whose_queue_completes_near() {
    let mut world = two_nodes();
    // Of node 1, CPU 3 alone has a queue that completes there.
    world.add_disk("nvme0n1", Some(1), &[cpus([0, 1, 2]), cpus([3])]);
    let fio = world.add_thread("fio", 0, 20);
    world.add_disk_bytes(fio, "nvme0n1", 500 * MB);
    assert_eq!(plan(&mut world).action(&world.target(fio)).unwrap().to, cpus([3]));
}

/// A thread on node 0 that may not leave it, and receives from a card at home on node 1.
pub(crate) fn bound_receiver() -> World {
    let mut world = two_nodes();
    world.add_card("eth0", Some(1), &[2]);
    let server = world.add_thread("server", 0, 20);
    world.confine(server, 0..2);
    world.add_stream(server, "eth0", 0, 400 * MB);
    world
}

#[test]
fn a_queue_and_its_interrupt_follow_a_pinned_thread() {
    let mut world = bound_receiver();
    world.snapshot.queues[0].cpus = cpus([2]);
    let plan = plan(&mut world);
    let to = |target: Target| plan.action(&target).unwrap().to.clone();
    let device = || "eth0".to_owned();
    assert_eq!(to(Target::Interrupt(100)), cpus([0]));
    assert_eq!(
        to(Target::Receive {
            device: device(),
            index: 0
        }),
        cpus([0])
    );
    assert_eq!(
        to(Target::Transmit {
            device: device(),
            index: 0
        }),
        cpus([0, 1])
    );
    assert_eq!(plan.actions.len(), 3);
    assert_eq!(
        plan.actions[0].reason.to_string(),
        "server-1000 takes most of these bytes of eth0: to it, on node 0"
    );
}

#[test]
fn queues_stay_near_their_device_while_threads_come_and_go() {
    let mut world = bound_receiver();
    world.add_disk("sda", Some(1), &[cpus(0..4)]);
    let disk = &mut world.snapshot.interrupts[1];
    (disk.managed, disk.affinity, disk.effective) = (false, cpus([2]), cpus([2]));
    world.add_disk_bytes(0, "sda", 400 * MB);
    let moved = |world: &mut World| {
        let plan = plan(world);
        [100, 101].map(|interrupt| plan.action(&Target::Interrupt(interrupt)).is_some())
    };
    assert_eq!(moved(&mut world), [true, true]);
    world.snapshot.threads[0].is_new = true;
    assert_eq!(moved(&mut world), [false, false]);
    world.snapshot.interrupts[0].affinity = cpus([0]);
    world.snapshot.interrupts[0].effective = cpus([0]);
    let plan = plan(&mut world);
    let home = plan.action(&Target::Interrupt(100)).unwrap();
    assert_eq!(
        (home.to.clone(), home.reason.to_string()),
        (
            cpus([2]),
            "no lasting thread is known to take these bytes of eth0: near it, to node 1".to_owned()
        )
    );
}

#[test]
fn packets_processed_at_their_interrupt_need_no_rps() {
    let mut world = bound_receiver();
    let plan = plan(&mut world);
    let receive = Target::of_queue("eth0", QueueKind::Receive, 0).unwrap();
    assert_eq!(why(&plan, &receive), &Why::NotMovable);
    assert!(plan.action(&Target::Interrupt(100)).is_some());
}

#[test]
fn thread_and_queue_move_home_together() {
    let mut world = two_nodes();
    world.add_card("eth0", Some(1), &[0]);
    let server = world.add_thread("server", 0, 20);
    world.add_stream(server, "eth0", 0, 400 * MB);
    let plan = plan(&mut world);
    assert_eq!(plan.action(&world.target(server)).unwrap().to, cpus(2..4));
    assert_eq!(plan.action(&Target::Interrupt(100)).unwrap().to, cpus([2]));
    assert_eq!(plan.cost_after.bytes_per_s(), 0);
}

#[test]
fn a_thread_of_network_and_disk_moves_to_most_of_its_bytes() {
    for (disk, card, node) in [(900, 200, 1), (200, 900, 0)] {
        let mut world = two_nodes();
        world.add_wide_disk("nvme0n1", Some(1));
        world.add_card("eth0", Some(0), &[0]);
        let node_bytes = world.add_thread("datanode", 0, 20);
        world.add_disk_bytes(node_bytes, "nvme0n1", disk * MB);
        world.add_stream(node_bytes, "eth0", 0, card * MB);
        let plan = plan(&mut world);
        match (node, &plan.action(&world.target(node_bytes)).unwrap().reason) {
            (1, reason) => assert!(matches!(reason, Reason::NearQueues { class: Class::Both, .. })),
            (_, reason) => assert!(matches!(reason, Reason::Kept { .. })),
        }
    }
}

#[test]
fn no_thread_moves_to_a_full_node() {
    let mut world = two_nodes();
    world.add_wide_disk("nvme0n1", Some(1));
    let threads: Vec<usize> = (0..4)
        .map(|cpu| {
            let fio = world.add_thread("fio", cpu % 2, 80);
            world.add_disk_bytes(fio, "nvme0n1", 500 * MB);
            fio
        })
        .collect();
    let plan = plan(&mut world);
    let moved = threads.iter().filter(|fio| plan.action(&world.target(**fio)).is_some());
    assert_eq!(moved.count(), 2);
}

/// Compilers come and go by the hundred: none of them is worth a move, and they unsettle nothing.
#[test]
fn a_new_thread_moves_when_seen_again() {
    let mut world = far_reader();
    world.snapshot.threads[0].is_new = true;
    let (config, mut previous) = (Config::default(), Previous::default());
    let plan = world.decide(&config, &mut previous);
    assert_eq!(why(&plan, &world.target(0)), &Why::New);
    // Another one, after the first has ended.
    world.snapshot.threads[0].id.thread += 1;
    let plan = world.decide(&config, &mut previous);
    assert_eq!(why(&plan, &world.target(0)), &Why::New);
    world.snapshot.threads[0].is_new = false;
    let plan = decide(&world.snapshot, &config, &previous);
    assert!(plan.action(&world.target(0)).is_some(), "{plan:?}");
}

#[test]
fn every_reason_to_stay_is_given() {
    let mut world = far_reader();
    let idle = world.add_thread("idle", 0, 90);
    let small = world.add_thread("small", 0, 1);
    world.add_disk_bytes(small, "nvme0n1", 1000);
    let pinned = world.add_thread("pinned", 0, 10);
    world.add_disk_bytes(pinned, "nvme0n1", 500 * MB);
    world.snapshot.threads[pinned].allowed = cpus([0]).into();
    let caged = world.add_thread("caged", 0, 10);
    world.add_disk_bytes(caged, "nvme0n1", 500 * MB);
    world.confine(caged, [0, 1]);
    let unknown = world.add_thread("unknown", 0, 10);
    world.snapshot.threads[unknown].received = received(CpuId(1), 500 * MB);
    let unread = world.add_thread("unread", 0, 90);
    world.snapshot.threads[unread].is_unread = true;
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    let why = |index| why(&plan, &world.target(index));
    assert_eq!(why(idle), &Why::Compute);
    assert_eq!(why(unread), &Why::Unread);
    assert_eq!(why(small), &Why::Small { bytes_per_s: 1000 });
    assert_eq!(why(pinned), &Why::Foreign);
    assert_eq!(why(caged), &Why::OnePlace);
    assert_eq!(why(unknown), &Why::DeviceUnknown);
    assert!(plan.action(&world.target(0)).is_some());
}

/// It is near its bytes by chance, and its mask would let it leave.
#[test]
fn a_well_placed_thread_is_kept() {
    let mut world = far_reader();
    let local = world.add_thread("local", 2, 10);
    world.add_disk_bytes(local, "nvme0n1", 500 * MB);
    let mut previous = Previous::default();
    let plan = decide(&world.snapshot, &Config::default(), &previous);
    let kept = plan.action(&world.target(local)).unwrap();
    assert!(matches!(kept.reason, Reason::Kept { node: NodeId(1), .. }), "{kept:?}");
    assert_eq!(kept.to, cpus([2, 3]));
    assert_eq!((kept.cost_before, kept.cost_after), Default::default());
    previous = previous.after(&plan, &world.snapshot, &Config::default());
    world.carry_out(&plan);
    let plan = decide(&world.snapshot, &Config::default(), &previous);
    assert_eq!(plan.actions, []);
    assert!(!matches!(
        why(&plan, &world.target(local)),
        Why::Foreign | Why::Dwell { .. }
    ));
}

#[test]
fn a_thread_without_a_best_place_is_not_bound() {
    let mut world = two_nodes();
    world.add_wide_disk("nvme0n1", None);
    let local = world.add_thread("local", 2, 10);
    world.add_disk_bytes(local, "nvme0n1", 500 * MB);
    assert_eq!(plan(&mut world).actions, []);
}

#[test]
fn a_small_gain_moves_nothing() {
    let mut world = far_reader();
    world.snapshot.threads[0].disk[0].bytes = 2 * MB;
    // Whose mask is wide is bound to somewhere anyhow.
    let mut previous = Previous::default();
    previous.note(world.target(0), cpus([0, 1]));
    world.snapshot.threads[0].allowed = cpus([0, 1]).into();
    let plan = decide(&world.snapshot, &Config::default(), &previous);
    let Why::TooLittle { gain, price } = why(&plan, &world.target(0)) else {
        panic!("{plan:?}")
    };
    assert!(gain < price, "{gain} {price}");
}

#[test]
fn policy_off_works_by_device_and_process() {
    let mut world = far_reader();
    let other = world.add_thread("postgres", 0, 20);
    world.add_disk_bytes(other, "nvme0n1", 500 * MB);
    let mut config = Config::default();
    config.processes.insert("postgres".to_owned(), Policy::Off);
    let plan = decide(&world.snapshot, &config, &Previous::default());
    assert_eq!(why(&plan, &world.target(other)), &Why::Off);
    assert!(plan.action(&world.target(0)).is_some());

    config.devices.insert("nvme0n1".to_owned(), Policy::Off);
    config.processes.insert("postgres".to_owned(), Policy::Local);
    let plan = decide(&world.snapshot, &config, &Previous::default());
    assert_eq!(why(&plan, &world.target(0)), &Why::Off);
    assert_eq!(why(&plan, &Target::Interrupt(100)), &Why::Off);
    assert!(
        plan.action(&world.target(other)).is_some(),
        "a process's policy goes first"
    );
}

#[test]
fn our_masks_may_change_again_and_foreign_ones_never() {
    let mut world = far_reader();
    let first = plan(&mut world);
    let mut previous = Previous::default().after(&first, &world.snapshot, &Config::default());
    world.carry_out(&first);
    world.add_wide_disk("nvme1n1", Some(0));
    world.snapshot.threads[0].disk[0].device = Some("nvme1n1".to_owned());
    let config = dwelling(3);
    let target = world.target(0);
    for left in [2, 1] {
        let plan = world.decide(&config, &mut previous);
        assert_eq!(why(&plan, &target), &Why::Dwell { periods_left: left });
    }
    let plan = decide(&world.snapshot, &config, &previous);
    assert_eq!(plan.action(&target).unwrap().to, cpus(0..2));

    // Someone else has narrowed it since.
    world.snapshot.threads[0].allowed = cpus([3]).into();
    let plan = decide(&world.snapshot, &config, &previous);
    assert_eq!(why(&plan, &target), &Why::Foreign);

    // A thread that was born with the mask is ours; one that is older and has the same is not.
    for (started, ours) in [(6, true), (5, false)] {
        let mut world = world.clone();
        world.snapshot.threads[0].allowed = cpus([2, 3]).into();
        let mut child = world.snapshot.threads[0].clone();
        child.id.thread = 2000;
        child.id.started = started;
        world.snapshot.threads.push(child);
        let plan = decide(&world.snapshot, &config, &previous);
        assert_eq!(plan.action(&world.target(1)).is_some(), ours, "started at {started}");
    }
}

#[test]
fn foreign_and_refused_interrupts_are_left_alone() {
    let mut world = bound_receiver();
    let first = plan(&mut world);
    let mut previous = Previous::default().after(&first, &world.snapshot, &Config::default());
    world.carry_out(&first);
    let config = dwelling(0);
    world.snapshot.interrupts[0].affinity = cpus([3]);
    world.snapshot.interrupts[0].effective = cpus([3]);
    world.observe();
    let plan = decide(&world.snapshot, &config, &previous);
    assert_eq!(why(&plan, &Target::Interrupt(100)), &Why::TakenOver);

    previous = Previous::default();
    previous.refuse(Target::Interrupt(100));
    let plan = decide(&world.snapshot, &config, &previous);
    assert_eq!(why(&plan, &Target::Interrupt(100)), &Why::Refused);
}

#[test]
fn a_forgiven_interrupt_is_planned_again_and_other_knowledge_is_kept() {
    let mut world = far_reader();
    let first = plan(&mut world);
    let mut previous = Previous::default().after(&first, &world.snapshot, &Config::default());
    let interrupt = Target::Interrupt(100);
    let of_thread = world.snapshot.threads[0].id;
    let refused = Target::Thread(ThreadId {
        thread: of_thread.thread + 1,
        ..of_thread
    });
    previous.refuse(interrupt.clone());
    previous.refuse(refused.clone());
    previous.forgive();
    assert!(!previous.refused(&interrupt) && previous.refused(&refused));
    assert!(previous.cpus(&world.target(0)).is_some());
}

#[test]
fn plans_use_only_online_cpus() {
    let mut world = far_reader();
    world.snapshot.online = cpus([0, 1, 3]);
    assert_eq!(plan(&mut world).action(&world.target(0)).unwrap().to, cpus([3]));
    world.snapshot.online = cpus([0, 1]);
    assert_eq!(why(&plan(&mut world), &world.target(0)), &Why::OnePlace);
    world.snapshot.online.clear();
    assert!(plan(&mut world).actions.is_empty());
}

#[test]
fn a_device_without_a_home_is_local_to_all_nodes() {
    let mut world = two_nodes();
    world.add_wide_disk("nvme0n1", None);
    let fio = world.add_thread("fio", 0, 20);
    world.add_disk_bytes(fio, "nvme0n1", 500 * MB);
    let plan = plan(&mut world);
    assert_eq!(why(&plan, &world.target(fio)), &Why::Best);
    assert_eq!(plan.cost_before.bytes_per_s(), 0);
}

#[test]
fn an_interrupt_without_known_users_moves_near_its_device() {
    let mut world = two_nodes();
    world.add_card("eth0", Some(1), &[0]);
    world.snapshot.interrupts[0].arrivals = vec![(CpuId(0), 100_000)];
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    let action = plan.action(&Target::Interrupt(100)).unwrap();
    assert_eq!(action.to, cpus([2]));
    assert!(matches!(action.reason, Reason::NearDevice { node: NodeId(1), .. }));
}

/// Four queues and four threads, all on CPU 0, of a card at home on node 1: where each policy puts them.
#[test]
fn policies_place_as_in_the_paper() {
    let placed = |policy| {
        let mut world = two_nodes();
        world.add_card("eth0", Some(1), &[0, 0, 0, 0]);
        for queue in 0..4 {
            let server = world.add_thread("server", 0, 10);
            world.add_stream(server, "eth0", queue, 30 * MB);
        }
        world.observe();
        let config = with_policy(policy);
        let plan = decide(&world.snapshot, &config, &Previous::default());
        world.carry_out(&plan);
        let numbers = |cpus: &[CpuId]| cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
        let interrupts: Vec<Vec<u32>> = world
            .snapshot
            .interrupts
            .iter()
            .map(|it| numbers(&it.affinity))
            .collect();
        let threads: Vec<Vec<u32>> = world.snapshot.threads.iter().map(|it| numbers(&it.allowed)).collect();
        (interrupts.concat(), threads)
    };
    let all = vec![0, 1, 2, 3];
    assert_eq!(placed(Policy::Off), (vec![0; 4], vec![all.clone(); 4]));
    assert_eq!(placed(Policy::Local), (vec![2, 3, 2, 3], vec![vec![2, 3]; 4]));
    let each = (0..4).map(|cpu| vec![cpu]).collect();
    assert_eq!(placed(Policy::Spread), (all, each));
    assert_eq!(placed(Policy::Pack), (vec![2; 4], vec![vec![2]; 4]));
    assert_eq!(placed(Policy::SingleCore), (vec![2; 4], vec![vec![2]; 4]));
}

/// A pair of network namespaces on a machine: no interrupt, no home, and packets are processed where RPS says.
fn with_virtual_card(world: &mut World, processed: u32) {
    let queue = |kind, numbers: &[u32]| Queue {
        device: "veth0".to_owned(),
        kind,
        index: 0,
        interrupt: None,
        cpus: cpus(numbers.iter().copied()),
        movable: true,
    };
    world.snapshot.queues.push(queue(QueueKind::Receive, &[processed]));
    world.snapshot.queues.push(queue(QueueKind::Transmit, &[]));
}

fn received(cpu: CpuId, bytes: u64) -> Vec<Received> {
    let (cpu, queue) = (Some(cpu), None);
    vec![Received { cpu, queue, bytes }]
}

#[test]
fn packets_of_a_virtual_card_move_to_their_reader() {
    let mut world = two_nodes();
    with_virtual_card(&mut world, 2);
    let reader = world.add_thread("server", 0, 20);
    world.snapshot.threads[reader].received = received(CpuId(2), 500 * MB);
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    let steering = Target::of_queue("veth0", QueueKind::Receive, 0).unwrap();
    let action = plan.action(&steering).unwrap();
    assert_eq!((&action.from, &action.to), (&cpus([2]), &cpus([0])), "{plan:?}");
    assert!(matches!(
        plan.action(&world.target(reader)).unwrap().reason,
        Reason::Kept { .. }
    ));
    assert!(plan.cost_before.bytes_per_s() > 0);
    assert_eq!(plan.cost_after.bytes_per_s(), 0);
}

/// Their CPU is the same, so only the queues tell whose bytes are whose.
#[test]
fn queues_of_one_cpu_move_to_their_readers() {
    for tells_queues in [false, true] {
        let mut world = two_nodes();
        world.tells_queues = tells_queues;
        world.add_card("eth0", Some(1), &[0, 0]);
        for (queue, node) in [(0, [0, 1]), (1, [2, 3])] {
            let reader = world.add_thread("reader", node[0], 20);
            world.add_stream(reader, "eth0", queue, 500 * MB);
            world.confine(reader, node);
        }
        let plan = plan(&mut world);
        let interrupts: Vec<u32> = world.snapshot.interrupts.iter().map(|it| it.number).collect();
        let moved = |queue: usize| plan.action(&Target::Interrupt(interrupts[queue]));
        let goes = |queue: usize| moved(queue).map(|action| action.to[0].0 / 2);
        // Where they are not known apart both are near the card, which is on node 1.
        let first = if tells_queues { None } else { Some(1) };
        assert_eq!((goes(0), goes(1)), (first, Some(1)), "{plan:?}");
    }
}

/// Checks that sent bytes belong to no virtual card by default: the card may be in another network namespace.
#[test]
fn sent_bytes_do_not_count_for_a_virtual_card() {
    let mut world = two_nodes();
    with_virtual_card(&mut world, 2);
    let sender = world.add_thread("server", 0, 20);
    world.add_sent_bytes(sender, None, 500 * MB);
    let config = with_policy(Policy::Spread);
    let plan = decide(&world.snapshot, &config, &Previous::default());
    assert_eq!(why(&plan, &world.target(sender)), &Why::DeviceUnknown);
}

#[test]
fn virtual_cards_do_not_hide_the_real_card_from_senders() {
    let mut world = two_nodes();
    world.add_card("eth0", Some(1), &[2]);
    let sender = world.add_thread("server", 0, 20);
    world.add_sent_bytes(sender, None, 500 * MB);
    let alone = decide(&world.snapshot, &Config::default(), &Previous::default());
    assert!(alone.cost_before.bytes_per_s() > 0);
    with_virtual_card(&mut world, 0);
    for device in [None, Some("veth0".to_owned())] {
        world.snapshot.threads[sender].sent[0].device = device;
        let beside = decide(&world.snapshot, &Config::default(), &Previous::default());
        assert_eq!(alone.cost_before, beside.cost_before);
        assert_eq!(
            alone.action(&world.target(sender)),
            beside.action(&world.target(sender))
        );
    }
}

/// Its card is known, and so is where it should be; a bridge is not what the bytes leave by, and there are two cards.
#[test]
fn a_sender_moves_to_its_card() {
    for (device, goes) in [(Some("eth1"), true), (Some("br0"), false), (None, false)] {
        let mut world = two_nodes();
        world.add_card("eth0", Some(0), &[0]);
        world.add_card("eth1", Some(1), &[2]);
        let sender = world.add_thread("server", 0, 20);
        world.add_sent_bytes(sender, device, 500 * MB);
        let plan = plan(&mut world);
        let target = world.target(sender);
        if goes {
            assert_eq!(plan.action(&target).unwrap().to, cpus([2, 3]), "{plan:?}");
        } else {
            assert_eq!(why(&plan, &target), &Why::DeviceUnknown);
        }
    }
}
