//! Plans on a model machine ([`model`]), cut at every operation; journals that are cut and changed; the machine itself.

mod back;
mod failing;
mod journals;
mod model;
mod single;

use super::{Actor, Outcome, Restore};
use homenode_policy::NodeId;
use homenode_policy::affinity::{Action, Cost, Interrupt, Plan, Reason, Return, Snapshot, Target, ThreadId};
use homenode_policy::topology::{Cpu, Latency, Node, Parts, Topology};
use model::{ALL, Both, Handle, Machine, OTHERS, cpus, set_of};

fn action(target: Target, from: u8, to: u8) -> Action {
    Action {
        target,
        from: cpus(from),
        to: cpus(to),
        reason: Reason::NearDevice {
            device: "eth0".to_owned(),
            node: NodeId(0),
        },
        cost_before: Cost::default(),
        cost_after: Cost::default(),
    }
}

fn plan(mut actions: Vec<Action>) -> Plan {
    actions.sort_by(|a, b| a.target.cmp(&b.target));
    Plan {
        actions,
        ..Plan::default()
    }
}

/// Eight CPUs of one node, and the machine's interrupts.
fn snapshot(machine: &Machine) -> Snapshot {
    let cpu = |id| Cpu {
        id,
        core: Some(id.0),
        package: Some(0),
        online: true,
    };
    let node = Node {
        cpus: cpus(ALL),
        memory_bytes: 1 << 30,
        ..Node::new(NodeId(0))
    };
    let parts = Parts {
        nodes: vec![node],
        cpus: cpus(ALL).into_iter().map(cpu).collect(),
        possible_cpus: 8,
        caches: Vec::new(),
        latency: Latency {
            matrix: vec![vec![10]],
            ..Latency::default()
        },
        devices: Vec::new(),
    };
    let interrupts = machine.interrupts.iter().map(|(number, interrupt)| Interrupt {
        number: *number,
        name: interrupt.name.clone(),
        device: None,
        arrivals: Vec::new(),
        affinity: cpus(interrupt.affinity.now),
        effective: cpus(interrupt.effective),
        managed: interrupt.managed,
    });
    Snapshot {
        interrupts: interrupts.collect(),
        ..Snapshot::idle(Topology::new(parts).unwrap(), cpus(machine.online), 1_000_000_000)
    }
}

/// Moves about half of the machine: what can be moved, and now and then what is not to be.
fn some_plan(machine: &mut Machine) -> (Plan, Snapshot) {
    let mut actions = Vec::new();
    for target in machine.targets() {
        let from = machine.has(&target).unwrap();
        let room = match &target {
            Target::Thread(id) => machine.cpusets[machine.threads[&id.thread].group],
            Target::Interrupt(_) | Target::Transmit { .. } | Target::Receive { .. } => ALL,
        };
        let to = machine.random.u8(..) & room & !OTHERS;
        if to != 0 && to != from && machine.random.bool() {
            actions.push(action(target, from, to));
        }
    }
    (plan(actions), snapshot(machine))
}

/// A daemon: it takes back what an earlier one left, carries plans out while others are at work, and takes all back.
fn daemon(handle: &Handle, plans: usize) {
    let mut actor = Actor::with_store(handle.clone(), handle.clone()).unwrap();
    let reverted = actor.revert().unwrap();
    assert!(reverted.is_complete(), "{reverted:?}");
    let mut returned = Vec::new();
    for _ in 0..plans {
        let (plan, snapshot) = some_plan(&mut handle.machine());
        let applied = actor.apply(&plan, &snapshot, &[]).unwrap();
        assert_eq!(applied.outcomes.len(), plan.actions.len());
        let refused = |(_, outcome): &(Target, Outcome)| matches!(outcome, Outcome::Refused(_));
        assert!(!applied.outcomes.iter().any(refused), "{applied:?}");
        handle.machine().fork();
        let mut quiet = self::plan(Vec::new());
        let threads: Vec<ThreadId> = handle.machine().threads.values().map(|thread| thread.id).collect();
        let first = handle.machine().random.usize(..threads.len());
        let some = threads.into_iter().skip(first).take(2);
        quiet.returns.extend(some.map(|thread| Return {
            thread,
            quiet_periods: Some(60),
        }));
        let applied = actor.apply(&quiet, &snapshot, &[]).unwrap();
        assert_eq!(applied.returned.len(), quiet.returns.len());
        returned = applied.returned;
    }
    pin_again(&actor, &returned);
    let reverted = actor.revert().unwrap();
    assert!(reverted.is_complete(), "{reverted:?}");
}

/// Now and then somebody pins threads to the very CPUs that they had from us until their masks went back. Nobody starts
/// anything afterwards: a process whose parent ends could not be told from one that had inherited before.
fn pin_again(actor: &Actor<Handle, Handle>, returned: &[(ThreadId, Restore)]) {
    if actor.kernel.machine().random.bool() {
        return;
    }
    for (id, _) in returned.iter().filter(|(_, restore)| *restore == Restore::Restored) {
        let mut machine = actor.kernel.machine();
        let entry = actor.journal.entries().get(&Target::Thread(*id));
        let thread = machine.threads.get_mut(&id.thread).filter(|thread| thread.id == *id);
        if let (Some(entry), Some(thread)) = (entry, thread) {
            let set = set_of(entry.last());
            thread.asked = Both { now: set, wanted: set };
            machine.busy = false;
        }
    }
}

fn check(handle: &Handle, seed: u64, cut: usize) {
    let machine = handle.machine();
    assert_eq!(machine.differences(), Vec::<String>::new(), "seed {seed}, cut at {cut}");
    assert!(machine.file.is_none(), "seed {seed}, cut at {cut}: a journal is left");
    for interrupt in machine.interrupts.values().filter(|interrupt| interrupt.managed) {
        assert_eq!(interrupt.writes, 0, "seed {seed}, cut at {cut}");
    }
}

#[test]
fn a_reverted_plan_leaves_nothing() {
    for seed in 0..2000 {
        let handle = Handle::new(seed);
        daemon(&handle, 3);
        check(&handle, seed, 0);
    }
}

#[test]
fn a_run_killed_at_any_step_is_reverted_by_the_next() {
    (0..20).for_each(|seed| cut_everywhere(seed, true));
}

#[test]
fn a_run_killed_at_any_step_on_a_quiet_machine_is_reverted() {
    (0..80).for_each(|seed| cut_everywhere(seed, false));
}

/// `busy`: whether others do something meanwhile.
fn cut_everywhere(seed: u64, busy: bool) {
    let start = || {
        let handle = Handle::new(seed);
        handle.machine().busy = busy;
        handle
    };
    let whole = start();
    daemon(&whole, 2);
    let operations = whole.machine().operations;
    for cut in 1..=operations {
        let handle = start();
        handle.machine().cut = Some(cut);
        assert!(
            !handle.run(|| daemon(&handle, 2)),
            "seed {seed}: it was to be cut at {cut}"
        );
        // Taking back is cut too, later and later.
        for later in [2, 9, 31] {
            let again = handle.machine().operations + later;
            handle.machine().cut = Some(again);
            handle.run(|| daemon(&handle, 0));
        }
        handle.machine().cut = None;
        daemon(&handle, 0);
        check(&handle, seed, cut);
    }
}
