//! Threads that run far from the device they move most bytes with, or from their buffers.

use super::{Case, Finding, Held, Problem, RATE_BYTES_PER_S_MIN, Threads, Way};
use crate::NodeId;
use crate::affinity::{Class, Cost, FileId, MoveFile, Reason, Target, Thread, Why};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// Process, node and device that threads have in common to be reported together.
type Key = (String, NodeId, String);

pub(super) fn find(case: &Case<'_>, findings: &mut Vec<Finding>) {
    far(case, findings);
    held(case, findings);
    buffers(case, findings);
}

/// Finds threads that the plan moves to another node.
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
    findings.extend(
        groups
            .into_iter()
            .map(|(((process, from, device), to), (class, numbers, gain))| Finding {
                problem: Problem::FarThreads {
                    threads: threads(process, from, numbers),
                    device,
                    class,
                    to,
                },
                gain: Some(gain),
            }),
    );
}

/// Finds threads that a mask or a cpuset keeps on another node than their disk.
fn held(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut groups: BTreeMap<(Key, NodeId, Held), (Vec<u32>, Cost)> = BTreeMap::new();
    for stay in &case.plan.stays {
        let Some(held) = held_by(&stay.why) else { continue };
        let Some((thread, (disk, home))) =
            thread(case, &stay.target).and_then(|thread| Some((thread, main_disk(case, thread)?)))
        else {
            continue;
        };
        let Some(from) = case
            .node(thread.cpu)
            .filter(|from| *from != home && !may_be_on(case, thread, held, home))
        else {
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
    findings.extend(
        of_weight.map(|(((process, from, device), home, held), (numbers, cost))| Finding {
            problem: Problem::HeldThreads {
                threads: threads(process, from, numbers),
                device,
                home,
                held,
            },
            gain: Some(cost),
        }),
    );
}

fn held_by(why: &Why) -> Option<Held> {
    match why {
        Why::Foreign => Some(Held::Mask),
        Why::OnePlace => Some(Held::Cpuset),
        _ => None,
    }
}

/// Whether what keeps a thread lets it have a CPU of a node all the same.
fn may_be_on(case: &Case<'_>, thread: &Thread, held: Held, node: NodeId) -> bool {
    let allowed = match held {
        Held::Mask => &thread.allowed,
        Held::Cpuset => &thread.cpuset,
    };
    allowed.iter().any(|cpu| case.node(*cpu) == Some(node))
}

/// Threads of one process on one node, far from their buffers.
#[derive(Default)]
struct Far {
    numbers: Vec<u32>,
    there: u64,
    all: u64,
    gain: Cost,
    files: BTreeSet<FileId>,
}

/// Finds threads that copy more bytes of buffers than of devices: the plan moves them or their files, or someone keeps them.
fn buffers(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut groups: BTreeMap<(String, NodeId, NodeId, Way), Far> = BTreeMap::new();
    for thread in &case.snapshot.threads {
        let disk = thread.disk.iter().map(|disk| disk.bytes);
        let devices = disk.fold(thread.network_bytes(), u64::saturating_add);
        let most = thread.memory.iter().rev().max_by_key(|(_, bytes)| *bytes);
        let Some((home, there)) = most.filter(|_| thread.memory_bytes() > devices) else {
            continue;
        };
        let Some(from) = case.node(thread.cpu).filter(|from| from != home) else {
            continue;
        };
        let Some((way, gain)) = way(case, thread, *home) else {
            continue;
        };
        let far = groups
            .entry((thread.process_name.clone(), from, *home, way))
            .or_default();
        far.numbers.push(thread.id.thread);
        far.there = far.there.saturating_add(*there);
        far.all = far.all.saturating_add(thread.memory_bytes());
        match way {
            // A file comes once for all that use it.
            Way::Files => far.files.extend(thread.files.iter().map(|(file, _)| *file)),
            _ => far.gain = far.gain.plus(gain),
        }
    }
    for ((process, from, home, way), far) in groups {
        let moved = case.plan.files.iter().filter(|one| far.files.contains(&one.file));
        let gain = moved.fold(far.gain, |sum, one| sum.plus(saved(one)));
        if gain.bytes_per_s() < RATE_BYTES_PER_S_MIN {
            continue;
        }
        findings.push(Finding {
            problem: Problem::FarBuffers {
                threads: threads(process, from, far.numbers),
                home,
                percent: far.there.saturating_mul(100) / far.all.max(1),
                bytes_per_s: case.per_second(far.all),
                way,
            },
            gain: Some(gain),
        });
    }
}

/// How a thread and its buffers can come together, and what a move of the thread saves.
fn way(case: &Case<'_>, thread: &Thread, home: NodeId) -> Option<(Way, Cost)> {
    let target = Target::Thread(thread.id);
    if let Some(action) = case.plan.action(&target)
        && matches!(action.reason, Reason::NearBuffers { .. })
    {
        return Some((Way::Threads, action.cost_before.beyond(action.cost_after)));
    }
    let uses = |one: &MoveFile| thread.files.iter().any(|(file, _)| *file == one.file);
    if case.plan.files.iter().any(uses) {
        return Some((Way::Files, Cost::default()));
    }
    let stay = case.plan.stay(&target)?;
    let held = held_by(&stay.why).filter(|held| !may_be_on(case, thread, *held, home))?;
    Some((Way::Held(held), stay.cost))
}

fn saved(one: &MoveFile) -> Cost {
    one.cost_before.beyond(one.cost_after)
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

fn threads(process: String, from: NodeId, mut numbers: Vec<u32>) -> Threads {
    numbers.sort_unstable();
    Threads { process, numbers, from }
}
