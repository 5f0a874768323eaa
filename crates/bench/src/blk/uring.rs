//! A file by io_uring, beside fio's engine for it: the same file, the same requests, the same depth, the same CPU.
//!
//! fio has its best settings: file and buffers registered, batches of the same size, no map of what was read, no clock for
//! each request. It sleeps in the kernel until a request is done, as it cannot be told to do otherwise on disks without queues to poll;
//! the block layer looks for the end, and saves the wake-up, which is most of what it gains at depth 1.

use super::contestants::device;
use super::divisor;
use super::load::{Load, play, together};
use crate::error::{During, Error};
use crate::place::Open;
use crate::report::Row;
use crate::required;
use crate::run::Run;
use homenode::blk::{Arena, Options, UringFile, UringOptions};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::process::Command;

const FILE_BYTES: usize = 256 << 20;
const REQUEST_BYTES: u32 = 4096;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Past the page cache.
    direct: bool,
    plug: usize,
    depth: u16,
}

const CASES: [Case; 4] = [
    case(true, 1, 1),
    case(true, 32, 128),
    case(false, 1, 1),
    case(false, 32, 128),
];

const fn case(direct: bool, plug: usize, depth: u16) -> Case {
    Case { direct, plug, depth }
}

impl Case {
    fn name(&self) -> String {
        let kind = if self.direct { "direct" } else { "cached" };
        format!("uring-{kind}-4k/plug{}/qd{}/1c", self.plug, self.depth)
    }

    /// Enough for about a second.
    fn requests(&self, divisor: u64) -> u64 {
        let requests = match (self.direct, self.depth) {
            (true, 1) => 10_000,
            (true, _) => 50_000,
            (false, _) => 500_000,
        };
        (requests / divisor).max(1)
    }

    fn homenode(&self, file: &Path, cpu: usize, divisor: u64, seed: u64) -> Result<f64, Error> {
        let load = Load {
            bytes: REQUEST_BYTES,
            depth: usize::from(self.depth),
            requests: self.requests(divisor),
        };
        homenode(file, cpu, self.direct, self.plug, load, seed).map(|millions| millions * 1e3)
    }
}

/// Random reads of a file in `directory`, thousands per second.
pub(super) fn rows(run: &mut Run<'_>, cpus: &[usize], directory: &Path) -> Result<(), Error> {
    let cases: Vec<Case> = CASES.into_iter().filter(|case| run.wants(&case.name())).collect();
    if cases.is_empty() {
        return Ok(());
    }
    if let Err(error) = Command::new("fio").arg("--version").output() {
        required::skip(format_args!("uring: no fio to compare with: {error}"));
        return Ok(());
    }
    let failed = |error| Error::system(format!("making a file in {}", directory.display()), error);
    let file = tempfile::Builder::new()
        .prefix("homenode-bench")
        .tempfile_in(directory)
        .map_err(failed)?;
    let filled = Open::Directory(file.reopen().map_err(failed)?);
    filled.fill(0x5a, FILE_BYTES)?;
    filled.sync()?;
    let (names, divisor) = (cases.iter().map(Case::name).collect::<Vec<_>>(), divisor(run));
    let samples = run.interleave(&names, 2, |round, case, contestant| match contestant {
        0 => cases[case].homenode(file.path(), cpus[0], divisor, round),
        _ => fio(&cases[case], file.path(), cpus[0], divisor),
    })?;
    for (name, samples) in names.into_iter().zip(&samples) {
        run.show(Row::more_is_better(
            name,
            "k IOPS",
            &samples[0],
            &[("fio", &samples[1])],
        ));
    }
    Ok(())
}

/// Reads of a file or device at random places that follow from `seed`, `depth` under way: millions per second.
pub(crate) fn homenode(
    file: &Path,
    cpu: usize,
    direct: bool,
    plug: usize,
    load: Load,
    seed: u64,
) -> Result<f64, Error> {
    let unavailable = |reason: String| Error::Unavailable {
        contestant: "uring_file",
        reason,
    };
    let depth = u16::try_from(load.depth).expect("fewer than 2^16 requests are under way");
    let buffers = Arena::new(u64::from(load.bytes) * u64::from(depth), None);
    let buffers = buffers.map_err(|error| unavailable(error.to_string()))?;
    let options = UringOptions {
        direct,
        read_only: true,
        depth,
        ..UringOptions::default()
    };
    let driver = UringFile::open(file, buffers, options).map_err(|error| unavailable(error.to_string()))?;
    let options = Options {
        plug,
        tags: depth,
        ..Options::default()
    };
    let device = device(&driver, 1, options)?;
    together(&[cpu], |_| {
        let mut core = device.join(0).expect("the core joins once");
        move |clock| play(&mut core, clock, &load, (0, seed))
    })
}

fn fio(case: &Case, file: &Path, cpu: usize, divisor: u64) -> Result<f64, Error> {
    let mut command = Command::new("fio");
    command
        .args(["--name=job", "--rw=randread", "--ioengine=io_uring", "--thread"])
        .args(["--registerfiles", "--fixedbufs", "--norandommap", "--gtod_reduce=1"])
        .args(["--output-format=json", "--eta=never", "--invalidate=0"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--direct={}", u8::from(case.direct)))
        .arg(format!("--bs={REQUEST_BYTES}"))
        .arg(format!("--iodepth={}", case.depth))
        .arg(format!("--iodepth_batch_submit={}", case.plug))
        .arg(format!("--iodepth_batch_complete_max={}", case.depth))
        .arg(format!("--number_ios={}", case.requests(divisor)))
        // The file once and again, until there were as many requests.
        .arg(format!(
            "--io_size={}",
            case.requests(divisor) * u64::from(REQUEST_BYTES)
        ))
        .arg(format!("--cpus_allowed={cpu}"));
    let output = command.output().during("starting fio")?;
    let iops = serde_json::from_slice::<Value>(&output.stdout)
        .ok()
        .and_then(|told| told["jobs"][0]["read"]["iops"].as_f64())
        .filter(|iops| output.status.success() && *iops > 0.0);
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    iops.map(|iops| iops / 1e3)
        .ok_or_else(|| Error::system("fio", io::Error::other(format!("{}: {}", output.status, said()))))
}
