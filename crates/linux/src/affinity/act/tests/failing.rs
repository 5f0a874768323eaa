//! Failures while everything is taken back, and journals that cannot be written.

use super::super::{Error, Kernel, Restore};
use super::model::{ALL, Handle, Listing, Set};
use super::single::{ModelActor, open};
use super::{action, plan, snapshot, some_plan};
use homenode_policy::affinity::{Return, Target, ThreadId};
use std::collections::BTreeMap;

const SET: Set = 3;

/// A machine where nobody else is at work, and the first thread has been moved.
fn moved() -> (Handle, ModelActor, Target) {
    let handle = Handle::new(1);
    handle.machine().busy = false;
    handle.machine().cpusets.fill(ALL);
    let mut actor = open(&handle).unwrap();
    let thread = Target::Thread(handle.machine().threads[&1].id);
    let told = snapshot(&handle.machine());
    let plan = plan(vec![action(thread.clone(), ALL, SET)]);
    assert!(actor.apply(&plan, &told, &[]).unwrap().outcomes[0].1.is_done());
    (handle, actor, thread)
}

fn values(handle: &Handle) -> BTreeMap<Target, Set> {
    let machine = handle.machine();
    let targets = machine.targets().into_iter();
    targets
        .filter_map(|target| Some((target.clone(), machine.has(&target)?)))
        .collect()
}

#[test]
fn threads_started_faster_than_restored_are_reported_and_stay_in_the_journal() {
    let (handle, mut actor, thread) = moved();
    handle.machine().listing = Listing::Breeds(SET);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.targets, [(thread.clone(), Restore::Restored)]);
    let late: Vec<ThreadId> = reverted
        .inherited
        .iter()
        .filter(|(_, restore)| *restore == Restore::Late)
        .map(|(id, _)| *id)
        .collect();
    assert!(late.len() == 1 && !reverted.is_complete(), "{reverted:?}");
    assert_eq!(handle.machine().has(&Target::Thread(late[0])), Some(SET));
    handle.machine().listing = Listing::Plain;
    let mut actor = open(&handle).unwrap();
    assert_eq!(actor.changed()[0].target, thread);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.inherited, [(late[0], Restore::Restored)]);
    assert!(reverted.is_complete() && handle.machine().file.is_none());
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn a_machine_where_threads_always_end_is_reported() {
    let (handle, mut actor, _) = moved();
    handle.machine().listing = Listing::Ends;
    let reverted = actor.revert().unwrap();
    assert!(reverted.is_unsure && reverted.is_complete(), "{reverted:?}");
}

#[test]
fn one_unreadable_thread_keeps_no_other_from_getting_its_mask_back() {
    let (handle, mut actor, thread) = moved();
    handle.machine().listing = Listing::Breeds(SET);
    for _ in 0..2 {
        Kernel::threads(&handle).unwrap();
    }
    handle.machine().listing = Listing::Plain;
    let last = *handle.machine().threads.keys().last().unwrap();
    handle.machine().unreadable = Some(last);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.targets, [(thread, Restore::Restored)]);
    assert_eq!((reverted.unread, reverted.is_complete()), (Some(libc::EIO), false));
    assert_eq!((reverted.inherited.len(), reverted.is_unsure), (1, false));
    handle.machine().unreadable = None;
    let reverted = open(&handle).unwrap().revert().unwrap();
    assert!(reverted.is_complete() && reverted.inherited.len() == 1, "{reverted:?}");
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn unlistable_threads_stay_in_the_journal() {
    let (handle, mut actor, thread) = moved();
    handle.machine().listing = Listing::Breeds(SET);
    Kernel::threads(&handle).unwrap();
    handle.machine().listing = Listing::Fails(libc::EACCES);
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.targets, [(thread, Restore::Restored)]);
    assert_eq!((reverted.unread, reverted.is_complete()), (Some(libc::EACCES), false));
    handle.machine().listing = Listing::Plain;
    let reverted = open(&handle).unwrap().revert().unwrap();
    assert!(reverted.is_complete() && reverted.inherited.len() == 1, "{reverted:?}");
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

#[test]
fn an_unremovable_journal_still_restores_all_values() {
    let (handle, mut actor, thread) = moved();
    handle.machine().is_read_only = true;
    let reverted = actor.revert().unwrap();
    assert_eq!(reverted.targets, [(thread.clone(), Restore::Restored)]);
    let stale = reverted.stale.as_deref().unwrap();
    assert!(
        stale.starts_with("cannot remove /model/journal: Read-only file system"),
        "{stale}"
    );
    assert!(!stale.contains("nothing is changed") && reverted.is_complete());
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
    handle.machine().is_read_only = false;
    let reverted = open(&handle).unwrap().revert().unwrap();
    assert_eq!(
        (reverted.targets, reverted.stale),
        (vec![(thread, Restore::Same)], None)
    );
    assert!(handle.machine().file.is_none());
}

/// Full after any number of writes; what was written half is there.
#[test]
fn a_full_disk_changes_and_loses_nothing() {
    let mut refused = 0;
    for seed in 0..100 {
        for saves in 0..4 {
            let handle = Handle::new(seed);
            handle.machine().busy = false;
            let mut actor = open(&handle).unwrap();
            handle.machine().saves_left = Some(saves);
            let is_full = |error: &Error| {
                error
                    .to_string()
                    .contains("No space left on device (os error 28): make room")
            };
            for round in 0..4 {
                let (plan, told) = some_plan(&mut handle.machine());
                let before = values(&handle);
                if let Err(error) = actor.apply(&plan, &told, &[]) {
                    refused += 1;
                    assert!(is_full(&error), "{error}");
                    assert_eq!(values(&handle), before, "seed {seed}, {saves} saves");
                }
                // Killed and started again, at times.
                if (seed + round) % 3 == 0 {
                    actor = open(&handle).unwrap();
                }
            }
            let reverted = actor.revert().unwrap();
            assert!(reverted.is_complete() && reverted.stale.is_none(), "{reverted:?}");
            let differences = handle.machine().differences();
            assert_eq!(differences, Vec::<String>::new(), "seed {seed}, {saves} saves");
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn a_mask_that_cannot_be_noted_as_given_back_keeps_a_plan_from_being_carried_out() {
    let (handle, mut actor, thread) = moved();
    let Target::Thread(id) = thread else {
        panic!("{thread:?}")
    };
    let target = Target::Transmit {
        device: "eth0".to_owned(),
        index: 0,
    };
    let before = handle.machine().has(&target).unwrap();
    let mut both = plan(vec![action(target.clone(), before, SET)]);
    both.returns = vec![Return {
        thread: id,
        quiet_periods: Some(60),
    }];
    let told = snapshot(&handle.machine());
    handle.machine().saves_left = Some(1);
    let error = actor.apply(&both, &told, &[]).unwrap_err();
    assert!(matches!(error, Error::Journal { .. }), "{error}");
    // The outcome of an action that is done is not lost with the error.
    assert_eq!(handle.machine().has(&target), Some(before));
    handle.machine().saves_left = None;
    let applied = actor.apply(&both, &told, &[]).unwrap();
    assert!(applied.outcomes[0].1.is_done());
    assert_eq!(applied.returned, [(id, Restore::Same)]);
}
