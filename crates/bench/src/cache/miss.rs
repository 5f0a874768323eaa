//! Misses: random reads of 4 KiB that are not in the cache, beside bare reads of the same kind of disk past the page cache.

use super::Kind;
use super::passes::{each, read_blocks, together, wrong};
use super::stage::{BLOCK, STAMPED, Stage, stamp};
use crate::blk::load::Load;
use crate::blk::uring;
use crate::cpus;
use crate::error::{During, Error};
use crate::interleave::Samples;
use crate::place::{Open, Place};
use crate::report::Row;
use crate::required::{self, Bound, Finding};
use crate::run::Run;
use crate::shuffle::permutation;
use fastrand::Rng;
use homenode::{MountError, MountOptions, ReadAt, Transport};
use rustix::fs::OFlags;
use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Most of a bare read's time; least of the requests per second that io_uring has; most ns more than a bare read by rings.
const BARE_TIME: f64 = 1.15;
const URING_RATIO: f64 = 0.9;
const RINGS_NS: f64 = 12_000.0;
/// Reads under way: as many as [`homenode::File::read_many`] has.
const DEPTH: usize = 32;
/// Reads of a call.
const AT_ONCE: usize = 512;

/// Reads of a pass: what takes about a tenth of a second.
fn reads(kind: Kind) -> usize {
    match kind {
        Kind::Fast => 4000,
        Kind::Own => 1000,
    }
}

/// Blocks of the stamped file in an order that comes to the same one again only when all others were there.
struct Walk {
    order: Vec<u32>,
    at: Cell<usize>,
}

impl Walk {
    fn next(&self, count: usize) -> Vec<u32> {
        let at = self.at.get();
        self.at.set(at + count);
        self.order
            .iter()
            .copied()
            .cycle()
            .skip(at % self.order.len())
            .take(count)
            .collect()
    }
}

/// The rows of a kind of disk. `io_uring` is the block layer on a bare disk, [`DEPTH`] under way: file and buffers registered, nothing
/// else around them.
pub(super) fn rows(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    let pool = stage.pool(stage.sizes.small_cache)?;
    // All reads of the pool follow on each other, so that none finds what another one has brought.
    let walk = Walk {
        order: permutation(stage.sizes.stamped / BLOCK, 7),
        at: Cell::new(0),
    };
    at_depth_1(run, stage, &pool, &walk)?;
    at_depth_32(run, stage, &pool, &walk)?;
    by_rings(run, stage, &pool, &walk)?;
    stage.close(pool)
}

fn at_depth_1(run: &mut Run<'_>, stage: &Stage, pool: &Place, walk: &Walk) -> Result<(), Error> {
    let case = format!("miss/{}/read-4k-qd1", stage.kind.name());
    if !run.wants(&case) {
        return Ok(());
    }
    let bare = direct(&stage.bare)?;
    let peers = stage.peers.iter().map(|(_, place)| place);
    let files: Vec<Open> = [pool]
        .into_iter()
        .chain(peers)
        .map(|place| place.open(STAMPED))
        .collect::<Result<_, _>>()?;
    let count = run.few(reads(stage.kind));
    let samples = run.take_turns(&case, files.len() + 1, |round, contestant| match contestant {
        0 => read_missing(&files[0], &walk.next(count)),
        1 => read_bare(&bare, stage.sizes.bare, count, round),
        _ => {
            let file = &files[contestant - 1];
            file.make_cold(true)?;
            let order = permutation(stage.sizes.stamped / BLOCK, round);
            read_missing(file, &order[..count.min(order.len())])
        }
    })?;
    let names = ["bare"].into_iter().chain(stage.peers.iter().map(|(name, _)| *name));
    let peers: Vec<_> = names.zip(&samples[1..]).collect();
    run.show(Row::new(case.clone(), "ns/op", &samples[0], &peers));
    run.require_time(&case, "bare", "time of a bare read", BARE_TIME);
    Ok(())
}

fn at_depth_32(run: &mut Run<'_>, stage: &Stage, pool: &Place, walk: &Walk) -> Result<(), Error> {
    let case = format!("miss/{}/read-4k-qd32", stage.kind.name());
    if !run.wants(&case) {
        return Ok(());
    }
    let (file, cpu) = (pool.open(STAMPED)?, cpus::choose()?[0]);
    let count = run.few(4 * reads(stage.kind)).next_multiple_of(DEPTH);
    let samples = run.take_turns(&case, 2, |round, contestant| {
        if contestant == 1 {
            let load = Load {
                bytes: 4096,
                depth: DEPTH,
                requests: count as u64,
            };
            return uring::homenode(&stage.bare, cpu, true, DEPTH, load, round).map(|millions| millions * 1e3);
        }
        read_many(&file, &walk.next(count)).map(|elapsed| 1e6 / each(elapsed, count))
    })?;
    run.show(Row::more_is_better(
        case.clone(),
        "k IOPS",
        &samples[0],
        &[("io_uring", &samples[1])],
    ));
    run.require_ratio(&case, "io_uring", URING_RATIO);
    Ok(())
}

fn by_rings(run: &mut Run<'_>, stage: &Stage, pool: &Place, walk: &Walk) -> Result<(), Error> {
    let case = format!("miss/{}/mount-read-4k-qd1", stage.kind.name());
    let Place::Pool(pool) = pool else { return Ok(()) };
    if !run.wants(&case) {
        return Ok(());
    }
    let directory = tempfile::tempdir().during("making a directory")?;
    let mut options = MountOptions::default();
    options.transport = Transport::Uring;
    let mount = match pool.mount_with(directory.path(), &options) {
        Err(homenode::Error::Mount(MountError::Rings(reason))) => {
            required::skip(format_args!("{case}: {reason}"));
            return Ok(());
        }
        mount => mount.map_err(Error::library("mounting a pool"))?,
    };
    let measured = || -> Result<Vec<Samples>, Error> {
        let (bare, file) = (
            direct(&stage.bare)?,
            Open::Directory(direct(&directory.path().join(STAMPED))?),
        );
        let count = run.few(reads(stage.kind));
        run.take_turns(&case, 2, |round, contestant| match contestant {
            1 => read_bare(&bare, stage.sizes.bare, count, round),
            _ => read_missing(&file, &walk.next(count)),
        })
    };
    let samples = measured();
    mount.unmount(false).map_err(Error::library("unmounting a pool"))?;
    let samples = samples?;
    run.show(Row::new(case.clone(), "ns/op", &samples[0], &[("bare", &samples[1])]));
    let more = samples[0].median() - samples[1].median();
    let what = format!("{case} ns more than a bare read");
    run.findings
        .extend(Finding::of(what, Some(more), Bound::AtMost(RINGS_NS)));
    Ok(())
}

/// Time in which one thread reads these blocks, [`DEPTH`] under way.
fn read_many(file: &Open, blocks: &[u32]) -> Result<Duration, Error> {
    let Open::Pool(file) = file else {
        return Err(wrong());
    };
    let cpu = cpus::choose()?[0];
    together(&[cpu], BLOCK * AT_ONCE, |_, buffer| {
        let mut is_wrong = false;
        for blocks in blocks.chunks(AT_ONCE) {
            let reads = blocks.iter().zip(buffer.chunks_exact_mut(BLOCK));
            let mut reads: Vec<ReadAt<'_>> = reads
                .map(|(block, to)| ReadAt::new(u64::from(*block) * BLOCK as u64, to))
                .collect();
            file.read_many(&mut reads).map_err(Error::library("reading"))?;
            for (block, read) in blocks.iter().zip(&reads) {
                is_wrong |= read.done != BLOCK || read.to[..8] != stamp(u64::from(*block)).to_le_bytes();
            }
        }
        if is_wrong { Err(wrong()) } else { Ok(()) }
    })
}

/// Opens a file or device for reading past the page cache.
fn direct(path: &Path) -> Result<File, Error> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).expect("a bit of an int");
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.during(format_args!("opening {}", path.display()))
}

/// Time of a read of these blocks, one after the other, in ns.
fn read_missing(file: &Open, blocks: &[u32]) -> Result<f64, Error> {
    let cpu = cpus::choose()?[0];
    let elapsed = together(&[cpu], BLOCK, |_, buffer| {
        read_blocks(file, blocks.iter().copied(), buffer)
    })?;
    Ok(each(elapsed, blocks.len()))
}

fn read_bare(file: &File, bytes: usize, count: usize, round: u64) -> Result<f64, Error> {
    let cpu = cpus::choose()?[0];
    let elapsed = together(&[cpu], BLOCK, |_, buffer| {
        let mut random = Rng::with_seed(round);
        (0..count).try_for_each(|_| {
            let at = random.usize(..bytes / BLOCK) * BLOCK;
            file.read_exact_at(buffer, at as u64)
                .during("reading past the page cache")
        })
    })?;
    Ok(each(elapsed, count))
}
