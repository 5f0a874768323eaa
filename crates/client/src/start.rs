//! Beginning and end of a process, and fork(2).

use crate::real::{alias, look_all_up, real};
use homenode_mapped::statistics;
use std::ffi::{CStr, c_int};

/// Set by `homenode run`: the library does nothing without it.
const RUN: &CStr = c"HOMENODE_RUN";
/// Its value for `--stats`, before the number of the process that runs the command.
const STATS: &[u8] = b"stats";
/// The device of the one pool that it is for, as `major:minor`.
const DEVICE: &CStr = c"HOMENODE_RUN_DEVICE";

/// A variable of the environment.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a string that ends in NUL; nobody changes the environment before main().
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a string that ends in NUL, of the environment.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

fn device(text: &[u8]) -> Option<u64> {
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

extern "C" fn start() {
    let Some(value) = variable(RUN) else { return };
    look_all_up();
    if let Some(command) = value.strip_prefix(STATS) {
        let command = std::str::from_utf8(command).ok().and_then(|number| number.parse().ok());
        statistics::start(command.unwrap_or(0));
    }
    if let Some(device) = variable(DEVICE).and_then(device) {
        homenode_mapped::only(device);
    }
    homenode_mapped::start_all();
}

extern "C" fn end() {
    statistics::tell();
}

/// _exit(2): by it children of a fork(2) end, which run no other end.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    statistics::tell();
    real!(_exit(status => c_int) -> !)
}

alias! { _Exit = _exit(status: c_int) -> !; }

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
