//! Counts for `homenode run --stats`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What became of a call at an offset.
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
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Counts from now on.
pub(crate) fn start() {
    IS_ON.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn count(outcome: Outcome) {
    // Relaxed, here and below: figures.
    if IS_ON.load(Ordering::Relaxed) {
        COUNTS[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes what was counted to standard error, at the process's end.
pub(crate) fn tell() {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let [fast, slow, other] = [0, 1, 2].map(|outcome: usize| COUNTS[outcome].load(Ordering::Relaxed));
    // Of a program that closed it, nobody reads.
    eprintln!(
        "homenode run: process {}: {fast} of {} reads and writes at an offset were copies; {slow} system calls on files of a pool, {other} on others",
        std::process::id(),
        fast + slow + other
    );
}
