//! The log of a durable pool: changes of the filesystem's metadata as plain data, and how they are kept.
//!
//! Every change is a put or a deletion of a whole value, so playing one twice is harmless. Links are not told: they follow
//! from names. Invariant: a group is appended under the locks of all objects that its changes name, so the order in
//! the log is the order in which the locks were held. Format: docs/format.md. Choices: docs/decisions/014-log.md.

mod codec;
mod journal;
pub mod planted;
mod rewrite;
mod salvage;
mod scan;
mod superblock;
mod tables;
mod turn;

pub use codec::{Malformed, Record};
pub use journal::LogOptions;
pub(crate) use journal::{Effect, Journal, Room, first_superblock, repair_superblocks, revoke, write_superblocks};
pub(crate) use rewrite::Rewrite;
pub(crate) use salvage::{Part, Salvaged, salvage};
pub(crate) use scan::{Segment, Shown, Tail, Unreadable, claimed_behind, given_behind, given_by, overlap, scan};
pub use superblock::{
    Features, Gathered, Head, MemberRecord, NotAName, NotGathered, PoolName, Superblock, UnusableSuperblock, gather,
};
pub(crate) use superblock::{GENERATIONS_BEHIND_MAX, MEMBERS_MAX};
pub(crate) use tables::{Claim, Kind, Name, Named, Names, Overview, Rare, fits};
pub use tables::{Damage, Data, Extent, Extents, Node, Tables};

use crate::Block;
use crate::fs::{Ino, Placement};

/// A new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Attributes of an inode, new or old.
    Inode {
        /// Number of the inode.
        ino: Ino,
        /// All of them.
        attributes: Attributes,
    },
    /// Target of a symbolic link.
    Target {
        /// Number of the inode.
        ino: Ino,
        /// All of it.
        target: &'a [u8],
    },
    /// Times of an inode that somebody set; `None` leaves one as it is.
    Times {
        /// Number of the inode.
        ino: Ino,
        /// Last access, ns since the epoch.
        atime_ns: Option<i64>,
        /// Last change of the data, ns since the epoch.
        mtime_ns: Option<i64>,
        /// Last change of the inode, ns since the epoch.
        ctime_ns: Option<i64>,
    },
    /// A name, in place of what it named before.
    Name {
        /// The directory that has it.
        dir: Ino,
        /// The name.
        name: &'a [u8],
        /// The inode it names from now on.
        ino: Ino,
    },
    /// A name that is no more.
    NoName {
        /// The directory that had it.
        dir: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// An extended attribute's value.
    Xattr {
        /// Number of the inode.
        ino: Ino,
        /// Full name of the attribute.
        name: &'a [u8],
        /// All of its value.
        value: &'a [u8],
    },
    /// An extended attribute that is no more.
    NoXattr {
        /// Number of the inode.
        ino: Ino,
        /// Full name of the attribute.
        name: &'a [u8],
    },
    /// Blocks of a stretch of a file, in place of those that were there before.
    Extent {
        /// Number of the inode.
        ino: Ino,
        /// First file block.
        at: u64,
        /// How many.
        blocks: u64,
        /// The first of as many blocks of the pool; `None`: room that is promised, and not placed.
        first: Option<Block>,
    },
    /// A stretch of a file in which nothing lies any more.
    NoExtents {
        /// Number of the inode.
        ino: Ino,
        /// First file block.
        at: u64,
        /// How many.
        blocks: u64,
    },
    /// Size of a file or a volume, with nobody beside who could change it.
    Size {
        /// Number of the inode.
        ino: Ino,
        /// In bytes.
        bytes: u64,
    },
    /// Size that a file has at least: writers beside each other tell theirs in no order.
    Grown {
        /// Number of the inode.
        ino: Ino,
        /// In bytes.
        bytes: u64,
    },
    /// A volume's name.
    Volume {
        /// The name.
        name: &'a str,
        /// Number of its inode.
        ino: Ino,
    },
    /// A volume that is no more.
    NoVolume {
        /// The name.
        name: &'a str,
    },
}

/// Attributes of an inode: mode, owner, group, device and placement; times and extended attributes are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Full st_mode: type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Where new blocks go; `None` when nobody said.
    pub placement: Option<Placement>,
}
