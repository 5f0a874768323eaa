//! Writes of memory to a file at the same time, by a ring whose user waits for all of them.
//!
//! Invariants: when [`Writes::all`] is back the kernel has ended all writes, and reads neither their lists of pieces nor their memory any more.
//! Cost: a system call for all, and one more after a signal; no memory is taken.

use super::RingError;
use super::ring::Ring;
use io_uring::opcode;
use io_uring::types::Fd;
use std::io;
use std::os::fd::RawFd;

/// Entries of the ring.
const DEPTH: u16 = 32;

/// A ring for writes.
#[derive(Debug)]
pub(crate) struct Writes {
    /// `None` once the kernel serves it no more.
    ring: Option<Ring>,
}

impl Writes {
    pub(crate) fn new() -> Result<Self, RingError> {
        let ring = Some(Ring::shared(DEPTH)?);
        Ok(Self { ring })
    }

    /// Carries out writes, each a list of pieces that go to the bytes of `file` from an offset on. Calls `ended` with the number of each that has ended
    /// and the bytes that it wrote; not with those that the kernel did not take.
    ///
    /// # Safety
    /// The memory that the lists name is mapped.
    pub(crate) unsafe fn all<'a>(
        &mut self,
        file: RawFd,
        lists: impl Iterator<Item = (u64, &'a [libc::iovec])>,
        ended: impl FnMut(usize, Option<usize>),
    ) {
        let Some(ring) = &mut self.ring else { return };
        for ((offset, pieces), number) in lists.zip(0..) {
            let count = u32::try_from(pieces.len()).expect("at most IOV_MAX");
            let entry = opcode::Writev::new(Fd(file), pieces.as_ptr(), count).offset(offset);
            // SAFETY: the caller promises it, and the lists outlive the call. One for which there is no room is not carried out.
            let _ = unsafe { ring.push(&entry.build().user_data(number)) };
        }
        if end(ring, ended).is_err() {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.close();
        }
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.close();
    }
}

fn end(ring: &mut Ring, mut ended: impl FnMut(usize, Option<usize>)) -> io::Result<()> {
    while ring.in_flight > 0 {
        ring.wait(ring.in_flight)?;
        ring.take(|number, result| {
            let number = usize::try_from(number).expect("user_data is the number given when it was pushed");
            ended(number, usize::try_from(result).ok());
        })?;
    }
    Ok(())
}
