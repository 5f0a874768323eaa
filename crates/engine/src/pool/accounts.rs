//! The access matrix: operations and bytes by (CPU's node, home).
//!
//! Counters are kept per slot, that is per thread: one writer each, so counting is a load and a store on a line that no
//! other thread writes. Each slot has a favourite, the CPU and the member it works with, which it finds by one comparison;
//! finding the cell by nodes takes three times the instructions, and a small copy has none to spare.

use super::{Machine, SLOTS};
use crate::{CpuId, MemberId, NodeId};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Bytes and operations from CPUs of one node to memory of one home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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
    /// Favourite of each slot: the CPU and member that the slot counts most, in few instructions.
    favourites: Box<[Favourite]>,
    /// Cells of each slot; made when the slot counts anything but its favourite for the first time.
    slots: Box<[OnceLock<Box<[Cell]>>]>,
    /// Held by whoever changes a favourite, and by whoever adds all up.
    changing: Mutex<()>,
}

/// CPUs told apart; Linux has at most 8192.
const CPUS: usize = 8192;

#[derive(Debug, Default)]
struct Counters {
    operations: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// A cache line of its own: its neighbours are other threads'.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell(Counters);

/// Counters of one CPU and one member, found by one comparison. Earlier counts are in the cell of their nodes.
/// Two cache lines, because adjacent lines are prefetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Favourite {
    /// See [`Favourite::pair`].
    pair: AtomicU64,
    counters: Counters,
}

/// Every so many operations that a slot counts elsewhere, what it counts then becomes its favourite.
const CHANGE_AFTER: u64 = 64;

impl Accounts {
    pub(super) fn new(machine: &Machine) -> Self {
        let mut cpu_nodes = Box::new([0; CPUS]);
        for (index, node) in cpu_nodes.iter_mut().zip(&machine.cpu_nodes) {
            *index = index_of(&machine.nodes, *node);
        }
        Self {
            nodes: machine.nodes.clone(),
            cpu_nodes,
            member_homes: Box::new(std::array::from_fn(|_| AtomicU16::new(0))),
            favourites: (0..SLOTS).map(|_| Favourite::default()).collect(),
            slots: (0..SLOTS).map(|_| OnceLock::new()).collect(),
            changing: Mutex::new(()),
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

    /// Counts one operation; gives how many this slot has counted with it, or lately.
    #[inline(always)]
    pub(super) fn count(&self, slot: usize, cpu: CpuId, member: MemberId, direction: Direction, bytes: u64) -> u64 {
        let favourite = &self.favourites[slot];
        // Relaxed, as all here: only this slot's thread writes; readers want a recent value, not an exact one.
        if favourite.pair.load(Ordering::Relaxed) == Favourite::pair(cpu, member) {
            favourite.counters.count(direction, bytes)
        } else {
            self.count_elsewhere(slot, cpu, member, direction, bytes)
        }
    }

    #[inline(never)]
    fn count_elsewhere(&self, slot: usize, cpu: CpuId, member: MemberId, direction: Direction, bytes: u64) -> u64 {
        let operations = self.counters(slot, cpu, member).count(direction, bytes);
        if operations % CHANGE_AFTER == 1 {
            self.change_favourite(slot, Favourite::pair(cpu, member));
        }
        operations
    }

    /// Returns a slot's counters for the node of `cpu` and the home of `member`.
    fn counters(&self, slot: usize, cpu: CpuId, member: MemberId) -> &Counters {
        let cells = self.slots[slot].get_or_init(|| {
            (0..self.nodes.len() * self.nodes.len())
                .map(|_| Cell::default())
                .collect()
        });
        &cells[self.cpu_index(cpu) * self.nodes.len() + self.home_index(member)].0
    }

    /// Moves what was counted to where it belongs, and starts anew for `pair`.
    fn change_favourite(&self, slot: usize, pair: u64) {
        let favourite = &self.favourites[slot];
        let before = favourite.pair.load(Ordering::Relaxed);
        let _adding_up_sees_it_once = self.changing.lock();
        if before != Favourite::NONE {
            let (cpu, member) = Favourite::parts(before);
            favourite.counters.move_to(self.counters(slot, cpu, member));
        }
        favourite.pair.store(pair, Ordering::Relaxed);
    }

    /// All nodes, in the order in which bytes are told by home.
    pub(super) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Adds to `sums`, by home, the bytes that a slot's thread has copied on CPUs of the node of `cpu`. Exact for that thread itself.
    pub(super) fn add_homes_from(&self, slot: usize, cpu: CpuId, sums: &mut [u64]) {
        let row = self.cpu_index(cpu) * self.nodes.len();
        if let Some(cells) = self.slots[slot].get() {
            for (cell, sum) in cells[row..].iter().zip(&mut *sums) {
                *sum += cell.0.bytes();
            }
        }
        let favourite = &self.favourites[slot];
        let pair = favourite.pair.load(Ordering::Relaxed);
        let (of, member) = Favourite::parts(pair);
        if pair != Favourite::NONE && self.cpu_index(of) * self.nodes.len() == row {
            sums[self.home_index(member)] += favourite.counters.bytes();
        }
    }

    /// Bytes that the threads of a slot have copied so far, by home. For any thread.
    pub(super) fn homes(&self, slot: usize) -> Vec<u64> {
        let count = self.nodes.len();
        let mut sums = vec![0; count];
        let _no_favourite_changes = self.changing.lock();
        for (index, cell) in self.slots[slot].get().into_iter().flatten().enumerate() {
            sums[index % count] += cell.0.bytes();
        }
        let favourite = &self.favourites[slot];
        let pair = favourite.pair.load(Ordering::Relaxed);
        if pair != Favourite::NONE {
            sums[self.home_index(Favourite::parts(pair).1)] += favourite.counters.bytes();
        }
        sums
    }

    /// The cells that counted anything.
    pub(super) fn accesses(&self) -> Vec<Access> {
        let count = self.nodes.len();
        let totals: Vec<Counters> = (0..count * count).map(|_| Counters::default()).collect();
        let _no_favourite_changes = self.changing.lock();
        // Few of the slots were ever used.
        for cells in self.slots.iter().filter_map(OnceLock::get) {
            cells.iter().zip(&totals).for_each(|(cell, total)| cell.0.add_to(total));
        }
        for favourite in &self.favourites {
            let pair = favourite.pair.load(Ordering::Relaxed);
            if pair != Favourite::NONE {
                let (cpu, member) = Favourite::parts(pair);
                favourite
                    .counters
                    .add_to(&totals[self.cpu_index(cpu) * count + self.home_index(member)]);
            }
        }
        let access = |(index, total): (usize, Counters)| Access {
            from: self.nodes[index / count],
            home: self.nodes[index % count],
            operations: total.operations.into_inner(),
            read_bytes: total.read_bytes.into_inner(),
            written_bytes: total.written_bytes.into_inner(),
        };
        let all = totals.into_iter().enumerate().map(access);
        all.filter(|access| access.operations > 0).collect()
    }
}

impl Favourite {
    /// No pair of a CPU and a member.
    const NONE: u64 = u64::MAX;

    #[inline]
    fn pair(cpu: CpuId, member: MemberId) -> u64 {
        u64::from(member.0) << 32 | u64::from(cpu.0)
    }

    #[allow(clippy::cast_possible_truncation, reason = "what `pair` put together")]
    fn parts(pair: u64) -> (CpuId, MemberId) {
        (CpuId(pair as u32), MemberId((pair >> 32) as u16))
    }
}

impl Default for Favourite {
    fn default() -> Self {
        Self {
            pair: AtomicU64::new(Self::NONE),
            counters: Counters::default(),
        }
    }
}

impl Counters {
    /// For the slot's thread. Gives the operations counted.
    #[inline(always)]
    fn count(&self, direction: Direction, bytes: u64) -> u64 {
        match direction {
            Direction::Read => add(&self.read_bytes, bytes),
            Direction::Write => add(&self.written_bytes, bytes),
        };
        add(&self.operations, 1)
    }

    fn bytes(&self) -> u64 {
        let read = self.read_bytes.load(Ordering::Relaxed);
        read.wrapping_add(self.written_bytes.load(Ordering::Relaxed))
    }

    fn add_to(&self, other: &Self) {
        add(&other.operations, self.operations.load(Ordering::Relaxed));
        add(&other.read_bytes, self.read_bytes.load(Ordering::Relaxed));
        add(&other.written_bytes, self.written_bytes.load(Ordering::Relaxed));
    }

    fn move_to(&self, other: &Self) {
        self.add_to(other);
        for counter in [&self.operations, &self.read_bytes, &self.written_bytes] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// A load and a store: no other thread writes.
#[inline]
fn add(counter: &AtomicU64, by: u64) -> u64 {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
    counter.store(sum, Ordering::Relaxed);
    sum
}

/// A node that is not in the list (a CPU hot-added on a node that came after us) counts as the first.
fn index_of(nodes: &[NodeId], node: NodeId) -> u16 {
    nodes
        .iter()
        .position(|n| *n == node)
        .and_then(|i| u16::try_from(i).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(4)];

    /// Six CPUs, two on each node.
    fn accounts() -> Accounts {
        let machine = Machine {
            cpu_nodes: (0..6).map(|cpu| NODES[cpu / 2]).collect(),
            nodes: NODES.to_vec(),
            latency: vec![vec![10; 3]; 3],
            files_max: 1,
        };
        let accounts = Accounts::new(&machine);
        for member in 0..4 {
            accounts.set_home(MemberId(member), NODES[usize::from(member) % 3]);
        }
        accounts
    }

    #[test]
    fn accounts_lose_nothing_and_count_nothing_twice() {
        let accounts = accounts();
        let mut model = BTreeMap::new();
        let mut homes = [(); 4].map(|()| vec![0; 3]);
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..20_000_u64 {
            // Now one pair for long, now another each time.
            let same = round / 500 % 2 == 0;
            let cpu = if same { round / 1000 % 6 } else { random.u64(..6) };
            let member = if same { 1 } else { random.u16(..4) };
            let (slot, bytes) = (random.usize(..4), random.u64(..9000));
            homes[slot][usize::from(member) % 3] += bytes;
            let direction = if random.bool() {
                Direction::Read
            } else {
                Direction::Write
            };
            let cpu = CpuId(u32::try_from(cpu).expect("six CPUs"));
            let from = || {
                let mut sums = [0; 3];
                accounts.add_homes_from(slot, cpu, &mut sums);
                sums
            };
            let mut expected = from();
            accounts.count(slot, cpu, MemberId(member), direction, bytes);
            expected[usize::from(member) % 3] += bytes;
            assert_eq!(from(), expected, "the thread sees its own copies");
            let pair = (NODES[cpu.0 as usize / 2], NODES[usize::from(member) % 3]);
            let (operations, read, written) = model.entry(pair).or_insert((0, 0, 0));
            *operations += 1;
            *(if direction == Direction::Read { read } else { written }) += bytes;
            if round.is_multiple_of(997) || round == 19_999 {
                let found = accounts.accesses();
                let found = found.iter().map(|access| {
                    let counters = (access.operations, access.read_bytes, access.written_bytes);
                    ((access.from, access.home), counters)
                });
                assert_eq!(found.collect::<BTreeMap<_, _>>(), model);
                assert_eq!([0, 1, 2, 3].map(|slot| accounts.homes(slot)), homes);
            }
        }
    }

    #[test]
    fn a_slot_that_works_elsewhere_changes_its_favourite() {
        let accounts = accounts();
        let favourite = || accounts.favourites[2].pair.load(Ordering::Relaxed);
        for cpu in [0, 5] {
            for _ in 0..=CHANGE_AFTER {
                accounts.count(2, CpuId(cpu), MemberId(3), Direction::Read, 1);
            }
            assert_eq!(favourite(), Favourite::pair(CpuId(cpu), MemberId(3)));
        }
    }
}
