//! `homenode file`: where a file lies, and moving it.

use crate::argument;
use crate::control::To;
use crate::control::client::{Connection, on_homenode, refuse_unserved, unexpected};
use crate::control::protocol::{NodeBytes, OUTPUT_VERSION, Outcome, Request};
use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::shown;
use crate::progress::Progress;
use clap::{Args, Subcommand};
use homenode::NodeId;
use homenode_linux::steer;
use indicatif::HumanBytes;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use serde::Serialize;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Show on which nodes a file lies, or move it.
#[derive(Debug, Subcommand)]
pub(crate) enum FileCommand {
    Map(MapArgs),
    Move(MoveArgs),
}

/// Show how many bytes of a file lie on each node.
#[derive(Args, Debug)]
pub(crate) struct MapArgs {
    /// File on a homenode mount or on any tmpfs, such as /dev/shm.
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Move a file's bytes to a node, also while programs use the file.
#[derive(Args, Debug)]
pub(crate) struct MoveArgs {
    /// File on a homenode mount or on any tmpfs, such as /dev/shm.
    path: PathBuf,
    /// Node to move the file to.
    #[arg(long, value_name = "N", value_parser = argument::node)]
    node: u16,
}

/// The attribute that tells bytes per node: `0=8192,1=4096`.
const MAP_XATTR: &str = "user.homenode.map";
/// Room for every node a machine can have.
const MAP_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Serialize)]
struct FileMap<'a> {
    output_version: u32,
    path: &'a str,
    /// Ascending; nodes with none left out.
    nodes: Vec<NodeBytes>,
}

pub(crate) fn run(command: &FileCommand) -> Result<()> {
    match command {
        FileCommand::Map(args) => map(args),
        FileCommand::Move(args) => move_file(args),
    }
}

fn map(args: &MapArgs) -> Result<()> {
    refuse_unserved(&args.path)?;
    let name = shown(&args.path);
    let nodes = match on_tmpfs(&args.path)? {
        Some(file) => map_of_tmpfs(&file, &name)?,
        None => map_of(&regular_file(&args.path)?.0, &name)?,
    };
    if args.json {
        let map = FileMap {
            output_version: OUTPUT_VERSION,
            path: &args.path.to_string_lossy(),
            nodes,
        };
        return crate::print_json(&map);
    }
    if nodes.is_empty() {
        crate::print_line(&format!("{name} has no bytes on any node (it is empty, or one hole)"))?;
    }
    nodes.iter().try_for_each(|on| {
        crate::print_line(&format!(
            "node {} {:>12} {}",
            on.node,
            HumanBytes(on.bytes).to_string(),
            on.bytes
        ))
    })
}

/// Where a file of a homenode mount lies. `name` is what messages call it.
pub(crate) fn map_of(path: &Path, name: &str) -> Result<Vec<NodeBytes>> {
    let mut value = vec![0; MAP_BYTES_MAX];
    let bytes = match rustix::fs::getxattr(path, MAP_XATTR, &mut value[..]) {
        Ok(bytes) => bytes,
        Err(Errno::ACCESS) => fail!("cannot read where {name} lies: you may not read the file"),
        Err(Errno::AGAIN) => {
            fail!("cannot read where {name} lies: others ask the same of large files; try again later")
        }
        Err(error) => fail!("cannot read where {name} lies: {error}"),
    };
    let nodes = std::str::from_utf8(&value[..bytes]).ok().and_then(parse_map);
    nodes.ok_or_else(|| Failure::new(format!("the server's map of {name} does not fit this version")))
}

fn parse_map(text: &str) -> Option<Vec<NodeBytes>> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (node, bytes) = pair.split_once('=')?;
        Some(NodeBytes {
            node: node.parse().ok()?,
            bytes: bytes.parse().ok()?,
        })
    };
    pairs.map(pair).collect()
}

fn move_file(args: &MoveArgs) -> Result<()> {
    refuse_unserved(&args.path)?;
    if let Some(file) = on_tmpfs(&args.path)? {
        return move_on_tmpfs(&file, args);
    }
    let (path, inode) = regular_file(&args.path)?;
    let (mut connection, _) = Connection::to_server_of(&path, To::Change)?;
    let name = shown(&args.path);
    let what = format!("moving {name} to node {}", args.node);
    let progress = Progress::of_request(what, format!("homenode file map {name}"))?;
    let outcome = connection.request(&Request::FileMove { inode, node: args.node }, &mut |done, total| {
        progress.set(done, total)
    });
    drop(progress);
    match outcome.map_err(|error| Failure::new(format!("cannot move {name}: {}", Failure::from(error))))? {
        Outcome::Moved { bytes } => {
            crate::print_line(&format!("moved {} of {name} to node {}", HumanBytes(bytes), args.node))
        }
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn is_tmpfs(found: Option<&rustix::fs::StatFs>) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    found.is_some_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC))
}

/// Opens a regular file if it is on a tmpfs.
fn on_tmpfs(path: &Path) -> Result<Option<OwnedFd>> {
    if !is_tmpfs(rustix::fs::statfs(path).as_ref().ok()) {
        return Ok(None);
    }
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        fail!("{} is not a file: only files have bytes on nodes", shown(path));
    }
    let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    opened.map(Some).cannot(format_args!("open {}", shown(path)))
}

fn map_of_tmpfs(file: &OwnedFd, name: &str) -> Result<Vec<NodeBytes>> {
    match steer::map(file.as_fd()) {
        Ok(nodes) => Ok(nodes
            .into_iter()
            .map(|(node, bytes)| NodeBytes { node: node.0, bytes })
            .collect()),
        Err(error) => fail!("cannot read where {name} lies: {error}"),
    }
}

/// Moves the pages of a file on a tmpfs by this process itself: there is no server.
fn move_on_tmpfs(file: &OwnedFd, args: &MoveArgs) -> Result<()> {
    let name = shown(&args.path);
    let progress = Progress::new(format!("moving {name} to node {}", args.node));
    let moved = steer::move_pages(file.as_fd(), None, NodeId(args.node), &mut |done, total| {
        progress.set(done, total)
    });
    drop(progress);
    match moved {
        Ok(bytes) => crate::print_line(&format!("moved {} of {name} to node {}", HumanBytes(bytes), args.node)),
        Err(error) => fail!("cannot move {name}: {error}{}", move_hint(&error)),
    }
}

/// Returns the remedy for an error of moving pages; empty if none is known.
fn move_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::PERM) => "; moving pages that others map needs CAP_SYS_NICE: run it as root",
        Some(Errno::NOSPC) => "; pages already moved stay there",
        Some(Errno::NODEV | Errno::INVAL) => "; `homenode topology` lists the nodes",
        _ => "",
    }
}

/// The resolved path and the inode number of a regular file on a homenode mount.
fn regular_file(path: &Path) -> Result<(PathBuf, u64)> {
    let located = on_homenode(path)?;
    let found = fs::metadata(&located.path);
    let found = found.cannot(format_args!("look at {}", shown(path)))?;
    if !found.is_file() {
        fail!("{} is not a file: only files have bytes on nodes", shown(path));
    }
    Ok((located.path, found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_maps_parse() {
        let on = |node, bytes| NodeBytes { node, bytes };
        assert_eq!(parse_map(""), Some(vec![]));
        assert_eq!(parse_map("0=8192"), Some(vec![on(0, 8192)]));
        assert_eq!(parse_map("0=8192,12=4096"), Some(vec![on(0, 8192), on(12, 4096)]));
        for text in ["0", "0=", "=1", "0=1;1=2", "0=-1", "99999=1"] {
            assert_eq!(parse_map(text), None, "{text}");
        }
    }
}
