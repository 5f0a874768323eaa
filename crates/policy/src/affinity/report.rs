//! Turns a placement into a plan: what differs from where things were found, and why the rest stays.

use super::channels::Channel;
use super::cost::Cost;
use super::model::Model;
use super::reason::{Reason, Why};
use super::rules;
use super::senders::{Senders, beside};
use super::state::{Delta, State};
use super::{Action, Plan, Policy, Previous, Queue, QueueKind, Snapshot, Stay, Target};
use crate::CpuId;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

pub(super) fn plan(
    snapshot: &Snapshot,
    previous: &Previous,
    before: &State<'_>,
    mut after: State<'_>,
    senders: &Senders,
) -> Plan {
    let mut plan = Plan {
        actions: Vec::new(),
        stays: Vec::new(),
        cost_before: before.cost(),
        cost_after: after.cost(),
    };
    for task in 0..after.place_of.len() {
        thread(&mut plan, task, before, &mut after);
    }
    let takers = takers(&after);
    for (channel, taker) in takers.iter().enumerate() {
        if after.cpu_of[channel].is_some() {
            let reason = senders.come.get(&channel).cloned();
            let reason = reason.unwrap_or_else(|| why_moved(&after, channel, *taker));
            moved_channel(&mut plan, previous, channel, &reason, before, &after, senders);
        } else {
            staying_channel(&mut plan, channel, before, &mut after, senders);
        }
    }
    loose_interrupts(&mut plan, snapshot, &after);
    plan.actions.sort_by(|a, b| a.target.cmp(&b.target));
    plan.stays.sort_by(|a, b| a.target.cmp(&b.target));
    plan
}

fn thread(plan: &mut Plan, task: usize, before: &State<'_>, after: &mut State<'_>) {
    let model = after.model;
    let it = &model.tasks[task];
    let target = Target::Thread(it.thread.id);
    let place = after.place_of[task];
    let cost = |state: &State<'_>| Cost(state.flow_cost(task, state.place_of[task]));
    let (cost_before, cost_after) = (cost(before), cost(after));
    let reason = match place == it.origin {
        true => why_kept(task, after),
        false => Some(why_put(task, place, cost_after < cost_before, model)),
    };
    let Some(reason) = reason else {
        let why = it.hold.clone().unwrap_or_else(|| why_task(task, after));
        let cost = cost_after;
        plan.stays.push(Stay { target, why, cost });
        return;
    };
    plan.actions.push(Action {
        target,
        from: it.thread.allowed.clone(),
        to: model.domains.mask(&model.places.all[place].cpus),
        reason,
        cost_before,
        cost_after,
    });
}

/// Why a task goes to another place.
fn why_put(task: usize, place: usize, saves: bool, model: &Model<'_>) -> Reason {
    let it = &model.tasks[task];
    let (name, node) = (it.thread.name.clone(), model.node_of(place));
    match it.policy {
        Policy::Local if saves => Reason::NearQueues {
            thread: name,
            class: it.class,
            device: String::from(it.device.unwrap_or_default()),
            node,
        },
        Policy::Local => Reason::Relieved {
            thread: name,
            from: model.node_of(it.origin),
            node,
        },
        policy => Reason::Policy { policy, name, node },
    }
}

/// Why a task that stays is bound to where it is: its mask lets the scheduler take it to where its bytes cost more, or
/// less, but not by what a move must save; and its queues are put where it is now. Who has no room near its bytes is not
/// bound to where it is far from them.
fn why_kept(task: usize, state: &State<'_>) -> Option<Reason> {
    let model = state.model;
    let it = &model.tasks[task];
    let place = &model.places.all[it.origin];
    let outside = model.domains.indices(&it.thread.allowed);
    let mut outside = outside.into_iter().filter(|cpu| !place.cpus.contains(cpu));
    let (name, node) = (it.thread.name.clone(), model.node_of(it.origin));
    if it.hold.is_some() {
        return None;
    }
    if it.policy != Policy::Local {
        let bound = outside.next().is_some() && place.cpus.len() == 1 && !rules::lacks_cpu(model, task);
        return bound.then_some(Reason::Kept { thread: name, node });
    }
    let domains: BTreeSet<usize> = outside.map(|cpu| model.domains.domain(cpu)).collect();
    let here = state.flow_cost(task, it.origin);
    let there = it
        .candidates
        .iter()
        .filter(|at| domains.contains(&model.places.all[**at].domain));
    let there: Vec<u64> = there.map(|at| state.flow_cost(task, *at)).collect();
    let price = u64::try_from(state.task_price[task]).unwrap_or(0);
    let near = there.iter().all(|cost| here <= cost.saturating_add(price));
    let differs = there.iter().any(|cost| *cost != here);
    (near && differs).then_some(Reason::Kept { thread: name, node })
}

/// Why a task that could move does not.
fn why_task(task: usize, state: &mut State<'_>) -> Why {
    let it = &state.model.tasks[task];
    if it.policy != Policy::Local {
        return match rules::lacks_cpu(state.model, task) {
            true => Why::NoCpu(it.policy),
            false => Why::InPlace(it.policy),
        };
    }
    let cost = state.lift_task(task);
    let others = it.candidates.iter().copied().filter(|place| *place != it.origin);
    let best = others.map(|place| state.task_at(task, place)).min();
    state.put_task(task, it.origin);
    too_little(cost, best, state.task_price[task])
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

fn too_little(cost: Delta, best: Option<Delta>, price: Delta) -> Why {
    let gain = best.map_or(0, |best| cost - (best - price));
    match (u64::try_from(gain), u64::try_from(price)) {
        // What a plan for this load has not moved stays until the load changes.
        (Ok(gain), Ok(price)) if gain > price => Why::Settled,
        (Ok(gain), Ok(price)) if gain > 0 => Why::TooLittle {
            gain: Cost(gain),
            price: Cost(price),
        },
        _ => Why::Best,
    }
}

/// By channel: the task that moves most bytes through it.
fn takers(state: &State<'_>) -> Vec<Option<usize>> {
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
fn why_moved(after: &State<'_>, channel: usize, taker: Option<usize>) -> Reason {
    let model = after.model;
    let it = &model.channels[channel];
    let cpu = after.cpu_of[channel].expect("asked for a channel that moves");
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

fn moved_channel(
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
    let cpu = after.cpu_of[channel].expect("asked for a channel that moves");
    let alone = model.domains.mask(&[cpu]);
    let sends = |target: &Target| match (senders.set.get(target), it.policy) {
        (Some((cpus, _)), _) => cpus.clone(),
        (None, Policy::Local) => beside(model, cpu),
        _ => alone.clone(),
    };
    let queues = it.queues.iter().filter_map(|queue| {
        let target = Target::of_queue(&queue.device, queue.kind, queue.index)?;
        let to = changed(queue, &target, previous).then(|| match queue.kind {
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

/// Whether a queue's CPUs change when its channel moves.
fn changed(queue: &Queue, target: &Target, previous: &Previous) -> bool {
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

fn staying_channel(plan: &mut Plan, channel: usize, before: &State<'_>, state: &mut State<'_>, senders: &Senders) {
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

/// Interrupts of devices that belong to no queue.
fn loose_interrupts(plan: &mut Plan, snapshot: &Snapshot, state: &State<'_>) {
    let channels = state.model.channels.iter();
    let mut tied: Vec<u32> = channels
        .flat_map(|channel| channel.interrupts.iter().map(|interrupt| interrupt.number))
        .collect();
    tied.sort_unstable();
    for interrupt in &snapshot.interrupts {
        if tied.binary_search(&interrupt.number).is_err() {
            let device = interrupt.device.as_deref();
            let policy = device.map_or(state.model.config.policy, |device| state.model.config.of_device(device));
            plan.stays.push(Stay {
                target: Target::Interrupt(interrupt.number),
                why: if policy == Policy::Off { Why::Off } else { Why::NoQueue },
                cost: Cost::default(),
            });
        }
    }
}

/// No plan names a CPU twice or out of order, a target twice, or changes nothing.
pub(super) fn check(plan: &Plan, runs: impl Fn(CpuId) -> bool) {
    let targets = plan.actions.iter().map(|action| &action.target);
    debug_assert!(targets.is_sorted_by(|a, b| a < b), "no target is named twice");
    for action in &plan.actions {
        debug_assert!(
            action.to.is_sorted_by(|a, b| a < b) && !action.to.is_empty(),
            "{action:?}"
        );
        debug_assert!(
            action.to.iter().all(|cpu| runs(*cpu)) && action.from != action.to,
            "{action:?}"
        );
    }
}
