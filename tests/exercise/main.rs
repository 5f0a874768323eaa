//! Programs at work on the mounted filesystem: exercisers that check every byte, and software that people run.
//!
//! As for the posix suite, `HOMENODE_TEST_DIR=/some/tmpfs` runs everything there instead. Seeds are printed;
//! `HOMENODE_TEST_SEED=N` takes the place of the random ones.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers, too")]

mod build;
mod database;
mod fio;
mod fsx;
#[path = "../posix/mount.rs"]
#[allow(dead_code, reason = "shared with the posix suite, which uses all of it")]
mod mount;
#[path = "../posix/stage.rs"]
#[allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "shared with the posix suite, which uses all of it"
)]
mod stage;
mod stamp;
mod tool;
