//! Beginning and end of a process, and fork(2).

use crate::{files, statistics, threads};
use std::ffi::CStr;

/// Set by `homenode run`: the library does nothing without it.
const RUN: &CStr = c"HOMENODE_RUN";
/// Its value for `--stats`.
const STATS: &[u8] = b"stats";

extern "C" fn start() {
    // SAFETY: a string that ends in NUL; nobody changes the environment before main().
    let value = unsafe { libc::getenv(RUN.as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: a string that ends in NUL, of the environment.
    if unsafe { CStr::from_ptr(value) }.to_bytes() == STATS {
        statistics::start();
    }
    threads::start();
    // SAFETY: functions that may be called in a child.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    files::start();
}

extern "C" fn after_fork() {
    files::after_fork();
    threads::after_fork();
}

extern "C" fn end() {
    statistics::tell();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
