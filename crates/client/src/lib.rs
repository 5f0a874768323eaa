//! Reads and writes of unmodified programs on a mount, as copies through mappings of the files that they have opened.
//!
//! Preloaded into a process by `homenode run`. Calls at an offset (pread(2), pwrite(2) and their kin) on a file of a mount whose bytes the kernel holds become
//! copies where that cannot be told from the system call; fstat(2) and stat(2) ask the server once in a tick; all else is the system call on the program's own descriptor. Offsets of descriptors stay the kernel's, so
//! read(2), write(2) and what lies on them are never copies.
//!
//! Invariants: those of `homenode-mapped`, but for the dynamic linker when a function of the C library is called first. Each function may be called in a
//! signal handler, as those that it stands for. Choice: docs/decisions/020-words.md.

pub mod abi;
mod calls;
mod descriptors;
mod ending;
mod real;
mod signals;
mod start;
