//! An entry of the map: 64 bits.
//!
//! ```text
//! bit 63        52 51                    4  3   2    0
//!     [ member 12 ][ block index / node 48 ][lock][kind ]
//! ```
//! The root is an entry too; where it names a node, its member field holds the height of the tree.

use homenode_policy::{Block, MemberId};

/// A decoded look at an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry(pub(super) u64);

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing was ever written here.
    Hole,
    /// A hole that the pool keeps room for (fallocate).
    Reserved,
    /// A single block.
    Block,
    /// An aligned run of 512 blocks.
    Run,
    /// A node of 512 entries one level down.
    Node,
    /// The entry of this file block is in a node now: look again from the root. In a map's own entries only.
    Moved,
}

impl Entry {
    pub(super) const HOLE: Self = Self(0);
    pub(super) const RESERVED: Self = Self(1);
    const BLOCK: u64 = 2;
    const RUN: u64 = 3;
    const NODE: u64 = 4;
    pub(super) const MOVED: Self = Self(5);
    const KIND_MASK: u64 = 7;
    const LOCK: u64 = 8;
    const PAYLOAD_SHIFT: u32 = 4;
    const PAYLOAD_MASK: u64 = (1 << 48) - 1;
    const MEMBER_SHIFT: u32 = 52;
    /// Added to an entry, gives the entry of the next block of the same member.
    pub(super) const NEXT_BLOCK: u64 = 1 << Self::PAYLOAD_SHIFT;

    pub(super) const fn block(block: Block) -> Self {
        Self::placed(block, Self::BLOCK)
    }

    pub(super) const fn run(block: Block) -> Self {
        Self::placed(block, Self::RUN)
    }

    const fn placed(block: Block, kind: u64) -> Self {
        let member = (block.member().0 as u64) << Self::MEMBER_SHIFT;
        Self(member | block.index() << Self::PAYLOAD_SHIFT | kind)
    }

    /// A node; `height` is 0 but in the root.
    pub(super) const fn node(index: u32, height: u32) -> Self {
        Self((height as u64) << Self::MEMBER_SHIFT | (index as u64) << Self::PAYLOAD_SHIFT | Self::NODE)
    }

    #[inline]
    pub(super) const fn kind(self) -> Kind {
        match self.0 & Self::KIND_MASK {
            0 => Kind::Hole,
            1 => Kind::Reserved,
            Self::BLOCK => Kind::Block,
            Self::RUN => Kind::Run,
            Self::NODE => Kind::Node,
            _ => Kind::Moved,
        }
    }

    #[inline]
    pub(super) const fn is_locked(self) -> bool {
        self.0 & Self::LOCK != 0
    }

    pub(super) const fn locked(self) -> Self {
        Self(self.0 | Self::LOCK)
    }

    const fn payload(self) -> u64 {
        self.0 >> Self::PAYLOAD_SHIFT & Self::PAYLOAD_MASK
    }

    /// The block of a `Block` or `Run` entry.
    #[inline]
    pub(super) const fn to_block(self) -> Block {
        // 12 bits remain after the shift.
        Block::new(MemberId((self.0 >> Self::MEMBER_SHIFT) as u16), self.payload())
    }

    /// The node index of a `Node` entry.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "`node` stored 32 bits")]
    pub(super) const fn to_node(self) -> u32 {
        self.payload() as u32
    }

    /// The height of the tree below a root; 0 unless it is a node.
    #[inline]
    pub(super) const fn height(self) -> u32 {
        match self.kind() {
            Kind::Node => (self.0 >> Self::MEMBER_SHIFT) as u32,
            _ => 0,
        }
    }
}

const _: () = assert!(MemberId::LIMIT <= 1 << 12, "an entry holds 12 bits of member");
