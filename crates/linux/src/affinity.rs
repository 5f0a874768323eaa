//! Core affinity on this machine: senses what it is decided from, and acts on what was decided.
//!
//! [`act`] uses what `sense` reads; `sense` knows nothing of `act`.

pub mod act;
pub(crate) mod sense;

pub(crate) use sense::recorded_whole;
pub use sense::{
    Ask, ByNode, Card, Count, Error, FilePlace, Hardware, PoolTasks, QueueCounts, Sensed, Sensor, Table, TaskBytes,
    Unseen, record, recorded,
};
