//! `homenode simulate`: the papers' figures, a load, or the gain of a recorded machine, in virtual time.

mod draw;
mod gain;
mod record;

use crate::argument;
use crate::failure::{Cannot, Failure, Result, chain, fail};
use crate::topology::crashes_hwloc;
use clap::{Args, Subcommand, ValueEnum};
use homenode_linux::topology::{Source, read};
use homenode_policy::topology::Topology;
use homenode_sim::figures::{self, Effort, Figure, Point};
use homenode_sim::fio::{Fio, Work};
use homenode_sim::{Constants, Contestant, Machine};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Simulate placement: what a recorded machine would gain, the papers' figures, a load.
///
/// The decisions are those of the server and of `affinity`; machine and load are models. Nothing here is measured. Constants that were not measured
/// are drawn from bands: results are medians with the range of all draws. The same seed gives the same numbers.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Tell what the machine in DIR would gain, which `homenode affinity record DIR` recorded: moves, bytes that would stay home, and how sure that is.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    #[command(flatten)]
    draws: Draws,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How often, and from where.
#[derive(Args, Clone, Copy, Debug)]
struct Draws {
    /// Number of runs, each with constants of its own, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..=1000))]
    draws: u64,
    /// First seed of the runs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=u64::from(u32::MAX)))]
    seed: u64,
}

#[derive(Debug, Subcommand)]
enum What {
    Figures(FiguresArgs),
    Fio(FioArgs),
    Record(record::RecordArgs),
    Trace(record::TraceArgs),
}

/// Simulate the papers' figures; write each as SVG and as rows (CSV), and all of them into a README.md.
#[derive(Args, Debug)]
struct FiguresArgs {
    /// Names of figures. Default: all.
    #[arg(value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(figures::ALL.map(|(name, _)| name)))]
    names: Vec<String>,
    /// Output directory; created if missing.
    #[arg(long, value_name = "DIR", default_value = "homenode-figures")]
    out: PathBuf,
    /// Simulate a hundredth of the load: quick, and less exact.
    #[arg(long)]
    small: bool,
    #[command(flatten)]
    draws: Draws,
}

/// Simulate fio jobs with a file each on a machine, and compare filesystems.
#[derive(Args, Debug)]
struct FioArgs {
    /// Machine: `live`, an XML file made with `lstopo --disallowed FILE.xml`, or a description such as "node:4 core:10 pu:1".
    #[arg(long, value_name = "SOURCE", default_value = "node:4 core:10 pu:1")]
    machine: Source,
    /// Block size in bytes (4K, 1M).
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = argument::bytes)]
    bs: u64,
    /// Size of each job's file.
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = argument::bytes)]
    size: u64,
    /// Number of jobs, a CPU each, one after another. Default: one on each CPU.
    #[arg(long, value_name = "N")]
    jobs: Option<u32>,
    /// Work of the jobs: each block written once, or blocks at random.
    #[arg(long, value_name = "RW", default_value = "randwrite")]
    rw: Rw,
    /// Virtual seconds of randread and randrw.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.01)]
    runtime: f64,
    /// Reads among the operations of randrw, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100))]
    rwmixread: u32,
    /// Give a constant of the model a known value, such as hop_ns=80 or tmpfs.page_ns=250; may be given several times. A wrong name
    /// lists all names.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    known: Vec<String>,
    #[command(flatten)]
    draws: Draws,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rw {
    Randwrite,
    Randread,
    Randrw,
}

pub(crate) fn run(args: &SimulateArgs) -> Result<()> {
    match (&args.what, &args.from) {
        (Some(What::Figures(args)), _) => make_figures(args),
        (Some(What::Fio(args)), _) => fio(args),
        (Some(What::Record(args)), _) => record::run(args),
        (Some(What::Trace(args)), _) => record::simulate(args),
        (None, Some(directory)) => gain::run(directory, args.draws, args.json),
        (None, None) => {
            fail!("nothing to simulate: give --from DIR, or `figures`, `fio`, `record` or `trace` (--help tells more)")
        }
    }
}

fn make_figures(args: &FiguresArgs) -> Result<()> {
    let effort = Effort {
        draws: args.draws.draws,
        seed: args.draws.seed,
        is_small: args.small,
    };
    fs::create_dir_all(&args.out).cannot(format_args!("create {}", args.out.display()))?;
    let mut page = format!(
        "# Simulated figures\n\nNothing here is measured. `homenode simulate figures` made it: {} draws of unknown constants, first seed {}. Lines are \
         medians, bars the range of all draws. Each figure's rows are in its CSV file. The guide \
         `simulate.md` tells what the model has.\n",
        effort.draws, effort.seed
    );
    for (name, make) in figures::ALL {
        if !args.names.is_empty() && !args.names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let begin = Instant::now();
        let figure: Figure = make(&effort);
        for (ending, text) in [
            ("csv", figure.rows()),
            ("svg", draw::svg(&figure).map_err(Failure::new)?),
        ] {
            let path = args.out.join(format!("{name}.{ending}"));
            whole(&path, &text)?;
        }
        page.push_str(&format!(
            "\n## {name}\n\n![{}]({name}.svg)\n\n{}\n",
            figure.title, figure.paper
        ));
        crate::print_text(&format!(
            "{name:<22} {:>6.1} s  {}\n",
            begin.elapsed().as_secs_f64(),
            figure.title
        ))?;
    }
    if args.names.is_empty() {
        let path = args.out.join("README.md");
        whole(&path, &page)?;
    }
    Ok(())
}

/// Writes a file whole, or leaves the one that was there.
fn whole(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    let written = written.inspect_err(|_| _ = fs::remove_file(&new));
    written.cannot(format_args!("write {}", path.display()))
}

fn topology(source: &Source) -> Result<Topology> {
    if let Source::Xml(path) = source
        && crashes_hwloc(path)?
    {
        fail!(
            "{} contradicts itself so badly that hwloc crashes on it: make a new one with `lstopo --disallowed FILE.xml`",
            path.display()
        );
    }
    read(source).map_err(|error| Failure::new(chain(&error)))
}

fn constants(known: &[String]) -> Result<Constants> {
    let mut constants = Constants::SERVER;
    for word in known {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        // A copy of many bytes takes long, and none takes no time.
        let is_copy = name.contains("copies.");
        let most = if is_copy { 1e9 } else { 1e6 };
        match value.parse::<f64>() {
            Ok(value)
                if (0.001..=most).contains(&value)
                    || value == 0.0 && !is_copy && (name.contains('.') || name.ends_with("percent")) =>
            {
                if !constants.set(name, value) {
                    fail!(
                        "--set {word}: the model has no constant {name}: it has {}",
                        Constants::NAMES.join(", ")
                    );
                }
            }
            _ => fail!("--set {word}: write NAME=VALUE, with a value from 0.001 to {most}"),
        }
    }
    if constants.copies.is_empty() && !constants.crowded_copies.is_empty() {
        fail!("--set crowded_copies.BYTES is told without any copies.BYTES: give both");
    }
    Ok(constants)
}

fn fio(args: &FioArgs) -> Result<()> {
    if args.bs == 0 || args.size < args.bs {
        fail!(
            "--size {} is less than a block of --bs {}: a job needs a block, and a block a byte",
            args.size,
            args.bs
        );
    }
    if args.bs > 1 << 30 {
        fail!("--bs {} is more than 1 GiB", args.bs);
    }
    if !(args.runtime > 0.0 && args.runtime <= 60.0) {
        fail!(
            "--runtime {} is not above 0 and at most 60 virtual seconds",
            args.runtime
        );
    }
    let constants = constants(&args.known)?;
    let topology = topology(&args.machine)?;
    let mixed = |read_percent| Work::Mixed {
        seconds: args.runtime,
        read_percent,
    };
    let work = match args.rw {
        Rw::Randwrite => Work::WriteOnce,
        Rw::Randread => mixed(100),
        Rw::Randrw => mixed(args.rwmixread),
    };
    let all = Machine::new(&topology, &Constants::SERVER.draw(0))
        .map_err(|error| Failure::new(error.to_string()))?
        .cores();
    let jobs = args.jobs.unwrap_or(all);
    if jobs == 0 || jobs > all {
        fail!("--jobs {jobs}: the machine has {all} CPUs, and each job takes one");
    }
    let load = Fio {
        cores: (0..jobs).collect(),
        block_bytes: args.bs,
        file_bytes: args.size,
        work,
        laid_out_by: None,
        of_node_bytes: None,
    };
    let mut text = format!(
        "simulated, {} draws of unknown constants: median (range)\n",
        args.draws.draws
    );
    for contestant in Contestant::ALL {
        let (mut speeds, mut local, mut events) = (Vec::new(), Vec::new(), 0);
        let begin = Instant::now();
        for seed in args.draws.seed..args.draws.seed + args.draws.draws {
            let drawn = constants.draw(seed);
            let mut machine = Machine::new(&topology, &drawn).map_err(|error| Failure::new(error.to_string()))?;
            let done = load
                .run(contestant, &mut machine, &drawn, seed)
                .map_err(|error| Failure::new(error.to_string()))?;
            speeds.push(done.mb_per_s());
            local.push(done.local_percent());
            events += done.events;
        }
        tracing::debug!(events, seconds = begin.elapsed().as_secs_f64(), "simulated");
        let Point { low, median, high, .. } = Point::of(0.0, speeds);
        let (name, local) = (contestant.name(), Point::of(0.0, local).median);
        text.push_str(&format!(
            "{name:<36} {median:>9.0} MB/s ({low:.0} to {high:.0})  {local:>5.1} % local\n"
        ));
    }
    crate::print_text(&text)
}
