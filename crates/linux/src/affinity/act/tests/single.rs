//! Tests of one situation each, on a machine where nobody else is at work.

use super::super::conflicts::{conflicts, leave_alone};
use super::super::{Actor, Error, Hold, Outcome, Restore, Standing};
use super::model::{ALL, Handle, OTHERS, Set, cpus};
use super::{action, plan, snapshot};
use crate::topology::made::Made;
use homenode_policy::affinity::{Config, Previous, Target, ThreadId};

pub(super) const INIT: ThreadId = ThreadId {
    process: 1,
    thread: 1,
    started: 1000,
};
pub(super) const THREAD: Target = Target::Thread(INIT);

pub(super) type ModelActor = Actor<Handle, Handle>;

/// A machine with one movable interrupt, 30, which may arrive everywhere.
pub(super) fn quiet() -> (Handle, ModelActor) {
    let handle = Handle::new(1);
    {
        let mut machine = handle.machine();
        machine.busy = false;
        machine.cpusets.fill(ALL);
        let interrupt = machine.interrupts.get_mut(&30).unwrap();
        (interrupt.managed, interrupt.affinity.now, interrupt.affinity.wanted) = (false, ALL, ALL);
    }
    let actor = open(&handle).unwrap();
    (handle, actor)
}

pub(super) fn open(handle: &Handle) -> Result<ModelActor, Error> {
    Actor::with_store(handle.clone(), handle.clone())
}

pub(super) fn apply(handle: &Handle, actor: &mut ModelActor, target: &Target, from: Set, to: Set) -> Outcome {
    let snapshot = snapshot(&handle.machine());
    let plan = plan(vec![action(target.clone(), from, to)]);
    let mut applied = actor.apply(&plan, &snapshot, &[]).unwrap();
    assert_eq!(applied.outcomes.len(), 1);
    applied.outcomes.remove(0).1
}

pub(super) fn interrupt() -> Target {
    Target::Interrupt(30)
}

pub(super) fn transmit() -> Target {
    Target::Transmit {
        device: "eth0".to_owned(),
        index: 0,
    }
}

#[test]
fn an_interrupts_move_is_pending_until_it_arrives() {
    let (handle, mut actor) = quiet();
    handle.machine().interrupts.get_mut(&30).unwrap().effective = 1;
    assert_eq!(apply(&handle, &mut actor, &interrupt(), ALL, 2), Outcome::Pending);
    assert_eq!(actor.verify().unwrap(), [(interrupt(), Standing::Pending)]);
    handle.machine().interrupts.get_mut(&30).unwrap().effective = 2;
    assert_eq!(actor.verify().unwrap(), [(interrupt(), Standing::InForce)]);
    handle.machine().interrupts.get_mut(&30).unwrap().affinity.now = OTHERS;
    assert_eq!(
        actor.verify().unwrap(),
        [(interrupt(), Standing::Changed(cpus(OTHERS)))]
    );
    handle.machine().interrupts.remove(&30);
    assert_eq!(actor.verify().unwrap(), [(interrupt(), Standing::Vanished)]);
}

#[test]
fn targets_that_changed_since_the_plan_are_left_alone() {
    let (handle, mut actor) = quiet();
    assert_eq!(
        apply(&handle, &mut actor, &interrupt(), 1, 2),
        Outcome::Changed(cpus(ALL))
    );
    let gone = Target::Interrupt(99);
    assert_eq!(apply(&handle, &mut actor, &gone, ALL, 2), Outcome::Vanished);
    let other = Target::Thread(ThreadId { started: 999, ..INIT });
    assert_eq!(apply(&handle, &mut actor, &other, ALL, 2), Outcome::Vanished);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = OTHERS;
    assert_eq!(
        apply(&handle, &mut actor, &THREAD, OTHERS, 2),
        Outcome::Withheld(Hold::Foreign)
    );
    assert_eq!(handle.machine().saves, 0);
}

#[test]
fn refusals_of_targets_that_have_vanished_are_forgotten() {
    let (handle, mut actor) = quiet();
    for target in [interrupt(), THREAD] {
        handle.machine().refuses.insert(target, libc::EPERM);
    }
    let refused = Outcome::Refused(libc::EPERM);
    assert_eq!(apply(&handle, &mut actor, &interrupt(), ALL, 2), refused);
    handle.machine().interrupts.remove(&30);
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 2), refused);
    assert_eq!(actor.refused.keys().collect::<Vec<_>>(), [&THREAD]);
}

/// The kernel takes a CPU that goes out of cpusets, and some masks: nobody else has done anything.
#[test]
fn cpus_that_go_offline_after_the_plan_are_no_foreign_change() {
    let (handle, mut actor) = quiet();
    handle.machine().goes = 0x80;
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 0x80), Outcome::NoCpu);
    handle.machine().goes = 0x20;
    assert_eq!(apply(&handle, &mut actor, &THREAD, 0x7f, 2), Outcome::Done);
}

#[test]
fn a_changed_cpuset_with_the_planned_cpus_does_not_stop_a_move() {
    let (handle, mut actor) = quiet();
    handle.machine().cpusets.fill(0x4f);
    assert_eq!(apply(&handle, &mut actor, &THREAD, 0x4f, 2), Outcome::Done);
    handle.machine().comes = ALL;
    assert_eq!(apply(&handle, &mut actor, &THREAD, 2, 4), Outcome::Done);
    assert!(actor.revert().unwrap().is_complete());
    assert_eq!(handle.machine().has(&THREAD), Some(ALL));
}

/// Restoring it would ask for all CPUs.
#[test]
fn a_thread_found_pinned_when_its_cpuset_widens_is_left_alone() {
    let (handle, mut actor) = quiet();
    handle.machine().cpusets.fill(0x4f);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = 0x4f;
    handle.machine().comes = ALL;
    assert_eq!(apply(&handle, &mut actor, &THREAD, 0x4f, 2), Outcome::NoCpu);
    assert_eq!(handle.machine().has(&THREAD), Some(0x4f));
}

#[test]
fn a_change_that_failed_for_a_reason_that_passes_is_made_later() {
    let (handle, mut actor) = quiet();
    handle.machine().refuses.insert(interrupt(), libc::ENOSPC);
    let plan = plan(vec![action(interrupt(), ALL, 2)]);
    let told = snapshot(&handle.machine());
    let failed = actor.apply(&plan, &told, &[]).unwrap();
    assert_eq!(failed.outcomes[0].1, Outcome::Refused(libc::ENOSPC));
    let next = failed.next(&Previous::default(), &plan, &told, &Config::default());
    let mut postponed = Previous::default();
    postponed = postponed.after(&super::plan(Vec::new()), &told, &Config::default());
    assert!(!next.refused(&interrupt()));
    postponed.postpone(interrupt());
    postponed.reconsider();
    assert_eq!(next, postponed);
    handle.machine().refuses.clear();
    assert!(apply(&handle, &mut actor, &interrupt(), ALL, 2).is_done());
}

/// Drivers of old buses share interrupts.
#[test]
fn an_interrupt_that_another_driver_asks_for_as_well_goes_back() {
    for is_set_again in [false, true] {
        let (handle, mut actor) = quiet();
        assert!(apply(&handle, &mut actor, &interrupt(), ALL, 2).is_done());
        handle.machine().interrupts.get_mut(&30).unwrap().name += ", usb3";
        if is_set_again {
            assert!(apply(&handle, &mut actor, &interrupt(), 2, 4).is_done());
        }
        assert_eq!(actor.revert().unwrap().targets, [(interrupt(), Restore::Restored)]);
        assert_eq!(handle.machine().has(&interrupt()), Some(ALL));
    }
}

/// Its driver asks for the interrupt again when the card comes up, with the mask that it has then.
#[test]
fn the_interrupt_of_a_card_that_is_down_goes_back() {
    for (now, restored, then) in [(2, Restore::Restored, ALL), (OTHERS, Restore::Vanished, OTHERS)] {
        let (handle, mut actor) = quiet();
        assert!(apply(&handle, &mut actor, &interrupt(), ALL, 2).is_done());
        {
            let mut machine = handle.machine();
            let interrupt = machine.interrupts.get_mut(&30).unwrap();
            interrupt.name.clear();
            interrupt.affinity.now = now;
        }
        assert_eq!(actor.revert().unwrap().targets, [(interrupt(), restored)]);
        assert_eq!(handle.machine().has(&interrupt()), Some(then));
    }
}

/// The kernel refuses a mask of CPUs that do not run.
#[test]
fn an_interrupt_whose_old_cpus_stopped_gets_those_that_run() {
    let (handle, mut actor) = quiet();
    {
        let mut machine = handle.machine();
        let interrupt = machine.interrupts.get_mut(&30).unwrap();
        (interrupt.affinity.now, interrupt.affinity.wanted) = (0x80, 0x80);
    }
    assert!(apply(&handle, &mut actor, &interrupt(), 0x80, 2).is_done());
    handle.machine().online = 0x7f;
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.targets, [(interrupt(), Restore::Partly(cpus(0x7f)))]);
    assert!(reverted.is_complete());
    assert_eq!(handle.machine().has(&interrupt()), Some(0x7f));
}

#[test]
fn a_refused_change_is_not_tried_again() {
    let (handle, mut actor) = quiet();
    handle.machine().interrupts.get_mut(&30).unwrap().managed = true;
    let mut told = snapshot(&handle.machine());
    let plan = plan(vec![action(interrupt(), ALL, 2)]);
    let managed = actor.apply(&plan, &told, &[]).unwrap();
    assert_eq!(managed.outcomes[0].1, Outcome::Withheld(Hold::Managed));
    // A kernel that does not tell.
    told.interrupts
        .iter_mut()
        .for_each(|interrupt| interrupt.managed = false);
    let refused = actor.apply(&plan, &told, &[]).unwrap();
    assert_eq!(refused.outcomes[0].1, Outcome::Refused(libc::EPERM));
    let again = actor.apply(&plan, &told, &[]).unwrap();
    assert_eq!(again.outcomes[0].1, Outcome::Withheld(Hold::Refused));
    assert!(actor.revert().unwrap().is_complete());
    assert_eq!(handle.machine().interrupts[&30].writes, 1);
    let next = refused.next(&Previous::default(), &plan, &told, &Config::default());
    assert!(next.refused(&interrupt()) && next.cpus(&interrupt()).is_none());
}

#[test]
fn only_changes_carried_out_count_as_set() {
    let (handle, mut actor) = quiet();
    let told = snapshot(&handle.machine());
    let plan = plan(vec![action(interrupt(), ALL, 2), action(THREAD, 1, 2)]);
    let applied = actor.apply(&plan, &told, &[]).unwrap();
    let next = applied.next(&Previous::default(), &plan, &told, &Config::default());
    assert_eq!(next.cpus(&interrupt()), Some(&cpus(2)[..]));
    assert_eq!(next.cpus(&THREAD), None);
    assert_eq!(actor.previous().unwrap().cpus(&interrupt()), Some(&cpus(2)[..]));
    assert!(actor.is_there(&interrupt()));
    handle.machine().interrupts.get_mut(&30).unwrap().name = "another".to_owned();
    assert!(!actor.is_there(&interrupt()));
}

#[test]
fn a_change_without_online_cpus_is_not_made() {
    let (handle, mut actor) = quiet();
    handle.machine().online = 0x0f;
    assert_eq!(apply(&handle, &mut actor, &interrupt(), 0x0f, 0x30), Outcome::NoCpu);
    assert_eq!(apply(&handle, &mut actor, &THREAD, 0x0f, 0x30), Outcome::NoCpu);
    let xps = handle.machine().has(&transmit()).unwrap();
    assert_eq!(apply(&handle, &mut actor, &transmit(), xps, 0x30), Outcome::NoCpu);
    assert_eq!(
        apply(&handle, &mut actor, &transmit(), xps, 0x18),
        Outcome::Narrowed(cpus(8))
    );
    // A cpuset that has none of them any more: it may have them again, so that is no refusal.
    handle.machine().cpusets.fill(0x03);
    assert_eq!(apply(&handle, &mut actor, &THREAD, 0x03, 0x0c), Outcome::NoCpu);
    assert_eq!(apply(&handle, &mut actor, &THREAD, 0x03, 0x01), Outcome::Done);
}

#[test]
fn the_old_mask_is_restored_when_the_last_cpu_of_a_mask_stops() {
    let (handle, mut actor) = quiet();
    assert_eq!(apply(&handle, &mut actor, &interrupt(), ALL, 0x80), Outcome::Pending);
    {
        let mut machine = handle.machine();
        machine.online = 0x7f;
        machine.interrupts.get_mut(&30).unwrap().affinity.now = 0x7f;
    }
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.targets, [(interrupt(), Restore::Restored)]);
    assert_eq!(handle.machine().has(&interrupt()), Some(ALL));
}

#[test]
fn a_moved_child_is_restored_to_its_parents_old_mask() {
    let (handle, mut actor) = quiet();
    // So that all new threads are its own.
    handle.machine().threads.retain(|number, _| *number == INIT.thread);
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    while handle
        .machine()
        .threads
        .values()
        .filter(|thread| thread.asked.now == 3)
        .count()
        < 3
    {
        handle.machine().fork();
    }
    let children: Vec<ThreadId> = {
        let machine = handle.machine();
        let all = machine.threads.values().filter(|thread| thread.asked.now == 3);
        all.map(|thread| thread.id).filter(|id| *id != INIT).collect()
    };
    let (moved, untouched) = (children[0], children[1]);
    assert_eq!(apply(&handle, &mut actor, &Target::Thread(moved), 3, 4), Outcome::Done);
    let previous = actor.previous().unwrap();
    assert_eq!(previous.cpus(&Target::Thread(untouched)), Some(&cpus(3)[..]));
    let reverted = actor.revert().unwrap();
    assert!(
        reverted.inherited.contains(&(untouched, Restore::Restored)),
        "{reverted:?}"
    );
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn an_equal_mask_in_the_same_session_is_foreign_while_its_parent_lives() {
    const SHELL: u32 = 1000;
    let (handle, mut actor) = quiet();
    {
        let mut machine = handle.machine();
        machine.add_process(SHELL, INIT.process, SHELL, 0, ALL);
        machine.add_process(SHELL + 1, SHELL, SHELL, 0, ALL);
    }
    let moved = handle.machine().threads[&(SHELL + 1)].id;
    assert_eq!(
        apply(&handle, &mut actor, &Target::Thread(moved), ALL, 3),
        Outcome::Done
    );
    // The shell starts a program with `taskset`.
    handle.machine().ticks += 1;
    handle.machine().add_process(SHELL + 2, SHELL, SHELL, 0, 3);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.inherited, []);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn a_mask_narrowed_by_an_unseen_cpuset_is_still_ours() {
    let (handle, mut actor) = quiet();
    handle.machine().hides_cpusets = true;
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 0x03), Outcome::Done);
    handle.machine().cpusets.fill(0x42);
    assert_eq!(actor.verify().unwrap(), [(THREAD, Standing::InForce)]);
    assert_eq!(actor.revert().unwrap().targets, [(THREAD, Restore::Restored)]);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
    // Before it is ours, nothing tells a cpuset from somebody's pin.
    assert_eq!(
        apply(&handle, &mut actor, &THREAD, 0x42, 0x02),
        Outcome::Withheld(Hold::Foreign)
    );
    handle.machine().cpusets.fill(ALL);
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 0x03), Outcome::Done);
    handle.machine().threads.get_mut(&1).unwrap().asked.now = OTHERS;
    assert_eq!(actor.revert().unwrap().targets, [(THREAD, Restore::Left(cpus(OTHERS)))]);
}

#[test]
fn failed_restores_stay_in_the_journal() {
    let (handle, mut actor) = quiet();
    assert_eq!(apply(&handle, &mut actor, &THREAD, ALL, 3), Outcome::Done);
    assert_eq!(apply(&handle, &mut actor, &interrupt(), ALL, 2), Outcome::Pending);
    handle.machine().refuses.insert(interrupt(), libc::EBUSY);
    let reverted = actor.revert().unwrap();
    let expected = [(interrupt(), Restore::Failed(libc::EBUSY)), (THREAD, Restore::Restored)];
    assert_eq!(reverted.targets, expected);
    assert!(!reverted.is_complete());
    drop(actor);
    handle.machine().refuses.clear();
    let mut actor = open(&handle).unwrap();
    assert_eq!(actor.changed().len(), 1);
    assert_eq!(actor.revert().unwrap().targets, [(interrupt(), Restore::Restored)]);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
    assert!(handle.machine().file.is_none());
    assert_eq!(actor.revert().unwrap().targets, []);
}

#[test]
fn a_long_lived_journal_stays_short() {
    let (handle, mut actor) = quiet();
    let line_end = |byte: &&u8| **byte == b'\n';
    let (mut has, mut longest) = (ALL, 0);
    for to in (0..5000).map(|round| 1 << (round % 5)) {
        assert!(apply(&handle, &mut actor, &interrupt(), has, to).is_done());
        has = to;
        let lines = handle.machine().file.as_ref().unwrap().iter().filter(line_end).count();
        longest = longest.max(lines);
    }
    assert!(longest < 1100, "{longest}");
    assert!(actor.revert().unwrap().is_complete());
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn ended_threads_are_removed_from_the_journal() {
    let (handle, mut actor) = quiet();
    let mut longest = 0;
    for number in 1000..6000 {
        handle.machine().add_process(number, INIT.process, number, 0, ALL);
        let id = handle.machine().threads[&number].id;
        assert!(apply(&handle, &mut actor, &Target::Thread(id), ALL, 3).is_done());
        handle.machine().processes.remove(&number);
        handle.machine().threads.remove(&number);
        longest = longest.max(actor.changed().len());
    }
    assert!(longest < 1100, "{longest}");
    assert!(actor.revert().unwrap().is_complete());
    assert!(handle.machine().file.is_none());
}

#[test]
fn interrupts_of_irqbalance_are_left_alone() {
    let (handle, mut actor) = quiet();
    let conflicts = conflicts(Made::of(&[("proc/812/comm", "irqbalance\n")]).root());
    let told = snapshot(&handle.machine());
    let xps = handle.machine().has(&transmit()).unwrap();
    let plan = plan(vec![
        action(interrupt(), ALL, 2),
        action(THREAD, ALL, 2),
        action(transmit(), xps, 2),
    ]);
    let applied = actor.apply(&plan, &told, &conflicts).unwrap();
    let outcomes: Vec<&Outcome> = applied.outcomes.iter().map(|(_, outcome)| outcome).collect();
    let [
        Outcome::Done,
        Outcome::Withheld(Hold::Conflict(conflict)),
        Outcome::Done,
    ] = outcomes[..]
    else {
        panic!("{outcomes:?}");
    };
    assert_eq!(**conflict, conflicts[0]);
    assert_eq!(handle.machine().interrupts[&30].writes, 0);
    let mut previous = Previous::default();
    leave_alone(&conflicts, &told, &mut previous);
    assert!(previous.refused(&interrupt()) && !previous.refused(&THREAD));
}
