//! The directory that the demo's mounts lie in, and what a demo that was killed left of its own.

use crate::directory::clear_dead;
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Start of a temporary directory's name; the process number follows.
const TEMPORARY_PREFIX: &str = "homenode-demo-";
/// Names of the mount points in the demo's directory.
pub(super) const KERNEL: &str = "kernel";
pub(super) const POOL: &str = "pool";
pub(super) const TMPFS: &str = "tmpfs";
/// A file, for the moment until it has no name.
pub(super) const DISK: &str = "disk";

/// The directory that the mounts lie in. Goes when dropped, if the demo made it.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    made: bool,
}

impl Directory {
    pub(super) fn prepare(wanted: Option<&Path>) -> Result<Self> {
        let path = wanted.map_or_else(
            || {
                let temporary = std::env::temp_dir();
                sweep(&temporary);
                temporary.join(format!("{TEMPORARY_PREFIX}{}", std::process::id()))
            },
            Path::to_owned,
        );
        let cannot = |error: io::Error| Failure::new(format!("cannot make {}: {error}", shown(&path)));
        let made = match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && wanted.is_some() => false,
            Err(error) => return Err(cannot(error)),
        };
        let directory = Self {
            path: fs::canonicalize(&path).map_err(cannot)?,
            made,
        };
        if !made {
            clear_leftovers(&directory.path);
        }
        match fs::read_dir(&directory.path).map(|mut entries| entries.next().is_none()) {
            Ok(true) => Ok(directory),
            Ok(false) if holds_only_ours(&directory.path) => fail!(
                "{} still holds what a demo left that was killed: wait until its servers have ended, or `umount -l` what is \
                 mounted in it",
                shown(&path)
            ),
            Ok(false) => fail!("{} is not empty: give an empty directory", shown(&path)),
            Err(error) => fail!("cannot list {}: {error}: give a directory", shown(&path)),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = fs::remove_dir(&self.path)
        {
            complain!("homenode: cannot remove {}: {error}", shown(&self.path));
        }
    }
}

/// Removes the temporary directories of demos that were killed. Others stay: those of demos that run, and those that
/// someone else made.
fn sweep(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().filter_map(io::Result::ok) {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY_PREFIX));
        let Some(process) = process.and_then(|process| process.parse::<u32>().ok()) else {
            continue;
        };
        let own = rustix::process::geteuid().as_raw();
        let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
        if is_own && !Path::new("/proc").join(process.to_string()).exists() {
            clear_leftovers(&entry.path());
            // With something in it, it stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Takes away the mount points that a killed demo left: empty directories, at most with dead mounts on them.
fn clear_leftovers(directory: &Path) {
    if !holds_only_ours(directory) {
        return;
    }
    // It holds nothing that anybody wants.
    let _ = fs::remove_file(directory.join(DISK));
    for name in [KERNEL, POOL, TMPFS] {
        let path = directory.join(name);
        // Not there, as a rule.
        let _ = clear_dead(&path, "", &mut |notice| complain!("homenode: {notice}"));
        // Removes nothing that has something in it, or on it.
        let _ = fs::remove_dir(&path);
    }
}

fn holds_only_ours(directory: &Path) -> bool {
    let ours = |name: &std::ffi::OsStr| [KERNEL, POOL, TMPFS, DISK].iter().any(|one| name == *one);
    let mut entries = fs::read_dir(directory).into_iter().flatten();
    entries.all(|entry| entry.is_ok_and(|entry| ours(&entry.file_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_demo_left_goes_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        for name in [KERNEL, POOL] {
            fs::create_dir(scratch.path().join(name)).unwrap();
        }
        drop(Directory::prepare(Some(scratch.path())).unwrap());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);

        fs::create_dir(scratch.path().join(KERNEL)).unwrap();
        fs::write(scratch.path().join("file"), "mine").unwrap();
        let message = Directory::prepare(Some(scratch.path())).unwrap_err().to_string();
        assert!(message.contains("is not empty"), "{message}");
        assert_eq!(
            fs::read_dir(scratch.path()).unwrap().count(),
            2,
            "all is left as it was"
        );

        fs::rename(scratch.path().join("file"), scratch.path().join("kernel/file")).unwrap();
        let message = Directory::prepare(Some(scratch.path())).unwrap_err().to_string();
        assert!(
            message.contains("was killed") && message.contains("umount -l"),
            "{message}"
        );
        assert!(scratch.path().join("kernel/file").exists());
    }

    #[test]
    fn only_directories_of_processes_that_are_gone_are_swept() {
        let scratch = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = scratch.path().join(name);
            fs::create_dir_all(path.join(POOL)).unwrap();
            path
        };
        // No process has so large a number.
        let (dead, full) = (make("homenode-demo-4000000001"), make("homenode-demo-4000000002"));
        let (own, other) = (
            make(&format!("homenode-demo-{}", std::process::id())),
            make("homenode-demo-x"),
        );
        fs::write(full.join("pool/file"), "").unwrap();
        sweep(scratch.path());
        assert!(!dead.exists());
        assert!(full.join("pool/file").exists() && own.join(POOL).exists() && other.join(POOL).exists());
    }
}
