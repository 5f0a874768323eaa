//! Traces that the bench makes itself, the same in every run: for machines that have no others.

use super::trace::Trace;
use crate::shuffle::permutation;
use fastrand::Rng;

const REQUESTS: usize = 1 << 20;
/// Blocks of which some are asked for more often than others.
const BLOCKS: usize = 1 << 16;
/// Blocks that are read one after the other, over and over.
const SCANNED: u64 = 1 << 17;
/// Requests of either kind, before those of the other come.
const TURN: usize = 1 << 13;

/// The block at rank r is asked for in proportion to 1 / r^0.9.
pub(super) fn zipf() -> Trace {
    let mut draw = draws();
    Trace::new("zipf", (0..REQUESTS).map(|_| draw()).collect())
}

/// Returns a trace that alternates turns of [`zipf`] with sequential reads of a region larger than the cache.
pub(super) fn zipf_and_scan() -> Trace {
    let mut draw = draws();
    let mut scanned = 0;
    let mut scan = || {
        scanned += 1;
        BLOCKS as u64 + scanned % SCANNED
    };
    let requests = (0..REQUESTS).map(|request| {
        if (request / TURN).is_multiple_of(2) {
            draw()
        } else {
            scan()
        }
    });
    Trace::new("zipf-scan", requests.collect())
}

fn draws() -> impl FnMut() -> u64 {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=BLOCKS)
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    // Ranks say nothing of where a block lies.
    let places = permutation(BLOCKS, 1);
    let mut random = Rng::with_seed(2);
    move || {
        let drawn = random.f64() * sum;
        let rank = sums.partition_point(|below| *below <= drawn);
        u64::from(places[rank.min(BLOCKS - 1)])
    }
}
