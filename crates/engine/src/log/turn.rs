//! Work that a thread does for all who wait for it.
//!
//! A mutex would hand itself on from one waiter to the next, with a wake-up for each, only for them to see that all is done. Here all are woken
//! at once. And who leads waits a little for those who came along the last time: they are about to ask again.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most time for which a leader waits for others, if the work took as long the last time.
const GATHERING_MAX: Duration = Duration::from_micros(500);

/// State of the threads that lead and wait.
#[derive(Debug, Default)]
pub(super) struct Turn {
    state: Mutex<State>,
    /// Told when the work is done.
    done: Condvar,
    /// Told when as many wait as are expected.
    joined: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_led: bool,
    /// Threads that wait besides the leader.
    waiting: usize,
    /// Threads that waited when the last work was done.
    expected: usize,
    /// Time that the work took.
    took: Duration,
}

impl Turn {
    /// Does `work`, or waits until another thread has done it once, if one is at it. What the caller asked for may have been too late for that one.
    pub(super) fn lead_or_wait(&self, work: impl FnOnce()) {
        let mut state = self.lock();
        if state.is_led {
            state.waiting += 1;
            if state.waiting == state.expected {
                self.joined.notify_one();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            return;
        }
        state.is_led = true;
        let deadline = Instant::now() + state.took.min(GATHERING_MAX);
        while state.waiting < state.expected
            && let Some(left) = deadline.checked_duration_since(Instant::now())
        {
            let waited = self.joined.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let start = Instant::now();
        let _led = Led(self);
        work();
        let mut state = self.lock();
        (state.took, state.expected) = (start.elapsed(), state.waiting);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A leader that panics leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread leads; another may when this is dropped.
struct Led<'a>(&'a Turn);

impl Drop for Led<'_> {
    fn drop(&mut self) {
        self.0.lock().is_led = false;
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    #[test]
    fn one_leader_works_for_all_and_all_callers_return() {
        const THREADS: u64 = 16;
        const CALLS: u64 = 300;
        let (turn, is_busy) = (Turn::default(), AtomicBool::new(false));
        let (asked, done, works) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let ask = || {
            for _ in 0..CALLS {
                let own = asked.fetch_add(1, Ordering::SeqCst) + 1;
                while done.load(Ordering::SeqCst) < own {
                    turn.lead_or_wait(|| {
                        assert!(!is_busy.swap(true, Ordering::SeqCst), "two leaders at once");
                        let through = asked.load(Ordering::SeqCst);
                        thread::sleep(Duration::from_micros(20));
                        done.store(through, Ordering::SeqCst);
                        works.fetch_add(1, Ordering::SeqCst);
                        is_busy.store(false, Ordering::SeqCst);
                    });
                }
            }
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(ask))));
        let works = works.into_inner();
        assert!(works < THREADS * CALLS / 2, "{works} works: no call was shared");
    }

    #[test]
    fn a_panicking_leader_passes_the_turn_on() {
        let turn = Turn::default();
        let panics = || turn.lead_or_wait(|| panic!("planned panic"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        let mut is_done = false;
        turn.lead_or_wait(|| is_done = true);
        assert!(is_done);
    }
}
