//! `homenode-bench cache`: the cache of durable pools on block devices.
//!
//! `replay` plays traces of requests against the decisions of the cache alone, `policy::eviction` and `policy::slices`, without bytes and
//! without a clock: so its rows are the same in every run. The other parts measure: a pool whose member is a disk beside filesystems with the kernel's
//! page cache and bare disks of the same kind, and a pool of memory. Disks are of the kinds `fast` and `own`: see `stage`.

mod hit;
mod lists;
mod miss;
mod passes;
mod replay;
mod sliced;
mod space;
mod stage;
mod stream;
mod synthetic;
mod trace;
mod yardstick;

use crate::arguments::Arguments;
use crate::error::Error;
use crate::report::Table;
use crate::required;
use crate::run::Run;
use stage::{Kind, Sizes, Stage};
use std::path::PathBuf;

/// Wide enough for the longest name of a case.
const CASE_WIDTH: usize = 40;

/// Arguments of `homenode-bench cache`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("smoke", |smoke| smoke.help(
    "Use generated traces, small disks and few operations, to check that the bench works. The requirements of replays are still checked"
)))]
#[command(mut_arg("case", |case| case.help(
    "Run only measured cases with this name or these parts of a name, such as hit/fast; may be given several times"
)))]
pub(crate) struct CacheArguments {
    #[command(flatten)]
    cases: Arguments,
    /// Run only this part; may be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Use only disks of this kind; may be given several times.
    #[arg(long, value_name = "KIND")]
    disk: Vec<Kind>,
    /// Directory on the machine's own disk; the bench needs 5 GiB there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Also replay these traces: .bin in libCacheSim's oracleGeneral format, .lis in the format of the ARC paper, or a block number on
    /// each line.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "smoke")]
    trace: Vec<PathBuf>,
    /// Number of frames in replays, in percent of the blocks in the trace.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// Number of slices in replays.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    slices: u32,
}

/// Part of the bench that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Hit ratios of the cache's replacement policy on traces.
    Replay,
    /// Time to evict a block and to write one back, by the number of frames.
    Space,
    /// Accesses that hit the cache. Needs root, as do all parts below.
    Hit,
    /// Reads that miss the cache.
    Miss,
    /// Sequential reads of files, and durable appends.
    Stream,
}

impl Part {
    /// Parts that measure on disks.
    const ON_DISKS: [Self; 3] = [Self::Hit, Self::Miss, Self::Stream];
}

/// Runs the bench.
pub(crate) fn run(arguments: &CacheArguments) -> Result<(), Error> {
    let common = &arguments.cases.common;
    let is_wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let mut run = Run::new("cache", common, &arguments.cases.case)?;
    if is_wanted(Part::Replay) {
        run.begin(Table::new(&replay::PEERS).with_case_width(CASE_WIDTH).with_decimals(2));
        let required = replay::rows(arguments, &mut |row| run.show(row))?;
        required::judge(&required, common.check || common.smoke)?;
    }
    if is_wanted(Part::Space) {
        begin(&mut run, &["64m"]);
        space::rows(&mut run)?;
    }
    on_disks(&mut run, arguments, &is_wanted)?;
    if run.report.rows.is_empty() && required::skipped() == 0 {
        return Err(run.no_case());
    }
    run.end()
}

fn on_disks(run: &mut Run<'_>, arguments: &CacheArguments, is_wanted: &dyn Fn(Part) -> bool) -> Result<(), Error> {
    if !Part::ON_DISKS.into_iter().any(is_wanted) {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        required::skip("cases on disks: only root may make them");
        return Ok(());
    }
    let sizes = if run.common.smoke { Sizes::SMOKE } else { Sizes::FULL };
    for kind in Kind::ALL {
        if !arguments.disk.is_empty() && !arguments.disk.contains(&kind) {
            continue;
        }
        let stage = Stage::new(kind, sizes, &arguments.directory)?;
        let names: Vec<&'static str> = stage.peers.iter().map(|(name, _)| *name).collect();
        if is_wanted(Part::Hit) {
            begin(run, &[&["volatile"], &*names, &["one-thread"]].concat());
            hit::rows(run, &stage)?;
        }
        if is_wanted(Part::Miss) {
            begin(run, &[&["bare", "io_uring"], &*names].concat());
            miss::rows(run, &stage)?;
        }
        if is_wanted(Part::Stream) {
            begin(run, &names);
            stream::rows(run, &stage)?;
        }
    }
    Ok(())
}

/// Begins a table with columns for these peers.
fn begin(run: &mut Run<'_>, peers: &[&'static str]) {
    run.begin(Table::new(peers).with_case_width(CASE_WIDTH));
}
