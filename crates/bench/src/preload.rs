//! `homenode run`: unmodified fio, and a bare loop, whose calls at an offset are copies, beside the same on the mount itself and on tmpfs.
//!
//! All contestants have a file of the same size whose bytes are there. Programs are processes of their own, as in life; fio measures itself.

mod loops;

use crate::arguments::Arguments;
use crate::error::{During, Error};
use crate::mount::served::{Served, Variant};
use crate::place::Place;
use crate::private_tmpfs::{self, Pages};
use crate::report::{HOMENODE, Report, Row, Table, Tail, size_name};
use crate::required::{self, Bound, Finding};
use crate::run::Run;
use rustix::fd::{AsRawFd, OwnedFd};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) use loops::{LoopArguments, run_loop};

const PEERS: [&str; 3] = ["mount", "tmpfs-huge", "tmpfs"];
/// Peers of the rows of loops alone.
const PEERS_ALONE: [&str; 2] = [loops::MEMCPY, loops::PLAIN];
const LIBRARY: &str = "libhomenode.so";
const KIB: usize = 1 << 10;

/// Least ratios to a peer.
const RATIOS_MIN: [(&str, &str, f64); 20] = [
    ("preload/fio/1k/write", "tmpfs-huge", 2.4),
    ("preload/fio/1k/read", "tmpfs-huge", 2.4),
    ("preload/fio/4k/write", "tmpfs-huge", 1.8),
    ("preload/fio/4k/read", "tmpfs-huge", 1.7),
    ("preload/fio/4k/write-2j", "tmpfs-huge", 1.8),
    ("preload/fio/4k/read-2j", "tmpfs-huge", 1.8),
    ("preload/fio/16k/write", "tmpfs-huge", 1.3),
    ("preload/fio/16k/read", "tmpfs-huge", 1.3),
    ("preload/fio/64k/write", "tmpfs-huge", 1.1),
    ("preload/fio/64k/read", "tmpfs-huge", 1.1),
    ("preload/fio/1m/write", "tmpfs-huge", 0.95),
    ("preload/fio/1m/read", "tmpfs-huge", 0.95),
    ("preload/fio/4k/write", "tmpfs", 2.4),
    ("preload/fio/4k/read", "tmpfs", 2.4),
    ("preload/fio/64k/write", "tmpfs", 2.0),
    ("preload/fio/64k/read", "tmpfs", 2.0),
    ("preload/loop/1k/write", "tmpfs-huge", 4.0),
    ("preload/loop/1k/read", "tmpfs-huge", 4.0),
    ("preload/loop/4k/write", "tmpfs-huge", 2.3),
    ("preload/loop/4k/read", "tmpfs-huge", 2.3),
];

/// Least share of memcpy's gain by a second thread.
const SCALING_MIN: f64 = 0.9;
/// Most ns that a call on a file of no pool may take longer.
const OTHER_NS_MAX: f64 = 3.0;
/// Most ns that a program may start later.
const START_NS_MAX: f64 = 2e6;

#[derive(Clone, Copy, Debug)]
struct Case {
    is_fio: bool,
    block_bytes: usize,
    writes: bool,
    jobs: usize,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |is_fio, kib: usize, jobs| {
        cases.extend([true, false].map(|writes| Case {
            is_fio,
            block_bytes: kib * KIB,
            writes,
            jobs,
        }));
    };
    [1, 4, 16, 64, 1024].into_iter().for_each(|kib| add(true, kib, 1));
    add(true, 4, 2);
    [1, 4].into_iter().for_each(|kib| add(false, kib, 1));
    cases
}

impl Case {
    fn name(self) -> String {
        let program = if self.is_fio { "fio" } else { "loop" };
        let size = size_name(self.block_bytes);
        let work = if self.writes { "write" } else { "read" };
        let jobs = if self.jobs > 1 {
            format!("-{}j", self.jobs)
        } else {
            String::new()
        };
        format!("preload/{program}/{size}/{work}{jobs}")
    }
}

/// A file, and whether programs get to it by the library.
struct Contestant {
    file: PathBuf,
    is_preloaded: bool,
    /// Root of a private tmpfs, which lives as long as this descriptor.
    _tmpfs: Option<OwnedFd>,
}

impl Contestant {
    fn new(
        directory: &Path,
        name: &str,
        is_preloaded: bool,
        tmpfs: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self, Error> {
        Place::Directory(directory.to_owned()).create(name)?.fill(7, bytes)?;
        let file = directory.join(name);
        Ok(Self {
            file,
            is_preloaded,
            _tmpfs: tmpfs,
        })
    }

    fn tmpfs(pages: Pages, file_bytes: usize) -> Result<Self, Error> {
        let root = private_tmpfs::mount(pages, 2 * file_bytes as u64)?;
        let directory = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), root.as_raw_fd()));
        Self::new(&directory, "file", false, Some(root), file_bytes)
    }
}

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut run = Run::new("preload", &arguments.common, &arguments.case)?;
    let mut cases = cases();
    cases.retain(|case| run.wants(&case.name()));
    let mut alone = loops::Alone::all();
    alone.retain(|case| run.wants(case.name()));
    if cases.is_empty() && alone.is_empty() {
        return Err(run.no_case());
    }
    let library = library()?;
    let (file_bytes, time) = match run.common.smoke {
        true => (4 * KIB * KIB, Duration::from_millis(50)),
        false => (64 * KIB * KIB, Duration::from_millis(600)),
    };
    let served = match Served::start(Variant::Kernel, 4 * file_bytes as u64, None) {
        Err(error @ Error::Unavailable { .. }) if !run.common.check => {
            required::skip(&error);
            return Ok(());
        }
        served => served?,
    };
    let contestants = [
        Contestant::new(served.directory(), "run", true, None, file_bytes)?,
        Contestant::new(served.directory(), "mount", false, None, file_bytes)?,
        Contestant::tmpfs(Pages::Huge, file_bytes)?,
        Contestant::tmpfs(Pages::Default, file_bytes)?,
    ];
    run.begin(Table::new(&PEERS));
    for case in cases {
        let mut tails = BTreeMap::new();
        let samples = run.take_turns(&case.name(), contestants.len(), |_, turn| {
            let (ns, tail) = measure(case, &contestants[turn], &library, time)?;
            tails.extend(tail.map(|tail| ([HOMENODE, PEERS[0], PEERS[1], PEERS[2]][turn], tail)));
            Ok(ns)
        })?;
        let peers: Vec<_> = PEERS.into_iter().zip(&samples[1..]).collect();
        run.show(Row::new(case.name(), "ns/op", &samples[0], &peers).with_tails(tails));
    }
    run.begin(Table::new(&PEERS_ALONE).with_decimals(2));
    for case in alone {
        let row = case.row(&run, &contestants[0].file, &library, time)?;
        run.show(row);
    }
    drop(contestants);
    drop(served);
    run.findings = findings(&run.report);
    run.end()
}

fn findings(report: &Report) -> Vec<Finding> {
    let found = RATIOS_MIN
        .iter()
        .filter_map(|(case, peer, least)| Finding::ratio(report, case, peer, *least));
    let alone = report.rows.iter().filter_map(|row| {
        let scaling = row
            .ratio
            .get(loops::MEMCPY)
            .map(|found| (*found, Bound::AtLeast(SCALING_MIN)));
        let most = if row.case == loops::START {
            START_NS_MAX
        } else {
            OTHER_NS_MAX
        };
        let other = row
            .peers
            .get(loops::PLAIN)
            .map(|plain| (row.homenode - plain, Bound::AtMost(most)));
        let (found, bound) = scaling.or(other)?;
        Some(Finding::new(row.case.clone(), found, bound))
    });
    found.chain(alone).collect()
}

fn library() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().during("finding this program")?;
    let library = own.with_file_name(LIBRARY);
    match library.is_file() {
        true => Ok(library),
        false => {
            let error = io::Error::from(io::ErrorKind::NotFound);
            Err(Error::system(
                format!(
                    "finding {} (`cargo build --package homenode-client` makes it)",
                    library.display()
                ),
                error,
            ))
        }
    }
}

/// Ns of an operation, and how those of fio were distributed.
fn measure(case: Case, contestant: &Contestant, library: &Path, time: Duration) -> Result<(f64, Option<Tail>), Error> {
    let mut command = match case.is_fio {
        true => fio(case, &contestant.file, time),
        false => loops::command(
            &contestant.file,
            case.block_bytes,
            loops::Work::of(case.writes),
            1,
            time,
        ),
    };
    let library = contestant.is_preloaded.then_some(library);
    let text = told(&mut command, library, || {
        format!("{} on {}", case.name(), contestant.file.display())
    })?;
    let nothing = || Error::system(case.name(), io::Error::other(format!("it tells nothing: {text}")));
    if !case.is_fio {
        return Ok((text.trim().parse().map_err(|_| nothing())?, None));
    }
    // Warnings may come first.
    let report: Value =
        serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default()).map_err(|_| nothing())?;
    let job = &report["jobs"][0][if case.writes { "write" } else { "read" }];
    let iops = job["iops"].as_f64().filter(|iops| *iops > 0.0).ok_or_else(nothing)?;
    let percentile = |name: &str| job["clat_ns"]["percentile"][name].as_u64();
    let tail = percentile("50.000000")
        .zip(percentile("99.900000"))
        .zip(job["clat_ns"]["max"].as_u64());
    let tail = tail.map(|((p50_ns, p99_9_ns), worst_ns)| Tail {
        p50_ns,
        p99_9_ns,
        worst_ns,
    });
    Ok((1e9 / iops, tail))
}

/// Runs a program, with the library or without it; returns its standard output.
fn told(command: &mut Command, library: Option<&Path>, what: impl Fn() -> String) -> Result<String, Error> {
    if let Some(library) = library {
        command.env("LD_PRELOAD", library).env("HOMENODE_RUN", "on");
    }
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::system(what(), error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let error = io::Error::other(format!("{}: {said}", output.status));
        return Err(Error::system(what(), error));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn fio(case: Case, file: &Path, time: Duration) -> Command {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=preload",
        "--ioengine=psync",
        "--fallocate=none",
        "--time_based",
        "--group_reporting",
        "--output-format=json",
    ]);
    fio.arg(format!("--filename={}", file.display()))
        .arg(format!("--bs={}", case.block_bytes));
    fio.arg(format!("--rw=rand{}", if case.writes { "write" } else { "read" }));
    fio.arg(format!("--size={}", fs::metadata(file).map_or(0, |file| file.len())));
    fio.arg(format!("--runtime={}ms", time.as_millis()))
        .arg(format!("--numjobs={}", case.jobs));
    fio
}
