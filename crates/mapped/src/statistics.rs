//! Counts for `homenode run --stats`.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

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

static IS_ON: AtomicBool = AtomicBool::new(false);
/// Process that has counted.
static PROCESS: AtomicI32 = AtomicI32::new(0);
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Counts from now on.
pub fn start() {
    begin();
    IS_ON.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn count(outcome: Outcome) {
    // Relaxed, here and below: figures.
    if IS_ON.load(Ordering::Relaxed) {
        COUNTS[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes what was counted to standard error, at the process's end. In the child of a vfork(2) there is nothing to tell: what it counts is its parent's.
pub fn tell() {
    // SAFETY: it has no conditions.
    let process = unsafe { libc::getpid() };
    if !IS_ON.load(Ordering::Relaxed) || PROCESS.load(Ordering::Relaxed) != process {
        return;
    }
    let [fast, slow, other] = [0, 1, 2].map(|outcome: usize| COUNTS[outcome].load(Ordering::Relaxed));
    let mut text = [0_u8; 256];
    let room = text.len();
    let mut rest = &mut text[..];
    // It fits: a few numbers.
    let _ = writeln!(
        rest,
        "homenode run: process {process}: {fast} of {} reads and writes at an offset were copies; {slow} system calls on files of a pool, {other} on others",
        fast + slow + other
    );
    let length = room - rest.len();
    // SAFETY: a buffer with its length. If it was closed, nobody reads.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length) };
}

/// In a new process: it has counted nothing.
pub(crate) fn begin() {
    // SAFETY: it has no conditions.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}
