//! A machine without hardware: memory, time and callers for the engine.

mod clock;
mod memory;
pub(crate) mod pattern;
pub(crate) mod seeded;
mod store;
pub(crate) mod threads;

pub(crate) use clock::ManualClock;
pub(crate) use memory::{Fault, ON_PURPOSE, POISON, TestMemory, Trouble};
pub(crate) use store::{ALLOCATED_NS, TestStore};

use homenode_engine::cache::{Cached, FrameIndex, SliceOptions};
use homenode_engine::fs::{Asking, Fs, Ino, Inode, NewInode, SetAttr};
use homenode_engine::log::{LogOptions, MemberRecord, PoolName, Superblock};
use homenode_engine::pool::{Machine, MemberKind};
use homenode_engine::{CpuId, MemberId, NodeId};
use homenode_shared::Slot;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const BLOCK: u64 = homenode_engine::BLOCK_BYTES as u64;
pub(crate) const RUN: u64 = homenode_shared::RUN_BLOCKS;
pub(crate) const FILES_MAX: u64 = 1 << 20;
pub(crate) const CPUS_PER_NODE: u32 = 4;

pub(crate) type TestFs = Fs<Cached<TestMemory>, ManualClock>;

/// Where the bytes of files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// In memory.
    Memory,
    /// On disks, with a cache of so many frames on each node.
    Disks { frames: u32 },
}

/// Few enough frames that something is evicted at every step.
pub(crate) const DISKS: Bytes = Bytes::Disks { frames: 24 };
/// Number of the first member that is frames.
const FRAMES: u16 = 2048;

/// `nodes` nodes of [`CPUS_PER_NODE`] CPUs each, numbered in turn. Latencies are asymmetric: the memory of the next node
/// is the nearest, that of the one before the farthest, as on a ring of one-way links.
pub(crate) fn machine(nodes: u16) -> Machine {
    let all: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    let latency = |from: u16, to: u16| 10 + 7 * u32::from((to + nodes - from) % nodes);
    Machine {
        cpu_nodes: (0..u32::from(nodes) * CPUS_PER_NODE)
            .map(|cpu| node_of(cpu, nodes))
            .collect(),
        latency: all
            .iter()
            .map(|from| all.iter().map(|to| latency(from.0, to.0)).collect())
            .collect(),
        nodes: all,
        files_max: FILES_MAX,
    }
}

fn node_of(cpu: u32, nodes: u16) -> NodeId {
    NodeId((cpu % u32::from(nodes)) as u16)
}

/// A filesystem with a member of `blocks` blocks on each of `nodes` nodes, and the clock it reads.
pub(crate) fn filesystem(nodes: u16, blocks: u64) -> (TestFs, ManualClock) {
    filesystem_on(Bytes::Memory, nodes, blocks)
}

/// [`filesystem`] whose bytes lie there.
pub(crate) fn filesystem_on(bytes: Bytes, nodes: u16, blocks: u64) -> (TestFs, ManualClock) {
    let (fs, clock) = empty_filesystem_on(bytes, nodes);
    for node in 0..nodes {
        add_member(&fs, NodeId(node), blocks);
    }
    (fs, clock)
}

/// A filesystem whose files are a store's.
pub(crate) fn kernel_filesystem(nodes: u16, blocks: u64) -> (TestFs, ManualClock, TestStore) {
    let (fs, clock) = filesystem(nodes, blocks);
    let store = TestStore::on_nodes(nodes);
    assert!(fs.pool().lend_to(Arc::new(store.clone())), "a second store");
    (fs, clock, store)
}

/// A filesystem on a pool without members.
pub(crate) fn empty_filesystem(nodes: u16) -> (TestFs, ManualClock) {
    empty_filesystem_on(Bytes::Memory, nodes)
}

fn empty_filesystem_on(bytes: Bytes, nodes: u16) -> (TestFs, ManualClock) {
    let clock = ManualClock::default();
    let root = NewInode {
        mode: 0o755,
        ..regular(0o755)
    };
    let fs = Fs::new(&machine(nodes), memory(bytes, nodes), clock.clone(), root);
    (fs, clock)
}

/// A durable filesystem on a disk of `blocks` blocks for each node, with a cache of so many frames there.
pub(crate) fn durable_on(frames: u32, nodes: u16, blocks: u64) -> TestFs {
    let memory = memory(Bytes::Disks { frames }, nodes);
    let member = |number: u16| {
        let (id, home) = (MemberId(number), NodeId(number));
        memory.below().add_disk(id, blocks);
        memory.add_disk(id, home, FrameIndex::new(blocks).expect("the disk is small"));
        let kind = MemberKind::Block;
        (MemberRecord { id, kind, blocks }, home)
    };
    let members: Vec<_> = (0..nodes).map(member).collect();
    let (clock, root) = (ManualClock::default(), directory(0o755));
    let options = log_options(0x5ec2e7, 1);
    Fs::format(&machine(nodes), memory, clock, root, options, &members).expect("there is room for a log")
}

fn log_options(nonce: u64, witness: u128) -> LogOptions {
    LogOptions {
        uuid: 7,
        name: PoolName::default(),
        nonce,
        witness,
        history: 1,
        segment_blocks: 64,
        metadata_bytes_max: u64::MAX,
        slack_bytes: 1 << 20,
    }
}

/// The filesystem of [`durable_on`] opened after a power cut: only what was written to its disks is there. The disks are shared with `before`, which
/// must not be used any more.
pub(crate) fn after_power_cut(before: &TestFs, frames: u32, nodes: u16, blocks: u64) -> TestFs {
    let (old, memory) = (before.pool().memory().below(), memory(Bytes::Disks { frames }, nodes));
    for number in 0..nodes {
        let (id, home) = (MemberId(number), NodeId(number));
        memory.below().share_disk(old, id);
        memory.add_disk(id, home, FrameIndex::new(blocks).expect("the disk is small"));
    }
    let copy = |at| memory.below().block_of_disk(MemberId(0), at);
    let superblock = Superblock::newer(&copy(0), &copy(blocks - 1)).expect("the first disk has a superblock");
    let options = log_options(superblock.tail.nonce, 2);
    let home_of = |member: MemberId| NodeId(member.0);
    let clock = ManualClock::default();
    Fs::open_durable(&machine(nodes), memory, clock, options, superblock, &home_of).expect("the log is whole")
}

/// Memory of a pool without members.
fn memory(bytes: Bytes, nodes: u16) -> Cached<TestMemory> {
    let (memory, Bytes::Disks { frames }) = (TestMemory::default(), bytes) else {
        return Cached::without_cache(TestMemory::default());
    };
    let slices = (0..nodes).map(|node| SliceOptions {
        member: MemberId(FRAMES + node),
        node: NodeId(node),
        frames,
    });
    let slices: Vec<_> = slices.collect();
    slices
        .iter()
        .for_each(|slice| memory.add_frames(slice.member, frames.into()));
    let distances: Vec<Vec<u32>> = machine(nodes).latency;
    Cached::new(memory, &slices, &distances)
}

pub(crate) fn add_member(fs: &TestFs, home: NodeId, blocks: u64) -> MemberId {
    let (pool, memory, member) = (fs.pool(), fs.pool().memory(), fs.pool().next_member());
    if memory.has_cache() {
        memory.below().add_disk(member, blocks);
        memory.add_disk(member, home, FrameIndex::new(blocks).expect("the disk is small"));
    } else {
        memory.below().add(member, blocks);
    }
    // Without a log, and so without superblocks.
    pool.add(MemberKind::Dram, home, blocks).expect("not that many members")
}

/// Takes a drained member out, and its memory away.
pub(crate) fn remove_member(fs: &TestFs, member: MemberId) {
    fs.pool().remove(member).expect("the member is drained");
    fs.pool().memory().remove_disk(member);
    fs.pool().memory().below().remove(member);
}

/// Tends the caches of all nodes for once, if there are any.
pub(crate) fn tend(fs: &TestFs) {
    let memory = fs.pool().memory();
    let slices = memory.cache_status().slices.len();
    for slice in 0..slices {
        memory.tend(slice, Duration::ZERO);
        // Errors are told to those who sync the blocks.
        let _ = memory.write_back(slice, (0, 1));
    }
    std::thread::yield_now();
}

pub(crate) fn regular(permissions: u32) -> NewInode {
    of_mode(0o100_000 | permissions)
}

pub(crate) fn directory(permissions: u32) -> NewInode {
    of_mode(0o040_000 | permissions)
}

pub(crate) fn of_mode(mode: u32) -> NewInode {
    NewInode::of_root(mode)
}

/// A new file in the root directory, pinned once.
pub(crate) fn new_file(fs: &TestFs, name: &str) -> Arc<Inode> {
    let inode = fs
        .create(&fs.root(), name.as_bytes(), regular(0o644))
        .expect("the name is free");
    fs.pin(&inode).expect("the inode was just created");
    inode
}

/// A change of a file's size.
pub(crate) fn sized(bytes: u64) -> SetAttr {
    SetAttr {
        size: Some(bytes),
        ..SetAttr::default()
    }
}

/// Panics unless nothing is used: no block, no map node, no inode but the root.
pub(crate) fn assert_empty(fs: &TestFs) {
    fs.check_invariants();
    let status = fs.pool().status();
    assert_eq!(
        (status.used, status.reserved),
        (0, 0),
        "blocks are left without a file: {status:?}"
    );
    assert_eq!(fs.map_nodes_used(), 0, "nodes of block maps are left without a file");
    let statfs = fs.statfs();
    assert_eq!(statfs.files - statfs.files_free, 1, "inodes are left without a name");
    assert!(
        fs.metadata_bytes().0 < 1024,
        "memory of metadata is left: {:?}",
        fs.metadata_bytes()
    );
    assert!(fs.inode(Ino::ROOT).is_some());
}

/// Someone who asks: a slot, a CPU and its node.
pub(crate) struct Caller {
    slot: Slot,
    cpu: CpuId,
    node: Box<dyn Fn() -> NodeId + Send>,
}

impl Caller {
    pub(crate) fn on_cpu(fs: &TestFs, cpu: u32) -> Self {
        let node = fs.pool().cpu_node(CpuId(cpu));
        Self {
            slot: fs.slots().claim().expect("slots are free"),
            cpu: CpuId(cpu),
            node: Box::new(move || node),
        }
    }

    /// On the first CPU of `node`.
    pub(crate) fn on_node(fs: &TestFs, node: u16) -> Self {
        Self::on_cpu(fs, u32::from(node))
    }

    pub(crate) fn asking(&self) -> Asking<'_> {
        Asking {
            waits: true,
            user: Some(0),
            slot: &self.slot,
            cpu: self.cpu,
            node: &*self.node,
        }
    }
}
