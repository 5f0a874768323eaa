//! The `homenode` command as people use it: the real binary, real mounts.
//!
//! Needs root and /dev/fuse; says SKIPPED where they are missing. Every test works in a directory of its own, and leaves
//! no mount behind when it fails.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod command {
    mod bad_input;
    mod checking;
    mod durable;
    mod ending;
    pub(crate) mod harness;
    mod interrupting;
    mod members;
    mod mount_helper;
    mod mounting;
    mod running;
    mod sockets;
    mod top;
    mod up_and_down;
    mod volumes;
    mod web;
}
