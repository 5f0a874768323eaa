//! The C library's reads and writes at an offset.

use crate::files::{self, Descriptor};
use crate::mapped::{Before, Buffers, From, FromMany, Mapped, Range, To, ToMany, range};
use crate::real::{KeptErrno, real};
use crate::statistics::{Outcome, count};
use crate::threads::{self, Inside};
use libc::{iovec, off64_t, size_t, ssize_t};
use std::ffi::{c_int, c_void};

/// Buffers of one call that become copies.
const VECTOR_MAX: usize = 64;

/// Reads by a copy, or else by `system`, from which the file is learned.
#[inline]
fn read(fd: c_int, range: Option<Range>, to: &impl Buffers, system: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some((descriptor, range)) = files::find(fd).zip(range) else {
        count(Outcome::Other);
        return system();
    };
    let before = match threads::enter(descriptor) {
        // SAFETY: the caller of the C function gives memory of so many bytes.
        Some(inside) => match unsafe { inside.mapped().read(range, to) } {
            Ok(()) => {
                count(Outcome::Fast);
                return range.done();
            }
            Err(before) => Some(before),
        },
        None => None,
    };
    after(descriptor, fd, range, before, system(), Mapped::after_read)
}

/// Writes by a copy, or else by `system`, from which the file is learned.
#[inline]
fn write(fd: c_int, range: Option<Range>, from: &impl Buffers, system: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some((descriptor, range)) = files::find(fd).zip(range) else {
        count(Outcome::Other);
        return system();
    };
    let before = match threads::enter(descriptor) {
        // SAFETY: the caller of the C function gives memory of so many bytes.
        Some(inside) => match unsafe { inside.mapped().write(range, from) } {
            Ok(()) => {
                count(Outcome::Fast);
                return range.done();
            }
            Err(before) if before.is_copied && stamp(fd, &inside, range) => {
                return after(descriptor, fd, range, Some(before), range.done(), Mapped::after_write);
            }
            Err(before) => Some(before),
        },
        None => None,
    };
    after(descriptor, fd, range, before, system(), Mapped::after_write)
}

/// Has the kernel stamp a file that was copied to, by a write of one byte of the file in its own place. A write of the caller's bytes would be one more, after what others
/// have written there meanwhile.
#[cold]
fn stamp(fd: c_int, inside: &Inside<'_>, range: Range) -> bool {
    let Some(byte) = inside.mapped().address(range) else {
        return false;
    };
    let Ok(offset) = off64_t::try_from(range.offset) else {
        return false;
    };
    let _errno = KeptErrno::new();
    let (from, bytes) = (byte.cast_const().cast(), 1);
    real!(pwrite64(fd => c_int, from => *const c_void, bytes => size_t, offset => off64_t) -> ssize_t) == 1
}

/// Learns from what the system has done, and returns that.
#[cold]
fn after(
    descriptor: &Descriptor,
    fd: c_int,
    range: Range,
    before: Option<Before>,
    done: ssize_t,
    learn: fn(&Mapped, c_int, Range, Before, ssize_t) -> bool,
) -> ssize_t {
    count(Outcome::Slow);
    let _errno = KeptErrno::new();
    let again = before.and_then(|before| {
        let inside = threads::enter(descriptor)?;
        let mapped = inside.mapped();
        learn(mapped, fd, range, before, done).then(|| std::ptr::from_ref(mapped).addr())
    });
    if let Some(mapped) = again {
        files::learn_again(descriptor, mapped, fd, range.offset);
    }
    files::free_leaving_if_any();
    done
}

/// The buffers of a call, and their bytes; `None` for what the system has to look at.
fn buffers<'a>(vector: *const iovec, count: c_int, offset: off64_t) -> Option<(&'a [iovec], Range)> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| (1..=VECTOR_MAX).contains(count))?;
    // SAFETY: the caller of the C function gives so many.
    let vector = unsafe { std::slice::from_raw_parts(vector, count) };
    let add = |sum: usize, buffer: &iovec| sum.checked_add(buffer.iov_len);
    Some((vector, range(offset, vector.iter().try_fold(0, add)?)?))
}

/// pread(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, to: *mut c_void, bytes: size_t, offset: off64_t) -> ssize_t {
    read(
        fd,
        range(offset, bytes),
        &To(to.cast(), bytes),
        || real!(pread64(fd => c_int, to => *mut c_void, bytes => size_t, offset => off64_t) -> ssize_t),
    )
}

/// [`pread64`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, to: *mut c_void, bytes: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { pread64(fd, to, bytes, offset) }
}

/// [`pread64`] of a program that was built with checks of lengths.
#[unsafe(no_mangle)]
unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    to: *mut c_void,
    bytes: size_t,
    offset: off64_t,
    room: size_t,
) -> ssize_t {
    if bytes > room {
        return real!(__pread64_chk(fd => c_int, to => *mut c_void, bytes => size_t, offset => off64_t, room => size_t) -> ssize_t);
    }
    // SAFETY: the caller's.
    unsafe { pread64(fd, to, bytes, offset) }
}

/// [`__pread64_chk`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __pread_chk(fd: c_int, to: *mut c_void, bytes: size_t, offset: off64_t, room: size_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { __pread64_chk(fd, to, bytes, offset, room) }
}

/// pwrite(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, bytes: size_t, offset: off64_t) -> ssize_t {
    write(
        fd,
        range(offset, bytes),
        &From(from.cast(), bytes),
        || real!(pwrite64(fd => c_int, from => *const c_void, bytes => size_t, offset => off64_t) -> ssize_t),
    )
}

/// [`pwrite64`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, bytes: size_t, offset: off64_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { pwrite64(fd, from, bytes, offset) }
}

/// preadv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    let system = || real!(preadv64(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t) -> ssize_t);
    let Some((vector, range)) = files::find(fd).and_then(|_| buffers(vector, count, offset)) else {
        return system();
    };
    read(fd, Some(range), &ToMany(vector), system)
}

/// [`preadv64`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { preadv64(fd, vector, count, offset) }
}

/// pwritev(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    let system = || real!(pwritev64(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t) -> ssize_t);
    let Some((vector, range)) = files::find(fd).and_then(|_| buffers(vector, count, offset)) else {
        return system();
    };
    write(fd, Some(range), &FromMany(vector), system)
}

/// [`pwritev64`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { pwritev64(fd, vector, count, offset) }
}

/// preadv2(2): without flags, as [`preadv64`]. The offset -1 is the descriptor's own.
#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && offset >= 0 {
        // SAFETY: the caller's.
        return unsafe { preadv64(fd, vector, count, offset) };
    }
    real!(preadv64v2(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t, flags => c_int) -> ssize_t)
}

/// [`preadv64v2`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { preadv64v2(fd, vector, count, offset, flags) }
}

/// pwritev2(2): without flags, as [`pwritev64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && offset >= 0 {
        // SAFETY: the caller's.
        return unsafe { pwritev64(fd, vector, count, offset) };
    }
    real!(pwritev64v2(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t, flags => c_int) -> ssize_t)
}

/// [`pwritev64v2`] by its other name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { pwritev64v2(fd, vector, count, offset, flags) }
}
