//! Doctor's report for a person: the verdict, the machine, the findings, and the data that could not be seen.

use super::{Judged, remedy};
use crate::affinity::words::{count, plain, seconds, unseen};
use crate::topology::{described, human_bytes};
use homenode_policy::doctor::{Finding, NodeMemory, Verdict};
use std::fmt::Write as _;

pub(super) fn of(judged: &Judged) -> String {
    let sensed = &judged.examined.sensed;
    let mut text = first_line(judged) + "\n\n";
    text += &described(&sensed.snapshot.topology, &judged.source);
    text += &memory(&judged.examined.facts.memory);
    text += &circumstances(judged);
    let (of_nodes, of_pools): (Vec<&Finding>, Vec<&Finding>) = judged
        .findings
        .iter()
        .partition(|finding| finding.problem.is_of_nodes());
    if of_nodes.iter().filter(|finding| finding.gain.is_some()).count() > 1 {
        text += "Gains of findings do not add up: threads and their queues carry the same bytes.\n";
    }
    for (number, finding) in of_nodes.iter().enumerate() {
        let _ = write!(text, "\n{}. ", number + 1);
        text += &told(judged, finding);
    }
    if !of_pools.is_empty() {
        text += "\nFor pools of homenode on this machine:\n";
    }
    for finding in of_pools {
        text += "\n-  ";
        text += &told(judged, finding);
    }
    for notice in &judged.notices {
        let _ = writeln!(text, "\nNote: {}", plain(notice));
    }
    if !sensed.unseen.is_empty() {
        text += "\n";
    }
    text + &unseen(&sensed.unseen)
}

fn first_line(judged: &Judged) -> String {
    let partly = match judged.examined.sensed.unseen.len() {
        0 => "",
        _ => " (some data could not be read: see the end)",
    };
    match judged.verdict {
        Verdict::OneNode => "nothing to gain here: there is one node, so all memory is local to all CPUs".to_owned(),
        Verdict::AllLocal => {
            let period = seconds(judged.examined.sensed.snapshot.period_ns);
            format!("nothing to gain here: in {period} all was local, or could not be nearer{partly}")
        }
        Verdict::Findings { count, gain } => {
            let findings = if count == 1 {
                "1 finding".to_owned()
            } else {
                format!("{count} findings")
            };
            match gain.bytes_per_s() {
                0 => format!("{findings}; the affinity plan has nothing to move"),
                _ => format!(
                    "{findings}; the affinity plan would keep {gain} on their node; for other loads: homenode affinity record DIR, then homenode simulate --from DIR"
                ),
            }
        }
    }
}

/// A line a node, to the right of each other what is free and what is used by whom.
fn memory(nodes: &[NodeMemory]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{:<10}{:>12}{:>12}{:>12}{:>12}\n",
        "memory", "all", "free", "page cache", "tmpfs"
    );
    for node in nodes {
        let name = format!("  {}", node.node);
        let cells = [node.bytes, node.free_bytes, node.cache_bytes, node.tmpfs_bytes].map(human_bytes);
        let [all, free, cache, tmpfs] = cells;
        let _ = writeln!(text, "{name:<10}{all:>12}{free:>12}{cache:>12}{tmpfs:>12}");
    }
    text
}

fn circumstances(judged: &Judged) -> String {
    let examined = &judged.examined;
    let kernel = examined
        .kernel
        .as_ref()
        .map_or("unknown kernel".to_owned(), |kernel| format!("Linux {}", plain(kernel)));
    let machine = match examined.is_virtual {
        Some(true) => ", a virtual machine",
        Some(false) => ", no virtual machine",
        None => "",
    };
    let snapshot = &examined.sensed.snapshot;
    let threads = count(snapshot.threads.len(), "thread");
    let period = seconds(snapshot.period_ns);
    let unread = match judged.unread() {
        0 => String::new(),
        number => format!("; bytes of {number} not readable (not root, or the kernel does not count them)"),
    };
    format!("{kernel}{machine}; looked at for {period}, {threads} ran{unread}\n")
}

/// Describes a finding: the problem, its gain if mended, and the command.
fn told(judged: &Judged, finding: &Finding) -> String {
    let problem = &finding.problem;
    let gain = match finding.gain {
        Some(gain) if gain.bytes_per_s() > 0 => format!("brings {gain}: "),
        _ => "brings: ".to_owned(),
    };
    format!(
        "{}: {}\n   {gain}{}\n   {}\n",
        plain(&problem.object()),
        plain(&problem.to_string()),
        problem.benefit(),
        plain(&remedy::command(judged, problem))
    )
}
