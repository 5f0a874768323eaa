//! Threads that must come to an end.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A thread that has not answered by then waits for something that never comes.
const DEADLOCK_AFTER: Duration = Duration::from_secs(90);

/// Runs all `jobs` at once, each on its own thread, and gives their results in no order.
///
/// # Panics
/// When one panics, or does not come to an end.
pub(crate) fn run_all<T: Send + 'static>(jobs: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let (done, waiting) = channel();
    let count = jobs.len();
    for job in jobs {
        let done = done.clone();
        // Not scoped: a scope would wait for the thread that never ends.
        std::thread::spawn(move || {
            let result = job();
            // Nobody listens any more when another thread failed.
            let _ = done.send(result);
        });
    }
    drop(done);
    let result = |_| match waiting.recv_timeout(DEADLOCK_AFTER) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("deadlock"),
        Err(RecvTimeoutError::Disconnected) => panic!("a thread panicked, see above"),
    };
    (0..count).map(result).collect()
}
