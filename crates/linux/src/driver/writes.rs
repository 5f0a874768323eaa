//! Writes of memory to a file at the same time, by a ring whose user waits for all of them.
//!
//! Invariants: when [`Writes::all`] is back the kernel has ended all writes, and reads neither their lists of pieces nor their memory any more.
//! Cost: a system call for all, and one more after a signal; no memory is taken.

use super::RingError;
use super::ring::{Ring, is_refusal};
use io_uring::opcode;
use io_uring::types::Fd;
use std::io;
use std::os::fd::RawFd;

/// A ring for writes.
#[derive(Debug)]
pub(crate) struct Writes {
    /// `None` once the kernel serves it no more.
    ring: Option<Ring>,
}

impl Writes {
    /// Most writes at the same time.
    pub(crate) const DEPTH: u16 = 32;

    pub(crate) fn new() -> Result<Self, RingError> {
        let ring = Some(Ring::shared(Self::DEPTH)?);
        Ok(Self { ring })
    }

    /// Carries out writes, each a list of pieces that go to the bytes of `file` from an offset on. Calls `ended` with the number of each that has ended
    /// and the bytes that it wrote; not with those that the kernel did not take, or could not begin. Returns
    /// false when the kernel serves the ring no more.
    ///
    /// # Safety
    /// The memory that the lists name is mapped.
    pub(crate) unsafe fn all<'a>(
        &mut self,
        file: RawFd,
        lists: impl Iterator<Item = (u64, &'a [libc::iovec])>,
        ended: impl FnMut(usize, Option<usize>),
    ) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        for ((offset, pieces), number) in lists.zip(0..) {
            let count = u32::try_from(pieces.len()).expect("at most IOV_MAX");
            let entry = opcode::Writev::new(Fd(file), pieces.as_ptr(), count).offset(offset);
            // SAFETY: the caller promises it, and the lists outlive the call. One for which there is no room is not carried out.
            let _ = unsafe { ring.push(&entry.build().user_data(number)) };
        }
        if end(ring, ended).is_err() {
            self.close();
        }
        self.ring.is_some()
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
            if !is_refusal(result) {
                ended(number, usize::try_from(result).ok());
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    const PIECE: usize = 4096;

    fn piece(bytes: &mut [u8]) -> libc::iovec {
        libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        }
    }

    #[test]
    fn each_write_is_told_once_with_its_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writes = match Writes::new() {
            Ok(writes) => writes,
            Err(error) => return crate::skip(format_args!("this system makes no ring: {error}")),
        };
        let descriptor = file.as_file().as_raw_fd();
        for round in 1..4_u8 {
            let mut bytes: Vec<Vec<u8>> = (0..64).map(|nth| vec![round * 64 + nth; PIECE]).collect();
            let pieces: Vec<libc::iovec> = bytes.iter_mut().map(|bytes| piece(bytes)).collect();
            // In the reverse order of the file, two pieces each.
            let lists = pieces
                .chunks(2)
                .zip(0_u64..)
                .map(|(list, nth)| ((31 - nth) * 2 * PIECE as u64, list));
            let mut told = Vec::new();
            // SAFETY: the pieces are those of vectors that live on.
            unsafe { writes.all(descriptor, lists, |nth, bytes| told.push((nth, bytes))) };
            told.sort_unstable();
            let all: Vec<_> = (0..32).map(|nth| (nth, Some(2 * PIECE))).collect();
            assert_eq!(told, all);
            let on_disk = fs::read(file.path()).unwrap();
            for (nth, pair) in bytes.chunks(2).rev().enumerate() {
                assert_eq!(on_disk[nth * 2 * PIECE..][..2 * PIECE], pair.concat(), "pair {nth}");
            }
        }
    }

    #[test]
    fn a_write_that_fails_is_told_and_the_others_are_made() {
        let Ok(mut writes) = Writes::new() else {
            return crate::skip("this system makes no ring");
        };
        let full = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open("/dev/full")
            .unwrap();
        let mut bytes = vec![1; PIECE];
        let pieces = [piece(&mut bytes)];
        let mut told = Vec::new();
        let lists = [(0, &pieces[..]), (0, &pieces[..])];
        // SAFETY: the piece is that of a vector that lives on.
        unsafe {
            writes.all(full.as_raw_fd(), lists.into_iter(), |nth, bytes| {
                told.push((nth, bytes))
            })
        };
        told.sort_unstable();
        assert_eq!(told, [(0, None), (1, None)]);
        // The ring goes on.
        let file = tempfile::NamedTempFile::new().unwrap();
        let lists = [(0, &pieces[..])];
        let mut told = Vec::new();
        // SAFETY: as above.
        unsafe {
            writes.all(file.as_file().as_raw_fd(), lists.into_iter(), |nth, bytes| {
                told.push((nth, bytes))
            })
        };
        assert_eq!(told, [(0, Some(PIECE))]);
    }
}
