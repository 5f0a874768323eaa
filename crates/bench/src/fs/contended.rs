//! Changing a file that many threads read: how long each change takes, on the library and on tmpfs.
//!
//! Readers, more of them than CPUs, read 8 bytes of one part of the file again and again. Meanwhile one thread punches a
//! block of another part, which it writes before each punch, or writes the file in order. Or nobody reads, and one or two
//! threads write behind the file's end, each the next block. A round's value is the mean time of a change; the
//! distribution is that of all changes of all rounds. No thread is pinned.

use crate::arguments::Common;
use crate::cpus;
use crate::error::{During, Error};
use crate::interleave::Samples;
use crate::place::{Open, Place};
use crate::populated;
use crate::private_tmpfs::{self, Pages};
use crate::report::{HOMENODE, Row, Tail};
use crate::required;
use crate::run::Run;
use homenode::Allocate;
use rustix::fd::AsRawFd;
use rustix::fs::{FallocateFlags, fallocate};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operation of the thread that changes the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Punch,
    Sequential,
    /// Writes behind the end, by this number of threads.
    Extend(usize),
}

/// Change of a file under a number of readers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    change: Change,
    readers: usize,
    /// Least ratio to tmpfs.
    pub(super) ratio_min: f64,
}

const CASES: [Case; 7] = [
    Case::punch(4),
    Case::punch(16),
    Case::punch(64),
    Case::sequential(16),
    Case::sequential(64),
    Case::extend(1),
    Case::extend(2),
];

impl Case {
    /// A punch takes at most five times as long as tmpfs's.
    const fn punch(readers: usize) -> Self {
        Self {
            change: Change::Punch,
            readers,
            ratio_min: 0.2,
        }
    }

    /// Writing in order is at least half as fast as tmpfs.
    const fn sequential(readers: usize) -> Self {
        Self {
            change: Change::Sequential,
            readers,
            ratio_min: 0.5,
        }
    }

    /// Writes behind the end are no slower than tmpfs's.
    const fn extend(writers: usize) -> Self {
        Self {
            change: Change::Extend(writers),
            readers: 0,
            ratio_min: 1.0,
        }
    }

    pub(super) fn readers(&self) -> usize {
        self.readers
    }

    /// Such as `contended/punch/16r`.
    pub(super) fn name(self) -> String {
        let change = match self.change {
            Change::Punch => "punch",
            Change::Sequential => "sequential",
            Change::Extend(writers) => return format!("contended/extend/{writers}w"),
        };
        format!("contended/{change}/{}r", self.readers)
    }
}

/// All whose name is wanted.
pub(super) fn cases(is_wanted: impl Fn(&str) -> bool) -> Vec<Case> {
    CASES.into_iter().filter(|case| is_wanted(&case.name())).collect()
}

/// The peer.
pub(super) const TMPFS: &str = "tmpfs";

/// Bytes of one write in order.
const WRITE_BYTES: usize = 64 << 10;
/// Where readers read, behind the block that is punched.
const READ_FROM: u64 = 8192;
/// Bytes that are there before the first change: what readers read, and more.
const HEAD_BYTES: usize = 1 << 20;

/// Library and tmpfs, each with one file.
pub(super) struct Contended {
    /// A round of punches.
    time_max: Duration,
    /// A round of writes.
    file_bytes: usize,
    /// The library's, then that of tmpfs if there is one.
    files: Vec<(&'static str, Open)>,
}

impl Contended {
    pub(super) fn prepare(common: &Common) -> Result<Self, Error> {
        let file_bytes = if common.smoke { 4 << 20 } else { 32 << 20 };
        let node = cpus::node(cpus::allowed()?[0]);
        let pool =
            populated::pool(2 * file_bytes as u64, Some(node)).map_err(Error::library("creating a populated pool"))?;
        let mut files = vec![(HOMENODE, Place::Pool(pool).create("contended")?)];
        match open_tmpfs(2 * file_bytes as u64) {
            Ok(file) => files.push((TMPFS, file)),
            Err(error) if common.check => return Err(error),
            Err(error) => required::skip(format_args!("a peer: {error}")),
        }
        Ok(Self {
            time_max: Duration::from_millis(if common.smoke { 200 } else { 250 }),
            file_bytes,
            files,
        })
    }

    pub(super) fn run(&self, run: &Run<'_>, case: Case) -> Result<Row, Error> {
        let name = case.name();
        let mut all_ns = vec![Vec::new(); self.files.len()];
        let samples = run.take_turns(&name, self.files.len(), |round, turn| {
            let (contestant, file) = &self.files[turn];
            let changes_ns = self.round(case, file).map_err(|error| error.of(&name, contestant))?;
            let mean_ns = changes_ns.iter().sum::<u64>() as f64 / changes_ns.len() as f64;
            if round > 0 {
                all_ns[turn].extend(changes_ns);
            }
            Ok(mean_ns)
        })?;
        let named = || self.files.iter().map(|(name, _)| *name);
        let peers: Vec<(&'static str, &Samples)> = named().zip(&samples).skip(1).collect();
        let tails = named()
            .zip(&mut all_ns)
            .map(|(name, all_ns)| (name, Tail::of(all_ns)))
            .collect();
        Ok(Row::new(name, "ns/op", &samples[0], &peers).with_tails(tails))
    }

    /// Runs one round; returns the time that each change took, in ns.
    fn round(&self, case: Case, file: &Open) -> Result<Vec<u64>, Error> {
        file.set_len(0)?;
        file.write(&vec![1; HEAD_BYTES], 0)?;
        let over = AtomicBool::new(false);
        let (start, waiting) = (std::sync::Barrier::new(case.readers + 1), &over);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..case.readers as u64)
                .map(|reader| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        read_until(waiting, file, READ_FROM + reader * 64)
                    })
                })
                .collect();
            start.wait();
            let changed = match case.change {
                Change::Punch => self.punch(file),
                Change::Sequential => self.write_in_order(file),
                Change::Extend(writers) => self.extend(file, writers),
            };
            // Relaxed: it orders nothing but the end.
            over.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            changed
        })
    }

    fn punch(&self, file: &Open) -> Result<Vec<u64>, Error> {
        let (start, mut all_ns) = (Instant::now(), Vec::new());
        while start.elapsed() < self.time_max {
            // Not into the hole of the last one.
            file.write(&[1; 4096], 0)?;
            all_ns.push(timed(|| punch_first_block(file))?);
        }
        Ok(all_ns)
    }

    fn extend(&self, file: &Open, writers: usize) -> Result<Vec<u64>, Error> {
        let next = AtomicU64::new(HEAD_BYTES as u64);
        let write = || {
            let mut all_ns = Vec::new();
            loop {
                let at = next.fetch_add(BLOCK_BYTES, Ordering::Relaxed);
                if at >= self.file_bytes as u64 {
                    return Ok::<_, Error>(all_ns);
                }
                all_ns.push(timed(|| file.write(&[3; 4096], at))?);
            }
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..writers).map(|_| scope.spawn(write)).collect();
            let mut all_ns = Vec::new();
            for writer in writers {
                all_ns.extend(writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(all_ns)
        })
    }

    fn write_in_order(&self, file: &Open) -> Result<Vec<u64>, Error> {
        let bytes = vec![2; WRITE_BYTES];
        (HEAD_BYTES..self.file_bytes)
            .step_by(WRITE_BYTES)
            .map(|at| timed(|| file.write(&bytes, at as u64)))
            .collect()
    }
}

/// Reads the same 8 bytes until it is over; they never change.
fn read_until(over: &AtomicBool, file: &Open, at: u64) -> Result<(), Error> {
    let mut word = [0; 8];
    while !over.load(Ordering::Relaxed) {
        file.read(&mut word, at)?;
        if word != [1; 8] {
            let wrong = io::Error::other("a reader found other bytes than were written");
            return Err(Error::system("reading", wrong));
        }
    }
    Ok(())
}

/// Nanoseconds that `act` took.
fn timed(act: impl FnOnce() -> Result<(), Error>) -> Result<u64, Error> {
    let start = Instant::now();
    act()?;
    Ok(u64::try_from(start.elapsed().as_nanos()).expect("the time in ns fits 64 bits"))
}

const BLOCK_BYTES: u64 = 4096;

fn punch_first_block(file: &Open) -> Result<(), Error> {
    match file {
        Open::Pool(file) => file
            .allocate(Allocate::PunchHole, 0, BLOCK_BYTES)
            .map_err(Error::library("punching a hole")),
        Open::Directory(file) => {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, punch, 0, BLOCK_BYTES).during("punching a hole")
        }
    }
}

fn open_tmpfs(bytes: u64) -> Result<Open, Error> {
    let root = private_tmpfs::mount(Pages::Default, bytes)?;
    Place::Directory(format!("/proc/self/fd/{}", root.as_raw_fd()).into()).create("contended")
}
