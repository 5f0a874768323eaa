//! Traces of mounts: recorded, and simulated.

use super::topology;
use crate::control::To;
use crate::control::client::{Connection, RequestError, unexpected};
use crate::control::protocol::{Outcome, Request};
use crate::failure::{Cannot, Failure, Result, fail};
use crate::signals;
use clap::Args;
use homenode::blk::Operation;
use homenode::blk::trace::{ENTRY_BYTES, Entry, read_header};
use homenode_linux::topology::Source;
use homenode_policy::{AccessKind, FileAccess};
use homenode_sim::trace::{HEADER, Trace, check};
use homenode_sim::{Constants, Contestant, Machine};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pause between requests; what a server's thread keeps lasts for it up to 160,000 accesses a second.
const PAUSE: Duration = Duration::from_millis(25);

/// Record the reads and writes of a mount, and what gives memory back, into FILE, for `simulate trace`.
///
/// Seen is what reaches the server: of mounts with `--data pool`, and past the page cache. What the pool held before is not in the trace:
/// record a pool from its start. FILE names nodes, inode numbers, offsets and lengths; no names and no bytes.
#[derive(Args, Debug)]
pub(super) struct RecordArgs {
    /// A directory of the mount.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The trace; must not exist.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How long, 1 to 3600; Ctrl-C ends it before.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Tell which bytes of a recorded trace would be local on a machine.
///
/// A trace of `simulate record` names the nodes that asked. One of `volume attach --trace` names cores: core N is the N-th CPU of the machine.
#[derive(Args, Debug)]
pub(super) struct TraceArgs {
    /// The trace, from `simulate record` or `volume attach --trace`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Machine: `live`, an XML file made with `lstopo --disallowed FILE.xml`, or a description such as "node:4 core:10 pu:1".
    #[arg(long, value_name = "SOURCE", default_value = "live")]
    machine: Source,
}

pub(super) fn run(args: &RecordArgs) -> Result<()> {
    let (mut connection, _) = Connection::to_server_of(&args.directory, To::Change)?;
    let report = connection.status()?;
    let mut take = |ends| match connection.request(&Request::Accesses { ends }, &mut |_, _| {}) {
        Ok(Outcome::Accesses { lines, lost }) => Ok((lines, lost)),
        Ok(other) => Err(unexpected(&other)),
        Err(RequestError::Refused(refusal)) => Err(Failure::new(refusal.message)),
        Err(RequestError::Broken(failure) | RequestError::Late(failure)) => Err(failure),
    };
    // Discards what is kept of an earlier recording.
    take(false)?;
    let cannot = |error: &dyn std::fmt::Display| Failure::new(format!("cannot write {}: {error}", args.file.display()));
    // Inode numbers and habits of all users.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.file);
    let mut file = file.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => cannot(&"the file exists already: give another name, or remove it"),
        _ => cannot(&error),
    })?;
    let device = |found: io::Result<Metadata>| found.map(|found| found.dev()).ok();
    if device(file.metadata()) == device(fs::metadata(&args.directory)) {
        let _ = fs::remove_file(&args.file);
        fail!(
            "{} lies in the mount that is recorded, and so its own writes would be: name a file elsewhere",
            args.file.display()
        );
    }
    let mut head = format!("{HEADER}\n");
    for node in &report.pool.nodes {
        let free = node.capacity_bytes.saturating_sub(node.used_bytes);
        head.push_str(&format!("node {} {free}\n", node.node.0));
    }
    file.write_all(head.as_bytes()).map_err(|error| cannot(&error))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in signals::that_end() {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(|error| cannot(&error))?;
    }
    let (begin, mut accesses, mut lost, mut written) = (Instant::now(), 0, 0, head.len() as u64);
    let mut ended = None;
    let mut ends = false;
    while !ends && ended.is_none() {
        thread::sleep(PAUSE);
        ends = begin.elapsed() >= Duration::from_secs(args.seconds) || interrupted.load(Ordering::Relaxed);
        let (lines, more) = match take(ends) {
            Ok(taken) => taken,
            Err(failure) => {
                ended = Some(failure);
                break;
            }
        };
        if let Err(error) = file.write_all(lines.as_bytes()) {
            // Whole lines stay: they are a trace.
            let _ = file.set_len(written);
            let _ = take(true);
            ended = Some(cannot(&error));
            break;
        }
        written += lines.len() as u64;
        (accesses, lost) = (
            accesses + lines.lines().filter(|line| !line.ends_with('f')).count(),
            lost + more,
        );
    }
    if lost > 0 {
        // A remark, which the simulator does not read.
        let _ = writeln!(file, "# {lost} accesses were too many at once and are missing");
    }
    let name = args.file.display();
    let mut text = format!(
        "recorded {accesses} reads and writes in {name}; `homenode simulate trace {name}` tells which would be local\n"
    );
    if lost > 0 {
        text.push_str(&format!(
            "{lost} more were too many at once and are missing; if memory was given back by some, the simulated pool is fuller\n"
        ));
    }
    if accesses == 0 && ended.is_none() {
        text.push_str(
            "none reached the server: files of the kernel (`--data kernel`) and the page cache are served without it; or another \
             `simulate record` of this mount has taken them\n",
        );
    }
    crate::print_text(&text)?;
    match ended {
        Some(failure) => fail!("the recording ended early: {failure}"),
        None => Ok(()),
    }
}

/// Requests of a volume, as accesses of the cores' nodes to a pool over all of the machine.
fn of_volume(entries: &[u8], machine: &Machine) -> std::result::Result<Trace, String> {
    let mut trace = Trace {
        nodes: (0..machine.nodes())
            .map(|node| (machine.id(node), machine.memory_bytes(node)))
            .collect(),
        accesses: Vec::new(),
    };
    for (number, bytes) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
        let bytes = bytes.try_into().expect("a chunk has the bytes of an entry");
        let entry = Entry::from_bytes(bytes).map_err(|error| format!("entry {number}: {error}"))?;
        let core = u32::from(entry.core);
        if core >= machine.cores() {
            let cores = machine.cores();
            return Err(format!(
                "entry {number} is of core {core}, and the machine has {cores} CPUs"
            ));
        }
        let request = &entry.request;
        let kind = match request.operation {
            Operation::Read => Some(AccessKind::Read),
            Operation::Write => Some(AccessKind::Write),
            Operation::Discard => Some(AccessKind::Free),
            // Zeros keep their place.
            Operation::WriteZeroes | Operation::Flush => None,
        };
        if let Some(kind) = kind {
            let access = FileAccess {
                at_ns: entry.time_ns,
                node: machine.id(machine.node_of(core)),
                file: 0,
                offset: request.offset,
                bytes: request.bytes.into(),
                kind,
            };
            check(&access).map_err(|problem| format!("entry {number}: {problem}"))?;
            trace.accesses.push(access);
        }
    }
    trace.accesses.sort_by_key(|access| access.at_ns);
    Ok(trace)
}

pub(super) fn simulate(args: &TraceArgs) -> Result<()> {
    let name = args.file.display();
    let bytes = fs::read(&args.file).cannot(format_args!("read {name}"))?;
    let wrong = |error: &dyn std::fmt::Display| Failure::new(format!("trace {name}: {error}"));
    let topology = topology(&args.machine)?;
    // Where bytes lie depends on no constant.
    let machine = Machine::new(&topology, &Constants::SERVER.draw(0)).map_err(|error| wrong(&error))?;
    let trace = match bytes.split_first_chunk::<ENTRY_BYTES>() {
        Some((header, entries)) if read_header(header).is_ok() => {
            of_volume(entries, &machine).map_err(|error| wrong(&error))?
        }
        _ => Trace::parse(&String::from_utf8_lossy(&bytes)).map_err(|error| wrong(&error))?,
    };
    if trace.accesses.iter().all(|access| access.kind == AccessKind::Free) {
        fail!("trace {name} has no read and no write");
    }
    let moved = trace.accesses.iter().filter(|access| access.kind != AccessKind::Free);
    let mut told = format!("simulated: {} reads and writes\n", moved.count());
    for contestant in [Contestant::Tmpfs, Contestant::Library] {
        let done = trace.run(contestant, &machine).map_err(|error| wrong(&error))?;
        told.push_str(&format!(
            "{:<18} {:>5.1} % of {:.1} MB local; {} blocks on other nodes than their writers'\n",
            if contestant == Contestant::Tmpfs {
                "tmpfs"
            } else {
                "Homenode"
            },
            done.local_percent(),
            done.bytes as f64 / 1e6,
            done.spilled_blocks
        ));
        if contestant == Contestant::Library && done.unknown_bytes + done.refused_bytes > 0 {
            told.push_str(&format!(
                "not counted: {:.1} MB read that the trace did not write, {:.1} MB that found no room\n",
                done.unknown_bytes as f64 / 1e6,
                done.refused_bytes as f64 / 1e6
            ));
        }
    }
    crate::print_text(&told)
}
