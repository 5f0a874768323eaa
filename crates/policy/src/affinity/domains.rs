//! The CPUs that run, grouped by the cache they share.
//!
//! A domain is the CPUs of one node that share the largest cache which more than one core shares; those of a node that
//! has no such cache are one domain. CPUs and domains are counted from 0 here: CPUs ascending, domains by node and lowest
//! CPU.

use super::Snapshot;
use super::cost::{CACHE_PERCENT, Distances};
use crate::topology::{CacheKind, Topology};
use crate::{CpuId, NodeId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) node: NodeId,
    /// Indices of its CPUs, ascending.
    pub(super) cpus: Vec<usize>,
    /// Indices of the CPUs that interrupts may come to.
    pub(super) open: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Domains {
    /// The CPUs that run, ascending.
    cpus: Vec<CpuId>,
    domain_of: Vec<usize>,
    pub(super) domains: Vec<Domain>,
    pub(super) distances: Distances,
    /// Percent beyond a local access, from domain to domain.
    pub(super) apart: Vec<Vec<u64>>,
}

impl Domain {
    fn new(node: NodeId, cpus: Vec<usize>) -> Self {
        let open = cpus.clone();
        Self { node, cpus, open }
    }
}

impl Domains {
    pub(super) fn new(snapshot: &Snapshot) -> Self {
        let known = snapshot.online.iter().filter(|cpu| snapshot.node(**cpu).is_some());
        let cpus: Vec<CpuId> = known.copied().collect::<BTreeSet<_>>().into_iter().collect();
        let distances = Distances::new(&snapshot.topology);
        let mut domains = Vec::new();
        for node in snapshot.topology.node_ids() {
            let members = (0..cpus.len()).filter(|index| snapshot.node(cpus[*index]) == Some(node));
            split(&snapshot.topology, &cpus, node, members.collect(), &mut domains);
        }
        for domain in &mut domains {
            domain.open.retain(|index| !snapshot.isolated.contains(&cpus[*index]));
        }
        let mut domain_of = vec![0; cpus.len()];
        for (index, domain) in domains.iter().enumerate() {
            for cpu in &domain.cpus {
                domain_of[*cpu] = index;
            }
        }
        let between = |a: &Domain, b: &Domain| match (core::ptr::eq(a, b), a.node == b.node) {
            (true, _) => 0,
            (_, true) => CACHE_PERCENT,
            _ => distances.percent(a.node, b.node),
        };
        let row = |a| domains.iter().map(|b| between(a, b)).collect();
        let apart = domains.iter().map(row).collect();
        Self {
            cpus,
            domain_of,
            domains,
            distances,
            apart,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.domains.len()
    }

    pub(super) fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// Indices of the CPUs that interrupts may come to, ascending.
    pub(super) fn open(&self) -> Vec<usize> {
        let mut open: Vec<usize> = self.domains.iter().flat_map(|domain| &domain.open).copied().collect();
        open.sort_unstable();
        open
    }

    pub(super) fn domain(&self, cpu: usize) -> usize {
        self.domain_of[cpu]
    }

    pub(super) fn node(&self, cpu: usize) -> NodeId {
        self.domains[self.domain_of[cpu]].node
    }

    /// Returns the index of a CPU; none for a CPU that does not run.
    pub(super) fn index(&self, cpu: CpuId) -> Option<usize> {
        self.cpus.binary_search(&cpu).ok()
    }

    /// Returns the indices of the CPUs that run, ascending, each once.
    pub(super) fn indices(&self, cpus: &[CpuId]) -> Vec<usize> {
        let mut indices: Vec<usize> = cpus.iter().filter_map(|cpu| self.index(*cpu)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    }

    /// Groups CPUs by domain; no group is empty.
    pub(super) fn parts(&self, cpus: &[usize]) -> BTreeMap<usize, Vec<usize>> {
        // The CPUs of a domain need not follow each other.
        let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for cpu in cpus {
            parts.entry(self.domain(*cpu)).or_default().push(*cpu);
        }
        parts
    }

    pub(super) fn mask(&self, cpus: &[usize]) -> Vec<CpuId> {
        cpus.iter().map(|cpu| self.cpus[*cpu]).collect()
    }

    /// The mean distance between the CPUs of two sets; 0 when one is empty.
    pub(super) fn mean_apart(&self, a: &[usize], b: &[usize]) -> u64 {
        let pairs = a.iter().flat_map(|a| b.iter().map(|b| (*a, *b)));
        let sum: u64 = pairs
            .map(|(a, b)| self.apart[self.domain_of[a]][self.domain_of[b]])
            .sum();
        sum / (a.len() * b.len()).max(1) as u64
    }
}

/// Divides a node's CPUs among its largest shared caches.
fn split(topology: &Topology, cpus: &[CpuId], node: NodeId, mut left: Vec<usize>, domains: &mut Vec<Domain>) {
    let first = domains.len();
    let mut caches: Vec<_> = topology
        .caches()
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction)
        .collect();
    caches.sort_by_key(|cache| core::cmp::Reverse(cache.level));
    for cache in caches {
        let (inside, outside): (Vec<usize>, Vec<usize>) = left
            .iter()
            .partition(|cpu| cache.cpus.binary_search(&cpus[**cpu]).is_ok());
        if cores(topology, cpus, &inside) > 1 {
            domains.push(Domain::new(node, inside));
            left = outside;
        }
    }
    if !left.is_empty() {
        domains.push(Domain::new(node, left));
    }
    domains[first..].sort_by(|a, b| a.cpus.cmp(&b.cpus));
}

/// How many cores; a CPU whose core is not known is one of its own.
fn cores(topology: &Topology, cpus: &[CpuId], indices: &[usize]) -> usize {
    let all = topology.cpus();
    let core = |cpu: CpuId| {
        let found = all.binary_search_by_key(&cpu, |cpu| cpu.id).ok();
        found.and_then(|index| all[index].core)
    };
    let known: BTreeSet<_> = indices.iter().map(|cpu| core(cpus[*cpu]).ok_or(*cpu)).collect();
    known.len()
}
