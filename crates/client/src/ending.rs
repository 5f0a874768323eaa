//! The end of a thread within a function here: pthread_cancel(3), or pthread_exit(3) in a handler, takes all functions off its stack.
//!
//! Frames of C let that pass. Rust's personality function, which the unwinder asks about each frame of Rust, would end the program. The linker has this one take its place
//! (build.rs). What a frame would have dropped stays: a thread that is gone copies no more, and none ends while it holds anything else, as it blocks all signals then.

use std::ffi::{c_int, c_void};

/// Flag of the unwinder (`_UA_FORCE_UNWIND`): a thread ends.
const IS_FORCED: c_int = 8;
/// Answer to the unwinder (`_URC_CONTINUE_UNWIND`): the frame has nothing to do.
const GO_ON: c_int = 8;

unsafe extern "C" {
    fn __real_rust_eh_personality(
        version: c_int,
        actions: c_int,
        class: u64,
        exception: *mut c_void,
        context: *mut c_void,
    ) -> c_int;
}

/// The personality of all frames of Rust in this library.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_rust_eh_personality(
    version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> c_int {
    if actions & IS_FORCED != 0 {
        return GO_ON;
    }
    // SAFETY: the unwinder's arguments.
    unsafe { __real_rust_eh_personality(version, actions, class, exception, context) }
}
