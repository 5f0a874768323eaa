//! The plan as JSON, `output_version` 1, and what became of it. Costs are in bytes a second that travel as far again as a
//! local access.

use super::{Decided, codes};
use crate::affinity::card_advice::Advice;
use crate::affinity::pools::{FileMoved, moved_text};
use crate::affinity::words::name_alone;
use homenode_linux::affinity::act::Applied;
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_linux::affinity::{Card, QueueCounts, Unseen};
use homenode_policy::affinity::{Action, MoveFile, Policy, Snapshot, Stay};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
pub(in crate::affinity) struct PlanReport<'a> {
    output_version: u32,
    source: String,
    policy: String,
    period_ns: u64,
    cost_before_bytes_per_s: u64,
    cost_after_bytes_per_s: u64,
    actions: Vec<ActionReport<'a>>,
    stays: Vec<StayReport<'a>>,
    files: Vec<FileReport>,
    conflicts: &'a [Conflict],
    cards: Vec<CardReport>,
    advice: &'a [Advice],
    unseen: &'a [Unseen],
}

/// A file of a pool that comes to its threads. Nothing moves it back.
#[derive(Serialize)]
pub(in crate::affinity) struct FileReport {
    /// Device number of the pool's mount.
    pool: String,
    inode: u64,
    to_node: u16,
    /// Bytes of it on other nodes.
    bytes: u64,
    threads: usize,
    reason: &'static str,
    reason_text: String,
    cost_before_bytes_per_s: u64,
    cost_after_bytes_per_s: u64,
    /// Outcome of the file's move, for `apply` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<OutcomeReport>,
}

#[derive(Serialize)]
pub(in crate::affinity) struct ActionReport<'a> {
    #[serde(flatten)]
    action: &'a Action,
    name: Option<String>,
    reason: &'static str,
    reason_text: String,
    /// Outcome of the action, for `apply` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<OutcomeReport>,
}

/// Outcome of an action or of a file's move.
#[derive(Serialize)]
struct OutcomeReport {
    code: &'static str,
    text: String,
    is_done: bool,
}

#[derive(Serialize)]
pub(in crate::affinity) struct StayReport<'a> {
    #[serde(flatten)]
    stay: &'a Stay,
    name: Option<String>,
    why: &'static str,
    why_text: String,
}

/// How a network card spreads packets over its queues; what its driver does not offer is null.
#[derive(Serialize)]
pub(in crate::affinity) struct CardReport {
    device: String,
    queues: Option<u32>,
    queues_max: Option<u32>,
    /// Number of RSS table entries by receive queue.
    rss_entries: BTreeMap<u32, usize>,
    ntuple_filters: Option<bool>,
}

pub(in crate::affinity) fn of(decided: &Decided, source: String, policy: Policy) -> PlanReport<'_> {
    let (snapshot, plan) = (&decided.sensed.snapshot, &decided.plan);
    let conflicts = &decided.conflicts;
    PlanReport {
        output_version: 1,
        source,
        policy: policy.to_string(),
        period_ns: snapshot.period_ns,
        cost_before_bytes_per_s: plan.cost_before.bytes_per_s(),
        cost_after_bytes_per_s: plan.cost_after.bytes_per_s(),
        actions: plan.actions.iter().map(|one| action(snapshot, one)).collect(),
        stays: plan.stays.iter().map(|one| stay(snapshot, conflicts, one)).collect(),
        files: plan.files.iter().map(file).collect(),
        conflicts,
        cards: decided.sensed.cards.iter().map(card).collect(),
        advice: &decided.advice,
        unseen: &decided.sensed.unseen,
    }
}

impl PlanReport<'_> {
    /// With what became of each action, and of each file.
    pub(in crate::affinity) fn with_outcomes(mut self, applied: &Applied, files: &[FileMoved]) -> Self {
        for (file, moved) in self.files.iter_mut().zip(files) {
            file.outcome = Some(OutcomeReport {
                code: if moved.is_ok() { "moved" } else { "refused" },
                text: moved_text(moved),
                is_done: moved.is_ok(),
            });
        }
        for (action, (_, outcome)) in self.actions.iter_mut().zip(&applied.outcomes) {
            action.outcome = Some(OutcomeReport {
                code: codes::of_outcome(outcome),
                text: outcome.to_string(),
                is_done: outcome.is_done(),
            });
        }
        self
    }
}

pub(in crate::affinity) fn card(card: &Card) -> CardReport {
    let queues = card.queues.as_ref();
    CardReport {
        device: card.device.clone(),
        queues: queues.map(|queues| queues.combined.now.max(queues.receive.now)),
        queues_max: queues.map(QueueCounts::max),
        rss_entries: card.shares(),
        ntuple_filters: card.filters,
    }
}

pub(in crate::affinity) fn action<'a>(snapshot: &Snapshot, action: &'a Action) -> ActionReport<'a> {
    ActionReport {
        action,
        name: name_alone(snapshot, &action.target),
        reason: codes::of_reason(&action.reason),
        reason_text: action.reason.to_string(),
        outcome: None,
    }
}

pub(in crate::affinity) fn file(one: &MoveFile) -> FileReport {
    let (major, minor) = one.file.pool;
    FileReport {
        pool: format!("{major}:{minor}"),
        inode: one.file.inode,
        to_node: one.to.0,
        bytes: one.bytes,
        threads: one.threads,
        reason: codes::of_file(one.reason),
        reason_text: one.to_string(),
        cost_before_bytes_per_s: one.cost_before.bytes_per_s(),
        cost_after_bytes_per_s: one.cost_after.bytes_per_s(),
        outcome: None,
    }
}

pub(in crate::affinity) fn stay<'a>(snapshot: &Snapshot, conflicts: &[Conflict], stay: &'a Stay) -> StayReport<'a> {
    let (why, _, why_text) = codes::of_stay(stay, conflicts);
    StayReport {
        stay,
        name: name_alone(snapshot, &stay.target),
        why,
        why_text,
    }
}
