//! Barriers in pairs: one side, which is often there, pays nearly nothing; the other, which seldom is, pays for both.
//!
//! Two threads that each write, meet a barrier of their side, and then read: at least one of them reads what the other
//! wrote. Linux lets the seldom side put a barrier into every running thread of the process (membarrier(2), since 4.14):
//! about a microsecond, where the processor's own costs the often side its look ahead into the next copy, 20 ns of a copy
//! of 1 KiB. Where the kernel does not offer it, both sides use the processor's.
//!
//! # Why it is right
//!
//! The litmus test is store buffering. A thread that enters (E) and one that closes (C):
//!
//! ```text
//!     E: slot = inode          C: state = CLOSED
//!        compiler fence           fence; membarrier(PRIVATE_EXPEDITED)
//!        r1 = state               r2 = slot
//! forbidden: r1 = open and r2 = idle
//! ```
//!
//! membarrier(2) promises: each thread of the process executes a full barrier at some moment B between the call's start and
//! its end, or does not run then and executes one before it runs on. B falls between two instructions of E. If it falls
//! before E's load, that load comes after C's store, which is before the call: r1 = CLOSED. If it falls after E's load, E's
//! store, which is before the load in program order (the compiler fence keeps it there), is complete at B, so C's
//! load, which is after the call, reads it: r2 = inode. There is no third place. E's side needs no barrier of its own.
//!
//! A store that is to be saved is the same: E stores bytes, and then looks whether they are noted as dirty; C takes the note away, and then reads the
//! bytes. Either E finds the note gone, and notes them anew, or C reads them. They may be many: all that E stored before B is complete at B.
//!
//! Leaving needs none: it is a release store that C reads with acquire. A slot claimed after C looked at how many there
//! are is covered by the claim's SeqCst maximum and E's SeqCst load of the state.
//!
//! # Where it is tested
//!
//! `slots::tests::a_closed_gate_is_empty` runs the litmus test 400,000 times with stores that miss the cache in front
//! of E's. Run on x86-64 (a guest with 2 CPUs of an AMD EPYC, Linux 6.18): without the call of membarrier(2) it fails within a
//! second each time, on an otherwise idle machine. Without the compiler fence it passes: this compiler keeps the order of
//! a relaxed store and a SeqCst load anyway, which the language does not promise. It has not been run on aarch64, whose
//! loads and stores change places more freely; the argument above does not depend on the processor. Loom and Miri know the
//! processor's barriers only: they run the other way, with a fence on both sides.

use crate::sync::{Ordering, fence};

/// Which barriers the two sides use.
#[derive(Debug)]
pub(crate) struct Barriers {
    by_kernel: bool,
}

impl Barriers {
    pub(crate) fn new() -> Self {
        Self {
            by_kernel: kernel::register(),
        }
    }

    /// Barrier of the side that is often there.
    #[inline(always)]
    pub(crate) fn often(&self) {
        if self.by_kernel {
            // The compiler keeps the order; the processor is made to by `seldom`.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Barrier of the side that is seldom there.
    pub(crate) fn seldom(&self) {
        fence(Ordering::SeqCst);
        if self.by_kernel {
            kernel::barrier_everywhere();
        }
    }
}

/// A full barrier behind an atomic change with `Ordering::SeqCst`. On x86-64 the change is one by itself, and MFENCE would take longer than the change.
#[inline(always)]
pub(crate) fn behind_change() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    fence(Ordering::SeqCst);
}

/// Models know the processor's barriers only.
#[cfg(any(loom, miri))]
mod kernel {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn barrier_everywhere() {}
}

#[cfg(not(any(loom, miri)))]
mod kernel {
    /// Whether this process may ask for barriers from now on.
    pub(super) fn register() -> bool {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
    }

    /// A barrier in every thread of this process that runs now; one that does not meets one before it runs again.
    pub(super) fn barrier_everywhere() {
        let status = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        // Going on without it could give a reader another file's bytes.
        assert_eq!(status, 0, "membarrier fails only where it was not registered");
    }

    fn membarrier(command: libc::c_int) -> libc::c_long {
        // SAFETY: touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }
}
