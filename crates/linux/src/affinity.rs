//! Core affinity on this machine: senses what it is decided from, and acts on what was decided.
//!
//! [`act`] uses what `sense` reads; `sense` knows nothing of `act`.

pub mod act;
pub(crate) mod sense;

pub(crate) use sense::recorded_whole;
pub use sense::{
    Card, Count, Error, Hardware, NodeBytes, QueueCounts, Sensed, Sensor, Table, Unseen, placement, record, recorded,
};
