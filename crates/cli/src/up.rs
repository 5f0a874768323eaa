//! `homenode up`: brings a pool up and mounts it.
//!
//! Without `--foreground` the command starts itself again as the server, in a session of its own, and waits on a pipe for
//! `ready` or the reason why not. The server is the same code in both cases.

mod mounting;

use crate::argument;
use crate::control;
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use crate::pool::known;
use crate::progress::Progress;
use crate::serve::{self, Serving};
use clap::Args;
use homenode::{PoolName, Size};
use mounting::MountingArgs;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bring a pool up and mount it on DIR.
///
/// The mount is a filesystem over the memory of every node: bytes lie on the node of the CPU that writes them. Its
/// contents go with `homenode down`, as those of a tmpfs go with its unmounting. With NAME it is that durable pool (`homenode pool
/// create`), and its contents stay: after its server was killed all that was written, after a power cut what was synced, and
/// what was written some seconds before (--commit). The server's log is in /run/homenode,
/// named by the mount's device number; HOMENODE_LOG sets its level (warn, info, debug).
#[derive(Args, Clone, Debug)]
#[command(allow_missing_positional = true)]
pub(crate) struct UpArgs {
    /// A durable pool, as `homenode pool list` shows it. Default: a new pool of memory.
    #[arg(value_name = "NAME", conflicts_with_all = ["size_per_node", "nodes", "per_node", "pool"])]
    name: Option<PoolName>,
    /// An empty directory to mount on. Its owner and mode become those of a new pool's root.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Size of each node's member: bytes (512M, 1.5G, 2T) or a share of the node's memory (25%). Memory is taken as
    /// files fill it. Default: 50%, or what is free on the node if that is less; what other pools may still fill counts as
    /// free, so give a size where there are several.
    #[arg(long, value_name = "SIZE", value_parser = argument::size, allow_negative_numbers = true)]
    pub(crate) size_per_node: Option<Size>,
    /// Take memory of this node only; may be given several times. Default: every node with memory.
    #[arg(long = "node", value_name = "N", value_parser = argument::one_of_several_nodes, allow_negative_numbers = true)]
    pub(crate) nodes: Vec<u16>,
    /// Memory that names, attributes and block maps may take besides the members: bytes, or a share of the members' size (25%).
    /// Default: 25%, at least 16M; where files are the kernel's 50%, at least 64M. Taken only as files need it. A user other than root gets at most half of what is left.
    #[arg(long, value_name = "SIZE", value_parser = argument::metadata, allow_negative_numbers = true)]
    pub(crate) metadata: Option<Size>,
    /// Seconds between two commits of a durable pool, 1 to 300: as long may a power cut take back what was not synced. Default: 1, and 5 with disks.
    /// More writes less of what changes again soon, and keeps the room of removed files back for longer. fsync(2) does not wait for a commit.
    #[arg(long, value_name = "SECONDS", value_parser = argument::commit_period)]
    commit: Option<u64>,
    /// Memory of the cache that a durable pool has for its disks (members of kind `block`), in bytes, spread over all nodes with memory. Taken at once. Default:
    /// what `homenode pool create --cache` said, or a quarter of each node's memory.
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    pub(crate) cache: Option<u64>,
    /// A durable pool, as NAME: for units and scripts.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["size_per_node", "nodes", "per_node"])]
    pool: Option<PoolName>,
    /// Open a durable pool to be read only: nothing is written to its members, which may lie on what cannot be written. Several may read a pool, when none
    /// writes. Changes fail with EROFS. Not possible where a member is a device of persistent memory (/dev/dax0.0).
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Open a durable pool of which members are missing, to be read only: what lies on these fails with EIO. Not possible where the pool's log lies
    /// on one of them, or where a member is a device of persistent memory (/dev/dax0.0).
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Stay in the foreground; SIGINT or SIGTERM unmounts and ends.
    #[arg(long)]
    pub(crate) foreground: bool,
    #[command(flatten)]
    pub(crate) mounting: MountingArgs,
    /// Serve as the child that `up` starts.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    detached: bool,
}

impl UpArgs {
    /// The durable pool that is meant.
    pub(crate) fn pool(&self) -> Option<PoolName> {
        self.name.or(self.pool)
    }

    /// Refuses to read a pool that is not there yet. `spelled` makes of an option's name what the person wrote.
    fn check_reading(&self, spelled: fn(&str) -> String) -> Result<()> {
        let given = [("read-only", self.read_only), ("degraded", self.degraded)];
        match given.into_iter().find(|(_, given)| *given) {
            Some((name, _)) if self.pool().is_none() => {
                fail!(
                    "{} is for durable pools: a new pool is empty, so there would be nothing to read",
                    spelled(name)
                )
            }
            _ => Ok(()),
        }
    }

    /// Time between two commits.
    pub(crate) fn commit_period(&self) -> Option<Duration> {
        self.commit.map(Duration::from_secs)
    }

    /// Refuses what contradicts itself. `spelled` makes of an option's name what the person wrote.
    pub(crate) fn check(&self, spelled: fn(&str) -> String) -> Result<()> {
        if self.commit.is_some() && self.pool().is_none() {
            let commit = spelled("commit");
            fail!(
                "{commit} is for durable pools, and a pool of memory commits nothing: name a pool, or leave {commit} out"
            );
        }
        if self.cache.is_some() && self.pool().is_none() {
            let cache = spelled("cache");
            fail!("{cache} is for disks of durable pools: name a pool, or leave {cache} out");
        }
        self.check_reading(spelled)?;
        self.mounting.check(spelled)
    }

    /// Whether this is the server that a command has started.
    pub(crate) fn is_started_by_another(&self) -> bool {
        self.detached
    }
}

/// Line of JSON from the server to the command that started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// For the person: a line on standard error.
    Notice(String),
    /// The mount is there.
    Ready,
    /// It is not.
    Failed(String),
}

pub(crate) fn run(args: &UpArgs) -> Result<()> {
    if args.detached {
        return serve_detached(args);
    }
    args.check(mounting::as_flag)?;
    check_machine()?;
    refuse_lone_name(args)?;
    if args.foreground {
        serve_in_foreground(args)
    } else {
        start_server(args)
    }
}

/// Refuses a durable pool's name in the place of a directory: a pool of memory would be mounted, which loses what is written to it.
fn refuse_lone_name(args: &UpArgs) -> Result<()> {
    let name = args.directory.to_str().and_then(|word| word.parse::<PoolName>().ok());
    match name.filter(|_| args.pool().is_none()) {
        Some(name) if known::find(&name)?.is_some() => fail!(
            "{name} is a durable pool: `homenode up {name} DIR` mounts it; for a pool of memory on the directory of this name give ./{name}"
        ),
        _ => Ok(()),
    }
}

/// Returns an error without CAP_SYS_ADMIN, or if `/dev/fuse` cannot be opened, before anything is begun.
fn check_machine() -> Result<()> {
    const CAP_SYS_ADMIN: u32 = 21;
    if !has_capability(CAP_SYS_ADMIN) {
        fail!("homenode up needs root (CAP_SYS_ADMIN), because it mounts a filesystem for all users: run it with sudo");
    }
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok(()),
        Err(error) => fail!(
            "cannot open /dev/fuse: {error}: load the kernel's fuse module (modprobe fuse), or give the container the device"
        ),
    }
}

/// Whether this process has an effective capability. What cannot be read is found out by the mount itself.
fn has_capability(number: u32) -> bool {
    let Ok(status) = fs::read_to_string("/proc/self/status") else {
        return true;
    };
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_none_or(|mask| mask >> number & 1 == 1)
}

fn serve_in_foreground(args: &UpArgs) -> Result<()> {
    let serving = Serving::start(args, &mut |notice| complain!("homenode: {notice}"))?;
    // To systemd, when that started it as a service.
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!("cannot tell systemd that the mount is there ($NOTIFY_SOCKET): {error}");
    }
    complain!(
        "homenode: {} is up; SIGINT (Ctrl-C) or SIGTERM takes it down",
        shown(serving.directory())
    );
    serving.run()
}

/// Starts the server as a process of its own and waits until it is ready.
fn start_server(args: &UpArgs) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("homenode").arg("up").arg("--detached");
    if let Some(size) = args.size_per_node {
        command.arg(format!("--size-per-node={size}"));
    }
    if let Some(size) = args.metadata {
        command.arg(format!("--metadata={size}"));
    }
    if let Some(seconds) = args.commit {
        command.arg(format!("--commit={seconds}"));
    }
    if let Some(bytes) = args.cache {
        command.arg(format!("--cache={bytes}"));
    }
    command.args(args.nodes.iter().map(|node| format!("--node={node}")));
    command.args(args.mounting.arguments());
    command.args(args.pool().map(|name| format!("--pool={name}")));
    let switches = [("--read-only", args.read_only), ("--degraded", args.degraded)];
    command.args(switches.iter().filter(|(_, given)| *given).map(|(switch, _)| switch));
    command.arg("--").arg(&args.directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let cannot = |error: io::Error| Failure::new(format!("cannot start the server: {error}"));
    homenode_linux::process::close_on_exec_from(3).map_err(cannot)?;
    let mut child = command.spawn().map_err(cannot)?;
    let pipe = child
        .stdout
        .take()
        .ok_or_else(|| Failure::new("the server has no pipe to this command"))?;
    let progress = Progress::new(format!("bringing {} up", shown(&args.directory)));
    for line in BufReader::new(pipe).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Message::Notice(notice)) => progress.say(&format!("homenode: {notice}")),
            Ok(Message::Ready) => return Ok(()),
            Ok(Message::Failed(reason)) => {
                // Gone when this command is, so that whoever reacts finds nothing half done.
                let _ = child.wait();
                return Err(Failure::new(reason));
            }
            Err(_) => progress.say(&line),
        }
    }
    let ended = child
        .wait()
        .map_or_else(|error| error.to_string(), |status| status.to_string());
    fail!(
        "the server for {} ended before it was ready ({ended})",
        shown(&args.directory)
    )
}

/// The server's `main`.
fn serve_detached(args: &UpArgs) -> Result<()> {
    // The process was started by the name /proc/self/exe. A name of less than 16 bytes is always taken.
    let _ = rustix::thread::set_name(c"homenode");
    // Fails only for the leader of a process group, which a process just started is not.
    let _ = rustix::process::setsid();
    let started = Serving::start(args, &mut |notice| drop(tell(&Message::Notice(notice.to_owned()))));
    let serving = match started {
        Ok(serving) => serving,
        Err(failure) => {
            return match tell(&Message::Failed(failure.to_string())) {
                // The command prints it.
                Ok(()) => std::process::exit(1),
                Err(_) => Err(failure),
            };
        }
    };
    serve::leave_the_terminal(serving.device())?;
    if let Err(error) = tell(&Message::Ready) {
        let (name, log) = (shown(serving.directory()), control::log_path(serving.device()));
        // Unmounts. Nobody knows of the server, so nobody will look for its log.
        drop(serving);
        let _ = fs::remove_file(log);
        fail!("cannot tell the command that started the server for {name}: {error}; it is gone");
    }
    serve::close_the_pipe()?;
    serving.run()
}

fn tell(message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut pipe = io::stdout().lock();
    pipe.write_all(&line)?;
    pipe.flush()
}
