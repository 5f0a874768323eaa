//! `homenode status`: what the pools of this machine hold, and where their bytes go.

use crate::control::client::{ConnectError, Connection};
use crate::control::protocol::{
    Access, AccessReport, DurableReport, MoverReport, OUTPUT_VERSION, SliceReport, StatusReport, UserReport,
};
use crate::control::{self, root_hint, socket_path};
use crate::directory::{fate, is_dead};
use crate::failure::{Result, fail};
use crate::mountinfo::{Device, MountEntry, locate, mounts, shown};
use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

/// Tell capacity, use, spills and the access matrix of a pool, or of all.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Where it is mounted, or anything on it. Default: every pool of this machine.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON; sizes in bytes.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct AllPools {
    output_version: u32,
    pools: Vec<StatusReport>,
    /// Where mounts lie whose servers were killed.
    dead: Vec<String>,
    /// Sockets of servers that did not answer.
    silent: Vec<String>,
}

/// Pools of this machine, mounts of dead servers, and sockets of silent servers.
struct Found {
    pools: Vec<StatusReport>,
    /// Mounts of dead servers.
    dead: Vec<MountEntry>,
    /// Sockets of servers that did not answer; why was told.
    silent: Vec<PathBuf>,
}

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    if let Some(directory) = &args.directory {
        let report = Connection::to_server_of(directory)?.0.status()?;
        return if args.json {
            crate::print_json(&report)
        } else {
            print(&[report], &[])
        };
    }
    let Found { pools, dead, silent } = all()?;
    if args.json {
        crate::print_json(&AllPools {
            output_version: OUTPUT_VERSION,
            pools,
            dead: mount_points(&dead),
            silent: names(&silent),
        })?;
    } else if !pools.is_empty() || !dead.is_empty() {
        print(&pools, &dead)?;
    } else if silent.is_empty() {
        crate::print_line("no pool is up")?;
    }
    Ok(())
}

/// Asks every server; what dead ones left is cleaned up.
fn all() -> Result<Found> {
    let mut connections = Vec::new();
    for device in control::devices()? {
        let connection = match Connection::open(device) {
            Err(ConnectError::Dead) => clear_away(device),
            opened => opened,
        };
        match connection {
            Ok(connection) => connections.push((device, connection)),
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
    let answering: Vec<Device> = connections.iter().map(|(device, _)| *device).collect();
    let (pools, silent) = ask(connections);
    let dead = dead(&answering);
    Ok(Found { pools, dead, silent })
}

/// All at once: one that is stopped does not hold up the others.
fn ask(connections: Vec<(Device, Connection)>) -> (Vec<StatusReport>, Vec<PathBuf>) {
    thread::scope(|scope| {
        let asked: Vec<_> = connections
            .into_iter()
            .map(|(device, mut connection)| (device, scope.spawn(move || connection.status())))
            .collect();
        let (mut pools, mut silent) = (Vec::new(), Vec::new());
        for (device, answer) in asked {
            match answer.join().expect("asking does not panic") {
                Ok(report) => pools.push(report),
                Err(failure) => {
                    complain!("homenode: {}: {failure}", socket_path(device).display());
                    silent.push(socket_path(device));
                }
            }
        }
        (pools, silent)
    })
}

pub(crate) fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

/// Mount points of mounts.
pub(crate) fn mount_points(mounts: &[MountEntry]) -> Vec<String> {
    let place = |mount: &MountEntry| mount.mount_point.to_string_lossy().into_owned();
    mounts.iter().map(place).collect()
}

/// The mounts of dead servers. Those that answer are not asked again through the mount, where they might not.
pub(crate) fn dead(answering: &[Device]) -> Vec<MountEntry> {
    let mounts = mounts().unwrap_or_default().into_iter();
    mounts
        .filter(|mount| mount.is_homenode() && !answering.contains(&mount.device))
        // What another mount covers cannot be looked at, nor cleared.
        .filter(|mount| locate(&mount.mount_point).is_ok_and(|top| top.mount.id == mount.id && is_dead(&top)))
        .collect()
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

fn print(reports: &[StatusReport], dead: &[MountEntry]) -> Result<()> {
    let mut text = String::new();
    for (index, report) in reports.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        write_report(&mut text, report).expect("writing to a string cannot fail");
    }
    for (index, mount) in dead.iter().enumerate() {
        if index == 0 && !reports.is_empty() {
            text.push('\n');
        }
        writeln!(text, "{}", dead_line(mount)).expect("writing to a string cannot fail");
    }
    crate::print_text(&text)
}

/// Returns the line about a mount whose server is dead.
pub(crate) fn dead_line(mount: &MountEntry) -> String {
    let name = shown(&mount.mount_point);
    format!(
        "{name}  (dead: its server was killed; `homenode down {name}` clears it; {})",
        fate(mount)
    )
}

/// Names the three users who own most of the metadata, with its size.
fn owners(report: &StatusReport) -> String {
    let told = |user: &UserReport| format!("{} of user {}", size(user.bytes), user.uid);
    let mut told: Vec<String> = report.metadata_by_user.iter().take(3).map(told).collect();
    match report.metadata_users.saturating_sub(told.len()) {
        _ if told.is_empty() => return String::new(),
        0 => {}
        others => told.push(format!("the rest of {others} others")),
    }
    format!(": {}", told.join(", "))
}

fn write_report(text: &mut String, report: &StatusReport) -> fmt::Result {
    writeln!(
        text,
        "{}  (homenode {}, server {}){}",
        shown(Path::new(&report.directory)),
        report.version,
        report.pid,
        if report.mounted {
            ""
        } else {
            "  detached, waits for open files"
        }
    )?;
    if let Some(durable) = &report.durable {
        writeln!(text, "{}", durable_line(durable, &report.directory))?;
    }
    writeln!(
        text,
        "capacity {}, used {}, reserved {}, free {}",
        size(report.capacity_bytes),
        size(report.used_bytes),
        size(report.reserved_bytes),
        size(report.free_bytes)
    )?;
    let unknown = report.kernel_bytes.saturating_sub(report.kernel_located_bytes);
    if report.kernel_bytes > 0 {
        write!(text, "files of the kernel hold {}", size(report.kernel_bytes))?;
        if unknown > 0 {
            write!(text, "; where {} of that lie is not looked at yet", size(unknown))?;
        }
        text.push('\n');
    }
    writeln!(
        text,
        "metadata {} of {} (memory of the server besides the capacity){}{}",
        size(report.metadata_used_bytes),
        size(report.metadata_limit_bytes),
        owners(report),
        match report.metadata_refused {
            0 => String::new(),
            refused => format!("; {refused} requests refused for want of it"),
        }
    )?;
    write_nodes(text, report)?;
    writeln!(
        text,
        "\n{:<6} {:<6} {:<6} {:<10} {:>11} {:>11} {:>11}  backing",
        "member", "kind", "home", "state", "capacity", "used", "populated"
    )?;
    for member in &report.members {
        let (capacity, used) = (size(member.capacity_bytes), size(member.used_bytes));
        let (populated, state) = (size(member.populated_bytes), member.state.name());
        let (number, kind, home, backing) = (member.member, &member.kind, member.home, &member.backing);
        writeln!(
            text,
            "{number:<6} {kind:<6} {home:<6} {state:<10} {capacity:>11} {used:>11} {populated:>11}  {backing}"
        )?;
    }
    for (member, problem) in problems(report) {
        writeln!(text, "member {member} {problem}")?;
    }
    write_cache(text, report)?;
    write_accesses(text, &report.accesses)?;
    if report.fuse.transport == "classic" && !report.accesses.is_empty() {
        writeln!(
            text,
            "by this transport they are the CPUs of the server's threads, not of who asked"
        )?;
    }
    for spill in &report.spills {
        writeln!(
            text,
            "spilled: {} that belonged on node {} to node {}",
            size(spill.bytes),
            spill.from,
            spill.home
        )?;
    }
    text.push_str(&mover_lines(&report.mover, &|inode| format!("inode {inode}")));
    writeln!(text, "\ncopies: {}", report.copies)?;
    let fuse = &report.fuse;
    writeln!(
        text,
        "FUSE: {} files open, {} requests, {} errors{}, {} panics; transport {}: {}; data {}: {}",
        fuse.open_files,
        fuse.requests,
        fuse.errors,
        by_errno(&fuse.errors_by_errno),
        fuse.panics,
        fuse.transport,
        fuse.transport_reason,
        fuse.data,
        fuse.data_reason
    )
}

fn durable_line(durable: &DurableReport, directory: &str) -> String {
    let line = format!("durable pool {} {}", named(durable), durable.uuid);
    match durable.access {
        Access::ReadWrite => line,
        Access::ReadOnly => format!("{line}, opened to be read only"),
        Access::Failed => format!("{line}\n{}", failed_line(durable, directory)),
    }
}

/// The name of a durable pool, where it was mounted by one.
pub(crate) fn named(durable: &DurableReport) -> &str {
    durable.name.as_deref().unwrap_or("without a name")
}

/// Says that a pool can only be read since a member could not be written, and what to do.
pub(crate) fn failed_line(durable: &DurableReport, directory: &str) -> String {
    let (directory, name) = (shown(Path::new(directory)), durable.name.as_deref().unwrap_or("NAME"));
    format!(
        "READ ONLY: a member could not be written. Changes fail with EROFS and fsync with EIO; what was not synced before may be lost. \
         When its disk is well again (dmesg, df): `homenode down {directory}`, `homenode fsck {name}`, `homenode up {name} {directory}`"
    )
}

/// Numbers of members with what is wrong with each.
pub(crate) fn problems(report: &StatusReport) -> impl Iterator<Item = (u16, &str)> {
    let members = report.members.iter();
    members.filter_map(|member| Some((member.member, member.problem.as_deref()?)))
}

/// Table of nodes.
fn write_nodes(text: &mut String, report: &StatusReport) -> fmt::Result {
    let size = |bytes: u64| HumanBytes(bytes).to_string();
    writeln!(
        text,
        "\n{:<6} {:<10} {:>11} {:>11} {:>11} {:>14}",
        "node", "state", "capacity", "used", "populated", "spilled away"
    )?;
    let is_counted = report.mover.mode != "off" && report.mover.not_seen.is_none();
    let sees_spills = report.fuse.data != "kernel" || report.nodes.len() < 2 || is_counted;
    for node in &report.nodes {
        let (capacity, used) = (size(node.capacity_bytes), size(node.used_bytes));
        let populated = size(node.populated_bytes);
        let spilled = if sees_spills {
            size(node.spilled_bytes)
        } else {
            "not seen".to_owned()
        };
        writeln!(
            text,
            "{:<6} {:<10} {capacity:>11} {used:>11} {populated:>11} {spilled:>14}",
            node.node,
            node.state.name()
        )?;
    }
    Ok(())
}

/// Table of the cache's slices.
fn write_cache(text: &mut String, report: &StatusReport) -> fmt::Result {
    if report.cache.is_empty() {
        return Ok(());
    }
    let size = |bytes: u64| HumanBytes(bytes).to_string();
    writeln!(
        text,
        "\n{:<6} {:>11} {:>11} {:>11} {:>12} {:>11} {:>11} {:>11} {:>11}",
        "cache", "frames", "free", "dirty", "copies", "read", "again", "written", "stolen"
    )?;
    for slice in &report.cache {
        writeln!(
            text,
            "node {:<1} {:>11} {:>11} {:>11} {:>12} {:>11} {:>11} {:>11} {:>11}",
            slice.node,
            size(slice.bytes),
            size(slice.free_bytes),
            size(slice.dirty_bytes),
            slice.copies,
            size(slice.fetched_bytes),
            size(slice.returned_bytes),
            size(slice.saved_bytes),
            size(slice.stolen_bytes)
        )?;
    }
    writeln!(
        text,
        "read from disks, again what had been there not long before, and written to them; tables of the cache take {} besides, at most",
        size(report.cache_table_bytes)
    )
}

/// Tells of slices that are small for what is read: a quarter of it, and of no less than the slice itself, had been there not long before.
pub(crate) fn small_slices(report: &StatusReport) -> impl Iterator<Item = String> {
    let is_small =
        |slice: &&SliceReport| slice.fetched_bytes >= slice.bytes && slice.returned_bytes >= slice.fetched_bytes / 4;
    report.cache.iter().filter(is_small).map(|slice| {
        let [has, read, again] = [slice.bytes, slice.fetched_bytes, slice.returned_bytes].map(HumanBytes);
        let node = slice.node;
        format!("on node {node}: of {read} read from disks into {has}, {again} had been there not long before")
    })
}

/// Lines about the mover; none while it is off. `name` names a file by its inode number.
pub(crate) fn mover_lines(mover: &MoverReport, name: &dyn Fn(u64) -> String) -> String {
    if mover.mode.is_empty() || mover.mode == "off" {
        return String::new();
    }
    if let Some(why) = &mover.not_seen {
        return format!("mover {}: reads and writes are not seen: {why}\n", mover.mode);
    }
    let size = |bytes: u64| HumanBytes(bytes).to_string();
    let reached = mover.reached.iter().map(|node| {
        let (read, written) = (size(node.read_bytes), size(node.written_bytes));
        format!("CPUs of node {} read {read} and wrote {written}", node.node)
    });
    let reached: Vec<String> = reached.collect();
    let reached = if reached.is_empty() {
        "nothing was read or written yet".to_owned()
    } else {
        reached.join(", ")
    };
    let (moves, moved) = (mover.moves, size(mover.moved_bytes));
    let mut text = format!(
        "mover {}: {reached} (mappings not seen); {moves} files moved, {moved}\n",
        mover.mode
    );
    if mover.missed_bytes > 0 {
        text.push_str(&format!(
            "  {} more were not counted: too many files at once\n",
            size(mover.missed_bytes)
        ));
    }
    for decision in &mover.decisions {
        text.push_str(&format!(
            "  {} {}: node {} reaches it most, {} lie elsewhere, {} a second would be local: {}\n",
            name(decision.inode),
            decision.outcome,
            decision.node,
            size(decision.bytes),
            size(decision.saved_rate),
            decision.reason
        ));
    }
    text
}

/// ` (3 File exists, 1 No space left on device)`, the most frequent one first.
fn by_errno(errors: &BTreeMap<i32, u64>) -> String {
    let mut counts: Vec<(i32, u64)> = errors.iter().map(|(errno, count)| (*errno, *count)).collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let told = |(errno, count): (i32, u64)| {
        let text = io::Error::from_raw_os_error(errno).to_string();
        let name = text.split(" (os error").next().unwrap_or_default();
        format!("{count} {name}")
    };
    let told: Vec<String> = counts.into_iter().map(told).collect();
    if told.is_empty() {
        String::new()
    } else {
        format!(" ({})", told.join(", "))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn errors_are_told_by_what_they_mean() {
        assert_eq!(by_errno(&BTreeMap::new()), "");
        let (exists, full) = (Errno::EXIST.raw_os_error(), Errno::NOSPC.raw_os_error());
        assert_eq!(
            by_errno(&BTreeMap::from([(exists, 1), (full, 3)])),
            " (3 No space left on device, 1 File exists)"
        );
    }
}
