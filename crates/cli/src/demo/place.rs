//! The directory that the demo's mounts lie in, in a mount table of the demo's own: the kernel takes down what is in it when
//! the demo and its servers are gone, however they end.

use crate::directory::{self, MountDirectory};
use crate::failure::{Cannot, Failure, Result};
use crate::mountinfo::{mounts, shown};
use homenode_linux::process::own_mounts;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Start of a temporary directory's name; the process number follows.
const TEMPORARY_PREFIX: &str = "homenode-demo-";
/// Room for mount points.
const COVER_BYTES: u64 = 1 << 20;

/// The directory that the mounts lie in. Goes when dropped, if the demo made it.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    made: bool,
    /// No other demo and no `homenode up` takes it.
    _lock: MountDirectory,
}

impl Directory {
    pub(super) fn prepare(wanted: Option<&Path>) -> Result<Self> {
        let temporary = std::env::temp_dir();
        let path = wanted.map_or_else(
            || {
                sweep(&temporary);
                temporary.join(format!("{TEMPORARY_PREFIX}{}", std::process::id()))
            },
            Path::to_owned,
        );
        let made = match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && wanted.is_some() => false,
            Err(error) => {
                let advice = wanted.map_or("; `homenode demo DIR` takes a directory of yours", |_| "");
                return Err(Failure::new(format!("cannot make {}: {error}{advice}", shown(&path))));
            }
        };
        let lock = directory::prepare(&path, None, &mut |notice| complain!("homenode: {notice}"))?;
        Ok(Self {
            path: lock.path.clone(),
            made,
            _lock: lock,
        })
    }

    /// Covers it by an empty filesystem, which this thread, and the threads and programs that it starts, see alone. So they do
    /// with whatever they mount from here on. Pools of others are no longer seen, but for those that paths in `needed` are on.
    pub(super) fn cover(&self, needed: &[PathBuf]) -> Result<()> {
        own_mounts().cannot("get a mount table of its own")?;
        let is_needed = |point: &Path| needed.iter().chain([&self.path]).any(|path| path.starts_with(point));
        for mount in mounts().unwrap_or_default() {
            if mount.is_homenode() && !is_needed(&mount.mount_point) {
                // Else `homenode down` would not end its server until the demo ends. It may have gone meanwhile.
                let _ = unmount(&mount.mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            }
        }
        mount_tmpfs(&self.path, COVER_BYTES, "").cannot(format_args!("mount a tmpfs on {}", shown(&self.path)))
    }

    /// A new directory to mount on.
    pub(super) fn make(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).cannot(format_args!("make {}", shown(&path)))?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // With all that is mounted in it. It is not covered when the demo failed early.
        let _ = unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        if self.made
            && let Err(error) = fs::remove_dir(&self.path)
        {
            complain!("homenode: cannot remove {}: {error}", shown(&self.path));
        }
    }
}

/// Mounts a tmpfs of `bytes` with further `options`, which begin with a comma.
pub(super) fn mount_tmpfs(path: &Path, bytes: u64, options: &str) -> rustix::io::Result<()> {
    let options = CString::new(format!("mode=0700,size={bytes}{options}")).expect("the options hold no NUL");
    mount("homenode-demo", path, "tmpfs", MountFlags::empty(), &*options)
}

/// Removes the temporary directories of demos that were killed. Others stay: those that a demo has locked, and those with
/// something in them.
fn sweep(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let is_ours = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(TEMPORARY_PREFIX.as_bytes());
        if is_ours && directory::prepare(&entry.path(), None, &mut |_| {}).is_ok() {
            // It may have gone meanwhile.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_and_unlocked_directories_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = scratch.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (dead, full) = (make("homenode-demo-1"), make("homenode-demo-2"));
        let (held, other) = (make("homenode-demo-3"), make("homenode-up-1"));
        fs::write(full.join("file"), "").unwrap();
        let holder = Directory::prepare(Some(&held)).unwrap();
        let taken = Directory::prepare(Some(&held)).unwrap_err().to_string();
        assert!(taken.contains("choose another directory"), "{taken}");
        sweep(scratch.path());
        assert!(!dead.exists());
        assert!(full.join("file").exists() && held.exists() && other.exists());
        drop(holder);
        assert!(held.exists(), "an existing directory was removed");
    }
}
