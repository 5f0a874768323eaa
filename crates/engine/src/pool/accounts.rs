//! The access matrix: operations and bytes by (CPU's node, home).
//!
//! Counters are kept per slot, that is per thread: one writer each, so counting is a load and a store on a line that no
//! other thread writes. Cost: about 2 ns an operation.

use super::Machine;
use crate::{CpuId, MemberId, NodeId};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Bytes and operations from CPUs of one node to memory of one home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Node of the CPU that copied.
    pub from: NodeId,
    /// Home of the bytes.
    pub home: NodeId,
    /// Copies: an operation that meets two homes counts at both.
    pub operations: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

#[derive(Debug)]
pub(super) struct Accounts {
    nodes: Vec<NodeId>,
    /// Index into `nodes` by CPU. A power of two, so that masking finds a place without a check.
    cpu_nodes: Box<[u16; CPUS]>,
    /// Index into `nodes` by member.
    member_homes: Box<[AtomicU16; MemberId::LIMIT]>,
    /// By slot; made when a slot counts for the first time.
    slots: Box<[OnceLock<Box<[Cell]>>]>,
}

/// CPUs told apart; Linux has at most 8192.
const CPUS: usize = 8192;

/// A cache line of its own: its neighbours are other threads'.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    operations: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Accounts {
    pub(super) fn new(machine: &Machine, slots: usize) -> Self {
        let mut cpu_nodes = Box::new([0; CPUS]);
        for (index, node) in cpu_nodes.iter_mut().zip(&machine.cpu_nodes) {
            *index = index_of(&machine.nodes, *node);
        }
        Self {
            nodes: machine.nodes.clone(),
            cpu_nodes,
            member_homes: Box::new(std::array::from_fn(|_| AtomicU16::new(0))),
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
        }
    }

    pub(super) fn node_index(&self, node: NodeId) -> usize {
        usize::from(index_of(&self.nodes, node))
    }

    #[inline]
    fn cpu_index(&self, cpu: CpuId) -> usize {
        usize::from(self.cpu_nodes[cpu.0 as usize % CPUS])
    }

    #[inline]
    pub(super) fn cpu_node(&self, cpu: CpuId) -> NodeId {
        self.nodes[self.cpu_index(cpu)]
    }

    pub(super) fn set_home(&self, member: MemberId, home: NodeId) {
        // Relaxed: the member's blocks are published to other threads by locks that come later.
        self.member_homes[usize::from(member.0)].store(index_of(&self.nodes, home), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn home(&self, member: MemberId) -> NodeId {
        self.nodes[self.home_index(member)]
    }

    #[inline]
    fn home_index(&self, member: MemberId) -> usize {
        usize::from(self.member_homes[usize::from(member.0) % MemberId::LIMIT].load(Ordering::Relaxed))
    }

    /// Gives how often this slot has counted this cell.
    #[inline]
    pub(super) fn count(&self, slot: usize, cpu: CpuId, member: MemberId, direction: Direction, bytes: u64) -> u64 {
        let cells = self.slots[slot].get_or_init(|| {
            (0..self.nodes.len() * self.nodes.len())
                .map(|_| Cell::default())
                .collect()
        });
        let cell = &cells[self.cpu_index(cpu) * self.nodes.len() + self.home_index(member)];
        // Relaxed load and store: this slot's thread is the only writer; readers want a recent value, not an exact one.
        let add = |counter: &AtomicU64, by: u64| {
            let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
            counter.store(sum, Ordering::Relaxed);
            sum
        };
        match direction {
            Direction::Read => add(&cell.read_bytes, bytes),
            Direction::Write => add(&cell.written_bytes, bytes),
        };
        add(&cell.operations, 1)
    }

    /// The cells that counted anything.
    pub(super) fn accesses(&self) -> Vec<Access> {
        let count = self.nodes.len();
        // Few of the slots were ever used.
        let slots: Vec<_> = self.slots.iter().filter_map(OnceLock::get).collect();
        let sum = |index: usize, counter: fn(&Cell) -> &AtomicU64| -> u64 {
            slots
                .iter()
                .map(|cells| counter(&cells[index]).load(Ordering::Relaxed))
                .sum()
        };
        (0..count * count)
            .map(|index| Access {
                from: self.nodes[index / count],
                home: self.nodes[index % count],
                operations: sum(index, |cell| &cell.operations),
                read_bytes: sum(index, |cell| &cell.read_bytes),
                written_bytes: sum(index, |cell| &cell.written_bytes),
            })
            .filter(|access| access.operations > 0)
            .collect()
    }
}

/// A node that is not in the list (a CPU hot-added on a node that came after us) counts as the first.
fn index_of(nodes: &[NodeId], node: NodeId) -> u16 {
    nodes
        .iter()
        .position(|n| *n == node)
        .and_then(|i| u16::try_from(i).ok())
        .unwrap_or(0)
}
