//! The pool: one address space over all members. (Skeleton of the API; bodies come.)
#![allow(missing_docs, unused_variables, reason = "skeleton")]
use crate::{CpuId, MemberId, Memory, NodeId};

/// What the pool is made on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The node of each possible CPU, by CPU number.
    pub cpu_nodes: Vec<NodeId>,
    /// `latency[a][b]`: access latency (or SLIT distance) from node a to node b, by index into `nodes`.
    pub nodes: Vec<NodeId>,
    pub latency: Vec<Vec<u32>>,
}

/// State of one member, for people and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    pub id: MemberId,
    pub home: NodeId,
    /// In blocks of 4 KiB. `populated` of `capacity` are backed by memory already; `used` holds data (grants do not count).
    pub capacity: u64,
    pub populated: u64,
    pub used: u64,
    pub fat: bool,
    pub draining: bool,
}

/// Bytes and operations from CPUs of one node to memory of one home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub from: NodeId,
    pub home: NodeId,
    pub operations: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Blocks that one node's writers got on another node because nearer members were fat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    pub from: NodeId,
    pub home: NodeId,
    pub blocks: u64,
}

#[derive(Clone, Debug)]
pub struct Status {
    pub members: Vec<MemberStatus>,
    /// Non-zero cells only.
    pub accesses: Vec<Access>,
    pub spills: Vec<Spill>,
    /// In blocks: capacity, used by data, promised by fallocate and not yet placed.
    pub capacity: u64,
    pub used: u64,
    pub reserved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    #[error("{0} is not in the pool")]
    UnknownMember(MemberId),
    #[error("{0} still holds {1} blocks: drain it first")]
    NotEmpty(MemberId, u64),
    #[error("{0} is the last member of the pool")]
    Last(MemberId),
    #[error("the space left in the pool would not hold what is on {0}")]
    NoSpace(MemberId),
    #[error("the pool has had {} members, the most it can", MemberId::LIMIT)]
    TooMany,
}

#[derive(Debug)]
pub struct Pool<M: Memory> {
    _m: std::marker::PhantomData<M>,
}
impl<M: Memory> Pool<M> {
    /// A member of `blocks` blocks at home on `home`, none populated yet; the memory behind it must be there already under the id that
    /// `next_member` told.
    pub fn add(&self, home: NodeId, blocks: u64) -> Result<MemberId, PoolError> {
        unimplemented!()
    }
    pub fn next_member(&self) -> MemberId {
        unimplemented!()
    }
    /// Takes an empty member out. Its memory may be unmapped afterwards.
    pub fn remove(&self, member: MemberId) -> Result<(), PoolError> {
        unimplemented!()
    }
    /// Populates the member's next run (up to 2 MiB; blocking) if fewer than `ahead` blocks are free and populated. True: did something,
    /// call again. False: enough, or all populated, or the node is starved.
    pub fn populate_ahead(&self, member: MemberId, ahead: u64) -> bool {
        unimplemented!()
    }
    pub fn status(&self) -> Status {
        unimplemented!()
    }
    pub fn cpu_node(&self, cpu: CpuId) -> NodeId {
        unimplemented!()
    }
    pub fn memory(&self) -> &M {
        unimplemented!()
    }
}
