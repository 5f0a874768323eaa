//! The filesystem through the kernel: mounted on a directory, used with ordinary calls. Needs root and /dev/fuse.
//! `HOMENODE_TEST_TRANSPORT=uring` or `classic` says how requests travel.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod attributes;
mod data;
mod durable;
mod life;
mod open;
mod support;
mod words;
