//! Decides where bytes, threads and interrupts belong.
//!
//! Invariants: this crate reads no clock, file, random source or hash order; ties break by the lowest id. The same
//! functions serve the engine inline, the daemon, and tests in virtual time.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod affinity;
pub mod doctor;
pub mod eviction;
mod file_access;
mod ids;
pub mod mover;
pub mod pool;
mod queue_map;
pub mod slices;
pub mod topology;

pub use file_access::{AccessKind, FileAccess, NoFileAccess};
pub use ids::{BLOCK_BYTES, Block, CpuId, MemberId, NodeId};
pub use queue_map::queue_map;
