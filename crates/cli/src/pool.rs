//! `homenode pool`: durable pools on files, and members that come and go while the filesystem is in use.

pub(crate) mod durable;
pub(crate) mod known;
pub(crate) mod leaving;
pub(crate) mod mounted;

use crate::argument;
use crate::control::To;
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

/// Create, import and export durable pools; add, drain and remove members of a mounted pool.
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

/// Add a member: a file or disk to a durable pool, memory of a node to a pool of memory. The pool's server does the work: Ctrl-C ends only this command, and the
/// server finishes a member that it has begun to add.
#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// Mount point of the pool.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// File or disk that becomes a member of a durable pool, as with `homenode pool create`. An existing file keeps its size; a missing file
    /// is created. Only a pool that had a disk when it was brought up takes further disks.
    #[arg(value_name = "PATH", conflicts_with = "node")]
    path: Option<PathBuf>,
    /// Node that gives memory to a pool of memory.
    #[arg(long, value_name = "N", value_parser = argument::node)]
    node: Option<u16>,
    /// Size of the member: bytes (512M, 1.5G) or a share of the node's memory (25%). For a file: bytes, only if the file is missing.
    #[arg(long, value_parser = argument::size)]
    size: Option<Size>,
    /// Do not fill the file with zeros first, as with `homenode pool create`.
    #[arg(long, requires = "path")]
    unwritten: bool,
    /// Bypass the page cache of the file, as with `homenode pool create`.
    #[arg(long, requires = "path")]
    direct: bool,
    /// Also take a file or disk that holds other data, and overwrite that data.
    #[arg(long, short, requires = "path")]
    force: bool,
}

/// Move all data off a member. The member takes no new data until the pool is unmounted.
#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// Mount point of the pool.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Number of the member in `homenode status`.
    member: u16,
}

/// Remove a drained member from the pool, and release its memory or its file.
#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Mount point of the pool.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Number of the member in `homenode status`.
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
                    fail!("a share (%) is for a node's memory: give a file's size in bytes, such as 512M or 1.5G")
                }
            });
            let size = size.transpose()?;
            let path = durable::to_be_added(path, size, args.force)?;
            let request = Request::PoolAddFile {
                path: path.clone(),
                size_bytes: size,
                unwritten: args.unwritten,
                direct: args.direct,
                overwrites: args.force,
            };
            (format!("in {}", shown(Path::new(&path))), request)
        }
        (None, node) => match (node, size) {
            (Some(node), Some(size)) => (format!("on node {node}"), Request::PoolAdd { node, size }),
            _ => missing_arguments(&args.directory),
        },
    };
    let (mut connection, _) = Connection::to_server_of(&args.directory, To::Change)?;
    let progress = progress(format!("adding a member {what}"), &args.directory)?;
    let outcome = connection.request(&request, &mut |_, _| {});
    drop(progress);
    match outcome? {
        Outcome::Added { member, bytes } => {
            args.path.as_deref().into_iter().for_each(durable::tell_of_others);
            crate::print_line(&format!("added member {member} of {} {what}", HumanBytes(bytes)))
        }
        other => Err(unexpected(&other)),
    }
}

fn progress(what: String, directory: &Path) -> Result<Progress> {
    Progress::of_request(what, format!("homenode status {}", shown(directory)))
}

/// Says what to give for the kind of pool on `directory`, as a mistake in the command line.
fn missing_arguments(directory: &Path) -> ! {
    let server = Connection::to_server_of(directory, To::Look);
    let report = server.and_then(|(mut connection, _)| connection.status());
    let file = "PATH, the file that is to be a member (--size too if it is not there yet)";
    let memory = "--node N and --size SIZE, the memory that is to be a member";
    let message = match report.map(|report| report.durable.is_some()) {
        Ok(true) => format!("the pool is durable: give {file}"),
        Ok(false) => format!("the pool is a pool of memory: give {memory}"),
        Err(_) => format!("give {file}; or, for a pool of memory, {memory}"),
    };
    clap::Error::raw(ErrorKind::MissingRequiredArgument, message + "\n").exit()
}

fn drain(args: &DrainArgs) -> Result<()> {
    let (mut connection, _) = Connection::to_server_of(&args.directory, To::Change)?;
    let progress = progress(format!("draining member {}", args.member), &args.directory)?;
    let request = Request::PoolDrain { member: args.member };
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
    let (mut connection, _) = Connection::to_server_of(&args.directory, To::Change)?;
    let progress = progress(format!("removing member {}", args.member), &args.directory)?;
    let outcome = connection.request(&Request::PoolRemove { member: args.member }, &mut |_, _| {});
    drop(progress);
    match outcome? {
        Outcome::Removed => crate::print_line(&format!("removed member {}", args.member)),
        other => Err(unexpected(&other)),
    }
}
