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

static RANGES: [Range; RANGES_MAX] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        unit_bytes: AtomicUsize::new(PAGE_BYTES),
        is_lost: AtomicBool::new(false),
    }
}; RANGES_MAX];
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
            page.store(1, Ordering::Release);
        }
        RANGES[guarded.slot].is_lost.store(true, Ordering::Release);
        Ok(guarded)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let range = &RANGES[self.slot];
        let (start, end) = (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed));
        for page in &LOST {
            // Another mapping may come to lie there. The number stays: what was lost is rare.
            if (start..end).contains(&page.load(Ordering::Relaxed)) {
                page.store(1, Ordering::Relaxed);
            }
        }
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
    RANGES.iter().find(|range| {
        // Acquire: pairs with the release in `new`.
        let end = range.end.load(Ordering::Acquire);
        address < end && range.start.load(Ordering::Relaxed) <= address
    })
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
    let is_ours = info_of.si_code > 0 && registered(address).is_some_and(|range| replace(range, address));
    if info_of.si_code <= 0 {
        // Sent by a process: nothing would fault once more when the handler returns.
        end(signal);
    } else if !is_ours {
        pass_on(signal, info, context);
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
    let nth = LOST_COUNT.fetch_add(1, Ordering::AcqRel);
    match LOST.get(nth) {
        Some(slot) => slot.store(unit, Ordering::Release),
        None => range.is_lost.store(true, Ordering::Release),
    }
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

/// Ends the process by a signal, once its handler returns.
fn end(signal: libc::c_int) {
    // SAFETY: both may be called here; SIG_DFL needs nothing.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: likewise.
    unsafe { libc::raise(signal) };
}

/// Does what would have been done without us.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Action = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    let before = BEFORE.get().map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let takes_info = BEFORE
        .get()
        .is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    if takes_info {
        // SAFETY: sigaction(2) gave it with SA_SIGINFO, so it is a function of this type.
        let action = unsafe { std::mem::transmute::<usize, Action>(before) };
        action(signal, info, context);
        return;
    }
    // Once more, by default: it ends the process, and a core dump shows where.
    // SAFETY: signal(2) may be called here; SIG_DFL needs nothing.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
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
        let path = std::env::temp_dir().join(format!("homenode-fault-{}", std::process::id()));
        std::fs::write(&path, vec![7; 8 * PAGE_BYTES]).expect("the disk has room");
        let file = File::options().read(true).write(true).open(&path).expect("it was made");
        std::fs::remove_file(&path).expect("the file was created");
        let mapped = Mapped::of(&file, 8 * PAGE_BYTES);
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

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_lost_page_of_a_device_takes_its_unit_with_it() {
        let path = std::env::temp_dir().join(format!("homenode-fault-unit-{}", std::process::id()));
        std::fs::write(&path, vec![7; 8 * PAGE_BYTES]).expect("the disk has room");
        let file = File::options().read(true).write(true).open(&path).expect("it was made");
        std::fs::remove_file(&path).expect("the file was created");
        let mapped = Mapped::of(&file, 8 * PAGE_BYTES);
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
