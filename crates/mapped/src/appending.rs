//! Descriptors by which the kernel goes on to append when O_APPEND is taken away.
//!
//! The server's own file, which writes are passed to, was opened with the flags of that time. A descriptor that was opened with O_APPEND, and does not show it any more, would
//! be taken for one at whose offsets can be written. It is left to the system until it is closed, and so are its duplicates.

use crate::errno::KeptErrno;
use crate::files::{DESCRIPTORS, is_left_appending, is_on, leave_appending};
use crate::statistics::is_own_process;
use std::ffi::c_int;

/// Leaves a descriptor whose open file is about to lose O_APPEND to the system, if it has it. Others may have the same open file, and nothing tells which: all that append
/// are left.
pub fn stop_appending(fd: c_int) {
    let _errno = KeptErrno::new();
    if is_on() && appends(fd) && !is_left_appending(fd) {
        (0..descriptors()).filter(|fd| appends(*fd)).for_each(leave_appending);
    }
}

/// Runs `duplicate`, which gives another descriptor of the open file that `from` has, or -1.
pub fn duplicated<T: Copy + TryInto<c_int>>(from: c_int, duplicate: impl FnOnce() -> T) -> T {
    let is_left = is_left_appending(from);
    let made = duplicate();
    // In a child of vfork(2) the descriptor is another process's.
    if is_left && is_own_process() {
        made.try_into().into_iter().for_each(leave_appending);
    }
    made
}

/// Whether a descriptor is open, and appends by its flags.
fn appends(fd: c_int) -> bool {
    // SAFETY: takes numbers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

/// Descriptors that the process may have, and that can have a mapping, lie below this one.
fn descriptors() -> c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: there is room for a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let limit = usize::try_from(limit.rlim_cur).unwrap_or(DESCRIPTORS);
    c_int::try_from(limit.min(DESCRIPTORS)).unwrap_or(c_int::MAX)
}
