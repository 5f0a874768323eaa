//! Barriers in pairs: one side, which is often there, pays nearly nothing; the other, which seldom is, pays for both.
//!
//! Two threads that each write, meet a barrier of their side, and then read: at least one of them reads what the other
//! wrote. Linux lets the seldom side put a barrier into every running thread of the process (membarrier(2), since 4.14):
//! about a microsecond, where the processor's own costs the often side its look ahead into the next copy, 20 ns of a copy
//! of 1 KiB. Where the kernel does not offer it, both sides use the processor's.

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

    /// Of the side that is often there.
    #[inline(always)]
    pub(crate) fn often(&self) {
        if self.by_kernel {
            // The compiler keeps the order; the processor is made to by `seldom`.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Of the other side.
    pub(crate) fn seldom(&self) {
        fence(Ordering::SeqCst);
        if self.by_kernel {
            kernel::barrier_everywhere();
        }
    }
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
