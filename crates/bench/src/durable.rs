//! `homenode-bench durable`: what it costs to lose nothing. A durable pool through the library against ext4 and xfs, each on a loop device whose
//! file lies on the same disk; redb and SQLite on ext4 as yardsticks; and how long a pool takes to come back.
//!
//! The pool's member of `file/...` is a file on an ext4 of its own, on such a device too. That of `pmem/...` is a file on a private tmpfs: flushes
//! and fences are executed, and what persistent memory itself takes is not measured.

pub(crate) mod disk;
mod mounted;
pub(crate) mod restart;
pub(crate) mod work;
mod yardstick;

use crate::arguments::Arguments;
use crate::error::{During, Error};
use crate::place::Place;
use crate::private_tmpfs::{self, Pages};
use crate::report::{Row, Table};
use crate::run::Run;
use disk::Disk;
use homenode::{Pool, PoolOptions, Size};
use rustix::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use work::Work;

/// Arguments of `homenode-bench durable`.
#[derive(Debug, clap::Args)]
pub(crate) struct DurableArguments {
    #[command(flatten)]
    cases: Arguments,
    /// Directory on the disk to measure; the bench needs 8 GiB there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Least ratios to peers.
type Ratios = &'static [(&'static str, f64)];

/// Bytes of a loop device; a member on one takes 70 % of them.
const DISK_BYTES: usize = 1 << 30;
const MEMORY_BYTES: u64 = 512 << 20;

/// A case on a disk: what is done, how often, and the least ratio to each of these peers.
const ON_DISK: [(Work, usize, Ratios); 5] = [
    (Work::Append, 200, &[("ext4", 1.25), ("xfs", 1.25)]),
    (Work::AppendBeside, 100, &[("ext4", 1.25), ("xfs", 1.25)]),
    (Work::Mebibyte, 50, &[("ext4", 0.95), ("xfs", 0.95)]),
    (Work::Replace, 200, &[("ext4", 1.0), ("xfs", 1.0)]),
    (Work::Group, 800, &[("ext4", 2.0)]),
];
/// A case on pretended persistent memory: what is done, how often, and the most ns that it may take.
const ON_MEMORY: [(Work, usize, Option<f64>); 4] = [
    (Work::Append, 20_000, Some(3000.0)),
    (Work::Mebibyte, 200, None),
    (Work::Replace, 5000, None),
    (Work::Group, 40_000, None),
];
/// Overwrites in one pass.
const OVERWRITES: usize = 1_000_000;
/// SQLite on the mounted pool, and its least ratio.
const SQLITE: &str = "file/sqlite-wal-full";
const SQLITE_RATIO: f64 = 1.0;
/// Work on the mounted pool and on ext4, and its count.
const ON_MOUNT: [(Work, usize); 2] = [(Work::Append, 200), (Work::Group, 800)];
/// Reads on the mounted pool beside a thread of the same CPU that syncs: there, on ext4, or nowhere.
const READ_BESIDE: &str = "file/mount-read-beside-fsync-p99";
const READS: usize = 20_000;
/// Files of a pool that comes back, and those that make a log of some 64 MiB.
const FILES: usize = 1_000_000;
const LOGGED_FILES: usize = 650_000;
/// Most seconds that these may take.
const MOUNT_SECONDS_MAX: f64 = 3.0;
const AFTER_KILL_SECONDS_MAX: f64 = 0.5;

/// Runs the bench.
pub(crate) fn run(arguments: &DurableArguments) -> Result<(), Error> {
    let DurableArguments { cases, directory } = arguments;
    let mut run = Run::new("durable", &cases.common, &cases.case)?;
    run.begin(Table::new(&["ext4", "xfs", "redb", "sqlite", "volatile", "alone"]).with_range_of("ext4"));
    let stage = Stage::new(directory, if run.common.smoke { DISK_BYTES / 2 } else { DISK_BYTES })?;
    on_disk(&mut run, &stage)?;
    on_memory(&mut run, &stage)?;
    overwrites(&mut run, &stage)?;
    on_mount(&mut run, &stage)?;
    drop(stage);
    restarts(&mut run, directory)?;
    if run.report.rows.is_empty() {
        return Err(run.no_case());
    }
    run.end()
}

/// Everybody who takes part.
struct Stage {
    // Pools before the disks that they are on.
    on_file: Place,
    on_memory: Place,
    volatile: Place,
    on_ext4: Place,
    on_xfs: Place,
    ext4: Disk,
    xfs: Disk,
    _own: Disk,
    _tmpfs: OwnedFd,
}

impl Stage {
    fn new(directory: &Path, bytes: usize) -> Result<Self, Error> {
        let own = Disk::new(directory, "ext4", bytes)?;
        let (ext4, xfs) = (
            Disk::new(directory, "ext4", bytes)?,
            Disk::new(directory, "xfs", bytes)?,
        );
        let tmpfs = private_tmpfs::mount(Pages::Huge, 2 * MEMORY_BYTES)?;
        let member = PathBuf::from(format!("/proc/self/fd/{}/member", tmpfs.as_raw_fd()));
        let volatile = PoolOptions::new().size_per_node(Size::Bytes(MEMORY_BYTES));
        Ok(Self {
            on_file: Place::Pool(new_pool(&own.root().join("member"), bytes as u64 / 10 * 7)?),
            on_memory: Place::Pool(new_pool(&member, MEMORY_BYTES)?),
            volatile: Place::Pool(Pool::create(&volatile).map_err(Error::library("making a pool"))?),
            on_ext4: Place::Directory(ext4.root().to_owned()),
            on_xfs: Place::Directory(xfs.root().to_owned()),
            ext4,
            xfs,
            _own: own,
            _tmpfs: tmpfs,
        })
    }
}

fn on_disk(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    for (work, count, ratios) in ON_DISK {
        let case = format!("file/{}", work.name());
        if !run.wants(&case) {
            continue;
        }
        let count = run.few(count);
        let yardsticks = if work == Work::Append { 2 } else { 0 };
        let samples = run.take_turns(&case, 3 + yardsticks, |round, contestant| match contestant {
            0 => work.pass(&stage.on_file, count, round),
            1 => work.pass(&stage.on_ext4, count, round),
            2 => work.pass(&stage.on_xfs, count, round),
            3 => yardstick::redb(stage.ext4.root(), 4096, count),
            _ => yardstick::sqlite(stage.ext4.root(), 4096, count),
        })?;
        let names = ["ext4", "xfs", "redb", "sqlite"];
        let peers: Vec<_> = names.into_iter().zip(&samples[1..]).collect();
        run.show(Row::new(case.clone(), "ns/op", &samples[0], &peers));
        for (peer, least) in ratios {
            run.require_ratio(&case, peer, *least);
        }
    }
    Ok(())
}

fn on_memory(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    for (work, count, most_ns) in ON_MEMORY {
        let case = format!("pmem/{}", work.name());
        if run.wants(&case) {
            let count = run.few(count);
            let samples = run.take_turns(&case, 1, |round, _| work.pass(&stage.on_memory, count, round))?;
            run.show(Row::new(case.clone(), "ns/op", &samples[0], &[]));
            if let Some(most_ns) = most_ns {
                run.require_most(&case, "ns", most_ns);
            }
        }
    }
    Ok(())
}

fn overwrites(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    for (kind, place, least) in [
        ("pmem", &stage.on_memory, 1.0 / 1.1),
        ("file", &stage.on_file, 1.0 / 1.3),
    ] {
        let case = format!("{kind}/{}", Work::Overwrite.name());
        if run.wants(&case) {
            let (places, count) = ([place, &stage.volatile], run.few(OVERWRITES));
            let pass = |round, contestant: usize| Work::Overwrite.pass(places[contestant], count, round);
            let samples = run.take_turns(&case, 2, pass)?;
            run.show(Row::new(
                case.clone(),
                "ns/op",
                &samples[0],
                &[("volatile", &samples[1])],
            ));
            run.require_ratio(&case, "volatile", least);
        }
    }
    Ok(())
}

/// Rows that come through the mount. The library does not touch the pool meanwhile.
fn on_mount(run: &mut Run<'_>, stage: &Stage) -> Result<(), Error> {
    let Place::Pool(pool) = &stage.on_file else {
        return Ok(());
    };
    let works = ON_MOUNT.map(|(work, count)| (format!("file/mount-{}", work.name()), work, count));
    let cases = works.iter().map(|(case, ..)| &**case).chain([SQLITE, READ_BESIDE]);
    if !cases.into_iter().any(|case| run.wants(case)) {
        return Ok(());
    }
    let directory = tempfile::tempdir().during("making a directory")?;
    let mount = pool
        .mount(directory.path())
        .map_err(Error::library("mounting a pool"))?;
    let roots = [directory.path(), stage.ext4.root(), stage.xfs.root()];
    let on_mount = Place::Directory(directory.path().to_owned());
    for (case, work, count) in works {
        if run.wants(&case) {
            let (places, count) = ([&on_mount, &stage.on_ext4, &stage.on_xfs], run.few(count));
            let samples = run.take_turns(&case, 3, |round, contestant| {
                work.pass(places[contestant], count, round)
            })?;
            let peers = [("ext4", &samples[1]), ("xfs", &samples[2])];
            run.show(Row::new(case, "ns/op", &samples[0], &peers));
        }
    }
    if run.wants(SQLITE) {
        let count = run.few(1000);
        let samples = run.take_turns(SQLITE, 3, |_, contestant| {
            yardstick::sqlite(roots[contestant], 400, count)
        })?;
        let peers = [("ext4", &samples[1]), ("xfs", &samples[2])];
        run.show(Row::new(SQLITE.to_owned(), "ns/op", &samples[0], &peers));
        for (peer, _) in peers {
            run.require_ratio(SQLITE, peer, SQLITE_RATIO);
        }
    }
    if run.wants(READ_BESIDE) {
        let (beside, count) = ([Some(roots[0]), Some(roots[1]), None], run.few(READS));
        let samples = run.take_turns(READ_BESIDE, 3, |_, contestant| {
            mounted::read_beside(roots[0], beside[contestant], count)
        })?;
        let peers = [("ext4", &samples[1]), ("alone", &samples[2])];
        run.show(Row::new(READ_BESIDE.to_owned(), "ns", &samples[0], &peers));
    }
    mount.unmount(false).map_err(Error::library("unmounting a pool"))
}

fn restarts(run: &mut Run<'_>, directory: &Path) -> Result<(), Error> {
    let (files, logged_files) = if run.common.smoke {
        (2000, 2000)
    } else {
        (FILES, LOGGED_FILES)
    };
    for row in restart::measure(run, directory, files, logged_files)? {
        run.show(row);
    }
    run.require_most(&format!("mount/{FILES}-files"), "s", MOUNT_SECONDS_MAX);
    run.require_most("mount/after-kill", "s", AFTER_KILL_SECONDS_MAX);
    Ok(())
}

/// A durable pool with one member.
fn new_pool(member: &Path, bytes: u64) -> Result<Pool, Error> {
    disk::member(member, bytes)?;
    Pool::create_on(&[member.to_owned()], &PoolOptions::new()).map_err(Error::library("making a durable pool"))
}
