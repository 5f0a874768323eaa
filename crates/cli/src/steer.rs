//! `homenode steer`: keeps files of a tmpfs that is already mounted on their nodes, without a mount of its own.

mod tree;

use crate::argument;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::{locate, shown};
use crate::signals;
use crate::status::mover_lines;
use clap::Args;
use homenode::NodeId;
use homenode::mover::{MoverMode, Watch, look};
use homenode_linux::reach::Filesystem;
use homenode_linux::room::RoomKeeper;
use homenode_linux::{memory, steer};
use indicatif::HumanBytes;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, fstatfs, open};
use signal_hook::iterator::Signals;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tree::Tree;

/// Keep the files of a mounted tmpfs, such as /dev/shm, on the nodes that use them, until Ctrl-C.
///
/// The command keeps memory free on each node, so that page cache does not push new bytes to other nodes. It gives each file the policy in
/// user.homenode.policy of the file, or of the nearest directory above it that has one. A tmpfs takes this attribute from Linux 6.6 on. With `--mover plan` it reports which files it would move; with `on` it moves them. The command scans the tree
/// periodically: a policy takes effect at the next scan, not at the first byte, and fallocate places bytes on the caller's node. A
/// homenode mount has neither limit.
#[derive(Args, Debug)]
pub(crate) struct SteerArgs {
    /// Directory on a tmpfs. The command covers all files below it on the same tmpfs.
    directory: PathBuf,
    /// Move files to the node that uses them most: `off`, `plan` (only report), or `on`.
    #[arg(long, value_name = "off|plan|on", value_parser = argument::mover(), default_value = "plan", hide_possible_values = true)]
    mover: MoverMode,
    /// Seconds between two reports.
    #[arg(long, value_name = "SECONDS", value_parser = argument::report_period, default_value = "10")]
    report: Duration,
}

/// Time from a signal to the end, without the last report where a large file is being moved.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks of the mover, and at the tree at the least.
const PERIOD: Duration = Duration::from_secs(1);
/// Looking at the tree takes at most one part in this many of a CPU.
const REST: u32 = 100;
/// Looking where files lie that are reached, and moving some, takes at most one part in this many.
const LOOK_REST: u32 = 10;

pub(crate) fn run(args: &SteerArgs) -> Result<()> {
    let mut signals = Signals::new(signals::that_end()).cannot("listen for signals")?;
    let name = shown(&args.directory);
    let root = open(
        &args.directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let root = root.cannot(format_args!("open the directory {name}"))?;
    if !crate::file::is_tmpfs(fstatfs(&root).as_ref().ok()) {
        fail!("{name} is not on a tmpfs: name one, such as /dev/shm; on a homenode mount the server steers");
    }
    if args.mover == MoverMode::On
        && let Some(policy) = locate(&args.directory).ok().and_then(|located| located.mount.policy)
    {
        fail!(
            "{name} is on a tmpfs with a placement of its own, mpol={policy}, against which --mover on would move its files: leave --mover out, or remount \
             it with mpol=local"
        );
    }
    let nodes = steer::nodes().cannot("read the nodes of this machine")?;
    if nodes.len() < 2 {
        return crate::print_line("this machine has one node with memory: every file is at home");
    }
    let failed = |error| Failure::new(format!("cannot look at {name}: {error}"));
    let space = root.try_clone().map_err(failed)?;
    let tree = Tree::new(args.directory.clone(), root).map_err(failed)?;
    let watch = Mutex::new(Watch::begin(args.mover, Filesystem::Tmpfs, tree.device()));
    let (end, ended) = mpsc::channel();
    let (at_work, is_at_work) = mpsc::channel::<()>();
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (keeps_room, nodes) = (at_work.clone(), &nodes);
        scope.spawn(move || {
            let _at_work = keeps_room;
            keep_room(nodes, || tree::free_bytes(space.as_fd()), is_over);
        });
        let handle = signals.handle();
        scope.spawn(move || {
            if signals.forever().next().is_some() {
                // A look at the files may take long.
                is_over.store(true, Ordering::Relaxed);
                // Nobody hears it once the loop has ended.
                let _ = end.send(());
                if is_at_work.recv_timeout(END_PATIENCE) == Err(RecvTimeoutError::Timeout) {
                    // A large file is moved, or looked at. Pages that have moved stay where they are.
                    std::process::exit(0);
                }
            }
        });
        let done = watch_and_report(args, nodes, &watch, tree, &ended, is_over);
        drop(at_work);
        is_over.store(true, Ordering::Relaxed);
        handle.close();
        done
    })
}

/// Keeps free memory on each node, until `is_over`.
fn keep_room(nodes: &[NodeId], wanted: impl Fn() -> u64, is_over: &AtomicBool) {
    let mut keeper = RoomKeeper::new(nodes);
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(keeper.keep(wanted()));
    }
}

/// Looks at the tree and at what is reached, and reports, until told to end.
fn watch_and_report(
    args: &SteerArgs,
    nodes: &[NodeId],
    watch: &Mutex<Watch>,
    mut tree: Tree,
    ended: &mpsc::Receiver<()>,
    is_over: &AtomicBool,
) -> Result<()> {
    let start = Instant::now();
    let (mut next_scan, mut next_look, mut next_report) = (start, start, start + args.report);
    loop {
        let start = Instant::now();
        if start >= next_scan {
            if !tree.is_in_place() {
                let name = shown(&args.directory);
                return crate::print_line(&format!(
                    "{name} leads elsewhere now: its tmpfs was unmounted, or covered"
                ));
            }
            tree.scan(is_over);
            next_scan = start + (start.elapsed() * REST).max(PERIOD);
        }
        let start = Instant::now();
        if start >= next_look {
            look(watch, &tree);
            next_look = start + (start.elapsed() * LOOK_REST).max(PERIOD);
        }
        let is_last = match ended.recv_timeout(PERIOD) {
            Err(RecvTimeoutError::Timeout) => false,
            Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
        };
        if is_last || Instant::now() >= next_report {
            crate::print_text(&report(nodes, &watch.lock(), &tree))?;
            next_report = Instant::now() + args.report;
        }
        if is_last {
            return Ok(());
        }
    }
}

fn report(nodes: &[NodeId], watch: &Watch, tree: &Tree) -> String {
    let mut text = String::new();
    let on = tree.by_node();
    let mut parts = Vec::new();
    for node in nodes {
        let bytes = on.get(node).copied().unwrap_or(0);
        let free = memory::free_bytes(*node).unwrap_or(0);
        parts.push(format!(
            "node {}: {} of files, {} available",
            node.0,
            HumanBytes(bytes),
            HumanBytes(free)
        ));
    }
    let (files, placed) = tree.counts();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{files} files, {placed} with a policy; {}", parts.join("; "));
    if !tree.is_counted() {
        let _ = writeln!(text, "the files are still being counted: there are more bytes");
    }
    if tree.is_cut() {
        let _ = writeln!(
            text,
            "there are more files than are looked at: {} at most, or {} of each user but root",
            tree::FILES_MAX,
            tree::FILES_MAX / tree::SHARE
        );
    }
    let name = |file: u64| {
        tree.path(file)
            .map_or_else(|| format!("inode {file}"), |path| shown(&path))
    };
    text.push_str(&mover_lines(watch.status(), &name));
    text
}
