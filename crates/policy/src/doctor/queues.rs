//! Queues of network cards: how many there are, who sends through them, and where their packets are processed.

use super::devices::arrivals;
use super::{ARRIVALS_PER_S_MIN, Case, Finding, Problem, finding};
use crate::affinity::cost::{Cost, INTERRUPT_NS, NS_PER_S};
use crate::affinity::{Interrupt, Queue, QueueKind, Target};
use crate::topology::{Device, DeviceKind};
use crate::{CpuId, NodeId};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// A card is busy when its interrupts take this share of a CPU for each queue: more queues would be used then.
const BUSY_PERCENT: u64 = 10;

pub(super) fn find(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let devices = case.snapshot.topology.devices().iter();
    for card in devices.filter(|device| device.kind == DeviceKind::Network) {
        if case.per_second(arrivals(case, &card.name)) >= ARRIVALS_PER_S_MIN {
            few_queues(case, card, findings);
            transmit(case, card, findings);
            receive(case, card, findings);
        }
    }
}

fn queues<'a>(case: &Case<'a>, card: &Device, kind: QueueKind) -> Vec<&'a Queue> {
    let all = case.snapshot.queues.iter();
    let mut its: Vec<&Queue> = all
        .filter(|queue| queue.device == card.name && queue.kind == kind)
        .collect();
    its.sort_by_key(|queue| queue.index);
    its
}

fn few_queues(case: &Case<'_>, card: &Device, findings: &mut Vec<Finding>) {
    let Some(home) = card.home else { return };
    let queues = queues(case, card, QueueKind::Receive).len() as u64;
    let cpus = case.running(home).len() as u64;
    let busy_ns = case.per_second(arrivals(case, &card.name)).saturating_mul(INTERRUPT_NS);
    let is_busy = |queues: u64| busy_ns >= queues * (NS_PER_S / 100 * BUSY_PERCENT);
    let used = case.facts.queues_used.get(&card.name).copied().unwrap_or(queues);
    let max = case.facts.queues_max.get(&card.name).copied();
    let is_all = max.is_some_and(|max| max <= queues);
    let device = card.name.clone();
    if queues > 0 && queues < cpus && is_busy(queues) && !is_all {
        findings.push(finding(Problem::FewQueues {
            device,
            home,
            queues,
            cpus,
            max,
        }));
    } else if used < queues.min(cpus) && is_busy(used) {
        findings.push(finding(Problem::UnusedQueues { device, used, queues }));
    }
}

fn transmit(case: &Case<'_>, card: &Device, findings: &mut Vec<Finding>) {
    let all = queues(case, card, QueueKind::Transmit);
    let movable: Vec<&Queue> = all.iter().copied().filter(|queue| queue.movable).collect();
    if movable.len() < 2 {
        return;
    }
    if movable.iter().all(|queue| queue.cpus.is_empty()) {
        // Where all of them complete on one node, none is nearer than another.
        let completes = movable.iter().filter_map(|queue| interrupt(case, queue.interrupt?));
        let places: BTreeSet<NodeId> = completes
            .flat_map(|interrupt| nodes(case, &interrupt.effective))
            .collect();
        if places.len() < 2 {
            return;
        }
        let (queues, gain) = told(case, &movable);
        let device = card.name.clone();
        let problem = Problem::NoXps { device, queues };
        findings.push(Finding { problem, gain });
        return;
    }
    let crosses = |queue: &&Queue| nodes(case, &queue.cpus).len() > 1;
    let crossing: Vec<&Queue> = movable.iter().copied().filter(crosses).collect();
    if !crossing.is_empty() && movable.len() >= case.nodes_with_cpus() {
        let (queues, gain) = told(case, &crossing);
        let device = card.name.clone();
        let problem = Problem::XpsCrosses { device, queues };
        findings.push(Finding { problem, gain });
    }
}

/// RPS is worth its price on other CPUs of the same node, not on those of another.
fn receive(case: &Case<'_>, card: &Device, findings: &mut Vec<Finding>) {
    let crosses = |queue: &&Queue| {
        let arrives = queue.interrupt.and_then(|number| interrupt(case, number));
        let taken = arrives
            .map(|interrupt| nodes(case, &interrupt.effective))
            .unwrap_or_default();
        !taken.is_empty() && !nodes(case, &queue.cpus).is_subset(&taken)
    };
    let crossing: Vec<&Queue> = queues(case, card, QueueKind::Receive)
        .into_iter()
        .filter(crosses)
        .collect();
    if !crossing.is_empty() {
        let (queues, gain) = told(case, &crossing);
        let device = card.name.clone();
        let problem = Problem::RpsCrosses { device, queues };
        findings.push(Finding { problem, gain });
    }
}

fn nodes(case: &Case<'_>, cpus: &[CpuId]) -> BTreeSet<NodeId> {
    cpus.iter().filter_map(|cpu| case.node(*cpu)).collect()
}

fn interrupt<'a>(case: &Case<'a>, number: u32) -> Option<&'a Interrupt> {
    let mut all = case.snapshot.interrupts.iter();
    all.find(|interrupt| interrupt.number == number)
}

/// Their numbers, and what the plan saves with them, if it does.
fn told(case: &Case<'_>, queues: &[&Queue]) -> (Vec<u32>, Option<Cost>) {
    let gains = queues.iter().filter_map(|queue| {
        let target = Target::of_queue(&queue.device, queue.kind, queue.index)?;
        let action = case.plan.action(&target)?;
        Some(action.cost_before.beyond(action.cost_after))
    });
    let gain = gains.reduce(Cost::plus);
    (queues.iter().map(|queue| queue.index).collect(), gain)
}
