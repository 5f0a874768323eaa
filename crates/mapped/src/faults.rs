//! SIGBUS: the handler that ends copies, and the program's own action behind it.
//!
//! A copy that meets a page which the file does not have any more, or for which there is no room, ends by this handler, and becomes the system call. What is not a copy's
//! goes to the action that the program had before, or has set since where its functions are interposed. A thread that has the signal blocked would be killed by such a
//! page: it is unblocked in each thread that copies.

use crate::statistics::is_own_process;
use homenode_shared::end_copy;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type Handler = extern "C" fn(c_int);
type Action = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Places for actions of the program's, taken in turn. One is written while nobody reads it, as no more changes than these come in the time of one look.
const PLACES: usize = 64;

/// The program's action for the signal.
struct Programs {
    /// The number of changes: the last one's place counts.
    changes: AtomicUsize,
    places: [UnsafeCell<MaybeUninit<libc::sigaction>>; PLACES],
    next: AtomicUsize,
}

// SAFETY: see `PLACES`.
unsafe impl Sync for Programs {}

static PROGRAMS: Programs = Programs {
    changes: AtomicUsize::new(0),
    places: [const { UnsafeCell::new(MaybeUninit::zeroed()) }; PLACES],
    next: AtomicUsize::new(1),
};
static IS_CAUGHT: AtomicBool = AtomicBool::new(false);

impl Programs {
    fn action(&self) -> libc::sigaction {
        let place = self.places[self.changes.load(Ordering::Acquire) % PLACES].get();
        // SAFETY: nobody writes to it now.
        let action = unsafe { *place };
        // SAFETY: all bits are a sigaction, zeros as well.
        unsafe { action.assume_init() }
    }

    fn set(&self, action: &libc::sigaction) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // SAFETY: nobody reads it now.
        unsafe { *self.places[number % PLACES].get() = MaybeUninit::new(*action) };
        // Release: with what was written.
        self.changes.store(number, Ordering::Release);
    }
}

/// The program's action for the signal.
pub fn program_action() -> libc::sigaction {
    PROGRAMS.action()
}

/// Changes it.
pub fn set_program_action(action: &libc::sigaction) {
    PROGRAMS.set(action);
}

/// Returns true while the handler is there.
pub fn is_caught() -> bool {
    IS_CAUGHT.load(Ordering::Acquire)
}

/// Catches faults of copies from now on. False if that cannot be. By one thread at a time.
pub(crate) fn catch() -> bool {
    if IS_CAUGHT.load(Ordering::Relaxed) {
        return true;
    }
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as Action as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an action, and room for one.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) };
    if done != 0 {
        return false;
    }
    // SAFETY: the call has filled it.
    PROGRAMS.set(unsafe { before.assume_init_ref() });
    IS_CAUGHT.store(true, Ordering::Release);
    true
}

/// Unblocks the signal in this thread.
pub(crate) fn let_through() {
    if !IS_CAUGHT.load(Ordering::Relaxed) {
        return;
    }
    homenode_shared::let_bus_errors_through();
}

/// No handler runs in this thread until it is dropped: one might jump out of what is done meanwhile.
pub(crate) struct Quiet(libc::sigset_t);

impl Quiet {
    pub(crate) fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // Not by sigfillset(3), which leaves out the signals by which the C library ends threads.
        // SAFETY: room for a mask, which any bits are.
        unsafe { all.as_mut_ptr().write_bytes(u8::MAX, 1) };
        let mut quiet = Self(empty_mask());
        set_mask(all.as_ptr(), &raw mut quiet.0);
        quiet
    }
}

/// Sets this thread's mask. Not by the C library's function, which may leave SIGBUS out where it is interposed.
fn set_mask(new: *const libc::sigset_t, old: *mut libc::sigset_t) {
    /// Bytes of a mask in the kernel.
    const BYTES: usize = 8;
    // SAFETY: a mask, and room for one or none.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, BYTES) };
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_mask(&raw const self.0, std::ptr::null_mut());
    }
}

fn empty_mask() -> libc::sigset_t {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: there is room for a mask.
    unsafe { libc::sigemptyset(mask.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    unsafe { mask.assume_init() }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a siginfo_t to an action with SA_SIGINFO, for the time of the call.
    let is_fault = unsafe { (*info).si_code } > 0;
    // SAFETY: likewise a context.
    if is_fault && end_copy(unsafe { &mut *context.cast() }) {
        return;
    }
    let programs = PROGRAMS.action();
    match programs.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The signal comes again when this returns: the fault by itself, what was sent by the call below.
            // SAFETY: all zero bits are a sigaction, of the default action.
            let action: libc::sigaction = unsafe { std::mem::zeroed() };
            // An interposed sigaction(2) passes the next call on to the kernel then.
            if is_own_process() {
                IS_CAUGHT.store(false, Ordering::Release);
            }
            // SAFETY: an action.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            if !is_fault {
                // SAFETY: takes a number.
                unsafe { libc::raise(signal) };
            }
        }
        handler => call(&programs, handler, signal, info, context),
    }
}

/// Calls the program's handler, with its mask.
fn call(programs: &libc::sigaction, handler: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // Without the signal itself, as a copy in the handler may need it: the handler may meet itself.
    let (mask, mut before) = (without_bus(programs.sa_mask), empty_mask());
    // SAFETY: a mask, and room for one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, &raw mut before) };
    if programs.sa_flags & libc::SA_RESETHAND != 0 {
        // SAFETY: all zero bits are a sigaction, of the default action.
        PROGRAMS.set(&unsafe { std::mem::zeroed() });
    }
    if programs.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program gave it with SA_SIGINFO.
        let handler = unsafe { std::mem::transmute::<usize, Action>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program gave it without SA_SIGINFO.
        let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
        handler(signal);
    }
    // SAFETY: a mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
}

/// A mask of the program's, but for the signal.
pub fn without_bus(mut mask: libc::sigset_t) -> libc::sigset_t {
    if IS_CAUGHT.load(Ordering::Relaxed) {
        // SAFETY: a mask, and a signal's number.
        unsafe { libc::sigdelset(&raw mut mask, libc::SIGBUS) };
    }
    mask
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// pthread_cancel(3) sends the first of both.
    #[test]
    fn a_quiet_thread_blocks_the_signals_of_the_c_library_too() {
        let _quiet = Quiet::new();
        let mut blocked = 0_u64;
        // SAFETY: asks only, into a mask as the kernel has it.
        let asked = unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                std::ptr::null::<u64>(),
                &raw mut blocked,
                size_of::<u64>(),
            )
        };
        assert_eq!(asked, 0);
        assert_eq!(blocked >> 31 & 0b11, 0b11, "signals 32 and 33 in {blocked:x}");
    }
}
