//! Errors of a file's write-back, told to everybody.
//!
//! The kernel tells of bytes that it could not write, and dropped, once for each open file: to one caller of msync(2) or fsync(2), whosever bytes
//! they were. A second open file of the same inode is asked here behind each of these calls, by one thread at a time: an error that another
//! thread was told comes to light there, or was noted before.

use crate::process::check;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The errors of one file.
#[derive(Debug)]
pub(super) struct Told {
    /// Told of each error once; asked with the lock held.
    file: Mutex<File>,
    /// Set on an overlay, whose own file has no pages: only a sync reaches the errors of the file below.
    is_stacked: bool,
    /// There was one.
    has_failed: AtomicBool,
}

/// Type of an overlay, as statfs(2) tells it.
const OVERLAYFS_MAGIC: rustix::fs::FsWord = 0x794c_7630;

impl Told {
    /// Errors of `file` from now on, and those that nobody was told before.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Self {
            is_stacked: rustix::fs::fstatfs(&again)?.f_type == OVERLAYFS_MAGIC,
            file: Mutex::new(again),
            has_failed: AtomicBool::new(false),
        })
    }

    /// `synced`, the result of a call that made bytes durable, unless some may be lost: then an error, for ever.
    pub(super) fn check(&self, synced: io::Result<()>) -> io::Result<()> {
        let file = self.file.lock();
        let asked = if self.is_stacked {
            rustix::fs::fdatasync(&*file).map_err(io::Error::from)
        } else {
            ask(&file)
        };
        let synced = synced.and(asked);
        if synced.is_err() || self.has_failed.load(Ordering::Relaxed) {
            // Relaxed: below the lock.
            self.has_failed.store(true, Ordering::Relaxed);
            return Err(synced.err().unwrap_or_else(|| io::ErrorKind::Other.into()));
        }
        Ok(())
    }

    /// Whether there was an error.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

/// Asks for errors that this open file was not told, and waits for nothing: no page lies so far behind.
fn ask(file: &File) -> io::Result<()> {
    let far = i64::MAX - 1;
    // SAFETY: the call has no conditions; the descriptor is open.
    check(unsafe { libc::sync_file_range(file.as_raw_fd(), far, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::durable::wants_stable_bytes;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// A tmpfs of 64 MiB with the image of an ext4 that is larger, both mounted, and an overlay on that.
    struct Mounts(tempfile::TempDir);

    fn run(command: &mut Command) {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    impl Mounts {
        fn new() -> Option<Self> {
            let mounts = Self(tempfile::tempdir().unwrap());
            let at = |name: &str| mounts.0.path().join(name);
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(at(""));
            if !mount.status().is_ok_and(|status| status.success()) {
                return None;
            }
            for name in ["disk", "lower", "overlay"] {
                std::fs::create_dir(at(name)).unwrap();
            }
            File::create(at("image")).unwrap().set_len(200 << 20).unwrap();
            // A journal would end with the first error.
            run(Command::new("mkfs.ext4")
                .args(["-q", "-O", "^has_journal"])
                .arg(at("image")));
            run(Command::new("mount")
                .args(["-o", "loop"])
                .args([at("image"), at("disk")]));
            for name in ["disk/upper", "disk/work"] {
                std::fs::create_dir(at(name)).unwrap();
            }
            let layers = "lowerdir=lower,upperdir=disk/upper,workdir=disk/work";
            run(Command::new("mount")
                .args(["-t", "overlay", "none", "-o", layers, "overlay"])
                .current_dir(at("")));
            Some(mounts)
        }
    }

    impl Drop for Mounts {
        fn drop(&mut self) {
            for name in ["overlay", "disk", ""] {
                let mut umount = Command::new("umount");
                let _ = umount
                    .arg("-l")
                    .arg(self.0.path().join(name))
                    .stderr(Stdio::null())
                    .status();
            }
        }
    }

    fn fill(path: &Path) {
        let file = File::create(path).unwrap();
        let mut at = 0;
        for bytes in [1 << 16, 1 << 12] {
            while file.write_all_at(&vec![1; bytes], at).is_ok() {
                at += bytes as u64;
            }
        }
    }

    #[test]
    fn an_error_that_another_caller_was_told_is_found() {
        let Some(mounts) = Mounts::new() else {
            crate::skip("this user, or this container, may not mount");
            return;
        };
        for directory in ["disk", "overlay"] {
            let file = File::create_new(mounts.0.path().join(directory).join("member")).unwrap();
            let told = Told::of(&file).unwrap();
            told.check(Ok(())).unwrap();
            assert_eq!(wants_stable_bytes(&file), directory == "overlay", "{directory}");
            file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
            let full = mounts.0.path().join("full");
            fill(&full);
            assert!(file.sync_data().is_err(), "{directory}: the disk below took everything");
            std::fs::remove_file(full).unwrap();
            assert!(file.sync_data().is_ok(), "{directory}: told once only");
            assert!(told.check(Ok(())).is_err(), "{directory}: told nobody");
            assert!(told.has_failed());
        }
    }
}
