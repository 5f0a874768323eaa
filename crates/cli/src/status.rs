//! `homenode status`: what the pools of this machine hold, and where their bytes go.

use crate::affinity::changes_in_force;
use crate::control::client::{ConnectError, Connection, Unserved, pool_of, unserved};
use crate::control::protocol::{Access, DurableReport, STATUS_VERSION, StatusReport};
use crate::control::{self, To, hint, socket_path};
use crate::directory::{fate, is_dead};
use crate::failure::{Failure, Result, fail, plain};
use crate::holders;
use crate::mountinfo::{Device, MountEntry, first_homenode_mount, locate, mounts, shown};
use clap::Args;
use homenode::mover::{MoverMode, MoverStatus};
use homenode::{MemberStatus, SliceStatus, Status, UserBytes};
use indicatif::{HumanBytes, HumanDuration};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Show health, capacity, use, spills and the access matrix of a pool, or of all pools.
///
/// The first line says `health: ok`, or names the problem: a failing member, a server that was killed or does not answer, a full node, or bytes that
/// spilled to other nodes. Where no pool is up the command prints `no pool is up` instead.
///
/// With --json the output is one object: `output_version`, `health` (that line), `pools` (an object for each pool, with its `problems`), `dead` (mounts
/// whose servers were killed), `silent` (sockets of servers that do not answer) and `affinity_changes` (changes of `homenode affinity` in force). It has the same keys with DIR, and tells of that pool only.
///
/// The exit code is 1 where the server of DIR is dead or does not answer. Without DIR it is 0 whatever the health is: scripts read `.health`.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Mount point of the pool, or a path on it. Default: every pool of this machine.
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Print JSON; sizes in bytes.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Json {
    output_version: u32,
    /// `ok`, or what is wrong.
    health: String,
    pools: Vec<StatusReport>,
    /// Where mounts lie whose servers were killed.
    dead: Vec<String>,
    /// Sockets of servers that did not answer.
    silent: Vec<String>,
    /// Changes of `homenode affinity` in force, as far as this user may see them.
    affinity_changes: usize,
}

/// Pools of this machine, mounts of dead servers, and devices of silent servers.
#[derive(Default)]
struct Found {
    pools: Vec<StatusReport>,
    dead: Vec<MountEntry>,
    /// Devices of servers that did not answer; why was told.
    silent: Vec<Device>,
}

impl Found {
    /// `ok`, or what is wrong with each pool.
    fn health(&self) -> String {
        let silent = self.silent.iter();
        let silent = silent.map(|device| (pool_of(*device), "its server gave no status".to_owned()));
        let pools = self.pools.iter().filter(|report| !report.problems.is_empty());
        let pools = pools.map(|report| (shown(Path::new(&report.directory)), report.problems.join(", ")));
        health(
            self.dead.iter().map(|mount| shown(&mount.mount_point)),
            silent.chain(pools),
        )
    }
}

/// Says that all is well by `ok`, or what is wrong: names of mounts whose servers were killed, and names of pools with their problems.
pub(crate) fn health(dead: impl Iterator<Item = String>, pools: impl Iterator<Item = (String, String)>) -> String {
    let dead = dead.map(|name| format!("{name}: its server was killed"));
    let pools = pools.map(|(name, problem)| format!("{name}: {problem}"));
    let all: Vec<String> = dead.chain(pools).collect();
    if all.is_empty() {
        "ok".to_owned()
    } else {
        all.join("; ")
    }
}

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let (found, failure) = match &args.directory {
        Some(directory) => of_directory(directory)?,
        None => (all()?, None),
    };
    let health = found.health();
    let Found { pools, dead, silent } = found;
    if args.json {
        crate::print_json(&Json {
            output_version: STATUS_VERSION,
            health,
            pools,
            dead: mount_points(&dead),
            silent: sockets(&silent),
            affinity_changes: changes_in_force(),
        })?;
    } else if pools.is_empty() && dead.is_empty() && silent.is_empty() {
        crate::print_line("no pool is up")?;
    } else {
        print(&health, &pools, &dead)?;
    }
    failure.map_or(Ok(()), Err)
}

/// Asks the server of the mount that `path` lies on. Returns a dead or silent server with the message about it.
fn of_directory(path: &Path) -> Result<(Found, Option<Failure>)> {
    let mut found = Found::default();
    let failure = match unserved(path, To::Look) {
        Some(Unserved::Dead(mount, failure)) => {
            found.dead.push(mount);
            failure
        }
        Some(Unserved::Silent(mount, failure)) => {
            found.silent.push(mount.device);
            failure
        }
        Some(Unserved::Refused(failure)) => return Err(failure),
        None => match Connection::to_server_of(path, To::Look) {
            Ok((mut server, located)) => match server.status() {
                Ok(report) => {
                    found.pools.push(report);
                    return Ok((found, None));
                }
                Err(failure) => {
                    found.silent.push(located.mount.device);
                    failure
                }
            },
            // A mount that answers and whose server does not listen: it is in another container, or ending.
            Err(failure) => {
                let is_left = |mount: &MountEntry| matches!(Connection::open(mount.device), Err(ConnectError::Dead));
                let Some(mount) = first_homenode_mount(path).filter(is_left) else {
                    return Err(failure);
                };
                found.silent.push(mount.device);
                failure
            }
        },
    };
    Ok((found, Some(failure)))
}

/// Asks every server; what dead ones left is cleaned up.
fn all() -> Result<Found> {
    let (mut connections, mut found) = (Vec::new(), Found::default());
    let opened = control::at_once(control::devices()?, |device| (device, Connection::open(device)));
    for (device, opened) in opened {
        let connection = match opened {
            Err(ConnectError::Dead) => clear_away(device),
            opened => opened,
        };
        match connection {
            Ok(connection) => connections.push((device, connection)),
            Err(ConnectError::Dead) => {}
            // Its queue is full; the others are told.
            Err(ConnectError::Other(error)) if error.kind() == io::ErrorKind::TimedOut => {
                complain!("homenode: {}: {error}", pool_of(device));
                found.silent.push(device);
            }
            Err(ConnectError::Other(error)) => {
                fail!(
                    "cannot talk to the server behind {}: {error}{}",
                    socket_path(device).display(),
                    hint(&error, To::Look)
                )
            }
        }
    }
    let answering: Vec<Device> = connections.iter().map(|(device, _)| *device).collect();
    let ask = |(device, mut connection): (Device, Connection)| (device, connection.status());
    for (device, answer) in control::at_once(connections, ask) {
        match answer {
            Ok(mut report) => {
                report.elsewhere = elsewhere(device, &report);
                found.pools.push(report);
            }
            Err(failure) => {
                complain!("homenode: {}: {failure}", pool_of(device));
                found.silent.push(device);
            }
        }
    }
    found.dead = dead(&answering);
    Ok(found)
}

/// A process of another mount namespace, if the pool is mounted there only.
fn elsewhere(device: Device, report: &StatusReport) -> Option<u32> {
    let is_here = mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.device == device));
    let is_sought = !is_here && report.mounted;
    is_sought.then(|| holders::in_other_namespaces(device).into_iter().min())?
}

/// Says where the pool is that was mounted by this name in another mount namespace.
pub(crate) fn mounted_elsewhere(directory: &Path) -> Option<String> {
    let ask = |device: Device| {
        let report = Connection::open(device).ok()?.status().ok()?;
        let is_it = directory.as_os_str() == &*report.directory;
        is_it.then(|| elsewhere(device, &report))?
    };
    let found = control::at_once(control::devices().ok()?, ask);
    found.into_iter().flatten().next().map(|pid| there(pid, directory))
}

fn there(pid: u32, directory: &Path) -> String {
    format!(
        "mounted in another mount namespace: `nsenter -m -t {pid} homenode down {}` ends it",
        shown(directory)
    )
}

/// Sockets of servers.
pub(crate) fn sockets(devices: &[Device]) -> Vec<String> {
    let place = |device: &Device| socket_path(*device).to_string_lossy().into_owned();
    devices.iter().map(place).collect()
}

pub(crate) fn mount_points(mounts: &[MountEntry]) -> Vec<String> {
    let place = |mount: &MountEntry| mount.mount_point.to_string_lossy().into_owned();
    mounts.iter().map(place).collect()
}

/// The mounts of dead servers. Those that answer are not asked again through the mount, where they might not.
pub(crate) fn dead(answering: &[Device]) -> Vec<MountEntry> {
    let mounts = mounts().unwrap_or_default().into_iter();
    mounts
        .filter(|mount| mount.is_homenode() && !answering.contains(&mount.device))
        // A server that listens may be stopped, and a look at its mount would not come back. A server that this user may not ask may be stopped, too.
        .filter(|mount| matches!(Connection::open(mount.device), Err(ConnectError::Dead)))
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
        let _ = fs::remove_file(control::readers_path(device));
    }
    opened
}

fn print(health: &str, reports: &[StatusReport], dead: &[MountEntry]) -> Result<()> {
    let mut text = format!("health: {health}\n");
    for report in reports {
        text.push('\n');
        write_report(&mut text, report).expect("writing to a string cannot fail");
    }
    for (index, mount) in dead.iter().enumerate() {
        if index == 0 {
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
fn owners(pool: &Status) -> String {
    let told = |user: &UserBytes| format!("{} of user {}", size(user.bytes), user.uid);
    let mut told: Vec<String> = pool.metadata_by_user.iter().take(3).map(told).collect();
    match pool.metadata_users.saturating_sub(told.len()) {
        _ if told.is_empty() => return String::new(),
        0 => {}
        others => told.push(format!("the rest of {others} others")),
    }
    format!(": {}", told.join(", "))
}

fn write_report(text: &mut String, report: &StatusReport) -> fmt::Result {
    let pool = &report.pool;
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
    if let Some(pid) = report.elsewhere {
        writeln!(text, "{}", there(pid, Path::new(&report.directory)))?;
    }
    if let Some(durable) = &report.durable {
        writeln!(text, "{}", durable_line(durable, &report.directory))?;
    }
    writeln!(
        text,
        "capacity {}, used {}, reserved {}, free {}",
        size(pool.capacity_bytes),
        size(pool.used_bytes),
        size(pool.reserved_bytes),
        size(pool.free_bytes)
    )?;
    let unknown = pool.kernel_bytes.saturating_sub(pool.kernel_located_bytes);
    if pool.kernel_bytes > 0 {
        write!(text, "files of the kernel hold {}", size(pool.kernel_bytes))?;
        if unknown > 0 {
            write!(text, "; where {} of that lie is not looked at yet", size(unknown))?;
        }
        text.push('\n');
    }
    writeln!(
        text,
        "metadata {} of {} (memory of the server besides the capacity){}{}",
        size(pool.metadata_used_bytes),
        size(pool.metadata_limit_bytes),
        owners(pool),
        match pool.metadata_refused {
            0 => String::new(),
            refused => format!("; requests refused because it was full: {refused}"),
        }
    )?;
    let memory = &report.server_memory;
    writeln!(
        text,
        "server {} resident, of that {} its own, metadata included; the rest are members and files that it has mapped",
        size(memory.resident_bytes),
        size(memory.own_bytes)
    )?;
    writeln!(text, "{}", local_line(report))?;
    write_nodes(text, report)?;
    write_members(text, &pool.members)?;
    for (member, problem) in problems(report) {
        writeln!(text, "member {member} {problem}")?;
    }
    write_cache(text, report)?;
    write_accesses(text, &pool.accesses)?;
    if report.fuse.transport == "classic" && !pool.accesses.is_empty() {
        writeln!(
            text,
            "with this transport these are the CPUs of the server's threads, not of the callers"
        )?;
    }
    for spill in &pool.spills {
        writeln!(
            text,
            "spilled: {} that belonged on {} to {}",
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

/// Says how much space that fallocate reserved was taken by other writers, and when first.
pub(crate) fn reserved_lost(pool: &Status) -> Option<String> {
    let since = UNIX_EPOCH + Duration::from_secs(pool.reserved_lost_since_s?);
    let ago = HumanDuration(since.elapsed().unwrap_or_default());
    Some(format!(
        "other writers took {} that fallocate had reserved, first {ago} ago",
        size(pool.reserved_lost_bytes)
    ))
}

fn write_members(text: &mut String, members: &[MemberStatus]) -> fmt::Result {
    writeln!(
        text,
        "\n{:<6} {:<6} {:<6} {:<10} {:>11} {:>11} {:>11}  backing",
        "member", "kind", "home", "state", "capacity", "used", "populated"
    )?;
    for member in members {
        let (capacity, used) = (size(member.capacity_bytes), size(member.used_bytes));
        let (populated, state) = (size(member.populated_bytes), member.state.name());
        let (number, kind, home, backing) = (member.id.0, member.kind.name(), member.home.0, plain(&member.backing));
        writeln!(
            text,
            "{number:<6} {kind:<6} {home:<6} {state:<10} {capacity:>11} {used:>11} {populated:>11}  {backing}"
        )?;
    }
    Ok(())
}

fn durable_line(durable: &DurableReport, directory: &str) -> String {
    let line = format!("durable pool {} {}", named(durable), durable.uuid);
    match durable.access {
        Access::ReadWrite => line,
        Access::ReadOnly => format!("{line}, opened read-only"),
        Access::Failed => format!("{line}\n{}", failed_line(durable, directory)),
        Access::Unknown => format!("{line}, with an access that this command does not know"),
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
        "READ ONLY: a member could not be written. Changes fail with EROFS and fsync with EIO; unsynced data may be lost. \
         When the member's disk works again (dmesg, df): `homenode down {directory}`, `homenode fsck {name}`, `homenode up {name} {directory}`"
    )
}

/// Numbers of members with what is wrong with each.
pub(crate) fn problems(report: &StatusReport) -> impl Iterator<Item = (u16, &str)> {
    let members = report.pool.members.iter();
    members.filter_map(|member| Some((member.id.0, member.problem.as_deref()?)))
}

/// Whether the mover counts what is read and written.
fn is_counted(report: &StatusReport) -> bool {
    report.mover.mode != MoverMode::Off && report.mover.not_seen.is_none()
}

/// Tells the part of what was read and written that was local.
fn local_line(report: &StatusReport) -> String {
    let is_kernel = report.fuse.data == "kernel";
    match report.local_percent {
        Some(percent) => format!("local: {percent} % of the bytes read and written were on the node of the CPU"),
        None if is_kernel && !is_counted(report) => "local: not seen without the mover".to_owned(),
        None if !is_kernel && report.fuse.transport == "classic" => {
            "local: not seen by the transport classic".to_owned()
        }
        None => "local: not known yet".to_owned(),
    }
}

/// Table of nodes.
fn write_nodes(text: &mut String, report: &StatusReport) -> fmt::Result {
    writeln!(
        text,
        "\n{:<6} {:<10} {:>11} {:>11} {:>11} {:>14}",
        "node", "state", "capacity", "used", "populated", "spilled away"
    )?;
    let nodes = &report.pool.nodes;
    let sees_spills = report.fuse.data != "kernel" || nodes.len() < 2 || is_counted(report);
    for node in nodes {
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
            node.node.0,
            node.state.name()
        )?;
    }
    Ok(())
}

/// Table of the cache's slices.
fn write_cache(text: &mut String, report: &StatusReport) -> fmt::Result {
    let cache = &report.cache;
    if cache.slices.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n{:<6} {:>11} {:>11} {:>11} {:>12} {:>11} {:>11} {:>11} {:>11}",
        "cache", "frames", "free", "dirty", "copies", "read", "again", "written", "stolen"
    )?;
    for slice in &cache.slices {
        writeln!(
            text,
            "node {:<1} {:>11} {:>11} {:>11} {:>12} {:>11} {:>11} {:>11} {:>11}",
            slice.node.0,
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
        "read from disks, read again soon after eviction, and written to disks; tables of the cache take up to {} more",
        size(cache.table_bytes)
    )
}

/// Tells of slices that are small for what is read: a quarter of it, and of no less than the slice itself, had been there not long before.
pub(crate) fn small_slices(report: &StatusReport) -> impl Iterator<Item = String> {
    let is_small =
        |slice: &&SliceStatus| slice.fetched_bytes >= slice.bytes && slice.returned_bytes >= slice.fetched_bytes / 4;
    report.cache.slices.iter().filter(is_small).map(|slice| {
        let [has, read, again] = [slice.bytes, slice.fetched_bytes, slice.returned_bytes].map(HumanBytes);
        let node = slice.node;
        format!("on {node}: of {read} read from disks into {has}, {again} had been evicted not long before")
    })
}

/// Lines about the mover; none while it is off. `name` names a file by its inode number.
pub(crate) fn mover_lines(mover: &MoverStatus, name: &dyn Fn(u64) -> String) -> String {
    if mover.mode == MoverMode::Off {
        return String::new();
    }
    if let Some(why) = &mover.not_seen {
        return format!("mover {}: reads and writes are not counted: {why}\n", mover.mode);
    }
    let reached = mover.reached.iter().map(|node| {
        let (read, written) = (size(node.read_bytes), size(node.written_bytes));
        format!("CPUs of {} read {read} and wrote {written}", node.node)
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
            "  {} {}: {} reaches it most, {} lie elsewhere, {} a second would be local: {}\n",
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

fn write_accesses(text: &mut String, accesses: &[homenode::Access]) -> fmt::Result {
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
        let (from, home) = (cell.from.to_string(), cell.home.to_string());
        let kind = if cell.from == cell.home { "local" } else { "remote" };
        writeln!(
            text,
            "{from:<10} {home:<8} {:>12} {read:>11} {written:>11}  {kind}",
            cell.operations
        )?;
    }
    Ok(())
}

pub(crate) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn fuse_errors_are_shown_by_name() {
        assert_eq!(by_errno(&BTreeMap::new()), "");
        let (exists, full) = (Errno::EXIST.raw_os_error(), Errno::NOSPC.raw_os_error());
        assert_eq!(
            by_errno(&BTreeMap::from([(exists, 1), (full, 3)])),
            " (3 No space left on device, 1 File exists)"
        );
    }
}
