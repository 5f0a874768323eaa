//! State of each descriptor: a mapping, that there is none, or how often it was used.
//!
//! A descriptor is learned when it has been used some times, so that short-lived ones cost nothing. Whatever closes or replaces it makes it unknown, before
//! and after. A state changes from one to the next by an exchange, so a descriptor that was closed meanwhile gets no mapping.

use crate::attributes;
use crate::errno::KeptErrno;
use crate::faults::{self, Quiet};
use crate::mapped::Mapped;
use crate::{pages, statistics, threads};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

/// Descriptors that can have a mapping: those below.
const DESCRIPTORS: usize = 1 << 16;
/// Uses before a descriptor is learned. Learning costs requests to the server; a journal that lives for one transaction is used fewer times.
const USES: usize = 31;
const LEARNING: usize = USES + 1;
const CLOSING: usize = USES + 2;
/// System calls for good: until it is closed.
const OTHER: usize = USES + 3;
/// Below all addresses of mappings.
const STATES: usize = 4096;

/// The state of a descriptor: uses up to [`USES`], one of the states above, or the address of a [`Mapped`].
pub(crate) struct Descriptor(AtomicUsize);

static ALL: [Descriptor; DESCRIPTORS] = [const { Descriptor(AtomicUsize::new(0)) }; DESCRIPTORS];
/// Number of times that each descriptor was closed or replaced.
static CLOSES: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
/// True while anything may be mapped.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// True where descriptors are learned by their use. Others are learned by [`learn_now`] only.
static LEARNS_ALL: AtomicBool = AtomicBool::new(false);
/// Descriptors that were ever learned lie below this one.
static LEARNED: AtomicI32 = AtomicI32::new(0);
/// Held by who learns a descriptor, or takes mappings out of use.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Mappings that no descriptor has any more, and that wait until no thread copies through them.
static LEAVING: AtomicPtr<Mapped> = AtomicPtr::new(std::ptr::null_mut());

impl Descriptor {
    /// Its mapping. Only a look: [`threads::enter`] makes it stay.
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&Mapped> {
        let state = self.0.load(Ordering::Acquire);
        if state < STATES {
            return None;
        }
        // SAFETY: a mapping's own memory is never given back, and is a mapping's again if it is reused; `has` tells whether it is still this one's.
        Some(unsafe { &*std::ptr::with_exposed_provenance::<Mapped>(state) })
    }

    #[inline]
    pub(crate) fn has(&self, mapped: &Mapped) -> bool {
        self.0.load(Ordering::Acquire) == std::ptr::from_ref(mapped).addr()
    }

    fn change(&self, from: usize, to: usize) -> bool {
        self.0
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// Changes the state, and takes the mapping that it had out of use.
    fn set(&self, state: usize) {
        leave_if_mapped(self.0.swap(state, Ordering::SeqCst));
    }
}

/// Gets the process ready. False if it cannot be, or another thread is about it.
fn start() -> bool {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    if is_on() || IS_BEGUN.swap(true, Ordering::Relaxed) {
        return is_on();
    }
    // SAFETY: takes a number.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != 4096 {
        return false;
    }
    statistics::begin();
    if !faults::catch() || !threads::start() {
        return false;
    }
    // Masks that are saved from now on, and set again by the C library itself, let it through.
    faults::let_through();
    attributes::start();
    // SAFETY: functions that may be called in a child.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_of_libc)) };
    IS_ON.store(true, Ordering::Relaxed);
    true
}

/// From now on each descriptor is learned that is used often enough.
pub fn start_all() {
    let is_on = start();
    LEARNS_ALL.store(is_on, Ordering::Relaxed);
}

/// Learns a descriptor that was just opened, at once or with its next use. Where that cannot be, calls on it are system calls.
pub fn learn_now(fd: c_int) {
    forget(fd);
    let descriptor = usize::try_from(fd).ok().and_then(|fd| ALL.get(fd));
    if let Some(descriptor) = descriptor
        && descriptor.change(0, USES)
        && start()
    {
        learn(descriptor, USES, fd, 0, None);
    }
}

/// Unmaps everything when nobody copies through it, and maps nothing any more. Does nothing in a child of vfork(2), which is another process.
pub fn stop() {
    if is_on() && statistics::is_own_process() {
        IS_ON.store(false, Ordering::SeqCst);
        // Who learns a descriptor now sees that, or is seen.
        fence(Ordering::SeqCst);
        forget_all();
    }
}

/// Returns true if anything may be mapped. Nothing that the program does matters before.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns true if a descriptor has a mapping.
pub(crate) fn is_mapped(fd: c_int) -> bool {
    let descriptor = usize::try_from(fd).ok().and_then(|fd| ALL.get(fd));
    descriptor.is_some_and(|descriptor| descriptor.mapped().is_some())
}

/// Returns the number of times that a descriptor was closed or replaced. Asked before its mapping is: a mapping is of a file that it had at that time, or later.
#[inline]
pub(crate) fn closes(fd: c_int) -> u32 {
    let closes = usize::try_from(fd).ok().and_then(|fd| CLOSES.get(fd));
    // Acquire: before the look at the descriptor's state.
    closes.map_or(0, |closes| closes.load(Ordering::Acquire))
}

/// Returns true if a descriptor is known to be none of a pool, and counts a call on it.
#[inline]
pub fn is_other(fd: c_int) -> bool {
    let state = usize::try_from(fd).ok().and_then(|fd| ALL.get(fd));
    let is_other = state.is_none_or(|state| state.0.load(Ordering::Relaxed) == OTHER);
    if is_other {
        statistics::count(statistics::Outcome::Other);
    }
    is_other
}

/// A descriptor that may have a mapping.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<&'static Descriptor> {
    let descriptor = ALL.get(usize::try_from(fd).ok()?)?;
    match descriptor.0.load(Ordering::Relaxed) {
        OTHER => None,
        state if state >= STATES => Some(descriptor),
        state => first_uses(descriptor, fd, state),
    }
}

/// Counts a use of a descriptor. Returns true if a call on it may be a copy.
#[inline]
pub fn has(fd: c_int) -> bool {
    find(fd).is_some()
}

/// Counts a use, and learns the descriptor with the last one. None yet.
#[cold]
fn first_uses(descriptor: &'static Descriptor, fd: c_int, state: usize) -> Option<&'static Descriptor> {
    match state {
        _ if !is_on() => {}
        USES => learn(descriptor, USES, fd, 0, None),
        uses if uses < USES && LEARNS_ALL.load(Ordering::Relaxed) => {
            descriptor.change(uses, uses + 1);
        }
        _ => {}
    }
    None
}

/// Finds out what a descriptor is, and maps what is around `offset`, if its state is still the one before. Where somebody else is about such a thing, it is done with a
/// later use. The mapping has `patience`, if it takes the place of an earlier one.
fn learn(descriptor: &Descriptor, before: usize, fd: c_int, offset: u64, patience: Option<u32>) {
    let _errno = KeptErrno::now();
    // A child of vfork(2) may have another file under this number.
    if !statistics::is_own_process() {
        return;
    }
    LEARNED.fetch_max(fd + 1, Ordering::Relaxed);
    // The server is asked with nothing held, and handlers may run: it may take long.
    let found = pages::look(fd);
    let asked = found.and_then(|found| pages::ask_first(fd, &found, offset));
    let why = asked.as_ref().err().copied().unwrap_or(statistics::Why::NotMapped);
    {
        let Some(_busy) = Busy::new() else { return };
        if !is_on() || !descriptor.change(before, LEARNING) {
            return;
        }
        leave_if_mapped(before);
        // Another file may have the number since.
        let is_same = pages::look(fd) == found;
        let was_mapped = asked.as_ref().is_ok_and(pages::Asked::was_mapped);
        let file = asked.ok().filter(|_| is_same).and_then(pages::file);
        let mapped = file.as_ref().and_then(|file| Mapped::new(fd, file, offset, patience));
        if let (Some(file), None) = (&file, mapped) {
            pages::let_go(file.place);
        }
        let state = match mapped {
            Some(mapped) => std::ptr::from_ref(mapped).expose_provenance(),
            // Another thread has unmapped the page of its line meanwhile: the next use maps it.
            None if is_same && was_mapped && file.is_none() => USES,
            None if is_same => OTHER,
            None => 0,
        };
        match (descriptor.change(LEARNING, state), mapped) {
            (true, None) if state == OTHER => statistics::count_left(why),
            (true, Some(_)) => {
                fence(Ordering::SeqCst);
                if !is_on() {
                    // Stopped meanwhile.
                    descriptor.set(0);
                }
            }
            (true, None) | (false, None) => {}
            // Closed meanwhile.
            (false, Some(mapped)) => leave(std::ptr::from_ref(mapped).cast_mut()),
        }
    }
    free_leaving_if_any();
}

/// Maps another part of a file, or what the server tells of it now: the mapping at this address is not what is needed. It serves until the server has answered.
pub(crate) fn learn_again(descriptor: &Descriptor, mapped: usize, fd: c_int, offset: u64, patience: u32) {
    learn(descriptor, mapped, fd, offset, Some(patience));
}

/// Runs `close`, which closes or replaces descriptors from `first` to `last`: they are unknown then.
pub fn replaced<R>(first: c_int, last: c_int, close: impl FnOnce() -> R) -> R {
    // A child of vfork(2) closes descriptors of its own: those of its parent are mapped as before.
    if is_on() && !statistics::is_own_process() {
        return close();
    }
    if !is_on() || first < 0 {
        let result = close();
        let _errno = KeptErrno::now();
        // What was in use when all was to be unmapped.
        free_leaving_if_any();
        return result;
    }
    // Of many, those that were ever used.
    let used = || {
        let last = if first == last {
            last
        } else {
            last.min(LEARNED.load(Ordering::Relaxed))
        };
        let end = usize::try_from(last).map_or(0, |last| last + 1).min(DESCRIPTORS);
        ALL.get(usize::try_from(first).unwrap_or(0)..end).unwrap_or(&[])
    };
    let all = used();
    all.iter().for_each(|descriptor| descriptor.set(CLOSING));
    let closes = CLOSES.iter().skip(usize::try_from(first).unwrap_or(0)).take(all.len());
    // Between the two: who sees the new count finds no mapping of the file, and who finds the file cut sees the new count.
    closes.for_each(|closes| {
        closes.fetch_add(1, Ordering::SeqCst);
    });
    let result = close();
    let _errno = KeptErrno::now();
    all.iter().for_each(|descriptor| {
        // Another thread may have the number by now, for another file.
        descriptor.change(CLOSING, 0);
    });
    // Those that were used for the first time just now.
    used().iter().skip(all.len()).for_each(|descriptor| descriptor.set(0));
    free_leaving_if_any();
    result
}

/// Runs `replace`, which puts another file in the place of a descriptor that is there: it is unknown then.
pub fn exchanged<R>(fd: c_int, replace: impl FnOnce() -> R) -> R {
    let result = replaced(fd, fd, replace);
    // Another thread that made descriptors unknown may have had the file before learned again meanwhile.
    forget(fd);
    result
}

/// Notes a write by the system of which nothing was learned: returns `done`.
pub fn written<T: PartialOrd + Default>(fd: c_int, done: T) -> T {
    let descriptor = usize::try_from(fd).ok().and_then(|fd| ALL.get(fd));
    if done > T::default()
        && let Some(mapped) = descriptor.and_then(Descriptor::mapped)
    {
        mapped.note_written_elsewhere();
    }
    done
}

/// Makes a descriptor unknown: it is new, or the flags of its file have changed.
pub fn forget(fd: c_int) {
    forget_but(fd, 0);
}

/// Makes all descriptors unknown. Those that were opened to be learned are learned again with their next use.
pub fn forget_all() {
    let uses = if LEARNS_ALL.load(Ordering::Relaxed) { 0 } else { USES };
    (0..LEARNED.load(Ordering::Relaxed)).for_each(|fd| forget_but(fd, uses));
}

/// Leaves only a count of its uses of what is known of a descriptor.
fn forget_but(fd: c_int, uses: usize) {
    let descriptor = usize::try_from(fd).ok().and_then(|fd| ALL.get(fd));
    if let Some(descriptor) = descriptor
        && let state @ 1.. = descriptor.0.load(Ordering::Relaxed)
    {
        let _errno = KeptErrno::now();
        // One that is being closed is another one's soon.
        descriptor.set(if state == CLOSING { 0 } else { uses });
        free_leaving_if_any();
    }
}

/// Takes the mapping that a descriptor had out of use, if its state was one.
fn leave_if_mapped(before: usize) {
    if before >= STATES {
        leave(std::ptr::with_exposed_provenance_mut(before));
    }
}

/// Puts a mapping that no descriptor has any more with those that wait.
fn leave(mapped: *mut Mapped) {
    // SAFETY: a mapping's own memory is never given back, and this one is in no list.
    let next = unsafe { &(*mapped).next };
    let mut first = LEAVING.load(Ordering::Relaxed);
    loop {
        next.store(first, Ordering::Relaxed);
        // Release: whoever takes the list sees what is behind it.
        match LEAVING.compare_exchange_weak(first, mapped, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

pub(crate) fn free_leaving_if_any() {
    while !LEAVING.load(Ordering::Relaxed).is_null()
        && let Some(busy) = Busy::new()
    {
        let is_left = free_leaving();
        drop(busy);
        // Between this and the next look another thread may have put one there, and found that this one is busy.
        fence(Ordering::SeqCst);
        if is_left {
            break;
        }
    }
}

/// Unmaps what nobody copies through; returns true if something is left. While [`BUSY`] is held.
fn free_leaving() -> bool {
    let mut is_left = false;
    let mut next = LEAVING.swap(std::ptr::null_mut(), Ordering::Acquire);
    // After they were taken from their descriptors: who copies through them has noted it by then, and others find that they are gone.
    let is_seen = !next.is_null() && threads::pass_barrier();
    while !next.is_null() {
        let current = next;
        // SAFETY: a mapping's own memory is never given back.
        let mapped = unsafe { &*current };
        next = mapped.next.load(Ordering::Relaxed);
        if is_seen && !threads::is_used(mapped) {
            mapped.free();
        } else {
            is_left = true;
            leave(current);
        }
    }
    is_left
}

/// [`BUSY`], held until dropped. No handler comes in between: the thread would not come back from one that jumps.
struct Busy {
    _quiet: Quiet,
}

impl Busy {
    fn new() -> Option<Self> {
        let quiet = Quiet::new();
        // Acquire and release: what the last holder did.
        let taken = BUSY.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Self { _quiet: quiet })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// In the child of a fork(2): threads that are not there may have held what is taken back.
pub fn after_fork() {
    BUSY.store(false, Ordering::Relaxed);
    let learned = usize::try_from(LEARNED.load(Ordering::Relaxed)).unwrap_or(0);
    for descriptor in ALL.iter().take(learned) {
        descriptor.change(LEARNING, 0);
        descriptor.change(CLOSING, 0);
        if let Some(mapped) = descriptor.mapped() {
            mapped.after_fork();
        }
    }
    threads::after_fork();
    statistics::begin();
}

extern "C" fn after_fork_of_libc() {
    after_fork();
}
