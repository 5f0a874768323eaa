//! Reads beside a writer: how long single reads of 4 KiB take while another thread overwrites more than the cache holds.

use super::passes::together;
use super::stage::{BLOCK, CHANGED, STAMPED, Stage};
use crate::cpus;
use crate::durable::place::{Open, Place};
use crate::error::Error;
use crate::interleave::Samples;
use crate::report::Row;
use crate::run::Run;
use crate::shuffle::Random;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const READS: usize = 200_000;
/// Ratio of the hot file's size to the part that is read, at the file's start.
const HOT_SHARE: usize = 4;

/// The rows of a kind of disk.
pub(super) fn rows(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    let cases = ["p50", "p99", "p99.9"].map(|rank| format!("beside/{}/read-4k-{rank}", stage.kind.name()));
    if !cases.iter().any(|case| run.wants(case)) {
        return Ok(());
    }
    let pool = stage.pool(stage.sizes.medium_cache)?;
    let places: Vec<&Place> = [&pool]
        .into_iter()
        .chain(stage.peers.iter().map(|(_, place)| place))
        .collect();
    let open = |name| {
        places
            .iter()
            .map(|place| place.open(name))
            .collect::<Result<Vec<Open>, _>>()
    };
    let (read, written) = (open(STAMPED)?, open(CHANGED)?);
    let count = run.few(READS);
    let ranks: RefCell<Vec<[Samples; 3]>> = RefCell::new(vec![Default::default(); places.len()]);
    run.take_turns(places.len(), |round, contestant| {
        let found = pass(&read[contestant], &written[contestant], stage, count, round)?;
        if round > 0 {
            for (samples, rank) in ranks.borrow_mut()[contestant].iter_mut().zip(found) {
                samples.push(rank);
            }
        }
        Ok(found[0])
    })?;
    let ranks = ranks.into_inner();
    for (at, case) in cases.into_iter().enumerate() {
        let peers = stage.peers.iter().zip(&ranks[1..]);
        let peers: Vec<_> = peers.map(|((name, _), ranks)| (*name, &ranks[at])).collect();
        run.show(Row::new(case, "ns", &ranks[0][at], &peers));
    }
    stage.close(pool)
}

/// The 50th, 99th and 99.9th percentile of single reads, in ns.
fn pass(read: &Open, written: &Open, stage: &Stage, count: usize, round: u64) -> Result<[f64; 3], Error> {
    let cpus = cpus::choose()?;
    let cpus = [cpus[0], cpus[cpus.len() - 1]].map(Some);
    let (hot, changed) = (stage.sizes.hot / HOT_SHARE / BLOCK, stage.sizes.changed / BLOCK);
    let (is_over, times) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    together(&cpus, BLOCK, |thread, buffer| {
        let mut random = Random::new(2 * round + thread as u64);
        if thread == 1 {
            buffer.fill(9);
            while !is_over.load(Ordering::Relaxed) {
                written.write(buffer, (random.below(changed) * BLOCK) as u64)?;
            }
            return Ok(());
        }
        let mut own = Vec::with_capacity(count);
        let done = (0..count).try_for_each(|_| {
            let at = (random.below(hot) * BLOCK) as u64;
            let start = Instant::now();
            read.read(buffer, at)?;
            own.push(u64::try_from(start.elapsed().as_nanos()).expect("the time in ns fits 64 bits"));
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        own.sort_unstable();
        *times.lock().expect("no thread panics") = own;
        done
    })?;
    let times = times.into_inner().expect("no thread panics");
    Ok([count / 2, count * 99 / 100, count * 999 / 1000].map(|at| times[at] as f64))
}
