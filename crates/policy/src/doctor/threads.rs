//! Threads that run far from the device they move most bytes with.

use super::{Case, Finding, Held, Problem, RATE_BYTES_PER_S_MIN, Threads};
use crate::NodeId;
use crate::affinity::{Class, Cost, Reason, Target, Thread, Why};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// What threads must have in common to be told together: process, node, device.
type Key = (String, NodeId, String);

pub(super) fn find(case: &Case<'_>, findings: &mut Vec<Finding>) {
    far(case, findings);
    held(case, findings);
}

/// Those that the plan moves.
fn far(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut groups: BTreeMap<(Key, NodeId), (Class, Vec<u32>, Cost)> = BTreeMap::new();
    for action in &case.plan.actions {
        let (
            Some(thread),
            Reason::NearQueues {
                class, device, node, ..
            },
        ) = (thread(case, &action.target), &action.reason)
        else {
            continue;
        };
        let Some(from) = case.node(thread.cpu).filter(|from| from != node) else {
            continue;
        };
        let key = (thread.process_name.clone(), from, device.clone());
        let group = groups
            .entry((key, *node))
            .or_insert((*class, Vec::new(), Cost::default()));
        group.1.push(thread.id.thread);
        group.2 = group.2.plus(action.cost_before.beyond(action.cost_after));
    }
    findings.extend(groups.into_iter().map(|((key, to), (class, numbers, gain))| Finding {
        problem: Problem::FarThreads {
            threads: threads(key, numbers),
            class,
            to,
        },
        gain: Some(gain),
    }));
}

/// Those that stay because someone has them stay, though their disk is elsewhere.
fn held(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut groups: BTreeMap<(Key, NodeId, Held), (Vec<u32>, Cost)> = BTreeMap::new();
    for stay in &case.plan.stays {
        let held = match stay.why {
            Why::Foreign => Held::Mask,
            Why::OnePlace => Held::Cpuset,
            _ => continue,
        };
        let Some((thread, (disk, home))) =
            thread(case, &stay.target).and_then(|thread| Some((thread, main_disk(case, thread)?)))
        else {
            continue;
        };
        let allowed = match held {
            Held::Mask => &thread.allowed,
            Held::Cpuset => &thread.cpuset,
        };
        let may_be_near = allowed.iter().any(|cpu| case.node(*cpu) == Some(home));
        let Some(from) = case.node(thread.cpu).filter(|from| *from != home && !may_be_near) else {
            continue;
        };
        let key = (thread.process_name.clone(), from, disk);
        let group = groups.entry((key, home, held)).or_default();
        group.0.push(thread.id.thread);
        group.1 = group.1.plus(stay.cost);
    }
    let of_weight = groups
        .into_iter()
        .filter(|(_, (_, cost))| cost.bytes_per_s() >= RATE_BYTES_PER_S_MIN);
    findings.extend(of_weight.map(|((key, home, held), (numbers, cost))| Finding {
        problem: Problem::HeldThreads {
            threads: threads(key, numbers),
            home,
            held,
        },
        gain: Some(cost),
    }));
}

fn thread<'a>(case: &Case<'a>, target: &Target) -> Option<&'a Thread> {
    let Target::Thread(id) = target else { return None };
    case.snapshot.threads.iter().find(|thread| thread.id == *id)
}

/// The disk that a thread moves most bytes with, with its home, unless it moves more over the network: its queues go
/// where the thread is.
fn main_disk(case: &Case<'_>, thread: &Thread) -> Option<(String, NodeId)> {
    let most = thread.disk.iter().max_by_key(|disk| disk.bytes)?;
    let device = most.device.as_ref().filter(|_| most.bytes > thread.network_bytes())?;
    Some((device.clone(), case.snapshot.home(device)?))
}

fn threads((process, from, device): Key, mut numbers: Vec<u32>) -> Threads {
    numbers.sort_unstable();
    Threads {
        process,
        numbers,
        from,
        device,
    }
}
