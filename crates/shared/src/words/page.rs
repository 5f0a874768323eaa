//! Lines in a file: mapped for writing by the server, for reading by clients.

use super::Line;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Lines of files, in a file that is mapped as long as this lives. The file must not be shortened.
#[derive(Debug)]
pub struct Words {
    lines: NonNull<Line>,
    count: usize,
}

// SAFETY: lines are atomics, which any thread may use; the mapping belongs to the process.
unsafe impl Send for Words {}
// SAFETY: likewise.
unsafe impl Sync for Words {}

impl Words {
    /// Bytes of a line.
    pub const LINE_BYTES: usize = size_of::<Line>();

    /// Maps the first `count` lines of a file, for writing if it `is_server`: else only [`Line::look`] and the like may be called.
    ///
    /// # Errors
    /// The errno of mmap(2).
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn map(file: BorrowedFd<'_>, count: usize, is_server: bool) -> io::Result<Self> {
        assert!(count > 0, "nothing is mapped");
        let protection = match is_server {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let bytes = count * Self::LINE_BYTES;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let lines = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { lines, count })
    }

    /// Returns the lines, which stay mapped: munmap(2) of all of them is the caller's.
    #[must_use]
    pub fn leak(self) -> &'static [Line] {
        let words = std::mem::ManuallyDrop::new(self);
        // SAFETY: the mapping stays, and has so many lines: see `line`.
        unsafe { std::slice::from_raw_parts(words.lines.as_ptr(), words.count) }
    }

    /// Returns the line of a number; `None` beyond the last.
    #[inline]
    #[must_use]
    pub fn line(&self, number: usize) -> Option<&Line> {
        if number >= self.count {
            return None;
        }
        // SAFETY: it lies within the mapping.
        let line = unsafe { self.lines.add(number) };
        // SAFETY: pages begin at multiples of a line's size; any bits are two counts, which all processes change as atomics only; the mapping lives as long
        // as `self`.
        Some(unsafe { line.as_ref() })
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: its own mapping; lines that were borrowed from it are gone.
        unsafe { libc::munmap(self.lines.as_ptr().cast(), self.count * Self::LINE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn clients_see_the_servers_words() {
        let path = std::env::temp_dir().join(format!("homenode-words-{}", std::process::id()));
        std::fs::write(&path, [0; 4 * Words::LINE_BYTES]).expect("the disk has room");
        let open = |writes: bool| {
            File::options()
                .read(true)
                .write(writes)
                .open(&path)
                .expect("the file was created")
        };
        let server = Words::map(open(true).as_fd(), 4, true).expect("the page can be mapped");
        let client = Words::map(open(false).as_fd(), 4, false).expect("the page can be mapped");
        std::fs::remove_file(&path).expect("the file was created");
        let of = |words: &Words, number| words.line(number).map(Line::look);
        let before = of(&client, 3);
        assert_eq!(before, of(&server, 3));
        server.line(3).expect("the page has four lines").pass_on();
        assert_eq!(of(&client, 3), of(&server, 3));
        assert_ne!(of(&client, 3), before);
        assert_eq!(of(&client, 2), before);
        assert!(client.line(4).is_none());
    }
}
