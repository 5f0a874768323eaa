//! `homenode affinity` through the real binary: on this machine, and on the recording of one with four nodes.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod affinity {
    mod configuration;
    mod explaining;
    pub(crate) mod harness;
    mod machine;
    mod planning;
    mod recording;
}
