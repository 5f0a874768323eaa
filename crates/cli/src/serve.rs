//! The server: one pool, one mount, one control socket, until someone ends it.
//!
//! However it ends (unmount(8), `homenode down`, SIGTERM, SIGINT, an error while it starts), no mount and no block device is left.
//! After SIGKILL the mount point is dead, and block devices have ended with errors; the next `up` or `down` clears the mount point,
//! and the next `up` what is left of the devices. Users of a durable pool's devices wait, unless it has disks: its next `up` takes the devices up.

use crate::control::{self, Log, server::Socket};
use crate::directory::{self, Inside, MountDirectory, WHEN_MISSING};
use crate::end_disk;
use crate::failure::{Cannot, Failure, Result, fail};
use crate::handler::{Exports, Note, PoolHandler};
use crate::mount_helper;
use crate::mountinfo::{Device, mount_point, shown};
use crate::pool::{known, leaving};
use crate::signals;
use crate::status::size;
use crate::up::UpArgs;
use crate::waiting;
use homenode::mover::MoverMode;
use homenode::{
    ChosenData, ChosenTransport, Data, Error, MEMBER_BYTES_MIN, MemberKind, MemberStatus, Mount, NodeId, Owner, Pool,
    PoolOptions, Size,
};
use homenode_linux::heap::Heap;
use homenode_linux::memory::MemberFileError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// Longest wait for commands' requests under way when the server ends.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that requests get to end after the mount was taken away from under its users, and volumes that are being detached.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(5);

/// How long memory that was freed may stay in the heap.
const HEAP_PERIOD: Duration = Duration::from_secs(5);

/// Pause between two tries to unmount, in which another process may leave or unmount the mount.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A mounted pool that answers.
#[derive(Debug)]
pub(crate) struct Serving {
    directory: PathBuf,
    /// Its lock as long as a dead mount is on it, and this one is not attached.
    guarded: Option<MountDirectory>,
    /// Block devices that the last server left.
    waiting: Vec<PathBuf>,
    device: Device,
    // Dropped in this order: no more commands, then the volumes' devices, then the mount, then the pool.
    socket: Socket,
    exports: Exported,
    mount: Mounted,
    pool: Pool,
    signals: Signals,
    log: Log,
    log_file: File,
}

/// The mount, shared with the threads that answer commands. Whatever goes wrong here, it is gone when this is.
#[derive(Debug)]
struct Mounted(Arc<Mount>);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.0.stop() {
            tracing::warn!("{error}");
        }
    }
}

/// The volumes that are block devices, shared likewise.
#[derive(Debug)]
struct Exported(Arc<Exports>);

impl Drop for Exported {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

enum Event {
    Signal(i32),
    /// Unmounted by someone, or broken.
    Ended(Option<String>),
}

/// Fails where nobody wants the mount any more: a signal has come, or the command has ended that started this server.
fn check_wanted(args: &UpArgs, signals: &mut Signals, directory: &Path) -> Result<()> {
    if let Some(signal) = signals.pending().next() {
        fail!("interrupted by signal {signal} before {} was mounted", shown(directory));
    }
    let mut reader = [PollFd::from_borrowed_fd(rustix::stdio::stdout(), PollFlags::empty())];
    let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
    if args.is_started_by_another() && poll(&mut reader, now).is_ok_and(|ready| ready > 0) {
        fail!(
            "the command that brings {} up has ended before it was mounted",
            shown(directory)
        );
    }
    Ok(())
}

/// Block devices that the last server of the pool left, and this one takes up: not one that only reads.
fn waiting_for(args: &UpArgs, uuid: Option<u128>) -> Vec<PathBuf> {
    let waiting = uuid.filter(|_| !args.read_only).map(waiting::of_pool);
    let devices = waiting.iter().flatten();
    devices.map(|device| device.device().to_owned()).collect()
}

/// Says why the mover does nothing, or less than it was asked for.
fn tell_of_mover(mount: &Mount, mode: MoverMode, notice: &mut dyn FnMut(&str)) {
    match mount.mover() {
        Some(mover) => {
            if let Some(why) = mover.not_seen {
                notice(&format!("mover {mode}: reads and writes are not counted: {why}"));
            }
        }
        None if mode == MoverMode::On => {
            notice(
                "mover on: nothing to do: it moves files of the kernel (--data kernel) on a machine with several nodes",
            );
        }
        None => {}
    }
}

impl Serving {
    /// Brings everything up. `notice` takes what a person should know although it is no error.
    pub(crate) fn start(args: &UpArgs, notice: &mut dyn FnMut(&str)) -> Result<Self> {
        // From here on a signal is a message, so that none of them leaves a mount behind.
        let mut signals = Signals::new(signals::that_end()).cannot("listen for signals")?;
        // A limit on the size of files (ulimit -f) makes writes to members fail, and does not end the server.
        signal_hook::flag::register(SIGXFSZ, Arc::default()).cannot("set an action for SIGXFSZ")?;
        // What a dead mount of a pool of memory keeps the new one is to have.
        let uuid = args.pool().as_ref().and_then(known::uuid_of);
        let waiting = waiting_for(args, uuid);
        let guards = args.pool().is_some();
        let directory = directory::prepare(&args.directory, guards.then_some(&*waiting), notice)?;
        open_as_many_as_may_be();
        // So that the server keeps no other filesystem busy.
        std::env::set_current_dir("/").cannot("go to /")?;
        let members = args.pool().as_ref().map(known::members_of).transpose()?;
        let options = PoolOptions {
            size_per_node: args.size_per_node,
            metadata: args.metadata,
            nodes: args.nodes.iter().copied().map(NodeId).collect(),
            owner: Some(Owner {
                uid: directory.uid,
                gid: directory.gid,
            }),
            root_mode: Some(directory.mode),
            read_only: args.read_only,
            degraded: args.degraded,
            commit_period: args.commit_period(),
            cache: args.cache.or_else(|| known::cache_of(args.pool().as_ref()?)),
            // Files of the kernel need no blocks of the pool: whether there are such the mount will tell.
            populate_ahead: (args.mounting.data() != Data::Pool).then_some(Size::Bytes(MEMBER_BYTES_MIN)),
            ..PoolOptions::default()
        };
        clear_dead_devices(notice);
        homenode_linux::ublk::end_by("/proc/self/exe", end_disk::VERB);
        let note = Note::new(args.pool());
        let pool = match &members {
            Some(members) => {
                let pool = open(members, uuid, &options)?;
                if let Some(name) = args.pool()
                    && known::uuid_of(&name) != uuid
                {
                    fail!(
                        "the pool {name} was exported, or another one got its name, while it came up: `homenode pool list` lists known pools"
                    );
                }
                tell_of_cache(args, &pool, notice);
                if !pool.is_read_only() {
                    forget_others(&pool, &note, members, notice);
                }
                pool
            }
            None => Pool::create(&options)?,
        };
        if args.mounting.per_node {
            make_directory_for_each_node(&pool, directory.mode)?;
        }
        let mut mounting = args.mounting.options();
        if let Some(name) = args.pool() {
            mounting.source = name.to_string();
        }
        mounting.directory = Some(directory.identity);
        check_wanted(args, &mut signals, &directory.path)?;
        mounting.attached_later = directory.guard.is_some();
        if directory.guard.is_none() {
            directory.clear(&Inside::Stays, notice)?;
        }
        let mount = Mounted(Arc::new(pool.mount_with(&directory.path, &mounting)?));
        if mount.0.data().data == Data::Pool {
            pool.set_populate_ahead(None);
        }
        // Not by the path: its owner may have changed a part of it meanwhile.
        let device = Device::from(mount.0.device());
        let mode = args.mounting.mover();
        if let Err(error) = mount.0.watch(mode) {
            notice(&format!("mover off: {error}"));
        }
        tell_of_mover(&mount.0, mode, notice);
        let exports = Exported(Arc::default());
        let kept = pool.clone();
        let handler = Arc::new(PoolHandler {
            pool,
            note,
            options: mount_helper::options_of(&args.words),
            mount: Arc::clone(&mount.0),
            device,
            exports: Arc::clone(&exports.0),
            sampler: OnceLock::new(),
            looking: parking_lot::Mutex::default(),
        });
        handler.sample()?;
        let socket = Socket::open(device, handler)?;
        let (log, log_file) = Log::begin(device)?;
        Ok(Self {
            directory: directory.path.clone(),
            guarded: directory.guard.is_some().then_some(directory),
            waiting,
            device,
            socket,
            exports,
            mount,
            pool: kept,
            signals,
            log,
            log_file,
        })
    }

    /// Follows on a killed server of this pool: gets the place of its mount, and takes its block devices up, last, as they end with this server. Whether
    /// there are devices.
    ///
    /// # Errors
    /// When the place cannot be had and there are no devices: users of a device are served all the same.
    pub(crate) fn follow(&mut self, notice: &mut dyn FnMut(&str)) -> Result<bool> {
        // Before the dead mount goes: a filesystem on such a device may be mounted inside, and is written then.
        let has_devices = self.exports.0.take_up_all(&self.pool, &self.directory, notice);
        let Some(place) = self.guarded.take() else {
            return Ok(has_devices);
        };
        match self.take_place(&place, notice) {
            Err(failure) if has_devices => notice(&format!(
                "the pool's devices are served, but the pool is not to be had on {0}: {failure}; `umount -l {0}`, then `homenode down {0}`, if it is there, or end the server",
                shown(&self.directory)
            )),
            taken => taken?,
        }
        Ok(has_devices)
    }

    /// Attaches the mount in the place of the dead one, which goes.
    fn take_place(&self, place: &MountDirectory, notice: &mut dyn FnMut(&str)) -> Result<()> {
        let still_waits = waiting::all();
        let is_served = |device: &&PathBuf| still_waits.iter().all(|one| one.device() != device.as_path());
        let inside = Inside::StaysBut(self.waiting.iter().filter(is_served).cloned().collect());
        // Now: a refusal leaves one dead mount.
        inside.check(&self.directory)?;
        match self.mount.0.attach(place.guard.map(u64::from)) {
            Ok(()) => {}
            // Linux before 6.5, or somebody has taken the dead mount off.
            Err(error) if error.errno() == Errno::INVAL.raw_os_error() => {
                place.clear(&inside, notice)?;
                return Ok(self.mount.0.attach(None)?);
            }
            Err(error) => return Err(error.into()),
        }
        let located = directory::clear_dead(&self.directory, WHEN_MISSING, &inside, notice)?;
        if located.mount.device == self.device {
            return Ok(());
        }
        fail!(
            "the dead mount on {} is still there, and does not answer",
            shown(&self.directory)
        )
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Choices that were made, with their reasons, a line for each.
    pub(crate) fn choices(&self) -> [String; 2] {
        let ChosenTransport { transport, reason, .. } = self.mount.0.transport();
        let ChosenData { data, reason: why, .. } = self.mount.0.data();
        [
            format!("transport {transport}: {reason}"),
            format!("data {data}: {why}"),
        ]
    }

    /// Says how large the pool is, and where its log is.
    pub(crate) fn summary(&self) -> String {
        let status = self.pool.status();
        let nodes = status.nodes.iter().filter(|node| node.capacity_bytes > 0).count();
        format!(
            "{} is up: {} on {nodes} node{}; its log is {}",
            shown(&self.directory),
            size(status.capacity_bytes),
            if nodes == 1 { "" } else { "s" },
            control::log_path(self.device).display()
        )
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// From here on what is logged, and the text of a panic, goes to the log file.
    pub(crate) fn leave_the_terminal(&self) -> Result<()> {
        let what = format!("write the log {}", control::log_path(self.device).display());
        rustix::stdio::dup2_stderr(&self.log_file).cannot(what)
    }

    /// Says in the log file that messages go to standard error.
    pub(crate) fn stay_in_the_terminal(&self) {
        let process = std::process::id();
        let line = format!(
            "process {process} serves in the foreground: its messages are on its standard error, those of a service in the journal\n"
        );
        // A log without that line harms nobody.
        let _ = (&self.log_file).write_all(line.as_bytes());
    }

    /// Serves until it is unmounted or told to end by a signal.
    pub(crate) fn run(self) -> Result<()> {
        let Self {
            directory,
            guarded: _,
            waiting: _,
            device,
            socket,
            exports,
            mount,
            pool,
            mut signals,
            log,
            log_file: _,
        } = self;
        let (events, next) = mpsc::channel();
        let waiting = (events.clone(), Arc::clone(&mount.0));
        spawn("unmounted", move || {
            let (events, mount) = waiting;
            let broken = mount.wait().err().map(|error| error.to_string());
            // Nobody to tell: the server is ending already.
            let _ = events.send(Event::Ended(broken));
        })?;
        spawn("signals", move || {
            for signal in signals.forever() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
        tracing::info!("{} is up", shown(&directory));
        spare_from_oom_killer();
        let mut heap = Heap::new();
        let event = loop {
            match next.recv_timeout(HEAP_PERIOD) {
                Ok(event) => break event,
                Err(RecvTimeoutError::Timeout) => {
                    heap.give_back(pool.metadata_bytes());
                    exports.0.end_failed();
                }
                Err(RecvTimeoutError::Disconnected) => fail!("the threads that watch the mount are gone"),
            }
        };
        // Their users get errors. Before the mount: a volume's filesystem may be mounted inside it.
        let detached = exports.0.detach_all();
        let result = match event {
            Event::Signal(signal) => {
                tracing::info!("signal {signal}: taking {} down", shown(&directory));
                unmount(&mount.0, device)
            }
            Event::Ended(None) => Ok(()),
            Event::Ended(Some(reason)) => Err(Failure::new(reason)),
        };
        socket.finish(LAST_REQUESTS_TIMEOUT);
        drop(socket);
        if result.is_err()
            && let Err(error) = mount.0.stop()
        {
            tracing::warn!("{error}");
        }
        // Nobody writes any more, or the pool stays as after a crash.
        let put_away = if detached.all && (result.is_ok() || mount.0.ends_within(END_TIMEOUT)) {
            pool.put_away().map_err(Failure::from)
        } else {
            Err(Failure::new(
                "the pool is not closed cleanly, as some requests have not ended: it is as after a crash",
            ))
        };
        if let (Err(_), Err(failure)) = (&result, &put_away) {
            tracing::error!("{failure}");
        }
        let failed = detached.failed.join("; ");
        let all_well = if failed.is_empty() {
            Ok(())
        } else {
            Err(Failure::new(failed))
        };
        let result = result.and(put_away).and(all_well);
        // This process ends: holders of the mount keep the memory of their own files alone.
        pool.give_up_files();
        if result.is_ok() {
            tracing::info!("{} is down", shown(&directory));
            log.remove();
        }
        result
    }
}

/// Opens a durable pool. What may wait for it: users of its block devices, which its last server left.
fn open(members: &[PathBuf], uuid: Option<u128>, options: &PoolOptions) -> Result<Pool> {
    let waiting = uuid.map(waiting::of_pool).unwrap_or_default();
    if !waiting.is_empty() {
        // Memory may be full of what is to be written to them: what this thread needs must not wait for that.
        homenode_linux::process::serve_writes();
    }
    leaving::wait(|| Pool::open_on(members, options)).map_err(|error| {
        let remedy = remedy_for_missing(&error).filter(|_| !options.degraded);
        let mut message = Failure::from(error).to_string();
        if let Some(remedy) = remedy {
            message.push_str(remedy);
            if members.len() > 1 {
                message.push_str(", and --degraded (`-o degraded`) reads the others, if the log is on them");
            }
        }
        for device in &waiting {
            message.push_str(&format!("; {}: {}", waiting::line(device), waiting::remedy(device)));
        }
        Failure::new(message)
    })
}

/// Advice for when members of a pool are not there, to be put behind the error.
pub(crate) fn remedy_for_missing(error: &Error) -> Option<&'static str> {
    let is_missing = match error {
        Error::MissingMembers(_) => true,
        Error::MemberFile(MemberFileError::Io { source, .. }) => source.kind() == ErrorKind::NotFound,
        _ => false,
    };
    is_missing.then_some("; mount the disk that it is on, if that is not mounted; `homenode pool import MEMBER…` finds members that have moved")
}

/// Says that a cache that was asked for is of no use.
fn tell_of_cache(args: &UpArgs, pool: &Pool, notice: &mut dyn FnMut(&str)) {
    let is_disk = |member: &MemberStatus| member.kind == MemberKind::Block;
    if args.cache.is_some() && !pool.status().members.iter().any(is_disk) {
        notice("cache: nothing is cached, as no member is a disk (of kind block)");
    }
}

/// Forgets files that are known as a pool's, and that the pool does not list: its server ended while they were added or taken out.
fn forget_others(pool: &Pool, note: &Note, known: &[PathBuf], notice: &mut dyn FnMut(&str)) {
    let files = pool.files();
    let others = known.iter().filter(|path| !files.contains(path));
    for path in others.clone() {
        notice(&format!(
            "{} is not a member of the pool, and is removed from the list of members here: the server ended while the member was added or removed; add it again, or delete it",
            shown(path)
        ));
    }
    if others.count() > 0 {
        note.write(pool);
    }
}

/// Clears the block devices of killed servers. A failure is only a notice: the pool works without this step.
fn clear_dead_devices(notice: &mut dyn FnMut(&str)) {
    match homenode::clear_dead_exports() {
        Ok(devices) => {
            for device in devices {
                notice(&format!(
                    "cleared the dead block device {}: its server had been killed",
                    device.display()
                ));
            }
        }
        Err(error) => notice(&error.to_string()),
    }
}

/// Each is bound to its node by a placement policy. What is made there later inherits it.
fn make_directory_for_each_node(pool: &Pool, mode: u32) -> Result<()> {
    let homes: BTreeSet<u16> = pool.status().members.iter().map(|member| member.home.0).collect();
    for home in homes {
        let name = format!("node{home}");
        pool.create_dir(&name)?;
        pool.set_permissions(&name, mode)?;
        pool.set_xattr(&name, "user.homenode.policy", format!("node:{home}").as_bytes())?;
    }
    Ok(())
}

/// Raises the limit of open files as far as it may be: queues of block devices have some descriptors each.
fn open_as_many_as_may_be() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Fails nowhere, or leaves what was.
    let _ = setrlimit(Resource::Nofile, most);
}

/// The pool's memory counts as this process's, so it would be the first to go, and everything in the pool with it.
fn spare_from_oom_killer() {
    let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") else {
        return;
    };
    let text = format!("the kernel may end this server when memory runs out: {error}");
    // Containers forbid it each time, and nobody there can change that.
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => tracing::debug!("{text}"),
        _ => tracing::warn!("{text}"),
    }
}

/// Takes the mount down, from under its users if need be.
fn unmount(mount: &Mount, device: Device) -> Result<()> {
    let unmount = || mount.unmount(false);
    let unmounted = unmount().or_else(|_| {
        // Someone else is unmounting it, or a process that used it is just ending.
        thread::sleep(BUSY_PAUSE);
        unmount()
    });
    match unmounted {
        Ok(()) => Ok(()),
        Err(error) => {
            if mount_point(device).is_some() {
                tracing::warn!("{error}; it is detached now, and calls on files that are open there fail");
            }
            match mount.stop() {
                // Detached before, by `down --lazy`: what is still open gets errors once this process is gone.
                Err(_) if mount_point(device).is_none() => Ok(()),
                stopped => Ok(stopped?),
            }
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = thread::Builder::new().name(name.into()).spawn(run);
    started.map(drop).cannot("start a thread")
}

/// The command that started the server has all it waits for.
pub(crate) fn close_the_pipe() -> Result<()> {
    let null = File::options().write(true).open("/dev/null").cannot("open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).cannot("close the pipe")
}
