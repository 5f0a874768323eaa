//! The `homenode` command: brings pools up and down, tells where bytes lie, and moves them.
//!
//! One file per verb. A command prints what it was asked for on standard output and everything else on standard error;
//! it exits with 0, with 1 and one message when it could not do it, with 2 when it was not understood.
#![forbid(unsafe_code)]

/// `eprintln!` of the command: an error stream that cannot be written ends nothing.
macro_rules! complain {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod affinity;
mod argument;
mod blk;
mod bodies;
mod control;
#[cfg(test)]
mod cost;
mod demo;
mod device_use;
mod directory;
mod doctor;
mod down;
mod end_disk;
mod failure;
mod file;
mod fsck;
mod generate;
mod groups;
mod handler;
mod holders;
mod http;
mod live;
mod logging;
mod member_list;
mod mkfs;
mod mount_helper;
mod mountinfo;
mod pool;
mod progress;
mod report;
mod run;
#[cfg(test)]
#[path = "../tests/support/says.rs"]
mod says;
mod serve;
mod signals;
mod simulate;
mod status;
mod steer;
mod top;
mod topology;
mod up;
mod volume;
mod waiting;
mod web;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use failure::{Cannot, Result, fail};
use rustix::fs::Mode;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

/// A filesystem over the memory of all NUMA nodes: bytes lie on the node of the CPU that first writes them.
#[derive(Debug, Parser)]
#[command(name = "homenode", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(up::UpArgs),
    Down(down::DownArgs),
    Status(status::StatusArgs),
    Top(top::TopArgs),
    Web(web::WebArgs),
    #[command(subcommand)]
    File(file::FileCommand),
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    Run(run::RunArgs),
    Steer(steer::SteerArgs),
    Topology(topology::Args),
    #[command(subcommand)]
    Affinity(affinity::AffinityCommand),
    Doctor(doctor::DoctorArgs),
    #[command(subcommand)]
    Blk(blk::BlkCommand),
    Simulate(simulate::SimulateArgs),
    Demo(demo::DemoArgs),
    Fsck(fsck::FsckArgs),
    #[command(subcommand)]
    Member(MemberCommand),
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
    #[command(hide = true)]
    AskMount(directory::AskArgs),
    #[command(hide = true)]
    EndDisk(end_disk::Args),
}

/// Show the memory and disks that this machine offers to pools.
#[derive(Debug, Subcommand)]
enum MemberCommand {
    List(member_list::Args),
}

fn main() -> ExitCode {
    let given_umask = protect_files();
    let called = std::env::args_os().next().unwrap_or_default();
    match called.to_str().and_then(|path| path.rsplit('/').next()) {
        Some(mount_helper::NAME | mount_helper::NAME_FOR_MOUNTED) => return mount_helper::main(),
        Some(mkfs::MKFS) => return mkfs::main(),
        Some(mkfs::FSCK) => return mkfs::main_of_fsck(),
        _ => {}
    }
    // Building the arguments of all verbs takes longer than many a program that it starts.
    let parsed = match run::RunArgs::parse_if_meant() {
        Some(parsed) => parsed.map(Verb::Run),
        None => parse(),
    };
    let verb = match parsed {
        Ok(verb) => verb,
        // fsck(8) has its own code for a command that was not understood.
        Err(error) if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|verb| verb == "fsck") => {
            let _ = error.print();
            return ExitCode::from(fsck::USAGE);
        }
        Err(error) => argument::negative_value(error).exit(),
    };
    // It logs nothing, and is to be gone soon.
    if let Verb::Run(args) = &verb {
        rustix::process::umask(given_umask);
        return run::run(args);
    }
    logging::start(has_own_terminal(&verb));
    match &verb {
        Verb::Fsck(args) => return fsck::run(args),
        Verb::EndDisk(args) => return end_disk::run(args),
        _ => {}
    }
    match run(&verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain!("homenode: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Takes the rights to write from group and others for all files that root makes from here on; gives the mask that this process inherited. Daemons often
/// start their children with 0.
fn protect_files() -> Mode {
    let given = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let kept = if rustix::process::geteuid().is_root() {
        given | Mode::WGRP | Mode::WOTH
    } else {
        given
    };
    rustix::process::umask(kept);
    given
}

fn parse() -> clap::error::Result<Verb> {
    let mut command = groups::with_groups(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok(cli.verb)
}

fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Up(args) => up::run(&args.clone().read_from(std::env::args_os().skip(2).collect())),
        Verb::Down(args) => down::run(args),
        Verb::Status(args) => status::run(args),
        Verb::Top(args) => top::run(args),
        Verb::Web(args) => web::run(args),
        Verb::File(command) => file::run(command),
        Verb::Pool(command) => pool::run(command),
        Verb::Volume(command) => volume::run(command),
        Verb::Steer(args) => steer::run(args),
        Verb::Topology(args) => topology::run(args),
        Verb::Affinity(command) => affinity::run(command),
        Verb::Doctor(args) => doctor::run(args),
        Verb::Blk(command) => blk::run(command),
        Verb::Simulate(args) => simulate::run(args),
        Verb::Demo(args) => demo::run(args),
        Verb::Run(_) | Verb::Fsck(_) | Verb::EndDisk(_) => unreachable!("they return before this match"),
        Verb::Member(MemberCommand::List(args)) => member_list::run(args),
        Verb::Generate(args) => generate::run(args, Cli::command()),
        Verb::AskMount(args) => directory::ask(args),
    }
}

/// Whether a person sees what this process says of the environment; a server that another process starts says it again.
fn has_own_terminal(verb: &Verb) -> bool {
    match verb {
        Verb::Up(args) => !args.is_started_by_another(),
        _ => true,
    }
}

/// Prints text on standard output. A reader that has seen enough (`| head`) is no failure.
fn print_text(text: &str) -> Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail!("cannot write the output: {error}"),
        _ => Ok(()),
    }
}

fn print_line(line: &str) -> Result<()> {
    print_text(&format!("{line}\n"))
}

fn print_json(value: &impl Serialize) -> Result<()> {
    print_line(&serde_json::to_string_pretty(value).cannot("write the output as JSON")?)
}
