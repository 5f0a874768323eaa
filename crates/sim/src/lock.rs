//! A lock whose cache line goes from core to core.

use crate::Machine;
use std::collections::VecDeque;

/// A spin lock, handed over in the order of arrival.
///
/// The line of the lock is fetched from the core that had it last. Cores that wait read it too: each of them slows the next hand-over by
/// a share of a transfer (Boyd-Wickizer and others, "Non-scalable locks are dangerous"). A lock that one core alone uses costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    free_at: u64,
    last: Option<u32>,
    /// Times at which those who have come give it back, ascending.
    ends: VecDeque<u64>,
}

/// Percent of a transfer by which each core that waits slows a hand-over.
const CROWD_PERCENT: u64 = 25;

impl Lock {
    /// Takes the lock at `now` or later, holds it for `hold_ps`, and returns when it is free again.
    pub fn hold(&mut self, machine: &Machine, now: u64, core: u32, hold_ps: u64) -> u64 {
        while self.ends.front().is_some_and(|end| *end <= now) {
            self.ends.pop_front();
        }
        let transfer = match self.last {
            Some(last) if last != core => machine.transfer_ps(last, core),
            _ => 0,
        };
        // The first of them holds it.
        let crowd = (self.ends.len() as u64).saturating_sub(1);
        let begin = now.max(self.free_at) + transfer + transfer * crowd * CROWD_PERCENT / 100;
        (self.free_at, self.last) = (begin + hold_ps, Some(core));
        self.ends.push_back(self.free_at);
        self.free_at
    }
}
