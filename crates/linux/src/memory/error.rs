//! Errors of adding and removing members, with messages for a person.

use homenode_engine::{BLOCK_BYTES, MemberId, NodeId};
use std::io;

/// Why a member could not be added or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The home does not exist.
    #[error("{0} does not exist on this machine: `homenode topology` lists the nodes")]
    UnknownNode(NodeId),
    /// The home has CPUs or devices only.
    #[error("{0} has no memory: choose a node with memory (`homenode topology` lists them)")]
    Memoryless(NodeId),
    /// The home has not enough free memory.
    #[error(
        "{node} can give {} MiB of its {} MiB now, not {} MiB: ask for less, free memory on it, or raise the limit of this \
         process's memory control group",
        free >> 20, total >> 20, bytes.div_ceil(1 << 20)
    )]
    Room {
        /// The home.
        node: NodeId,
        /// Asked for.
        bytes: u64,
        /// Bytes that the home can give besides its reserve and the bytes its members are still to get.
        free: u64,
        /// Bytes that the home has in all.
        total: u64,
    },
    /// The kernel's figures of the home cannot be read.
    #[error("reading the free memory of {node}")]
    Node {
        /// The home.
        node: NodeId,
        /// The errno.
        source: io::Error,
    },
    /// Not a whole number of blocks, or none, or more than the address space holds.
    #[error(
        "{member} cannot have {bytes} bytes: its size must be a multiple of {BLOCK_BYTES} that fits the address space"
    )]
    Size {
        /// The member.
        member: MemberId,
        /// Asked for.
        bytes: u64,
    },
    /// A durable member's file cannot be mapped.
    #[error("cannot map {}: {source}", path.display())]
    MapFile {
        /// The file.
        path: std::path::PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// A device of persistent memory cannot be mapped so that stores stay in this process.
    #[error(
        "{} is a device of persistent memory: its pool cannot be opened read-only; bring the pool up without --read-only and \
         --degraded (`homenode fsck` writes nothing)",
        path.display()
    )]
    DeviceToRead {
        /// The device.
        path: std::path::PathBuf,
    },
    /// Member numbers end at [`MemberId::LIMIT`].
    #[error("{0} is beyond the last member a pool can have, {last}", last = MemberId::LIMIT - 1)]
    Number(MemberId),
    /// There is a member of that number.
    #[error("{0} has memory already")]
    Present(MemberId),
    /// There is no member of that number.
    #[error("{0} has no memory here")]
    Absent(MemberId),
    /// The kernel refused to make or map the memory.
    #[error("{doing} for {member} ({} MiB on {home}): {source}", bytes >> 20)]
    Map {
        /// The member.
        member: MemberId,
        /// Its home.
        home: NodeId,
        /// Its size.
        bytes: u64,
        /// Step that was refused.
        doing: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// The kernel refused to take the memory back.
    #[error("unmapping {member}: {source}")]
    Unmap {
        /// The member.
        member: MemberId,
        /// The errno.
        source: io::Error,
    },
}
