//! Errors of a file's write-back, told to everybody.
//!
//! The kernel tells of bytes that it could not write, and dropped, once for each open file: to one caller of msync(2) or fsync(2), whosever bytes
//! they were. A second open file of the same inode is asked here behind each of these calls, by one thread at a time: an error that another
//! thread was told comes to light there, or was noted before.

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
    /// There was one.
    has_failed: AtomicBool,
}

impl Told {
    /// Errors of `file` from now on, and those that nobody was told before.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        Ok(Self {
            file: Mutex::new(again),
            has_failed: AtomicBool::new(false),
        })
    }

    /// `synced`, the result of a call that made bytes durable, unless some may be lost: then an error, for ever.
    pub(super) fn check(&self, synced: io::Result<()>) -> io::Result<()> {
        let file = self.file.lock();
        // No page lies so far behind: nothing is waited for.
        let far = i64::MAX - 1;
        // SAFETY: the call has no conditions; the descriptor is open as long as the file.
        let status = unsafe { libc::sync_file_range(file.as_raw_fd(), far, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
        let synced = synced.and_then(|()| {
            if status == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
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
