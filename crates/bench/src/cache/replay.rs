//! Replays: hit ratios of the cache's decisions beside LRU and ARC, and how much of them is lost by slices.
//!
//! A case is `replay/TRACE/HOW`. `whole` is a cache in one piece. In the others it is in slices, and a node asks for a block that is
//! - `turn`: asked for by its thread; threads take turns, 64 requests each, and any thread asks for any block,
//! - `extent`: in its share of extents of 16 blocks, which are dealt out by a hash,
//! - `range`: in its part of all blocks, which lie one after the other,
//! - `one-node`: any; all threads are on the first node.
//!
//! `fixed` are the same slices when none takes from another. `stolen` rows are blocks that went to another slice, in percent of requests.

use super::sliced::{Outcome, replay};
use super::trace::Trace;
use super::{CacheArguments, synthetic, yardstick};
use crate::error::Error;
use crate::interleave::Samples;
use crate::interrupt;
use crate::report::Row;
use crate::required::{Bound, Finding};

pub(super) const PEERS: [&str; 4] = ["lru", "arc", "whole", "fixed"];
/// Most percent of hits that slices may lose.
const LOSS_MAX: f64 = 0.5;

/// Node that asks, by number of the request and block.
type Asks<'a> = &'a dyn Fn(usize, u32) -> usize;

/// Adds the rows of each trace; returns what is required of them.
pub(super) fn rows(arguments: &CacheArguments, add: &mut impl FnMut(Row)) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for make in [synthetic::zipf, synthetic::zipf_and_scan] {
        findings.extend(trace(&make(), false, arguments, add)?);
    }
    for path in &arguments.trace {
        findings.extend(trace(&Trace::read(path)?, true, arguments, add)?);
    }
    Ok(findings)
}

fn trace(
    trace: &Trace,
    is_recorded: bool,
    arguments: &CacheArguments,
    add: &mut impl FnMut(Row),
) -> Result<Vec<Finding>, Error> {
    let (blocks, slices) = (trace.ids.len(), arguments.slices as usize);
    let frames = (blocks * arguments.percent as usize / 100).max(slices);
    let requests = trace.requests.len();
    println!(
        "{}: {requests} requests of {blocks} blocks, {frames} frames",
        trace.name
    );
    let share = |count: u64| percent(count, requests);
    let (lru, arc) = (
        share(yardstick::lru(trace, frames)),
        share(yardstick::arc(trace, frames)),
    );
    let whole = share(replay(trace, frames, 1, false, |_, _| 0).hits);
    let case = |how: &str| format!("replay/{}/{how}", trace.name);
    add(row(case("whole"), "% hits", whole, &[("lru", lru), ("arc", arc)]));
    let mut findings: Vec<Finding> = [("LRU", lru), ("ARC", arc)]
        .into_iter()
        .filter(|(peer, _)| *peer != "ARC" || is_recorded)
        .map(|(peer, value)| {
            let what = format!("{} above {peer}", case("whole"));
            Finding::new(what, whole - value, Bound::AtLeast(0.0))
        })
        .collect();
    let ranks = ranks(trace);
    let nodes: [(&str, Asks<'_>); 4] = [
        ("turn", &|request, _| request / 64 % slices),
        ("extent", &|_, block| hashed(trace.ids[block as usize] / 16) % slices),
        ("range", &|_, block| ranks[block as usize] * slices / blocks),
        ("one-node", &|_, _| 0),
    ];
    for (how, node) in nodes {
        interrupt::check()?;
        let how = format!("{slices}s-{how}");
        let Outcome { hits, stolen } = replay(trace, frames, slices, true, node);
        let fixed = share(replay(trace, frames, slices, false, node).hits);
        let hits = share(hits);
        add(row(case(&how), "% hits", hits, &[("whole", whole), ("fixed", fixed)]));
        add(row(case(&format!("{how}/stolen")), "% of requests", share(stolen), &[]));
        let what = format!("{} lost of whole", case(&how));
        findings.push(Finding::new(what, whole - hits, Bound::AtMost(LOSS_MAX)));
    }
    Ok(findings)
}

/// Position of each block among all, by its own number.
fn ranks(trace: &Trace) -> Vec<usize> {
    let mut order: Vec<usize> = (0..trace.ids.len()).collect();
    order.sort_unstable_by_key(|block| trace.ids[*block]);
    let mut ranks = vec![0; order.len()];
    for (rank, block) in order.into_iter().enumerate() {
        ranks[block] = rank;
    }
    ranks
}

fn hashed(extent: u64) -> usize {
    // The upper half of a product with an odd number that has bits everywhere.
    usize::try_from(extent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).expect("32 bits fit")
}

fn percent(count: u64, of: usize) -> f64 {
    100.0 * count as f64 / of as f64
}

/// A row of values that are the same in every run.
fn row(case: String, unit: &'static str, value: f64, peers: &[(&'static str, f64)]) -> Row {
    let peers: Vec<_> = peers
        .iter()
        .map(|(name, value)| (*name, Samples::from(*value)))
        .collect();
    let peers: Vec<_> = peers.iter().map(|(name, samples)| (*name, samples)).collect();
    Row {
        // Of a value that may be 0.
        spread: 0.0,
        ..Row::more_is_better(case, unit, &value.into(), &peers)
    }
}
