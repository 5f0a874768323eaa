//! The C library's reads and writes at an offset.

use crate::abi;
use crate::real::{alias, real};
use homenode_mapped::{FromMany, Range, ToMany, has, is_other, range, read, write, written};
use libc::{iovec, off64_t, size_t, ssize_t};
use std::ffi::{c_int, c_void};

/// Buffers of one call that become copies.
const VECTOR_MAX: usize = 64;

/// The buffers of a call, and their bytes; `None` for what the system has to look at.
pub(crate) fn buffers<'a>(vector: *const iovec, count: c_int, offset: off64_t) -> Option<(&'a [iovec], Range)> {
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
    if is_other(fd) {
        return real!(pread64(fd => c_int, to => *mut c_void, bytes => size_t, offset => off64_t) -> ssize_t);
    }
    // A function of its own: files of no pool do not pay for its stack.
    // SAFETY: the caller's.
    unsafe { abi::homenode_pread(fd, to, bytes, offset) }
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

/// pwrite(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, bytes: size_t, offset: off64_t) -> ssize_t {
    if is_other(fd) {
        return real!(pwrite64(fd => c_int, from => *const c_void, bytes => size_t, offset => off64_t) -> ssize_t);
    }
    // A function of its own: files of no pool do not pay for its stack.
    // SAFETY: the caller's.
    unsafe { abi::homenode_pwrite(fd, from, bytes, offset) }
}

/// preadv(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn preadv64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    let system = || real!(preadv64(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t) -> ssize_t);
    let Some((vector, range)) = has(fd).then(|| buffers(vector, count, offset)).flatten() else {
        return system();
    };
    // SAFETY: the caller's.
    unsafe { read(fd, Some(range), &ToMany(vector), system) }
}

/// pwritev(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    let system = || real!(pwritev64(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t) -> ssize_t);
    let Some((vector, range)) = has(fd).then(|| buffers(vector, count, offset)).flatten() else {
        return written(fd, system());
    };
    // SAFETY: the caller's.
    unsafe { write(fd, Some(range), &FromMany(vector), system) }
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
    let done = real!(pwritev64v2(fd => c_int, vector => *const iovec, count => c_int, offset => off64_t, flags => c_int) -> ssize_t);
    written(fd, done)
}

alias! {
    pread = pread64(fd: c_int, to: *mut c_void, bytes: size_t, offset: off64_t) -> ssize_t;
    __pread_chk = __pread64_chk(fd: c_int, to: *mut c_void, bytes: size_t, offset: off64_t, room: size_t) -> ssize_t;
    pwrite = pwrite64(fd: c_int, from: *const c_void, bytes: size_t, offset: off64_t) -> ssize_t;
    preadv = preadv64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    pwritev = pwritev64(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    preadv2 = preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pwritev2 = pwritev64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
}
