//! `homenode-bench blk`: the block layer against itself behind one lock, and against the floor that its drivers have.
//!
//! Everything the layer has is on: tags, merging, accounts at both levels, timeouts. A case is
//! `DRIVER-SIZE/plugN/qdN/CORES`; a contestant keeps N requests under way on each core, at random places, and lets N
//! accumulate before they are given to the driver.

mod clock;
mod contestants;
mod crossing;
mod fairness;
mod figure;
mod latency;
pub(crate) mod load;
mod memcpy;
mod requirements;
mod schedulers;
mod single_lock;
pub(crate) mod uring;

use crate::arguments::Arguments;
use crate::error::Error;
use crate::output::Output;
use crate::report::{Row, Table};
use crate::required;
use crate::run::Run;
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

/// Runs the bench.
pub(crate) fn run(arguments: &BlkArguments) -> Result<(), Error> {
    let BlkArguments {
        cases,
        figure,
        directory,
    } = arguments;
    let mut run = Run::new("blk", &cases.common, &cases.case)?;
    if figure.is_some() && !run.wants(&figure::first_case()) {
        return Err(Error::NoCase(format!(
            "{}, which the figure begins with",
            figure::first_case()
        )));
    }
    let figure = Output::open(figure.as_deref())?;
    let cpus = cpus::choose()?;
    println!("CPUs {cpus:?}, {} rounds", run.rounds);
    let table = Table::new(&["single-lock", "memcpy", "clock", "fio"]);
    run.begin(table.with_case_width(36).with_range_of("single-lock"));
    for case in &CASES {
        if !run.wants(&case.name()) {
            continue;
        }
        if case.cores > cpus.len() {
            required::skip(format_args!("{}: this machine has fewer cores", case.name()));
            continue;
        }
        measure(&mut run, case, &cpus)?;
    }
    for rows in [crossing::rows, schedulers::rows, latency::rows, fairness::rows] {
        rows(&mut run, &cpus)?;
    }
    uring::rows(&mut run, &cpus, directory)?;
    if run.report.rows.is_empty() {
        return Err(run.no_case());
    }
    interrupt::check()?;
    run.findings = requirements::findings(&run.report);
    let drawn = figure.map(|file| (file, figure::of(&run.report)));
    let ended = run.end();
    if let Some((file, text)) = drawn {
        file.write(&text)?;
    }
    ended
}

/// Divisor of each number of requests.
fn divisor(run: &Run<'_>) -> u64 {
    if run.common.smoke { 1000 } else { 1 }
}

/// Homenode and the case's peers in turns.
fn measure(run: &mut Run<'_>, case: &Case, cpus: &[usize]) -> Result<(), Error> {
    let (cpus, divisor) = (&cpus[..case.cores], divisor(run));
    let peers = case.peers();
    let target = case.target()?;
    let mut memcpy = peers
        .contains(&Peer::Memcpy)
        .then(|| cpus::at_home(|| Memcpy::new(case)))
        .transpose()?;
    let samples = run.take_turns(&case.name(), 1 + peers.len(), |_, contestant| {
        match contestant.checked_sub(1).map(|peer| peers[peer]) {
            None => case.run(&target, cpus, divisor),
            Some(Peer::OneCore) => case.run(&target, &cpus[..1], divisor),
            Some(Peer::Clock) => clock::run(case, cpus, divisor),
            Some(Peer::SingleLock) => single_lock::run(case, &target, cpus, divisor),
            Some(Peer::Memcpy) => {
                let memcpy = memcpy.as_mut().expect("memcpy is one of the peers");
                memcpy.run(case, cpus, divisor)
            }
        }
    })?;
    let named: Vec<_> = peers.iter().map(|peer| peer.name()).zip(&samples[1..]).collect();
    run.show(Row::more_is_better(case.name(), "M IOPS", &samples[0], &named));
    Ok(())
}
