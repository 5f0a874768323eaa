//! Faults: what the kernel, the machine or a program can do to a mount, and what must come of it.
//!
//! Needs root and /dev/fuse; says SKIPPED where they are missing. Some tests change a setting of the machine for a moment;
//! no other test of this binary runs then, and cargo runs one binary at a time.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

#[path = "command/harness.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "shared with the tests of the command, which use all of it"
)]
mod harness;
/// Where the tests of the command have it.
mod command {
    pub(crate) use super::harness;
}
mod faults {
    mod clients;
    mod cpus;
    mod kernel;
    mod kernel_files;
    mod load;
    mod machine;
    mod memory;
    mod resources;
    mod rings;
    mod server;
    mod silent_server;
    mod sync;
}
