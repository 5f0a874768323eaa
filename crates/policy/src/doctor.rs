//! Problems with the places of bytes, threads, interrupts and memory on a machine, and the gain of mending each.
//!
//! [`findings`] judges one period of a machine by its snapshot, the affinity plan for that snapshot, and [`Facts`].
//!
//! Invariants: the same machine, in whatever order its parts are listed, gives the same findings. Each finding is about
//! something that was counted or is set, and that moves bytes between nodes or costs time; a machine with one node has
//! findings about pools only. A thread or interrupt that the affinity plan leaves where it is because nowhere is better
//! is no finding.
//! Cost: a few passes over the snapshot.

mod devices;
mod facts;
mod memory;
mod problem;
mod queues;
mod settings;
mod threads;
mod words;

use crate::affinity::cost::{Cost, NS_PER_S};
use crate::affinity::{Plan, Snapshot};
use crate::{CpuId, NodeId};
use alloc::vec::Vec;
pub use facts::{Balancing, Facts, Helper, NodeMemory, Tmpfs, ZoneReclaim};
pub use problem::{Heap, Held, Mobility, Problem, Threads, Way};

/// Fewer interrupts a second keep a CPU busy for less than a thousandth of its time, and are nobody's load.
pub const ARRIVALS_PER_S_MIN: u64 = 100;
/// Smallest reported rate, in bytes a second; the default limit of the affinity plan is the same.
pub const RATE_BYTES_PER_S_MIN: u64 = 1 << 20;
/// Size of a page, the kernel's unit of memory counts.
pub const PAGE_BYTES: u64 = 4096;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The problem.
    pub problem: Problem,
    /// Cost that mending would save, where it can be told. Bytes of a thread are those of its queues too: gains do not
    /// add up.
    pub gain: Option<Cost>,
}

/// Summary of the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing can be remote.
    OneNode,
    /// There are several nodes, and nothing was found that could be nearer.
    AllLocal,
    /// Number of findings, and the cost that the affinity plan would save.
    Findings {
        /// Number of findings about nodes.
        count: usize,
        /// Cost that the whole plan would save.
        gain: Cost,
    },
}

/// Finds the problems, the largest gain first. Problems without a gain follow in this order: threads, devices, queues,
/// memory, settings, pools.
#[must_use]
pub fn findings(facts: &Facts, snapshot: &Snapshot, plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    if snapshot.topology.nodes().len() > 1 {
        let case = Case { facts, snapshot, plan };
        threads::find(&case, &mut findings);
        devices::find(&case, &mut findings);
        queues::find(&case, &mut findings);
        memory::find(&case, &mut findings);
        settings::find(&case, &mut findings);
    }
    settings::find_of_pools(facts, &mut findings);
    // A stable sort: what gains the same stays in the order it was found in.
    findings.sort_by_key(|finding| core::cmp::Reverse(finding.gain.unwrap_or_default()));
    findings
}

/// In short, what [`findings`] of the same period say.
#[must_use]
pub fn verdict(snapshot: &Snapshot, plan: &Plan, findings: &[Finding]) -> Verdict {
    let of_nodes = findings.iter().filter(|finding| finding.problem.is_of_nodes());
    match (snapshot.topology.nodes().len(), of_nodes.count()) {
        (..=1, _) => Verdict::OneNode,
        (_, 0) => Verdict::AllLocal,
        (_, count) => Verdict::Findings {
            count,
            gain: plan.cost_before.beyond(plan.cost_after),
        },
    }
}

/// All that is known of a machine.
struct Case<'a> {
    facts: &'a Facts,
    snapshot: &'a Snapshot,
    plan: &'a Plan,
}

impl Case<'_> {
    fn per_second(&self, count: u64) -> u64 {
        let a_second = u128::from(count) * u128::from(NS_PER_S) / u128::from(self.snapshot.period_ns.max(1));
        u64::try_from(a_second).unwrap_or(u64::MAX)
    }

    fn node(&self, cpu: CpuId) -> Option<NodeId> {
        self.snapshot.node(cpu)
    }

    /// CPU time of threads in the period, of those that ran last on a node that is asked for.
    fn cpu_ns(&self, wanted: impl Fn(NodeId) -> bool) -> u64 {
        let threads = self.snapshot.threads.iter();
        let there = threads.filter(|thread| self.node(thread.cpu).is_some_and(&wanted));
        there.fold(0, |sum: u64, thread| sum.saturating_add(thread.cpu_ns))
    }

    /// CPUs of a node that run, ascending.
    fn running(&self, node: NodeId) -> Vec<CpuId> {
        let online = self.snapshot.online.iter().copied();
        online.filter(|cpu| self.node(*cpu) == Some(node)).collect()
    }

    /// Nodes that have CPUs which run.
    fn nodes_with_cpus(&self) -> usize {
        let mut nodes: Vec<NodeId> = self.snapshot.online.iter().filter_map(|cpu| self.node(*cpu)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }
}

fn finding(problem: Problem) -> Finding {
    Finding { problem, gain: None }
}
