//! `homenode-bench cache`: the cache of durable pools on block devices.
//!
//! `replay` plays traces of requests against the decisions of the cache alone, `policy::eviction` and `policy::slices`, without bytes and
//! without a clock: so its rows are the same in every run.

mod lists;
mod replay;
mod sliced;
mod synthetic;
mod trace;
mod yardstick;

use crate::error::Error;
use crate::interrupt;
use crate::output::Output;
use crate::report::{Report, Row, Table};
use crate::required;
use std::path::PathBuf;

/// Arguments of `homenode-bench cache`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only the traces that the bench makes itself. What is required of replays is checked all the same.
    #[arg(long, conflicts_with_all = ["check", "trace"])]
    smoke: bool,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only this part (may be given again: these).
    #[arg(long, value_name = "PART")]
    only: Vec<Part>,
    /// Replay these traces too: .bin as libCacheSim's oracleGeneral has it, .lis as the traces of the ARC paper, or a block's number on
    /// each line.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Replay: frames, in percent of the blocks that the trace names.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    percent: u32,
    /// Replay: slices.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    slices: u32,
    /// Exit with 1 unless every required number is reached.
    #[arg(long)]
    check: bool,
}

/// What is found out apart from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Hit ratios of the cache's decisions, by traces.
    Replay,
}

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let json = Output::open(arguments.json.as_deref())?;
    interrupt::watch()?;
    let is_wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let mut report = Report::new("cache");
    let table = Table::new(&replay::PEERS).with_case_width(40).with_decimals(2);
    table.print_head();
    let mut add = |row: Row| {
        table.print_row(&row);
        report.rows.push(row);
    };
    let mut findings = Vec::new();
    if is_wanted(Part::Replay) {
        findings.extend(replay::rows(arguments, &mut add)?);
    }
    report.write_json(json)?;
    required::judge(&findings, arguments.check || arguments.smoke)
}
