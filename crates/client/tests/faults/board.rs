//! Memory that a test and its programs share, in a file beside the mount.

use crate::support::Mounted;
use std::fs::{self, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU64;

const BOARD: &str = "HOMENODE_TEST_BOARD";

/// Numbers, zero at first, and bytes.
#[derive(Clone, Copy)]
pub(super) struct Board {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it stays mapped, and its numbers are atomic.
unsafe impl Send for Board {}
// SAFETY: likewise.
unsafe impl Sync for Board {}

impl Board {
    /// A new board of so many bytes for the programs of a mount.
    pub(super) fn new(mounted: &Mounted, bytes: usize) -> Self {
        let path = Self::path(mounted);
        let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.set_len(bytes as u64).unwrap();
        // Programs of other users reach it.
        fs::set_permissions(mounted.built.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        Self::map(&path)
    }

    pub(super) fn path(mounted: &Mounted) -> PathBuf {
        mounted.built.path().join("board")
    }

    /// Has a program find it.
    pub(super) fn tell(mounted: &Mounted, command: &mut Command) {
        command.env(BOARD, Self::path(mounted));
    }

    /// The board of the test that has started this program.
    pub(super) fn of_test() -> Self {
        Self::map(&PathBuf::from(std::env::var_os(BOARD).unwrap()))
    }

    fn map(path: &PathBuf) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, both, shared, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Self {
            base: base.cast(),
            bytes,
        }
    }

    pub(super) fn number(&self, nth: usize) -> &AtomicU64 {
        assert!(nth < self.bytes / 8);
        // SAFETY: it lies in the mapping, which starts at a page.
        unsafe { &*self.base.cast::<AtomicU64>().add(nth) }
    }

    /// Returns bytes from `at` on. Nobody else uses them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "test and program take turns at them")]
    pub(super) fn bytes(&self, at: usize, bytes: usize) -> &mut [u8] {
        assert!(at + bytes <= self.bytes);
        // SAFETY: they lie in the mapping.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at), bytes) }
    }
}
