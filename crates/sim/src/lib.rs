//! Homenode's placement decisions in virtual time: machines and loads that are not at hand.
//!
//! Everything here is **simulated**. The decisions are `homenode_policy`'s own, called as the engine and the daemon call them. The
//! machine is a model of few constants ([`Constants`]): cores that copy lines, memories and links that carry so many lines a second,
//! locks whose cache line travels. Constants that nobody has measured are bands; a figure draws them anew for each run and tells the
//! median and the range.
//!
//! - [`Machine`] is the hardware, [`Agenda`] the order of events, [`Lock`] a lock that is handed over.
//! - [`Files`] says where the blocks of files lie, for each contestant.
//! - [`fio`], [`ycsb`], [`moving`], [`queues`], [`cached`] and [`upload`] are the loads.
//! - [`gain`] tells what a recorded machine would gain.
//! - [`figures`] runs the loads for the papers' figures.
//! - [`trace`] reads what a mount has recorded.
//!
//! Invariants: the same machine, load and seed give the same numbers; no clock, file or thread is used.
//! Cost: an event takes 30 to 100 ns, and memory does not grow with virtual time.
#![forbid(unsafe_code)]

mod agenda;
pub mod cached;
mod constants;
pub mod figures;
mod files;
pub mod fio;
pub mod gain;
mod lock;
mod machine;
pub mod moving;
pub mod queues;
mod scheduler;
pub mod trace;
pub mod upload;
pub mod ycsb;

pub use agenda::Agenda;
pub use constants::{Band, Constants, Copies, Drawn};
pub use files::{Contestant, Files};
pub use lock::Lock;
pub use machine::{Machine, MachineError, Traffic, shapes};

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// Random numbers; the same on every machine.
pub(crate) type Random = Xoshiro256PlusPlus;

/// Uses of random numbers. Each has a stream of its own, so that what is drawn for one tells nothing of another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Constants = 1,
    /// Costs of a load.
    Load,
    /// Choices in the course of a run.
    Run,
    /// Orders in which jobs write, and one more for each job.
    Orders,
}

pub(crate) fn random(stream: Stream, seed: u64) -> Random {
    random_of(stream, 0, seed)
}

/// The stream of one of several actors.
pub(crate) fn random_of(stream: Stream, actor: u64, seed: u64) -> Random {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    Random::seed_from_u64((seed.wrapping_mul(MIX) ^ stream as u64).wrapping_mul(MIX) ^ actor)
}

/// Picoseconds of virtual time in a nanosecond.
pub const PS_PER_NS: u64 = 1000;
/// Picoseconds of virtual time in a second.
pub const PS_PER_S: u64 = 1_000_000_000_000;
/// Bytes of a cache line, in which memory is moved.
pub const LINE_BYTES: u64 = 64;
