//! Requests that block a thread with [reads](super::Reads) under way, which the kernel goes on to end.
//!
//! The kernel ends such a read in the thread that began it. A thread that sleeps in preadv(2), pwritev(2) or fdatasync(2) ends none before its disk has
//! answered; one that sleeps in io_uring_enter(2) does.
//!
//! Invariants: when a request has come back the kernel reads and stores nothing of it any more. Cost: one load where no read of the thread is
//! under way. Else a ring for each such thread, made once, of two entries.

use super::ring::{Ring, is_refusal};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Reads under way that this thread has begun.
    static BEGUN: Arc<AtomicUsize> = Arc::default();
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// A read under way, counted for the thread that began it.
#[derive(Debug)]
pub(super) struct Begun(Arc<AtomicUsize>);

impl Begun {
    pub(super) fn here() -> Self {
        let count = BEGUN.with(Arc::clone);
        // Relaxed: only the thread that counts looks at it, and a read that has just ended costs that thread a slower request.
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Carries out a request and waits for it, if reads of this thread are under way and the kernel makes a ring. Else returns `None`, and nothing was done;
/// also where the kernel has taken the request and could not begin it.
///
/// # Safety
/// All memory that the request names stays mapped until the call is back.
pub(crate) unsafe fn carry_out(entry: impl FnOnce() -> squeue::Entry) -> Option<io::Result<usize>> {
    // A thread that ends has no locals any more; it just waits.
    let has_begun = BEGUN.try_with(|begun| begun.load(Ordering::Relaxed) > 0);
    if !has_begun.unwrap_or(false) {
        return None;
    }
    let carried_out = RING.try_with(|own| {
        // Borrowed when a signal's handler that calls preadv(2) has interrupted this function.
        let mut own = own.try_borrow_mut().ok()?;
        if own.is_none() {
            *own = Ring::shared(2).ok();
        }
        let ring = own.as_mut()?;
        // SAFETY: the caller promises it until this call is back, and that waits until the kernel has ended the request.
        if !unsafe { ring.push(&entry()) } {
            return None;
        }
        let mut result = None;
        while ring.in_flight > 0 {
            let mut wait = || {
                ring.wait(1)?;
                ring.take(|_, told| result = Some(told))
            };
            if let Err(error) = wait() {
                own.take()?.close();
                return Some(Err(error));
            }
        }
        let told = result.expect("each request completes once");
        if is_refusal(told) {
            return None;
        }
        Some(usize::try_from(told).map_err(|_| io::Error::from_raw_os_error(-told)))
    });
    carried_out.ok().flatten()
}

/// Whether this thread has made a request by a ring.
#[cfg(test)]
pub(crate) fn has_ring() -> bool {
    RING.with_borrow(Option::is_some)
}

/// fdatasync(2).
pub(crate) fn fdatasync(file: &File) -> io::Result<()> {
    let entry = || {
        opcode::Fsync::new(Fd(file.as_raw_fd()))
            .flags(FsyncFlags::DATASYNC)
            .build()
    };
    // SAFETY: it names no memory.
    match unsafe { carry_out(entry) } {
        Some(done) => done.map(drop),
        None => Ok(rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;

    /// An empty pipe, whose reader does not wait: the kernel ends a request for which it could make no helper in the same way.
    #[test]
    fn a_request_that_the_ring_did_not_carry_out_is_not_its_result() {
        let (reader, _writer) = io::pipe().expect("there are descriptors");
        let mut byte = [0_u8];
        let mut read = |to: Fd| {
            opcode::Read::new(to, byte.as_mut_ptr(), 1)
                .rw_flags(libc::RWF_NOWAIT)
                .build()
        };
        let _begun = Begun::here();
        // SAFETY: the byte lives on.
        let refused = unsafe { carry_out(|| read(Fd(reader.as_raw_fd()))) };
        if !has_ring() {
            return crate::skip("this system makes no ring");
        }
        assert!(refused.is_none(), "{refused:?}");
        // SAFETY: as above.
        let failed = unsafe { carry_out(|| read(Fd(-1))) };
        let errno = failed.and_then(Result::err).and_then(|error| error.raw_os_error());
        assert_eq!(errno, Some(libc::EBADF));
    }
}
