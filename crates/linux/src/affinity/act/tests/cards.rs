//! Cards that are given other numbers of queues and tables, on a machine where nobody else is at work.

use super::super::{Actor, CardOutcome, CardRestore, CardSetting, CardWish, Spread};
use super::model::{Both, Handle, OTHERS};
use super::{action, plan, snapshot};
use homenode_policy::affinity::{QueueKind, Target};

type ModelActor = Actor<Handle, Handle>;

/// A machine whose card eth0 has two queues, and a table that nobody has set.
fn quiet() -> (Handle, ModelActor) {
    let seed = (0..).find(|seed| {
        let handle = Handle::new(*seed);
        let machine = handle.machine();
        let card = &machine.cards["eth0"];
        card.queues.now == 2 && card.table().is_even()
    });
    let handle = Handle::new(seed.unwrap());
    handle.machine().busy = false;
    let actor = open(&handle);
    (handle, actor)
}

fn open(handle: &Handle) -> ModelActor {
    Actor::with_store(handle.clone(), handle.clone()).unwrap()
}

fn wish(queues: Option<u32>, rss: Option<Spread>) -> CardWish {
    CardWish {
        device: "eth0".to_owned(),
        queues,
        rss,
    }
}

fn number() -> CardSetting {
    CardSetting::Queues {
        device: "eth0".to_owned(),
    }
}

fn table() -> CardSetting {
    CardSetting::Table {
        device: "eth0".to_owned(),
    }
}

#[test]
fn more_queues_and_a_table_over_some_of_them() {
    let (handle, mut actor) = quiet();
    let asked = [wish(Some(4), Some(Spread::Over(vec![1, 3])))];
    let outcomes = actor.arrange(&asked).unwrap();
    assert_eq!(outcomes, [(number(), CardOutcome::Done), (table(), CardOutcome::Done)]);
    // The number, what it has made of masks, and the table.
    assert_eq!(handle.machine().saves, 3);
    let now = handle.machine().cards["eth0"].table();
    assert_eq!((now.queues, now.entries), (4, vec![1, 3, 1, 3, 1, 3, 1, 3]));
    let again = actor.arrange(&asked).unwrap();
    assert_eq!(again, [(number(), CardOutcome::Same), (table(), CardOutcome::Same)]);
    drop(actor);
    let mut actor = open(&handle);
    assert_eq!(actor.changed_cards(), [table(), number()]);
    let reverted = actor.revert().unwrap();
    let restored = [(table(), CardRestore::Restored), (number(), CardRestore::Restored)];
    assert_eq!(reverted.cards, restored);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
    assert!(handle.machine().file.is_none() && actor.is_clean());
}

#[test]
fn what_a_card_cannot_have_is_told_and_changes_nothing() {
    let (handle, mut actor) = quiet();
    let too_many = actor.arrange(&[wish(Some(6), None)]).unwrap();
    assert_eq!(too_many, [(number(), CardOutcome::Number { asked: 6, max: 5 })]);
    let told = "not done: 6 were asked for, and the card can have 1 to 5";
    assert_eq!(too_many[0].1.to_string(), told);
    let none = actor.arrange(&[wish(Some(0), None)]).unwrap();
    assert_eq!(none, [(number(), CardOutcome::Number { asked: 0, max: 5 })]);
    let beyond = actor.arrange(&[wish(None, Some(Spread::Over(vec![0, 2])))]).unwrap();
    assert_eq!(beyond, [(table(), CardOutcome::NoQueue { queue: 2, queues: 2 })]);
    handle.machine().cards.remove("eth0");
    let gone = actor.arrange(&[wish(Some(1), None)]).unwrap();
    assert_eq!(gone, [(number(), CardOutcome::Vanished)]);
    assert_eq!(handle.machine().saves, 0);
}

#[test]
fn a_number_does_not_change_under_a_table_that_is_set() {
    let ours = |_: &Handle, actor: &mut ModelActor| {
        actor.arrange(&[wish(None, Some(Spread::Over(vec![1])))]).unwrap();
    };
    let theirs = |handle: &Handle, _: &mut ModelActor| {
        handle.machine().cards.get_mut("eth0").unwrap().set_table_by_others();
    };
    for set in [&ours as &dyn Fn(&_, &mut _), &theirs] {
        for queues in [1, 4] {
            let (handle, mut actor) = quiet();
            set(&handle, &mut actor);
            let before = handle.machine().cards["eth0"].table();
            let asked = [wish(Some(queues), None)];
            assert_eq!(actor.arrange(&asked).unwrap(), [(number(), CardOutcome::Table)]);
            // Nor when the one that is asked for cannot be had.
            let asked = [wish(Some(queues), Some(Spread::Over(vec![queues.max(2)])))];
            let told = actor.arrange(&asked).unwrap();
            assert!(told.contains(&(number(), CardOutcome::Table)), "{told:?}");
            assert_eq!(handle.machine().cards["eth0"].table(), before);
            assert!(actor.revert().unwrap().is_complete());
            assert!(!handle.machine().cards["eth0"].is_torn);
            assert_eq!(handle.machine().differences(), Vec::<String>::new());
        }
    }
}

/// Nobody's, though the driver has left it as it was for another number.
#[test]
fn a_number_changes_above_a_table_that_does_not_follow() {
    for sequence in [[4, 3, 1], [1, 4, 3], [3, 1, 2]] {
        let (handle, mut actor) = quiet();
        handle.machine().cards.get_mut("eth0").unwrap().follows = false;
        let before = handle.machine().cards["eth0"].table();
        for queues in sequence {
            let outcomes = actor.arrange(&[wish(Some(queues), None)]).unwrap();
            assert_eq!(outcomes, [(number(), CardOutcome::Done)], "{sequence:?}");
        }
        assert!(actor.revert().unwrap().is_complete());
        assert_eq!(handle.machine().cards["eth0"].table(), before);
        assert_eq!(handle.machine().differences(), Vec::<String>::new());
    }
}

#[test]
fn what_somebody_else_has_set_since_is_left_alone() {
    let (handle, mut actor) = quiet();
    actor.arrange(&[wish(Some(4), Some(Spread::Over(vec![2])))]).unwrap();
    handle.machine().cards.get_mut("eth0").unwrap().set_table_by_others();
    let reverted = actor.revert().unwrap();
    let theirs = vec![0, 0, 0, 0, 0, 0, 0, 1];
    let restored = [(table(), CardRestore::Left(theirs)), (number(), CardRestore::Restored)];
    assert_eq!(reverted.cards, restored);
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
    assert!(!handle.machine().cards["eth0"].is_torn);
}

fn set_mask(handle: &Handle, kind: QueueKind, index: u32, set: u8) {
    let queue = Target::of_queue("eth0", kind, index).unwrap();
    let set = Both { now: set, wanted: set };
    handle.machine().queues.insert(queue, set);
}

/// Whatever numbers there were meanwhile, and also when the last of them is that of the beginning, and the program is another.
#[test]
fn queues_have_the_masks_again_that_they_had() {
    let sequences = [&[1][..], &[3], &[1, 3], &[3, 1], &[1, 3, 1, 2], &[3, 4, 3, 2], &[1, 2]];
    for sequence in sequences {
        for again in [false, true] {
            let (handle, mut actor) = quiet();
            for kind in [QueueKind::Transmit, QueueKind::Receive] {
                set_mask(&handle, kind, 0, OTHERS | 1);
                set_mask(&handle, kind, 1, OTHERS);
            }
            for queues in sequence {
                actor.arrange(&[wish(Some(*queues), None)]).unwrap();
                if again {
                    actor = open(&handle);
                }
            }
            assert!(actor.revert().unwrap().is_complete());
            let differences = handle.machine().differences();
            assert_eq!(differences, Vec::<String>::new(), "{sequence:?}");
        }
    }
}

#[test]
fn masks_that_somebody_has_set_meanwhile_stay() {
    for sequence in [&[][..], &[3], &[2], &[1, 2]] {
        let (handle, mut actor) = quiet();
        actor.arrange(&[wish(Some(4), None)]).unwrap();
        for kind in [QueueKind::Transmit, QueueKind::Receive] {
            set_mask(&handle, kind, 1, OTHERS);
        }
        for queues in sequence {
            actor.arrange(&[wish(Some(*queues), None)]).unwrap();
        }
        actor.revert().unwrap();
        let differences = handle.machine().differences();
        assert_eq!(differences, Vec::<String>::new(), "{sequence:?}");
    }
}

/// Also those that a plan has set, of queues that came back with none.
#[test]
fn masks_that_somebody_has_cleared_meanwhile_stay_cleared() {
    for numbers in [&[][..], &[4], &[1, 2], &[1, 3]] {
        for is_planned in [false, true] {
            for more in [&[][..], &[3], &[1]] {
                let (handle, mut actor) = quiet();
                let kinds = [QueueKind::Transmit, QueueKind::Receive];
                kinds.into_iter().for_each(|kind| set_mask(&handle, kind, 1, OTHERS));
                let arrange = |actor: &mut ModelActor, numbers: &[u32]| {
                    for queues in numbers {
                        actor.arrange(&[wish(Some(*queues), None)]).unwrap();
                    }
                };
                arrange(&mut actor, numbers);
                if is_planned {
                    let queues = kinds.map(|kind| Target::of_queue("eth0", kind, 1).unwrap());
                    let has = |queue: &Target| handle.machine().has(queue).unwrap();
                    let actions = queues.map(|queue| action(queue.clone(), has(&queue), 3));
                    let snapshot = snapshot(&handle.machine());
                    let applied = actor.apply(&plan(actions.to_vec()), &snapshot, &[]).unwrap();
                    assert!(
                        applied.outcomes.iter().all(|(_, outcome)| outcome.is_done()),
                        "{applied:?}"
                    );
                }
                kinds.into_iter().for_each(|kind| set_mask(&handle, kind, 1, 0));
                arrange(&mut actor, more);
                actor.revert().unwrap();
                let differences = handle.machine().differences();
                assert_eq!(differences, Vec::<String>::new(), "{numbers:?}, {is_planned}, {more:?}");
            }
        }
    }
}

/// The mask of a plan is not what was there before.
#[test]
fn a_queue_that_a_plan_has_moved_is_as_before_the_plan() {
    let (handle, mut actor) = quiet();
    let queue = Target::of_queue("eth0", QueueKind::Transmit, 1).unwrap();
    set_mask(&handle, QueueKind::Transmit, 1, OTHERS);
    let planned = plan(vec![action(queue, OTHERS, 3)]);
    let snapshot = snapshot(&handle.machine());
    actor.apply(&planned, &snapshot, &[]).unwrap();
    for queues in [1, 3, 2] {
        actor.arrange(&[wish(Some(queues), None)]).unwrap();
    }
    assert!(actor.revert().unwrap().is_complete());
    assert_eq!(handle.machine().differences(), Vec::<String>::new());
}

/// Its table is set, or nobody's, as the number of queues goes down and up; the driver's follows the number, or does not.
#[test]
fn numbers_change_under_no_table_and_both_are_given_back() {
    let wishes = [
        wish(Some(1), Some(Spread::Even)),
        wish(Some(1), Some(Spread::Over(vec![0]))),
        wish(Some(3), Some(Spread::Over(vec![2]))),
        wish(Some(4), Some(Spread::Even)),
        wish(Some(4), Some(Spread::Over(vec![1, 0]))),
        wish(Some(2), Some(Spread::Over(vec![1]))),
    ];
    let (mut sequences, mut singles) = (wishes.to_vec(), wishes.to_vec());
    sequences.reverse();
    let sequences = [wishes.to_vec(), sequences];
    let singles = singles.drain(..).map(|wish| vec![wish]);
    for asked in singles.chain(sequences) {
        for (follows, others) in [(true, false), (false, false), (true, true), (false, true)] {
            let (handle, mut actor) = quiet();
            {
                let mut machine = handle.machine();
                let card = machine.cards.get_mut("eth0").unwrap();
                card.follows = follows;
                if others {
                    card.set_table_by_others();
                }
            }
            let before = handle.machine().cards["eth0"].table();
            for wish in &asked {
                for (setting, outcome) in actor.arrange(std::slice::from_ref(wish)).unwrap() {
                    assert!(
                        outcome.is_done(),
                        "{setting}: {outcome}: {wish:?} of {asked:?}, {follows}, {others}"
                    );
                }
                let card = &handle.machine().cards["eth0"];
                let (now, is_even) = (card.table(), wish.rss == Some(Spread::Even));
                assert_eq!(
                    (Some(now.queues), now.is_even()),
                    (wish.queues, is_even || now.queues == 1),
                    "{wish:?}"
                );
            }
            let reverted = actor.revert().unwrap();
            assert!(reverted.is_complete(), "{reverted:?}: {asked:?}, {follows}, {others}");
            let card = &handle.machine().cards["eth0"];
            assert_eq!(card.table(), before, "{asked:?}, {follows}, {others}: {reverted:?}");
            assert!(!card.is_torn, "{asked:?}, {follows}, {others}");
            assert!(actor.is_clean());
        }
    }
}
