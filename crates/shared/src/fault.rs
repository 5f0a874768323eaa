//! Mapped files whose bytes cannot be had: the signal becomes an error.
//!
//! The kernel sends SIGBUS to a thread that reaches a page of a mapped file which the disk does not give, or which lies behind the file's end. Here
//! that page is noted as lost, zeros of this process are put in its place, and the copy goes on; whoever copied asks afterwards whether
//! a page of what it reached is lost. Only ranges that were registered are treated so. Devices of persistent memory can be mapped in larger units
//! only: there a unit is lost with each of its pages.
//!
//! Invariants: a page is noted before zeros can be seen in its place; it stays noted as long as its range is registered. Cost: a load for each
//! copy while nothing is lost, a look at each lost page otherwise.

use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Ranges that can be registered at a time.
const RANGES_MAX: usize = 256;
/// Pages that are noted one by one; a range that loses more counts as lost.
const PAGES_MAX: usize = 512;
const PAGE_BYTES: usize = 4096;

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Bytes that are lost together, a power of two.
    unit_bytes: AtomicUsize,
    /// More pages were lost than can be noted.
    is_lost: AtomicBool,
}

impl Range {
    fn has(&self, address: usize) -> bool {
        // Acquire: pairs with the release in `in_units`.
        let end = self.end.load(Ordering::Acquire);
        address < end && self.start.load(Ordering::Relaxed) <= address
    }

    /// Frees the places of its pages: it counts as lost as a whole, or is gone.
    fn free_places(&self) {
        for place in &LOST {
            let page = place.load(Ordering::Relaxed);
            if page > FREE && self.has(page) {
                // Release: who sees that it is gone sees that the range is lost. Fails when another thread has freed it, for another page.
                let _ = place.compare_exchange(page, FREE, Ordering::Release, Ordering::Relaxed);
            }
        }
    }
}

static RANGES: [Range; RANGES_MAX] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        unit_bytes: AtomicUsize::new(PAGE_BYTES),
        is_lost: AtomicBool::new(false),
    }
}; RANGES_MAX];
/// A place that had a page. 0 had none yet.
const FREE: usize = 1;
static LOST: [AtomicUsize; PAGES_MAX] = [const { AtomicUsize::new(0) }; PAGES_MAX];
static LOST_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The action for SIGBUS before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A range of addresses whose pages may be lost, until dropped.
#[derive(Debug)]
pub struct Guarded {
    slot: usize,
}

impl Guarded {
    /// Registers mapped memory of a file. Drop it before the mapping goes.
    ///
    /// # Errors
    /// When the action for SIGBUS cannot be set, or too many ranges are registered.
    pub fn new(start: *const u8, bytes: usize) -> io::Result<Self> {
        Self::in_units(start, bytes, PAGE_BYTES)
    }

    /// [`Guarded::new`] for a mapping that the kernel lets change in units of `unit_bytes` only: a power of two, of which `start` is a multiple.
    ///
    /// # Errors
    /// The errors of [`Guarded::new`].
    pub fn in_units(start: *const u8, bytes: usize, unit_bytes: usize) -> io::Result<Self> {
        assert!(
            unit_bytes.is_power_of_two() && unit_bytes >= PAGE_BYTES && start.addr().is_multiple_of(unit_bytes),
            "units of {unit_bytes} bytes"
        );
        install()?;
        let_bus_errors_through();
        let free = |(_, range): &(usize, &Range)| {
            let taken = range
                .start
                .compare_exchange(0, start.addr(), Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        let (slot, range) = RANGES.iter().enumerate().find(free).ok_or(io::ErrorKind::OutOfMemory)?;
        range.is_lost.store(false, Ordering::Relaxed);
        range.unit_bytes.store(unit_bytes, Ordering::Relaxed);
        // Release: who sees the end sees the rest.
        range.end.store(start.addr() + bytes, Ordering::Release);
        Ok(Self { slot })
    }
}

impl Guarded {
    /// [`Guarded::new`] of memory in the place of a file that is not there: all of it counts as lost.
    ///
    /// # Errors
    /// The errors of [`Guarded::new`].
    pub fn of_nothing(start: *const u8, bytes: usize) -> io::Result<Self> {
        let guarded = Self::new(start, bytes)?;
        // Only then does anybody look.
        let nth = LOST_COUNT.fetch_add(1, Ordering::AcqRel);
        if let Some(page) = LOST.get(nth) {
            page.store(FREE, Ordering::Release);
        }
        RANGES[guarded.slot].is_lost.store(true, Ordering::Release);
        Ok(guarded)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let range = &RANGES[self.slot];
        // Another mapping may come to lie there.
        range.free_places();
        range.end.store(0, Ordering::Relaxed);
        range.start.store(0, Ordering::Relaxed);
    }
}

/// True when a page of these bytes is lost. Asked after they were copied, by the thread that did.
#[inline]
#[must_use]
pub fn is_lost(start: *const u8, bytes: usize) -> bool {
    // The copy comes first: the compiler knows nothing of the handler, and other processors might look early.
    fence(Ordering::Acquire);
    LOST_COUNT.load(Ordering::Relaxed) != 0 && looks_lost(start.addr(), bytes)
}

#[cold]
fn looks_lost(start: usize, bytes: usize) -> bool {
    let count = LOST_COUNT.load(Ordering::Acquire).min(PAGES_MAX);
    let range = registered(start);
    let unit_bytes = range.map_or(PAGE_BYTES, |range| range.unit_bytes.load(Ordering::Relaxed));
    let (first, end) = (start / unit_bytes * unit_bytes, start + bytes);
    let is_noted = |page: &AtomicUsize| {
        let mut noted = page.load(Ordering::Acquire);
        while noted == 0 {
            // Another thread is about to note it.
            std::thread::yield_now();
            noted = page.load(Ordering::Acquire);
        }
        (first..end).contains(&noted)
    };
    LOST[..count].iter().any(is_noted) || range.is_some_and(|range| range.is_lost.load(Ordering::Acquire))
}

fn registered(address: usize) -> Option<&'static Range> {
    RANGES.iter().find(|range| range.has(address))
}

/// Unblocks the signal in this thread: one that is blocked ends the process, whatever its action is.
pub fn let_bus_errors_through() {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: it fills the mask.
    unsafe { libc::sigemptyset(mask.as_mut_ptr()) };
    // SAFETY: the call above has filled it.
    let mask = unsafe { mask.assume_init_mut() };
    // SAFETY: a mask, and a signal's number.
    unsafe { libc::sigaddset(mask, libc::SIGBUS) };
    // SAFETY: a mask.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, mask, std::ptr::null_mut()) };
}

/// Sets the action for SIGBUS, once in a process.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zero bits are a sigaction, without flags, an empty mask and the default action.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to a sigaction; the handler calls only what signal-safety(7) allows.
    if unsafe { libc::sigaction(libc::SIGBUS, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zero bits are one, and the call has filled it.
    let before = unsafe { before.assume_init() };
    // Of two threads that come here at once one keeps the action before, and the other ours.
    if before.sa_sigaction != action.sa_sigaction {
        let _ = BEFORE.set(before);
    }
    Ok(())
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a siginfo_t to an action with SA_SIGINFO, for the time of the call.
    let info_of = unsafe { &*info };
    // SAFETY: SIGBUS fills in the address.
    let address = unsafe { info_of.si_addr() }.addr();
    let is_fault = info_of.si_code > 0;
    if !(is_fault && registered(address).is_some_and(|range| replace(range, address))) {
        pass_on(signal, info, context, is_fault);
    }
}

/// Notes the unit of an address as lost, and puts zeros of this process in its place.
fn replace(range: &Range, address: usize) -> bool {
    let unit_bytes = range.unit_bytes.load(Ordering::Relaxed);
    let unit = address / unit_bytes * unit_bytes;
    // SAFETY: it has no conditions.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: it points to this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *errno_at };
    note(range, unit);
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: the unit begins in a registered range and ends within its mapping, whose bytes nobody has references to; mmap(2) is a bare system call.
    let mapped = unsafe {
        libc::mmap(
            unit as *mut libc::c_void,
            unit_bytes,
            protection,
            flags | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *errno_at = errno };
    mapped != libc::MAP_FAILED
}

/// Notes a unit of a range as lost: in a place, or with all of its range where that has most of the places.
fn note(range: &Range, unit: usize) {
    let count = LOST_COUNT.load(Ordering::Acquire).min(PAGES_MAX);
    let is_noted = |place: &AtomicUsize| place.load(Ordering::Acquire) == unit;
    // Another thread has met it just before.
    if range.is_lost.load(Ordering::Acquire) || LOST[..count].iter().any(is_noted) {
        return;
    }
    let take = |place: &AtomicUsize| {
        let taken = place.compare_exchange(FREE, unit, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    if LOST[..count].iter().any(take) {
        return;
    }
    let places = |range: &Range| {
        LOST.iter()
            .filter(|place| range.has(place.load(Ordering::Relaxed)))
            .count()
    };
    let place = match count == PAGES_MAX {
        true => None,
        false => LOST.get(LOST_COUNT.fetch_add(1, Ordering::AcqRel)),
    };
    if let Some(place) = place {
        place.store(unit, Ordering::Release);
        return;
    }
    let Some(greatest) = RANGES.iter().max_by_key(|range| places(range)) else {
        return;
    };
    // First, so that it is lost at any time.
    greatest.is_lost.store(true, Ordering::Release);
    greatest.free_places();
    if !greatest.has(unit) && !LOST.iter().any(take) {
        range.is_lost.store(true, Ordering::Release);
    }
}

fn is_by_default(signal: libc::c_int) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: room for a sigaction.
    let told = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: all zero bits are one, if the call has not filled it.
    told == 0 && unsafe { now.assume_init_ref() }.sa_sigaction == libc::SIG_DFL
}

/// Ends the process by a signal, once its handler returns.
fn end(signal: libc::c_int) {
    // SAFETY: both may be called here; SIG_DFL needs nothing.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: likewise.
    unsafe { libc::raise(signal) };
}

/// Does what would have been done without us, with a fault or a signal that a process has sent.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_fault: bool) {
    type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    type Plain = extern "C" fn(libc::c_int);
    let before = BEFORE.get().map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let takes_info = BEFORE
        .get()
        .is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    if takes_info {
        // SAFETY: sigaction(2) gave it with SA_SIGINFO, so it is a function of this type.
        let action = unsafe { std::mem::transmute::<usize, Action>(before) };
        action(signal, info, context);
        // That of Rust's own library wants the next fault to end the process; a signal that was sent does not come again.
        if !is_fault && is_by_default(signal) {
            end(signal);
        }
        return;
    }
    match before {
        libc::SIG_IGN if !is_fault => {}
        // Nothing would fault once more when the handler returns.
        libc::SIG_DFL if !is_fault => end(signal),
        // Once more, by default: it ends the process, and a core dump shows where.
        // SAFETY: signal(2) may be called here; SIG_DFL needs nothing.
        libc::SIG_DFL | libc::SIG_IGN => drop(unsafe { libc::signal(signal, libc::SIG_DFL) }),
        _ => {
            // SAFETY: sigaction(2) gave it without SA_SIGINFO, so it is a function of this type.
            let action = unsafe { std::mem::transmute::<usize, Plain>(before) };
            action(signal);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    struct Mapped(*mut u8, usize);

    impl Mapped {
        fn of(file: &File, bytes: usize) -> Self {
            let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping, of nothing that is used.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, shared, file.as_raw_fd(), 0) };
            assert_ne!(base, libc::MAP_FAILED);
            Self(base.cast(), bytes)
        }

        fn byte(&self, at: usize) -> u8 {
            assert!(at < self.1);
            // SAFETY: it lies in the mapping.
            unsafe { self.0.wrapping_add(at).read_volatile() }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: its own mapping, that nobody uses any more.
            unsafe { libc::munmap(self.0.cast(), self.1) };
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn only_the_page_beyond_a_files_end_is_lost() {
        let (file, mapped) = mapped_file("fault", 8);
        let guarded = Guarded::new(mapped.0, mapped.1).expect("the disk has room");
        let at = |page: usize| mapped.0.wrapping_add(page * PAGE_BYTES).cast_const();
        assert!(!is_lost(at(0), mapped.1));
        file.set_len(5 * PAGE_BYTES as u64).expect("the file can be shortened");
        assert_eq!((mapped.byte(0), mapped.byte(6 * PAGE_BYTES + 9)), (7, 0));
        assert!(is_lost(at(6), 1) && is_lost(at(0), mapped.1) && is_lost(at(5).wrapping_add(1), PAGE_BYTES));
        assert!(!is_lost(at(0), 6 * PAGE_BYTES) && !is_lost(at(7), PAGE_BYTES));
        // Another range at the same place begins with nothing lost.
        drop(guarded);
        let _again = Guarded::new(mapped.0, mapped.1).expect("the disk has room");
        assert!(!is_lost(at(0), mapped.1));
    }
    /// Ends in the default way of a signal that another process sends: at once, not with the next lost page.
    #[test]
    #[cfg_attr(miri, ignore = "Miri starts no processes")]
    fn a_sent_sigbus_ends_the_process() {
        use std::os::unix::process::ExitStatusExt;
        const CHILD: &str = "HOMENODE_TEST_SENT_SIGNAL";
        if std::env::var_os(CHILD).is_some() {
            let bytes = vec![0_u8; 2 * PAGE_BYTES];
            let page = bytes.as_ptr().addr().next_multiple_of(PAGE_BYTES) - bytes.as_ptr().addr();
            let _guarded = Guarded::new(&raw const bytes[page], PAGE_BYTES).expect("the disk has room");
            // SAFETY: it has no conditions.
            unsafe { libc::raise(libc::SIGBUS) };
            std::process::exit(0);
        }
        let own = std::env::current_exe().expect("a test has a file");
        let test = "fault::tests::a_sent_sigbus_ends_the_process";
        let mut child = std::process::Command::new(own);
        let ended = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").output();
        let status = ended.expect("the program starts").status;
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }

    /// A file of so many pages, and its mapping.
    fn mapped_file(name: &str, pages: usize) -> (File, Mapped) {
        let path = std::env::temp_dir().join(format!("homenode-{name}-{}", std::process::id()));
        std::fs::write(&path, vec![7; pages * PAGE_BYTES]).expect("the disk has room");
        let file = File::options().read(true).write(true).open(&path).expect("it was made");
        std::fs::remove_file(&path).expect("the file was created");
        let mapped = Mapped::of(&file, pages * PAGE_BYTES);
        (file, mapped)
    }

    /// In a process of their own: places are all tests'.
    #[test]
    #[cfg_attr(miri, ignore = "Miri starts no processes")]
    fn a_range_that_loses_many_pages_takes_no_other_along() {
        const CHILD: &str = "HOMENODE_TEST_MANY_LOST";
        if std::env::var_os(CHILD).is_some() {
            // As many a thread does: the kernel ends a process whose thread has it blocked.
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: room for a mask.
            unsafe { libc::sigfillset(all.as_mut_ptr()) };
            // SAFETY: a mask that was filled.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
            let (many, few) = (PAGES_MAX + 1, 8);
            let ((first, one), (second, other)) = (mapped_file("many", many), mapped_file("few", few));
            let _guarded = [&one, &other].map(|mapped| Guarded::new(mapped.0, mapped.1).expect("there is room"));
            let at = |mapped: &Mapped, page: usize| mapped.0.wrapping_add(page * PAGE_BYTES).cast_const();
            first.set_len(0).expect("it can be shortened");
            assert!((0..many).all(|page| one.byte(page * PAGE_BYTES) == 0));
            second.set_len(7 * PAGE_BYTES as u64).expect("it can be shortened");
            assert_eq!((other.byte(7 * PAGE_BYTES), other.byte(0)), (0, 7));
            assert!(is_lost(at(&one, 0), 1) && is_lost(at(&one, many - 1), 1));
            assert!(is_lost(at(&other, 7), 1) && !is_lost(at(&other, 0), 7 * PAGE_BYTES));
            std::process::exit(3);
        }
        let own = std::env::current_exe().expect("a test has a file");
        let test = "fault::tests::a_range_that_loses_many_pages_takes_no_other_along";
        let mut child = std::process::Command::new(own);
        let ended = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").output();
        let ended = ended.expect("the program starts");
        assert_eq!(
            ended.status.code(),
            Some(3),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_lost_page_of_a_device_takes_its_unit_with_it() {
        let (file, mapped) = mapped_file("fault-unit", 8);
        let at = |page: usize| mapped.0.wrapping_add(page * PAGE_BYTES).cast_const();
        // Of pages 0 to 7 one is a multiple of two pages, and the next but one too.
        let first = usize::from(!at(0).addr().is_multiple_of(2 * PAGE_BYTES));
        let _guarded = Guarded::in_units(at(first), 6 * PAGE_BYTES, 2 * PAGE_BYTES).expect("the disk has room");
        file.set_len((first + 5) as u64 * PAGE_BYTES as u64)
            .expect("the file can be shortened");
        assert_eq!(mapped.byte((first + 5) * PAGE_BYTES), 0);
        assert!(
            is_lost(at(first + 4), 1) && is_lost(at(first + 5), 1),
            "page 4 goes with page 5"
        );
        assert!(!is_lost(at(first), 4 * PAGE_BYTES));
    }
}
