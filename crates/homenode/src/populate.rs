//! Populating ahead: one thread per member that is not wholly populated yet.
//!
//! Invariants: a thread runs on its node's CPUs, so that the kernel clears the pages there; it stops when its member is
//! wholly populated, when it is told to, or with the pool. A first write finds populated blocks as long as writers do not
//! outrun the window between two looks.
//! Cost: while a member waits for writers, one look at its counters every few milliseconds, every 64 ms when idle.

use crate::pool::EngineFs;
use crate::{CpuId, Error, MemberId, NodeId};
use homenode_engine::BLOCK_BYTES;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// First pause after the window was found full; doubles up to the second while nobody writes. At 64 ms a window of
/// 256 MiB lasts writers of 4 GB/s.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// How often a node without free memory is asked again.
const STARVED_PAUSE: Duration = Duration::from_secs(1);

/// The thread that populates one member. Dropping it stops the thread and waits for it (one run of 2 MiB at most).
#[derive(Debug)]
pub(crate) struct Populator {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

/// Where a populating thread is: what the others wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing populated yet.
    #[default]
    Starting,
    /// Some blocks are there, the window is not full.
    Filling,
    /// The window is full, or the member wholly populated.
    Full,
    /// The node has no free memory at present.
    Starved,
}

#[derive(Debug, Default)]
struct Signal {
    stop: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Signal {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, progress: Progress) {
        let mut now = self.progress();
        if *now != progress {
            *now = progress;
            self.changed.notify_all();
        }
    }

    /// Waits `pause`, or until told to stop.
    fn pause(&self, pause: Duration) {
        let now = self.progress();
        let running = |_: &mut Progress| !self.stop.load(Ordering::Relaxed);
        drop(self.changed.wait_timeout_while(now, pause, running));
    }
}

impl Populator {
    /// Starts populating `member` of `fs` so that `ahead_bytes` of it are free and populated.
    pub(crate) fn start(
        fs: &Arc<EngineFs>,
        member: MemberId,
        home: NodeId,
        home_cpus: Vec<CpuId>,
        ahead_bytes: u64,
    ) -> Result<Self, Error> {
        let signal = Arc::new(Signal::default());
        let ahead_blocks = ahead_bytes / BLOCK_BYTES as u64;
        let (thread_fs, thread_signal) = (Arc::clone(fs), Arc::clone(&signal));
        let thread = Builder::new()
            .name(format!("populate-{}", member.0))
            .spawn(move || {
                // A memory-only node has no CPUs, and a cpuset may forbid them: then any CPU does the work, and the
                // member's memory policy still puts the pages on its node.
                if !home_cpus.is_empty()
                    && let Err(error) = homenode_linux::cpu::pin_to_node_cpus(&home_cpus)
                {
                    tracing::warn!("populating {member} away from {home}: cannot run there: {error}");
                }
                run(&thread_fs, member, ahead_blocks, &thread_signal);
            })
            .map_err(Error::Thread)?;
        Ok(Self {
            signal,
            thread: Some(thread),
        })
    }

    /// Waits until `enough`, and tells where the thread is then.
    pub(crate) fn wait_until(&self, enough: impl Fn(Progress) -> bool) -> Progress {
        let now = self.signal.progress();
        let waited = self.signal.changed.wait_while(now, |progress| !enough(*progress));
        *waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&mut self) {
        // Under the lock: the thread is either before its wait and sees it, or in it and is woken.
        let guard = self.signal.progress();
        self.signal.stop.store(true, Ordering::Relaxed);
        self.signal.changed.notify_all();
        drop(guard);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a populating thread panicked");
        }
    }
}

impl Drop for Populator {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(fs: &EngineFs, member: MemberId, ahead_blocks: u64, signal: &Signal) {
    let pool = fs.pool();
    let mut pause = PAUSE_MIN;
    let mut too_few_at = None;
    while !signal.stop.load(Ordering::Relaxed) {
        if pool.populate_ahead(member, ahead_blocks) {
            pause = PAUSE_MIN;
            if *signal.progress() == Progress::Starting {
                signal.announce(Progress::Filling);
            }
            continue;
        }
        let Some(status) = pool.status().members.into_iter().find(|status| status.id == member) else {
            return;
        };
        if status.populated >= status.capacity {
            signal.announce(Progress::Full);
            return;
        }
        if status.populated.saturating_sub(status.used) >= ahead_blocks {
            signal.announce(Progress::Full);
            signal.pause(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        } else if too_few_at == Some(status.populated) {
            // Asked for more, and got nothing.
            signal.announce(Progress::Starved);
            signal.pause(STARVED_PAUSE);
        } else {
            // Writers may have emptied the window since it was found full: ask again before calling the node starved.
            too_few_at = Some(status.populated);
        }
    }
}
