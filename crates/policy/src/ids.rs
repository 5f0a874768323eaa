//! The names of things: nodes, CPUs, members and blocks.

/// Bytes of one block, the unit of the pool's address space.
pub const BLOCK_BYTES: usize = 4096;

/// A NUMA node, by the number the kernel gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeId(pub u16);

/// A CPU, by the number the kernel gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuId(pub u32);

/// A member of the pool. Below [`MemberId::LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemberId(pub u16);

impl MemberId {
    /// Members a pool can have over its life.
    pub const LIMIT: usize = 4096;
}

/// Address of one block in the pool: member in the high 16 bits, index within the member in the low 48
/// (the single global address space of MBS-LVM, section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(u64);

impl Block {
    const INDEX_BITS: u32 = 48;

    /// The block `index` (in blocks from the member's start, below 2^48) of `member`.
    #[must_use]
    pub const fn new(member: MemberId, index: u64) -> Self {
        debug_assert!(index >> Self::INDEX_BITS == 0);
        Self((member.0 as u64) << Self::INDEX_BITS | index)
    }

    /// The member this block lies in.
    #[must_use]
    pub const fn member(self) -> MemberId {
        MemberId((self.0 >> Self::INDEX_BITS) as u16)
    }

    /// Blocks from the member's start.
    #[must_use]
    pub const fn index(self) -> u64 {
        self.0 & ((1 << Self::INDEX_BITS) - 1)
    }

    /// The address as one number: the member's above the index.
    #[must_use]
    pub const fn to_raw(self) -> u64 {
        self.0
    }

    /// The block of an address that [`Block::to_raw`] gave.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The block `count` blocks further in the same member.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl core::fmt::Display for MemberId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "member {}", self.0)
    }
}
