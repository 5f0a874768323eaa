//! Reads of files into memory, by a ring of the reader's own: many at a time, ended in any order.
//!
//! Invariants: a read keeps what it was begun with until its end is told, once; while one is under way its list of pieces stays where it is;
//! when [`Reads::close`] is back the kernel stores nothing any more. Cost: a system call for each batch, and one for what has ended only if the
//! kernel has something to do for it.

use super::RingError;
use super::beside::Begun;
use super::ring::{Ring, is_refusal};
use homenode_engine::Transfer;
use io_uring::types::{Fd, Timespec};
use io_uring::{opcode, squeue};
use std::fmt;
use std::os::fd::RawFd;

/// Entries of the ring: more may be under way, for a system call each.
const DEPTH: u16 = 128;
/// How long a pause is.
const PAUSE: Timespec = Timespec::new().nsec(50_000);
/// Pause of who has looked often: a disk that takes milliseconds costs little then.
const LONG_PAUSE: Timespec = Timespec::new().nsec(1_000_000);
/// User data of a pause; no read has that number.
const PAUSED: u64 = u64::MAX;

/// Reads under way, each with what it was begun with.
pub(crate) struct Reads<T> {
    /// `None` once the kernel serves it no more.
    ring: Option<Ring>,
    /// Reads by number; `None` at the numbers in `free`.
    all: Vec<Option<Read<T>>>,
    free: Vec<usize>,
    is_pausing: bool,
}

/// End of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// All of its bytes are there.
    Whole,
    Failed,
    /// The kernel has not carried it out, which says nothing of the disk.
    Refused,
}

struct Read<T> {
    tied: T,
    bytes: usize,
    _begun: Begun,
    /// The kernel may read it until the read has ended.
    _pieces: Box<[libc::iovec]>,
}

// SAFETY: the addresses in the lists are numbers to this process: only the kernel stores there.
unsafe impl<T: Send> Send for Reads<T> {}

impl<T> fmt::Debug for Reads<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reads")
            .field("under_way", &self.under_way())
            .finish_non_exhaustive()
    }
}

impl<T> Reads<T> {
    pub(crate) fn new() -> Result<Self, RingError> {
        Ok(Self {
            ring: Some(Ring::shared(DEPTH)?),
            all: Vec::new(),
            free: Vec::new(),
            is_pausing: false,
        })
    }

    /// Readable while [`Reads::take`] has something to tell; `None` when the ring is closed.
    pub(crate) fn bell(&self) -> Option<RawFd> {
        self.ring.as_ref().map(Ring::as_raw_fd)
    }

    /// Looks for something among the reads that are under way, if some of them have ended and wait for the thread that began them.
    pub(crate) fn left<F>(&mut self, find: impl Fn(&T) -> Option<F>) -> Option<F> {
        let ring = self.ring.as_mut()?;
        let mut left = self.all.iter().flatten().filter(|_| ring.waits_for_its_thread());
        left.find_map(|read| find(&read.tied))
    }

    pub(crate) fn under_way(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Begins a read, `transfer` of what is tied to it, which [`Reads::enter`] gives to the kernel.
    ///
    /// # Errors
    /// `tied`, when the kernel has no room for it.
    ///
    /// # Safety
    /// The pieces are memory to which nobody refers, and stay mapped until the read's end is told.
    pub(crate) unsafe fn begin(&mut self, tied: T, transfer: fn(&T) -> &Transfer) -> Result<(), T> {
        let transfer = transfer(&tied);
        let pieces = transfer.pieces.iter().map(|(address, bytes)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(*address),
            iov_len: *bytes,
        });
        let bytes = transfer.pieces.iter().map(|(_, bytes)| bytes).sum();
        let file = Fd(transfer.descriptor);
        let (pieces, entry) = match *transfer.pieces {
            // The kernel needs no list of one piece.
            [(address, bytes)] => {
                let to = std::ptr::without_provenance_mut(address);
                let bytes = u32::try_from(bytes).expect("at most the bytes of a read");
                (
                    Box::default(),
                    opcode::Read::new(file, to, bytes).offset(transfer.offset).build(),
                )
            }
            _ => {
                let pieces: Box<[libc::iovec]> = pieces.collect();
                let count = u32::try_from(pieces.len()).expect("there are at most as many pieces as frames");
                let entry = opcode::Readv::new(file, pieces.as_ptr(), count);
                (pieces, entry.offset(transfer.offset).build())
            }
        };
        let number = self.free.last().copied().unwrap_or(self.all.len());
        let entry = entry.user_data(number as u64);
        // SAFETY: the caller answers for the pieces; the list of them is kept below.
        if !unsafe { self.push(&entry) } {
            return Err(tied);
        }
        let read = Read {
            tied,
            bytes,
            _begun: Begun::here(),
            _pieces: pieces,
        };
        if self.free.pop().is_some() {
            self.all[number] = Some(read);
        } else {
            self.all.push(Some(read));
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Ring::push`].
    unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        // SAFETY: the caller promises the same.
        if unsafe { ring.push(entry) } {
            return true;
        }
        // SAFETY: as above.
        ring.enter().is_ok() && unsafe { ring.push(entry) }
    }

    /// Makes the bell ring after [`PAUSE`], or [`LONG_PAUSE`], if no pause is under way. False when the kernel has no room for it.
    pub(crate) fn pause(&mut self, is_long: bool) -> bool {
        static LENGTH: Timespec = PAUSE;
        static LONG: Timespec = LONG_PAUSE;
        if !self.is_pausing {
            let length = if is_long { &raw const LONG } else { &raw const LENGTH };
            let entry = opcode::Timeout::new(length).build().user_data(PAUSED);
            // SAFETY: its length is static.
            self.is_pausing = unsafe { self.push(&entry) };
        }
        self.is_pausing
    }

    /// Gives the kernel what was begun.
    pub(crate) fn enter(&mut self) {
        if let Some(ring) = &mut self.ring
            && ring.enter().is_err()
        {
            self.close();
        }
    }

    /// Waits until something has ended; at once when nothing is under way.
    pub(crate) fn wait(&mut self) {
        if let Some(ring) = &mut self.ring
            && ring.in_flight > 0
            && ring.wait(1).is_err()
        {
            self.close();
        }
    }

    /// Tells the reads that have ended. Returns whether a pause is over.
    pub(crate) fn take(&mut self, mut ended: impl FnMut(T, ReadEnd)) -> bool {
        let (all, free) = (&mut self.all, &mut self.free);
        let mut is_over = false;
        let taken = self.ring.as_mut().map(|ring| {
            ring.take(|number, result| {
                if number == PAUSED {
                    is_over = true;
                    return;
                }
                let number = usize::try_from(number).expect("user_data is the index given at submission");
                let read = all[number].take().expect("each read completes once");
                free.push(number);
                let end = match usize::try_from(result) {
                    Ok(bytes) if bytes == read.bytes => ReadEnd::Whole,
                    Err(_) if is_refusal(result) => ReadEnd::Refused,
                    _ => ReadEnd::Failed,
                };
                ended(read.tied, end);
            })
        });
        if is_over {
            self.is_pausing = false;
        }
        if matches!(taken, Some(Err(_))) {
            self.close();
        }
        if self.ring.is_none() {
            for (number, place) in self.all.iter_mut().enumerate() {
                if let Some(read) = place.take() {
                    self.free.push(number);
                    ended(read.tied, ReadEnd::Refused);
                }
            }
            is_over |= std::mem::take(&mut self.is_pausing);
        }
        is_over
    }

    /// Waits until the kernel has ended all reads; none begins any more. [`Reads::take`] tells those whose end was not told.
    pub(crate) fn close(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.close();
        }
    }
}

impl<T> Drop for Reads<T> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
