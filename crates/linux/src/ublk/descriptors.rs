//! The descriptors of one queue: memory of the kernel, in which it says by tag what is asked for.

use super::abi::{DEPTH_LIMIT, IoDescriptor};
use rustix::param::page_size;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::{io, ptr};

/// Descriptors by tag, mapped for reading.
#[derive(Debug)]
pub(super) struct Descriptors {
    first: NonNull<IoDescriptor>,
    depth: usize,
}

impl Descriptors {
    /// Maps those of `queue`, whose tags are below `depth`, out of the device's file.
    pub(super) fn map(device: &File, queue: u16, depth: usize) -> io::Result<Self> {
        let offset = usize::from(queue) * bytes_of(DEPTH_LIMIT);
        let offset = libc::off_t::try_from(offset).expect("offsets of at most 65,535 queues fit off_t");
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let (bytes, fd) = (bytes_of(depth), device.as_raw_fd());
        // SAFETY: a new mapping where the kernel likes.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, flags, fd, offset) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(mapped.cast()).expect("mmap never returns address 0");
        Ok(Self { first, depth })
    }

    /// Returns the descriptor of `tag`. It is whole only from the kernel's notice of the request until the kernel gets the result.
    #[inline]
    pub(super) fn read(&self, tag: u16) -> IoDescriptor {
        assert!(usize::from(tag) < self.depth, "the tag belongs to this queue");
        // SAFETY: the mapping has as many descriptors.
        let at = unsafe { self.first.add(usize::from(tag)) };
        // SAFETY: mapped for reading, aligned as every descriptor from the start of a page on, and any bytes are one; volatile, as the
        // kernel writes it anew for each request.
        unsafe { at.read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing borrows.
        let unmapped = unsafe { libc::munmap(self.first.as_ptr().cast(), bytes_of(self.depth)) };
        debug_assert_eq!(unmapped, 0, "munmap gets mmap's own range");
    }
}

fn bytes_of(depth: usize) -> usize {
    (depth * size_of::<IoDescriptor>()).next_multiple_of(page_size())
}
