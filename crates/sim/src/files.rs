//! Where blocks of files lie: for Homenode by the monitor and the space manager, for tmpfs by the kernel's rules.

use crate::constants::Costs;
use crate::{Drawn, Machine};
use homenode_policy::pool::{Buddy, Monitor, Thresholds};
use homenode_policy::{BLOCK_BYTES, MemberId, NodeId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// Blocks that a core takes from the space manager at once: 2 MiB, as the engine does.
const GRANT_BLOCKS: u64 = 512;
/// Blocks of a huge page: 2 MiB.
const HUGE_BLOCKS: u64 = 512;
/// Share of a node's memory that files may take.
const SHARE_PERCENT: u64 = 80;

/// A filesystem, and how the load uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contestant {
    /// A stock tmpfs; one thread reserves all files first, as fio does unless told otherwise.
    TmpfsReserved,
    /// A stock tmpfs; each thread's writes allocate.
    Tmpfs,
    /// A tmpfs in huge pages: the first write to each 2 MiB places them all. A node without a whole huge page is full.
    TmpfsHuge,
    /// The page cache of a disk's filesystem, as if nothing had to be written back.
    PageCache,
    /// A FUSE server whose threads and memory are on the first core's node.
    Fuse,
    /// Homenode's mount, with files of the kernel.
    Mount,
    /// Homenode's library.
    Library,
}

impl Contestant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::TmpfsReserved,
        Self::Tmpfs,
        Self::TmpfsHuge,
        Self::PageCache,
        Self::Fuse,
        Self::Mount,
        Self::Library,
    ];
    /// The paper's stock tmpfs, and Homenode.
    pub const OF_PAPER: [Self; 4] = [Self::TmpfsReserved, Self::Tmpfs, Self::Mount, Self::Library];

    /// Its name in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TmpfsReserved => "tmpfs, files reserved by one thread",
            Self::Tmpfs => "tmpfs",
            Self::TmpfsHuge => "tmpfs, huge pages",
            Self::PageCache => "page cache",
            Self::Fuse => "FUSE server on one node",
            Self::Mount => "Homenode mount",
            Self::Library => "Homenode library",
        }
    }

    /// Costs of its operations.
    #[must_use]
    pub fn costs(self, drawn: &Drawn) -> Costs<f64> {
        match self {
            Self::TmpfsReserved | Self::Tmpfs => drawn.tmpfs,
            Self::PageCache => Costs {
                first_ns: drawn.tmpfs.first_ns,
                ..drawn.page_cache
            },
            Self::Fuse => drawn.fuse,
            Self::TmpfsHuge | Self::Mount => drawn.mount,
            Self::Library => drawn.library,
        }
    }

    fn is_homenode(self) -> bool {
        matches!(self, Self::Mount | Self::Library)
    }
}

/// Files, and the home of each block.
#[derive(Debug)]
pub struct Files {
    /// Number of the first block of each file, and of one behind the last.
    starts: Vec<u64>,
    /// Node of each block, file after file; [`NOWHERE`] where it has no memory yet.
    homes: Vec<u8>,
    /// How many blocks of each run of [`RUN`] have memory; runs without any are not there.
    placed: BTreeMap<usize, usize>,
    space: Space,
    spilled: u64,
}

const NOWHERE: u8 = u8::MAX;
/// Blocks that are looked at together.
const RUN: usize = 512;

#[derive(Debug)]
enum Space {
    /// A node's own memory, then that of the nearest node with room.
    Kernel {
        free: Vec<u64>,
        nearest: Vec<Vec<u32>>,
        page_blocks: u64,
    },
    Pool(Box<Pool>),
}

/// Homenode's pool: a member on each node.
#[derive(Debug)]
struct Pool {
    monitor: Monitor,
    members: Vec<Buddy>,
    /// Member of each core's grant, and the blocks that are left of it.
    grants: Vec<(u32, u64)>,
    /// Blocks of each member that were given back, wherever they lie.
    returned: Vec<u64>,
}

impl Files {
    /// Files of so many bytes each, none of which have memory. `of_node_bytes` is the memory for files on each node; `None` for most of the node's.
    #[must_use]
    pub fn new(
        contestant: Contestant,
        machine: &Machine,
        files: u64,
        file_bytes: u64,
        of_node_bytes: Option<u64>,
    ) -> Self {
        let room = |node| {
            let bytes = of_node_bytes.map_or(machine.memory_bytes(node) / 100 * SHARE_PERCENT, |bytes| {
                bytes.min(machine.memory_bytes(node))
            });
            bytes / BLOCK_BYTES as u64
        };
        let room: Vec<u64> = (0..machine.nodes()).map(room).collect();
        let blocks = file_bytes.div_ceil(BLOCK_BYTES as u64).max(1);
        Self::of_sizes(contestant, machine, std::iter::repeat_n(blocks, count(files)), room)
    }

    /// Files of so many blocks each, with room for `room` blocks on each node.
    #[must_use]
    pub fn of_sizes(
        contestant: Contestant,
        machine: &Machine,
        blocks: impl IntoIterator<Item = u64>,
        room: Vec<u64>,
    ) -> Self {
        let mut starts = vec![0];
        for blocks in blocks {
            starts.push(starts.last().copied().unwrap_or(0) + blocks);
        }
        let all = count(starts.last().copied().unwrap_or(0));
        let space = if contestant.is_homenode() {
            Space::Pool(Box::new(Pool::new(machine, &room)))
        } else {
            let nearest = |node| {
                let mut others: Vec<u32> = (0..machine.nodes()).collect();
                others.sort_by_key(|other| (*other != node, machine.latency_ps(node, *other), *other));
                others
            };
            Space::Kernel {
                free: room,
                nearest: (0..machine.nodes()).map(nearest).collect(),
                page_blocks: match contestant {
                    Contestant::TmpfsHuge => HUGE_BLOCKS,
                    _ => 1,
                },
            }
        };
        Self {
            starts,
            homes: vec![NOWHERE; all],
            placed: BTreeMap::new(),
            space,
            spilled: 0,
        }
    }

    /// Blocks of the first file; of each, where all are equal.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.starts.get(1).copied().unwrap_or(0)
    }

    /// Blocks that went to another node than the writer's.
    #[must_use]
    pub fn spilled_blocks(&self) -> u64 {
        self.spilled
    }

    /// Node of a block, if it has memory.
    #[must_use]
    pub fn home(&self, file: u64, block: u64) -> Option<u32> {
        let home = self.homes[self.at(file, block)];
        (home != NOWHERE).then_some(u32::from(home))
    }

    /// A core writes a block: its node, and whether it had no memory before. `None` when nothing is free.
    pub fn write(&mut self, machine: &Machine, core: u32, file: u64, block: u64) -> Option<(u32, bool)> {
        let at = self.at(file, block);
        if self.homes[at] != NOWHERE {
            return Some((u32::from(self.homes[at]), false));
        }
        let home = self.take(machine, core, file, block)?;
        self.spilled += u64::from(home != machine.node_of(core));
        self.homes[at] = u8::try_from(home).expect("machines have fewer than 255 nodes");
        *self.placed.entry(at / RUN).or_default() += 1;
        Some((home, true))
    }

    /// Frees blocks of a file; a huge page is free once all its blocks are. Takes as long as the blocks that have memory, and no longer for
    /// those that have none.
    pub fn free(&mut self, file: u64, blocks: Range<u64>) {
        let (mut at, end) = (self.at(file, blocks.start), self.at(file, blocks.end));
        while at < end {
            let Some((run, _)) = self.placed.range(at / RUN..end.div_ceil(RUN)).next() else {
                return;
            };
            let first = at.max(run * RUN);
            at = end.min((run + 1) * RUN);
            for place in first..at {
                self.free_place(file, place);
            }
        }
    }

    fn free_place(&mut self, file: u64, place: usize) {
        let home = std::mem::replace(&mut self.homes[place], NOWHERE);
        if home == NOWHERE {
            return;
        }
        if let Entry::Occupied(mut run) = self.placed.entry(place / RUN) {
            *run.get_mut() -= 1;
            if *run.get() == 0 {
                run.remove();
            }
        }
        let page = self.page_of(file, place as u64 - self.starts[count(file)]);
        if self.homes[page.clone()].iter().any(|home| *home != NOWHERE) {
            return;
        }
        match &mut self.space {
            Space::Kernel { free, .. } => free[usize::from(home)] += page.len() as u64,
            Space::Pool(pool) => pool.take_back(usize::from(home)),
        }
    }

    /// A file's blocks are moved to a node, as far as the model goes: nothing of the old places becomes free, nor may any of them be freed later.
    pub fn move_to(&mut self, file: u64, node: u32) {
        let (first, end) = (self.at(file, 0), self.at(file + 1, 0));
        self.homes[first..end].fill(u8::try_from(node).expect("machines have fewer than 255 nodes"));
    }

    fn at(&self, file: u64, block: u64) -> usize {
        count(self.starts[count(file)] + block)
    }

    fn take(&mut self, machine: &Machine, core: u32, file: u64, block: u64) -> Option<u32> {
        let node = machine.node_of(core);
        let page = self.page_of(file, block);
        match &mut self.space {
            Space::Kernel { free, nearest, .. } => {
                if let Some(home) = self.homes[page.clone()].iter().find(|home| **home != NOWHERE) {
                    return Some(u32::from(*home));
                }
                let blocks = page.len() as u64;
                let near = &nearest[node as usize];
                let home = near.iter().copied().find(|home| free[*home as usize] >= blocks)?;
                free[home as usize] -= blocks;
                Some(home)
            }
            Space::Pool(pool) => pool.take(core, machine.id(node)),
        }
    }

    /// Places of the blocks that get their memory with this one.
    fn page_of(&self, file: u64, block: u64) -> Range<usize> {
        let blocks = match self.space {
            Space::Kernel { page_blocks, .. } => page_blocks,
            Space::Pool(_) => 1,
        };
        let begin = self.at(file, block / blocks * blocks);
        begin..(begin + count(blocks)).min(self.at(file + 1, 0))
    }
}

/// A number of blocks or files as a place in a table.
fn count(number: u64) -> usize {
    usize::try_from(number).expect("a table of homes fits into memory")
}

impl Pool {
    fn new(machine: &Machine, room: &[u64]) -> Self {
        let ids: Vec<NodeId> = (0..machine.nodes()).map(|node| machine.id(node)).collect();
        let mut monitor = Monitor::new(&ids, &machine.latencies(), Thresholds::default());
        let members = (0_u16..).zip(&ids).zip(room).map(|((member, home), blocks)| {
            monitor.add(MemberId(member), *home);
            monitor.update(MemberId(member), 0, *blocks);
            let mut buddy = Buddy::new(*blocks);
            buddy.free(0, *blocks);
            buddy
        });
        let members = members.collect();
        Self {
            monitor,
            members,
            grants: vec![(0, 0); machine.cores() as usize],
            returned: vec![0; room.len()],
        }
    }

    fn take(&mut self, core: u32, asking: NodeId) -> Option<u32> {
        let grant = self.grants[core as usize];
        let (member, left) = if grant.1 > 0 { grant } else { self.grant(asking)? };
        self.grants[core as usize] = (member, left - 1);
        Some(member)
    }

    /// Takes a grant from the monitor's target; when all members are fat, from the nearest with anything.
    fn grant(&mut self, asking: NodeId) -> Option<(u32, u64)> {
        let mut order: Vec<MemberId> = self.monitor.candidates(asking).collect();
        order.extend(self.monitor.all_by_latency(asking));
        for member in order {
            let buddy = &mut self.members[usize::from(member.0)];
            let returned = &mut self.returned[usize::from(member.0)];
            let again = GRANT_BLOCKS.min(*returned);
            *returned -= again;
            let new = buddy
                .allocate_up_to(GRANT_BLOCKS - again)
                .map_or(0, |(_, blocks)| blocks);
            if again + new > 0 {
                self.tell(member);
                return Some((u32::from(member.0), again + new));
            }
        }
        None
    }

    fn take_back(&mut self, member: usize) {
        self.returned[member] += 1;
        self.tell(MemberId(u16::try_from(member).expect("members are nodes")));
    }

    /// Tells the monitor how full a member is.
    fn tell(&mut self, member: MemberId) {
        let (buddy, returned) = (
            &self.members[usize::from(member.0)],
            self.returned[usize::from(member.0)],
        );
        let used = buddy.blocks() - buddy.free_blocks() - returned;
        self.monitor.update(member, used, buddy.blocks());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Constants;
    use crate::shapes::{Shape, machine};

    fn four_nodes() -> Machine {
        Machine::new(
            &machine(4, 2, 1 << 30, Shape::Full, Vec::new()),
            &Constants::SERVER.draw(1),
        )
        .unwrap()
    }

    #[test]
    fn blocks_lie_with_their_first_writer_until_its_node_is_full() {
        let machine = four_nodes();
        for contestant in Contestant::ALL {
            let mut files = Files::new(contestant, &machine, 2, 8 << 20, Some(16 << 20));
            for block in 0..files.blocks() {
                assert_eq!(files.write(&machine, 2, 0, block), Some((1, true)), "{contestant:?}");
                assert_eq!(files.write(&machine, 7, 0, block), Some((1, false)), "{contestant:?}");
            }
            assert_eq!(
                (files.home(0, 7), files.home(1, 7), files.spilled_blocks()),
                (Some(1), None, 0)
            );
        }
    }

    #[test]
    fn a_huge_page_lies_with_the_first_writer_of_any_block() {
        let machine = four_nodes();
        // The second page is short, and takes no more than its blocks.
        let mut files = Files::new(Contestant::TmpfsHuge, &machine, 2, 3 << 20, Some(3 << 20));
        let mut write = |core, file, block| files.write(&machine, core, file, block);
        assert_eq!(write(2, 0, 100), Some((1, true)));
        assert_eq!(write(7, 0, 511), Some((1, true)));
        assert_eq!(write(7, 0, 512), Some((3, true)));
        assert_eq!(write(2, 0, 767), Some((3, true)));
        // Nothing of the first page's memory is left on node 1, and a page's room on node 3.
        assert_eq!(write(2, 1, 0), Some((0, true)));
        assert_eq!(write(7, 1, 600), Some((3, true)));
        assert_eq!(files.home(0, 101), None);
    }

    #[test]
    fn full_nodes_spill_to_the_nearest_and_a_full_machine_refuses() {
        let machine = four_nodes();
        for contestant in [Contestant::Tmpfs, Contestant::Library] {
            let mut files = Files::new(contestant, &machine, 1, 64 << 20, Some(8 << 20));
            let places: Vec<_> = (0..files.blocks())
                .map(|block| files.write(&machine, 2, 0, block))
                .collect();
            let on = |node| places.iter().flatten().filter(|(home, _)| *home == node).count();
            assert_eq!((on(1), on(0), on(2), on(3)), (2048, 2048, 2048, 2048), "{contestant:?}");
            assert_eq!(
                places.iter().filter(|place| place.is_none()).count(),
                8192,
                "{contestant:?}"
            );
            assert_eq!(files.spilled_blocks(), 3 * 2048);
        }
    }
}
