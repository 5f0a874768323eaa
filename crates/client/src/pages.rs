//! What the server tells of a file, and the pages of words.
//!
//! A page of words is mapped when the first file has a line in it, and stays mapped. It is found by the mount's directory, which /proc/self/mountinfo names; a process that
//! cannot reach either makes system calls.

use homenode_shared::{Line, Words};
use std::ffi::{CStr, c_int};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Pages of words that a process can have: one for each mount, and each user that the process is.
const PAGES_MAX: usize = 16;
/// Lines of a page.
const LINES: usize = 4096;
/// Pieces that an answer tells about, and their size.
pub(crate) const PIECES: u64 = 1024;
const BIT_WORDS: usize = 16;
pub(crate) const PIECE_BYTES: u64 = 64 << 10;
/// statfs(2)'s type of a FUSE mount.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
/// Longest path of a mount's directory.
const PATH_BYTES_MAX: usize = 4096;

/// What is known of a file that can be copied from and to.
pub(crate) struct File {
    pub(crate) line: &'static Line,
    pub(crate) can_write: bool,
    pub(crate) told: Told,
}

/// The server's answer.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    user: u64,
    page: u64,
    line: u64,
    /// The count of the line under which the rest is true.
    pub(crate) cuts: u64,
    /// In bytes.
    pub(crate) size: u64,
    /// The first piece that is told about.
    pub(crate) first: u64,
    /// A bit for each piece, lowest first: it has no hole.
    pub(crate) dense: [u64; BIT_WORDS],
}

/// A page that is mapped, if it has lines. Not an `OnceLock`: a fork(2) in the middle would leave the child waiting.
struct Page {
    device: AtomicU64,
    inode: AtomicU64,
    lines: AtomicPtr<Line>,
}

static PAGES: [Page; PAGES_MAX] = [const {
    Page {
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        lines: AtomicPtr::new(std::ptr::null_mut()),
    }
}; PAGES_MAX];

/// The one device whose files are looked at, 0 for all.
static ONLY: AtomicU64 = AtomicU64::new(0);

/// Leaves files of other devices to system calls.
pub(crate) fn only(device: u64) {
    ONLY.store(device, Ordering::Relaxed);
}

/// Looks at an open file; `None` if it is to be left to system calls.
pub(crate) fn open(fd: c_int, offset: u64) -> Option<File> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for a stat.
    let done = unsafe { libc::fstat(fd, status.as_mut_ptr()) };
    if done != 0 {
        return None;
    }
    // SAFETY: the call has filled it.
    let status = unsafe { status.assume_init() };
    if ![0, status.st_dev].contains(&ONLY.load(Ordering::Relaxed)) {
        return None;
    }
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: there is room for a statfs.
    if status.st_mode & libc::S_IFMT != libc::S_IFREG || unsafe { libc::fstatfs(fd, system.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has filled it.
    if unsafe { system.assume_init() }.f_type != FUSE_SUPER_MAGIC {
        return None;
    }
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let access = flags & libc::O_ACCMODE;
    // O_SYNC contains O_DSYNC.
    let others = libc::O_APPEND | libc::O_DIRECT | libc::O_DSYNC | libc::O_PATH;
    if flags < 0 || flags & others != 0 || access == libc::O_WRONLY {
        return None;
    }
    let told = ask(fd, offset)?;
    Some(File {
        line: line(status.st_dev, &told)?,
        can_write: access == libc::O_RDWR,
        told,
    })
}

/// Asks the server about a file, and its bytes around `offset`.
pub(crate) fn ask(fd: c_int, offset: u64) -> Option<Told> {
    let (mut name, mut value) = ([0_u8; 64], [0_u8; 512]);
    write!(&mut name[..63], "user.homenode.words.{offset}").ok()?;
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    // SAFETY: a string that ends in NUL, and a buffer with its length.
    let bytes = unsafe { libc::fgetxattr(fd, name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let value = value.get(..usize::try_from(bytes).ok()?)?;
    let mut words = std::str::from_utf8(value).ok()?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let mut told = Told {
        user: number()?,
        page: number()?,
        line: number()?,
        cuts: number()?,
        size: number()?,
        first: number()?,
        dense: [0; BIT_WORDS],
    };
    for bits in &mut told.dense {
        *bits = u64::from_str_radix(words.next()?, 16).ok()?;
    }
    Some(told)
}

/// The line of an answer about a file on `device`, whose page is mapped if it is not yet. By one thread at a time.
fn line(device: u64, told: &Told) -> Option<&'static Line> {
    let number = usize::try_from(told.line).ok().filter(|line| *line < LINES)?;
    for page in &PAGES {
        // Relaxed: one thread is here at a time, behind a lock.
        let mut lines = page.lines.load(Ordering::Relaxed);
        if lines.is_null() {
            lines = map(device, told)?.leak().as_ptr().cast_mut();
            page.device.store(device, Ordering::Relaxed);
            page.inode.store(told.page, Ordering::Relaxed);
            page.lines.store(lines, Ordering::Relaxed);
        }
        if (page.device.load(Ordering::Relaxed), page.inode.load(Ordering::Relaxed)) == (device, told.page) {
            // SAFETY: so many lines are mapped there for good.
            return unsafe { lines.wrapping_add(number).as_ref() };
        }
    }
    None
}

fn map(device: u64, told: &Told) -> Option<Words> {
    let mut path = [0_u8; PATH_BYTES_MAX + 64];
    let length = directory_of(device, &mut path[..PATH_BYTES_MAX])?;
    write!(&mut path[length..PATH_BYTES_MAX + 63], "/.homenode.words.{}", told.user).ok()?;
    let file = open_to_read(CStr::from_bytes_until_nul(&path).ok()?)?;
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for a stat.
    if unsafe { libc::fstat(file.as_raw_fd(), status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has filled it.
    let status = unsafe { status.assume_init() };
    if (status.st_dev, status.st_ino) != (device, told.page) {
        return None;
    }
    // SAFETY: it is open as long as `file` lives.
    let borrowed = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
    Words::map(borrowed, LINES, false).ok()
}

/// Opens a file past the functions here.
fn open_to_read(path: &CStr) -> Option<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a string that ends in NUL, and numbers.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: it was opened above, for nobody else.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Writes the directory on which a device's root is mounted; returns the path's length.
fn directory_of(device: u64, path: &mut [u8]) -> Option<usize> {
    let mut wanted = [0_u8; 32];
    write!(&mut wanted[..], "{}:{}", libc::major(device), libc::minor(device)).ok()?;
    let wanted = CStr::from_bytes_until_nul(&wanted).ok()?.to_bytes();
    let file = open_to_read(c"/proc/self/mountinfo")?;
    let (mut line, mut length) = ([0_u8; 2 * PATH_BYTES_MAX], 0);
    let mut buffer = [0_u8; 4096];
    loop {
        // SAFETY: a buffer with its length.
        let read = unsafe { libc::syscall(libc::SYS_read, file.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
        let read = usize::try_from(read).ok().filter(|read| *read > 0)?;
        for byte in &buffer[..read] {
            if *byte != b'\n' {
                if length < line.len() {
                    line[length] = *byte;
                }
                length += 1;
                continue;
            }
            if let Some(found) = line.get(..length).and_then(|line| directory_in(line, wanted, path)) {
                return Some(found);
            }
            length = 0;
        }
    }
}

/// The directory in a line of mountinfo, if that is a mount of a device's root.
fn directory_in(line: &[u8], device: &[u8], path: &mut [u8]) -> Option<usize> {
    // Number, parent, device, root, directory.
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    if fields.next()? != device || fields.next()? != b"/" {
        return None;
    }
    let mut escaped = fields.next()?.iter();
    let mut length = 0;
    while let Some(byte) = escaped.next() {
        let byte = match byte {
            b'\\' => {
                // Three octal digits.
                let digits = [*escaped.next()?, *escaped.next()?, *escaped.next()?];
                digits.iter().fold(0_u8, |byte, digit| byte << 3 | (digit & 7))
            }
            byte => *byte,
        };
        *path.get_mut(length)? = byte;
        length += 1;
    }
    Some(length)
}
