//! A shared mapping of a file, for programs without unsafe code: benches and tests.

use crate::memory::mapping::{HUGE_BYTES, Mapping};
use std::io;
use std::os::fd::BorrowedFd;

/// A shared mapping of a whole file. A store beyond the file's end ends the process by SIGBUS, as it does everywhere.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Mapping,
    bytes: usize,
}

impl MappedFile {
    /// Maps the first `bytes` bytes of a file that is open for reading and writing.
    ///
    /// # Errors
    /// The errno of mmap(2).
    pub fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let mapped = bytes.max(1).next_multiple_of(HUGE_BYTES);
        let mapping = Mapping::reserve(mapped)?;
        mapping.attach(file)?;
        Ok(Self { mapping, bytes })
    }

    /// Stores a byte.
    ///
    /// # Panics
    /// When `at` is not below the size that was mapped.
    #[inline]
    pub fn store(&mut self, at: usize, byte: u8) {
        assert!(at < self.bytes, "{at} of {} bytes", self.bytes);
        // SAFETY: the byte is within the mapping, which no reference points into; others see it change as any byte of a file.
        unsafe { self.mapping.base().wrapping_add(at).write_volatile(byte) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn stores_are_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5000).unwrap();
        MappedFile::new(file.as_fd(), 5000).unwrap().store(4999, 7);
        let mut last = [0];
        file.read_exact_at(&mut last, 4999).unwrap();
        assert_eq!(last, [7]);
    }
}
