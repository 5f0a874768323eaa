//! What `homenode affinity run` costs beside 1,000 threads, on this machine: its CPU time in a second, read from /proc.
//!
//! The threads are of this process. Nothing on this machine is moved: the daemon may move only what is of a process that
//! does not run.

use super::command::Daemon;
use crate::cpu_time::CpuTime;
use crate::error::Error;
use crate::interrupt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

const THREADS: usize = 1000;
/// A thread needs little of it.
const STACK_BYTES: usize = 64 << 10;
/// So often a thread that runs does.
const TURN: Duration = Duration::from_millis(200);
/// The first periods read what later ones know.
const WARM_UP: Duration = Duration::from_secs(3);
/// Everything is looked at and decided on, and nothing is moved.
const CONFIGURATION: &str = "policy = \"off\"\n[processes]\nof-nobody = \"local\"\n";

/// How many of the threads run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    pub(super) name: &'static str,
    running: usize,
}

pub(super) const CROWDS: [Crowd; 3] = [
    Crowd {
        name: "idle",
        running: 0,
    },
    Crowd {
        name: "a-tenth-run",
        running: THREADS / 10,
    },
    Crowd {
        name: "all-run",
        running: THREADS,
    },
];

/// The daemon's CPU time, in percent of a CPU.
pub(super) fn percent(command: &Path, crowd: Crowd, length: Duration) -> Result<f64, Error> {
    let threads = Threads::start(crowd.running)?;
    let daemon = Daemon::start(command, CONFIGURATION)?;
    thread::sleep(WARM_UP);
    let (begin, before) = (Instant::now(), CpuTime::of(daemon.pid())?);
    while begin.elapsed() < length {
        interrupt::check()?;
        thread::sleep(TURN);
    }
    let used = CpuTime::of(daemon.pid())?.since(before);
    let percent = 100.0 * Duration::from_nanos(used.ns).as_secs_f64() / begin.elapsed().as_secs_f64();
    daemon.stop()?;
    threads.stop();
    Ok(percent)
}

/// Threads that run for a moment again and again, and others that never do.
#[derive(Debug)]
struct Threads {
    end: Arc<AtomicBool>,
    all: Vec<JoinHandle<()>>,
}

impl Threads {
    fn start(running: usize) -> Result<Self, Error> {
        let mut threads = Self {
            end: Arc::default(),
            all: Vec::with_capacity(THREADS),
        };
        for number in 0..THREADS {
            let end = Arc::clone(&threads.end);
            let turn = move || {
                while !end.load(Ordering::Relaxed) {
                    if number < running {
                        thread::sleep(TURN);
                    } else {
                        thread::park();
                    }
                }
            };
            let started = Builder::new().stack_size(STACK_BYTES).spawn(turn);
            threads
                .all
                .push(started.map_err(|error| Error::system("starting 1,000 threads", error))?);
        }
        Ok(threads)
    }

    fn stop(mut self) {
        self.end();
        for thread in self.all.drain(..) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
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
