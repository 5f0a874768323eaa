//! `homenode pool`: durable pools on files, and members that come and go while the filesystem is in use.

pub(crate) mod durable;
pub(crate) mod known;
pub(crate) mod mounted;

use crate::argument;
use crate::control::client::{Connection, unexpected};
use crate::control::protocol::{Outcome, Request};
use crate::failure::{Result, fail};
use crate::mountinfo::shown;
use crate::progress::Progress;
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use homenode::Size;
use indicatif::HumanBytes;
use std::path::{Path, PathBuf};

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

/// Add a member: a file or a disk to a durable pool, memory of a node to a pool of memory. The pool's server does it: Ctrl-C ends this command, and the
/// server goes on with what it has begun.
#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// Where the pool is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The file or disk that becomes a member of a durable pool, as with `homenode pool create`. A file that is there keeps its size; one that is not
    /// is made. A disk needs a pool that had one from the start.
    #[arg(value_name = "PATH", conflicts_with = "node")]
    path: Option<PathBuf>,
    /// The node whose memory a pool of memory takes.
    #[arg(long, value_name = "N", value_parser = argument::node)]
    node: Option<u16>,
    /// Its size: bytes (512M, 1.5G) or a share of the node's memory (25%); bytes of a file that is not there yet.
    #[arg(long, value_parser = argument::size)]
    size: Option<Size>,
    /// Do not write zeros to all of the file first, as with `homenode pool create`.
    #[arg(long, requires = "path")]
    unwritten: bool,
    /// Reach the file past the page cache, as with `homenode pool create`.
    #[arg(long, requires = "path")]
    direct: bool,
    /// Also take a file or a disk that holds other data, which is lost then.
    #[arg(long, short, requires = "path")]
    force: bool,
}

/// Move everything off a member; it takes no new data from then on, as long as the pool is mounted.
#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// Where the pool is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The member's number, as `homenode status` tells it.
    member: u16,
}

/// Take a drained member out and give its memory back, or its file, which can be used for something else then.
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
    let size = args.size.map(|size| size.to_string());
    let (what, request) = match (&args.path, args.node) {
        (Some(path), _) => {
            let size = args.size.map(|size| match size {
                Size::Bytes(bytes) => Ok(bytes),
                Size::Share(_) => {
                    fail!("a share is one of a node's memory: write the bytes of a file, as 512M or 1.5G")
                }
            });
            let path = durable::to_be_added(path, args.force)?;
            let request = Request::PoolAddFile {
                path: path.clone(),
                size_bytes: size.transpose()?,
                unwritten: args.unwritten,
                direct: args.direct,
            };
            (format!("in {}", shown(Path::new(&path))), request)
        }
        (None, node) => match (node, size) {
            (Some(node), Some(size)) => (format!("on node {node}"), Request::PoolAdd { node, size }),
            _ => missing_arguments(&args.directory),
        },
    };
    let (mut connection, _) = Connection::to_server_of(&args.directory)?;
    let progress = Progress::new(format!("adding a member {what}"));
    progress.on_interrupt(format!("homenode status {}", shown(&args.directory)))?;
    let outcome = connection.request(&request, &mut |_, _| {});
    drop(progress);
    match outcome? {
        Outcome::Added { member, bytes } => {
            crate::print_line(&format!("added member {member} of {} {what}", HumanBytes(bytes)))
        }
        other => Err(unexpected(&other)),
    }
}

/// Says what to give for the kind of pool on `directory`, as a mistake in the command line.
fn missing_arguments(directory: &Path) -> ! {
    let server = Connection::to_server_of(directory);
    let report = server.and_then(|(mut connection, _)| connection.status());
    let file = "PATH, the file that is to be a member (--size too if it is not there yet)";
    let memory = "--node N and --size SIZE, the memory that is to be a member";
    let message = match report.map(|report| report.durable.is_some()) {
        Ok(true) => format!("the pool is durable: give {file}"),
        Ok(false) => format!("the pool is one of memory: give {memory}"),
        Err(_) => format!("give {file}; or, for a pool of memory, {memory}"),
    };
    clap::Error::raw(ErrorKind::MissingRequiredArgument, message + "\n").exit()
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
