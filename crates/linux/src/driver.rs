//! Drivers of the block layer that need Linux: memory, files and disks.
//!
//! Owns the memory their requests name ([`Arena`]) and what they have under way. The contract is that of
//! [`homenode_engine::blk::DriverQueue`]; besides: a wrong number in a request fails that request with [`EFAULT`] and
//! reaches no other memory, and when a queue is gone nothing is written to its requests' memory any more.

mod arena;
pub(crate) mod beside;
mod frame_reads;
mod ram;
mod reads;
mod ring;
mod uring_file;
mod writes;

pub use arena::{Arena, ArenaError};
pub use frame_reads::{Came, FrameReads};
pub use ram::{Ram, RamQueue, Storage};
pub use uring_file::{OpenError, RingError, UringFile, UringOptions, UringQueue};

pub(crate) use reads::{ReadEnd, Reads};
pub(crate) use ring::single_issuer;
pub(crate) use writes::Writes;

use homenode_engine::blk::Errno;

/// A request names memory that its driver has not.
pub const EFAULT: Errno = Errno(libc::EFAULT);
