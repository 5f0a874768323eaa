//! The pool: one address space over all members (the MBS cluster of MBS-LVM, section 2.2).
//!
//! Space is counted once: `uncommitted` blocks are those of members in service that hold no data, lie in no grant and are
//! not reserved. Whoever wants blocks commits them first and then finds them; so a reservation can always be placed (unless a node
//! starves: it has less memory than its members were given), and
//! writers on different CPUs share a counter once per 2 MiB, not once per block.
//!
//! Locks, in this order: seeking; grants of a CPU; a member's populating lock; a member's space; the monitor. No two of one kind.

mod accounts;
mod grants;
mod lend;
mod member;
mod space;
mod status;
mod taken;

pub use accounts::Access;
pub(crate) use accounts::Direction;
pub use grants::Spill;
pub use lend::Discarding;
pub use member::MemberKind;
pub(crate) use space::NoSpace;
pub use status::{MemberStatus, Status};
pub(crate) use taken::Taken;

use crate::log::MEMBERS_MAX;
use crate::{Block, CpuId, MemberId, Memory, NodeId, Starved};
use accounts::Accounts;
use grants::Grants;
use homenode_policy::pool::{Monitor, Thresholds};
use homenode_shared::{Slot, SlotNumber};
use lend::Lent;
use member::Member;
use parking_lot::{Mutex, RwLock};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Description of the machine that a pool is made on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The node of each possible CPU, by CPU number.
    pub cpu_nodes: Vec<NodeId>,
    /// All nodes: those with memory and those with CPUs. At least one.
    pub nodes: Vec<NodeId>,
    /// `latency[a][b]`: access latency or distance from `nodes[a]` to `nodes[b]`; only the order matters.
    pub latency: Vec<Vec<u32>>,
    /// Inodes that may exist at a time.
    pub files_max: u64,
}

/// Why the pool's members cannot be changed so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No such member.
    #[error("{0} is not in the pool")]
    UnknownMember(MemberId),
    /// It holds data.
    #[error("{0} still holds {1} blocks: drain it first")]
    NotEmpty(MemberId, u64),
    /// A pool has at least one member.
    #[error("{0} is the last member of the pool that takes data: add another one first")]
    Last(MemberId),
    /// Draining needs room elsewhere.
    #[error("the other members have no room for what is on {0}: add a member or free space first")]
    NoSpace(MemberId),
    /// Bytes of it, or of where they were to go, cannot be reached.
    #[error("bytes on {0} cannot be copied elsewhere: it stays in service")]
    Io(MemberId),
    /// A block of another member cannot be written, so nothing that was moved is durable.
    #[error(
        "what was moved off {0} is not durable, as another member has a block that cannot be written: {0} stays in service, drain that member first"
    )]
    Unsettled(MemberId),
    /// Blocks of files on it cannot be read, so many; and the number of the first file that has some.
    #[error(
        "{1} blocks of files on {0} cannot be read, all others were moved: it stays in service until the files that have them are removed, the first is number {2} (`find -inum {2}`, or it is a volume)"
    )]
    Unread(MemberId, u64, u64),
    /// Nothing of any file is left on it, and yet blocks of it are taken.
    #[error("{0} still has {1} blocks that belong to no file: it stays in service")]
    Unowned(MemberId, u64),
    /// The kernel does not move pages of files off its home.
    #[error(
        "cannot move {1} bytes of files off the node of {0}, such as pages that a device uses: it stays in service"
    )]
    Pinned(MemberId, u64),
    /// Member numbers are not used twice.
    #[error("the pool has had {} members, the most it can", MemberId::LIMIT)]
    TooMany,
    /// A new member cannot be written.
    #[error("{0} cannot be written: the pool is unchanged")]
    Unwritable(MemberId),
    /// A superblock has no room for another member.
    #[error("the pool has {MEMBERS_MAX} members, the most that a durable one can have")]
    Full,
    /// The log or a superblock cannot be written, or could not before.
    #[error(
        "the log or a superblock of the pool cannot be written: members stay as they are, look at the disks and bring the pool up again"
    )]
    Log,
    /// The pool was opened to be read only.
    #[error("the pool is mounted read-only")]
    ReadOnly,
    /// More threads are at work than can be told apart.
    #[error("too many threads use the pool: try again")]
    Busy,
}

/// Result of [`Pool::populate_ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// There is more to do now: call again.
    More,
    /// Enough is populated for the time being.
    Enough,
    /// All of the member is populated, or it is gone: no need to call again.
    Whole,
    /// The member's node has no free memory at present.
    Starved,
}

/// An address space over the memory of every node.
#[derive(Debug)]
pub struct Pool<M: Memory> {
    memory: M,
    members: RwLock<Members>,
    monitor: Mutex<Monitor>,
    grants: Box<[CpuGrants]>,
    /// See the module's text. Negative while a member with much data is being drained. Relaxed everywhere: the members'
    /// locks order what was allocated and freed; this and `reserved` only count.
    uncommitted: AtomicI64,
    /// Reserved and not yet placed, without what the grants' credits say.
    reserved: AtomicU64,
    /// Read by whoever commits space and then finds it, until what it does not need is given back: whoever finds nothing
    /// writes, that is, waits for them, and looks again.
    seeking: RwLock<()>,
    accounts: Accounts,
    lent: Lent,
}

/// Two cache lines each, so that CPUs do not share them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CpuGrants(Mutex<Grants>);

#[derive(Debug, Default)]
struct Members {
    /// Ascending by id.
    list: Vec<Arc<Member>>,
    next: u16,
}

/// Threads that can work on one pool at a time.
pub(crate) const SLOTS: usize = 4096;

impl<M: Memory> Pool<M> {
    /// A pool without members, for at most [`SLOTS`] threads at a time.
    pub(crate) fn new(machine: &Machine, memory: M) -> Self {
        let accounts = Accounts::new(machine);
        for (member, home) in memory.homes() {
            accounts.set_home(member, home);
        }
        Self {
            memory,
            members: RwLock::default(),
            monitor: Mutex::new(Monitor::new(&machine.nodes, &machine.latency, Thresholds::default())),
            grants: (0..machine.cpu_nodes.len().max(1))
                .map(|_| CpuGrants::default())
                .collect(),
            uncommitted: AtomicI64::new(0),
            reserved: AtomicU64::new(0),
            seeking: RwLock::new(()),
            accounts,
            lent: Lent::default(),
        }
    }

    /// The memory behind the members.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The number [`Pool::add`] will give to the next member.
    pub fn next_member(&self) -> MemberId {
        MemberId(self.members.read().next)
    }

    /// Says that a member of that number was not added: the number is not used again.
    pub(crate) fn skip_member(&self, id: MemberId) {
        let mut members = self.members.write();
        members.next = members.next.max(id.0 + 1);
    }

    /// Adds a member of `kind` and of `blocks` blocks at home on `home`, none populated yet. The memory behind it must be there already,
    /// under the number that [`Pool::next_member`] told.
    ///
    /// # Errors
    /// [`PoolError::TooMany`].
    pub fn add(&self, kind: MemberKind, home: NodeId, blocks: u64) -> Result<MemberId, PoolError> {
        let mut members = self.members.write();
        let id = MemberId(members.next);
        if usize::from(id.0) >= MemberId::LIMIT {
            return Err(PoolError::TooMany);
        }
        members.next += 1;
        self.accounts.set_home(id, home);
        self.monitor.lock().add(id, home);
        members.list.push(Arc::new(Member::new(id, kind, home, blocks)));
        self.uncommitted.fetch_add(signed(blocks), Ordering::Relaxed);
        drop(members);
        // Writers near it were granted blocks elsewhere.
        self.take_grants_back();
        self.lend();
        Ok(id)
    }

    /// Adds the durable member `id`, with `used` of its blocks (ascending, apart from each other) in use.
    pub(crate) fn restore(&self, id: MemberId, kind: MemberKind, home: NodeId, blocks: u64, used: &[Range<u64>]) {
        let mut members = self.members.write();
        members.next = members.next.max(id.0 + 1);
        self.accounts.set_home(id, home);
        self.monitor.lock().add(id, home);
        let member = Arc::new(Member::restored(id, kind, home, blocks, used));
        let in_use: u64 = used.iter().map(|range| range.end - range.start).sum();
        self.uncommitted.fetch_add(signed(blocks - in_use), Ordering::Relaxed);
        self.note_use(&member, &member.space());
        members.list.push(member);
        members.list.sort_by_key(|member| member.id);
    }

    /// Takes an empty, drained member out. Its memory may be unmapped afterwards.
    ///
    /// # Errors
    /// When it is not there, holds data or was not drained.
    pub fn remove(&self, id: MemberId) -> Result<(), PoolError> {
        let mut members = self.members.write();
        let member = members.list.iter().find(|member| member.id == id);
        member.ok_or(PoolError::UnknownMember(id))?.check_drained()?;
        members.list.retain(|member| member.id != id);
        self.monitor.lock().remove(id);
        Ok(())
    }

    /// The first and the last block of a member.
    ///
    /// # Panics
    /// When there is no such member.
    pub(crate) fn ends(&self, id: MemberId) -> [Block; 2] {
        let member = self.member(id).expect("the caller has checked that the member exists");
        [0, member.blocks - 1].map(|index| Block::new(id, index))
    }

    /// Fails unless [`Pool::remove`] would take the member out.
    pub(crate) fn check_drained(&self, id: MemberId) -> Result<(), PoolError> {
        self.member(id).ok_or(PoolError::UnknownMember(id))?.check_drained()
    }

    /// Whether a member takes no new blocks, or is gone.
    pub(crate) fn is_draining(&self, id: MemberId) -> bool {
        self.member(id).is_none_or(|member| member.space().draining)
    }

    /// Blocks that the superblocks of members take, as far as the status counts them.
    pub(crate) fn superblock_blocks(&self) -> u64 {
        let members = self.members.read();
        let in_service = members.list.iter().filter(|member| !member.space().draining);
        in_service.map(|member| member.superblocks()).sum()
    }

    /// Populates the member's next run (up to 2 MiB; blocks for milliseconds) when fewer than `ahead` blocks are free and
    /// populated. Looking and finding enough is cheap: two locks, and none of the monitor's.
    pub fn populate_ahead(&self, id: MemberId, ahead: u64) -> Ahead {
        let Some(member) = self.member(id) else {
            return Ahead::Whole;
        };
        if self.store().is_some() {
            // Files take the room, and nobody knows when a volume will.
            return Ahead::Enough;
        }
        let enough = |space: &member::Space| space.draining || space.free_blocks() >= ahead;
        let found = |space: &member::Space| match space {
            space if space.populated == member.blocks => Ahead::Whole,
            space if enough(space) => Ahead::Enough,
            _ => Ahead::More,
        };
        let before = found(&member.space());
        if before != Ahead::More {
            return before;
        }
        let populated = member.populate_next(&self.memory, enough);
        let space = member.space();
        self.note_use(&member, &space);
        match populated {
            Err(Starved) => Ahead::Starved,
            Ok(_) => found(&space),
        }
    }

    /// The node of a CPU.
    #[inline]
    pub fn cpu_node(&self, cpu: CpuId) -> NodeId {
        self.accounts.cpu_node(cpu)
    }

    /// The home of a member that is or was in the pool.
    #[inline]
    pub(crate) fn home(&self, member: MemberId) -> NodeId {
        self.accounts.home(member)
    }

    /// The kind of a member that is in the pool.
    pub(crate) fn kind(&self, member: MemberId) -> Option<MemberKind> {
        let members = self.members.read();
        members.list.iter().find(|one| one.id == member).map(|one| one.kind)
    }

    /// All members, if each is a file or a disk; else none.
    pub(crate) fn members_on_disks(&self) -> Vec<MemberId> {
        let members = self.members.read();
        let is_on_disk = |member: &Arc<Member>| matches!(member.kind, MemberKind::File | MemberKind::Block);
        match members.list.iter().all(is_on_disk) {
            true => members.list.iter().map(|member| member.id).collect(),
            false => Vec::new(),
        }
    }

    /// Whether all copies are counted by the node on which the bytes lie, those of disks by that of their frame. Pages of files lie where the
    /// kernel put them.
    pub fn counts_by_place(&self) -> bool {
        let members = self.members.read();
        members.list.iter().all(|member| member.kind != MemberKind::File)
    }

    /// All nodes, in the order of [`Pool::add_homes_from`] and [`Pool::homes`].
    pub fn nodes(&self) -> &[NodeId] {
        self.accounts.nodes()
    }

    /// Adds to `sums`, by home, the bytes that the thread of `slot` has copied on CPUs of the node of `cpu`: what a copy has moved is the
    /// difference of a look before and one after it.
    ///
    /// # Panics
    /// When `sums` is shorter than [`Pool::nodes`].
    pub fn add_homes_from(&self, slot: &Slot, cpu: CpuId, sums: &mut [u64]) {
        self.accounts.add_homes_from(slot.index(), cpu, sums);
    }

    /// Bytes by home that all threads which held the slot with this number have copied so far.
    pub fn homes(&self, slot: SlotNumber) -> Vec<u64> {
        self.accounts.homes(slot.index())
    }

    /// Index of a node in [`Machine::nodes`].
    pub(crate) fn node_index(&self, node: NodeId) -> usize {
        self.accounts.node_index(node)
    }

    /// Counts one copy by the thread of slot `slot` on `cpu`; gives how often it did between these two nodes.
    #[inline(always)]
    pub(crate) fn count(&self, slot: usize, cpu: CpuId, block: Block, direction: Direction, bytes: usize) -> u64 {
        self.accounts.count(slot, cpu, block.member(), direction, bytes as u64)
    }

    fn member(&self, id: MemberId) -> Option<Arc<Member>> {
        self.members.read().list.iter().find(|member| member.id == id).cloned()
    }
}

fn signed(blocks: u64) -> i64 {
    i64::try_from(blocks).expect("a pool has less than 2^60 blocks")
}
