//! Masks that go back before the end, and values that the kernel or a driver has set anew.

use super::super::{Outcome, Restore, Standing};
use super::model::{ALL, Both, Handle, OTHERS, Set, Thread as ModelThread, cpus};
use super::single::{INIT, ModelActor, THREAD, apply, interrupt, open, quiet, transmit};
use super::{action, plan, snapshot};
use homenode_policy::affinity::{Config, Plan, Previous, Reset, Return, Snapshot, Target, Thread, ThreadId, decide};

fn give_back(handle: &Handle, actor: &mut ModelActor, threads: &[ThreadId]) -> Vec<(ThreadId, Restore)> {
    let mut plan = plan(Vec::new());
    let returns = threads.iter().map(|thread| Return {
        thread: *thread,
        quiet_periods: Some(60),
    });
    plan.returns = returns.collect();
    let snapshot = snapshot(&handle.machine());
    actor.apply(&plan, &snapshot, &[]).unwrap().returned
}

/// A plan that takes up CPUs which the kernel or a driver has set anew.
fn reset(target: Target, now: Set) -> Plan {
    let mut plan = plan(Vec::new());
    plan.resets = vec![Reset { target, now: cpus(now) }];
    plan
}

/// A thread as the sensor sees it.
fn seen(handle: &Handle, id: ThreadId) -> Snapshot {
    let mut snapshot = snapshot(&handle.machine());
    snapshot.threads = vec![Thread {
        allowed: cpus(handle.machine().has(&Target::Thread(id)).unwrap()).into(),
        cpu_ns: 1,
        ..Thread::idle(id, cpus(1)[0], cpus(ALL).into())
    }];
    snapshot
}

#[test]
fn a_mask_that_went_back_is_in_force_no_more_and_may_be_set_again() {
    let (handle, mut actor) = quiet();
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, Restore::Restored)]);
    assert_eq!(handle.machine().has(&THREAD), Some(ALL));
    for _ in 0..2 {
        assert_eq!((actor.changed().len(), actor.verify().unwrap().len()), (0, 0));
        // So it is by the journal's text.
        drop(actor);
        actor = open(&handle).unwrap();
    }
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 5), Outcome::Done);
    assert_eq!(actor.changed().len(), 1);
    assert!(actor.revert().unwrap().is_complete());
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn a_mask_that_somebody_else_set_does_not_go_back() {
    let (handle, mut actor) = quiet();
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = OTHERS;
    let left = Restore::Left(cpus(OTHERS));
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, left)]);
    assert_eq!(handle.machine().has(&THREAD), Some(OTHERS));
}

#[test]
fn a_mask_that_was_inherited_before_it_went_back_goes_back_too() {
    let (handle, mut actor) = quiet();
    handle.machine().threads.retain(|number, _| *number == INIT.thread);
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    handle.machine().fork();
    let child = handle
        .machine()
        .threads
        .values()
        .map(|thread| thread.id)
        .find(|id| *id != INIT);
    let child = child.unwrap();
    let mut previous = Previous::default();
    actor.note_inheritors(&seen(&handle, child), &mut previous).unwrap();
    assert_eq!(previous.cpus(&Target::Thread(child)), Some(&cpus(3)[..]));
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, Restore::Restored)]);
    drop(actor);
    let mut actor = open(&handle).unwrap();
    let previous = actor.previous().unwrap();
    assert_eq!(previous.cpus(&Target::Thread(child)), Some(&cpus(3)[..]));
    assert_eq!(give_back(&handle, &mut actor, &[child]), [(child, Restore::Restored)]);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
    // Whoever has all CPUs has inherited nothing.
    let mut previous = Previous::default();
    actor.note_inheritors(&seen(&handle, child), &mut previous).unwrap();
    assert_eq!(previous, Previous::default());
}

/// A shell with a session of its own.
fn shell(handle: &Handle) -> ThreadId {
    let process = 800;
    let mut machine = handle.machine();
    machine.add_process(process, INIT.process, process, 0, ALL);
    machine.threads[&process].id
}

#[test]
fn a_process_pinned_after_the_mask_went_back_has_inherited_nothing() {
    let (handle, mut actor) = quiet();
    let shell = shell(&handle);
    let target = Target::Thread(shell);
    assert_eq!(apply(&handle, &mut actor, &target, ALL, 3), Outcome::Done);
    assert_eq!(give_back(&handle, &mut actor, &[shell]), [(shell, Restore::Restored)]);
    handle.machine().ticks += 10;
    handle.machine().add_process(900, shell.process, shell.process, 0, 3);
    let pinned = handle.machine().threads[&900].id;
    for looks in [true, false] {
        let mut previous = Previous::default();
        let (seen, before) = (seen(&handle, pinned), handle.machine().operations);
        actor.note_inheritors(&seen, &mut previous).unwrap();
        assert_eq!(previous, Previous::default());
        assert_eq!(
            handle.machine().operations > before,
            looks,
            "its ancestors are read once"
        );
        // The shell is bound anew.
        handle.machine().ticks += 10;
        let has = handle.machine().has(&target).unwrap();
        assert!(apply(&handle, &mut actor, &target, has, 3).is_done());
    }
    let reverted = actor.revert().unwrap();
    assert_eq!((reverted.inherited, reverted.unread), (Vec::new(), None));
    assert_eq!(handle.machine().has(&Target::Thread(pinned)), Some(3));
}

#[test]
fn children_of_a_process_that_inherited_before_the_mask_went_back_have_inherited() {
    let (handle, mut actor) = quiet();
    let shell = shell(&handle);
    assert_eq!(
        apply(&handle, &mut actor, &Target::Thread(shell), ALL, 3),
        Outcome::Done
    );
    handle.machine().add_process(900, shell.process, shell.process, 0, 3);
    assert_eq!(give_back(&handle, &mut actor, &[shell]), [(shell, Restore::Restored)]);
    handle.machine().ticks += 10;
    handle.machine().add_process(901, 900, shell.process, 0, 3);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.inherited.len(), 2, "{reverted:?}");
    let child = handle.machine().threads[&901].id;
    assert_eq!(handle.machine().has(&Target::Thread(child)), Some(ALL));
}

#[test]
fn a_child_of_an_ended_inheritor_has_inherited_also_after_the_mask_went_back() {
    let (handle, mut actor) = quiet();
    let shell = shell(&handle);
    assert!(apply(&handle, &mut actor, &Target::Thread(shell), ALL, 3).is_done());
    assert_eq!(give_back(&handle, &mut actor, &[shell]), [(shell, Restore::Restored)]);
    handle.machine().ticks += 10;
    // The parent inherited the mask before it went back, started the child, and has ended.
    handle.machine().add_process(901, INIT.process, shell.process, 0, 3);
    let child = handle.machine().threads[&901].id;
    assert_eq!(actor.revert().unwrap().inherited, [(child, Restore::Restored)]);
    assert_eq!(handle.machine().has(&Target::Thread(child)), Some(ALL));
}

/// A bound process, and a child of it with the same mask in a session of its own.
fn child_of_bound(handle: &Handle, actor: &mut ModelActor) -> ThreadId {
    let shell = shell(handle);
    assert!(apply(handle, actor, &Target::Thread(shell), ALL, 3).is_done());
    handle.machine().add_process(900, shell.process, 900, 0, 3);
    handle.machine().threads[&900].id
}

#[test]
fn an_inheritor_whose_ancestors_end_while_they_are_read_is_found_later() {
    let (handle, mut actor) = quiet();
    let child = child_of_bound(&handle, &mut actor);
    let seen = seen(&handle, child);
    let found = |actor: &mut ModelActor| {
        let mut previous = Previous::default();
        actor.note_inheritors(&seen, &mut previous).unwrap();
        previous.cpus(&Target::Thread(child)).is_some()
    };
    handle.machine().losing = Some(child.process);
    assert!(!found(&mut actor));
    let moved = plan(vec![action(Target::Thread(child), 3, 5)]);
    let applied = actor.apply(&moved, &seen, &[]).unwrap();
    assert_eq!(
        applied.outcomes,
        [(Target::Thread(child), Outcome::Refused(libc::EAGAIN))]
    );
    let next = applied.next(&Previous::default(), &moved, &seen, &Config::default());
    assert!(!next.refused(&Target::Thread(child)));
    let mut plan = plan(Vec::new());
    plan.returns = vec![Return {
        thread: child,
        quiet_periods: Some(60),
    }];
    let applied = actor.apply(&plan, &seen, &[]).unwrap();
    assert_eq!(applied.returned, [(child, Restore::Failed(libc::EAGAIN))]);
    let next = applied.next(&Previous::default(), &plan, &seen, &Config::default());
    assert!(!next.refused(&Target::Thread(child)));
    let reverted = actor.revert().unwrap();
    assert_eq!((reverted.unread, reverted.is_complete()), (Some(libc::EAGAIN), false));
    handle.machine().losing = None;
    let (handle, mut actor) = quiet();
    let child = child_of_bound(&handle, &mut actor);
    assert!(found(&mut actor));
    assert!(is_restored(&mut actor, child));
}

/// Whether a revert of all restores a thread of the journal.
fn is_restored(actor: &mut ModelActor, thread: ThreadId) -> bool {
    let reverted = actor.revert().unwrap();
    reverted.targets.contains(&(Target::Thread(thread), Restore::Restored))
}

/// From then on nothing else tells that its mask is ours.
#[test]
fn an_inheritor_gets_its_mask_back_after_its_ancestor_has_ended() {
    let (handle, mut actor) = quiet();
    let child = child_of_bound(&handle, &mut actor);
    let mut previous = Previous::default();
    actor.note_inheritors(&seen(&handle, child), &mut previous).unwrap();
    let mut machine = handle.machine();
    machine.processes.remove(&800);
    machine.threads.remove(&800);
    machine.processes.get_mut(&child.process).unwrap().parent = INIT.process;
    drop(machine);
    drop(actor);
    let mut actor = open(&handle).unwrap();
    let previous = actor.previous().unwrap();
    assert_eq!(previous.cpus(&Target::Thread(child)), Some(&cpus(3)[..]));
    assert!(is_restored(&mut actor, child));
    assert_eq!(handle.machine().has(&Target::Thread(child)), Some(ALL));
}

/// The kernel gives it the first one's number and start.
#[test]
fn a_thread_that_calls_execve_keeps_its_mask_and_gives_it_back() {
    let (handle, mut actor) = quiet();
    let shell = shell(&handle);
    handle.machine().ticks += 10;
    let id = ThreadId {
        process: shell.process,
        thread: 801,
        started: handle.machine().ticks,
    };
    let thread = ModelThread {
        id,
        asked: Both { now: ALL, wanted: ALL },
        group: 0,
    };
    handle.machine().threads.insert(id.thread, thread);
    assert!(apply(&handle, &mut actor, &Target::Thread(id), ALL, 3).is_done());
    handle.machine().threads.get_mut(&shell.thread).unwrap().asked.now = 3;
    let told = |actor: &mut ModelActor| {
        let mut previous = Previous::default();
        actor.note_inheritors(&seen(&handle, shell), &mut previous).unwrap();
        previous.cpus(&Target::Thread(shell)).map(<[_]>::to_vec)
    };
    // As long as the other one is there, somebody has pinned the first one.
    assert_eq!(told(&mut actor), None);
    handle.machine().threads.remove(&id.thread);
    drop(actor);
    let mut actor = open(&handle).unwrap();
    assert_eq!(told(&mut actor), Some(cpus(3)));
    let reverted = actor.revert().unwrap();
    let restored = (Target::Thread(shell), Restore::Restored);
    assert!(reverted.targets.contains(&restored), "{reverted:?}");
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn a_hidden_ancestor_is_looked_for_once() {
    let (handle, mut actor) = quiet();
    let child = child_of_bound(&handle, &mut actor);
    handle.machine().processes.get_mut(&child.process).unwrap().parent = 899;
    let seen = seen(&handle, child);
    for looks in [true, false] {
        let mut previous = Previous::default();
        let before = handle.machine().operations;
        actor.note_inheritors(&seen, &mut previous).unwrap();
        assert_eq!(previous, Previous::default());
        assert_eq!(handle.machine().operations > before, looks);
    }
    assert!(actor.revert().unwrap().is_complete());
}

#[test]
fn a_thread_pinned_by_hand_after_its_mask_went_back_stays_pinned() {
    let (handle, mut actor) = quiet();
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, Restore::Restored)]);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = 3;
    let left = Restore::Left(cpus(3));
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, left.clone())]);
    assert_eq!(actor.revert().unwrap().targets, [(THREAD, left)]);
    assert_eq!(handle.machine().has(&THREAD), Some(3));
}

/// A subset of a mask may be what a hidden cpuset left of it, or a person's choice.
#[test]
fn a_subset_of_a_mask_stays_where_cpusets_are_hidden_until_all_is_reverted() {
    let (handle, mut actor) = quiet();
    handle.machine().hides_cpusets = true;
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = 1;
    let left = Restore::Left(cpus(1));
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, left)]);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = 3;
    assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, Restore::Restored)]);
}

#[test]
fn masks_that_went_back_do_not_fill_the_journal() {
    let (handle, mut actor) = quiet();
    let mut longest = 0;
    for _ in 0..2000 {
        assert!(apply(&handle, &mut actor, &THREAD, ALL, 3).is_done());
        assert_eq!(give_back(&handle, &mut actor, &[INIT]), [(INIT, Restore::Restored)]);
        let text = handle.machine().file.clone().unwrap();
        longest = longest.max(text.split(|byte| *byte == b'\n').count());
    }
    assert!(longest < 1100, "{longest}");
}

/// A CPU goes offline and comes back: the kernel has given its interrupt all others.
#[test]
fn the_old_value_is_restored_after_the_kernel_has_set_another() {
    let (handle, mut actor) = quiet();
    assert!(apply(&handle, &mut actor, &interrupt(), ALL, 0x80).is_done());
    handle.machine().interrupts.get_mut(&30).unwrap().affinity.now = 0x7f;
    let plan = reset(interrupt(), 0x7f);
    let told = snapshot(&handle.machine());
    assert_eq!(actor.apply(&plan, &told, &[]).unwrap().taken_up, [interrupt()]);
    assert_eq!(actor.previous().unwrap().cpus(&interrupt()), Some(&cpus(0x7f)[..]));
    drop(actor);
    let mut actor = open(&handle).unwrap();
    assert_eq!(actor.revert().unwrap().targets, [(interrupt(), Restore::Restored)]);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

/// A driver sets all its interrupts and queues as CPUs come and go, whoever has set them before.
#[test]
fn the_drivers_new_value_is_restored_after_a_driver_has_set_it() {
    let (handle, mut actor) = quiet();
    let xps = handle.machine().has(&transmit()).unwrap();
    for (target, old) in [(interrupt(), ALL), (transmit(), xps)] {
        assert!(apply(&handle, &mut actor, &target, old, 0x80).is_done());
    }
    {
        let mut machine = handle.machine();
        let interrupt = machine.interrupts.get_mut(&30).unwrap();
        (interrupt.affinity.now, interrupt.affinity.wanted, interrupt.hint) = (0x30, 0x30, 0x30);
        let queue = machine.queues.get_mut(&transmit()).unwrap();
        (queue.now, queue.wanted) = (0x30, 0x30);
    }
    let mut plan = plan(Vec::new());
    plan.resets = [interrupt(), transmit()]
        .map(|target| Reset {
            target,
            now: cpus(0x30),
        })
        .to_vec();
    let told = snapshot(&handle.machine());
    actor.apply(&plan, &told, &[]).unwrap();
    for target in [interrupt(), transmit()] {
        assert!(apply(&handle, &mut actor, &target, 0x30, 0x80).is_done());
    }
    assert!(actor.revert().unwrap().is_complete());
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn a_queue_that_lost_its_cpus_may_get_all_from_somebody_else() {
    let (handle, mut actor) = quiet();
    let xps = handle.machine().has(&transmit()).unwrap();
    assert!(apply(&handle, &mut actor, &transmit(), xps, 0x80).is_done());
    let now = |set| handle.machine().queues.get_mut(&transmit()).unwrap().now = set;
    now(0);
    let plan = reset(transmit(), 0);
    let told = snapshot(&handle.machine());
    actor.apply(&plan, &told, &[]).unwrap();
    now(ALL);
    let left = Restore::Left(cpus(ALL));
    assert_eq!(actor.revert().unwrap().targets, [(transmit(), left)]);
}

#[test]
fn a_queue_that_had_no_cpus_before_and_lost_ours_is_as_it_was() {
    let (handle, mut actor) = quiet();
    let now = |set| handle.machine().queues.get_mut(&transmit()).unwrap().now = set;
    now(0);
    assert!(apply(&handle, &mut actor, &transmit(), 0, 0x80).is_done());
    now(0);
    let plan = reset(transmit(), 0);
    let told = snapshot(&handle.machine());
    actor.apply(&plan, &told, &[]).unwrap();
    assert_eq!(actor.verify().unwrap(), [(transmit(), Standing::InForce)]);
    assert_eq!(actor.revert().unwrap().targets, [(transmit(), Restore::Same)]);
}

#[test]
fn what_somebody_set_after_the_kernel_stays() {
    let (handle, mut actor) = quiet();
    assert!(apply(&handle, &mut actor, &interrupt(), ALL, 0x80).is_done());
    handle.machine().interrupts.get_mut(&30).unwrap().affinity.now = OTHERS;
    let plan = reset(interrupt(), 0x7f);
    let told = snapshot(&handle.machine());
    let applied = actor.apply(&plan, &told, &[]).unwrap();
    assert_eq!(applied.taken_up, []);
    let mut previous = Previous::default();
    previous.note(interrupt(), cpus(0x80));
    let next = applied.next(&previous, &plan, &told, &Config::default());
    assert_eq!(next.cpus(&interrupt()), Some(&cpus(0x80)[..]));
    let mut later = told.clone();
    later.has_restarted = true;
    let resets = decide(&later, &Config::default(), &next).resets;
    assert_eq!(resets.len(), 1, "the kernel may still be at it");
    // Nor has what the plan said become ours.
    handle.machine().interrupts.get_mut(&30).unwrap().affinity.now = 0x7f;
    let left = Restore::Left(cpus(0x7f));
    assert_eq!(actor.revert().unwrap().targets, [(interrupt(), left)]);
}
