//! Attributes of files of pools, which the server is asked for once in a tick.
//!
//! The kernel knows the size, and its own changes. Times after a write, and blocks after a store through a mapping, only the server knows. So the kernel's knowledge is given if it
//! is the server's last answer, of this tick, and this process has not written since. Docs: docs/decisions/020-words.md.

use crate::errno::KeptErrno;
use crate::mapped::{tick, tick_of};
use crate::{files, pages};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// First kernel that knows the size after each write that was passed through.
const LINUX_MIN: (u32, u32) = (6, 12);
/// Number of places in the tables, by inode.
const PLACES: usize = 256;

/// Hash of the server's last answer about a file, with its tick; 0 for none.
static ASKED: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
/// Tick in which a file was written last.
static WRITTEN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Finds out whether this kernel knows enough.
pub(crate) fn start() {
    let mut system = MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: room for one.
    if unsafe { libc::uname(system.as_mut_ptr()) } != 0 {
        return;
    }
    // SAFETY: the call has filled it.
    let system = unsafe { system.assume_init() };
    // SAFETY: a string that ends in NUL.
    let release = unsafe { CStr::from_ptr(system.release.as_ptr()) };
    let release = release.to_str().unwrap_or_default();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let found = number().zip(number());
    IS_ON.store(found.is_some_and(|found| found >= LINUX_MIN), Ordering::Relaxed);
}

/// Notes that a system call has written to a file.
pub(crate) fn note_written(inode: u64) {
    // Relaxed, like all here: a number guards no other memory.
    WRITTEN[place(inode)].store(tick(), Ordering::Relaxed);
}

/// Forgets the server's answers, after a call that changes blocks and times of which the kernel keeps nothing.
pub fn forget_answers() {
    ASKED.iter().for_each(|asked| asked.store(0, Ordering::Relaxed));
}

/// Gives attributes of the file behind a descriptor, as `system` does, or as they were in this tick. 0, or -1 with errno.
pub fn of_descriptor(
    fd: c_int,
    to: &mut MaybeUninit<libc::stat64>,
    system: impl FnOnce(*mut libc::stat64) -> c_int,
) -> c_int {
    if !files::is_mapped(fd) {
        return system(to.as_mut_ptr());
    }
    give(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, to, system)
}

/// [`of_descriptor`] for the file at a path, which is followed to its end.
pub fn of_path(
    path: *const c_char,
    to: &mut MaybeUninit<libc::stat64>,
    system: impl FnOnce(*mut libc::stat64) -> c_int,
) -> c_int {
    if !pages::is_any_used() {
        return system(to.as_mut_ptr());
    }
    give(libc::AT_FDCWD, path, libc::AT_NO_AUTOMOUNT, to, system)
}

fn give(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    to: &mut MaybeUninit<libc::stat64>,
    system: impl FnOnce(*mut libc::stat64) -> c_int,
) -> c_int {
    let tick = tick();
    let known = match IS_ON.load(Ordering::Relaxed) {
        true => known(fd, path, flags, libc::STATX_BASIC_STATS).map(|known| status_of(&known)),
        false => None,
    };
    // A directory's times change with its names, unseen as well.
    let is_file = |known: &libc::stat64| known.st_mode & libc::S_IFMT == libc::S_IFREG && pages::is_used(known.st_dev);
    let known = known.filter(is_file);
    if let Some(known) = &known
        && ASKED[place(known.st_ino)].load(Ordering::Relaxed) == hash(known, tick)
        && (WRITTEN[place(known.st_ino)].load(Ordering::Relaxed) != tick
            || tick_of(known.st_mtime, known.st_mtime_nsec) >= tick)
    {
        to.write(*known);
        return 0;
    }
    let done = system(to.as_mut_ptr());
    if done == 0 && known.is_some() {
        // SAFETY: the call has filled it.
        let told = unsafe { to.assume_init_ref() };
        ASKED[place(told.st_ino)].store(hash(told, tick), Ordering::Relaxed);
    }
    done
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
fn place(inode: u64) -> usize {
    inode as usize % PLACES
}

/// Hash of all in an answer that others may change, and its tick. An answer that the kernel has thrown away, as something newer came before, differs from what it knows.
#[allow(clippy::useless_conversion, reason = "links are 32 bits on some machines")]
fn hash(status: &libc::stat64, tick: u64) -> u64 {
    let words = [
        status.st_dev,
        status.st_ino,
        status.st_size.cast_unsigned(),
        status.st_blocks.cast_unsigned(),
        u64::from(status.st_mode) << 32 | u64::from(status.st_uid),
        u64::from(status.st_gid),
        status.st_nlink.into(),
        tick_of(status.st_mtime, status.st_mtime_nsec),
        tick_of(status.st_ctime, status.st_ctime_nsec),
        tick,
    ];
    words.into_iter().fold(1, |hash: u64, word| {
        let mixed = u128::from(hash ^ word) * 0x9E37_79B9_7F4A_7C15_u128;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are folded")]
        let folded = (mixed >> 64) as u64 ^ mixed as u64;
        folded
    })
}

/// Returns what the kernel knows of the file at a path, or behind a descriptor, without asking the server. Only statx(2) can be told that: newfstatat(2) forgets it where there is no
/// path.
pub(crate) fn known(fd: c_int, path: *const c_char, flags: c_int, wanted: u32) -> Option<libc::statx> {
    let _errno = KeptErrno::now();
    let mut known = MaybeUninit::<libc::statx>::uninit();
    let flags = flags | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the caller's string, which the kernel reads or not, and room for a statx.
    let done = unsafe { libc::statx(fd, path, flags, wanted, known.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    (done == 0).then(|| unsafe { known.assume_init() })
}

#[allow(clippy::useless_conversion, reason = "likewise")]
fn status_of(known: &libc::statx) -> libc::stat64 {
    // SAFETY: numbers, of which zero is one.
    let mut status: libc::stat64 = unsafe { std::mem::zeroed() };
    status.st_dev = libc::makedev(known.stx_dev_major, known.stx_dev_minor);
    status.st_rdev = libc::makedev(known.stx_rdev_major, known.stx_rdev_minor);
    status.st_ino = known.stx_ino;
    status.st_mode = known.stx_mode.into();
    status.st_nlink = known.stx_nlink.into();
    (status.st_uid, status.st_gid) = (known.stx_uid, known.stx_gid);
    status.st_size = known.stx_size.cast_signed();
    status.st_blksize = known.stx_blksize.cast_signed().into();
    status.st_blocks = known.stx_blocks.cast_signed();
    (status.st_atime, status.st_atime_nsec) = (known.stx_atime.tv_sec, known.stx_atime.tv_nsec.into());
    (status.st_mtime, status.st_mtime_nsec) = (known.stx_mtime.tv_sec, known.stx_mtime.tv_nsec.into());
    (status.st_ctime, status.st_ctime_nsec) = (known.stx_ctime.tv_sec, known.stx_ctime.tv_nsec.into());
    status
}
