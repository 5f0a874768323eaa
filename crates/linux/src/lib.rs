//! Senses and acts on Linux: memory of every node, CPUs, clocks, topology.

pub mod affinity;
pub mod clock;
pub mod copy;
pub mod cpu;
mod direct;
pub mod discover;
pub mod doctor;
pub mod driver;
pub mod heap;
pub mod mapped;
pub mod memory;
pub mod process;
pub mod reach;
pub mod room;
pub mod steer;
pub mod tmpfs;
pub mod topology;
pub mod ublk;

/// Prints that a test is skipped, past the test harness's capture, which holds what macros print.
#[cfg(test)]
pub(crate) fn skip(why: impl std::fmt::Display) {
    use std::io::Write as _;
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why} ({test})");
}
