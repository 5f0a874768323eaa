//! The peers: a tmpfs attached nowhere. No mount table shows it, and however the demo ends, the kernel takes it down with
//! the descriptor. For a while it may get a place.

use crate::failure::{Failure, Result};
use crate::mountinfo::shown;
use rustix::fd::OwnedFd;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_string,
    fsmount, fsopen, move_mount, unmount,
};
use std::fs;
use std::path::{Path, PathBuf};

/// A new tmpfs of `bytes`, with `huge=always` if `huge`. Its descriptor is a path to its root.
pub(super) fn mount(bytes: u64, huge: bool) -> std::result::Result<OwnedFd, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "size", bytes.to_string())?;
    fsconfig_set_string(&context, "mode", "0700")?;
    if huge {
        fsconfig_set_string(&context, "huge", "always")?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// A tmpfs that has a place in the mount table, until this is dropped; then it is attached nowhere again.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) path: PathBuf,
}

impl Attached {
    /// Makes the directory `path` and attaches the tmpfs of that root there.
    pub(super) fn new(root: &OwnedFd, path: &Path) -> Result<Self> {
        fs::create_dir(path).map_err(|error| Failure::new(format!("cannot make {}: {error}", shown(path))))?;
        // From here on the directory is removed.
        let attached = Self { path: path.to_owned() };
        move_mount(root, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(|error| Failure::new(format!("cannot mount a tmpfs on {}: {error}", shown(path))))?;
        Ok(attached)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Detached: what was just ended may not have let go of it yet. Not mounted at all when it failed.
        let _ = unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        if let Err(error) = fs::remove_dir(&self.path) {
            complain!("homenode: cannot remove {}: {error}", shown(&self.path));
        }
    }
}
