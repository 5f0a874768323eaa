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
