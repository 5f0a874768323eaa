//! `homenode demo`: a first run. Pools come up, real trees are copied into them and compared, reads and writes are measured
//! beside tmpfs, and one table and one page tell what is local, what is fast, and what is not.
//!
//! `stage` holds what it needs and takes it down, however it ends; `measure` runs rounds; `outcome` is what was found, of
//! which `table`, `page` and the JSON are made.

mod contestants;
mod findings;
mod fio;
mod in_process;
mod interrupt;
mod limits;
mod machine;
mod measure;
mod outcome;
mod page;
mod place;
mod placement;
mod program;
mod server;
mod stage;
mod table;
mod trees;

use crate::argument;
use crate::control::protocol::OUTPUT_VERSION;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::{absolute, shown};
use clap::Args;
use homenode::Size;
use homenode_linux::topology::{Source, read};
use outcome::{Outcome, Settings};
use stage::Stage;
use std::fs;
use std::path::{Path, PathBuf};

/// Threads at a time in the rows with several.
const JOBS_MAX: usize = 2;
/// 128 and the signal's number: what a shell makes of a command that a signal ended.
const INTERRUPTED_EXIT_CODE: i32 = 128;

/// Measure locality and speed of pools on this machine. Takes about three minutes.
///
/// The demo mounts pools with both kinds of data, copies real trees into them and compares the trees by rsync, measures the
/// mounts and the library beside tmpfs, prints one table, writes one page, and removes all mounts and copies at the end or on Ctrl-C.
/// It needs root, fio and rsync.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Empty directory to mount in; created if missing. Default: a temporary directory.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Size of each node's member in each of the three pools. Default: 1G, or an eighth of the smallest node's memory if
    /// that is less.
    #[arg(long, value_name = "SIZE", value_parser = argument::size)]
    size_per_node: Option<Size>,
    /// Directory to copy; may be given several times. Files that the .gitignore of a git work tree names are not copied.
    /// Default: /usr/include, and the current directory if it is a git work tree.
    #[arg(long = "tree", value_name = "TREE")]
    trees: Vec<PathBuf>,
    /// Measuring time for each number over all rounds, in seconds. Default: 1.2, or 0.1 with --quick.
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Run a single short round with a small tree. This checks that the demo works; it measures too little to compare.
    #[arg(long)]
    quick: bool,
    /// File for the page.
    #[arg(long, value_name = "FILE", default_value = "homenode-report.html")]
    report: PathBuf,
    /// Also write the results to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    const MIN: f64 = 0.01;
    const MAX: f64 = 3600.0;
    match text.parse() {
        Ok(seconds) if (MIN..=MAX).contains(&seconds) => Ok(seconds),
        _ => Err(format!("give a number of seconds from {MIN} to {MAX}, such as 1.2")),
    }
}

impl DemoArgs {
    fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    fn seconds_per_round(&self) -> f64 {
        let seconds = self.seconds.unwrap_or(if self.quick { 0.1 } else { 1.2 });
        seconds / self.rounds() as f64
    }
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    interrupt::watch()?;
    let shown = demonstrate(args);
    // Everything is down by now.
    match (interrupt::signal(), shown) {
        (Some(signal), Err(_)) => {
            complain!("homenode: interrupted: all mounts are removed, no report was written");
            let signal = i32::try_from(signal).expect("signal numbers fit an i32");
            std::process::exit(INTERRUPTED_EXIT_CODE + signal)
        }
        (_, shown) => shown,
    }
}

fn demonstrate(args: &DemoArgs) -> Result<()> {
    stage::check_rights()?;
    let fio = program::require("fio", "fio", "measures the mounts")?;
    let rsync = program::require("rsync", "rsync", "copies the trees and compares them")?;
    // Found out now, not after minutes.
    for file in std::iter::once(&args.report).chain(&args.json) {
        check_writable(file)?;
    }
    let topology = read(&Source::Live).map_err(|error| Failure::new(crate::failure::chain(&error)))?;
    let mut outcome = Outcome {
        output_version: OUTPUT_VERSION,
        headline: String::new(),
        findings: Vec::new(),
        limits: Vec::new(),
        machine: machine::describe(&topology, fio, rsync),
        settings: Settings {
            rounds: args.rounds(),
            seconds_per_round: args.seconds_per_round(),
            ..Settings::default()
        },
        absent: Vec::new(),
        transports: Vec::new(),
        trees: Vec::new(),
        rows: Vec::new(),
        pools: Vec::new(),
        topology,
    };
    let originals = originals(args)?;
    let trees = originals.iter().map(|original| original.path.clone());
    let files = std::iter::once(&args.report).chain(&args.json);
    let directories = files.filter_map(|file| fs::canonicalize(absolute(file).parent()?).ok());
    let stage = Stage::set(args, &trees.chain(directories).collect::<Vec<_>>(), &mut outcome)?;
    measure::copies(&originals, &stage, &mut outcome)?;
    measure::rates(&stage, &mut outcome)?;
    stage.look(&mut outcome)?;
    drop(stage);
    outcome.headline = findings::headline(&outcome);
    outcome.findings = findings::all(&outcome);
    outcome.limits = limits::of(&outcome);
    report(args, &outcome)
}

/// The trees to copy.
fn originals(args: &DemoArgs) -> Result<Vec<trees::Original>> {
    let mut paths = args.trees.clone();
    if paths.is_empty() {
        let candidates = if args.quick {
            ["/usr/include/linux", "/etc/ssl"]
        } else {
            ["/usr/include", "/usr/share/doc"]
        };
        paths.extend(candidates.into_iter().map(PathBuf::from).find(|path| path.is_dir()));
        if !args.quick && Path::new(".git").exists() {
            paths.push(PathBuf::from("."));
        }
    }
    paths.iter().map(|path| trees::Original::new(path)).collect()
}

fn check_writable(file: &Path) -> Result<()> {
    let existed = file.exists();
    if let Err(error) = fs::File::options().create(true).append(true).open(file) {
        fail!(
            "cannot write {}: {error}: name another file (--report, --json)",
            shown(file)
        );
    }
    if !existed {
        // It is to be there only when it is complete.
        let _ = fs::remove_file(file);
    }
    Ok(())
}

fn report(args: &DemoArgs, outcome: &Outcome) -> Result<()> {
    let write = |file: &Path, text: &str| fs::write(file, text).cannot(format_args!("write {}", shown(file)));
    write(&args.report, &page::of(outcome))?;
    if let Some(file) = &args.json {
        let json = serde_json::to_string_pretty(outcome).cannot("write the results as JSON")?;
        write(file, &(json + "\n"))?;
    }
    crate::print_text(&table::of(outcome))?;
    crate::print_line(&format!("\nReport page: {}", shown(&args.report)))
}
