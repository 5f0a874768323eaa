//! A test's own directory in the filesystem under test, and short forms of the calls most tests make.

use crate::mount::{self, Kind};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory of its own for one test, removed at its end.
#[derive(Debug)]
pub(crate) struct Stage {
    dir: PathBuf,
    kind: Kind,
    is_kernel: bool,
}

impl Stage {
    /// `None` where nothing can be mounted.
    pub(crate) fn new() -> Option<Self> {
        Some(Self::on(mount::shared()?))
    }

    /// A stage on a mount of the caller's own.
    pub(crate) fn on(mount: &mount::Mount) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        // Short: a socket's path may have 107 bytes.
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let dir = mount.dir.join(format!("t{}-{serial}", std::process::id()));
        fs::create_dir(&dir).expect("the root of the mount takes a new directory");
        rustix::fs::chmod(&dir, mode(0o755)).expect("its owner may set its mode");
        Self {
            dir,
            kind: mount.kind,
            is_kernel: mount.is_kernel,
        }
    }

    /// Whether this is the reference, tmpfs: for the few places where tmpfs is known to differ.
    pub(crate) fn is_reference(&self) -> bool {
        self.kind == Kind::Reference
    }

    /// Whether bytes lie in a tmpfs: the reference, or files of the kernel.
    pub(crate) fn has_tmpfs_bytes(&self) -> bool {
        self.is_reference() || self.is_kernel
    }

    /// Whether a write to a hole of a large file may fill more than it writes, in pages of up to 2 MiB.
    pub(crate) fn has_large_pages(&self) -> bool {
        self.is_kernel
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.join(name.as_ref())
    }

    /// A new file, mode 0644.
    pub(crate) fn file(&self, name: impl AsRef<OsStr>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, content).expect("a new file can be written");
        path
    }

    /// A new directory, mode 0755.
    pub(crate) fn dir(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).expect("a new directory can be made");
        path
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            removed.expect("everything a test made can be removed");
        }
    }
}

/// The calling test's [`Stage`]; returns from the test where there is none.
macro_rules! stage {
    () => {
        match crate::stage::Stage::new() {
            Some(stage) => stage,
            None => return,
        }
    };
}
pub(crate) use stage;

/// Asserts that a call fails with exactly this errno.
macro_rules! assert_errno {
    ($call:expr, $errno:ident) => {
        match $call {
            Err(error) => assert_eq!(error, rustix::io::Errno::$errno, "{}", stringify!($call)),
            Ok(_) => panic!("{} succeeded; {} expected", stringify!($call), stringify!($errno)),
        }
    };
}
pub(crate) use assert_errno;

/// Runs a program that must succeed; returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program is installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("the program prints UTF-8")
}

pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

/// open(2) with mode 0644; never leaks into children of other tests.
pub(crate) fn open(path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path.as_ref(), flags | OFlags::CLOEXEC, mode(0o644))
}

/// A new file, open for reading and writing.
pub(crate) fn create(path: impl AsRef<Path>) -> OwnedFd {
    open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).expect("a new file can be created")
}

/// open(2) for reading and writing.
pub(crate) fn edit(path: impl AsRef<Path>) -> OwnedFd {
    open(path, OFlags::RDWR).expect("an existing file can be opened")
}

/// The whole content.
pub(crate) fn content(path: impl AsRef<Path>) -> Vec<u8> {
    fs::read(path).expect("the file can be read")
}

/// pread(2) of the C library, which `homenode run` replaces. rustix makes system calls itself.
pub(crate) fn pread(fd: &OwnedFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: `bytes` is a buffer with its length.
    let count = unsafe { libc::pread64(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), offset) };
    usize::try_from(count).map_err(|_| last_errno())
}

/// pwrite(2) of the C library.
pub(crate) fn pwrite(fd: &OwnedFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: `bytes` is a buffer with its length.
    let count = unsafe { libc::pwrite64(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset) };
    usize::try_from(count).map_err(|_| last_errno())
}

/// `length` bytes from `offset`, fewer at the end of the file.
pub(crate) fn read_at(fd: &OwnedFd, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    let mut filled = 0;
    while filled < length {
        let got = pread(fd, &mut bytes[filled..], offset + filled as u64).expect("the file can be read");
        if got == 0 {
            break;
        }
        filled += got;
    }
    bytes.truncate(filled);
    bytes
}

/// Writes all of it.
pub(crate) fn write_at(fd: &OwnedFd, offset: u64, bytes: &[u8]) {
    let mut written = 0;
    while written < bytes.len() {
        let count = pwrite(fd, &bytes[written..], offset + written as u64).expect("the file can be written");
        assert_ne!(count, 0, "a write took nothing");
        written += count;
    }
}

/// Waits up to ten seconds for what the kernel does after a close, on its own time or once another test's child process, forked
/// at that moment, has dropped its copy of the descriptor.
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_secs(10), "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// truncate(2) by path.
pub(crate) fn truncate(path: impl AsRef<Path>, length: i64) -> Result<(), Errno> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_ref().as_os_str().as_bytes()).expect("a path has no NUL");
    // SAFETY: `path` is a string that ends with NUL and lives until the call returns.
    let result = unsafe { libc::truncate(path.as_ptr(), length) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// What the C library's last failed call on this thread left.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("a failed call sets errno")
}
