//! A clock that only the test moves.

use homenode_engine::Clock;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Starts at one second after the epoch.
#[derive(Clone, Debug)]
pub(crate) struct ManualClock(Arc<AtomicI64>);

impl Default for ManualClock {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(1_000_000_000)))
    }
}

impl ManualClock {
    pub(crate) fn advance_ns(&self, by: i64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}
