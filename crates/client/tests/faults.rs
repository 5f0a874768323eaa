//! Faults: what programs, and their deaths, can do to each other's copies, and what must come of it. Needs root and /dev/fuse.
//!
//! Each file here has a test and the parts of it that run as programs, with the library preloaded or without it. Seeds are printed; `HOMENODE_TEST_SEED=N`
//! takes the place of the random ones. `HOMENODE_TEST_SECONDS=N` makes the stress last so long, and `HOMENODE_TEST_STEPS=all` stops copies at each instruction for
//! each thing that others may do then.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

#[allow(dead_code, reason = "shared with the tests of programs, which use the rest of it")]
mod support;

#[allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "they call the C library as programs do: with numbers, and buffers with their lengths"
)]
mod faults {
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "calls that are stopped use the rest of it")
    )]
    mod board;
    pub(crate) mod exercise;
    pub(crate) mod full;
    #[cfg(target_arch = "x86_64")]
    mod model;
    pub(crate) mod pools;
    pub(crate) mod scribble;
    pub(crate) mod short;
    pub(crate) mod stamps;
    #[cfg(target_arch = "x86_64")]
    mod steps;
    #[cfg(target_arch = "x86_64")]
    mod trace;
}

/// The program that tests run.
mod program {
    use crate::faults::{exercise, full, pools, scribble, short, stamps};
    use crate::support::calls::commands;
    use crate::support::{FILE, PART};
    use std::path::PathBuf;

    /// Does its part, if this process was started for one.
    #[test]
    fn program() {
        let Ok(part) = std::env::var(PART) else { return };
        let path = PathBuf::from(std::env::var_os(FILE).unwrap());
        match &*part {
            "commands" => commands(&path),
            "exercise" => exercise::part(&path),
            "full" => full::part(&path),
            "numbers" => full::numbers(&path),
            "pools" => pools::part(&path),
            "scribble" => scribble::part(&path),
            "serve" => short::part(),
            "stamps" => stamps::part(&path),
            other => panic!("no part {other}"),
        }
    }
}
