//! Reads beside a long request of the same CPU: a thread reads 4 KiB past the page cache while another has the server zero
//! a whole file, again and again. Both are bound to one CPU, so by rings one thread of the server serves them.
//!
//! tmpfs takes no part: it refuses FALLOC_FL_ZERO_RANGE.

use super::contestant::Contestant;
use super::served::Variant;
use crate::cpus;
use crate::error::{During, Error};
use crate::report::{HOMENODE, Row, Tail};
use crate::run::Run;
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

/// Measures each of `contestants` that a server serves by a transport's defaults; a row for each. Both threads are on this CPU.
pub(super) fn rows(run: &mut Run<'_>, contestants: &[Contestant], file_bytes: usize, cpu: usize) -> Result<(), Error> {
    let is_standard =
        |contestant: &&Contestant| matches!(contestant.variant(), Some(Variant::Uring | Variant::Classic));
    let served: Vec<&Contestant> = contestants.iter().filter(is_standard).collect();
    let mut all_ns = vec![Vec::new(); served.len()];
    let time = if run.common.smoke { ROUND_SMOKE } else { ROUND };
    let samples = run.take_turns(CASE, served.len(), |round, turn| {
        let reads_ns = reads(served[turn], file_bytes, cpu, time)?;
        let mean_ns = reads_ns.iter().sum::<u64>() as f64 / reads_ns.len() as f64;
        // The runner drops the first round too.
        if round > 0 {
            all_ns[turn].extend(reads_ns);
        }
        Ok(mean_ns)
    })?;
    for ((contestant, samples), all_ns) in served.iter().zip(&samples).zip(&mut all_ns) {
        let name = contestant.variant().map(|variant| variant.case(CASE));
        let row = Row::new(name.expect("a server serves it"), "ns/op", samples, &[]);
        run.show(row.with_tails([(HOMENODE, Tail::of(all_ns))].into()));
    }
    Ok(())
}

/// Times of all reads of one round, in ns; there is at least one.
fn reads(contestant: &Contestant, file_bytes: usize, cpu: usize, time: Duration) -> Result<Vec<u64>, Error> {
    let system = |error| Error::system(format!("{CASE} on {}", contestant.name()), error);
    let (file, zeroed) = (contestant.open(READ, true)?, contestant.open(ZEROED, false)?);
    let mut page = MmapMut::map_anon(READ_BYTES).during("mapping a buffer")?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let zeroing = scope.spawn(|| {
            cpus::pin(cpu)?;
            // Relaxed: joining orders the rest.
            while !over.load(Ordering::Relaxed) {
                fallocate(&zeroed, FallocateFlags::ZERO_RANGE, 0, file_bytes as u64).map_err(system)?;
            }
            Ok::<_, Error>(())
        });
        let read = || {
            cpus::pin(cpu)?;
            let mut all_ns = Vec::new();
            let end = Instant::now() + time;
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
