//! Turns a placement into a plan: what differs from where things were found, and why the rest stays.

mod channels;
mod threads;

use super::cost::Cost;
use super::reason::Why;
use super::senders::Senders;
use super::state::{Delta, State};
use super::{Plan, Policy, Previous, Snapshot, Stay, Target};
use crate::CpuId;
use alloc::vec::Vec;
pub(super) use channels::changes;

pub(super) fn plan(
    snapshot: &Snapshot,
    previous: &Previous,
    before: &State<'_>,
    mut after: State<'_>,
    senders: &Senders,
) -> Plan {
    let mut plan = Plan {
        cost_before: before.cost(),
        cost_after: after.cost(),
        ..Plan::default()
    };
    for task in 0..after.place_of.len() {
        threads::thread(&mut plan, task, before, &mut after);
    }
    let takers = channels::takers(&after);
    for (channel, taker) in takers.iter().enumerate() {
        if after.cpu_of[channel].is_some() {
            let reason = senders.come.get(&channel).cloned();
            let reason = reason.unwrap_or_else(|| channels::why_moved(&after, channel, *taker));
            channels::moved(&mut plan, previous, channel, &reason, before, &after, senders);
        } else {
            channels::staying(&mut plan, channel, before, &mut after, senders);
        }
    }
    loose_interrupts(&mut plan, snapshot, &after);
    plan.actions.sort_by(|a, b| a.target.cmp(&b.target));
    plan.stays.sort_by(|a, b| a.target.cmp(&b.target));
    plan
}

/// Why what could move at `cost`, and would have `best` elsewhere with the price of a move, does not.
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
