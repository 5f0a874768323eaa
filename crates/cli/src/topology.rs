//! `homenode topology`: the machine as Homenode sees it.

mod json;
mod text;

use crate::failure::{Cannot, Failure, Result, chain, fail};
use homenode_linux::topology::{Source, read};
pub(crate) use json::{Machine, machine};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
pub(crate) use text::{human_bytes, of as described, ranges};

/// Show nodes, CPUs, caches, devices and the distances between nodes.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Machine to show: `live`, an XML file made with `lstopo --disallowed FILE.xml`, or a description such as "node:4 core:8 pu:1".
    #[arg(long, value_name = "SOURCE", default_value = "live")]
    from: Source,
    /// Only read it: what the child of [`crashes_hwloc`] does.
    #[arg(long, hide = true)]
    read_only: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Source::Xml(path) = &args.from
        && !args.read_only
        && crashes_hwloc(path)?
    {
        fail!(
            "{} contradicts itself so badly that hwloc crashes on it: make a new one with `lstopo --disallowed FILE.xml`",
            path.display()
        );
    }
    let topology = read(&args.from).map_err(|error| Failure::new(chain(&error)))?;
    if args.read_only {
        Ok(())
    } else if args.json {
        crate::print_json(&machine(&topology, &args.from))
    } else {
        crate::print_text(&text::of(&topology, &args.from))
    }
}

/// hwloc trusts what it is told: a file that parses but contradicts itself may kill the process. So a child reads it first.
/// A file that merely cannot be read kills nobody.
pub(crate) fn crashes_hwloc(path: &Path) -> Result<bool> {
    let mut child = Command::new("/proc/self/exe");
    child.args(["topology", "--read-only", "--from"]).arg(path);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = child.status().cannot("start /proc/self/exe")?;
    Ok(status.signal().is_some())
}
