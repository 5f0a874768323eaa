//! Moves bytes: the pool over the memory of every node, the filesystem on it, and the block layer.
//!
//! Invariants: no unsafe code, no system call, no thread and no clock of its own. Operations are plain synchronous
//! functions. Data copied on a node's CPU into that node's memory takes no lock shared with another node.
#![forbid(unsafe_code)]

pub mod backing;
pub mod blk;
pub mod cache;
pub mod fs;
pub mod log;
mod memory;
pub mod pool;

pub use homenode_policy::{AccessKind, BLOCK_BYTES, Block, CpuId, FileAccess, MemberId, NodeId};
pub use memory::{Clock, Disks, FrameWrite, Meanwhile, Memory, MemoryError, Starved, Transfer};
