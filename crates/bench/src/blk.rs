//! `homenode-bench blk`: the block layer against itself behind one lock, and against the floor that its drivers have.
//!
//! Everything the layer has is on: tags, merging, accounts at both levels, timeouts. A case is
//! `DRIVER-SIZE/plugN/qdN/CORES`; a contestant keeps N requests under way on each core, at random places, and lets N
//! accumulate before they are given to the driver.

mod clock;
pub(crate) mod contestants;
mod crossing;
mod fairness;
mod figure;
mod latency;
pub(crate) mod load;
mod memcpy;
mod requirements;
mod schedulers;
mod single_lock;
mod uring;

use crate::arguments::{Arguments, is_wanted};
use crate::error::Error;
use crate::interleave::take_turns;
use crate::output::Output;
use crate::report::{Report, Row, Table};
use crate::run::progress;
use crate::{cpus, interrupt};
use contestants::{CASES, Case, Peer};
use memcpy::Memcpy;
use std::path::PathBuf;

/// Arguments of `homenode-bench blk`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("21")))]
pub(crate) struct BlkArguments {
    #[command(flatten)]
    cases: Arguments,
    /// Draw requests per second by number of cores to FILE (SVG).
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Directory for the file that io_uring reads.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Divisor of each number of requests: 1 for a full run, 1000 for `--smoke`.
    divisor: u64,
    rounds: usize,
}

/// Whether a case of this name is to run.
type Wants<'a> = &'a dyn Fn(&str) -> bool;

impl BlkArguments {
    fn wants(&self, name: &str) -> bool {
        is_wanted(&self.cases.case, name)
    }
}

/// Runs the bench.
pub(crate) fn run(arguments: &BlkArguments) -> Result<(), Error> {
    let common = &arguments.cases.common;
    if arguments.figure.is_some() && !arguments.wants(&figure::first_case()) {
        return Err(Error::NoCase(format!(
            "{}, which the figure begins with",
            figure::first_case()
        )));
    }
    let json = common.begin()?;
    let figure = Output::open(arguments.figure.as_deref())?;
    let scale = Scale {
        divisor: if common.smoke { 1000 } else { 1 },
        rounds: if common.smoke { 1 } else { common.rounds as usize },
    };
    let cpus = cpus::choose()?;
    let mut report = Report::new("blk");
    let table = Table::new(&["single-lock", "memcpy", "clock", "fio"])
        .with_case_width(36)
        .with_range_of("single-lock");
    println!("CPUs {cpus:?}, {} rounds", scale.rounds);
    table.print_head();
    let add = |report: &mut Report, row: Row| {
        table.print_row(&row);
        report.rows.push(row);
    };
    for case in CASES.iter().filter(|case| arguments.wants(&case.name())) {
        if case.cores > cpus.len() {
            println!("SKIPPED: {}: this machine has fewer cores", case.name());
            continue;
        }
        let row = measure(case, &cpus, scale)?;
        add(&mut report, row);
    }
    let wants: Wants<'_> = &|name| arguments.wants(name);
    for rows in [crossing::rows, schedulers::rows, latency::rows, fairness::rows] {
        for row in rows(wants, &cpus, scale)? {
            add(&mut report, row);
        }
    }
    for row in uring::rows(wants, &cpus, scale, &arguments.directory)? {
        add(&mut report, row);
    }
    if report.rows.is_empty() {
        return Err(Error::NoCase(arguments.cases.case.join(", ")));
    }
    interrupt::check()?;
    let ended = common.end(json, &report, &requirements::findings(&report));
    if let Some(file) = figure {
        file.write(&figure::of(&report))?;
    }
    ended
}

/// Homenode and the case's peers in turns.
fn measure(case: &Case, cpus: &[usize], scale: Scale) -> Result<Row, Error> {
    let cpus = &cpus[..case.cores];
    let peers = case.peers();
    let target = case.target()?;
    let mut memcpy = case
        .peers()
        .contains(&Peer::Memcpy)
        .then(|| Memcpy::new(case))
        .transpose()?;
    let progress = progress((scale.rounds + 1) * (1 + peers.len()));
    progress.set_message(case.name());
    let samples = take_turns(1 + peers.len(), scale.rounds, |_, contestant| {
        let value = match contestant.checked_sub(1).map(|peer| peers[peer]) {
            None => case.run(&target, cpus, scale.divisor)?,
            Some(Peer::Clock) => clock::run(case, cpus, scale.divisor)?,
            Some(Peer::SingleLock) => single_lock::run(case, &target, cpus, scale.divisor)?,
            Some(Peer::Memcpy) => {
                let memcpy = memcpy.as_mut().expect("memcpy is one of the peers");
                memcpy.run(case, cpus, scale.divisor)?
            }
        };
        progress.inc(1);
        Ok(value)
    })?;
    progress.finish_and_clear();
    let named: Vec<_> = peers
        .iter()
        .zip(&samples[1..])
        .map(|(peer, samples)| (peer.name(), samples))
        .collect();
    Ok(Row::more_is_better(case.name(), "M IOPS", &samples[0], &named))
}
