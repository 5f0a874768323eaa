//! Mounting and unmounting by the kernel's calls: no fusermount, so root only. A mount is made without a place, and attached once it is served.
//!
//! The mount has `allow_other` (every user, as on any filesystem) and `default_permissions` (the kernel checks modes and
//! ACLs). There is no `max_read`: the size of requests is negotiated. Unless asked otherwise, set-uid programs and device nodes
//! work as on a tmpfs.

use crate::device::Device;
use crate::error::Error;
use crate::options::Options;
use homenode_shared::{MountLine, unescaped};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, major, makedev, minor};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::process::{getegid, geteuid};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The type in /proc/mounts.
const FILESYSTEM_TYPE: &str = "fuse.homenode";
/// The part behind the point.
const SUBTYPE: &str = "homenode";

/// Behaviour of an unmount when the filesystem is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Fails with EBUSY.
    Refuse,
    /// Takes the name away; open files live on until they are closed.
    Detach,
    /// Takes the name away and fails every request from then on with ECONNABORTED.
    Abort,
}

/// A directory to mount on, whatever becomes of its path: its owner, or that of a directory above it, may rename one.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where it was found: absolute, without symbolic links.
    dir: PathBuf,
    /// Open until it is of no use any more, as it keeps the filesystem below busy.
    parent: Mutex<Option<Arc<OwnedFd>>>,
    name: OsString,
}

impl Place {
    /// The directory at `dir`.
    pub(crate) fn open(dir: &Path, options: &Options) -> io::Result<Self> {
        let dir = fs::canonicalize(dir)?;
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
            return Err(Errno::BUSY.into());
        };
        let place = Self {
            parent: Mutex::new(Some(Arc::new(open_directory(CWD, parent)?))),
            name: name.to_owned(),
            dir,
        };
        // Asked of what is mounted on.
        if !options.attached_later {
            place.target(options.directory, None)?;
        }
        Ok(place)
    }

    /// Where it was found.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Nothing is mounted on it any more.
    pub(crate) fn leave(&self) {
        *self.parent.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn parent(&self) -> io::Result<Arc<OwnedFd>> {
        let parent = self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        // As of what is mounted nowhere.
        parent.clone().ok_or(Errno::INVAL.into())
    }

    /// Does something with a path that leads to it, and to what is mounted on it, wherever it is now.
    pub(crate) fn with_path<T>(&self, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let parent = self.parent()?;
        let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
        act(&path.join(&self.name))
    }

    /// The directory that is to be mounted on, or the root of the dead mount that is to be mounted `beneath`.
    fn target(&self, directory: Option<(u64, u64)>, beneath: Option<u64>) -> io::Result<OwnedFd> {
        let fd = open_directory(&*self.parent()?, Path::new(&self.name))?;
        if let Some(dead) = beneath {
            // As of what is mounted nowhere.
            return if device_of(&fd, Path::new(""))? == dead {
                Ok(fd)
            } else {
                Err(Errno::INVAL.into())
            };
        }
        if let Some(expected) = directory {
            let found = rustix::fs::fstat(&fd)?;
            if (found.st_dev, found.st_ino) != expected {
                return Err(io::Error::other("another directory has taken its place meanwhile"));
            }
        }
        Ok(fd)
    }

    /// Device number of whatever is mounted on it.
    pub(crate) fn device(&self) -> io::Result<u64> {
        device_of(&*self.parent()?, Path::new(&self.name))
    }

    /// Whether a mount of ours with this device number is on it, at whatever depth.
    pub(crate) fn has(&self, device: u64) -> io::Result<bool> {
        let Ok(parent) = self.parent() else { return Ok(false) };
        let now = fs::read_link(format!("/proc/self/fd/{}", parent.as_raw_fd()))?.join(&self.name);
        // Bytes, not text: mount points need not be UTF-8.
        let table = fs::read("/proc/self/mountinfo")?;
        Ok(lists(&table, &now, device))
    }

    /// Whether nobody serves what is mounted on it.
    pub(crate) fn is_dead(&self) -> bool {
        // The last is what a ring says whose thread has just died.
        let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
        let asked = self.with_path(|path| Ok(rustix::fs::statfs(path)?));
        asked.is_err_and(|error| {
            dead.iter()
                .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
        })
    }

    pub(crate) fn failed(&self, source: io::Error) -> Error {
        let dir = self.dir.clone();
        Error::Mount { dir, source }
    }
}

/// Device number of what is at a path. Asks the kernel only: the answer needs no living server.
fn device_of(at: impl AsFd, path: &Path) -> io::Result<u64> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(at, path, flags, StatxFlags::empty())?;
    Ok(makedev(found.stx_dev_major, found.stx_dev_minor))
}

fn open_directory(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, path, flags, Mode::empty())?)
}

/// A mount that no path leads to yet. It goes with this.
#[derive(Debug)]
pub(crate) struct Detached(OwnedFd);

impl Detached {
    /// Mounts the connection of `device`.
    pub(crate) fn new(device: &Device, options: &Options) -> io::Result<Self> {
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let keys = [
            ("source", options.source.clone()),
            ("subtype", SUBTYPE.to_owned()),
            ("fd", device.raw().to_string()),
            ("rootmode", format!("{:o}", libc::S_IFDIR)),
            ("user_id", geteuid().to_string()),
            ("group_id", getegid().to_string()),
        ];
        for (key, value) in keys {
            fsconfig_set_string(&context, key, value)?;
        }
        let flags = [
            ("allow_other", true),
            ("default_permissions", true),
            ("ro", options.read_only),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, given)| *given) {
            fsconfig_set_flag(&context, flag)?;
        }
        fsconfig_create(&context)?;
        let attributes = [
            (MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only),
            (MountAttrFlags::MOUNT_ATTR_NOSUID, options.nosuid),
            (MountAttrFlags::MOUNT_ATTR_NODEV, options.nodev),
            (MountAttrFlags::MOUNT_ATTR_NOEXEC, options.noexec),
            (MountAttrFlags::MOUNT_ATTR_NOATIME, options.noatime),
            (MountAttrFlags::MOUNT_ATTR_NODIRATIME, options.nodiratime),
        ];
        let given = attributes.into_iter().filter(|(_, given)| *given);
        let attributes = given.map(|(attribute, _)| attribute).collect();
        Ok(Self(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?))
    }

    /// Device number of the mount.
    pub(crate) fn device(&self) -> io::Result<u64> {
        device_of(&self.0, Path::new(""))
    }

    /// Leads to its root, in this process.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Attaches it to `place`, which has to be this `directory`, or beneath the mount there with this device number.
    pub(crate) fn attach(
        &self,
        place: &Place,
        directory: Option<(u64, u64)>,
        beneath: Option<u64>,
    ) -> Result<(), Error> {
        let mut how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        how.set(MoveMountFlags::MOVE_MOUNT_BENEATH, beneath.is_some());
        let target = place.target(directory, beneath);
        let target = target.map_err(|error| place.failed(error))?;
        move_mount(&self.0, "", &target, "", how).map_err(|errno| place.failed(errno.into()))
    }
}

/// Unmounts what is mounted on `place`, living or dead.
///
/// # Errors
/// [`Error::Unmount`]: EBUSY when files are open and `busy` is to refuse, EINVAL when nothing is mounted there.
pub(crate) fn unmount(place: &Place, busy: Busy) -> Result<(), Error> {
    let flags = UnmountFlags::NOFOLLOW
        | match busy {
            Busy::Refuse => UnmountFlags::empty(),
            Busy::Detach => UnmountFlags::DETACH,
            // FORCE lets FUSE abort the connection before the kernel looks who is using it.
            Busy::Abort => UnmountFlags::FORCE | UnmountFlags::DETACH,
        };
    let unmounted = place.with_path(|path| Ok(rustix::mount::unmount(path, flags)?));
    unmounted.map_err(|source| Error::Unmount {
        dir: place.dir.clone(),
        source,
    })
}

fn lists(table: &[u8], dir: &Path, device: u64) -> bool {
    MountLine::all(table).any(|mount| {
        mount.device == (major(device), minor(device))
            && mount.filesystem_type == FILESYSTEM_TYPE.as_bytes()
            && unescaped(mount.mount_point).eq(dir.as_os_str().as_bytes().iter().copied())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_below_others_or_with_an_odd_name_is_found() {
        let table = b"36 35 0:57 / /a\\040b\\134 rw,noatime master:1 shared:7 - fuse.homenode homenode rw\n\
            40 36 0:58 / /a\\040b\\134 rw - tmpfs none rw\n\
            41 35 0:59 / /c rw - tmpfs none rw\n";
        let listed = |dir: &str, minor| lists(table, Path::new(dir), makedev(0, minor));
        assert!(listed("/a b\\", 57));
        assert!(!listed("/a b\\", 58), "not ours");
        assert!(!listed("/a b\\", 5), "another number");
        assert!(!listed("/a", 57), "another directory");
        assert!(!listed("/c", 59), "not ours");
    }
}
