//! Serves a filesystem of the engine as a mount, through the kernel's FUSE.
//!
//! [`wire`] is the protocol, alone and fuzzable. [`Server`] mounts an [`Fs`](homenode_engine::fs::Fs) and serves it with
//! the classic transport: threads that read requests from descriptors of /dev/fuse. There is no libfuse and no fusermount
//! in it.
//!
//! Invariants: no request, however malformed, ends the server; no request waits for another; what the machine looks like
//! comes from a [`Host`], this crate asks neither /proc nor sysfs about CPUs and nodes. Unsafe code is in `device` and
//! `mount`, one system call a block.
//!
//! Cost: a request is one read and one write of the device, with the bytes copied once between kernel and buffer and once
//! between buffer and pool.

mod buffer;
mod call;
mod device;
mod error;
mod host;
mod mount;
mod negotiate;
mod options;
mod responder;
mod server;
mod statistics;
mod uring;
pub mod wire;
mod worker;
mod writers;

pub use error::{Error, RingError};
pub use host::Host;
pub use options::{Chosen, Options, Transport, UnknownTransport};
pub use server::Server;
pub use statistics::Statistics;
