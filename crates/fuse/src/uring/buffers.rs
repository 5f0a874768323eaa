//! The memory of one ring's entries: what the kernel writes requests into, and reads answers from.
//!
//! One mapping: the payloads, then the headers. Its pages come when first used, from the node of the ring's CPU, in 2 MiB
//! pages where the kernel gives them. The kernel writes to an entry only while it has it, from the submission of a command
//! to its completion; in between, the entry's bytes are the server's alone. [`Buffers`] knows whose each entry is.

use crate::wire::{RING_HEADER_BYTES, RingHeader};
use homenode_engine::NodeId;
use std::ptr::{self, NonNull};
use std::{io, slice};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Whole cache lines, and all on the same few pages.
const HEADER_STRIDE_BYTES: usize = 320;
const _: () = assert!(HEADER_STRIDE_BYTES >= RING_HEADER_BYTES && HEADER_STRIDE_BYTES.is_multiple_of(64));

/// The kernel's headers call it so; libc has no name for it.
const MPOL_PREFERRED: libc::c_int = 1;

/// Header and payload of each entry of a ring.
#[derive(Debug)]
pub(super) struct Buffers {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    /// The first payload, on a 2 MiB boundary.
    first: NonNull<u8>,
    payload_bytes: usize,
    /// By entry: whether the kernel may write to it.
    with_kernel: Vec<bool>,
}

// SAFETY: the mapping belongs to this value alone, and nothing in it depends on the thread.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Maps memory for `depth` entries, preferably of `node`.
    pub(super) fn new(depth: usize, payload_bytes: usize, node: NodeId) -> io::Result<Self> {
        let bytes = depth * (payload_bytes + HEADER_STRIDE_BYTES);
        let mapping_bytes = bytes + HUGE_PAGE_BYTES;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel likes.
        let mapping = unsafe { libc::mmap(ptr::null_mut(), mapping_bytes, protection, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(mapping.cast::<u8>()).expect("the kernel maps nothing at 0");
        let skip = mapping.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: less than 2 MiB, which the mapping has at its end.
        let first = unsafe { mapping.add(skip) };
        let buffers = Self {
            mapping,
            mapping_bytes,
            first,
            payload_bytes,
            with_kernel: vec![false; depth],
        };
        buffers.advise(node);
        Ok(buffers)
    }

    /// Where its pages should come from, and how large they should be. Hints: a kernel without them costs speed only.
    fn advise(&self, node: NodeId) {
        let mut nodes = [0_u64; 1024];
        let bits = nodes.len() * 64;
        let number = usize::from(node.0);
        nodes[number / 64 % nodes.len()] = 1 << (number % 64);
        let (start, bytes) = (self.mapping.as_ptr().cast::<libc::c_void>(), self.mapping_bytes);
        // SAFETY: changes where pages of our own mapping come from; the mask is readable for its bits.
        let bound = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, MPOL_PREFERRED, nodes.as_ptr(), bits, 0) };
        if bound != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, node = node.0, "buffers of a ring come from whatever node touches them first");
        }
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP] {
            // SAFETY: neither advice changes what the pages of our own mapping hold.
            let taken = unsafe { libc::madvise(start, bytes, advice) };
            if taken != 0 {
                tracing::debug!(error = %io::Error::last_os_error(), advice, "advice for the buffers of a ring not taken");
            }
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.with_kernel.len()
    }

    /// What a registration tells the kernel: where the entry's header and payload are.
    pub(super) fn vectors(&self, index: usize) -> [libc::iovec; 2] {
        let vector = |start: NonNull<u8>, bytes| libc::iovec {
            iov_base: start.as_ptr().cast(),
            iov_len: bytes,
        };
        [
            vector(self.header_at(index), RING_HEADER_BYTES),
            vector(self.payload_at(index), self.payload_bytes),
        ]
    }

    /// The kernel gets the entry with the next submission.
    pub(super) fn give(&mut self, index: usize) {
        assert!(!self.with_kernel[index], "an entry is given once");
        self.with_kernel[index] = true;
    }

    /// The entry's command has completed.
    pub(super) fn take_back(&mut self, index: usize) {
        assert!(self.with_kernel[index], "a command completes once");
        self.with_kernel[index] = false;
    }

    /// A copy of the entry's header.
    pub(super) fn header(&self, index: usize) -> RingHeader {
        assert!(!self.with_kernel[index], "the kernel may be writing");
        let at = self.header_at(index).cast::<[u8; RING_HEADER_BYTES]>();
        // SAFETY: mapped, initialised by the kernel (zeros), and nobody writes to it now.
        RingHeader(unsafe { at.read() })
    }

    pub(super) fn set_header(&mut self, index: usize, header: &RingHeader) {
        assert!(!self.with_kernel[index], "the kernel may be reading");
        let at = self.header_at(index).cast::<[u8; RING_HEADER_BYTES]>();
        // SAFETY: mapped, and nobody else uses it now.
        unsafe { at.write(header.0) };
    }

    /// The entry's payload.
    pub(super) fn payload(&mut self, index: usize) -> &mut [u8] {
        assert!(!self.with_kernel[index], "the kernel may be writing");
        let at = self.payload_at(index);
        // SAFETY: mapped for that length, initialised by the kernel (zeros), with the kernel no more, and borrowed from
        // `self` exclusively.
        unsafe { slice::from_raw_parts_mut(at.as_ptr(), self.payload_bytes) }
    }

    fn payload_at(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.depth());
        // SAFETY: the mapping holds `depth` payloads from `first` on.
        unsafe { self.first.add(index * self.payload_bytes) }
    }

    fn header_at(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.depth());
        let offset = self.depth() * self.payload_bytes + index * HEADER_STRIDE_BYTES;
        // SAFETY: the mapping holds `depth` headers behind the payloads.
        unsafe { self.first.add(offset) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the whole of our own mapping, which nothing borrows any more.
        let unmapped = unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
        debug_assert_eq!(unmapped, 0, "the mapping is as mmap gave it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_do_not_overlap_and_keep_what_is_put_in() {
        let mut buffers = Buffers::new(3, 128 << 10, NodeId(0)).unwrap();
        for index in 0..3 {
            let mark = u8::try_from(index + 1).unwrap();
            buffers.payload(index).fill(mark);
            buffers.set_header(index, &RingHeader([mark; RING_HEADER_BYTES]));
        }
        for index in 0..3 {
            let mark = u8::try_from(index + 1).unwrap();
            assert!(buffers.payload(index).iter().all(|&byte| byte == mark));
            assert_eq!(buffers.header(index).0, [mark; RING_HEADER_BYTES]);
        }
        assert!(buffers.payload(0).as_ptr().align_offset(HUGE_PAGE_BYTES) == 0);
    }

    #[test]
    #[should_panic(expected = "the kernel may be writing")]
    fn what_the_kernel_has_is_not_looked_at() {
        let mut buffers = Buffers::new(1, 128 << 10, NodeId(0)).unwrap();
        buffers.give(0);
        buffers.payload(0);
    }
}
