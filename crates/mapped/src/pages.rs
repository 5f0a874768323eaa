//! Answers of the server about a file, and the pages of words.
//!
//! A page of words is mapped as long as a file that is mapped has a line in it. It is found by the mount's directory, which /proc/self/mountinfo names; a process that
//! cannot reach either makes system calls.

use crate::apart::apart;
use crate::statistics::Why;
use crate::{appending, attributes};
use homenode_shared::{LINES, Line, MountLine, PIECE_WORDS, Words, unescaped};
use std::ffi::{CStr, c_int};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Pages of words that a process can have: one for each mount, and each user that the process is.
const PAGES_MAX: usize = 16;
/// statfs(2)'s type of a FUSE mount.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
/// Longest path of a mount's directory.
const PATH_BYTES_MAX: usize = 4096;

/// A file that can be copied from and to.
pub(crate) struct File {
    pub(crate) line: &'static Line,
    /// Where its page is: see [`let_go`].
    pub(crate) place: usize,
    pub(crate) can_write: bool,
    pub(crate) inode: u64,
    pub(crate) told: Told,
}

/// File behind a descriptor, as the kernel tells without the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    device: u64,
    pub(crate) inode: u64,
    can_write: bool,
}

/// Answer to the first question about a descriptor, and a mapping of the page, if there was none.
pub(crate) struct Asked {
    found: Found,
    told: Told,
    page: Option<Words>,
}

impl Asked {
    /// Whether the page was mapped already.
    pub(crate) fn was_mapped(&self) -> bool {
        self.page.is_none()
    }
}

/// The server's answer.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    user: u64,
    /// The inode of the page, and the line in it.
    pub(crate) page: u64,
    pub(crate) line: u64,
    /// The count of the line under which the rest is true.
    pub(crate) cuts: u64,
    /// In bytes.
    pub(crate) size: u64,
    /// The first piece that is told about.
    pub(crate) first: u64,
    /// A bit for each piece, lowest first: it has no hole.
    pub(crate) dense: [u64; PIECE_WORDS],
}

/// A page that is mapped, if it has lines. Not an `OnceLock`: a fork(2) in the middle would leave the child waiting.
struct Page {
    device: AtomicU64,
    inode: AtomicU64,
    lines: AtomicPtr<Line>,
    /// Mappings of files with a line in it. Without any it is unmapped, as it would keep the mount busy.
    users: AtomicUsize,
}

static PAGES: [Page; PAGES_MAX] = [const {
    Page {
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        lines: AtomicPtr::new(std::ptr::null_mut()),
        users: AtomicUsize::new(0),
    }
}; PAGES_MAX];

/// The one device whose files are looked at, 0 for all.
static ONLY: AtomicU64 = AtomicU64::new(0);

/// Leaves files of other devices to system calls.
pub fn only(device: u64) {
    ONLY.store(device, Ordering::Relaxed);
}

/// Looks at a descriptor; the reason if it is to be left to system calls. Does not ask the server.
pub(crate) fn look(fd: c_int) -> Result<Found, Why> {
    let status = attributes::known(
        fd,
        c"".as_ptr(),
        libc::AT_EMPTY_PATH,
        libc::STATX_TYPE | libc::STATX_INO,
    )
    .ok_or(Why::NoFile)?;
    let device = libc::makedev(status.stx_dev_major, status.stx_dev_minor);
    if u32::from(status.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return Err(Why::NoFile);
    }
    if ![0, device].contains(&ONLY.load(Ordering::Relaxed)) {
        return Err(Why::OtherDevice);
    }
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let access = flags & libc::O_ACCMODE;
    // O_SYNC contains O_DSYNC.
    let unfit = [
        (libc::O_PATH, Why::NoFile),
        (libc::O_APPEND, Why::Appends),
        (libc::O_DIRECT, Why::Direct),
        (libc::O_DSYNC, Why::Synchronous),
    ];
    match unfit.iter().find(|(flag, _)| flags & flag != 0) {
        _ if flags < 0 => return Err(Why::NoFile),
        Some((_, why)) => return Err(*why),
        None if access == libc::O_WRONLY => return Err(Why::WriteOnly),
        None if appending::may_append(device, status.stx_ino) => return Err(Why::Appends),
        None => {}
    }
    Ok(Found {
        device,
        inode: status.stx_ino,
        can_write: access == libc::O_RDWR && has_no_limit(),
    })
}

/// Whether files may be as large as they can. A limit holds for writes below a file's end, too.
fn has_no_limit() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: there is room for a limit.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    done == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// Asks about a descriptor that nothing is known of.
pub(crate) fn ask_first(fd: c_int, found: &Found, offset: u64) -> Result<Asked, Why> {
    if !is_used(found.device) && !is_fuse(fd) {
        return Err(Why::NoPool);
    }
    let told = ask(fd, offset).ok_or(Why::NotTold)?;
    // Others may map or unmap it meanwhile: then it is done with a later use.
    let page = match PAGES.iter().any(|page| page.is(found.device, &told)) {
        true => None,
        false => {
            let mut page = None;
            let is_done = apart(|| page = map_apart(found.device, &told));
            Some(page.filter(|_| is_done).ok_or(Why::NotMapped)?)
        }
    };
    Ok(Asked {
        found: *found,
        told,
        page,
    })
}

/// Whether files on a device are mapped.
pub(crate) fn is_used(device: u64) -> bool {
    PAGES.iter().any(|page| page.is_of(device))
}

/// Whether files on any device are mapped.
pub(crate) fn is_any_used() -> bool {
    let is_mapped = |page: &Page| !page.lines.load(Ordering::Relaxed).is_null();
    PAGES.iter().any(is_mapped)
}

/// Whether a descriptor is of a FUSE mount; only those can be of a pool.
pub(crate) fn is_fuse(fd: c_int) -> bool {
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: there is room for a statfs.
    let done = unsafe { libc::fstatfs(fd, system.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    done == 0 && unsafe { system.assume_init() }.f_type == FUSE_SUPER_MAGIC
}

/// Returns a file that was asked about; its page stays until [`let_go`]. By one thread at a time.
pub(crate) fn file(mut asked: Asked) -> Option<File> {
    let number = usize::try_from(asked.told.line)
        .ok()
        .filter(|line| *line < LINES as usize)?;
    let has = |page: &Page| page.is(asked.found.device, &asked.told);
    let place = PAGES.iter().position(has).or_else(|| keep_page(&mut asked))?;
    // SAFETY: so many lines are mapped there until the last mapping of a file lets go.
    let line = unsafe { PAGES[place].lines.load(Ordering::Relaxed).wrapping_add(number).as_ref() }?;
    PAGES[place].users.fetch_add(1, Ordering::Relaxed);
    Some(File {
        line,
        place,
        can_write: asked.found.can_write,
        inode: asked.found.inode,
        told: asked.told,
    })
}

/// Keeps the page of an answer mapped; gives its place. By one thread at a time.
fn keep_page(asked: &mut Asked) -> Option<usize> {
    let place = PAGES
        .iter()
        .position(|page| page.lines.load(Ordering::Relaxed).is_null())?;
    let words = asked.page.take()?;
    let page = &PAGES[place];
    // Relaxed: who looks without `BUSY` sees them by the pointer to the lines.
    page.device.store(asked.found.device, Ordering::Relaxed);
    page.inode.store(asked.told.page, Ordering::Relaxed);
    page.users.store(0, Ordering::Relaxed);
    page.lines.store(words.leak().as_ptr().cast_mut(), Ordering::Release);
    Some(place)
}

impl Page {
    fn is(&self, device: u64, told: &Told) -> bool {
        self.is_of(device) && self.inode.load(Ordering::Relaxed) == told.page
    }

    /// Whether it is mapped, and of a file on `device`.
    fn is_of(&self, device: u64) -> bool {
        !self.lines.load(Ordering::Acquire).is_null() && self.device.load(Ordering::Relaxed) == device
    }
}

/// Takes back one use of the page at a place, which is unmapped with the last one. By one thread at a time.
pub(crate) fn let_go(place: usize) {
    let page = &PAGES[place];
    if page.users.fetch_sub(1, Ordering::Relaxed) == 1 {
        let lines = page.lines.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: kept by `keep_page`, and nobody has a line in it any more.
        unsafe { libc::munmap(lines.cast(), LINES as usize * Words::LINE_BYTES) };
    }
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
        dense: [0; PIECE_WORDS],
    };
    for bits in &mut told.dense {
        *bits = u64::from_str_radix(words.next()?, 16).ok()?;
    }
    Some(told)
}

/// Maps the page of words of an answer about a file on `device`. In a process of its own: what it opens is closed with that.
fn map_apart(device: u64, told: &Told) -> Option<Words> {
    let mut path = [0_u8; PATH_BYTES_MAX + 64];
    let length = directory_of(device, &mut path[..PATH_BYTES_MAX])?;
    write!(&mut path[length..PATH_BYTES_MAX + 63], "/.homenode.words.{}", told.user).ok()?;
    let file = open_to_read(CStr::from_bytes_until_nul(&path).ok()?)?;
    let found = look(file.as_raw_fd()).ok()?;
    let is_page = (found.device, found.inode) == (device, told.page);
    is_page.then(|| Words::map(file, LINES as usize, false).ok())?
}

/// Opens a file, and waits for nothing that another user may have put there: a FIFO, a file with a lease.
fn open_to_read(path: &CStr) -> Option<BorrowedFd<'static>> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    // SAFETY: a string that ends in NUL, and numbers.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: it was opened above, and nobody closes it.
    Some(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Writes the directory on which the root of a device is mounted, if root has mounted it as a pool; returns the path's length. Anybody else's mount may tell anything.
fn directory_of(device: u64, path: &mut [u8]) -> Option<usize> {
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
            if let Some(found) = line.get(..length).and_then(|line| directory_in(line, device, path)) {
                return Some(found);
            }
            length = 0;
        }
    }
}

/// The directory in a line of mountinfo, if that is root's mount of a device's root as a pool.
fn directory_in(line: &[u8], device: u64, path: &mut [u8]) -> Option<usize> {
    let mount = MountLine::parse(line)?;
    let is_pool = mount.filesystem_type == b"fuse.homenode" && mount.has_option("user_id=0");
    if !is_pool || mount.device != (libc::major(device), libc::minor(device)) || mount.root != b"/" {
        return None;
    }
    let mut length = 0;
    for byte in unescaped(mount.mount_point) {
        *path.get_mut(length)? = byte;
        length += 1;
    }
    Some(length)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_opening_of_a_fifo_waits_for_no_writer() {
        let path = std::env::temp_dir().join(format!("homenode-mapped-fifo-{}", std::process::id()));
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a string with its end.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(open_to_read(&name).is_some()));
        let opened = told.recv_timeout(std::time::Duration::from_secs(10));
        std::fs::remove_file(path).expect("it was made");
        assert_eq!(opened, Ok(true));
    }
}
