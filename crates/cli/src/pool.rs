//! `homenode pool`: durable pools on files, and members that come and go while the filesystem is in use.

pub(crate) mod durable;
pub(crate) mod known;

use crate::argument;
use crate::control::client::{Connection, unexpected};
use crate::control::protocol::{Outcome, Request};
use crate::failure::Result;
use crate::mountinfo::shown;
use crate::progress::Progress;
use clap::{Args, Subcommand};
use homenode::Size;
use indicatif::HumanBytes;
use std::path::PathBuf;

/// Make and find durable pools; add, drain and remove members of a mounted pool.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    Create(durable::CreateArgs),
    Import(durable::ImportArgs),
    List(durable::ListArgs),
    Export(durable::ExportArgs),
    Add(AddArgs),
    Drain(DrainArgs),
    Remove(RemoveArgs),
}

/// Add a member on a node.
#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// Where the pool is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The node whose memory it takes.
    #[arg(long, value_name = "N", value_parser = argument::node)]
    node: u16,
    /// Its size: bytes (512M, 1.5G) or a share of the node's memory (25%).
    #[arg(long, value_parser = argument::size)]
    size: Size,
}

/// Move everything off a member; it takes no new data from then on.
#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// Where the pool is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The member's number, as `homenode status` tells it.
    member: u16,
}

/// Take a drained member out and give its memory back.
#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Where the pool is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The member's number, as `homenode status` tells it.
    member: u16,
}

pub(crate) fn run(command: &PoolCommand) -> Result<()> {
    match command {
        PoolCommand::Create(args) => durable::create(args),
        PoolCommand::Import(args) => durable::import(args),
        PoolCommand::List(args) => durable::list(args),
        PoolCommand::Export(args) => durable::export(args),
        PoolCommand::Add(args) => add(args),
        PoolCommand::Drain(args) => drain(args),
        PoolCommand::Remove(args) => remove(args),
    }
}

fn add(args: &AddArgs) -> Result<()> {
    let (mut connection, _) = Connection::to_server_of(&args.directory)?;
    let progress = Progress::new(format!("adding a member on node {}", args.node));
    let request = Request::PoolAdd {
        node: args.node,
        size: args.size.to_string(),
    };
    let outcome = connection.request(&request, &mut |_, _| {});
    drop(progress);
    match outcome? {
        Outcome::Added { member, bytes } => crate::print_line(&format!(
            "added member {member} of {} on node {}",
            HumanBytes(bytes),
            args.node
        )),
        other => Err(unexpected(&other)),
    }
}

fn drain(args: &DrainArgs) -> Result<()> {
    let (mut connection, _) = Connection::to_server_of(&args.directory)?;
    let progress = Progress::new(format!("draining member {}", args.member));
    let request = Request::PoolDrain { member: args.member };
    progress.on_interrupt(format!("homenode status {}", shown(&args.directory)))?;
    let outcome = connection.request(&request, &mut |done, total| progress.set(done, total));
    drop(progress);
    match outcome? {
        Outcome::Drained { bytes } => crate::print_line(&format!(
            "drained member {}: moved {} to other members",
            args.member,
            HumanBytes(bytes)
        )),
        other => Err(unexpected(&other)),
    }
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let (mut connection, _) = Connection::to_server_of(&args.directory)?;
    match connection.request(&Request::PoolRemove { member: args.member }, &mut |_, _| {})? {
        Outcome::Removed => crate::print_line(&format!("removed member {}", args.member)),
        other => Err(unexpected(&other)),
    }
}
