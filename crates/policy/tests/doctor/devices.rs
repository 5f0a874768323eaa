//! Interrupts and devices.

use super::*;
use homenode_policy::CpuId;
use homenode_policy::doctor::{Helper, Mobility};

/// A disk on node 1 whose interrupt of queue `queue` arrived so often on its CPU, and nobody is known to use it.
fn completions(queue: usize, count: u64) -> World {
    let mut world = two_nodes();
    world.add_wide_disk("disk", Some(1));
    let cpu = world.snapshot.interrupts[queue].effective[0];
    world.snapshot.interrupts[queue].arrivals = vec![(cpu, count)];
    world
}

/// A card on node 1 with two queues on CPUs of node 0, and who takes its bytes on node 1.
fn card_far_from_its_taker() -> World {
    let mut world = two_nodes();
    world.add_card("card", Some(1), &[0, 0]);
    for queue in 0..2 {
        let server = world.add_thread("server", 4 + queue, 20);
        world.add_stream(server, "card", queue, 200 * MB);
    }
    world.observe();
    world
}

#[test]
fn completions_far_from_the_disk_are_found() {
    let findings = found(&completions(0, 5000));
    assert_eq!(
        told(&findings, "remote-interrupts"),
        "interrupts 100 of disk: 5000 of 5000 arrived on node 0 in the period; they belong on node 1, near the device; \
         they cannot be moved, and it is not known which threads use it"
    );
    assert_eq!(findings[0].gain, None, "the gain counts with the threads");
    assert_eq!(found(&completions(5, 5000)), [], "near the disk");
    assert_eq!(found(&completions(0, 50)), [], "too few");
}

#[test]
fn completions_of_moving_and_pinned_threads_are_found() {
    let mut world = with_reader(two_nodes(), 1);
    world.snapshot.interrupts[0].arrivals = vec![(CpuId(0), 9000)];
    let findings = found(&world);
    let said = told(&findings, "remote-interrupts");
    assert!(said.ends_with("so the threads that use it move"), "{said}");
    // Who takes more from the network beside it is where it should be.
    let mut world = two_nodes();
    world.add_wide_disk("disk", Some(1));
    world.add_card("card", Some(0), &[0]);
    let both = world.add_thread("both", 0, 20);
    world.add_disk_bytes(both, "disk", 10 * MB);
    world.add_stream(both, "card", 0, 400 * MB);
    world.observe();
    world.snapshot.interrupts[0].arrivals = vec![(CpuId(0), 9000)];
    assert_eq!(found(&world), []);
}

#[test]
fn few_remote_completions_are_no_finding() {
    let mut world = completions(5, 99_000);
    world.snapshot.interrupts[0].arrivals = vec![(CpuId(0), 1000)];
    assert_eq!(found(&world), []);
}

#[test]
fn packets_far_from_card_and_reader_are_found() {
    let world = card_far_from_its_taker();
    let findings = found(&world);
    let its = of_kind(&findings, "remote-interrupts");
    assert_eq!(its.len(), 1, "{findings:?}");
    let Problem::RemoteInterrupts { numbers, mobility, .. } = &its[0].problem else {
        panic!("{its:?}")
    };
    assert_eq!((&numbers[..], *mobility), (&[100, 101][..], Mobility::Planned));
    let plan = decide(&world.snapshot, &Config::default(), &Previous::default());
    assert!(
        its[0].gain.unwrap() <= plan.cost_before,
        "counted once a queue: {its:?}"
    );
    assert!(its[0].gain.unwrap().bytes_per_s() >= 200 * MB, "{its:?}");
    let mut after = world;
    after.carry_out(&plan);
    assert_eq!(of_kind(&found(&after), "remote-interrupts"), []);
}

#[test]
fn packets_near_their_card_but_far_from_their_reader_are_found() {
    let mut world = two_nodes();
    world.add_card("card", Some(1), &[4]);
    let server = world.add_thread("server", 0, 20);
    world.add_stream(server, "card", 0, 200 * MB);
    // It stays where it is, and so its queue comes to it.
    world.snapshot.threads[server].allowed = crate::world::cpus(0..2).into();
    world.observe();
    let said = told(&found(&world), "remote-interrupts");
    assert_eq!(
        said,
        "interrupts 100 of card: 4000 of 4000 arrived on node 1 in the period; they belong on node 0, near the threads that \
         take its bytes"
    );
}

#[test]
fn interrupts_without_a_queue_are_found() {
    let mut world = two_nodes();
    world.add_card("card", Some(1), &[0]);
    world.snapshot.queues.clear();
    world.snapshot.interrupts[0].arrivals = vec![(CpuId(1), 3000), (CpuId(4), 10)];
    let said = told(&found(&world), "remote-interrupts");
    assert_eq!(
        said,
        "interrupts 100 of card: 3000 of 3010 arrived on node 0 in the period; they belong on node 1, near the device"
    );
}

#[test]
fn interrupts_all_on_one_cpu_are_found() {
    let world = card_far_from_its_taker();
    assert_eq!(
        told(&found(&world), "interrupts-on-one-cpu"),
        "interrupts 100, 101: all 8000 in the period arrived on CPU 0, and no program spreads them"
    );
    let facts = Facts {
        helpers: vec![Helper::Irqbalance],
        ..Facts::default()
    };
    let findings = found_with(&facts, &world.snapshot);
    assert_eq!(of_kind(&findings, "interrupts-on-one-cpu"), [], "spread");
    let mut spread = world;
    spread.snapshot.interrupts[1].arrivals = vec![(CpuId(2), 3000)];
    assert_eq!(of_kind(&found(&spread), "interrupts-on-one-cpu"), []);
}

#[test]
fn helper_programs_are_found_only_if_they_interfere() {
    let facts = Facts {
        helpers: vec![Helper::Irqbalance, Helper::Numad, Helper::Tuned, Helper::SystemdLink],
        ..Facts::default()
    };
    let conflicts = |world: &World| {
        let its = of_kind(&found_with(&facts, &world.snapshot), "conflict");
        its.iter().map(|finding| finding.problem.object()).collect::<Vec<_>>()
    };
    assert_eq!(conflicts(&card_far_from_its_taker()), ["irqbalance", "tuned"]);
    assert_eq!(conflicts(&with_reader(two_nodes(), 1)), ["numad", "tuned"]);
    assert_eq!(conflicts(&with_reader(two_nodes(), 0)), [""; 0]);
    let mut steered = card_far_from_its_taker();
    for queue in &mut steered.snapshot.queues {
        if queue.kind == homenode_policy::affinity::QueueKind::Receive {
            queue.cpus = vec![CpuId(1)];
        }
    }
    steered.observe();
    assert!(conflicts(&steered).contains(&"systemd's .link files".to_owned()));
}

#[test]
fn a_busy_device_without_a_home_is_found() {
    let mut world = two_nodes();
    world.add_wide_disk("disk", None);
    assert_eq!(found(&world), [], "idle");
    world.snapshot.interrupts[0].arrivals = vec![(CpuId(0), 4000)];
    let facts = Facts {
        addresses: [("disk".to_owned(), "0000:3b:00.0".to_owned())].into(),
        ..Facts::default()
    };
    let findings = found_with(&facts, &world.snapshot);
    assert_eq!(
        told(&findings, "home-unknown"),
        "disk: 4000 interrupts in the period, and the firmware does not tell its node"
    );
    let Problem::HomeUnknown { address, .. } = &findings[0].problem else {
        panic!("{findings:?}")
    };
    assert_eq!(address.as_deref(), Some("0000:3b:00.0"));
}
