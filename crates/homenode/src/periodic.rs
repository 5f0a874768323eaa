//! A thread that does something again and again, until it is dropped.

use crate::Error;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Pause between two looks whether a thread has ended that is not waited for without limit.
const END_PAUSE: Duration = Duration::from_millis(1);

/// The thread; dropping it ends it, after what it is doing.
#[derive(Debug)]
pub(crate) struct Periodic {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
    /// Longest wait for its end.
    patience: Option<Duration>,
}

impl Periodic {
    /// Calls `step` at once, and again whenever the time that it returned is over.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(crate) fn start(name: &str, mut step: impl FnMut() -> Duration + Send + 'static) -> Result<Self, Error> {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let until = Arc::clone(&end);
        let run = move || {
            let (is_over, changed) = &*until;
            loop {
                let rest = step();
                let mut is_over = is_over.lock();
                if !*is_over && !rest.is_zero() {
                    changed.wait_for(&mut is_over, rest);
                }
                if *is_over {
                    return;
                }
            }
        };
        let thread = Builder::new().name(name.to_owned()).spawn(run);
        let thread = Some(thread.map_err(Error::Thread)?);
        Ok(Self {
            end,
            thread,
            patience: None,
        })
    }

    /// Leaves the thread alone, with a warning, if it has not ended `patience` after this is dropped.
    pub(crate) fn left_after(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        *self.end.0.lock() = true;
        self.end.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if let Some(patience) = self.patience {
                let start = Instant::now();
                while !thread.is_finished() {
                    if start.elapsed() >= patience {
                        tracing::warn!("the thread {name} has not ended yet, and is left alone");
                        return;
                    }
                    std::thread::sleep(END_PAUSE);
                }
            }
            if thread.join().is_err() {
                tracing::error!("the thread {name} panicked");
            }
        }
    }
}
