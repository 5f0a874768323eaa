//! The thread that looks after files of the kernel: whether there is room for what fallocate has promised, and whether room that
//! was given ahead can be taken back.
//!
//! Cost: a look at three counters each period while something is promised, and at a list that is empty otherwise.

use crate::Error;
use crate::pool::EngineFs;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Time between two looks: in it a writer at 3 GB/s takes less than the margin of promises.
const PERIOD: Duration = Duration::from_millis(20);

/// The thread; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Keeper {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub(crate) fn start(fs: &Arc<EngineFs>) -> Result<Self, Error> {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let (fs, until) = (Arc::clone(fs), Arc::clone(&end));
        let run = move || {
            let mut is_over = until.0.lock();
            while !*is_over {
                fs.keep_promises();
                fs.end_ahead();
                until.1.wait_for(&mut is_over, PERIOD);
            }
        };
        let thread = Builder::new()
            .name("promises".into())
            .spawn(run)
            .map_err(Error::Thread)?;
        let thread = Some(thread);
        Ok(Self { end, thread })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.end.0.lock() = true;
        self.end.1.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that keeps promises panicked");
        }
    }
}
