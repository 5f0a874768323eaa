//! Files of a mounted pool, read and written by copies through mappings.
//!
//! Stands in programs of others: the library that `homenode run` preloads, C programs that link it, and users of the `homenode` crate who attach a file. A call at an offset
//! on a descriptor becomes a copy where that cannot be told from the system call, and is the system call else.
//!
//! Invariants. Nothing here allocates from the heap, waits for a lock, or starts a thread. Where a lock is taken by somebody else, the system call is made. A mapping is
//! unmapped when no thread copies through it. Nothing is shared with other processes but words that only the server writes. Whoever closes a descriptor, or puts another file
//! in its place, tells so by [`replaced`]. Choice: docs/decisions/020-words.md.

mod apart;
mod appending;
mod attached;
mod attributes;
mod copies;
mod errno;
mod faults;
mod files;
mod mapped;
mod pages;
pub mod statistics;
mod threads;

pub use appending::stop_appending;
pub use attached::{Attached, by_node};
pub use attributes::{forget_answers, of_descriptor, of_path};
pub use copies::{read, write};
pub use errno::KeptErrno;
pub use faults::{is_caught, program_action, set_program_action, without_bus};
pub use files::{
    after_fork, exchanged, forget, forget_all, has, is_on, is_other, learn_now, replaced, start_all, stop, written,
};
pub use mapped::{Buffers, From, FromMany, Range, To, ToMany, range};
pub use pages::only;
pub use statistics::is_own_process;
