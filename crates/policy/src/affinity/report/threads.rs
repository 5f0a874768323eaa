//! Threads in a plan: where each thread is put, or why it stays.

use super::too_little;
use crate::affinity::cost::Cost;
use crate::affinity::model::Model;
use crate::affinity::reason::{Reason, Why};
use crate::affinity::state::State;
use crate::affinity::{Action, Plan, Policy, Stay, Target, rules};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

pub(super) fn thread(plan: &mut Plan, task: usize, before: &State<'_>, after: &mut State<'_>) {
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
        from: it.thread.allowed.to_vec(),
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
        Policy::Local if let Some(buffers) = it.buffers.filter(|_| saves) => Reason::NearBuffers {
            thread: name,
            home: buffers.home,
            percent: percent(buffers.there, buffers.all),
            bytes_per_s: buffers.all,
            node,
        },
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

fn percent(part: u64, all: u64) -> u64 {
    part.saturating_mul(100) / all.max(1)
}

/// Why a task that stays is bound to where it is: its mask lets the scheduler take it to where its bytes cost more, or
/// less, but not by more than the hysteresis; and its queues are put where it is now. A task that is far from its bytes, as
/// there is no room near them or a move would save too little, is not bound there: the scheduler may bring it nearer.
fn why_kept(task: usize, state: &State<'_>) -> Option<Reason> {
    let model = state.model;
    let it = &model.tasks[task];
    let place = &model.places.all[it.origin];
    // Most are held, or bound already.
    if it.hold.is_some() || it.thread.allowed.len() <= place.cpus.len() {
        return None;
    }
    let kept = || Reason::Kept {
        thread: it.thread.name.clone(),
        node: model.node_of(it.origin),
    };
    let outside = model.domains.indices(&it.thread.allowed);
    let mut outside = outside.into_iter().filter(|cpu| !place.cpus.contains(cpu));
    if it.policy != Policy::Local {
        let bound = outside.next().is_some() && place.cpus.len() == 1 && !rules::lacks_cpu(model, task);
        return bound.then(kept);
    }
    let domains: BTreeSet<usize> = outside.map(|cpu| model.domains.domain(cpu)).collect();
    let here = state.flow_cost(task, it.origin);
    let there = it
        .candidates
        .iter()
        .filter(|at| domains.contains(&model.places.all[**at].domain));
    let there: Vec<u64> = there.map(|at| state.flow_cost(task, *at)).collect();
    let share = (here / 100).saturating_mul(u64::from(model.config.hysteresis_percent));
    let near = there.iter().all(|cost| here <= cost.saturating_add(share));
    let differs = there.iter().any(|cost| *cost != here);
    (near && differs).then(kept)
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
