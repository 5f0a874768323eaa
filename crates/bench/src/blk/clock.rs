//! A bare loop of two clock reads: what a stamped request cannot be faster than on this processor.

use super::contestants::Case;
use super::load::together;
use crate::error::Error;
use homenode::blk::Time;
use std::hint::black_box;

/// M pairs of reads per second of all cores.
pub(super) fn run(case: &Case, cpus: &[usize], divisor: u64) -> Result<f64, Error> {
    let requests = case.load(divisor).requests;
    together(cpus, |_| {
        move |clock| {
            for _ in 0..requests {
                let begin = clock.now();
                black_box(clock.now().saturating_sub(begin));
            }
            requests
        }
    })
}
