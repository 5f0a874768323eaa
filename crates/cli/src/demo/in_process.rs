//! The loop inside one process: the library's files, and those of tmpfs by pread and pwrite, in the same way.

use super::contestants::{Case, Operation};
use crate::failure::{Cannot, Result, fail};
use homenode::{OpenOptions, Pool};
use homenode_linux::cpu::pin_to_node_cpus;
use homenode_policy::CpuId;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Reads or writes a file at an offset; gives the bytes that it did.
pub(super) type Call = Box<dyn Fn(Operation, &mut [u8], u64) -> io::Result<usize> + Send + Sync>;

fn library_call(file: homenode::File) -> Call {
    Box::new(move |operation, buffer, offset| match operation {
        Operation::Read => Ok(file.read_at(buffer, offset)?),
        Operation::Write => Ok(file.write_at(buffer, offset)?),
    })
}

fn system_call(file: File) -> Call {
    Box::new(move |operation, buffer, offset| match operation {
        Operation::Read => file.read_at(buffer, offset),
        Operation::Write => file.write_at(buffer, offset),
    })
}

/// The loop. A thread for each file; each keeps to its CPUs, if it has some.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) file_bytes: u64,
    pub(super) cpus_by_job: Vec<Option<Vec<CpuId>>>,
}

/// Between two looks at the clock: about a microsecond or more of copying.
const BYTES_PER_LOOK: usize = 64 << 10;

impl Loop {
    /// Makes a file for each job in the pool, filled by its thread.
    pub(super) fn lay_out(&self, pool: &Pool) -> Result<Vec<Call>> {
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        let open = |job: usize| Ok(library_call(pool.open(file_name(job), &options)?));
        let files = (0..self.cpus_by_job.len()).map(open).collect::<Result<Vec<_>>>()?;
        let fill = |_, call: &Call| {
            let mut bytes = vec![1; 1 << 20];
            let mut offsets = (0..self.file_bytes).step_by(bytes.len());
            offsets.try_for_each(|offset| whole(call(Operation::Write, &mut bytes, offset)?, bytes.len()))
        };
        self.on_each(&files, fill).cannot("fill a file of the library's pool")?;
        Ok(files)
    }

    /// The files that fio laid out in `directory`.
    pub(super) fn open(&self, directory: &Path) -> Result<Vec<Call>> {
        let open = |job: usize| {
            let path = directory.join(file_name(job));
            let opened = File::options().read(true).write(true).open(&path);
            let opened = opened.cannot(format_args!("open {}", path.display()))?;
            Ok(system_call(opened))
        };
        (0..self.cpus_by_job.len()).map(open).collect()
    }

    /// Runs `case` for `seconds`; gives the rate of all its threads together.
    pub(super) fn measure(&self, case: &Case, files: &[Call], seconds: f64, seed: u64) -> Result<f64> {
        let work = |job: usize, file: &Call| {
            let mut call = |buffer: &mut [u8], offset| file(case.operation, buffer, offset);
            run(case, self.file_bytes, seconds, seed.wrapping_add(job as u64), &mut call)
        };
        match self.on_each(&files[..case.jobs], work) {
            Ok(rates) => Ok(rates.iter().sum()),
            Err(error) => fail!("{} inside this process failed: {error}", case.title()),
        }
    }

    /// Does `work` on every file at a time.
    fn on_each<T: Send>(
        &self,
        files: &[Call],
        work: impl Fn(usize, &Call) -> io::Result<T> + Sync,
    ) -> io::Result<Vec<T>> {
        thread::scope(|scope| {
            let work = &work;
            let start = |(job, (file, cpus)): (usize, (_, &Option<Vec<CpuId>>))| {
                let cpus = cpus.clone();
                scope.spawn(move || {
                    cpus.map_or(Ok(()), |cpus| pin_to_node_cpus(&cpus))?;
                    work(job, file)
                })
            };
            let threads: Vec<_> = files.iter().zip(&self.cpus_by_job).enumerate().map(start).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, io::Result<T>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        })
    }
}

/// Returns the file name that fio gives a job.
fn file_name(job: usize) -> String {
    format!("{}{job}", super::fio::FILES[0])
}

fn whole(done: usize, wanted: usize) -> io::Result<()> {
    if done == wanted {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Runs `call` on blocks at random offsets until the time is up. Returns the rate of the calling thread.
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
            let done = call(&mut buffer, random(&mut state) % blocks * block_bytes)?;
            whole(done, buffer.len())?;
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
    use crate::demo::contestants::Section;
    use std::collections::BTreeSet;

    #[test]
    fn the_loop_stays_within_the_file_and_counts_its_calls() {
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
