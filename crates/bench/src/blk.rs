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

use crate::arguments::is_wanted;
use crate::error::Error;
use crate::interleave::take_turns;
use crate::output::Output;
use crate::report::{Report, Row, Table};
use crate::required;
use crate::run::progress;
use crate::{cpus, interrupt};
use contestants::{CASES, Case, Peer};
use memcpy::Memcpy;
use std::path::PathBuf;

/// Arguments of `homenode-bench blk`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Use few requests and rounds, to check that the bench works. The numbers mean nothing.
    #[arg(long, conflicts_with = "check")]
    smoke: bool,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw requests per second by number of cores to FILE (SVG).
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Directory for the file that io_uring reads.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
    /// Run only cases with this name or these parts of a name, such as noop-512 or plug1/qd1; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Number of measured rounds.
    #[arg(long, value_name = "N", default_value_t = 21, conflicts_with = "smoke", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Exit with 1 if a case that ran missed a required number.
    #[arg(long)]
    check: bool,
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

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        is_wanted(&self.case, name)
    }
}

/// Runs the bench.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    if arguments.figure.is_some() && !arguments.wants(&figure::first_case()) {
        return Err(Error::NoCase(format!(
            "{}, which the figure begins with",
            figure::first_case()
        )));
    }
    let json = Output::open(arguments.json.as_deref())?;
    let figure = Output::open(arguments.figure.as_deref())?;
    let scale = Scale {
        divisor: if arguments.smoke { 1000 } else { 1 },
        rounds: if arguments.smoke { 1 } else { arguments.rounds as usize },
    };
    interrupt::watch()?;
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
        return Err(Error::NoCase(arguments.case.join(", ")));
    }
    interrupt::check()?;
    report.write_json(json)?;
    if let Some(file) = figure {
        file.write(&figure::of(&report))?;
    }
    if arguments.smoke {
        Ok(())
    } else {
        required::judge(&requirements::findings(&report), arguments.check)
    }
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
