//! Clocks without a system call: the time of day, good to one tick (1–4 ms), and stamps of single requests.

#[cfg(target_arch = "x86_64")]
mod cycles;
mod stamps;

pub use stamps::StampClock;

use homenode_engine::Clock;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_REALTIME_COARSE`: what the kernel itself stamps files with. At most [`REUSE_CYCLES`] old.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseClock;

impl Clock for CoarseClock {
    #[inline]
    fn now_ns(&self) -> i64 {
        #[cfg(target_arch = "x86_64")]
        return reused_ns();
        #[cfg(not(target_arch = "x86_64"))]
        kernel_ns()
    }
}

/// Cycles of the time-stamp counter (a few µs) for which a thread uses the same time again: a loop of small writes asks
/// once in some dozen, and whoever takes a system call between two writes asks each time.
#[cfg(target_arch = "x86_64")]
const REUSE_CYCLES: u64 = 1 << 13;

#[cfg(target_arch = "x86_64")]
#[inline]
fn reused_ns() -> i64 {
    use std::cell::Cell;
    thread_local! {
        /// When this thread last asked, in cycles, and the answer.
        static LAST: Cell<(u64, i64)> = const { Cell::new((0, 0)) };
    }
    // SAFETY: reads a counter that every x86-64 processor has.
    let cycles = unsafe { std::arch::x86_64::_rdtsc() };
    let (asked, ns) = LAST.get();
    // On another CPU the counter may be behind: the difference wraps, and is large.
    if cycles.wrapping_sub(asked) < REUSE_CYCLES {
        return ns;
    }
    let ns = kernel_ns();
    LAST.set((cycles, ns));
    ns
}

#[cold]
#[inline(never)]
fn kernel_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// CPU time of the calling thread, to the nanosecond. In /proc, that of a running thread is as old as the last tick.
#[cfg(test)]
pub(crate) fn thread_cpu_time() -> std::time::Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().expect("no thread has run for less than no time")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn agrees_with_the_exact_clock() {
        let exact = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
        let coarse = CoarseClock.now_ns();
        assert!((coarse - exact).abs() < 1_000_000_000, "coarse {coarse}, exact {exact}");
    }

    #[test]
    fn the_clock_advances() {
        let before = CoarseClock.now_ns();
        let start = std::time::Instant::now();
        while CoarseClock.now_ns() <= before {
            assert!(start.elapsed().as_secs() < 10, "the clock stands still");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
