//! Reads and writes at an offset, each a copy or the system call.

use crate::errno::KeptErrno;
use crate::files::{self, Descriptor};
use crate::mapped::{Before, Buffers, Mapped, Range};
use crate::statistics::{Outcome, count};
use crate::threads::{self, Inside};
use std::ffi::c_int;

/// Reads by a copy, or else by `system`, from which the file is learned.
/// `range` is `None` for what only the system can judge. Returns what the system call would, with errno.
///
/// # Safety
/// The buffers can be written to, as many bytes as the range has.
#[inline]
pub unsafe fn read(fd: c_int, range: Option<Range>, to: &impl Buffers, system: impl FnOnce() -> isize) -> isize {
    let Some((descriptor, range)) = files::find(fd).zip(range) else {
        count(Outcome::Other);
        return system();
    };
    let closes = files::closes(fd);
    let before = match threads::enter(descriptor) {
        // SAFETY: the caller's.
        Some(inside) => match unsafe { inside.mapped().read(range, to) } {
            Ok(()) => {
                count(Outcome::Fast);
                return range.done();
            }
            Err(before) if has_ended(&before, fd, closes) => return range.done(),
            Err(before) => Some(before),
        },
        None => None,
    };
    after(descriptor, fd, range, before, system(), Mapped::after_read)
}

/// Writes by a copy, or else by `system`, from which the file is learned.
/// Otherwise as [`read`].
///
/// # Safety
/// The buffers can be read, as many bytes as the range has.
#[inline]
pub unsafe fn write(fd: c_int, range: Option<Range>, from: &impl Buffers, system: impl FnOnce() -> isize) -> isize {
    let Some((descriptor, range)) = files::find(fd).zip(range) else {
        count(Outcome::Other);
        return files::written(fd, system());
    };
    let closes = files::closes(fd);
    let before = match threads::enter(descriptor) {
        // SAFETY: the caller's.
        Some(inside) => match unsafe { inside.mapped().write(range, from) } {
            Ok(()) => {
                count(Outcome::Fast);
                return range.done();
            }
            Err(before) if has_ended(&before, fd, closes) => return range.done(),
            // A cut that came before the stamp may have left a file that ends with it: the system call writes all bytes then.
            Err(before) if before.is_copied && stamp(fd, &inside, range) && inside.mapped().is_uncut(&before) => {
                return after(descriptor, fd, range, Some(before), range.done(), Mapped::after_write);
            }
            Err(before) => Some(before),
        },
        None => None,
    };
    let done = system();
    if before.is_none() {
        files::written(fd, done);
    }
    after(descriptor, fd, range, before, done, Mapped::after_write)
}

/// Returns true if all bytes were copied and the descriptor was closed or replaced meanwhile: its number may be another file's, so no system call can make the copy good. The last close of
/// a file is a cut to its clients, though no byte of it goes.
#[cold]
fn has_ended(before: &Before, fd: c_int, closes: u32) -> bool {
    let has_ended = before.has_all && files::closes(fd) != closes;
    if has_ended {
        count(Outcome::Fast);
    }
    has_ended
}

/// Has the kernel stamp a file that was copied to, by a write of one byte of the file in its own place. A write of the caller's bytes would be one more, after what others
/// have written there meanwhile.
#[cold]
fn stamp(fd: c_int, inside: &Inside<'_>, range: Range) -> bool {
    let Some(byte) = inside.mapped().address(range) else {
        return false;
    };
    let Ok(offset) = i64::try_from(range.offset) else {
        return false;
    };
    let _errno = KeptErrno::now();
    // Not by the function: in a process whose functions these are it would come here.
    // SAFETY: a byte of a mapping, which the kernel reads or not.
    unsafe { libc::syscall(libc::SYS_pwrite64, fd, byte, 1_usize, offset) == 1 }
}

/// Learns from what the system has done, and returns that.
#[cold]
fn after(
    descriptor: &Descriptor,
    fd: c_int,
    range: Range,
    before: Option<Before>,
    done: isize,
    learn: fn(&Mapped, c_int, Range, Before, isize) -> Option<u32>,
) -> isize {
    count(Outcome::Slow);
    let _errno = KeptErrno::now();
    let again = before.and_then(|before| {
        let inside = threads::enter(descriptor)?;
        let mapped = inside.mapped();
        let patience = learn(mapped, fd, range, before, done)?;
        Some((std::ptr::from_ref(mapped).addr(), patience))
    });
    if let Some((mapped, patience)) = again {
        files::learn_again(descriptor, mapped, fd, range.offset, patience);
    }
    files::free_leaving_if_any();
    done
}
