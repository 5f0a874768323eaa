//! Placement inside the pool: which member, which blocks.

mod buddy;
mod monitor;

pub use buddy::{Buddy, HUGE_ORDER, MAX_ORDER, ORDERS};
pub use monitor::{Monitor, Thresholds};
