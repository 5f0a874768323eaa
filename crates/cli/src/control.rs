//! How commands talk to the server of a mount: a unix socket per mount, one JSON line there, JSON lines back.
//!
//! The socket is named by the device number of the mounted filesystem, so any path on the mount leads to it; the kernel
//! gives a number to one filesystem at a time. Directory and sockets belong to root alone. Where the machine has a group `homenode`, each server has a
//! second socket, on which the group's members may look and change nothing.

pub(crate) mod client;
pub(crate) mod kept;
mod log;
pub(crate) mod protocol;
pub(crate) mod server;
pub(crate) mod tasks;

pub(crate) use log::{Log, log_path};

use crate::failure::{Cannot, Result, fail};
use crate::mountinfo::Device;
use rustix::fs::FlockOperation;
use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};

const DIRECTORY: &str = "/run/homenode";
/// Sockets for readers.
const READERS: &str = "/run/homenode-read";
/// Group of readers.
const GROUP: &str = "homenode";
const SOCKET_SUFFIX: &str = ".sock";

/// Where the server of `device` listens.
pub(crate) fn socket_path(device: Device) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{device}{SOCKET_SUFFIX}"))
}

/// Where the server of `device` listens for readers.
pub(crate) fn readers_path(device: Device) -> PathBuf {
    Path::new(READERS).join(format!("{device}{SOCKET_SUFFIX}"))
}

/// The number of the group of readers, where the machine has one.
fn readers_group() -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(GROUP))
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    };
    groups.lines().find_map(number)
}

/// Makes the directory of readers' sockets; the number of their group. `None` where there is no such group.
pub(crate) fn make_readers_directory() -> io::Result<Option<u32>> {
    let Some(group) = readers_group() else { return Ok(None) };
    DirBuilder::new().recursive(true).mode(0o700).create(READERS)?;
    let found = fs::symlink_metadata(READERS)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{READERS} is not a directory of this user"),
        ));
    }
    chown(READERS, None, Some(group))?;
    fs::set_permissions(READERS, Permissions::from_mode(0o750))?;
    Ok(Some(group))
}

/// The devices that sockets are named for, dead servers' too.
pub(crate) fn devices() -> Result<Vec<Device>> {
    // A user who may not list root's sockets may be a reader.
    let entries = match fs::read_dir(DIRECTORY).or_else(|error| fs::read_dir(READERS).map_err(|_| error)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => fail!(
            "cannot list the servers in {DIRECTORY}: {error}{}",
            hint(&error, To::Look)
        ),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let device = |name: String| name.strip_suffix(SOCKET_SUFFIX)?.parse().ok();
    let mut devices: Vec<Device> = entries.filter_map(name).filter_map(device).collect();
    devices.sort_unstable_by_key(|device| (device.major, device.minor));
    Ok(devices)
}

/// Asks all servers at once: one that is stopped holds up no other.
pub(crate) fn at_once<S: Send, T: Send>(servers: Vec<S>, ask: impl Fn(S) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ask = &ask;
        let spawn = |server| scope.spawn(move || ask(server));
        let asked: Vec<_> = servers.into_iter().map(spawn).collect();
        let answer =
            |asked: ScopedJoinHandle<'_, T>| asked.join().expect("the thread that asks a server does not panic");
        asked.into_iter().map(answer).collect()
    })
}

/// Makes the directory, for root only.
pub(crate) fn make_directory() -> Result<()> {
    let result = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(DIRECTORY)
        .and_then(|()| {
            let found = fs::symlink_metadata(DIRECTORY)?;
            if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
                let why = "it is not a directory of this user";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            if found.mode() & 0o077 != 0 {
                fs::set_permissions(DIRECTORY, Permissions::from_mode(0o700))
            } else {
                Ok(())
            }
        });
    match result {
        Ok(()) => Ok(()),
        Err(error) => fail!("cannot use {DIRECTORY}: {error}{}", hint(&error, To::Change)),
    }
}

/// Keeps others from clearing dead mounts, and from making or removing sockets, until the lock is dropped: what another
/// process is about to replace must not be taken for dead. Held for moments only.
pub(crate) fn lock() -> Result<File> {
    make_directory()?;
    let path = Path::new(DIRECTORY).join("lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path);
    match lock.and_then(|file| {
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map(|()| file)
            .map_err(Into::into)
    }) {
        Ok(file) => Ok(file),
        Err(error) => fail!("cannot lock {}: {error}{}", path.display(), hint(&error, To::Change)),
    }
}

/// Lock on a directory to mount on, held by one process. Dropping it removes its file; a killed process leaves the file, which the next
/// one locks.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    path: PathBuf,
    _file: File,
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // The lock is still held here. A file that stays does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Locks the directory with this device and inode for a mount; `None` if another process has it. Any user who can read the directory could hold
/// flock(2) on the directory itself.
pub(crate) fn lock_directory((device, inode): (u64, u64)) -> Result<Option<DirectoryLock>> {
    make_directory()?;
    let path = Path::new(DIRECTORY).join(format!("{device:x}-{inode:x}.directory"));
    let lock = || loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        // The process that had it may have removed the file between open and lock.
        if fs::metadata(&path).is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.ino())) {
            return Ok(Some(file));
        }
    };
    let locked = lock().cannot(format_args!("lock {}", path.display()))?;
    Ok(locked.map(|file| DirectoryLock {
        path: path.clone(),
        _file: file,
    }))
}

/// Kind of use that a command makes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Look,
    Change,
}

/// Returns a hint how to get permission, if permission was denied; empty for other errors.
pub(crate) fn hint(error: &io::Error, to: To) -> &'static str {
    match to {
        _ if error.kind() != io::ErrorKind::PermissionDenied => "",
        To::Look if readers_group().is_some() => " (run as root, or as a member of the group homenode)",
        To::Look | To::Change => " (run as root)",
    }
}
