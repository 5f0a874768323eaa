//! `homenode-bench durable`: what it costs to lose nothing. A durable pool through the library against ext4 and xfs, each on a loop device whose
//! file lies on the same disk; redb and SQLite on ext4 as yardsticks; and how long a pool takes to come back.
//!
//! The pool's member of `file/...` is a file on an ext4 of its own, on such a device too. That of `pmem/...` is a file on a private tmpfs: flushes
//! and fences are executed, and what persistent memory itself takes is not measured.

pub(crate) mod disk;
mod mounted;
pub(crate) mod place;
pub(crate) mod restart;
pub(crate) mod work;
mod yardstick;

use crate::arguments::{Arguments, is_wanted};
use crate::error::Error;
use crate::interleave::{Samples, interleave};
use crate::interrupt;
use crate::output::Output;
use crate::private_tmpfs::{self, Pages};
use crate::report::{Report, Row, Table};
use crate::required::{self, Bound, Finding};
use disk::Disk;
use homenode::{Pool, PoolOptions, Size};
use place::Place;
use rustix::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use work::Work;

/// Arguments of `homenode-bench durable`.
#[derive(Debug, clap::Args)]
pub(crate) struct DurableArguments {
    #[command(flatten)]
    common: Arguments,
    /// Directory on the disk to measure; the bench needs 8 GiB there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Least ratios to peers.
type Ratios = &'static [(&'static str, f64)];

/// Bytes of a loop device; a member on one takes 70 % of them.
const DISK_BYTES: usize = 1 << 30;
/// Bytes of the pools in memory.
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
/// Overwrites in one pass, and the least ratio to a volatile pool by kind of member.
const OVERWRITES: usize = 1_000_000;
const OVERWRITE_RATIOS: [(&str, f64); 2] = [("pmem", 1.0 / 1.1), ("file", 1.0 / 1.3)];
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
const RESTARTS: usize = 5;
/// Most seconds that these may take.
const MOUNT_SECONDS_MAX: f64 = 3.0;
const AFTER_KILL_SECONDS_MAX: f64 = 0.5;

/// Runs the bench.
pub(crate) fn run(arguments: &DurableArguments) -> Result<(), Error> {
    let DurableArguments { common, directory } = arguments;
    let json = Output::open(common.json.as_deref())?;
    interrupt::watch()?;
    let mut bench = Bench {
        report: Report::new("durable"),
        table: Table::new(&["ext4", "xfs", "redb", "sqlite", "volatile", "alone"]).with_range_of("ext4"),
        common,
    };
    bench.table.print_head();
    let stage = Stage::new(directory, if common.smoke { DISK_BYTES / 2 } else { DISK_BYTES })?;
    bench.on_disk(&stage)?;
    bench.on_memory(&stage)?;
    bench.overwrites(&stage)?;
    bench.on_mount(&stage)?;
    drop(stage);
    bench.restarts(directory)?;
    let report = bench.report;
    if report.rows.is_empty() {
        return Err(Error::NoCase(common.case.join(", ")));
    }
    report.write_json(json)?;
    if common.smoke {
        Ok(())
    } else {
        required::judge(&findings(&report), common.check)
    }
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

/// A run of the bench.
struct Bench<'a> {
    report: Report,
    table: Table,
    common: &'a Arguments,
}

impl Bench<'_> {
    fn wants(&self, case: &str) -> bool {
        is_wanted(&self.common.case, case)
    }

    /// Fewer operations where only that they work is to be seen.
    fn few(&self, count: usize) -> usize {
        if self.common.smoke {
            count.div_ceil(50).max(8)
        } else {
            count
        }
    }

    fn show(&mut self, row: Row) {
        self.table.print_row(&row);
        self.report.rows.push(row);
    }

    /// Samples of contestants that take turns.
    fn take_turns(
        &self,
        contestants: usize,
        mut pass: impl FnMut(u64, usize) -> Result<f64, Error>,
    ) -> Result<Vec<Samples>, Error> {
        let rounds = if self.common.smoke {
            1
        } else {
            self.common.rounds as usize
        };
        let mut samples = interleave(1, contestants, rounds, |round, _, contestant| {
            interrupt::check()?;
            pass(round as u64, contestant)
        })?;
        Ok(samples.remove(0))
    }

    fn on_disk(&mut self, stage: &Stage) -> Result<(), Error> {
        for (work, count, _) in ON_DISK {
            let case = format!("file/{}", work.name());
            if !self.wants(&case) {
                continue;
            }
            let count = self.few(count);
            let yardsticks = if work == Work::Append { 2 } else { 0 };
            let samples = self.take_turns(3 + yardsticks, |round, contestant| match contestant {
                0 => work.pass(&stage.on_file, count, round),
                1 => work.pass(&stage.on_ext4, count, round),
                2 => work.pass(&stage.on_xfs, count, round),
                3 => yardstick::redb(stage.ext4.root(), 4096, count),
                _ => yardstick::sqlite(stage.ext4.root(), 4096, count),
            })?;
            let names = ["ext4", "xfs", "redb", "sqlite"];
            let peers: Vec<_> = names.into_iter().zip(&samples[1..]).collect();
            self.show(Row::new(case, "ns/op", &samples[0], &peers));
        }
        Ok(())
    }

    fn on_memory(&mut self, stage: &Stage) -> Result<(), Error> {
        for (work, count, _) in ON_MEMORY {
            let case = format!("pmem/{}", work.name());
            if self.wants(&case) {
                let count = self.few(count);
                let samples = self.take_turns(1, |round, _| work.pass(&stage.on_memory, count, round))?;
                self.show(Row::new(case, "ns/op", &samples[0], &[]));
            }
        }
        Ok(())
    }

    fn overwrites(&mut self, stage: &Stage) -> Result<(), Error> {
        for (kind, place) in [("pmem", &stage.on_memory), ("file", &stage.on_file)] {
            let case = format!("{kind}/{}", Work::Overwrite.name());
            if self.wants(&case) {
                let (places, count) = ([place, &stage.volatile], self.few(OVERWRITES));
                let pass = |round, contestant: usize| Work::Overwrite.pass(places[contestant], count, round);
                let samples = self.take_turns(2, pass)?;
                self.show(Row::new(case, "ns/op", &samples[0], &[("volatile", &samples[1])]));
            }
        }
        Ok(())
    }

    /// Rows that come through the mount. The library does not touch the pool meanwhile.
    fn on_mount(&mut self, stage: &Stage) -> Result<(), Error> {
        let Place::Pool(pool) = &stage.on_file else {
            return Ok(());
        };
        let works = ON_MOUNT.map(|(work, count)| (format!("file/mount-{}", work.name()), work, count));
        let cases = works.iter().map(|(case, ..)| &**case).chain([SQLITE, READ_BESIDE]);
        if !cases.into_iter().any(|case| self.wants(case)) {
            return Ok(());
        }
        let directory = tempfile::tempdir().map_err(|error| Error::system("making a directory", error))?;
        let mount = pool
            .mount(directory.path())
            .map_err(Error::library("mounting a pool"))?;
        let roots = [directory.path(), stage.ext4.root(), stage.xfs.root()];
        let on_mount = Place::Directory(directory.path().to_owned());
        for (case, work, count) in works {
            if self.wants(&case) {
                let (places, count) = ([&on_mount, &stage.on_ext4, &stage.on_xfs], self.few(count));
                let samples = self.take_turns(3, |round, contestant| work.pass(places[contestant], count, round))?;
                let peers = [("ext4", &samples[1]), ("xfs", &samples[2])];
                self.show(Row::new(case, "ns/op", &samples[0], &peers));
            }
        }
        if self.wants(SQLITE) {
            let count = self.few(1000);
            let samples = self.take_turns(3, |_, contestant| yardstick::sqlite(roots[contestant], 400, count))?;
            let peers = [("ext4", &samples[1]), ("xfs", &samples[2])];
            self.show(Row::new(SQLITE.to_owned(), "ns/op", &samples[0], &peers));
        }
        if self.wants(READ_BESIDE) {
            let (beside, count) = ([Some(roots[0]), Some(roots[1]), None], self.few(READS));
            let samples = self.take_turns(3, |_, contestant| {
                mounted::read_beside(roots[0], beside[contestant], count)
            })?;
            let peers = [("ext4", &samples[1]), ("alone", &samples[2])];
            self.show(Row::new(READ_BESIDE.to_owned(), "ns", &samples[0], &peers));
        }
        mount.unmount(false).map_err(Error::library("unmounting a pool"))
    }

    fn restarts(&mut self, directory: &Path) -> Result<(), Error> {
        if !self.wants("mount") {
            return Ok(());
        }
        let smoke = self.common.smoke;
        let (files, logged_files, times) = if smoke {
            (2000, 2000, 1)
        } else {
            (FILES, LOGGED_FILES, RESTARTS)
        };
        let rows = restart::measure(directory, files, logged_files, times)?;
        rows.into_iter().for_each(|row| self.show(row));
        Ok(())
    }
}

/// A durable pool with one member.
fn new_pool(member: &Path, bytes: u64) -> Result<Pool, Error> {
    disk::member(member, bytes)?;
    Pool::create_on(&[member.to_owned()], &PoolOptions::new()).map_err(Error::library("making a durable pool"))
}

/// Promises, and the numbers found.
fn findings(report: &Report) -> Vec<Finding> {
    let ratio = |case: String, peer: &str, least: f64| {
        Some(Finding {
            found: *report.row(&case)?.ratio.get(peer)?,
            what: format!("{case} against {peer}"),
            bound: Bound::AtLeast(least),
        })
    };
    let value = |case: &str, most: f64| {
        Some(Finding {
            found: report.row(case)?.homenode,
            what: case.to_owned(),
            bound: Bound::AtMost(most),
        })
    };
    let mut findings = Vec::new();
    for (work, _, peers) in ON_DISK {
        findings.extend(
            peers
                .iter()
                .map(|(peer, least)| ratio(format!("file/{}", work.name()), peer, *least)),
        );
    }
    for (work, _, most) in ON_MEMORY {
        findings.push(most.and_then(|most| value(&format!("pmem/{}", work.name()), most)));
    }
    for (kind, least) in OVERWRITE_RATIOS {
        findings.push(ratio(format!("{kind}/{}", Work::Overwrite.name()), "volatile", least));
    }
    findings.extend(["ext4", "xfs"].map(|peer| ratio(SQLITE.to_owned(), peer, SQLITE_RATIO)));
    findings.push(value(&format!("mount/{FILES}-files"), MOUNT_SECONDS_MAX));
    findings.push(value("mount/after-kill", AFTER_KILL_SECONDS_MAX));
    findings.into_iter().flatten().collect()
}
