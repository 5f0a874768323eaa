//! MBS monitor (MBS-LVM section 2.4, Algorithm 1).
/// Monitor.
#[derive(Debug)]
pub struct Monitor;
/// Thresholds.
#[derive(Debug)]
pub struct Thresholds;
