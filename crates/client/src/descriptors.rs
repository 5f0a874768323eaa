//! Functions of the C library that make, close and change descriptors, of which nothing is known afterwards, and those that tell of files.
//!
//! Calls of the C library within itself do not come here. So its functions that close a descriptor inside (fclose(3), closedir(3)) are here as well, and
//! syscall(2). A program that closes what the C library has opened by an instruction of its own is not for this library.

use crate::real::{alias, real};
use homenode_mapped::{
    KeptErrno, after_fork, exchanged, forget, forget_all, forget_answers, is_on, of_descriptor, of_path, replaced,
    stop, stop_appending, written,
};
use libc::{DIR, FILE, mode_t, off64_t, size_t};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::mem::MaybeUninit;

/// Flags with which a file is not copied from and to.
const OTHERS: usize = (libc::O_APPEND | libc::O_DIRECT) as usize;

/// A new descriptor, of which nothing is known.
fn new(fd: c_int) -> c_int {
    forget(fd);
    fd
}

/// Functions that open a path: their arguments behind the name are numbers, which C passes in the same way whether they are variable or not.
macro_rules! open {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!(stringify!($name), ": open(2) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            new(real!($name($($argument => $kind),*) -> c_int))
        }
    )*};
}

open! {
    open(path: *const c_char, flags: c_int, mode: mode_t);
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(directory: c_int, path: *const c_char, flags: c_int);
    __openat64_2(directory: c_int, path: *const c_char, flags: c_int);
    creat(path: *const c_char, mode: mode_t);
    creat64(path: *const c_char, mode: mode_t);
    mkstemp(path: *mut c_char);
    mkstemp64(path: *mut c_char);
    mkostemp(path: *mut c_char, flags: c_int);
    mkostemp64(path: *mut c_char, flags: c_int);
    dup(fd: c_int);
}

/// Functions that open a stream.
macro_rules! open_stream {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!(stringify!($name), ": fopen(3) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> *mut FILE {
            let stream = real!($name($($argument => $kind),*) -> *mut FILE);
            if !stream.is_null() {
                // SAFETY: the stream that was just opened.
                forget(unsafe { libc::fileno(stream) });
            }
            stream
        }
    )*};
}

open_stream! {
    fopen(path: *const c_char, mode: *const c_char);
    fopen64(path: *const c_char, mode: *const c_char);
    tmpfile();
    tmpfile64();
}

/// Functions that open a stream anew, and close what it had.
macro_rules! reopen_stream {
    ($($name:ident)*) => {$(
        #[doc = concat!(stringify!($name), ": freopen(3).")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
            let before = {
                let _errno = KeptErrno::now();
                // SAFETY: the caller gives a stream.
                unsafe { libc::fileno(stream) }
            };
            let result = replaced(before, before, || {
                real!($name(path => *const c_char, mode => *const c_char, stream => *mut FILE) -> *mut FILE)
            });
            if !result.is_null() {
                // SAFETY: the stream that was just opened.
                forget(unsafe { libc::fileno(result) });
            }
            result
        }
    )*};
}

reopen_stream! { freopen freopen64 }

/// Functions that close or replace a descriptor.
macro_rules! replace {
    ($($name:ident($($argument:ident: $kind:ty),*) = $by:expr;)*) => {$(
        #[doc = concat!(stringify!($name), ": close(2), dup2(2) or a relative of them.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            $by(|| real!($name($($argument => $kind),*) -> c_int))
        }
    )*};
}

replace! {
    close(fd: c_int) = |call| replaced(fd, fd, call);
    __close(fd: c_int) = |call| replaced(fd, fd, call);
    dup2(from: c_int, to: c_int) = |call| exchanged(to, call);
    __dup2(from: c_int, to: c_int) = |call| exchanged(to, call);
    dup3(from: c_int, to: c_int, flags: c_int) = |call| exchanged(to, call);
}

/// Functions that put something else in the place of the standard streams' descriptors.
macro_rules! replace_standard {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!(stringify!($name), ": replaces descriptors 0 to 2.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let result = real!($name($($argument => $kind),*) -> c_int);
            (0..3).for_each(forget);
            result
        }
    )*};
}

replace_standard! {
    daemon(stays: c_int, keeps: c_int);
    login_tty(fd: c_int);
    forkpty(terminal: *mut c_int, name: *mut c_char, termios: *const libc::termios, size: *const libc::winsize);
}

/// Result of a fork that has told the library nothing: 0 in the child.
fn forked<T: PartialEq + From<u8>>(child: T) -> T {
    if is_on() && child == T::from(0) {
        after_fork();
    }
    child
}

/// _Fork(3): fork(2) without what is to be done in a child.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    forked(real!(_Fork() -> libc::pid_t))
}

/// In a table of descriptors of its own, a thread has other files under the same numbers. In a new PID namespace, processes that this library makes end it.
const LEFT: c_int = libc::CLONE_FILES | libc::CLONE_NEWPID;

/// unshare(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & LEFT != 0 {
        stop();
    }
    real!(unshare(flags => c_int) -> c_int)
}

/// setns(2): without flags, of any kind of namespace.
#[unsafe(no_mangle)]
unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    if kind == 0 || kind & LEFT != 0 {
        stop();
    }
    real!(setns(fd => c_int, kind => c_int) -> c_int)
}

/// Flag of close_range(2): the thread has a table of descriptors of its own then.
const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE.cast_signed();
const CLOSED_LATER: c_int = libc::CLOSE_RANGE_CLOEXEC.cast_signed();

/// close_range(2). With CLOSE_RANGE_CLOEXEC nothing is closed yet.
#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let call = || real!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int);
    let number = |fd| c_int::try_from(fd).unwrap_or(c_int::MAX);
    with_range(number(first), number(last), flags, call)
}

/// Runs `call`, which closes these descriptors as the flags say.
fn with_range<T>(first: c_int, last: c_int, flags: c_int, call: impl FnOnce() -> T) -> T {
    if flags & UNSHARE != 0 {
        stop();
    }
    match flags & CLOSED_LATER {
        0 => replaced(first, last, call),
        _ => call(),
    }
}

/// closefrom(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    replaced(first.max(0), c_int::MAX, || real!(closefrom(first => c_int)));
}

/// Functions that close a stream.
macro_rules! close_stream {
    ($($name:ident)*) => {$(
        #[doc = concat!(stringify!($name), ": fclose(3) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(stream: *mut FILE) -> c_int {
            let fd = {
                // A stream of memory has none.
                let _errno = KeptErrno::now();
                // SAFETY: the caller gives a stream.
                unsafe { libc::fileno(stream) }
            };
            replaced(fd, fd, || real!($name(stream => *mut FILE) -> c_int))
        }
    )*};
}

close_stream! { fclose _IO_fclose pclose }

/// closedir(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(directory: *mut DIR) -> c_int {
    let fd = match directory.is_null() {
        // An error, which the C library tells.
        true => -1,
        // SAFETY: the caller gives an open directory.
        false => unsafe { libc::dirfd(directory) },
    };
    replaced(fd, fd, || real!(closedir(directory => *mut DIR) -> c_int))
}

/// fcntl(2): its argument is a number or a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    let call = || real!(fcntl64(fd => c_int, command => c_int, argument => usize) -> c_int);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => new(call()),
        libc::F_SETFL => with_flags(fd, argument, call),
        _ => call(),
    }
}

/// Runs `call`, which sets flags of an open file. Other descriptors may have it as well.
fn with_flags<T>(fd: c_int, flags: usize, call: impl FnOnce() -> T) -> T {
    if flags & libc::O_APPEND as usize == 0 {
        stop_appending(fd);
    }
    let result = call();
    if flags & OTHERS != 0 {
        forget_all();
    }
    result
}

alias! {
    fcntl = fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    __fcntl = fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
}

/// fstat(2), which databases call before each transaction.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, to: *mut libc::stat64) -> c_int {
    let system = |to| real!(fstat64(fd => c_int, to => *mut libc::stat64) -> c_int);
    // SAFETY: the caller gives room for one.
    match unsafe { to.cast::<MaybeUninit<libc::stat64>>().as_mut() } {
        Some(to) => of_descriptor(fd, to, system),
        None => system(to),
    }
}

/// stat(2), answered as [`fstat64`] is.
#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, to: *mut libc::stat64) -> c_int {
    let system = |to| real!(stat64(path => *const c_char, to => *mut libc::stat64) -> c_int);
    // SAFETY: the caller gives room for one.
    match unsafe { to.cast::<MaybeUninit<libc::stat64>>().as_mut() } {
        Some(to) => of_path(path, to, system),
        None => system(to),
    }
}

alias! {
    fstat = fstat64(fd: c_int, to: *mut libc::stat64) -> c_int;
    stat = stat64(path: *const c_char, to: *mut libc::stat64) -> c_int;
}

/// Functions that change blocks, times or the mode of a file, of which the kernel keeps nothing.
macro_rules! change {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!(stringify!($name), ": takes room for a file or gives it back, or changes an attribute, which may be an access list.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let result = real!($name($($argument => $kind),*) -> c_int);
            forget_answers();
            result
        }
    )*};
}

change! {
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int);
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int);
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, bytes: size_t, flags: c_int);
    removexattr(path: *const c_char, name: *const c_char);
    lremovexattr(path: *const c_char, name: *const c_char);
    fremovexattr(fd: c_int, name: *const c_char);
    fallocate(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t);
    fallocate64(fd: c_int, mode: c_int, offset: off64_t, bytes: off64_t);
    posix_fallocate(fd: c_int, offset: off64_t, bytes: off64_t);
    posix_fallocate64(fd: c_int, offset: off64_t, bytes: off64_t);
}

/// syscall(2), by which some programs close and duplicate descriptors.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // A child of vfork(2) that has the memory returns from here on this stack, and leaves its parent nothing to return to: it gets a copy.
    const VM: usize = libc::CLONE_VM.cast_unsigned() as usize;
    let (number, a, b) = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => (
            libc::SYS_clone,
            (libc::CLONE_VFORK | libc::SIGCHLD).cast_unsigned() as usize,
            0,
        ),
        libc::SYS_clone if b == 0 => (number, a & !VM, b),
        _ => (number, a, b),
    };
    let call = || {
        real!(syscall(
            number => c_long,
            a => usize,
            b => usize,
            c => usize,
            d => usize,
            e => usize,
            f => usize
        ) -> c_long)
    };
    let fd = |value: usize| c_int::try_from(value & 0xFFFF_FFFF).unwrap_or(c_int::MAX);
    if !is_on() {
        return call();
    }
    match number {
        libc::SYS_close => replaced(fd(a), fd(a), call),
        libc::SYS_close_range => with_range(fd(a), fd(b), fd(c), call),
        libc::SYS_unshare if fd(a) & LEFT != 0 => {
            stop();
            call()
        }
        libc::SYS_setns if fd(b) == 0 || fd(b) & LEFT != 0 => {
            stop();
            call()
        }
        libc::SYS_mlockall => {
            stop();
            call()
        }
        libc::SYS_fallocate
        | libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_removexattr
        | libc::SYS_lremovexattr
        | libc::SYS_fremovexattr => {
            let result = call();
            forget_answers();
            result
        }
        libc::SYS_setrlimit | libc::SYS_prlimit64 => {
            let result = call();
            forget_all();
            result
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => forked(call()),
        // Of memory of its own, and on the caller's stack.
        libc::SYS_clone if b == 0 => forked(call()),
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => written(fd(a), call()),
        libc::SYS_dup3 => exchanged(fd(b), call),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => exchanged(fd(b), call),
        libc::SYS_fcntl if fd(b) == libc::F_SETFL => with_flags(fd(a), c, call),
        _ => call(),
    }
}

/// Functions that set a limit of the process: one on the size of files holds for each write.
macro_rules! limit {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!(stringify!($name), ": setrlimit(2) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let result = real!($name($($argument => $kind),*) -> c_int);
            if is_on() {
                forget_all();
            }
            result
        }
    )*};
}

limit! {
    setrlimit(resource: c_int, limit: *const libc::rlimit);
    setrlimit64(resource: c_int, limit: *const libc::rlimit64);
    prlimit(process: libc::pid_t, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit);
    prlimit64(process: libc::pid_t, resource: c_int, new: *const libc::rlimit64, old: *mut libc::rlimit64);
}

/// mlockall(2): keeps all mappings in memory, holes of files and all. From then on nothing is mapped.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    stop();
    real!(mlockall(flags => c_int) -> c_int)
}
