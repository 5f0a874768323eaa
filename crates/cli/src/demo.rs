//! `homenode demo`: a first run. Pools come up, real trees are copied into them and compared, reads and writes are measured
//! beside tmpfs, and one table and one page tell what is local, what is fast, and what is not.
//!
//! `stage` holds what it needs and takes it down, however it ends; `measure` runs rounds; `outcome` is what was found, of
//! which `table`, `page` and the JSON are made.

mod case;
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
mod steps;
mod table;
mod tmpfs;
mod trees;

use crate::argument;
use crate::control::protocol::OUTPUT_VERSION;
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use clap::Args;
use homenode::{Data, Size};
use homenode_linux::topology::{Source, read};
use interrupt::Interrupt;
use outcome::{Outcome, Settings};
use stage::Stage;
use std::fs;
use std::path::{Path, PathBuf};

/// Threads at a time in the rows with several.
const JOBS_MAX: usize = 2;
/// 128 and the signal's number: what a shell makes of a command that a signal ended.
const INTERRUPTED_EXIT_CODE: i32 = 128;

/// See on this machine what is local, what is fast, and what is not. Takes about three minutes.
///
/// Mounts pools by both transports, copies real trees into them and has rsync compare them, measures the mounts and the
/// library beside tmpfs, prints one table, writes one page, and takes everything down again, on Ctrl-C too. Needs root,
/// fio and rsync.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// An empty directory to mount in; made if there is none. Default: a temporary one.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Size of each node's member in each of the three pools. Default: 1G, or an eighth of the smallest node's memory if
    /// that is less.
    #[arg(long, value_name = "SIZE", value_parser = argument::size)]
    size_per_node: Option<Size>,
    /// A directory to copy; may be given several times. Of a git work tree only its history and what it tracks are copied.
    /// Default: /usr/include, and the current directory if it is a git work tree.
    #[arg(long = "tree", value_name = "TREE")]
    trees: Vec<PathBuf>,
    /// Seconds of measuring for each number, over all rounds. Default: 1.2, with --quick 0.1.
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<f64>,
    /// Run a single short round with a small tree: shows that the demo works; its numbers are worth little.
    #[arg(long)]
    quick: bool,
    /// Where to write the page.
    #[arg(long, value_name = "FILE", default_value = "homenode-report.html")]
    report: PathBuf,
    /// Write what was found as JSON too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Serve a mount for the demo that is this process's parent.
    #[arg(long, hide = true, value_name = "DATA", requires_all = ["directory", "size_per_node"])]
    serve: Option<Data>,
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
    /// Whether this is one of the servers that a demo has started.
    pub(crate) fn is_started_by_another(&self) -> bool {
        self.serve.is_some()
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    fn seconds_per_round(&self) -> f64 {
        let seconds = self.seconds.unwrap_or(if self.quick { 0.1 } else { 1.2 });
        #[expect(clippy::cast_precision_loss, reason = "there are few rounds")]
        let rounds = self.rounds() as f64;
        seconds / rounds
    }
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    if let (Some(data), Some(directory), Some(size)) = (args.serve, &args.directory, args.size_per_node) {
        return server::serve(directory, data, size);
    }
    let interrupt = Interrupt::watch()?;
    let shown = demonstrate(args, &interrupt);
    // Everything is down by now.
    match (interrupt.signal(), shown) {
        (Some(signal), Err(_)) => {
            complain!("homenode: interrupted: everything is taken down, nothing was reported");
            let signal = i32::try_from(signal).expect("signals have small numbers");
            std::process::exit(INTERRUPTED_EXIT_CODE + signal)
        }
        (_, shown) => shown,
    }
}

fn demonstrate(args: &DemoArgs, interrupt: &Interrupt) -> Result<()> {
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
    let originals = originals(args, interrupt)?;
    let mut stage = Stage::set(args, &mut outcome, interrupt)?;
    measure::copies(&originals, &stage, &mut outcome, interrupt)?;
    measure::rates(&mut stage, &mut outcome, interrupt)?;
    stage.look(&mut outcome, interrupt)?;
    drop(stage);
    outcome.headline = findings::headline(&outcome);
    outcome.findings = findings::all(&outcome);
    outcome.limits = limits::of(&outcome);
    report(args, &outcome)
}

/// The trees to copy.
fn originals(args: &DemoArgs, interrupt: &Interrupt) -> Result<Vec<trees::Original>> {
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
    paths.iter().map(|path| trees::Original::new(path, interrupt)).collect()
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
    let write = |file: &Path, text: &str| {
        fs::write(file, text).map_err(|error| Failure::new(format!("cannot write {}: {error}", shown(file))))
    };
    write(&args.report, &page::of(outcome))?;
    if let Some(file) = &args.json {
        let json = serde_json::to_string_pretty(outcome)
            .map_err(|error| Failure::new(format!("cannot write what was found as JSON: {error}")))?;
        write(file, &(json + "\n"))?;
    }
    crate::print_text(&table::of(outcome))?;
    crate::print_line(&format!("\nThe page with all of it: {}", shown(&args.report)))
}
