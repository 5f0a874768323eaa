//! Status of a pool. Sizes in bytes.

use crate::{MemberId, MemberKind, NodeId};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::pool as engine;
use homenode_linux::memory::Health;

/// State of a pool. Exact while nobody writes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// All members, ascending by number.
    pub members: Vec<MemberStatus>,
    /// The access matrix: bytes and operations by (CPU's node, home). Cells without any are left out.
    pub accesses: Vec<Access>,
    /// Bytes that went to another node than the writer's because nearer members were fat.
    pub spills: Vec<Spill>,
    /// Space of all members that take data.
    pub capacity_bytes: u64,
    /// Holds data, that of `kernel_bytes` included.
    pub used_bytes: u64,
    /// Held by files of the kernel, whose bytes are on no member.
    pub kernel_bytes: u64,
    /// Bytes of files of the kernel on each node, of those files that were looked at: ascending, nodes with none left out.
    pub kernel_by_node: Vec<(NodeId, u64)>,
    /// Promised to files and not placed yet.
    pub reserved_bytes: u64,
    /// Memory that names, attributes and block maps take besides the members.
    pub metadata_used_bytes: u64,
    /// The limit of that memory.
    pub metadata_limit_bytes: u64,
    /// Changes of names and attributes, and writes, that were refused because they take more of that memory than their user may have.
    pub metadata_refused: u64,
    /// Users who own it, by number, with how many bytes of it; the greatest first.
    pub metadata_by_user: Vec<(u32, u64)>,
}

/// State of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its number.
    pub id: MemberId,
    /// Kind of storage that holds the member's bytes.
    pub kind: MemberKind,
    /// The node it is at home on.
    pub home: NodeId,
    /// Storage that holds the member's bytes, such as a tmpfs of 2 MiB pages.
    pub backing: String,
    /// Its size.
    pub capacity_bytes: u64,
    /// Bytes that are backed by memory already.
    pub populated_bytes: u64,
    /// Bytes that hold data.
    pub used_bytes: u64,
    /// Fat: writers turn to other members. Else it is a candidate.
    pub fat: bool,
    /// Takes no new data.
    pub draining: bool,
    /// State of what a durable member keeps; sound for memory.
    pub health: Health,
    /// Requests to a disk that failed since the pool came up; 0 of other members.
    pub errors: u64,
}

/// A cell of the access matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// Node of the CPUs that copied.
    pub from: NodeId,
    /// Home of the bytes.
    pub home: NodeId,
    /// Copies.
    pub operations: u64,
    /// Read out of the pool.
    pub read_bytes: u64,
    /// Written into it.
    pub written_bytes: u64,
}

/// Bytes that writers of one node got on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spill {
    /// The writers' node.
    pub from: NodeId,
    /// Where the bytes went.
    pub home: NodeId,
    /// How many.
    pub bytes: u64,
}

const fn bytes(blocks: u64) -> u64 {
    blocks * BLOCK_BYTES as u64
}

impl Status {
    /// Makes it of the engine's figures; `backing` says what a member lies on, `health` how well, and how many requests to it failed.
    pub(crate) fn new(
        status: &engine::Status,
        metadata_bytes: (u64, u64),
        metadata_refused: u64,
        metadata_by_user: Vec<(u32, u64)>,
        kernel_by_node: Vec<(NodeId, u64)>,
        backing: impl Fn(MemberId) -> String,
        health: impl Fn(MemberId) -> (Health, u64),
    ) -> Self {
        let member = |member: &engine::MemberStatus| {
            let (health, errors) = health(member.id);
            MemberStatus {
                id: member.id,
                kind: member.kind,
                home: member.home,
                backing: backing(member.id),
                capacity_bytes: bytes(member.capacity),
                populated_bytes: bytes(member.populated),
                used_bytes: bytes(member.used),
                fat: member.fat,
                draining: member.draining,
                health,
                errors,
            }
        };
        let access = |cell: &engine::Access| Access {
            from: cell.from,
            home: cell.home,
            operations: cell.operations,
            read_bytes: cell.read_bytes,
            written_bytes: cell.written_bytes,
        };
        let spill = |spill: &engine::Spill| Spill {
            from: spill.from,
            home: spill.home,
            bytes: bytes(spill.blocks),
        };
        Self {
            members: status.members.iter().map(member).collect(),
            accesses: status.accesses.iter().map(access).collect(),
            spills: status.spills.iter().map(spill).collect(),
            capacity_bytes: bytes(status.capacity),
            used_bytes: bytes(status.used + status.backing),
            kernel_bytes: bytes(status.backing),
            kernel_by_node,
            reserved_bytes: bytes(status.reserved),
            metadata_used_bytes: metadata_bytes.0,
            metadata_limit_bytes: metadata_bytes.1,
            metadata_refused,
            metadata_by_user,
        }
    }

    /// Space that can still be written or promised.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.capacity_bytes
            .saturating_sub(self.used_bytes + self.reserved_bytes)
    }
}
