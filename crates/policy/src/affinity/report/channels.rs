//! Channels in a plan: which parts of a moved channel go along, and why the rest stays.

use super::too_little;
use crate::affinity::channels::Channel;
use crate::affinity::cost::Cost;
use crate::affinity::reason::{Reason, Why};
use crate::affinity::senders::{Senders, beside};
use crate::affinity::state::State;
use crate::affinity::{Action, Plan, Policy, Previous, Queue, QueueKind, Stay, Target};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

pub(super) fn moved(
    plan: &mut Plan,
    previous: &Previous,
    channel: usize,
    reason: &Reason,
    before: &State<'_>,
    after: &State<'_>,
    senders: &Senders,
) {
    let model = after.model;
    let it = &model.channels[channel];
    let cpu = after.cpu_of[channel].expect("the caller asks only for channels that move");
    let alone = model.domains.mask(&[cpu]);
    let sends = |target: &Target| match (senders.set.get(target), it.policy) {
        (Some((cpus, _)), _) => cpus.clone(),
        (None, Policy::Local) => beside(model, cpu),
        _ => alone.clone(),
    };
    let queues = it.queues.iter().filter_map(|queue| {
        let target = Target::of_queue(&queue.device, queue.kind, queue.index)?;
        let to = changes(queue, &target, previous).then(|| match queue.kind {
            QueueKind::Transmit => sends(&target),
            _ => alone.clone(),
        });
        Some((target, &queue.cpus, to))
    });
    let interrupts = it.interrupts.iter().map(|interrupt| {
        let to = it.interrupts_move.then(|| alone.clone());
        (Target::Interrupt(interrupt.number), &interrupt.affinity, to)
    });
    let (cost_before, cost_after) = (Cost(before.channel_cost(channel)), Cost(after.channel_cost(channel)));
    for (target, from, to) in queues.chain(interrupts) {
        match to {
            Some(to) if to != *from => plan.actions.push(Action {
                target,
                from: from.clone(),
                to,
                reason: reason.clone(),
                cost_before,
                cost_after,
            }),
            to => plan.stays.push(Stay {
                why: to.map_or_else(|| why_part(it, &target), |_| Why::Best),
                target,
                cost: cost_after,
            }),
        }
    }
}

pub(super) fn staying(plan: &mut Plan, channel: usize, before: &State<'_>, state: &mut State<'_>, senders: &Senders) {
    let it = &state.model.channels[channel];
    let cost = Cost(state.channel_cost(channel));
    let targets = it.targets();
    if targets.is_empty() {
        return;
    }
    let whole = it.hold.clone().unwrap_or_else(|| why_channel(channel, state));
    for (target, cpus) in targets {
        if let Some((to, reason)) = senders.set.get(&target).filter(|(to, _)| to != cpus) {
            plan.actions.push(Action {
                target,
                from: cpus.to_vec(),
                to: to.clone(),
                reason: reason.clone(),
                cost_before: Cost(before.channel_cost(channel)),
                cost_after: cost,
            });
            continue;
        }
        let fixed = match &target {
            Target::Interrupt(_) => !it.interrupts_move,
            Target::Receive { .. } => cpus.is_empty(),
            _ => false,
        };
        let why = match (fixed, &whole) {
            (true, Why::Off | Why::NotMovable) | (false, _) => whole.clone(),
            (true, _) => why_part(it, &target),
        };
        plan.stays.push(Stay { target, why, cost });
    }
}

/// Returns for each channel the task that moves most bytes through it.
pub(super) fn takers(state: &State<'_>) -> Vec<Option<usize>> {
    let mut most: Vec<Option<(u64, usize)>> = vec![None; state.cpu_of.len()];
    for (task, place) in state.place_of.iter().enumerate() {
        state.model.pulls(task, *place, |channel, rate| {
            if rate > most[channel].map_or(0, |(most, _)| most) {
                most[channel] = Some((rate, task));
            }
        });
    }
    most.into_iter().map(|most| most.map(|(_, task)| task)).collect()
}

/// Why the search, or a rule, has moved a channel.
pub(super) fn why_moved(after: &State<'_>, channel: usize, taker: Option<usize>) -> Reason {
    let model = after.model;
    let it = &model.channels[channel];
    let cpu = after.cpu_of[channel].expect("the caller asks only for channels that move");
    let (device, node) = (String::from(it.device), model.domains.node(cpu));
    match (it.policy, taker) {
        (Policy::Local, Some(task)) => Reason::NearThreads {
            device,
            thread: model.tasks[task].thread.name.clone(),
            node,
        },
        (Policy::Local, None) => Reason::NearDevice { device, node },
        (policy, _) => Reason::Policy {
            policy,
            name: device,
            node,
        },
    }
}

/// Whether a queue's CPUs change when its channel moves.
pub(in super::super) fn changes(queue: &Queue, target: &Target, previous: &Previous) -> bool {
    let used = queue.kind == QueueKind::Transmit || !queue.cpus.is_empty();
    used && queue.movable && !previous.refused(target)
}

/// Why a part of a channel stays that never moves with it.
fn why_part(channel: &Channel<'_>, target: &Target) -> Why {
    let managed = channel.interrupts.iter().any(|interrupt| interrupt.managed);
    match target {
        Target::Interrupt(_) if managed => Why::Managed,
        Target::Interrupt(_) => Why::Refused,
        _ => Why::NotMovable,
    }
}

/// Why a channel that could move does not.
fn why_channel(channel: usize, state: &mut State<'_>) -> Why {
    let it = &state.model.channels[channel];
    if it.policy != Policy::Local {
        return Why::InPlace(it.policy);
    }
    let cost = state.lift_channel(channel);
    let domains = state.model.domains.domains.iter();
    let best = domains
        .map(|domain| {
            let overload = domain
                .cpus
                .iter()
                .map(|cpu| state.channel_overload(channel, *cpu))
                .min();
            state.channel_at(channel, domain.cpus[0]) + overload.unwrap_or(0)
        })
        .min();
    state.put_channel(channel, None);
    too_little(cost, best, state.channel_price[channel])
}
