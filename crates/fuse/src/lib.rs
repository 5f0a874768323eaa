//! Serves a filesystem of the engine as a mount, through the kernel's FUSE.
//!
//! [`wire`] is the protocol, alone and fuzzable. [`Server`] mounts an [`Fs`](homenode_engine::fs::Fs) and serves it by one of
//! two transports: rings of io_uring, one for each CPU (`uring`), or threads that read requests from descriptors of
//! /dev/fuse (`device`, `worker`). There is no libfuse and no fusermount in it.
//!
//! Invariants: no request, however malformed, ends the server; no request waits for another to be answered; what the machine
//! looks like comes from a [`Host`], this crate asks neither /proc nor sysfs about CPUs and nodes. Unsafe code is in `device`
//! and `uring`, one system call or one access a block.
//!
//! Cost: a request is one system call of a ring, or one read and one write of the device, with the bytes copied once between
//! kernel and buffer and once between buffer and pool.

mod accesses;
mod aside;
mod buffer;
mod call;
mod device;
mod error;
mod host;
mod mount;
mod negotiate;
mod options;
mod passthrough;
mod prepared;
mod responder;
mod server;
mod statistics;
mod tasks;
mod uring;
pub mod wire;
mod worker;
mod writers;

pub use accesses::Accessed;
pub use error::{Error, RingError};
pub use host::Host;
pub use options::{Chosen, ChosenData, Data, Options, Transport, UnknownData, UnknownTransport};
pub use server::Server;
pub use statistics::{Kind, SPANS, Statistics, Times};
pub use tasks::{FILES_MAX, TaskCount, TaskCounts};
