//! The monitor against a model that sorts everything anew for each question.

mod seeded;

use homenode_policy::pool::{Monitor, Thresholds};
use homenode_policy::{MemberId, NodeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const CASES: u32 = 500;
const OPERATIONS: usize = 200;
const MEMBERS: u16 = 12;
const CAPACITY: u64 = 1000;

#[derive(Clone, Debug)]
enum Operation {
    Add { home: u16 },
    Remove,
    Update { used: u64 },
    Starve(bool),
    Drain(bool),
}

fn operation() -> impl Strategy<Value = (u16, Operation)> {
    let operation = prop_oneof![
        3 => (0..7u16).prop_map(|home| Operation::Add { home }),
        1 => Just(Operation::Remove),
        6 => prop_oneof![0..=CAPACITY, 940..=CAPACITY].prop_map(|used| Operation::Update { used }),
        1 => any::<bool>().prop_map(Operation::Starve),
        1 => any::<bool>().prop_map(Operation::Drain),
    ];
    (0..MEMBERS, operation)
}

#[derive(Default)]
struct Member {
    home: u16,
    full: bool,
    starved: bool,
    draining: bool,
}

type Members = BTreeMap<u16, Member>;

fn expected(members: &Members, latency: &[Vec<u32>], asking: u16, keep: impl Fn(&Member) -> bool) -> Vec<MemberId> {
    let distance = |home: u16| {
        let row = latency.get(usize::from(asking));
        row.and_then(|row| row.get(usize::from(home)).copied())
            .unwrap_or(u32::MAX)
    };
    let mut sorted: Vec<_> = members
        .iter()
        .filter(|(_, member)| keep(member))
        .map(|(id, member)| (member.home != asking, distance(member.home), member.home, MemberId(*id)))
        .collect();
    sorted.sort_unstable();
    sorted.into_iter().map(|(.., member)| member).collect()
}

fn apply(monitor: &mut Monitor, members: &mut Members, id: u16, operation: &Operation) -> Result<(), TestCaseError> {
    let member = MemberId(id);
    match (members.get_mut(&id), operation) {
        (None, Operation::Add { home }) => {
            monitor.add(member, NodeId(*home));
            let home = *home;
            members.insert(
                id,
                Member {
                    home,
                    ..Member::default()
                },
            );
        }
        (Some(_), Operation::Add { .. }) => {}
        (_, Operation::Remove) => {
            monitor.remove(member);
            members.remove(&id);
        }
        (None, Operation::Update { used }) => prop_assert!(!monitor.update(member, *used, CAPACITY)),
        (Some(state), Operation::Update { used }) => {
            let before = state.full || state.starved;
            state.full = if state.full { *used >= 950 } else { *used > 980 };
            let after = state.full || state.starved;
            prop_assert_eq!(monitor.update(member, *used, CAPACITY), before != after);
        }
        (state, Operation::Starve(starved)) => {
            monitor.set_starved(member, *starved);
            state.into_iter().for_each(|state| state.starved = *starved);
        }
        (state, Operation::Drain(draining)) => {
            monitor.set_draining(member, *draining);
            state.into_iter().for_each(|state| state.draining = *draining);
        }
    }
    Ok(())
}

#[test]
fn the_monitor_agrees_with_sorting() {
    // Nodes 0 to 4 are known; 5 and 6 are homes and askers that nobody announced. Few latencies, so that many tie.
    let latency = proptest::collection::vec(proptest::collection::vec(10..14u32, 5), 5);
    let operations = proptest::collection::vec(operation(), OPERATIONS);
    seeded::check(CASES, (latency, operations), |(latency, operations)| {
        let nodes: Vec<NodeId> = (0..5).map(NodeId).collect();
        let mut monitor = Monitor::new(&nodes, &latency, Thresholds::default());
        let mut members = Members::new();
        for (id, operation) in &operations {
            apply(&mut monitor, &mut members, *id, operation)?;
            monitor.check_invariants();
            for asking in 0..7 {
                let candidate = |member: &Member| !(member.full || member.starved || member.draining);
                let candidates = expected(&members, &latency, asking, candidate);
                prop_assert_eq!(monitor.target(NodeId(asking)), candidates.first().copied());
                prop_assert!(monitor.candidates(NodeId(asking)).eq(candidates));
                let all = expected(&members, &latency, asking, |member| !member.draining);
                prop_assert!(monitor.all_by_latency(NodeId(asking)).eq(all));
            }
        }
        Ok(())
    });
}
