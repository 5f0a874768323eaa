//! Placement inside the pool: which member, which blocks.

mod buddy;
mod monitor;

pub use buddy::Buddy;
pub use monitor::{Monitor, Thresholds};
