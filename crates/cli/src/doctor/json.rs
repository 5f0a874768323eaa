//! Findings of the doctor as JSON, `output_version` 1.

use super::{Judged, remedy};
use crate::bodies::{Answers, answers};
use crate::topology::machine;
use homenode_linux::affinity::Unseen;
use homenode_policy::affinity::Cost;
use homenode_policy::doctor::{Finding, NodeMemory, Verdict};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    output_version: u32,
    /// `one-node` and `all-local`: there is nothing to gain here.
    verdict: &'static str,
    /// Cost in MB/s that `homenode affinity apply` would save.
    gain_mb_s: f64,
    period_s: f64,
    machine: MachineReport<'a>,
    /// Threads of which it is not known what they do.
    threads_unread: usize,
    findings: Vec<FindingReport>,
    /// Facts about what is mounted here, with nothing to mend.
    notices: &'a [String],
    /// Operations that files, volumes and other inodes support, as `homenode status --json` prints them.
    bodies: Answers,
    unseen: &'a [Unseen],
}

#[derive(Serialize)]
struct MachineReport<'a> {
    kernel: Option<&'a str>,
    is_virtual: Option<bool>,
    memory: &'a [NodeMemory],
    /// Topology, as `homenode topology --json` prints it.
    topology: crate::topology::Machine<'a>,
}

#[derive(Serialize)]
struct FindingReport {
    kind: &'static str,
    object: String,
    detail: String,
    benefit: &'static str,
    gain_mb_s: Option<f64>,
    command: String,
    /// Whether it is about several nodes; else it is about pools on any machine.
    is_of_nodes: bool,
}

pub(super) fn of(judged: &Judged) -> Report<'_> {
    let examined = &judged.examined;
    let sensed = &examined.sensed;
    Report {
        output_version: 1,
        verdict: match judged.verdict {
            Verdict::OneNode => "one-node",
            Verdict::AllLocal => "all-local",
            Verdict::Findings { .. } => "findings",
        },
        gain_mb_s: match judged.verdict {
            Verdict::Findings { gain, .. } => megabytes(gain),
            Verdict::OneNode | Verdict::AllLocal => 0.0,
        },
        period_s: sensed.snapshot.period_ns as f64 / 1e9,
        machine: MachineReport {
            kernel: examined.kernel.as_deref(),
            is_virtual: examined.is_virtual,
            memory: &examined.facts.memory,
            topology: machine(&sensed.snapshot.topology, &judged.source),
        },
        threads_unread: judged.unread(),
        findings: judged.findings.iter().map(|one| finding(judged, one)).collect(),
        notices: &judged.notices,
        bodies: answers(),
        unseen: &sensed.unseen,
    }
}

fn finding(judged: &Judged, finding: &Finding) -> FindingReport {
    let problem = &finding.problem;
    FindingReport {
        kind: problem.kind(),
        object: problem.object(),
        detail: problem.to_string(),
        benefit: problem.benefit(),
        gain_mb_s: finding.gain.map(megabytes),
        command: remedy::command(judged, problem),
        is_of_nodes: problem.is_of_nodes(),
    }
}

/// To a tenth, as it is told to a person.
fn megabytes(cost: Cost) -> f64 {
    (cost.bytes_per_s() / 100_000) as f64 / 10.0
}
