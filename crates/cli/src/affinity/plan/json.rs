//! The plan as JSON, `output_version` 1, and what became of it. Costs are in bytes a second that travel as far again as a
//! local access.

use super::{Decided, codes};
use crate::affinity::pools::{FileMoved, moved_text};
use crate::affinity::words::{UnseenReport, name_alone, unseen_reports};
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_linux::affinity::act::{Applied, CardOutcome, CardSetting};
use homenode_linux::affinity::{Card, QueueCounts};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Action, MoveFile, Policy, Snapshot, Stay, Target};
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
    actions: Vec<ActionReport>,
    stays: Vec<StayReport>,
    files: Vec<FileReport>,
    conflicts: Vec<ConflictReport>,
    cards: Vec<CardReport>,
    unseen: Vec<UnseenReport<'a>>,
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
pub(in crate::affinity) struct ActionReport {
    target: TargetReport,
    name: Option<String>,
    from: Vec<u32>,
    to: Vec<u32>,
    reason: &'static str,
    reason_text: String,
    cost_before_bytes_per_s: u64,
    cost_after_bytes_per_s: u64,
    /// Outcome of the action, for `apply` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<OutcomeReport>,
}

/// Outcome of an action, a file's move or a card's setting.
#[derive(Serialize)]
struct OutcomeReport {
    code: &'static str,
    text: String,
    is_done: bool,
}

/// Setting of a card that the configuration asks for, with its outcome.
#[derive(Serialize)]
pub(in crate::affinity) struct ArrangedReport {
    what: String,
    #[serde(flatten)]
    outcome: OutcomeReport,
}

#[derive(Serialize)]
pub(in crate::affinity) struct StayReport {
    target: TargetReport,
    name: Option<String>,
    why: &'static str,
    why_text: String,
    cost_bytes_per_s: u64,
}

/// Thread, interrupt or queue, by its kind.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(in crate::affinity) enum TargetReport {
    Thread {
        process: u32,
        thread: u32,
        started: u64,
    },
    Interrupt {
        number: u32,
    },
    /// Only told of, by `explain`: nobody can change its CPUs.
    Block {
        device: String,
        index: u32,
    },
    Transmit {
        device: String,
        index: u32,
    },
    Receive {
        device: String,
        index: u32,
    },
}

/// Another program that sets the same.
#[derive(Serialize)]
pub(in crate::affinity) struct ConflictReport {
    what: String,
    effect: String,
    remedy: String,
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
        conflicts: conflict_reports(conflicts),
        cards: decided.sensed.cards.iter().map(card).collect(),
        unseen: unseen_reports(&decided.sensed.unseen),
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

pub(in crate::affinity) fn arranged((setting, outcome): &(CardSetting, CardOutcome)) -> ArrangedReport {
    ArrangedReport {
        what: setting.to_string(),
        outcome: OutcomeReport {
            code: codes::of_card_outcome(outcome),
            text: outcome.to_string(),
            is_done: outcome.is_done(),
        },
    }
}

pub(in crate::affinity) fn conflict_reports(conflicts: &[Conflict]) -> Vec<ConflictReport> {
    let reports = conflicts.iter().map(|one| ConflictReport {
        what: one.what.clone(),
        effect: one.effect.clone(),
        remedy: one.remedy.clone(),
    });
    reports.collect()
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

pub(in crate::affinity) fn action(snapshot: &Snapshot, action: &Action) -> ActionReport {
    ActionReport {
        target: target(&action.target),
        name: name_alone(snapshot, &action.target),
        from: numbers(&action.from),
        to: numbers(&action.to),
        reason: codes::of_reason(&action.reason),
        reason_text: action.reason.to_string(),
        cost_before_bytes_per_s: action.cost_before.bytes_per_s(),
        cost_after_bytes_per_s: action.cost_after.bytes_per_s(),
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

pub(in crate::affinity) fn stay(snapshot: &Snapshot, conflicts: &[Conflict], stay: &Stay) -> StayReport {
    let (why, _, why_text) = codes::of_stay(stay, conflicts);
    StayReport {
        target: target(&stay.target),
        name: name_alone(snapshot, &stay.target),
        why,
        why_text,
        cost_bytes_per_s: stay.cost.bytes_per_s(),
    }
}

pub(in crate::affinity) fn target(target: &Target) -> TargetReport {
    match target {
        Target::Thread(id) => TargetReport::Thread {
            process: id.process,
            thread: id.thread,
            started: id.started,
        },
        Target::Interrupt(number) => TargetReport::Interrupt { number: *number },
        Target::Transmit { device, index } => TargetReport::Transmit {
            device: device.clone(),
            index: *index,
        },
        Target::Receive { device, index } => TargetReport::Receive {
            device: device.clone(),
            index: *index,
        },
    }
}

pub(in crate::affinity) fn numbers(cpus: &[CpuId]) -> Vec<u32> {
    cpus.iter().map(|cpu| cpu.0).collect()
}
