//! The engine driven with memory that fails on purpose and a clock that stands still, against slow, obvious models.

#![allow(clippy::cast_possible_truncation, reason = "sizes of a test")]

mod attributes;
#[cfg(test)]
mod blk;
mod capabilities;
mod closers;
mod deep;
mod extending;
mod faults;
mod file_model;
mod kernel_files;
mod largest;
mod log_room;
mod metadata;
mod namespace_model;
mod namespace_races;
mod open;
mod pool;
mod snapshots;
mod stamped;
mod steps;
mod support;
mod troubled;
mod volumes;
