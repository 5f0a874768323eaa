//! Interrupts and devices: what arrives where, and who else places it.

use super::{ARRIVALS_PER_S_MIN, Case, Finding, Helper, Mobility, Problem, finding};
use crate::affinity::cost::Cost;
use crate::affinity::{Action, Interrupt, Target, Thread, Why};
use crate::{CpuId, NodeId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Interrupts are told when at least this share of them arrives on other nodes: some do while a thread is moved.
const REMOTE_PERCENT_MIN: u64 = 10;
/// All interrupts are on one CPU when not even this share is elsewhere.
const ELSEWHERE_PERCENT_MAX: u64 = 5;

pub(super) fn find(case: &Case<'_>, findings: &mut Vec<Finding>) {
    remote_interrupts(case, findings);
    one_cpu(case, findings);
    unknown_homes(case, findings);
    conflicts(case, findings);
}

/// Arrivals of a device's interrupts that belong on the same node and have the same mobility.
#[derive(Default)]
struct Arrivals {
    numbers: Vec<u32>,
    remote: u64,
    all: u64,
    on: BTreeSet<NodeId>,
}

fn remote_interrupts(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut groups: BTreeMap<(&str, NodeId, Mobility), Arrivals> = BTreeMap::new();
    for interrupt in &case.snapshot.interrupts {
        let Some(device) = interrupt.device.as_deref() else {
            continue;
        };
        let Some((wanted, mobility)) = place(case, interrupt, device) else {
            continue;
        };
        let group = groups.entry((device, wanted, mobility)).or_default();
        let before = group.remote;
        for (cpu, count) in &interrupt.arrivals {
            group.all = group.all.saturating_add(*count);
            if let Some(node) = case.node(*cpu).filter(|node| *node != wanted) {
                group.remote = group.remote.saturating_add(*count);
                group.on.insert(node);
            }
        }
        if group.remote > before {
            group.numbers.push(interrupt.number);
        }
    }
    for ((device, wanted, mobility), mut group) in groups {
        let share = group.remote.saturating_mul(100) / group.all.max(1);
        if case.per_second(group.remote) < ARRIVALS_PER_S_MIN || share < REMOTE_PERCENT_MIN {
            continue;
        }
        group.numbers.sort_unstable();
        let gain = (mobility == Mobility::Planned).then(|| gain(case, &group.numbers));
        let problem = Problem::RemoteInterrupts {
            device: device.into(),
            wanted,
            wanted_at_home: case.snapshot.home(device) == Some(wanted),
            numbers: group.numbers,
            remote: group.remote,
            all: group.all,
            on: group.on.into_iter().collect(),
            mobility,
        };
        findings.push(Finding { problem, gain });
    }
}

/// Where an interrupt belongs, and how it comes there. None for what stays where it is because nowhere is better, as far
/// as the plan can tell.
fn place(case: &Case<'_>, interrupt: &Interrupt, device: &str) -> Option<(NodeId, Mobility)> {
    let home = case.snapshot.home(device);
    if interrupt.managed {
        return Some((home?, managed(case, device)?));
    }
    let target = Target::Interrupt(interrupt.number);
    if let Some(action) = case.plan.action(&target) {
        return Some((case.node(*action.to.first()?)?, Mobility::Planned));
    }
    let why = &case.plan.stay(&target)?.why;
    (*why == Why::NoQueue).then_some((home?, Mobility::Loose))
}

/// Completions arrive near who submitted: it is those threads that are far, or it is not known which they are.
fn managed(case: &Case<'_>, device: &str) -> Option<Mobility> {
    let uses = |disk: &crate::affinity::DeviceBytes| disk.device.as_deref() == Some(device);
    let threads = case.snapshot.threads.iter();
    let mut users = threads.filter(|thread| thread.disk.iter().any(uses)).peekable();
    if users.peek().is_none() {
        return Some(Mobility::Managed);
    }
    let action = |thread: &Thread| case.plan.action(&Target::Thread(thread.id));
    let moves = users.any(|thread| action(thread).is_some_and(Action::moves));
    moves.then_some(Mobility::ManagedPlanned)
}

/// Returns the cost that the plan saves for bytes that go through these interrupts. Both directions of a queue number,
/// and all interrupts of a queue, carry the same bytes, which count once.
fn gain(case: &Case<'_>, numbers: &[u32]) -> Cost {
    let mut by_queue: BTreeMap<(&str, u32), Cost> = BTreeMap::new();
    for queue in &case.snapshot.queues {
        let its = queue.interrupt.filter(|number| numbers.binary_search(number).is_ok());
        if let Some(action) = its.and_then(|number| case.plan.action(&Target::Interrupt(number))) {
            let gain = action.cost_before.beyond(action.cost_after);
            let most = by_queue.entry((&queue.device, queue.index)).or_default();
            *most = gain.max(*most);
        }
    }
    by_queue.into_values().fold(Cost::default(), Cost::plus)
}

/// Without a program that spreads them, interrupts arrive where drivers put them, which is often CPU 0.
fn one_cpu(case: &Case<'_>, findings: &mut Vec<Finding>) {
    if case.facts.helpers.contains(&Helper::Irqbalance) {
        return;
    }
    let sum = |interrupt: &Interrupt| {
        interrupt
            .arrivals
            .iter()
            .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    };
    let busy = |interrupt: &&Interrupt| {
        let moves = !interrupt.managed && interrupt.device.is_some();
        moves && case.per_second(sum(interrupt)) >= ARRIVALS_PER_S_MIN
    };
    let busy: Vec<&Interrupt> = case.snapshot.interrupts.iter().filter(busy).collect();
    let mut by_cpu: BTreeMap<CpuId, u64> = BTreeMap::new();
    for (cpu, count) in busy.iter().flat_map(|interrupt| &interrupt.arrivals) {
        let sum = by_cpu.entry(*cpu).or_default();
        *sum = sum.saturating_add(*count);
    }
    let all = by_cpu.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let Some((cpu, most)) = by_cpu
        .into_iter()
        .max_by_key(|(cpu, count)| (*count, core::cmp::Reverse(*cpu)))
    else {
        return;
    };
    let elsewhere = (all - most).saturating_mul(100) / all.max(1);
    if busy.len() > 1 && elsewhere < ELSEWHERE_PERCENT_MAX {
        let mut numbers: Vec<u32> = busy.iter().map(|interrupt| interrupt.number).collect();
        numbers.sort_unstable();
        findings.push(finding(Problem::OneCpu {
            cpu,
            numbers,
            arrivals: all,
        }));
    }
}

fn unknown_homes(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let devices = case.snapshot.topology.devices().iter();
    for device in devices.filter(|device| device.home.is_none()) {
        let arrivals = arrivals(case, &device.name);
        if case.per_second(arrivals) >= ARRIVALS_PER_S_MIN {
            findings.push(finding(Problem::HomeUnknown {
                device: device.name.clone(),
                address: case.facts.addresses.get(&device.name).cloned(),
                arrivals,
            }));
        }
    }
}

/// How often interrupts of a device arrived.
pub(super) fn arrivals(case: &Case<'_>, device: &str) -> u64 {
    let interrupts = case.snapshot.interrupts.iter();
    let its = interrupts.filter(|interrupt| interrupt.device.as_deref() == Some(device));
    let counts = its.flat_map(|interrupt| &interrupt.arrivals);
    counts.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
}

/// Only those that are about something the plan moves.
fn conflicts(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let moved = case.plan.actions.iter().filter(|action| action.moves());
    let is = |wanted: fn(&Target) -> bool| moved.clone().any(|action| wanted(&action.target));
    let (interrupts, threads) = (
        is(|target| matches!(target, Target::Interrupt(_))),
        is(|target| matches!(target, Target::Thread(_))),
    );
    let meddles = |helper: &&Helper| match helper {
        Helper::Irqbalance => interrupts,
        Helper::Numad => threads,
        Helper::Tuned => interrupts || threads,
        Helper::SystemdLink => is(|target| matches!(target, Target::Receive { .. })),
    };
    let found = case.facts.helpers.iter().filter(meddles);
    findings.extend(found.map(|helper| finding(Problem::Conflict(*helper))));
}
