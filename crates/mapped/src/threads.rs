//! Mappings that threads copy through, so that none is unmapped under them.
//!
//! Hazard pointers: a thread notes the mapping in its slot, and looks again whether the descriptor still has it. Whoever takes a mapping from a descriptor
//! has all threads pass a barrier (membarrier(2)) and then looks at the slots, so a thread pays no fence. A slot belongs to a thread by its number. When all slots
//! are taken, those of threads that are gone become free again. Handlers of signals may interrupt a copy and copy themselves: a slot notes several.

use crate::errno::KeptErrno;
use crate::files::Descriptor;
use crate::mapped::Mapped;
use crate::statistics::is_own_process;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicUsize, Ordering, compiler_fence};

/// Threads that copy at a time; others make system calls.
const SLOTS: usize = 1024;
/// Slots that a look for threads that are gone has to give back to pay for itself: it takes a system call a slot.
const GIVEN_BACK_MIN: usize = SLOTS / 32;
/// Copies that interrupt each other in a thread.
const DEPTH: usize = 4;

#[repr(align(128))]
struct Slot {
    /// The thread's number, 0 if it is nobody's.
    owner: AtomicI32,
    using: [Use; DEPTH],
}

/// A copy that is under way.
struct Use {
    /// Address of the mapping, 0 for none.
    mapped: AtomicUsize,
    /// An address on the stack of the function that copies.
    frame: AtomicUsize,
}

static ALL: [Slot; SLOTS] = [const {
    Slot {
        owner: AtomicI32::new(0),
        using: [const {
            Use {
                mapped: AtomicUsize::new(0),
                frame: AtomicUsize::new(0),
            }
        }; DEPTH],
    }
}; SLOTS];
/// Slots that were ever taken lie below this number.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// False while each slot is a thread's, as far as is known.
static HAS_FREE: AtomicBool = AtomicBool::new(true);
/// Second in which threads that are gone were looked for, unless that gave back enough slots.
static LOOKED: AtomicI64 = AtomicI64::new(i64::MIN);

thread_local! {
    /// The number of this thread's slot, and 1; 0 for none.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// A thread copies through a mapping until this is dropped.
pub(crate) struct Inside<'a> {
    mapped: &'a Mapped,
    using: &'static Use,
}

impl Inside<'_> {
    pub(crate) fn mapped(&self) -> &Mapped {
        self.mapped
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: the copy comes before it.
        self.using.mapped.store(0, Ordering::Release);
    }
}

/// Notes that this thread is about to copy through the mapping that a descriptor has; `None` if it has none, or the thread cannot.
#[inline]
pub(crate) fn enter(descriptor: &Descriptor) -> Option<Inside<'_>> {
    let mapped = descriptor.mapped()?;
    let (using, frame) = free_use(own_slot()?)?;
    let address = std::ptr::from_ref(mapped).addr();
    using.mapped.store(address, Ordering::Relaxed);
    // Now that it is taken: a handler before may have copied with it, from a frame of its own.
    compiler_fence(Ordering::SeqCst);
    using.frame.store(frame, Ordering::Relaxed);
    // Before the look below, as `is_used` sees it: that has every thread pass a barrier after the descriptor has lost the mapping.
    compiler_fence(Ordering::SeqCst);
    let inside = Inside { mapped, using };
    // A handler between the two stores may have taken it for one that was left.
    let is_noted = using.mapped.load(Ordering::Relaxed) == address;
    (is_noted && descriptor.has(mapped)).then_some(inside)
}

#[inline]
fn own_slot() -> Option<&'static Slot> {
    match OWN.get() {
        0 => take_slot(),
        number => Some(&ALL[number - 1]),
    }
}

#[cold]
fn take_slot() -> Option<&'static Slot> {
    let _errno = KeptErrno::now();
    if !is_own_process() {
        // The slot would stay behind in this process's thread, as that of one which has ended.
        return None;
    }
    // SAFETY: it has no conditions.
    let thread = unsafe { libc::gettid() };
    let now = second();
    // Where there are more threads than slots, each call comes here: one look in a second has to do.
    if !HAS_FREE.load(Ordering::Relaxed) && LOOKED.load(Ordering::Relaxed) == now {
        return None;
    }
    let number = take_free(thread).or_else(|| {
        // Noted first: of many threads at once, one looks.
        if LOOKED.swap(now, Ordering::Relaxed) == now {
            return None;
        }
        if give_back(thread) >= GIVEN_BACK_MIN {
            LOOKED.store(i64::MIN, Ordering::Relaxed);
        }
        take_free(thread)
    })?;
    TAKEN.fetch_max(number + 1, Ordering::AcqRel);
    crate::faults::let_through();
    OWN.set(number + 1);
    Some(&ALL[number])
}

/// Takes a slot that is nobody's; gives its number.
fn take_free(thread: i32) -> Option<usize> {
    let free = (0..SLOTS).find(|number| ALL[*number].pass(0, thread));
    if free.is_none() {
        HAS_FREE.store(false, Ordering::Relaxed);
    }
    free
}

/// Makes the slots of threads that are gone free; returns their number.
fn give_back(thread: i32) -> usize {
    let is_given = |slot: &&Slot| {
        let owner = slot.owner.load(Ordering::Relaxed);
        // This thread's until it is free: another look must not clear what a new owner has noted.
        if owner == 0 || !is_gone(owner) || !slot.pass(owner, thread) {
            return false;
        }
        // A thread that has ended copies no more, wherever it left.
        slot.using
            .iter()
            .for_each(|using| using.mapped.store(0, Ordering::Release));
        slot.pass(thread, 0)
    };
    let given = ALL.iter().filter(is_given).count();
    if given > 0 {
        HAS_FREE.store(true, Ordering::Relaxed);
    }
    given
}

impl Slot {
    /// Changes the owner.
    fn pass(&self, from: i32, to: i32) -> bool {
        // Acquire and release: a new owner finds what the last look has cleared.
        self.owner.load(Ordering::Relaxed) == from
            && self
                .owner
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}

/// Whether a thread of this process has ended. A child of vfork(2) cannot tell.
fn is_gone(thread: i32) -> bool {
    let _errno = KeptErrno::now();
    if !is_own_process() {
        return false;
    }
    // SAFETY: it has no conditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: takes numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    sent < 0 && crate::errno::errno() == libc::ESRCH
}

fn second() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec
}

/// A place to note a copy in that no copy has which this one interrupts, and the frame to note there.
#[inline]
fn free_use(slot: &'static Slot) -> Option<(&'static Use, usize)> {
    let frame = 0_u8;
    let frame = std::ptr::from_ref(&frame).addr();
    let free = |using: &Use| using.mapped.load(Ordering::Relaxed) == 0;
    let using = match free(&slot.using[0]) {
        true => &slot.using[0],
        false => interrupted(slot, frame)?,
    };
    Some((using, frame))
}

/// [`free_use`] in a handler that has interrupted a copy, or after one that was left by siglongjmp(3).
#[cold]
fn interrupted(slot: &'static Slot, frame: usize) -> Option<&'static Use> {
    let _errno = KeptErrno::now();
    let mut stack = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: 0,
        ss_size: 0,
    };
    // SAFETY: asks only, into a stack_t.
    let asked = unsafe { libc::sigaltstack(std::ptr::null(), &raw mut stack) };
    let is_same_stack = asked == 0 && stack.ss_flags & libc::SS_ONSTACK == 0;
    for using in &slot.using {
        let is_left = using.mapped.load(Ordering::Relaxed) != 0 && using.frame.load(Ordering::Relaxed) <= frame;
        // The stack grows down, so a frame below this one, or in its place, has been left.
        if is_same_stack && is_left {
            using.mapped.store(0, Ordering::Release);
        }
    }
    slot.using
        .iter()
        .find(|using| using.mapped.load(Ordering::Relaxed) == 0)
}

/// Whether some thread may be copying through a mapping that no descriptor has any more.
pub(crate) fn is_used(mapped: &Mapped) -> bool {
    let address = std::ptr::from_ref(mapped).addr();
    let slots = &ALL[..TAKEN.load(Ordering::Acquire)];
    // Acquire: what that thread has copied comes before the mapping goes. One that has ended copies no more.
    let has = |slot: &Slot| {
        let mut using = slot.using.iter();
        using.any(|using| using.mapped.load(Ordering::Acquire) == address)
            && !is_gone(slot.owner.load(Ordering::Relaxed))
    };
    slots.iter().any(has)
}

/// Has all threads of the process pass a barrier. False if that cannot be done.
pub(crate) fn pass_barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Gets the process ready for [`pass_barrier`]. False if that cannot be: nothing could ever be unmapped.
pub(crate) fn start() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

/// In a new process with a copy of its parent's memory, and a client as that is. It began with one thread, which may have a slot since before.
pub(crate) fn after_fork() {
    let own = OWN.get();
    // SAFETY: it has no conditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: it has no conditions.
    let is_first = process == unsafe { libc::gettid() };
    for (number, slot) in ALL.iter().enumerate().take(TAKEN.load(Ordering::Relaxed)) {
        if number + 1 == own || !is_first {
            // Else the first thread may copy with it now, whichever it is.
            slot.owner.store(process, Ordering::Relaxed);
        } else {
            slot.using
                .iter()
                .for_each(|using| using.mapped.store(0, Ordering::Relaxed));
            slot.owner.store(0, Ordering::Relaxed);
        }
    }
    HAS_FREE.store(true, Ordering::Relaxed);
}
