//! Streams: a file read from one end to the other with cold caches, and appends that are made durable.

use super::passes::{together, wrong};
use super::stage::{BLOCK, MEBIBYTE, STAMPED, Stage, stamp};
use crate::cpus;
use crate::durable::work::Work;
use crate::error::Error;
use crate::place::{Open, Place};
use crate::report::Row;
use crate::run::Run;
use std::cell::Cell;

/// Least ratios to ext4, or what the disk has instead.
const READ_RATIO: f64 = 0.95;
const MEBIBYTE_RATIO: f64 = 0.95;
/// A pass reads a fifth of the file: in between, it is read as often as no cache here remembers.
const PASSES: usize = 5;

const READS: [(&str, usize); 3] = [("read-4k", BLOCK), ("read-128k", 128 << 10), ("read-1m", MEBIBYTE)];
/// Work, its count on a fast disk, and the least ratio.
const WRITES: [(Work, usize, Option<f64>); 2] = [(Work::Mebibyte, 50, Some(MEBIBYTE_RATIO)), (Work::Append, 200, None)];

/// The rows of a kind of disk.
pub(super) fn rows(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    let pool = stage.pool(stage.sizes.small_cache)?;
    let peers: Vec<&'static str> = stage.peers.iter().map(|(name, _)| *name).collect();
    let places: Vec<&Place> = [&pool]
        .into_iter()
        .chain(stage.peers.iter().map(|(_, place)| place))
        .collect();
    for (name, bytes) in READS {
        let case = format!("stream/{}/{name}", stage.kind.name());
        if !run.wants(&case) {
            continue;
        }
        let files: Vec<Open> = places
            .iter()
            .map(|place| place.open(STAMPED))
            .collect::<Result<_, _>>()?;
        let parts: Vec<Cell<usize>> = files.iter().map(|_| Cell::new(0)).collect();
        let samples = run.take_turns(&case, files.len(), |_, contestant| {
            let part = parts[contestant].get();
            parts[contestant].set((part + 1) % PASSES);
            files[contestant].make_cold(false)?;
            read(
                &files[contestant],
                part,
                stage.sizes.stamped / PASSES / MEBIBYTE * MEBIBYTE,
                bytes,
            )
        })?;
        let peers: Vec<_> = peers.iter().copied().zip(&samples[1..]).collect();
        run.show(Row::more_is_better(case.clone(), "MiB/s", &samples[0], &peers));
        run.require_ratio(&case, peers[0].0, READ_RATIO);
    }
    for (work, count, least) in WRITES {
        let case = format!("stream/{}/{}-fsync", stage.kind.name(), work.name());
        if !run.wants(&case) {
            continue;
        }
        let count = run.few(count);
        let samples = run.take_turns(&case, places.len(), |round, contestant| {
            work.pass(places[contestant], count, round)
        })?;
        let peers: Vec<_> = peers.iter().copied().zip(&samples[1..]).collect();
        run.show(Row::new(case.clone(), "ns/op", &samples[0], &peers));
        if let Some(least) = least {
            run.require_ratio(&case, peers[0].0, least);
        }
    }
    stage.close(pool)
}

/// MiB per second of a part of the stamped file, `bytes` at a time.
fn read(file: &Open, part: usize, part_bytes: usize, bytes: usize) -> Result<f64, Error> {
    let cpu = cpus::choose()?[0];
    let elapsed = together(&[cpu], bytes, |_, buffer| {
        let mut is_wrong = false;
        for at in (part * part_bytes..(part + 1) * part_bytes).step_by(bytes) {
            file.read(buffer, at as u64)?;
            is_wrong |= buffer[..8] != stamp((at / BLOCK) as u64).to_le_bytes();
        }
        if is_wrong { Err(wrong()) } else { Ok(()) }
    })?;
    Ok((part_bytes / MEBIBYTE) as f64 / elapsed.as_secs_f64())
}
