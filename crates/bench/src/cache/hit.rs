//! Hits: random accesses of 4 KiB to what is in the cache, beside warm page caches and a pool of memory.

use super::passes::{each, read_blocks, together, write_blocks};
use super::stage::{BLOCK, CHANGED, STAMPED, Stage};
use crate::cpus;
use crate::error::Error;
use crate::place::{Open, Place};
use crate::report::Row;
use crate::required;
use crate::run::Run;
use crate::shuffle::permutation;

/// Least ratio to ext4 or what the disk has instead; most of a pool of memory's time; least gain by a second thread.
const READ_RATIO: f64 = 1.8;
const OVERWRITE_RATIO: f64 = 2.0;
const VOLATILE_TIME: f64 = 1.03;
const SECOND_THREAD: f64 = 1.9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Overwrite,
}

impl Access {
    fn file(self) -> &'static str {
        match self {
            Self::Read => STAMPED,
            Self::Overwrite => CHANGED,
        }
    }
}

/// The rows of a kind of disk.
pub(super) fn rows(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    let pool = stage.pool(stage.sizes.large_cache)?;
    let volatile = stage.volatile()?;
    let peers = stage.peers.iter().map(|(name, place)| (*name, place));
    let places: Vec<(&'static str, &Place)> = [("homenode", &pool), ("volatile", &volatile)]
        .into_iter()
        .chain(peers)
        .collect();
    for (access, name, least) in [
        (Access::Read, "read-4k", READ_RATIO),
        (Access::Overwrite, "overwrite-4k", OVERWRITE_RATIO),
    ] {
        let case = |threads| format!("hit/{}/{name}/{threads}t", stage.kind.name());
        if !run.wants(&case(1)) && !run.wants(&case(2)) {
            continue;
        }
        let files: Vec<Open> = places
            .iter()
            .map(|(_, place)| place.open(access.file()))
            .collect::<Result<_, _>>()?;
        let pass = |threads: usize| {
            let files = &files;
            move |round, contestant: usize| pass(&files[contestant], access, threads, stage.sizes.hot / BLOCK, round)
        };
        let names: Vec<&'static str> = places.iter().map(|(name, _)| *name).collect();
        let one = run.take_turns(&case(1), files.len(), pass(1))?;
        let peers: Vec<_> = names.iter().copied().zip(&one).skip(1).collect();
        run.show(Row::new(case(1), "ns/op", &one[0], &peers));
        run.require_ratio(&case(1), names[2], least);
        run.require_time(&case(1), "volatile", "time of a pool of memory", VOLATILE_TIME);
        if cpus::choose()?.len() < 2 {
            required::skip(format_args!("{}: there is one CPU", case(2)));
            continue;
        }
        // One thread of the same rounds again, of each.
        let both = run.take_turns(&case(2), 2 * files.len(), |round, turn| {
            let (contestant, threads) = (turn / 2, turn % 2 + 1);
            pass(threads)(round, contestant)
        })?;
        for (at, name) in names.iter().enumerate() {
            let case = if at == 0 {
                case(2)
            } else {
                format!("{} of {name}", case(2))
            };
            run.show(Row::new(
                case,
                "ns/op",
                &both[2 * at + 1],
                &[("one-thread", &both[2 * at])],
            ));
        }
        run.require_ratio(&case(2), "one-thread", SECOND_THREAD);
    }
    stage.close(pool)
}

/// Each thread accesses each block once; time of an operation over all threads.
fn pass(file: &Open, access: Access, threads: usize, blocks: usize, round: u64) -> Result<f64, Error> {
    let cpus = cpus::choose()?;
    let orders: Vec<Vec<u32>> = (0..threads)
        .map(|thread| permutation(blocks, round * 2 + thread as u64))
        .collect();
    // What was evicted comes back.
    let mut buffer = vec![0; BLOCK];
    (0..blocks)
        .step_by(64)
        .try_for_each(|block| file.read(&mut buffer, (block * BLOCK) as u64))?;
    let elapsed = together(&cpus[..threads], BLOCK, |thread, buffer| {
        let order = orders[thread].iter().copied();
        match access {
            Access::Read => read_blocks(file, order, buffer),
            Access::Overwrite => {
                buffer.fill(9);
                write_blocks(file, order, buffer)
            }
        }
    })?;
    Ok(each(elapsed, blocks * threads))
}
