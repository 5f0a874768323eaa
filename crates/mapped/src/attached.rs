//! A file of a mounted pool for users in Rust.

use crate::{From, To, learn_now, range, read, replaced, write};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// An open file whose reads and writes at an offset ([`FileExt`]) are copies by the calling thread, if it is on a mounted pool whose files are the kernel's, and system calls if not. For
/// all else it is the [`File`] that it was made from.
///
/// Any number of threads may use it at once, and other processes the same file. It has to be open for reading, and without O_APPEND, O_DIRECT and O_SYNC, for copies.
///
/// mlockall(2) with MCL_CURRENT fills the holes of files that are attached by then.
///
/// The first one of a process sets an action for SIGBUS, which calls the one that was there before; an action that is set later has to keep it.
#[derive(Debug)]
pub struct Attached(ManuallyDrop<File>);

impl std::convert::From<File> for Attached {
    fn from(file: File) -> Self {
        learn_now(file.as_raw_fd());
        Self(ManuallyDrop::new(file))
    }
}

impl Attached {
    /// Returns the bytes on each node, ascending by node, nodes with none left out. Holes lie nowhere.
    ///
    /// # Errors
    /// ENODATA or EOPNOTSUPP when it is on no pool.
    pub fn map(&self) -> io::Result<Vec<(u16, u64)>> {
        let mut map = Vec::new();
        let done = by_node(self.as_raw_fd(), |node, bytes| map.push((node, bytes)));
        done.map(|()| map).ok_or_else(io::Error::last_os_error)
    }
}

/// Shows the bytes of a file on each node; `None`, with errno, if it is on no pool.
pub fn by_node(fd: c_int, mut show: impl FnMut(u16, u64)) -> Option<()> {
    // A number a node, of the nodes that a machine can have.
    let mut text = [0_u8; 32 << 10];
    let name = c"user.homenode.map";
    // SAFETY: a string that ends in NUL, and a buffer with its length.
    let length = unsafe { libc::fgetxattr(fd, name.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    let text = std::str::from_utf8(text.get(..usize::try_from(length).ok()?)?).unwrap_or_default();
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.filter_map(|(node, bytes)| Some((node.parse().ok()?, bytes.parse().ok()?)));
    pairs.for_each(|(node, bytes)| show(node, bytes));
    Some(())
}

fn bytes_of(done: isize) -> io::Result<usize> {
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// An offset as system calls take it; they refuse what does not fit.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(-1)
}

impl FileExt for Attached {
    #[inline]
    fn read_at(&self, to: &mut [u8], offset: u64) -> io::Result<usize> {
        let (fd, offset) = (self.as_raw_fd(), signed(offset));
        let (at, bytes) = (to.as_mut_ptr(), to.len());
        // SAFETY: a buffer with its length.
        let system = || unsafe { libc::pread64(fd, at.cast(), bytes, offset) };
        // SAFETY: the same.
        bytes_of(unsafe { read(fd, range(offset, bytes), &To(at, bytes), system) })
    }

    #[inline]
    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let (fd, offset) = (self.as_raw_fd(), signed(offset));
        let (at, bytes) = (from.as_ptr(), from.len());
        // SAFETY: a buffer with its length.
        let system = || unsafe { libc::pwrite64(fd, at.cast(), bytes, offset) };
        // SAFETY: the same.
        bytes_of(unsafe { write(fd, range(offset, bytes), &From(at, bytes), system) })
    }
}

impl Deref for Attached {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let fd = self.as_raw_fd();
        // SAFETY: it is taken here alone.
        let file = unsafe { ManuallyDrop::take(&mut self.0) };
        replaced(fd, fd, || drop(file));
    }
}
