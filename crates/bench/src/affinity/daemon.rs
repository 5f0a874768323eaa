//! Cost of `homenode affinity run` beside 1,000 threads on this machine: its CPU time in a second, read from /proc.
//!
//! The threads are of this process. Nothing on this machine is moved: the daemon may move only what is of a process that
//! does not run. Some threads may move bytes; they pay for being counted, which is told apart from what the daemon takes.

use super::command::Daemon;
use super::movers::Network;
use crate::cpu_time::CpuTime;
use crate::error::{During, Error};
use crate::interrupt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

const THREADS: usize = 1000;
/// A thread needs little of it.
const STACK_BYTES: usize = 64 << 10;
/// Interval at which a running thread wakes for a moment.
const TURN: Duration = Duration::from_millis(200);
/// The first periods read what later ones know.
const WARM_UP: Duration = Duration::from_secs(3);
/// Everything is looked at and decided on, and nothing is moved.
const CONFIGURATION: &str = "policy = \"off\"\n[processes]\nof-nobody = \"local\"\n";

/// Numbers of threads that run and that move bytes. All other threads sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    pub(super) name: &'static str,
    running: usize,
    /// Sending and receiving ones together.
    moving: usize,
}

pub(super) const CROWDS: [Crowd; 4] = [
    Crowd {
        name: "idle",
        running: 0,
        moving: 0,
    },
    Crowd {
        name: "a-tenth-run",
        running: THREADS / 10,
        moving: 0,
    },
    Crowd {
        name: "all-run",
        running: THREADS,
        moving: 0,
    },
    Crowd {
        name: "200-move-bytes",
        running: 0,
        moving: 200,
    },
];

/// Cost of an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// The daemon's CPU time, in percent of a CPU.
    pub(super) daemon_percent: f64,
    /// This process's CPU time.
    own_ns: u64,
    messages: u64,
}

impl Cost {
    /// This process's CPU time for a message that was sent and received.
    pub(super) fn message_ns(&self) -> Result<f64, Error> {
        if self.messages == 0 {
            return Err(Error::system(
                "moving bytes over virtual cards",
                io::ErrorKind::TimedOut,
            ));
        }
        Ok(self.own_ns as f64 / self.messages as f64)
    }
}

impl Crowd {
    pub(super) fn moves_bytes(self) -> bool {
        self.moving > 0
    }

    /// Measures the cost of an interval, with or without the daemon beside the crowd.
    pub(super) fn cost(self, daemon: Option<&Path>, length: Duration) -> Result<Cost, Error> {
        let threads = Threads::start(self)?;
        let daemon = daemon
            .map(|command| Daemon::start(command, CONFIGURATION))
            .transpose()?;
        let now = || {
            let daemon = daemon.as_ref().map(|daemon| CpuTime::of(daemon.pid())).transpose()?;
            let messages = threads.messages.load(Ordering::Relaxed);
            Ok::<_, Error>((Instant::now(), daemon, CpuTime::of(std::process::id())?, messages))
        };
        thread::sleep(WARM_UP);
        let (begin, daemon_before, own_before, messages_before) = now()?;
        while begin.elapsed() < length {
            interrupt::check()?;
            thread::sleep(TURN);
        }
        let (end, daemon_after, own_after, messages_after) = now()?;
        if let Some(daemon) = daemon {
            daemon.stop()?;
        }
        threads.stop()?;
        let daemon_ns = daemon_after
            .zip(daemon_before)
            .map_or(0, |(after, before)| after.since(before).ns);
        Ok(Cost {
            daemon_percent: 100.0 * Duration::from_nanos(daemon_ns).div_duration_f64(end - begin),
            own_ns: own_after.since(own_before).ns,
            messages: messages_after - messages_before,
        })
    }
}

/// Threads that move bytes, that run for a moment again and again, and that never do.
#[derive(Debug)]
struct Threads {
    end: Arc<AtomicBool>,
    /// That were received.
    messages: Arc<AtomicU64>,
    all: Vec<JoinHandle<io::Result<()>>>,
    /// Network of the threads that move bytes.
    network: Option<Network>,
}

impl Threads {
    fn start(crowd: Crowd) -> Result<Self, Error> {
        let mut threads = Self {
            end: Arc::default(),
            messages: Arc::default(),
            all: Vec::with_capacity(THREADS),
            network: None,
        };
        if crowd.moves_bytes() {
            let network = threads.network.insert(Network::make()?);
            let pairs = (0..crowd.moving / 2).map(|_| network.pair());
            for mover in pairs.collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
                threads.add(move |end, messages| mover.run(end, messages))?;
            }
        }
        for number in 0..THREADS - crowd.moving {
            threads.add(move |end, _| {
                while !end.load(Ordering::Relaxed) {
                    if number < crowd.running {
                        thread::sleep(TURN);
                    } else {
                        thread::park();
                    }
                }
                Ok(())
            })?;
        }
        Ok(threads)
    }

    fn add(
        &mut self,
        work: impl FnOnce(&AtomicBool, &AtomicU64) -> io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let (end, messages) = (Arc::clone(&self.end), Arc::clone(&self.messages));
        let started = Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || work(&end, &messages));
        self.all.push(started.during("starting 1,000 threads")?);
        Ok(())
    }

    fn stop(mut self) -> Result<(), Error> {
        self.end();
        self.all.drain(..).try_for_each(|thread| {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended.during("moving bytes over virtual cards")
        })
    }

    fn end(&self) {
        self.end.store(true, Ordering::Relaxed);
        self.all.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}
