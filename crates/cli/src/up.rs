//! `homenode up`: brings a pool up and mounts it.
//!
//! Without `--foreground` the command starts itself again as the server, in a session of its own, and waits on a pipe for
//! `ready` or the reason why not. The server is the same code in both cases.

mod mounting;

use crate::argument;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::mountinfo::shown;
use crate::pool::known;
use crate::progress::Progress;
use crate::serve::{self, Serving};
use crate::signals;
use clap::{Args, Parser};
use homenode::{Data, PoolName, Size};
use mounting::MountingArgs;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGINT;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Bring a pool up and mount it on DIR.
///
/// The mount is a filesystem over the memory of every node: bytes lie on the node of the CPU that first writes them. `homenode down`
/// discards the contents of a pool of memory, as unmounting discards those of a tmpfs. NAME selects a durable pool (`homenode pool
/// create`), which keeps its contents. A kill of its server loses no written byte, or, in a pool with disks, as much as a power
/// cut. A power cut loses at most the unsynced writes of the last seconds (--commit). The server writes its log to /run/homenode, in a file
/// named by the mount's device number; HOMENODE_LOG sets the level (warn, info, debug).
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(allow_missing_positional = true, args_override_self = true)]
pub(crate) struct UpArgs {
    /// Name of a durable pool in `homenode pool list`. Default: a new pool of memory.
    #[arg(value_name = "NAME", conflicts_with_all = ["size_per_node", "nodes", "per_node", "pool"])]
    name: Option<PoolName>,
    /// Empty directory to mount on. The root of a new pool takes its owner and mode from DIR.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Size of each node's member: bytes (512M, 1.5G, 2T) or a share of the node's memory (25%). The pool takes memory as
    /// files fill it. Default: 50%, or the node's free memory if that is less. Memory that other pools have not filled yet counts
    /// as free, so give a size if several pools are up. Only for pools of memory.
    #[arg(long, value_name = "SIZE", value_parser = argument::size, allow_negative_numbers = true)]
    pub(crate) size_per_node: Option<Size>,
    /// Use memory of this node only; may be given several times. Default: every node with memory. Only for pools of memory.
    #[arg(long = "node", value_name = "N", value_parser = argument::one_of_several_nodes, allow_negative_numbers = true)]
    pub(crate) nodes: Vec<u16>,
    /// Limit of memory for names, attributes and block maps, in addition to the members: bytes, or a share of the members' size (25%).
    /// Default: 25%, at least 16M; 50% and at least 64M if the kernel holds the bytes (--data). The pool takes the memory as files need it. A user other than root gets at most half of the memory left.
    #[arg(long, value_name = "SIZE", value_parser = argument::metadata, allow_negative_numbers = true)]
    pub(crate) metadata: Option<Size>,
    /// Seconds between two commits of a durable pool, 1 to 300. A power cut loses at most the unsynced changes of this time. Default: 1, or 5 with disks.
    /// A longer time writes fewer short-lived changes, but frees the space of removed files later. fsync(2) does not wait for a commit.
    #[arg(long, value_name = "SECONDS", value_parser = argument::commit_period)]
    commit: Option<u64>,
    /// Size of a durable pool's cache for its disks (members of kind `block`), in bytes, spread over all nodes with memory. The pool takes the memory at once. Default:
    /// the size given to `homenode pool create --cache`, or a quarter of each node's memory, or half of what is free there if that is less.
    #[arg(long, value_name = "SIZE", value_parser = argument::bytes)]
    pub(crate) cache: Option<u64>,
    /// Durable pool, the same as NAME; for units and scripts.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["size_per_node", "nodes", "per_node"])]
    pool: Option<PoolName>,
    /// Open a durable pool read-only: the server writes nothing to the members, so they may lie on read-only media. Several servers may read a pool if none
    /// writes to it. Changes fail with EROFS. Not possible if a member is a device of persistent memory (/dev/dax0.0).
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Open a durable pool read-only although members are missing: reads of bytes on missing members fail with EIO. Not possible if the pool's log lies
    /// on a missing member, or if a member is a device of persistent memory (/dev/dax0.0).
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Stay in the foreground; SIGINT or SIGTERM unmounts DIR and ends the server.
    #[arg(long)]
    pub(crate) foreground: bool,
    #[command(flatten)]
    pub(crate) mounting: MountingArgs,
    /// Serve as the child that `up` starts.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    detached: bool,
    /// Serve in this mount namespace.
    #[arg(long, hide = true, requires = "detached", value_name = "FILE")]
    pub(crate) namespace: Option<PathBuf>,
    /// End with the thread that started this process, however that ends.
    #[arg(long, hide = true, requires = "detached")]
    with_parent: bool,
    /// Words that these arguments were read from.
    #[arg(skip)]
    pub(crate) words: Vec<OsString>,
}

impl UpArgs {
    /// Sets the words that these arguments were read from.
    pub(crate) fn read_from(self, words: Vec<OsString>) -> Self {
        Self { words, ..self }
    }

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
        if let Some(name) = self.pool()
            && self.mounting.data() == Data::Kernel
        {
            let data = spelled("data");
            fail!(
                "{data} kernel is for pools of memory, and the blocks of the durable pool {name} keep its bytes: leave {data} out"
            );
        }
        self.check_reading(spelled)?;
        self.mounting.check(spelled)
    }

    /// Adds the options in the file of its pool; those of this command line outrank them.
    fn with_options_of_file(&self) -> Result<Self> {
        let Some(name) = self.pool() else {
            return Ok(self.clone());
        };
        let options = known::find(&name)?.map_or_else(Vec::new, |known| known.options);
        if options.is_empty() {
            return Ok(self.clone());
        }
        let file = known::path_of(&name);
        if let Some(word) = options.iter().find(|word| !word.starts_with("--") || word.len() < 3) {
            fail!(
                "options in {}: {word:?} is no option: each is written as \"--name=value\", or \"--name\"",
                file.display()
            );
        }
        const NOT_OF_FILES: [&str; 6] = [
            "--pool",
            "--foreground",
            "--detached",
            "--with-parent",
            "--help",
            "--version",
        ];
        let is_refused = |word: &&String| NOT_OF_FILES.contains(&word.split('=').next().unwrap_or_default());
        if let Some(word) = options.iter().find(is_refused) {
            fail!("options in {}: {word} belongs on a command line", file.display());
        }
        let refusal = |error: clap::Error| {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default();
            Failure::new(format!(
                "options in {}: {}",
                file.display(),
                first.trim_start_matches("error: ")
            ))
        };
        // Each alone: an option without its value would take the word after it.
        for word in &options {
            Again::try_parse_from([word, "--", "DIR"]).map_err(refusal)?;
        }
        let words = options.into_iter().map(OsString::from);
        let words: Vec<OsString> = words.chain(self.words.iter().cloned()).collect();
        match Again::try_parse_from(&words) {
            Ok(Again { up }) => Ok(Self {
                words,
                namespace: self.namespace.clone(),
                ..up
            }),
            Err(error) => Err(refusal(error)),
        }
    }

    /// Whether this is the server that a command has started.
    pub(crate) fn is_started_by_another(&self) -> bool {
        self.detached
    }
}

/// `up` alone.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Again {
    #[command(flatten)]
    up: UpArgs,
}

/// Line of JSON from the server to the command that started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// For the person: a line on standard error.
    Notice(String),
    /// Likewise, and all is well.
    Choice(String),
    /// The mount is there.
    Ready,
    /// It is not.
    Failed(String),
}

pub(crate) fn run(args: &UpArgs) -> Result<()> {
    run_with(args, true)
}

/// [`run`]; what was chosen without being asked for is told only if it `tells_choices`.
pub(crate) fn run_with(args: &UpArgs, tells_choices: bool) -> Result<()> {
    if args.detached {
        return serve_detached(args);
    }
    refuse_lone_name(args)?;
    let with_file = &args.with_options_of_file()?;
    with_file.check(mounting::as_flag)?;
    check_machine()?;
    if args.foreground {
        serve_in_foreground(with_file)
    } else {
        start_server(args, tells_choices)
    }
}

/// Refuses a durable pool's name in the place of a directory: a pool of memory would be mounted, which loses what is written to it; or the two words
/// were swapped.
fn refuse_lone_name(args: &UpArgs) -> Result<()> {
    let name = args.directory.to_str().and_then(|word| word.parse::<PoolName>().ok());
    let Some(name) = name else { return Ok(()) };
    if known::find(&name)?.is_none() {
        return Ok(());
    }
    match args.pool() {
        None => fail!(
            "{name} is a durable pool: `homenode up {name} DIR` mounts it; for a pool of memory on the directory of this name give ./{name}"
        ),
        Some(other) if known::find(&other)?.is_none() => {
            fail!("no pool {other} is known here, but {name} is: `homenode up {name} {other}` mounts it on {other}")
        }
        Some(_) => Ok(()),
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

/// Tells systemd that the service is ready, when that started it as one.
pub(crate) fn tell_systemd() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!("cannot tell systemd that the service is ready ($NOTIFY_SOCKET): {error}");
    }
}

fn serve_in_foreground(args: &UpArgs) -> Result<()> {
    let mut notice = |notice: &str| complain!("homenode: {notice}");
    let mut serving = Serving::start(args, &mut notice)?;
    serving.stay_in_the_terminal();
    serving.follow(&mut notice)?;
    for choice in serving.choices() {
        complain!("homenode: {choice}");
    }
    tell_systemd();
    complain!(
        "homenode: {} is up; {} takes it down",
        shown(serving.directory()),
        if signals::that_end().contains(&SIGINT) {
            "SIGINT (Ctrl-C) or SIGTERM"
        } else {
            "SIGTERM"
        }
    );
    serving.run()
}

/// Starts the server as a process of its own and waits until it is ready.
fn start_server(args: &UpArgs, tells_choices: bool) -> Result<()> {
    let mut command = server();
    if let Some(namespace) = &args.namespace {
        // The server enters it: programs, and what they load, are to be this namespace's.
        command.arg("--namespace").arg(namespace);
    }
    command.args(&args.words);
    let progress = Progress::new(format!("bringing {} up", shown(&args.directory)));
    start(command, &args.directory, tells_choices, &mut |line| progress.say(line)).map(drop)
}

/// Command of a server, without what it serves.
pub(crate) fn server() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("homenode").args(["up", "--detached"]);
    command
}

/// Starts the server of `directory` and waits until it is ready. `say` takes lines for the person, with what was chosen if
/// `tells_choices`.
pub(crate) fn start(
    mut command: Command,
    directory: &Path,
    tells_choices: bool,
    say: &mut dyn FnMut(&str),
) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let cannot = |error: io::Error| Failure::new(format!("cannot start the server: {error}"));
    homenode_linux::process::close_on_exec_from(3).map_err(cannot)?;
    let mut child = command.spawn().map_err(cannot)?;
    let pipe = child
        .stdout
        .take()
        .ok_or_else(|| Failure::new("the server has no pipe to this command"))?;
    for line in BufReader::new(pipe).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Message::Notice(notice)) => say(&format!("homenode: {notice}")),
            Ok(Message::Choice(choice)) if tells_choices => say(&format!("homenode: {choice}")),
            Ok(Message::Choice(_)) => {}
            Ok(Message::Ready) => return Ok(child),
            Ok(Message::Failed(reason)) => {
                // Gone when this command is, so that whoever reacts finds nothing half done.
                let _ = child.wait();
                return Err(Failure::new(reason));
            }
            Err(_) => say(&line),
        }
    }
    let ended = child
        .wait()
        .map_or_else(|error| error.to_string(), |status| status.to_string());
    fail!(
        "the server for {} ended before it was ready ({ended})",
        shown(directory)
    )
}

/// The server's `main`.
fn serve_detached(args: &UpArgs) -> Result<()> {
    if let Some(namespace) = &args.namespace
        && let Err(failure) = enter(namespace)
    {
        // The command prints it.
        let _ = tell(&Message::Failed(failure.to_string()));
        std::process::exit(1);
    }
    // The process was started by the name /proc/self/exe. A name of less than 16 bytes is always taken.
    let _ = rustix::thread::set_name(c"homenode");
    if args.with_parent {
        let tied = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
        tied.cannot("tie the server to the process that started it")?;
    }
    let mut notice = |notice: &str| drop(tell(&Message::Notice(notice.to_owned())));
    let started = args
        .with_options_of_file()
        .and_then(|args| Serving::start(&args, &mut notice));
    let mut serving = match started {
        Ok(serving) => serving,
        Err(failure) => {
            return match tell(&Message::Failed(failure.to_string())) {
                // The command prints it.
                Ok(()) => std::process::exit(1),
                Err(_) => Err(failure),
            };
        }
    };
    // Not before: an automount lets only the process group of its mount(8) reach the directory. Fails only for the leader of a process group, which
    // a process just started is not.
    let _ = rustix::process::setsid();
    serving.leave_the_terminal()?;
    let choices = serving.choices().into_iter().chain([serving.summary()]);
    let mut choices = choices.map(Message::Choice);
    let cannot_tell = |error, serving: &Serving| {
        let name = shown(serving.directory());
        Failure::new(format!(
            "cannot tell the command that started the server for {name}: {error}"
        ))
    };
    let followed = match choices.try_for_each(|choice| tell(&choice)) {
        Ok(()) => serving.follow(&mut notice).inspect_err(|failure| {
            // The command prints it, if it is there.
            let _ = tell(&Message::Failed(failure.to_string()));
        }),
        Err(error) => Err(cannot_tell(error, &serving)),
    };
    let is_known = followed.and_then(|has_devices| match tell(&Message::Ready) {
        // The users of its devices know of it.
        Err(error) if !has_devices => Err(cannot_tell(error, &serving)),
        _ => Ok(()),
    });
    if let Err(failure) = is_known {
        let log = serving.log().clone();
        // Unmounts. Nobody knows of the server, so nobody will look for its log.
        drop(serving);
        log.remove();
        return Err(failure);
    }
    serve::close_the_pipe()?;
    serving.run()
}

/// Moves this process, which has one thread yet, to another mount namespace.
fn enter(path: &Path) -> Result<()> {
    let entered = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|namespace| move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)));
    entered.cannot(format_args!("enter the mount namespace {}", path.display()))
}

fn tell(message: &Message) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut pipe = io::stdout().lock();
    pipe.write_all(&line)?;
    pipe.flush()
}
