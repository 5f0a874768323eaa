//! The CPU time of another process, from /proc: what serving a mount costs besides its users' own time.

use crate::error::{During, Error};
use homenode_linux::process::{Stat, run_ns};
use rustix::io::Errno;
use std::fs;
use std::io;

/// CPU time of a process since it started, threads that have ended left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuTime {
    /// From every thread's schedstat. Exact for threads that sleep.
    pub(crate) ns: u64,
    /// User and system time in the kernel's clock ticks, as tools show it.
    pub(crate) ticks: u64,
}

impl CpuTime {
    /// Reads the CPU time of the process with this number.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/stat");
        let line = fs::read(&path).during(format_args!("reading {path}"))?;
        let ticks = Stat::parse(&line).ok_or_else(|| malformed(&path))?.run_ticks;
        let tasks = format!("/proc/{pid}/task");
        let listing = |error| Error::system(format!("listing {tasks}"), error);
        let mut ns = 0;
        for task in fs::read_dir(&tasks).map_err(listing)? {
            let path = format!("{}/schedstat", task.map_err(listing)?.path().display());
            match fs::read(&path) {
                Ok(line) => ns += run_ns(&line).ok_or_else(|| malformed(&path))?,
                // The thread has ended meanwhile.
                Err(error)
                    if [Errno::SRCH, Errno::NOENT]
                        .map(Some)
                        .contains(&Errno::from_io_error(&error)) => {}
                Err(error) => return Err(Error::system(format!("reading {path}"), error)),
            }
        }
        Ok(Self { ns, ticks })
    }

    /// Returns the CPU time used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            ns: self.ns.saturating_sub(earlier.ns),
            ticks: self.ticks.saturating_sub(earlier.ticks),
        }
    }
}

fn malformed(path: &str) -> Error {
    Error::system(
        format!("reading {path}"),
        io::Error::other("it does not look as proc(5) says"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn cpu_time_includes_all_threads() {
        let before = CpuTime::of(std::process::id()).expect("this process runs");
        let used = || CpuTime::of(std::process::id()).expect("our own").since(before);
        let spin = || {
            let start = Instant::now();
            loop {
                let used = used();
                // The machine may be busy with others, so it may take longer; threads of other tests that end are counted no more.
                let is_enough = used.ns >= 20_000_000 && used.ticks > 0;
                if is_enough || start.elapsed() > Duration::from_secs(10) {
                    return used;
                }
                std::hint::spin_loop();
            }
        };
        let used = std::thread::scope(|scope| scope.spawn(spin).join().expect("the thread only spins"));
        assert!(used.ns >= 20_000_000 && used.ticks > 0, "{used:?}");
    }

    #[test]
    fn cpu_time_of_a_missing_process_is_an_error() {
        assert!(CpuTime::of(u32::MAX).is_err());
    }
}
