//! The directory a pool is to be mounted on: is it fit, and is it ours alone?

use crate::control::client::{ConnectError, Connection, refuse_unserved};
use crate::control::{self, DirectoryLock};
use crate::failure::{Cannot, Result, fail};
use crate::holders;
use crate::mountinfo::{Device, Located, MountEntry, absolute, locate, mounts, mounts_inside, shown};
use crate::pool::durable::RESERVED;
use crate::pool::known;
use homenode::PoolName;
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// An empty directory that nothing is mounted on.
#[derive(Debug)]
pub(crate) struct MountDirectory {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    /// A dead mount of ours that is still there, so that programs get errors and write nothing below it.
    pub(crate) guard: Option<Device>,
    /// Keeps device and inode from being reused.
    held: OwnedFd,
    /// Refuses a second `homenode up` on this directory.
    _lock: DirectoryLock,
}

pub(crate) const WHEN_MISSING: &str = "make it first (mkdir -p)";
const TO_LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// In this time a server that runs has told that it does.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// In this time a killed server has gone, on a machine with much to do as well.
const END_TIMEOUT: Duration = Duration::from_secs(6);
/// Dead mounts that may lie upon one another.
const DEAD_MOUNTS_MAX: usize = 16;

/// Makes sure that `directory` can be mounted on, and clears a dead mount of ours there. That of a durable pool stays, with filesystems
/// inside it on the pool's block devices, which are `durable`.
pub(crate) fn prepare(
    directory: &Path,
    durable: Option<&[PathBuf]>,
    notice: &mut dyn FnMut(&str),
) -> Result<MountDirectory> {
    let name = shown(&absolute(directory));
    if let Some(above) = absolute(directory).parent() {
        refuse_unserved(above)?;
    }
    let mut located = find(directory, WHEN_MISSING)?;
    let mut is_dead = server_within(END_TIMEOUT, &located) == Behind::Nobody;
    // A server was killed while it took the place of another one: one dead mount is enough to guard it.
    for _ in 0..DEAD_MOUNTS_MAX {
        // What is mounted inside one goes once the pool is there: then all of them are taken off.
        if !is_dead || durable.is_none() || !lies_on_ours(&located) || Inside::Stays.going(&located).is_err() {
            break;
        }
        clear_one(directory, WHEN_MISSING, &Inside::Stays, notice)?;
        located = find(directory, WHEN_MISSING)?;
        is_dead = server_within(END_TIMEOUT, &located) == Behind::Nobody;
    }
    if is_dead {
        // Told before the pool is opened.
        Inside::StaysBut(durable.unwrap_or_default().to_vec()).going(&located)?;
    }
    if is_dead
        && is_alone(&located)
        && let Some(held) = open_below(&located.path)
    {
        // Locked before the dead mount goes: it may guard the directory for another `up`.
        let mut prepared = lock_empty(located.path, held, &name)?;
        if durable.is_some() {
            prepared.guard = Some(located.mount.device);
        } else {
            prepared.clear(&Inside::Stays, notice)?;
        }
        return Ok(prepared);
    }
    if is_dead {
        located = clear_dead(directory, WHEN_MISSING, &Inside::Stays, notice)?;
    }
    // Before anything is asked of a mount: its server may be stopped.
    refuse_mounted(&located, &name)?;
    let path = located.path;
    let held = match rustix::fs::open(&path, TO_LIST, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOTDIR) => fail!("{name} is not a directory: give an empty directory to mount on"),
        Err(error) => fail!("cannot open {name}: {error}"),
    };
    let prepared = lock_empty(path.clone(), held, &name)?;
    // Again: a mount made before the lock was ours is seen.
    refuse_mounted(&find(&path, "create it")?, &name)?;
    Ok(prepared)
}

/// Whether nothing but homenode mounts is on the directory, as an automount would be.
fn is_alone(located: &Located) -> bool {
    let is_other = |mount: &MountEntry| mount.mount_point == located.path && !mount.is_homenode();
    mounts().is_ok_and(|mounts| !mounts.iter().any(is_other))
}

/// Whether another homenode mount is beneath this one.
fn lies_on_ours(located: &Located) -> bool {
    let is_beneath =
        |one: &MountEntry| one.is_homenode() && one.mount_point == located.path && located.mount.is_on(one);
    mounts().is_ok_and(|mounts| mounts.iter().any(is_beneath))
}

/// Opens the directory below what is mounted on it; `None` where the kernel cannot show it.
fn open_below(path: &Path) -> Option<OwnedFd> {
    let (above, name) = (path.parent()?, path.file_name()?);
    let alone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let above = rustix::mount::open_tree(CWD, above, alone).ok()?;
    rustix::fs::openat(&above, name, TO_LIST | OFlags::NOFOLLOW, Mode::empty()).ok()
}

/// Takes the lock of an empty directory.
fn lock_empty(path: PathBuf, held: OwnedFd, name: &str) -> Result<MountDirectory> {
    // Not by its path, in which its owner may change a part.
    let found = fs::metadata(by_descriptor(&held)).cannot(format_args!("look at {name}"))?;
    let Some(lock) = control::lock_directory((found.dev(), found.ino()))? else {
        fail!("another `homenode up` is working on {name}: wait for it, or choose another directory")
    };
    match first_entry(&held) {
        Ok(None) => {}
        Ok(Some(entry)) => {
            fail!(
                "{name} is not empty (it holds {entry}): give an empty directory, because the mount hides its contents"
            )
        }
        Err(error) => fail!("cannot list {name}: {error}"),
    }
    Ok(MountDirectory {
        uid: found.uid(),
        gid: found.gid(),
        mode: found.mode() & 0o7777,
        identity: (found.dev(), found.ino()),
        path,
        guard: None,
        held,
        _lock: lock,
    })
}

fn by_descriptor(held: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", held.as_raw_fd())
}

/// Name of something in a directory; `None` when it is empty.
fn first_entry(held: &OwnedFd) -> io::Result<Option<String>> {
    let entry = fs::read_dir(by_descriptor(held))?.next().transpose()?;
    Ok(entry.map(|entry| shown(Path::new(&entry.file_name()))))
}

impl MountDirectory {
    /// Makes sure, just before it is mounted on, that it can be still; clears a dead mount of ours there. Tells of what was written there meanwhile:
    /// without the mount more would be.
    pub(crate) fn clear(&self, inside: &Inside, notice: &mut dyn FnMut(&str)) -> Result<()> {
        let name = shown(&self.path);
        refuse_mounted(&clear_dead(&self.path, WHEN_MISSING, inside, notice)?, &name)?;
        if let Ok(Some(written)) = first_entry(&self.held) {
            notice(&format!(
                "{name} holds {written}, which was written while the pool came up: the mount hides it; move it away after `homenode down`, or the next `homenode up` is refused"
            ));
        }
        Ok(())
    }
}

/// Fate of what is mounted inside a dead mount, which goes from its place along with that.
#[derive(Debug)]
pub(crate) enum Inside {
    /// The dead mount stays too, with an error.
    Stays,
    /// All but filesystems on these block devices stays, and mounts of users.
    StaysBut(Vec<PathBuf>),
    Goes,
}

impl Inside {
    /// Whether a mount is of a filesystem on one of the devices.
    fn is_on_device(&self, mount: &MountEntry) -> bool {
        let Self::StaysBut(devices) = self else { return false };
        devices.iter().any(|device| is_filesystem_on(mount, device))
    }

    /// Fails if something is to stay that is inside a dead mount on `directory`.
    pub(crate) fn check(&self, directory: &Path) -> Result<()> {
        let located = find(directory, WHEN_MISSING)?;
        if is_dead(&located) {
            self.going(&located).map(drop)
        } else {
            Ok(())
        }
    }

    /// Gives what goes from inside a dead mount when that does; an error if something is to stay.
    fn going(&self, dead: &Located) -> Result<Vec<MountEntry>> {
        let (name, inside) = (
            shown(&dead.path),
            mounts_inside(&dead.mount).cannot("read the mount table")?,
        );
        let stays = |mount: &&MountEntry| match self {
            Self::Stays => true,
            Self::StaysBut(_) => !mount.is_of_user() && !self.is_on_device(mount),
            Self::Goes => false,
        };
        match inside.iter().rfind(stays) {
            Some(inner) => fail!(
                "the mount on {name} is dead, but {} is mounted inside it: `{} {}` first; if that waits for a device of this pool, `homenode up` the pool on \
                 another directory before, or end the device with `homenode volume detach --force DEVICE`",
                inner.filesystem_type,
                inner.verb(),
                shown(&inner.mount_point)
            ),
            None => Ok(inside),
        }
    }
}

/// Whether a mount is of a filesystem on a block device, or on a partition of it. The mount of btrfs has another number.
fn is_filesystem_on(mount: &MountEntry, device: &Path) -> bool {
    holders::is_on(Path::new(&mount.source), device) || Device::at(device).is_ok_and(|number| number == mount.device)
}

/// Takes dead homenode mounts off `directory`, with a word about it. Gives what is there then. `when_missing` is what to
/// do when there is no such directory.
pub(crate) fn clear_dead(
    directory: &Path,
    when_missing: &str,
    inside: &Inside,
    notice: &mut dyn FnMut(&str),
) -> Result<Located> {
    for _ in 0..DEAD_MOUNTS_MAX {
        if let Some(located) = clear_one(directory, when_missing, inside, notice)? {
            return Ok(located);
        }
    }
    fail!(
        "more than {DEAD_MOUNTS_MAX} dead mounts on {}: unmount them with `umount -l`",
        shown(directory)
    )
}

/// Takes one dead mount off, if there is one; else gives what is there.
fn clear_one(
    directory: &Path,
    when_missing: &str,
    inside: &Inside,
    notice: &mut dyn FnMut(&str),
) -> Result<Option<Located>> {
    let located = find(directory, when_missing)?;
    if server_within(END_TIMEOUT, &located) != Behind::Nobody {
        return Ok(Some(located));
    }
    // A look at all processes, which may have many files: other servers do not wait for it.
    let held = held_memory(&located);
    // Closed when others wait no more: the kernel may write a whole filesystem back then.
    let mut roots = Vec::new();
    let _alone = control::lock()?;
    let located = find(directory, when_missing)?;
    if !is_dead(&located) {
        return Ok(Some(located));
    }
    let name = shown(&located.path);
    let gone = inside.going(&located)?;
    let open = |inner: &MountEntry| rustix::fs::open(&inner.mount_point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    // Others may ask servers that do not answer.
    let is_ours = |inner: &&MountEntry| inner.is_on(&located.mount) && inside.is_on_device(inner);
    roots.extend(gone.iter().filter(is_ours).map(open));
    // Nobody can use it any more, and who still has files open there must not keep it.
    match located.unmount(UnmountFlags::DETACH) {
        Ok(()) => {}
        // It has gone, or a directory above it has another name: look again.
        Err(Errno::INVAL | Errno::NOTDIR | Errno::NOENT) => return Ok(None),
        Err(Errno::PERM) => fail!("cannot clear the dead mount on {name}: run as root"),
        Err(error) => fail!("cannot clear the dead mount on {name}: {error}; try `umount -l` on it"),
    }
    let device = located.mount.device;
    for socket in [control::socket_path(device), control::readers_path(device)] {
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                notice(&format!("cannot remove {}: {error}", socket.display()));
            }
            _ => {}
        }
    }
    // The next server on this device begins a log anew.
    let log = control::log_path(device);
    let kept = log.with_extension("killed.log");
    let log = match fs::rename(&log, &kept) {
        Ok(()) => format!(
            "; its log is {} until the next boot, or until another such server is killed",
            kept.display()
        ),
        Err(_) => String::new(),
    };
    notice(&format!(
        "cleared a dead mount on {name}: its server had been killed; {}{held}{log}",
        fate(&located.mount)
    ));
    for inner in gone {
        let (place, source) = (shown(&inner.mount_point), shown(Path::new(&inner.source)));
        let what = if inner.is_homenode() {
            fate(&inner)
        } else {
            "mount it again".to_owned()
        };
        notice(&format!(
            "{source} was mounted on {place}, inside it, and is not any more: {what}"
        ));
    }
    Ok(None)
}

/// Says who keeps memory of a pool of memory whose server was killed: any holder keeps that of all files of the kernel.
fn held_memory(located: &Located) -> String {
    let source = &located.mount.source;
    let is_of_memory = source.to_str().is_some_and(|name| RESERVED.contains(&name));
    let holders = if is_of_memory { holders::of(located) } else { Vec::new() };
    if holders.is_empty() {
        return String::new();
    }
    format!(
        "; end {}: until then the memory of all its files may stay in use",
        holders.join(", ")
    )
}

/// Says what became of the contents of a mount whose server was killed.
pub(crate) fn fate(mount: &MountEntry) -> String {
    let name = mount.source.to_str().and_then(|name| name.parse::<PoolName>().ok());
    match name {
        Some(name) if RESERVED.contains(&name.as_str()) => "the contents of the pool of memory are lost".to_owned(),
        Some(name) if matches!(known::find(&name), Ok(Some(_))) => {
            format!(
                "the pool {name} keeps all written data (on disks all synced data), and `homenode up {name} DIR` mounts it"
            )
        }
        Some(name) => format!(
            "it was the durable pool {name}, which this machine does not know now: its members keep all written data (on disks all synced data), \
             and `homenode pool import` records it again"
        ),
        None => "the contents of a pool of memory are lost".to_owned(),
    }
}

/// A homenode mount whose server is gone.
pub(crate) fn is_dead(located: &Located) -> bool {
    server_behind(located) == Behind::Nobody
}

/// Server of a homenode mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Its server was killed.
    Nobody,
    /// A server without a socket here, as another program's or another container's, that has not answered in time.
    Silent,
    /// Anything else.
    Server,
}

/// Asks the mount, but not one whose server listens and does not answer (stopped, say).
pub(crate) fn server_behind(located: &Located) -> Behind {
    server_within(ANSWER_TIMEOUT, located)
}

fn server_within(timeout: Duration, located: &Located) -> Behind {
    if !located.mount.is_homenode() || !located.is_mount_point() {
        return Behind::Server;
    }
    let may_answer = match Connection::open(located.mount.device) {
        Ok(mut server) => !server.is_silent(ANSWER_TIMEOUT),
        Err(ConnectError::Dead) => true,
        Err(ConnectError::Other(_)) => false,
    };
    if may_answer {
        by_child(timeout, located)
    } else {
        Behind::Server
    }
}

/// Children that were killed and have not ended, with the mounts that they ask.
static STUCK: Mutex<Vec<(u64, Child)>> = Mutex::new(Vec::new());

/// Has a child ask the mount. A server that is stopped keeps the process that asks, which not even SIGKILL ends while its request is in a
/// ring. A mount with such a child is not asked again until that has ended: viewers ask each second.
fn by_child(timeout: Duration, located: &Located) -> Behind {
    let id = located.mount.id;
    {
        let mut stuck = STUCK.lock();
        stuck.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        if stuck.iter().any(|(mount, _)| *mount == id) {
            return Behind::Silent;
        }
    }
    let mut command = Command::new("/proc/self/exe");
    // A child that stays must keep nobody's directory busy.
    command.arg("ask-mount").arg(&located.path).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return Behind::Server;
    };
    let begun = Instant::now();
    while begun.elapsed() < timeout {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Ok(Some(status)) if status.code() == Some(1) => return Behind::Nobody,
            _ => return Behind::Server,
        }
    }
    // It has ended meanwhile, perhaps.
    let _ = child.kill();
    STUCK.lock().push((id, child));
    Behind::Silent
}

/// Ask a mount; exit with 1 if nobody serves it.
#[derive(clap::Args, Debug)]
pub(crate) struct AskArgs {
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Body of the child that asks a mount.
pub(crate) fn ask(args: &AskArgs) -> Result<()> {
    match rustix::fs::statfs(&args.directory) {
        // The last is what a ring says whose thread has just died.
        Err(error @ (Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)) => {
            fail!("nobody serves {}: {error}", shown(&args.directory))
        }
        _ => Ok(()),
    }
}

/// Whether a path names a symbolic link, whatever that leads to.
pub(crate) fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink())
}

fn find(directory: &Path, when_missing: &str) -> Result<Located> {
    let name = shown(&absolute(directory));
    match locate(directory) {
        Ok(located) => Ok(located),
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_link(directory) => {
            fail!("{name} is a link to what does not exist: make that first, or give another directory")
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fail!("{name} does not exist: {when_missing}")
        }
        Err(error) => fail!("cannot open {name}: {error}"),
    }
}

fn refuse_mounted(located: &Located, name: &str) -> Result<()> {
    // An automount is there to be mounted on.
    if !located.is_mount_point() || located.mount.filesystem_type == "autofs" {
        return Ok(());
    }
    if located.mount.is_homenode() {
        fail!(
            "{name} has a homenode filesystem mounted already: `homenode down` it first, or choose another directory"
        );
    }
    fail!(
        "{name} has a filesystem mounted already ({}): unmount it first, or choose another directory",
        located.mount.filesystem_type
    )
}
