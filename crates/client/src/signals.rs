//! Functions of signals: the program sees its own action for SIGBUS, behind that for copies, and never blocks it.
//!
//! A thread that has SIGBUS blocked would be killed by a copy that meets a page which the file does not have any more. The program's masks are told as it has set them where it
//! asks in the same call only.

use crate::real::{alias, real};
use homenode_mapped::{is_caught, is_on, is_own_process, program_action, set_program_action, without_bus};
use std::ffi::c_int;
use std::mem::MaybeUninit;

/// A pointer to a mask of the program's, or to `place`, which gets it without the signal.
fn checked(mask: *const libc::sigset_t, place: &mut MaybeUninit<libc::sigset_t>) -> *const libc::sigset_t {
    if mask.is_null() || !is_on() {
        return mask;
    }
    // SAFETY: the caller of the C function gives a mask.
    std::ptr::from_mut(place.write(without_bus(unsafe { *mask })))
}

/// sigaction(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller gives none or one.
    let wanted = unsafe { new.as_ref() };
    if is_ours(signal) {
        let before = program_action();
        if let Some(wanted) = wanted {
            set_program_action(wanted);
        }
        if !old.is_null() {
            // SAFETY: the caller gives room for one.
            unsafe { old.write(before) };
        }
        return 0;
    }
    if !is_on() {
        return real!(sigaction(signal => c_int, new => *const libc::sigaction, old => *mut libc::sigaction) -> c_int);
    }
    let changed = wanted.map(|wanted| libc::sigaction {
        sa_mask: without_bus(wanted.sa_mask),
        ..*wanted
    });
    let new = changed.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    real!(sigaction(signal => c_int, new => *const libc::sigaction, old => *mut libc::sigaction) -> c_int)
}

/// Sets the program's action for the signal to a handler with flags; gives the handler before.
fn set_handler(handler: usize, flags: c_int) -> usize {
    let before = program_action();
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    set_program_action(&action);
    before.sa_sigaction
}

/// A child of vfork(2) has actions of its own, and this process's memory.
fn is_ours(number: c_int) -> bool {
    number == libc::SIGBUS && is_caught() && is_own_process()
}

/// Functions that set a handler, which stays or goes with its first call.
macro_rules! signal {
    ($($name:ident = $flags:expr;)*) => {$(
        #[doc = concat!(stringify!($name), ": signal(3) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(number: c_int, handler: usize) -> usize {
            if is_ours(number) {
                return match handler {
                    // It is never blocked.
                    SIG_HOLD => program_action().sa_sigaction,
                    _ => set_handler(handler, $flags),
                };
            }
            real!($name(number => c_int, handler => usize) -> usize)
        }
    )*};
}

/// sigset(3)'s handler that is none: the signal is to be blocked.
const SIG_HOLD: usize = 2;
const ONCE: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

signal! {
    signal = libc::SA_RESTART;
    bsd_signal = libc::SA_RESTART;
    ssignal = libc::SA_RESTART;
    sysv_signal = ONCE;
    __sysv_signal = ONCE;
    sigset = 0;
}

/// Functions of one signal: it is not blocked, and not ignored but by the program.
macro_rules! of_one {
    ($($name:ident = $act:expr;)*) => {$(
        #[doc = concat!(stringify!($name), "(3).")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(number: c_int) -> c_int {
            if is_ours(number) {
                let act: fn() = $act;
                act();
                return 0;
            }
            real!($name(number => c_int) -> c_int)
        }
    )*};
}

of_one! {
    sighold = || ();
    sigignore = || {
        set_handler(libc::SIG_IGN, 0);
    };
}

/// Functions of masks of the first 32 signals.
macro_rules! of_few {
    ($($name:ident)*) => {$(
        #[doc = concat!(stringify!($name), "(3).")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(mask: c_int) -> c_int {
            let ours = if is_caught() { 1 << (libc::SIGBUS - 1) } else { 0 };
            real!($name(mask & !ours => c_int) -> c_int)
        }
    )*};
}

of_few! { sigblock sigsetmask }

/// Functions that change a mask.
macro_rules! change_mask {
    ($($name:ident)*) => {$(
        #[doc = concat!(stringify!($name), ": sigprocmask(2) or its relative for a thread.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
            let mut place = MaybeUninit::uninit();
            let new = if how == libc::SIG_UNBLOCK { new } else { checked(new, &mut place) };
            real!($name(how => c_int, new => *const libc::sigset_t, old => *mut libc::sigset_t) -> c_int)
        }
    )*};
}

change_mask! { sigprocmask pthread_sigmask }

/// Functions that wait while handlers run with a mask.
macro_rules! wait {
    ($($name:ident($($argument:ident: $kind:ty),*), $mask:ident;)*) => {$(
        #[doc = concat!(stringify!($name), ": ppoll(2) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let mut place = MaybeUninit::uninit();
            let $mask = checked($mask, &mut place);
            real!($name($($argument => $kind),*) -> c_int)
        }
    )*};
}

type Mask = *const libc::sigset_t;
type Time = *const libc::timespec;
type Set = *mut libc::fd_set;

wait! {
    sigsuspend(mask: Mask), mask;
    ppoll(polled: *mut libc::pollfd, count: libc::nfds_t, timeout: Time, mask: Mask), mask;
    __ppoll_chk(polled: *mut libc::pollfd, count: libc::nfds_t, timeout: Time, mask: Mask, room: usize), mask;
    pselect(count: c_int, read: Set, write: Set, except: Set, timeout: Time, mask: Mask), mask;
    epoll_pwait(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout: c_int, mask: Mask), mask;
    epoll_pwait2(epoll: c_int, events: *mut libc::epoll_event, count: c_int, timeout: Time, mask: Mask), mask;
}

alias! {
    __sigaction = sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}
