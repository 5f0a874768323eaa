//! The loop inside one process: the library's files, and those of tmpfs by pread and pwrite, in the same way.

use super::case::{Case, Operation};
use crate::failure::{Failure, Result};
use homenode::{OpenOptions, Pool};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Files that are read and written at offsets.
#[derive(Debug)]
pub(super) enum Files {
    Library(Vec<homenode::File>),
    Tmpfs(Vec<File>),
}

/// Between two looks at the clock: about a microsecond or more of copying.
const BYTES_PER_LOOK: usize = 64 << 10;

impl Files {
    /// Makes and fills files in the pool, each by a thread of its own.
    pub(super) fn in_pool(pool: &Pool, file_bytes: u64) -> Result<Self> {
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        let open = |job: usize| pool.open(format!("/buffered.{job}"), &options);
        let files: Vec<_> = (0..super::JOBS_MAX).map(open).collect::<std::result::Result<_, _>>()?;
        let buffer = vec![1; 1 << 20];
        let fill = |file: &homenode::File| {
            let mut offset = 0;
            while offset < file_bytes {
                file.write_all_at(&buffer, offset)?;
                offset += buffer.len() as u64;
            }
            Ok::<_, homenode::Error>(())
        };
        thread::scope(|scope| {
            let fill = &fill;
            let threads: Vec<_> = files.iter().map(|file| scope.spawn(move || fill(file))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        Ok(Self::Library(files))
    }

    /// The files that fio laid out in `directory`.
    pub(super) fn in_directory(directory: &Path) -> Result<Self> {
        let open = |job: usize| {
            let path = directory.join(format!("buffered.{job}"));
            let opened = File::options().read(true).write(true).open(&path);
            opened.map_err(|error| Failure::new(format!("cannot open {}: {error}", path.display())))
        };
        Ok(Self::Tmpfs((0..super::JOBS_MAX).map(open).collect::<Result<_>>()?))
    }

    /// Runs `case` for `seconds`, a thread a file; gives the rate.
    pub(super) fn measure(&self, case: &Case, file_bytes: u64, seconds: f64, seed: u64) -> Result<f64> {
        let cannot = |error: io::Error| Failure::new(format!("{} inside this process failed: {error}", case.title()));
        let pass = |job: usize, buffer: &mut [u8], offset: u64| match (self, case.operation) {
            (Self::Library(files), Operation::Read) => Ok(files[job].read_at(buffer, offset)?),
            (Self::Library(files), Operation::Write) => Ok(files[job].write_at(buffer, offset)?),
            (Self::Tmpfs(files), Operation::Read) => files[job].read_at(buffer, offset),
            (Self::Tmpfs(files), Operation::Write) => files[job].write_at(buffer, offset),
        };
        let rates = thread::scope(|scope| {
            let pass = &pass;
            let spawn = |job: usize| {
                scope.spawn(move || {
                    let mut call = |buffer: &mut [u8], offset: u64| pass(job, buffer, offset);
                    run(case, file_bytes, seconds, seed.wrapping_add(job as u64), &mut call)
                })
            };
            let threads: Vec<_> = (0..case.jobs).map(spawn).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, io::Result<f64>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<io::Result<Vec<f64>>>()
        });
        Ok(rates.map_err(cannot)?.iter().sum())
    }
}

/// One thread: `call` on blocks at random offsets until the time is up. Gives its rate.
fn run(
    case: &Case,
    file_bytes: u64,
    seconds: f64,
    seed: u64,
    call: &mut dyn FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<f64> {
    let block_bytes = case.block_bytes as u64;
    let blocks = file_bytes / block_bytes;
    let calls_per_look = (BYTES_PER_LOOK / case.block_bytes).max(1);
    let mut buffer = vec![2; case.block_bytes];
    let (mut state, mut calls) = (seed, 0.0);
    let time = Duration::from_secs_f64(seconds);
    let start = Instant::now();
    loop {
        for _ in 0..calls_per_look {
            if call(&mut buffer, random(&mut state) % blocks * block_bytes)? != buffer.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            calls += 1.0;
        }
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(case.rate(calls, elapsed.as_secs_f64()));
        }
    }
}

/// Well mixed 64-bit numbers (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::case::Section;
    use std::collections::BTreeSet;

    #[test]
    fn the_loop_stays_in_the_file_and_counts_its_calls() {
        let case = &Case::all(Section::InProcess)[0];
        let mut offsets = BTreeSet::new();
        let mut calls = 0_u32;
        let start = Instant::now();
        let rate = run(case, 10 * 4096, 0.02, 1, &mut |buffer, offset| {
            offsets.insert(offset);
            calls += 1;
            Ok(buffer.len())
        });
        let elapsed = start.elapsed().as_secs_f64();
        assert_eq!(offsets, (0..10).map(|block| block * 4096).collect());
        assert!(
            rate.unwrap() >= f64::from(calls) / elapsed / 1e3,
            "in thousands a second"
        );
        let short = run(case, 10 * 4096, 0.02, 1, &mut |_, _| Ok(1));
        assert!(short.is_err(), "a short read is no read");
    }
}
