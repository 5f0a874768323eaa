//! The time of day from the kernel's coarse clock: no system call, a few nanoseconds, good to one tick (1–4 ms).

use homenode_engine::Clock;

/// `CLOCK_REALTIME_COARSE`: what the kernel itself stamps files with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseClock;

impl Clock for CoarseClock {
    #[inline]
    fn now_ns(&self) -> i64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a timespec to write to; the clock exists on every Linux since 2.6.32, so the call cannot fail.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
        now.tv_sec * 1_000_000_000 + now.tv_nsec
    }
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
    fn moves_on() {
        let before = CoarseClock.now_ns();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(CoarseClock.now_ns() > before);
    }
}
