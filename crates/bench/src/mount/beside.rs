//! Reads beside a long request of the same CPU: a thread reads 4 KiB past the page cache while another has the server zero
//! a whole file, again and again. Both are bound to one CPU, so by rings one thread of the server serves them.
//!
//! tmpfs takes no part: it refuses FALLOC_FL_ZERO_RANGE.

use super::contestant::Contestant;
use super::served::Variant;
use crate::cpus;
use crate::error::Error;
use crate::interleave::{Samples, take_turns};
use crate::report::{HOMENODE, Row, Tail};
use memmap2::MmapMut;
use rustix::fs::{FallocateFlags, fallocate};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the case.
pub(super) const CASE: &str = "4k/direct-read/beside-zero";

const READ_BYTES: usize = 4096;
const ROUND: Duration = Duration::from_millis(500);
const ROUND_SMOKE: Duration = Duration::from_millis(20);
/// Files of a contestant: the one that is read, and the one that is zeroed.
const READ: usize = 0;
const ZEROED: usize = 1;

/// Measures each of `contestants` that a server serves by a transport's defaults; a row for each.
pub(super) fn rows(contestants: &[Contestant], bench: Bench) -> Result<Vec<Row>, Error> {
    let is_standard =
        |contestant: &&Contestant| matches!(contestant.variant(), Some(Variant::Uring | Variant::Classic));
    let served: Vec<&Contestant> = contestants.iter().filter(is_standard).collect();
    let mut all_ns = vec![Vec::new(); served.len()];
    let samples = take_turns(served.len(), bench.rounds, |round, turn| {
        let reads_ns = bench.round(served[turn])?;
        let mean_ns = reads_ns.iter().sum::<u64>() as f64 / reads_ns.len() as f64;
        // The runner drops the first round too.
        if round > 0 {
            all_ns[turn].extend(reads_ns);
        }
        Ok(mean_ns)
    })?;
    let row = |((contestant, samples), all_ns): ((&&Contestant, &Samples), &mut Vec<u64>)| {
        let name = contestant.variant()?.case(CASE);
        let tails = [(HOMENODE, Tail::of(all_ns))].into();
        Some(Row::new(name, "ns/op", samples, &[]).with_tails(tails))
    };
    Ok(served.iter().zip(&samples).zip(&mut all_ns).filter_map(row).collect())
}

/// How long and where the rounds run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bench {
    pub(super) rounds: usize,
    pub(super) smoke: bool,
    pub(super) file_bytes: usize,
    /// The CPU of both threads.
    pub(super) cpu: usize,
}

impl Bench {
    /// Times of all reads of one round, in ns; there is at least one.
    fn round(self, contestant: &Contestant) -> Result<Vec<u64>, Error> {
        let system = |error| Error::system(format!("{CASE} on {}", contestant.name()), error);
        let (file, zeroed) = (contestant.open(READ, true)?, contestant.open(ZEROED, false)?);
        let mut page = MmapMut::map_anon(READ_BYTES).map_err(|error| Error::system("mapping a buffer", error))?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let zeroing = scope.spawn(|| {
                cpus::pin(self.cpu)?;
                // Relaxed: joining orders the rest.
                while !over.load(Ordering::Relaxed) {
                    fallocate(&zeroed, FallocateFlags::ZERO_RANGE, 0, self.file_bytes as u64).map_err(system)?;
                }
                Ok::<_, Error>(())
            });
            let read = || {
                cpus::pin(self.cpu)?;
                let mut all_ns = Vec::new();
                let end = Instant::now() + if self.smoke { ROUND_SMOKE } else { ROUND };
                while all_ns.is_empty() || Instant::now() < end {
                    let start = Instant::now();
                    rustix::io::pread(&file, &mut page[..], 0).map_err(system)?;
                    all_ns.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
                Ok(all_ns)
            };
            let all_ns = scope.spawn(read).join().expect("reading does not panic");
            over.store(true, Ordering::Relaxed);
            zeroing.join().expect("zeroing does not panic")?;
            all_ns
        })
    }
}
