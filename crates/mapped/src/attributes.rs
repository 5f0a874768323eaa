//! Attributes of files of pools, which the server is asked for once in a tick.
//!
//! The kernel knows a file's size, and what it changes itself. What it does not know are times after writes, and blocks after stores through mappings, so it asks the server each time;
//! in the rest of a tick these are as good as they were. Docs: docs/decisions/020-words.md.

use crate::mapped::tick;
use crate::{files, pages};
use libc::{c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// For some files, what was asked last: the file, its size and the tick, in one number.
static ASKED: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

/// Gives attributes of the file behind a descriptor, as `system` does, or as they were in this tick. 0, or -1 with errno.
pub fn of_descriptor(
    fd: c_int,
    to: &mut MaybeUninit<libc::stat64>,
    system: impl FnOnce(*mut libc::stat64) -> c_int,
) -> c_int {
    if !files::is_mapped(fd) {
        return system(to.as_mut_ptr());
    }
    give(fd, None, to, system)
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
    give(libc::AT_FDCWD, Some(path), to, system)
}

fn give(
    fd: c_int,
    path: Option<*const c_char>,
    to: &mut MaybeUninit<libc::stat64>,
    system: impl FnOnce(*mut libc::stat64) -> c_int,
) -> c_int {
    let tick = tick();
    let known = known(fd, path, libc::STATX_BASIC_STATS).map(|known| status_of(&known));
    let known = known.filter(|known| pages::is_used(known.st_dev));
    // Relaxed: it says all by itself.
    if let Some(known) = &known
        && place(known).load(Ordering::Relaxed) == print_of(known, tick)
    {
        to.write(*known);
        return 0;
    }
    let done = system(to.as_mut_ptr());
    if done == 0 && known.is_some() {
        // SAFETY: the call has filled it.
        let now = unsafe { to.assume_init_ref() };
        place(now).store(print_of(now, tick), Ordering::Relaxed);
    }
    done
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
fn place(status: &libc::stat64) -> &'static AtomicU64 {
    &ASKED[status.st_ino as usize % ASKED.len()]
}

/// A number that another file, size or tick does not have, but for one case in 2^64.
fn print_of(status: &libc::stat64, tick: u64) -> u64 {
    let words = [status.st_dev, status.st_ino, status.st_size.cast_unsigned(), tick];
    words.into_iter().fold(1, |print: u64, word| {
        let mixed = u128::from(print ^ word) * 0x9E37_79B9_7F4A_7C15_u128;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are folded")]
        let folded = (mixed >> 64) as u64 ^ mixed as u64;
        folded
    })
}

/// What the kernel knows of the file at a path, or behind a descriptor if there is none, without asking the server. Only statx(2) can be told that: newfstatat(2) forgets it
/// where there is no path.
pub(crate) fn known(fd: c_int, path: Option<*const c_char>, wanted: u32) -> Option<libc::statx> {
    let mut known = MaybeUninit::<libc::statx>::uninit();
    let (path, flags) = match path {
        Some(path) => (path, libc::AT_NO_AUTOMOUNT),
        None => (c"".as_ptr(), libc::AT_EMPTY_PATH),
    };
    let flags = flags | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the caller's string, which the kernel reads or not, and room for a statx.
    let done = unsafe { libc::statx(fd, path, flags, wanted, known.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    (done == 0).then(|| unsafe { known.assume_init() })
}

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
