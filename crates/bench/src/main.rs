//! `homenode-bench`: claimed numbers of the project, A against B, interleaved in one run. scripts/bench-programs.py measures whole programs.
//!
//! Each bench prints a table for people and writes rows for machines (`--json`). Ratios say how many times faster (or
//! smaller) homenode is than a peer of the same run; nothing is ever compared with a stored number.

/// `println!` of the bench: a reader that goes away ends nothing, numbers that cannot be written end the bench.
macro_rules! println {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        match writeln!(std::io::stdout(), $($words)*) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                eprintln!("homenode-bench: cannot write to standard output: {error}");
                std::process::exit(1)
            }
            _ => {}
        }
    }};
}

mod affinity;
mod arguments;
mod blk;
mod cache;
mod cpu_time;
mod cpus;
mod durable;
mod error;
mod fs;
mod interleave;
mod interrupt;
mod lab;
mod locality;
mod metadata;
mod mount;
mod output;
mod pass;
mod place;
mod populated;
mod preload;
mod private_tmpfs;
mod report;
mod required;
mod run;
mod shuffle;

use arguments::{Arguments, Common};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures homenode against what it replaces, interleaved in one run.
#[derive(Debug, Parser)]
#[command(name = "homenode-bench", version)]
struct Command {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Measures reads and writes: the library against tmpfs, tmpfs with huge pages, and a bare memcpy.
    Fs(Arguments),
    /// Measures names: create, stat, rename, readdir, unlink and the memory of an empty file, against tmpfs.
    #[command(mut_arg("rounds", |rounds| rounds.default_value("5")))]
    Metadata(Common),
    /// Measures the mount: rings against the classic device and tmpfs, and the server's CPU time.
    Mount(Arguments),
    /// Measures the block layer against one lock and a bare memcpy, and its schedulers, latency and fairness.
    Blk(blk::BlkArguments),
    /// Measures the share of local accesses in guests with several nodes, counted by the emulator; needs make lab.
    Locality(locality::Arguments),
    /// The part of `locality` in a guest.
    #[command(hide = true)]
    MeasureLocality(locality::guest::Arguments),
    /// Measures an upload under each affinity policy in guests (needs make lab), and the daemon's cost on this machine.
    Affinity(affinity::Arguments),
    /// The part of `affinity` in a guest.
    #[command(hide = true)]
    MeasureAffinity(affinity::guest::Arguments),
    /// Runs only the upload of `affinity`, in a guest.
    #[command(hide = true)]
    Upload(affinity::play::Arguments),
    /// Measures the cache of durable pools: hit ratios against LRU and ARC, whole and in slices.
    Cache(cache::CacheArguments),
    /// Measures durable pools: appends, replaced files and SQLite against ext4 and xfs, and the time to open a pool; needs root.
    Durable(durable::DurableArguments),
    /// Measures programs under `homenode run`: fio and a bare loop, against tmpfs, tmpfs with huge pages, and the mount itself.
    Preload(Arguments),
    /// The loop of `preload`, in a process of its own.
    #[command(hide = true)]
    PreloadLoop(preload::LoopArguments),
    /// Fills a pool for `durable`, and is killed.
    #[command(hide = true)]
    FillPool(durable::restart::Arguments),
    /// Opens a pool for `durable`, and tells how long that takes.
    #[command(hide = true)]
    OpenPool(durable::restart::OpenArguments),
    /// Serves a mount for the others, in a process of its own.
    #[command(hide = true)]
    ServeMount(mount::serve::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Command::parse().bench {
        Bench::Fs(arguments) => fs::run(&arguments),
        Bench::Metadata(arguments) => metadata::run(&arguments),
        Bench::Mount(arguments) => mount::run(&arguments),
        Bench::Blk(arguments) => blk::run(&arguments),
        Bench::Locality(arguments) => locality::run(&arguments),
        Bench::MeasureLocality(arguments) => locality::guest::run(&arguments),
        Bench::Affinity(arguments) => affinity::run(&arguments),
        Bench::MeasureAffinity(arguments) => affinity::guest::run(&arguments),
        Bench::Upload(arguments) => affinity::play::run(&arguments),
        Bench::Cache(arguments) => cache::run(&arguments),
        Bench::Durable(arguments) => durable::run(&arguments),
        Bench::Preload(arguments) => preload::run(&arguments),
        Bench::PreloadLoop(arguments) => preload::run_loop(&arguments),
        Bench::FillPool(arguments) => durable::restart::fill(&arguments),
        Bench::OpenPool(arguments) => durable::restart::open(&arguments),
        Bench::ServeMount(arguments) => mount::serve::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("homenode-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
