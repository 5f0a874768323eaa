//! A timed pass of a contestant: every block of every lane once, in random order.
//!
//! Each thread is pinned to its CPU, has one block-sized buffer that stays hot in its caches, and starts at a barrier.
//! The clock is read twice per thread, not per operation.

use super::contestant::Lane;
use super::workloads::{Layout, Operation};
use crate::cpus;
use crate::error::Error;
use crate::shuffle::permutation;
use fastrand::Rng;
use memmap2::MmapMut;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Blocks that are read back and compared after a pass that writes.
const VERIFIED_BLOCKS: usize = 8;

/// Description of a pass, the same for every contestant.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub(super) case: &'a str,
    pub(super) operation: Operation,
    pub(super) layout: Layout,
    pub(super) block_bytes: usize,
    pub(super) file_bytes: usize,
    /// CPU of each thread.
    pub(super) cpus: &'a [usize],
    /// Decides the order of blocks and the bytes written; the same for all contestants of a round.
    pub(super) seed: u64,
    /// In the file's order instead: to fill files before a pass, not to measure.
    pub(super) sequential: bool,
}

/// Runs the pass on the lanes; gives ns per operation: the longest time of a thread over the operations of one thread.
pub(super) fn time<L: Lane>(lanes: Vec<L>, pass: &Pass<'_>, contestant: &'static str) -> Result<f64, Error> {
    let part = pass.layout.parts(pass.file_bytes)[0];
    let operations = part.bytes / pass.block_bytes;
    let waiting = AtomicUsize::new(lanes.len());
    let threads = lanes.into_iter().zip(pass.cpus).enumerate();
    let elapsed_ns = std::thread::scope(|scope| {
        let spawn = |(thread, (lane, &cpu))| {
            let waiting = &waiting;
            scope.spawn(move || {
                let seed = pass.seed.wrapping_add(thread as u64);
                run_thread(
                    lane,
                    pass,
                    Worker {
                        cpu,
                        operations,
                        seed,
                        waiting,
                        contestant,
                    },
                )
            })
        };
        let handles: Vec<_> = threads.map(spawn).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, Result<f64, Error>>| match handle.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        handles.into_iter().map(join).collect::<Result<Vec<f64>, Error>>()
    })?;
    Ok(elapsed_ns.into_iter().fold(0.0, f64::max) / operations as f64)
}

/// Work of one thread in a pass.
struct Worker<'a> {
    cpu: usize,
    operations: usize,
    seed: u64,
    waiting: &'a AtomicUsize,
    contestant: &'static str,
}

fn run_thread<L: Lane>(mut lane: L, pass: &Pass<'_>, worker: Worker<'_>) -> Result<f64, Error> {
    let prepared = prepare(&mut lane, pass, &worker);
    // Reached on errors too, or the other thread would wait for ever. Relaxed is enough: the barrier orders nothing but
    // the start.
    worker.waiting.fetch_sub(1, Ordering::Relaxed);
    while worker.waiting.load(Ordering::Relaxed) > 0 {
        spin_loop();
    }
    let (order, mut buffer) = prepared?;
    let start = Instant::now();
    let outcome = match pass.operation {
        Operation::Read => order
            .iter()
            .try_for_each(|&block| lane.read(block as usize * pass.block_bytes, &mut buffer)),
        Operation::First | Operation::Overwrite => order
            .iter()
            .try_for_each(|&block| lane.write(block as usize * pass.block_bytes, &buffer)),
    };
    let elapsed = start.elapsed();
    outcome.map_err(|error| Error::system(format!("{} on {}", pass.case, worker.contestant), error))?;
    if !bytes_are_right(&mut lane, pass, &buffer, worker.seed)? {
        return Err(Error::WrongBytes {
            case: pass.case.to_string(),
            contestant: worker.contestant,
        });
    }
    Ok(elapsed.as_secs_f64() * 1e9)
}

/// Pins the thread, decides the order, and warms the buffer and whatever the contestant keeps per thread.
fn prepare<L: Lane>(lane: &mut L, pass: &Pass<'_>, worker: &Worker<'_>) -> Result<(Vec<u32>, MmapMut), Error> {
    cpus::pin(worker.cpu)?;
    let system = |error| Error::system(format!("preparing {} on {}", pass.case, worker.contestant), error);
    let order = if pass.sequential {
        (0..u32::try_from(worker.operations).expect("files have fewer than 2^32 blocks")).collect()
    } else {
        permutation(worker.operations, worker.seed)
    };
    // Page-aligned, as any serious program's I/O buffers.
    let mut buffer = MmapMut::map_anon(pass.block_bytes).map_err(system)?;
    lane.read(0, &mut buffer).map_err(system)?;
    if pass.operation == Operation::Read {
        buffer.fill(0);
    } else {
        let mut random = Rng::with_seed(!worker.seed);
        buffer
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&(random.u64(..) | 1).to_le_bytes()));
    }
    Ok((order, buffer))
}

/// After writes: some blocks, read back, are what was written. After reads: the buffer, zeros before, holds what a writer
/// left (writers' words are odd).
fn bytes_are_right<L: Lane>(lane: &mut L, pass: &Pass<'_>, buffer: &[u8], seed: u64) -> Result<bool, Error> {
    let written = |bytes: &[u8]| bytes.chunks_exact(8).all(|word| word[0] & 1 == 1);
    if pass.operation == Operation::Read {
        return Ok(written(buffer));
    }
    let blocks = pass.layout.parts(pass.file_bytes)[0].bytes / pass.block_bytes;
    let mut random = Rng::with_seed(seed);
    let mut back = vec![0; pass.block_bytes];
    for _ in 0..VERIFIED_BLOCKS {
        let at = random.usize(..blocks) * pass.block_bytes;
        lane.read(at, &mut back)
            .map_err(|error| Error::system(format!("reading back {}", pass.case), error))?;
        if back != buffer {
            return Ok(false);
        }
    }
    Ok(true)
}
