//! `homenode affinity` through the real binary: on this machine, and on the recording of one with four nodes.
//!
//! What is moved is a process that the test has started: everything else is `off` by the configuration. It needs root, two
//! CPUs and a disk; says SKIPPED where they are missing.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

#[path = "support/command.rs"]
mod support;

mod affinity {
    mod acting;
    mod configuration;
    mod explaining;
    mod failing;
    pub(crate) mod harness;
    mod hidden;
    mod load;
    mod machine;
    mod planning;
    mod recording;
    mod running;
    mod simulating;
}
