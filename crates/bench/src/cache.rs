//! `homenode-bench cache`: the cache of durable pools on block devices.
//!
//! `replay` plays traces of requests against the decisions of the cache alone, `policy::eviction` and `policy::slices`, without bytes and
//! without a clock: so its rows are the same in every run. The other parts measure: a pool whose member is a disk beside filesystems with the kernel's
//! page cache and bare disks of the same kind, and a pool of memory. Disks are of the kinds `fast` and `own`: see `stage`.

mod beside;
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

use crate::arguments::is_wanted;
use crate::error::Error;
use crate::interleave::{Samples, interleave};
use crate::interrupt;
use crate::output::Output;
use crate::report::{Report, Row, Table};
use crate::required::{self, Bound, Finding};
use stage::{Kind, Sizes, Stage};
use std::path::PathBuf;

/// Arguments of `homenode-bench cache`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Use generated traces, small disks and few operations, to check that the bench works. The requirements of replays are still
    /// checked.
    #[arg(long, conflicts_with_all = ["check", "trace"])]
    smoke: bool,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only this part; may be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Run only measured cases with this name or these parts of a name, such as hit/fast; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Use only disks of this kind; may be given several times.
    #[arg(long, value_name = "KIND")]
    disk: Vec<Kind>,
    /// Number of measured rounds.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Directory on the machine's own disk; the bench needs 5 GiB there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Also replay these traces: .bin in libCacheSim's oracleGeneral format, .lis in the format of the ARC paper, or a block number on
    /// each line.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Number of frames in replays, in percent of the blocks in the trace.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// Number of slices in replays.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    slices: u32,
    /// Exit with 1 if a required number is missed.
    #[arg(long)]
    check: bool,
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
    /// Reads beside a writer.
    Beside,
}

impl Part {
    /// Parts that measure on disks.
    const ON_DISKS: [Self; 4] = [Self::Hit, Self::Miss, Self::Stream, Self::Beside];
}

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let json = Output::open(arguments.json.as_deref())?;
    interrupt::watch()?;
    let is_wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let mut bench = Bench {
        arguments,
        report: Report::new("cache"),
        table: Table::new(&replay::PEERS).with_case_width(40).with_decimals(2),
        findings: Vec::new(),
    };
    if is_wanted(Part::Replay) {
        bench.table.print_head();
        let required = replay::rows(arguments, &mut |row| bench.show(row))?;
        required::judge(&required, arguments.check || arguments.smoke)?;
    }
    if is_wanted(Part::Space) {
        bench.begin(&["64m"]);
        space::rows(&mut bench)?;
    }
    bench.on_disks(&is_wanted)?;
    bench.report.write_json(json)?;
    if arguments.smoke {
        Ok(())
    } else {
        required::judge(&bench.findings, arguments.check)
    }
}

/// A run of the bench.
struct Bench<'a> {
    arguments: &'a Arguments,
    report: Report,
    table: Table,
    findings: Vec<Finding>,
}

impl Bench<'_> {
    fn on_disks(&mut self, is_wanted: &dyn Fn(Part) -> bool) -> Result<(), Error> {
        if !Part::ON_DISKS.into_iter().any(is_wanted) {
            return Ok(());
        }
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: cases on disks: only root may make them");
            return Ok(());
        }
        let sizes = if self.is_smoke() { Sizes::SMOKE } else { Sizes::FULL };
        for kind in Kind::ALL {
            if !self.arguments.disk.is_empty() && !self.arguments.disk.contains(&kind) {
                continue;
            }
            let stage = Stage::new(kind, sizes, &self.arguments.directory)?;
            let names: Vec<&'static str> = stage.peers.iter().map(|(name, _)| *name).collect();
            if is_wanted(Part::Hit) {
                self.begin(&[&["volatile"], &*names, &["one-thread"]].concat());
                hit::rows(self, &stage)?;
            }
            if is_wanted(Part::Miss) {
                self.begin(&[&["bare", "io_uring"], &*names].concat());
                miss::rows(self, &stage)?;
            }
            if is_wanted(Part::Stream) {
                self.begin(&names);
                stream::rows(self, &stage)?;
            }
            if is_wanted(Part::Beside) {
                self.begin(&names);
                beside::rows(self, &stage)?;
            }
        }
        Ok(())
    }

    fn is_smoke(&self) -> bool {
        self.arguments.smoke
    }

    fn wants(&self, case: &str) -> bool {
        is_wanted(&self.arguments.case, case)
    }

    /// Fewer operations where only that they work is to be seen.
    fn few(&self, count: usize) -> usize {
        if self.is_smoke() {
            count.div_ceil(50).max(8)
        } else {
            count
        }
    }

    /// Begins a table with columns for these peers.
    fn begin(&mut self, peers: &[&'static str]) {
        self.table = Table::new(peers).with_case_width(40);
        self.table.print_head();
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
        let rounds = if self.is_smoke() {
            1
        } else {
            self.arguments.rounds as usize
        };
        let mut samples = interleave(1, contestants, rounds, |round, _, contestant| {
            interrupt::check()?;
            pass(round as u64, contestant)
        })?;
        Ok(samples.remove(0))
    }

    /// Requires this ratio to a peer, of a case that was shown.
    fn require_ratio(&mut self, case: &str, peer: &'static str, least: f64) {
        self.require(case, peer, &format!("against {peer}"), Bound::AtLeast(least), |ratio| {
            ratio
        });
    }

    /// Requires something of what `value` makes of the ratio to a peer.
    fn require(&mut self, case: &str, peer: &'static str, what: &str, bound: Bound, value: impl Fn(f64) -> f64) {
        let ratio = self.report.row(case).and_then(|row| row.ratio.get(peer));
        if let Some(ratio) = ratio {
            let found = value(*ratio);
            self.require_value(case, what, found, bound);
        }
    }

    fn require_value(&mut self, case: &str, what: &str, found: f64, bound: Bound) {
        self.findings.push(Finding {
            what: format!("{case} {what}"),
            found,
            bound,
        });
    }
}
