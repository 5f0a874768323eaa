//! `homenode status`: what the pools of this machine hold, and where their bytes go.

use crate::control::client::{ConnectError, Connection};
use crate::control::protocol::{AccessReport, OUTPUT_VERSION, StatusReport};
use crate::control::{self, root_hint, socket_path};
use crate::failure::{Result, fail};
use crate::mountinfo::Device;
use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;
use std::fmt::{self, Write};
use std::fs;
use std::path::PathBuf;

/// Tell capacity, use, spills and the access matrix of a pool, or of all.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Where it is mounted, or anything on it. Default: every pool of this machine.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// As JSON; sizes in bytes.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct AllPools {
    output_version: u32,
    pools: Vec<StatusReport>,
}

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    if let Some(directory) = &args.directory {
        let report = Connection::to_server_of(directory)?.0.status()?;
        return if args.json {
            crate::print_json(&report)
        } else {
            print(&[report])
        };
    }
    let pools = all()?;
    if args.json {
        crate::print_json(&AllPools {
            output_version: OUTPUT_VERSION,
            pools,
        })
    } else if pools.is_empty() {
        crate::print_line("no pool is up")
    } else {
        print(&pools)
    }
}

/// Asks every server; what dead ones left is cleaned up.
fn all() -> Result<Vec<StatusReport>> {
    let mut reports = Vec::new();
    for device in control::devices()? {
        let connection = match Connection::open(device) {
            Err(ConnectError::Dead) => clear_away(device),
            opened => opened,
        };
        match connection {
            Ok(mut connection) => match connection.status() {
                Ok(report) => reports.push(report),
                Err(failure) => eprintln!("homenode: {}: {failure}", socket_path(device).display()),
            },
            Err(ConnectError::Dead) => {}
            Err(ConnectError::Other(error)) => {
                fail!(
                    "cannot talk to the server behind {}: {error}{}",
                    socket_path(device).display(),
                    root_hint(&error)
                )
            }
        }
    }
    Ok(reports)
}

/// Removes a socket that nobody listens on. A server that is about to listen holds the lock until it does, so look again.
fn clear_away(device: Device) -> std::result::Result<Connection, ConnectError> {
    // Without the lock it stays: it is only clutter.
    let lock = control::lock();
    let opened = Connection::open(device);
    if lock.is_ok() && matches!(opened, Err(ConnectError::Dead)) {
        // Gone already, or not ours to remove.
        let _ = fs::remove_file(socket_path(device));
    }
    opened
}

fn print(reports: &[StatusReport]) -> Result<()> {
    let mut text = String::new();
    for (index, report) in reports.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        write_report(&mut text, report).expect("writing to a string cannot fail");
    }
    crate::print_text(&text)
}

fn write_report(text: &mut String, report: &StatusReport) -> fmt::Result {
    writeln!(
        text,
        "{}  (homenode {}, server {})",
        report.directory, report.version, report.pid
    )?;
    writeln!(
        text,
        "capacity {}, used {}, reserved {}, free {}",
        size(report.capacity_bytes),
        size(report.used_bytes),
        size(report.reserved_bytes),
        size(report.free_bytes)
    )?;
    writeln!(
        text,
        "\n{:<6} {:<10} {:>11} {:>11} {:>11} {:>14}",
        "node", "state", "capacity", "used", "populated", "spilled away"
    )?;
    for node in &report.nodes {
        let (capacity, used) = (size(node.capacity_bytes), size(node.used_bytes));
        let (populated, spilled) = (size(node.populated_bytes), size(node.spilled_bytes));
        writeln!(
            text,
            "{:<6} {:<10} {capacity:>11} {used:>11} {populated:>11} {spilled:>14}",
            node.node,
            node.state.name()
        )?;
    }
    writeln!(
        text,
        "\n{:<6} {:<6} {:<10} {:>11} {:>11} {:>11}  backing",
        "member", "home", "state", "capacity", "used", "populated"
    )?;
    for member in &report.members {
        let (capacity, used) = (size(member.capacity_bytes), size(member.used_bytes));
        let (populated, state) = (size(member.populated_bytes), member.state.name());
        let (number, home, backing) = (member.member, member.home, &member.backing);
        writeln!(
            text,
            "{number:<6} {home:<6} {state:<10} {capacity:>11} {used:>11} {populated:>11}  {backing}"
        )?;
    }
    write_accesses(text, &report.accesses)?;
    for spill in &report.spills {
        writeln!(
            text,
            "spilled: {} of node {}'s writers to node {}",
            size(spill.bytes),
            spill.from,
            spill.home
        )?;
    }
    let fuse = &report.fuse;
    writeln!(
        text,
        "\nFUSE: {} requests, {} errors, {} panics",
        fuse.requests, fuse.errors, fuse.panics
    )
}

fn write_accesses(text: &mut String, accesses: &[AccessReport]) -> fmt::Result {
    if accesses.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<10} {:<8} {:>12} {:>11} {:>11}",
        "CPUs of", "home", "operations", "read", "written"
    )?;
    for cell in accesses {
        let (read, written) = (size(cell.read_bytes), size(cell.written_bytes));
        let (from, home) = (format!("node {}", cell.from), format!("node {}", cell.home));
        let kind = if cell.from == cell.home { "local" } else { "remote" };
        writeln!(
            text,
            "{from:<10} {home:<8} {:>12} {read:>11} {written:>11}  {kind}",
            cell.operations
        )?;
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
