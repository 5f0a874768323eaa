//! `homenode run`: unmodified fio, and a bare loop, whose calls at an offset are copies, beside the same on the mount itself and on tmpfs.
//!
//! All contestants have a file of the same size whose bytes are there. Programs are processes of their own, as in life; fio measures itself.

use crate::arguments::{Arguments, is_wanted};
use crate::error::Error;
use crate::interleave::interleave;
use crate::interrupt;
use crate::mount::served::{Served, Variant};
use crate::output::Output;
use crate::private_tmpfs::{self, Pages};
use crate::report::{HOMENODE, Report, Row, Table, Tail};
use crate::required::{self, Bound, Finding};
use rustix::fd::{AsRawFd, OwnedFd};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PEERS: [&str; 3] = ["mount", "tmpfs-huge", "tmpfs"];
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
        let kib = self.block_bytes / KIB;
        let size = if kib < 1024 {
            format!("{kib}k")
        } else {
            format!("{}m", kib / 1024)
        };
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
        file_bytes: usize,
    ) -> Result<Self, Error> {
        let file = directory.join(name);
        let fill = || -> io::Result<()> {
            let to = File::create(&file)?;
            let block = vec![7; KIB * KIB];
            (0..file_bytes)
                .step_by(block.len())
                .try_for_each(|at| to.write_all_at(&block, at as u64))
        };
        fill().map_err(|error| Error::system(format!("filling {}", file.display()), error))?;
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

/// Arguments of the loop, which runs in a process of its own.
#[derive(Debug, clap::Args)]
pub(crate) struct LoopArguments {
    file: PathBuf,
    #[arg(long)]
    block_bytes: usize,
    #[arg(long)]
    milliseconds: u64,
    #[arg(long)]
    writes: bool,
}

/// Reads or writes blocks at random, and prints the ns of one.
pub(crate) fn run_loop(arguments: &LoopArguments) -> Result<(), Error> {
    let system = |error| Error::system(format!("the loop on {}", arguments.file.display()), error);
    let file = File::options()
        .read(true)
        .write(true)
        .open(&arguments.file)
        .map_err(system)?;
    let blocks = file.metadata().map_err(system)?.len() / arguments.block_bytes as u64;
    let mut buffer = vec![9; arguments.block_bytes];
    let (mut random, mut count) = (88_172_645_463_325_252_u64, 0_u32);
    let (time, start) = (Duration::from_millis(arguments.milliseconds), Instant::now());
    while start.elapsed() < time {
        for _ in 0..256 {
            // Marsaglia's xorshift.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random % blocks * arguments.block_bytes as u64;
            let done = match arguments.writes {
                true => file.write_all_at(&buffer, at),
                false => file.read_exact_at(&mut buffer, at),
            };
            done.map_err(system)?;
        }
        count += 256;
    }
    println!("{}", start.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    Ok(())
}

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let json = Output::open(arguments.json.as_deref())?;
    let mut cases = cases();
    cases.retain(|case| is_wanted(&arguments.case, &case.name()));
    if cases.is_empty() {
        return Err(Error::NoCase(arguments.case.join(" or ")));
    }
    let library = library()?;
    interrupt::watch()?;
    let (file_bytes, rounds, time) = match arguments.smoke {
        true => (4 * KIB * KIB, 1, Duration::from_millis(50)),
        false => (64 * KIB * KIB, arguments.rounds as usize, Duration::from_millis(600)),
    };
    let served = match Served::start(Variant::Kernel, 4 * file_bytes as u64, None) {
        Err(error @ Error::Unavailable { .. }) if !arguments.check => {
            println!("SKIPPED: {error}");
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
    let table = Table::new(&PEERS);
    table.print_head();
    let mut report = Report::new("preload");
    for case in cases {
        let mut tails = BTreeMap::new();
        let mut samples = interleave(1, contestants.len(), rounds, |_, _, turn| {
            interrupt::check()?;
            let (ns, tail) = measure(case, &contestants[turn], &library, time)?;
            tails.extend(tail.map(|tail| ([HOMENODE, PEERS[0], PEERS[1], PEERS[2]][turn], tail)));
            Ok::<_, Error>(ns)
        })?;
        let samples = samples.remove(0);
        let peers: Vec<_> = PEERS.into_iter().zip(&samples[1..]).collect();
        let row = Row::new(case.name(), "ns/op", &samples[0], &peers).with_tails(tails);
        table.print_row(&row);
        report.rows.push(row);
    }
    report.write_json(json)?;
    drop(contestants);
    drop(served);
    match arguments.smoke {
        true => Ok(()),
        false => required::judge(&findings(&report), arguments.check),
    }
}

fn findings(report: &Report) -> Vec<Finding> {
    let found = RATIOS_MIN.iter().filter_map(|(case, peer, least)| {
        Some(Finding {
            what: format!("{case} against {peer}"),
            found: *report.row(case)?.ratio.get(peer)?,
            bound: Bound::AtLeast(*least),
        })
    });
    found.collect()
}

fn library() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|error| Error::system("finding this program", error))?;
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
        false => {
            let own = std::env::current_exe().map_err(|error| Error::system("finding this program", error))?;
            let mut command = Command::new(own);
            command.arg("preload-loop").arg(&contestant.file);
            command
                .arg(format!("--block-bytes={}", case.block_bytes))
                .arg(format!("--milliseconds={}", time.as_millis()));
            command.args(case.writes.then_some("--writes"));
            command
        }
    };
    if contestant.is_preloaded {
        command.env("LD_PRELOAD", library).env("HOMENODE_RUN", "on");
    }
    let what = || format!("{} on {}", case.name(), contestant.file.display());
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::system(what(), error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::system(
            what(),
            io::Error::other(format!("{}: {said}", output.status)),
        ));
    }
    let nothing = || Error::system(what(), io::Error::other(format!("it tells nothing: {text}")));
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
