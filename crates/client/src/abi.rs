//! The C ABI of homenode.h: files whose reads and writes are copies from the first one on, without `homenode run`.
//!
//! A file is its descriptor, so all functions of the C library take it as well.

use crate::calls::buffers;
use crate::real::real;
use homenode_mapped::{From, FromMany, To, ToMany, by_node, learn_now, range, read, replaced, write, written};
use libc::{iovec, mode_t, size_t, ssize_t};
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;

/// Opens a file, as open(2) with O_CLOEXEC; `mode` counts where it is made. Returns its descriptor.
///
/// Reads and writes at an offset are copies by the calling thread on a mounted pool whose files are the kernel's, if the
/// file is opened with O_RDONLY or O_RDWR and without O_APPEND, O_DIRECT and O_SYNC; on any other file they are system calls.
/// The first call sets an action for SIGBUS, which calls the one that was there before. A program that has loaded this
/// library by dlopen(3) has to keep that action, to let SIGBUS through in threads that read and write so, and to close
/// the file by homenode_close(). The library stays after dlclose(3).
///
/// # Safety
/// `path` is a string that ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn homenode_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let flags = flags | libc::O_CLOEXEC;
    let fd = real!(open64(path => *const c_char, flags => c_int, mode => mode_t) -> c_int);
    if fd >= 0 {
        learn_now(fd);
    }
    fd
}

/// Reads at an offset, as pread(2): the number of bytes, 0 at the file's end.
///
/// # Safety
/// `to` has room for `bytes` bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn homenode_pread(fd: c_int, to: *mut c_void, bytes: size_t, offset: i64) -> ssize_t {
    let system = || real!(pread64(fd => c_int, to => *mut c_void, bytes => size_t, offset => i64) -> ssize_t);
    // SAFETY: the caller's.
    unsafe { read(fd, range(offset, bytes), &To(to.cast(), bytes), system) }
}

/// Writes at an offset, as pwrite(2): the number of bytes.
///
/// # Safety
/// `from` has `bytes` bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn homenode_pwrite(fd: c_int, from: *const c_void, bytes: size_t, offset: i64) -> ssize_t {
    let system = || real!(pwrite64(fd => c_int, from => *const c_void, bytes => size_t, offset => i64) -> ssize_t);
    // SAFETY: the caller's.
    unsafe { write(fd, range(offset, bytes), &From(from.cast(), bytes), system) }
}

/// Reads at an offset into several buffers, as preadv(2).
///
/// # Safety
/// `vector` has `count` buffers, with room for their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn homenode_readv(fd: c_int, vector: *const iovec, count: c_int, offset: i64) -> ssize_t {
    let system = || real!(preadv64(fd => c_int, vector => *const iovec, count => c_int, offset => i64) -> ssize_t);
    match buffers(vector, count, offset) {
        // SAFETY: the caller's.
        Some((vector, range)) => unsafe { read(fd, Some(range), &ToMany(vector), system) },
        None => system(),
    }
}

/// Writes at an offset from several buffers, as pwritev(2).
///
/// # Safety
/// `vector` has `count` buffers of their bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn homenode_writev(fd: c_int, vector: *const iovec, count: c_int, offset: i64) -> ssize_t {
    let system = || real!(pwritev64(fd => c_int, vector => *const iovec, count => c_int, offset => i64) -> ssize_t);
    match buffers(vector, count, offset) {
        // SAFETY: the caller's.
        Some((vector, range)) => unsafe { write(fd, Some(range), &FromMany(vector), system) },
        None => written(fd, system()),
    }
}

/// The file's size in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn homenode_size(fd: c_int) -> i64 {
    let mut status = MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: there is room for a stat.
    if unsafe { libc::fstat64(fd, status.as_mut_ptr()) } != 0 {
        return -1;
    }
    // SAFETY: the call has filled it.
    unsafe { status.assume_init() }.st_size
}

/// Makes what was written durable where the file can be, as fsync(2).
#[unsafe(no_mangle)]
pub extern "C" fn homenode_sync(fd: c_int) -> c_int {
    // SAFETY: takes a number.
    unsafe { libc::fsync(fd) }
}

/// Takes room for a range of the file, or gives it back, as fallocate(2) with that `mode`. Writes to what has room are
/// copies.
#[unsafe(no_mangle)]
pub extern "C" fn homenode_allocate(fd: c_int, mode: c_int, offset: i64, bytes: i64) -> c_int {
    // SAFETY: takes numbers.
    unsafe { libc::fallocate64(fd, mode, offset, bytes) }
}

/// Tells where the file's bytes lie: those on node N in `bytes[N]`, for the first `count` nodes. Returns 1 more than the
/// number of the last node that has some. ENODATA or EOPNOTSUPP if the file is on no pool.
///
/// # Safety
/// `bytes` has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn homenode_map(fd: c_int, bytes: *mut u64, count: size_t) -> ssize_t {
    let bytes = match count {
        0 => &mut [][..],
        // SAFETY: the caller gives so many.
        count => unsafe { std::slice::from_raw_parts_mut(bytes, count) },
    };
    bytes.fill(0);
    let mut last: usize = 0;
    let found = by_node(fd, |node, on| {
        if let Some(of_node) = bytes.get_mut(usize::from(node)) {
            *of_node = on;
        }
        last = last.max(usize::from(node) + 1);
    });
    found.map_or(-1, |()| ssize_t::try_from(last).unwrap_or(ssize_t::MAX))
}

/// Closes the file, as close(2). Threads that copy meanwhile go on to their copies' end. One whose copy cannot end, as the file is being cut, makes a
/// system call, on the file that has the number then.
#[unsafe(no_mangle)]
pub extern "C" fn homenode_close(fd: c_int) -> c_int {
    replaced(fd, fd, || real!(close(fd => c_int) -> c_int))
}
