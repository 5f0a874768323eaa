//! Populating ahead: one thread per member that is not wholly populated yet.
//!
//! Invariants: a thread runs on its node's CPUs, so that the kernel clears the pages there; it stops when its member is
//! wholly populated, when it is told to, or with the pool. A first write finds populated blocks as long as writers do not
//! outrun the window between two looks.
//! Cost: while a member waits for writers, one look at its counters every few milliseconds, every 64 ms when idle.

use crate::pool::EngineFs;
use crate::{CpuId, Error, MemberId, NodeId};
use homenode_engine::BLOCK_BYTES;
use homenode_engine::pool::Ahead;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// First pause after the window was found full; doubles up to the second while nobody writes. At 64 ms a window of
/// 256 MiB lasts writers of 4 GB/s.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// How often a node without free memory is asked again.
const STARVED_PAUSE: Duration = Duration::from_secs(1);

/// The thread that populates one member, once it is told to begin. Dropping it stops the thread and waits for it (one run of 2 MiB at most).
#[derive(Debug)]
pub(crate) struct Populator {
    signal: Arc<Signal>,
    /// Blocks that are to be free and populated.
    ahead_blocks: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Where a populating thread is: what the others wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Not told to begin.
    #[default]
    Waiting,
    /// Nothing populated yet.
    Starting,
    /// Some blocks are there, the window is not full.
    Filling,
    /// The window is full, or was when it was looked at last.
    Full,
    /// The member is wholly populated: the thread has ended.
    Whole,
    /// The node has no free memory at present.
    Starved,
}

#[derive(Debug, Default)]
struct Signal {
    stop: AtomicBool,
    /// Somebody wants to know what is found from now on. Changed with `progress` locked.
    asked: AtomicBool,
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

    /// Waits until told to begin or to stop.
    fn wait_for_begin(&self) {
        let now = self.progress();
        let waiting = |progress: &mut Progress| *progress == Progress::Waiting && !self.stop.load(Ordering::Relaxed);
        drop(self.changed.wait_while(now, waiting));
    }

    /// Notes that a look begins: its result answers all who asked before.
    fn begin_to_look(&self) {
        let _now = self.progress();
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Announces what a look found, and waits `pause`, or until told to look again or to stop: at once, if that was while it
    /// looked.
    fn pause(&self, found: Progress, pause: Duration) {
        let mut now = self.progress();
        if !self.asked.load(Ordering::Relaxed) && *now != found {
            *now = found;
            self.changed.notify_all();
        }
        let resting = |_: &mut Progress| !self.asked.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed);
        drop(self.changed.wait_timeout_while(now, pause, resting));
    }
}

impl Populator {
    /// A thread that will populate `member` of `fs` so that `ahead_bytes` of it are free and populated: all that can fail,
    /// before anything else is changed.
    pub(crate) fn prepare(
        fs: &Arc<EngineFs>,
        member: MemberId,
        home: NodeId,
        home_cpus: Vec<CpuId>,
        ahead_bytes: u64,
    ) -> Result<Self, Error> {
        let signal = Arc::new(Signal::default());
        let ahead_blocks = Arc::new(AtomicU64::new(ahead_bytes / BLOCK_BYTES as u64));
        let (thread_fs, thread_signal) = (Arc::clone(fs), Arc::clone(&signal));
        let thread_ahead = Arc::clone(&ahead_blocks);
        let populate = move || {
            thread_signal.wait_for_begin();
            // A memory-only node has no CPUs, and a cpuset may forbid them: then any CPU does the work, and the
            // member's memory policy still puts the pages on its node.
            if !home_cpus.is_empty()
                && let Err(error) = homenode_linux::cpu::pin_to_node_cpus(&home_cpus)
            {
                tracing::warn!("populating {member} away from {home}: cannot run there: {error}");
            }
            run(&thread_fs, member, &thread_ahead, &thread_signal);
        };
        let thread = spawn(Builder::new().name(format!("populate-{}", member.0)), populate);
        Ok(Self {
            signal,
            ahead_blocks,
            thread: Some(thread.map_err(Error::Thread)?),
        })
    }

    /// Sets how much is to be free and populated from now on.
    pub(crate) fn set_ahead(&self, bytes: u64) {
        // Relaxed: the thread looks again at its next turn, if not now.
        self.ahead_blocks.store(bytes / BLOCK_BYTES as u64, Ordering::Relaxed);
        self.look_again();
    }

    /// Starts populating.
    pub(crate) fn begin(&self) {
        self.signal.announce(Progress::Starting);
    }

    /// Has the thread look again, now: what it found before may have been used since.
    pub(crate) fn look_again(&self) {
        let mut now = self.signal.progress();
        if matches!(*now, Progress::Full | Progress::Starved) {
            *now = Progress::Starting;
        }
        self.signal.asked.store(true, Ordering::Relaxed);
        self.signal.changed.notify_all();
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

fn spawn(builder: Builder, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    #[cfg(test)]
    if tests::REFUSE.get() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    builder.spawn(run)
}

fn run(fs: &EngineFs, member: MemberId, ahead_blocks: &AtomicU64, signal: &Signal) {
    let mut pause = PAUSE_MIN;
    while !signal.stop.load(Ordering::Relaxed) {
        signal.begin_to_look();
        match fs.pool().populate_ahead(member, ahead_blocks.load(Ordering::Relaxed)) {
            Ahead::More => {
                pause = PAUSE_MIN;
                if *signal.progress() == Progress::Starting {
                    signal.announce(Progress::Filling);
                }
            }
            Ahead::Enough => {
                signal.pause(Progress::Full, pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Ahead::Starved => {
                signal.pause(Progress::Starved, STARVED_PAUSE);
            }
            Ahead::Whole => {
                signal.announce(Progress::Whole);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Error, MemberState, NodeId, Pool, PoolOptions, Size};
    use std::cell::Cell;

    thread_local! {
        /// Whether the kernel has no more threads for this one.
        pub(super) static REFUSE: Cell<bool> = const { Cell::new(false) };
    }

    const MEMBER: Size = Size::Bytes(8 << 20);

    fn pool() -> Pool {
        Pool::create(&PoolOptions::new().size_per_node(MEMBER).node(NodeId(0))).unwrap()
    }

    fn without_threads<R>(operation: impl FnOnce() -> R) -> R {
        REFUSE.set(true);
        let result = operation();
        REFUSE.set(false);
        result
    }

    #[test]
    fn a_member_without_a_thread_is_not_added() {
        let pool = pool();
        let before = pool.status();
        let refused = without_threads(|| pool.add_member(NodeId(0), MEMBER));
        assert!(matches!(refused, Err(Error::Thread(_))), "{refused:?}");
        let after = pool.status();
        assert_eq!(after.members.len(), before.members.len());
        assert_eq!(after.capacity_bytes, before.capacity_bytes);
        let member = pool.add_member(NodeId(0), MEMBER).unwrap();
        pool.wait_populated().unwrap();
        assert_eq!(pool.status().members.last().unwrap().id, member);
        assert!(
            pool.status().members.last().unwrap().populated_bytes > 0,
            "the populating thread did not start"
        );
    }

    #[test]
    fn a_member_that_cannot_be_populated_again_is_not_drained() {
        let pool = pool();
        let member = pool.add_member(NodeId(0), MEMBER).unwrap();
        let refused = without_threads(|| pool.drain(member, &mut |_, _| {}));
        assert!(matches!(refused, Err(Error::Thread(_))), "{refused:?}");
        pool.wait_populated().unwrap();
        assert_eq!(pool.status().members.last().unwrap().state, MemberState::Candidate);
        pool.drain(member, &mut |_, _| {}).unwrap();
        pool.remove(member).unwrap();
    }

    #[test]
    fn a_member_whose_drain_fails_is_populated_again() {
        let pool = pool();
        let member = pool.status().members[0].id;
        assert!(pool.drain(member, &mut |_, _| {}).is_err(), "the only member");
        pool.wait_populated().unwrap();
        assert_eq!(pool.status().members[0].state, MemberState::Candidate);
    }
}
