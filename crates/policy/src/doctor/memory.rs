//! Memory: nodes that are full, empty or without CPUs, and what lies on one node while threads of others run.

use super::{Case, Finding, Heap, NodeMemory, PAGE_BYTES, Problem, RATE_BYTES_PER_S_MIN, Tmpfs, finding};
use crate::NodeId;
use crate::affinity::cost::NS_PER_S;
use crate::topology::NodeKind;
use alloc::vec::Vec;

/// Memory of one kind is told of when it fills this share of its node: less is what any system has from its start.
const HEAP_OF_NODE_PERCENT_MIN: u64 = 10;
/// Threads of other nodes run when they take this share of all CPU time.
const ELSEWHERE_PERCENT_MIN: u64 = 10;
/// A node's CPUs are used when threads keep one of them busy for this share.
const BUSY_PERCENT_MIN: u64 = 5;
/// A node without CPUs is used when this share of its memory is.
const USED_PERCENT_MIN: u64 = 10;
/// A mount is told when it holds at least such a part of what lies on the node.
const MOUNT_PART: u64 = 4;
/// Mounts that are told.
const MOUNTS_MAX: usize = 3;

pub(super) fn find(case: &Case<'_>, findings: &mut Vec<Finding>) {
    heaps(case, findings);
    full(case, findings);
    placed_far(case, findings);
    incomplete_nodes(case, findings);
}

fn heaps(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let cache = heap(case, |memory| memory.cache_bytes);
    findings.extend(cache.map(|heap| finding(Problem::CacheOnOneNode(heap))));
    let Some(heap) = heap(case, |memory| memory.tmpfs_bytes) else {
        return;
    };
    // One that spreads its pages is not why, nor is one that holds little: databases and pools have memory of that kind, too.
    let here = |mount: &&Tmpfs| {
        let mode = mount.policy.split([':', '=']).next().unwrap_or_default();
        !mode.contains("interleave") && mount.used_bytes >= heap.bytes / MOUNT_PART
    };
    let mounts = case.facts.tmpfs.iter().filter(here).take(MOUNTS_MAX).cloned().collect();
    findings.push(finding(Problem::TmpfsOnOneNode { heap, mounts }));
}

/// The node that has most of it, if that is far more than its share, the others could hold it, and threads run there.
fn heap(case: &Case<'_>, bytes: impl Fn(&NodeMemory) -> u64) -> Option<Heap> {
    let with_cpus = |memory: &&NodeMemory| !case.running(memory.node).is_empty() && memory.bytes > 0;
    let nodes: Vec<&NodeMemory> = case.facts.memory.iter().filter(with_cpus).collect();
    let sum =
        |count: &dyn Fn(&NodeMemory) -> u64| nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(count(node)));
    let most = nodes.iter().rev().max_by_key(|node| bytes(node))?;
    let (all, here) = (sum(&bytes), bytes(most));
    let percent = here.saturating_mul(100) / all.max(1);
    // Halfway between an equal share and all of it: 75 % of two nodes, 62 % of four.
    let equal = 100 / nodes.len() as u64;
    let free_elsewhere_bytes = sum(&|node| if node.node == most.node { 0 } else { node.free_bytes });
    let is_heap = nodes.len() > 1
        && percent >= equal + (100 - equal) / 2
        && here.saturating_mul(100) >= most.bytes.saturating_mul(HEAP_OF_NODE_PERCENT_MIN)
        && free_elsewhere_bytes >= here / 2;
    let elsewhere_ns = case.cpu_ns(|node| node != most.node);
    let used = elsewhere_ns.saturating_mul(100) >= case.cpu_ns(|_| true).saturating_mul(ELSEWHERE_PERCENT_MIN);
    (is_heap && elsewhere_ns > 0 && used).then_some(Heap {
        node: most.node,
        bytes: here,
        percent,
        free_elsewhere_bytes,
    })
}

fn is_much(case: &Case<'_>, pages: u64) -> bool {
    case.per_second(pages.saturating_mul(PAGE_BYTES)) >= RATE_BYTES_PER_S_MIN
}

fn full(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let largest_bytes = case.facts.memory.iter().map(|memory| memory.bytes).max().unwrap_or(0);
    for memory in &case.facts.memory {
        if is_much(case, memory.foreign_pages) {
            let others = case.facts.memory.iter();
            let gave = others.filter(|other| other.node != memory.node && other.missed_pages > 0);
            findings.push(finding(Problem::NodeFull {
                node: memory.node,
                bytes: memory.bytes,
                largest_bytes,
                pages: memory.foreign_pages,
                from: gave.map(|other| other.node).collect(),
            }));
        }
    }
}

/// Finds memory that a policy or a driver put on another node than the node of the CPU that asked. Pages that a full
/// node was asked for, and interleaved pages, do not count. CPUs of a node without memory have no choice: a machine
/// with such a node has no finding.
fn placed_far(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let nodes = case.snapshot.topology.nodes();
    if nodes.iter().any(|node| node.kind() == NodeKind::CpuOnly) {
        return;
    }
    let far = |memory: &NodeMemory| {
        let explained = memory.missed_pages.saturating_add(memory.interleaved_pages);
        let pages = memory.other_pages.saturating_sub(explained);
        is_much(case, pages).then_some((memory.node, pages))
    };
    let found: Vec<(NodeId, u64)> = case.facts.memory.iter().filter_map(far).collect();
    if !found.is_empty() {
        findings.push(finding(Problem::PlacedFar {
            nodes: found.iter().map(|(node, _)| *node).collect(),
            pages: found.iter().fold(0, |sum: u64, (_, pages)| sum.saturating_add(*pages)),
            balanced: case.facts.balancing.is_none_or(|balancing| balancing.on),
        }));
    }
}

fn incomplete_nodes(case: &Case<'_>, findings: &mut Vec<Finding>) {
    for node in case.snapshot.topology.nodes() {
        match node.kind() {
            NodeKind::CpuOnly => {
                let busy_ns = case.per_second(case.cpu_ns(|at| at == node.id));
                let busy_percent = busy_ns / (NS_PER_S / 100);
                if busy_percent >= BUSY_PERCENT_MIN {
                    let node = node.id;
                    findings.push(finding(Problem::NoMemory { node, busy_percent }));
                }
            }
            NodeKind::MemoryOnly => findings.extend(used_far(case, node.id)),
            NodeKind::Dram | NodeKind::Empty => {}
        }
    }
}

fn used_far(case: &Case<'_>, node: NodeId) -> Option<Finding> {
    let memory = case.facts.memory.iter().find(|memory| memory.node == node)?;
    let used_bytes = memory.bytes.saturating_sub(memory.free_bytes);
    let is_used = used_bytes.saturating_mul(100) >= memory.bytes.saturating_mul(USED_PERCENT_MIN);
    (is_used && used_bytes > 0).then(|| finding(Problem::NoCpus { node, used_bytes }))
}
