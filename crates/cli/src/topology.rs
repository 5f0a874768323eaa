//! `homenode topology`: the machine as Homenode sees it.

mod json;
mod text;

use homenode_linux::topology::{Source, read};
pub(crate) use json::{Machine, machine};
use std::error::Error;
use std::io::{ErrorKind, Write as _, stdout};
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

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let Source::Xml(path) = &args.from
        && !args.read_only
        && crashes_hwloc(path)?
    {
        return Err(format!(
            "{} contradicts itself so badly that hwloc crashes on it: make a new one with `lstopo --disallowed FILE.xml`",
            path.display()
        )
        .into());
    }
    let topology = read(&args.from)?;
    if args.read_only {
        return Ok(());
    }
    print(&if args.json {
        json::of(&topology, &args.from)?
    } else {
        text::of(&topology, &args.from)
    })
}

/// hwloc trusts what it is told: a file that parses but contradicts itself may kill the process. So a child reads it first.
/// A file that merely cannot be read kills nobody.
pub(crate) fn crashes_hwloc(path: &Path) -> Result<bool, String> {
    let mut child = Command::new("/proc/self/exe");
    child.args(["topology", "--read-only", "--from"]).arg(path);
    child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = child.status();
    let status = status.map_err(|error| format!("cannot start /proc/self/exe: {error}"))?;
    Ok(status.signal().is_some())
}

/// Prints what ends with a newline. Somebody who reads only the first lines (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), Box<dyn Error>> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("cannot write to stdout: {error}").into()),
        _ => Ok(()),
    }
}
