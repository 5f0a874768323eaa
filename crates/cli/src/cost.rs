//! CPU time of tests: what a second of watching costs.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// CPU time of this thread for each of many rounds, the median.
pub(crate) fn median_cost(mut work: impl FnMut()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("no thread has run for less than no time")
    };
    let mut costs: Vec<_> = (0..50)
        .map(|_| {
            let before = now();
            work();
            now() - before
        })
        .collect();
    costs.sort();
    costs[costs.len() / 2]
}
