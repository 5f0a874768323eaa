//! Counts for `homenode run --stats`.

use crate::attributes;
use crate::faults::Quiet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

/// Outcome of a call at an offset.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    /// A copy.
    Fast,
    /// A system call, on a file that is copied from and to.
    Slow,
    /// A system call, on any other descriptor.
    Other,
}

/// Why calls on a descriptor are left to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    NoFile,
    OtherDevice,
    WriteOnly,
    Synchronous,
    Direct,
    Appends,
    NoPool,
    /// The server tells nothing of the file.
    NotTold,
    NotMapped,
}

/// The reasons in words, in the order of [`Why`].
const REASONS: [&str; 9] = [
    "no regular file",
    "not on the pool of --pool",
    "open for writing alone",
    "open with O_SYNC or O_DSYNC",
    "open with O_DIRECT",
    "open with O_APPEND",
    "on no pool",
    "on a pool that tells nothing of them (data pool, durable; no right to read, or 32 other users)",
    "could not be mapped",
];

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Process that `homenode run` was started as: it tells its counts even where they are 0.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// Duplicate of standard error, made at the start: coreutils close descriptor 2 before the end.
static ERRORS: AtomicI32 = AtomicI32::new(-1);
/// Inode and device of standard error at the start.
static ERRORS_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Least number of that descriptor, which few programs come to.
const ERRORS_FROM: i32 = 500;
/// Number of the process whose memory this is: its child of vfork(2) has another. 0 in a copy of the memory, until that is noticed, and [`BEING_NOTICED`] until it is ready. Null before the beginning.
static PROCESS: AtomicPtr<AtomicI32> = AtomicPtr::new(std::ptr::null_mut());
const BEING_NOTICED: i32 = -1;
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// Descriptors by the reason for which calls on them are left to the system.
static LEFT: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];

/// Counts from now on. `command` is the process that `homenode run` was started as.
pub fn start(command: i32) {
    COMMAND.store(command, Ordering::Relaxed);
    // SAFETY: it takes a number.
    let errors = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, ERRORS_FROM) };
    ERRORS.store(errors, Ordering::Relaxed);
    let file = file_of(libc::STDERR_FILENO).unwrap_or_default();
    ERRORS_FILE
        .iter()
        .zip(file)
        .for_each(|(to, part)| to.store(part, Ordering::Relaxed));
    begin();
    IS_ON.store(true, Ordering::Relaxed);
}

/// Inode and device of an open file.
fn file_of(fd: i32) -> Option<[u64; 2]> {
    let known = attributes::known(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_INO)?;
    Some([known.stx_ino, libc::makedev(known.stx_dev_major, known.stx_dev_minor)])
}

#[inline]
pub(crate) fn count(outcome: Outcome) {
    // Relaxed, here and below: figures.
    if IS_ON.load(Ordering::Relaxed) {
        COUNTS[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a descriptor that is left to the system.
pub(crate) fn count_left(why: Why) {
    LEFT[why as usize].fetch_add(1, Ordering::Relaxed);
}

/// Writes what was counted, if anything was, to standard error at the process's end. In the child of a vfork(2) there is nothing to tell: what it counts is its parent's.
pub fn tell() {
    if !IS_ON.load(Ordering::Relaxed) || !is_own_process() {
        return;
    }
    // SAFETY: it has no conditions.
    let process = unsafe { libc::getpid() };
    let [fast, slow, other] = [0, 1, 2].map(|outcome: usize| COUNTS[outcome].load(Ordering::Relaxed));
    if fast + slow + other == 0 && COMMAND.load(Ordering::Relaxed) != process {
        return;
    }
    let mut text = [0_u8; 1024];
    let room = text.len();
    let mut rest = &mut text[..];
    // It fits: a few numbers and all reasons.
    let _ = write!(
        rest,
        "homenode run: process {process}: {fast} of {} reads and writes at an offset were copies; {slow} system calls on files of a pool, {other} on others",
        fast + slow + other
    );
    if fast + slow + other == 0 {
        let _ = write!(rest, "; read(2) and write(2) always are");
    }
    let mut is_first = true;
    for (count, reason) in LEFT.iter().zip(REASONS) {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            let _ = write!(
                rest,
                "{} {count} {reason}",
                if is_first {
                    "; descriptors left to the system:"
                } else {
                    ","
                }
            );
            is_first = false;
        }
    }
    if other > 0 && is_first {
        let _ = write!(rest, " (descriptors are looked at with their 32nd call)");
    }
    let _ = writeln!(rest);
    let length = room - rest.len();
    // Either number may be another file's by now.
    let file = ERRORS_FILE.each_ref().map(|part| part.load(Ordering::Relaxed));
    let mut both = [ERRORS.load(Ordering::Relaxed), libc::STDERR_FILENO].into_iter();
    let Some(to) = both.find(|fd| file_of(*fd) == Some(file)) else {
        return;
    };
    // SAFETY: a buffer with its length.
    unsafe { libc::write(to, text.as_ptr().cast(), length) };
}

/// Whether this is the process that the library was started in, or a child with a copy of its memory, and no child of vfork(2).
pub fn is_own_process() -> bool {
    // SAFETY: null, or a word that is there for good.
    let Some(process) = (unsafe { PROCESS.load(Ordering::Acquire).as_ref() }) else {
        return false;
    };
    loop {
        let number = process.load(Ordering::Acquire);
        if number > 0 {
            // SAFETY: it has no conditions.
            return number == unsafe { libc::getpid() };
        }
        // Made by clone(2), which tells nobody: one thread gets it ready, and others wait. No handler may wait for what it has interrupted.
        let _quiet = Quiet::new();
        if process
            .compare_exchange(0, BEING_NOTICED, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            crate::files::after_fork();
            return true;
        }
        std::thread::yield_now();
    }
}

/// A new word for the process, which a copy of this memory has as 0. Where the kernel makes no such memory, a word like others.
fn process_word() -> *mut AtomicI32 {
    const BYTES: usize = 4096;
    static OTHERWISE: AtomicI32 = AtomicI32::new(0);
    let (both, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at an address that the kernel chooses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, both, flags, -1, 0) };
    // SAFETY: the mapping, if there is one; else it changes nothing.
    if page == libc::MAP_FAILED || unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return (&raw const OTHERWISE).cast_mut();
    }
    page.cast()
}

/// In a new process: it has counted nothing.
pub(crate) fn begin() {
    let mut word = PROCESS.load(Ordering::Relaxed);
    if word.is_null() {
        word = process_word();
    }
    // SAFETY: it has no conditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: a word that is there for good.
    unsafe { &*word }.store(process, Ordering::Release);
    PROCESS.store(word, Ordering::Release);
    COUNTS
        .iter()
        .chain(&LEFT)
        .for_each(|count| count.store(0, Ordering::Relaxed));
}
