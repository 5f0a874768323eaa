//! SIGBUS: the library's own for copies, and the program's for all else.
//!
//! A copy that meets a page which the file does not have any more, or for which there is no room, ends by this handler, and becomes the system call. The program sees its
//! own action for the signal, which is called for what is not a copy. A thread that has the signal blocked would be killed by such a page, so it is never blocked while
//! the handler is there: the program's masks are told as it has set them where it asks in the same call only.

use crate::real::real;
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

/// Catches faults of copies from now on. False if that cannot be. By one thread at a time.
pub(crate) fn catch_faults() -> bool {
    if IS_CAUGHT.load(Ordering::Relaxed) {
        return true;
    }
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as Action as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let done = real!(sigaction(libc::SIGBUS => c_int, &raw const action => *const libc::sigaction, before.as_mut_ptr() => *mut libc::sigaction) -> c_int);
    if done != 0 {
        return false;
    }
    // SAFETY: the call has filled it.
    PROGRAMS.set(unsafe { before.assume_init_ref() });
    IS_CAUGHT.store(true, Ordering::Release);
    true
}

/// Unblocks the signal in this thread.
pub(crate) fn let_faults_through() {
    if !IS_CAUGHT.load(Ordering::Relaxed) {
        return;
    }
    let mut mask = empty_mask();
    // SAFETY: a mask, and a signal's number.
    unsafe { libc::sigaddset(&raw mut mask, libc::SIGBUS) };
    let none = std::ptr::null_mut();
    real!(pthread_sigmask(libc::SIG_UNBLOCK => c_int, &raw const mask => *const libc::sigset_t, none => *mut libc::sigset_t) -> c_int);
}

/// No handler runs in this thread until it is dropped: one might jump out of what is done meanwhile.
pub(crate) struct Quiet(libc::sigset_t);

impl Quiet {
    pub(crate) fn new() -> Self {
        let (mut all, mut before) = (empty_mask(), empty_mask());
        // SAFETY: a mask.
        unsafe { libc::sigfillset(&raw mut all) };
        let how = libc::SIG_SETMASK;
        real!(pthread_sigmask(how => c_int, &raw const all => *const libc::sigset_t, &raw mut before => *mut libc::sigset_t) -> c_int);
        Self(before)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let (how, none) = (libc::SIG_SETMASK, std::ptr::null_mut());
        real!(pthread_sigmask(how => c_int, &raw const self.0 => *const libc::sigset_t, none => *mut libc::sigset_t) -> c_int);
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
            let none = std::ptr::null_mut();
            real!(sigaction(signal => c_int, &raw const action => *const libc::sigaction, none => *mut libc::sigaction) -> c_int);
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
    let how = libc::SIG_BLOCK;
    real!(pthread_sigmask(how => c_int, &raw const mask => *const libc::sigset_t, &raw mut before => *mut libc::sigset_t) -> c_int);
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
    let none = std::ptr::null_mut();
    real!(pthread_sigmask(libc::SIG_SETMASK => c_int, &raw const before => *const libc::sigset_t, none => *mut libc::sigset_t) -> c_int);
}

/// A mask of the program's, but for the signal.
fn without_bus(mut mask: libc::sigset_t) -> libc::sigset_t {
    if IS_CAUGHT.load(Ordering::Relaxed) {
        // SAFETY: a mask, and a signal's number.
        unsafe { libc::sigdelset(&raw mut mask, libc::SIGBUS) };
    }
    mask
}

/// A pointer to a mask of the program's, or to `place`, which gets it without the signal.
fn checked(mask: *const libc::sigset_t, place: &mut MaybeUninit<libc::sigset_t>) -> *const libc::sigset_t {
    if mask.is_null() || !crate::files::is_on() {
        return mask;
    }
    // SAFETY: the caller of the C function gives a mask.
    std::ptr::from_mut(place.write(without_bus(unsafe { *mask })))
}

/// sigaction(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !crate::files::is_on() {
        return real!(sigaction(signal => c_int, new => *const libc::sigaction, old => *mut libc::sigaction) -> c_int);
    }
    // SAFETY: the caller gives none or one.
    let wanted = unsafe { new.as_ref() };
    if is_ours(signal) {
        let before = PROGRAMS.action();
        if let Some(wanted) = wanted {
            PROGRAMS.set(wanted);
        }
        if !old.is_null() {
            // SAFETY: the caller gives room for one.
            unsafe { old.write(before) };
        }
        return 0;
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
    let before = PROGRAMS.action();
    // SAFETY: all zero bits are a sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    PROGRAMS.set(&action);
    before.sa_sigaction
}

fn is_ours(number: c_int) -> bool {
    number == libc::SIGBUS && IS_CAUGHT.load(Ordering::Acquire)
}

/// Functions that set a handler, which stays or goes with its first call.
macro_rules! signal {
    ($($name:ident = $flags:expr;)*) => {$(
        #[doc = concat!(stringify!($name), ": signal(3) or a relative of it.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(number: c_int, handler: usize) -> usize {
            if is_ours(number) && handler != SIG_HOLD {
                return set_handler(handler, $flags);
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
            let ours = if IS_CAUGHT.load(Ordering::Relaxed) { 1 << (libc::SIGBUS - 1) } else { 0 };
            real!($name(mask & !ours => c_int) -> c_int)
        }
    )*};
}

of_few! { sigblock sigsetmask }

/// [`sigaction`] by another name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's.
    unsafe { sigaction(signal, new, old) }
}

/// sigprocmask(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    let mut place = MaybeUninit::uninit();
    let new = if how == libc::SIG_UNBLOCK {
        new
    } else {
        checked(new, &mut place)
    };
    real!(sigprocmask(how => c_int, new => *const libc::sigset_t, old => *mut libc::sigset_t) -> c_int)
}

/// pthread_sigmask(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    let mut place = MaybeUninit::uninit();
    let new = if how == libc::SIG_UNBLOCK {
        new
    } else {
        checked(new, &mut place)
    };
    real!(pthread_sigmask(how => c_int, new => *const libc::sigset_t, old => *mut libc::sigset_t) -> c_int)
}

/// sigsuspend(2): handlers run with its mask.
#[unsafe(no_mangle)]
unsafe extern "C" fn sigsuspend(mask: *const libc::sigset_t) -> c_int {
    let mut place = MaybeUninit::uninit();
    let mask = checked(mask, &mut place);
    real!(sigsuspend(mask => *const libc::sigset_t) -> c_int)
}

/// ppoll(2): likewise.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    polled: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut place = MaybeUninit::uninit();
    let mask = checked(mask, &mut place);
    real!(ppoll(polled => *mut libc::pollfd, count => libc::nfds_t, timeout => *const libc::timespec, mask => *const libc::sigset_t) -> c_int)
}

/// [`ppoll`] of a program that was built with checks of lengths.
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    polled: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
    room: usize,
) -> c_int {
    let mut place = MaybeUninit::uninit();
    let mask = checked(mask, &mut place);
    real!(__ppoll_chk(
        polled => *mut libc::pollfd,
        count => libc::nfds_t,
        timeout => *const libc::timespec,
        mask => *const libc::sigset_t,
        room => usize
    ) -> c_int)
}

/// pselect(2): likewise.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut place = MaybeUninit::uninit();
    let mask = checked(mask, &mut place);
    real!(pselect(
        count => c_int,
        read => *mut libc::fd_set,
        write => *mut libc::fd_set,
        except => *mut libc::fd_set,
        timeout => *const libc::timespec,
        mask => *const libc::sigset_t
    ) -> c_int)
}

/// epoll_pwait(2): likewise.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut place = MaybeUninit::uninit();
    let mask = checked(mask, &mut place);
    real!(epoll_pwait(
        epoll => c_int,
        events => *mut libc::epoll_event,
        count => c_int,
        timeout => c_int,
        mask => *const libc::sigset_t
    ) -> c_int)
}

/// epoll_pwait2(2): likewise.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut place = MaybeUninit::uninit();
    let mask = checked(mask, &mut place);
    real!(epoll_pwait2(
        epoll => c_int,
        events => *mut libc::epoll_event,
        count => c_int,
        timeout => *const libc::timespec,
        mask => *const libc::sigset_t
    ) -> c_int)
}
