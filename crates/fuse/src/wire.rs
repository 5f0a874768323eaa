//! The FUSE wire codec: requests of the kernel parsed from bytes, answers written into a caller's buffer.
//!
//! Owns the protocol's numbers and layouts and nothing else: no file descriptor, no allocation, no unsafe code. Requests
//! borrow the buffer they were read into. Any bytes at all may be parsed: the result is a request or [`Malformed`],
//! never a panic and never a read outside the buffer (fuzz/fuzz_targets/request.rs).
//!
//! Source: include/uapi/linux/fuse.h, protocol 7.45 (Linux 6.18). Fields carry the names of that header, so that the two
//! can be compared. Requests are parsed as kernels from 7.36 on send them, which is why older ones are refused when
//! mounting ([`MINOR_MIN`]).

pub mod flags;
mod input;
mod layout;
mod opcode;
mod output;
mod reply;
mod request;
mod ring;

pub use input::*;
pub use layout::{Field, Zeros};
pub use opcode::Opcode;
pub use output::*;
pub use reply::{Full, Reply};
pub use request::{Forgets, Incoming, Malformed, Request};
pub use ring::{RING_HEADER_BYTES, RingCommand, RingEntry, RingHeader};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version this codec knows.
pub const MINOR: u32 = 45;
/// The oldest minor version whose layouts the parser assumes: 7.36 has flags2, SETXATTR's long form and KILLPRIV_V2.
/// Linux 6.1 speaks 7.37.
pub const MINOR_MIN: u32 = 36;
