//! The CPU time of another process, from /proc: what serving a mount costs besides its users' own time.

use crate::error::Error;
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
        let stat = read(&format!("/proc/{pid}/stat"))?;
        let ticks = ticks_of(&stat).ok_or_else(|| malformed(&format!("/proc/{pid}/stat")))?;
        let tasks = format!("/proc/{pid}/task");
        let listing = |error| Error::system(format!("listing {tasks}"), error);
        let mut ns = 0;
        for task in fs::read_dir(&tasks).map_err(listing)? {
            let path = format!("{}/schedstat", task.map_err(listing)?.path().display());
            match fs::read_to_string(&path) {
                Ok(text) => ns += ns_of(&text).ok_or_else(|| malformed(&path))?,
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

fn read(path: &str) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| Error::system(format!("reading {path}"), error))
}

fn malformed(path: &str) -> Error {
    Error::system(
        format!("reading {path}"),
        io::Error::other("it does not look as proc(5) says"),
    )
}

/// Fields 14 and 15 of a stat line. The name (field 2) may hold anything, but the last `)` is its end.
fn ticks_of(stat: &str) -> Option<u64> {
    const USER_TIME: usize = 14;
    const FIRST_AFTER_NAME: usize = 3;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(USER_TIME - FIRST_AFTER_NAME);
    let mut next = || times.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// The first field of a schedstat line.
fn ns_of(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn ticks_behind_a_nasty_name() {
        let stat = "7 (a) b (c) 1) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 5 6 20 0 1 0 99";
        assert_eq!(ticks_of(stat), Some(42));
        assert_eq!(ticks_of("7 (short) S 1"), None);
        assert_eq!(ns_of("123456 789 3\n"), Some(123_456));
        assert_eq!(ns_of(""), None);
    }

    #[test]
    fn work_is_seen_in_all_threads() {
        let before = CpuTime::of(std::process::id()).expect("our own");
        let used = || CpuTime::of(std::process::id()).expect("our own").since(before);
        let spin = || {
            let start = Instant::now();
            // The machine may be busy with others, so it may take longer.
            while used().ns < 20_000_000 && start.elapsed() < Duration::from_secs(10) {
                std::hint::spin_loop();
            }
            used()
        };
        let used = std::thread::scope(|scope| scope.spawn(spin).join().expect("it only spins"));
        assert!(used.ns >= 20_000_000 && used.ticks > 0, "{used:?}");
    }

    #[test]
    fn no_such_process() {
        assert!(CpuTime::of(u32::MAX).is_err());
    }
}
