//! The memory of one ring's entries: what the kernel writes requests into, and reads answers from.
//!
//! One mapping: the headers, then the payloads on a 2 MiB boundary. Its pages come when first used, from the node of the ring's
//! CPU, those of the payloads 2 MiB at a time where the kernel gives them. The kernel writes to an entry only while it has it, from the submission of a command
//! to its completion; in between, the entry's bytes are the server's alone. [`Buffers`] knows whose each entry is.

use crate::wire::{RING_HEADER_BYTES, RingHeader};
use homenode_engine::NodeId;
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{io, slice};

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Whole cache lines, and all on the same few pages.
const HEADER_STRIDE_BYTES: usize = 320;
const _: () = assert!(HEADER_STRIDE_BYTES >= RING_HEADER_BYTES && HEADER_STRIDE_BYTES.is_multiple_of(64));

/// Header and payload of each entry of a ring.
#[derive(Debug)]
pub(super) struct Buffers {
    mapping: Arc<MmapRaw>,
    /// The first header, where the mapping begins.
    start: NonNull<u8>,
    /// The first payload, on a 2 MiB boundary.
    first: NonNull<u8>,
    payload_bytes: usize,
    /// Header and payload of each entry, as a registration tells them to the kernel.
    vectors: Vec<[libc::iovec; 2]>,
    /// Owner of each entry: who may write to it.
    holders: Vec<Holder>,
}

/// Whose an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Queue,
    Kernel,
    /// Who has its [`Lent`].
    Other,
}

/// An entry's payload in the hands of another thread than the queue's.
#[derive(Debug)]
pub(super) struct Lent {
    index: usize,
    payload: NonNull<u8>,
    bytes: usize,
    /// Keeps it mapped.
    mapping: Arc<MmapRaw>,
}

// SAFETY: the payload is used through this value alone (`Buffers::lend`), and nothing depends on the thread.
unsafe impl Send for Lent {}
// SAFETY: the entries belong to this value alone, but for those lent, as do the vectors that point to them, and nothing depends on the thread.
unsafe impl Send for Buffers {}

impl Lent {
    /// The bytes.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        // SAFETY: mapped for that length, initialised by the kernel (zeros), neither the kernel nor the queue touches it meanwhile, and
        // borrowed from `self` exclusively.
        unsafe { slice::from_raw_parts_mut(self.payload.as_ptr(), self.bytes) }
    }
}

impl Buffers {
    /// Maps memory for `depth` entries, preferably of `node`.
    pub(super) fn new(depth: usize, payload_bytes: usize, node: NodeId) -> io::Result<Self> {
        let headers_bytes = depth * HEADER_STRIDE_BYTES;
        let mapping_bytes = headers_bytes + HUGE_PAGE_BYTES + depth * payload_bytes;
        let mapping = MmapOptions::new().len(mapping_bytes).no_reserve_swap().map_anon()?;
        let mapping = MmapRaw::from(mapping);
        let start = NonNull::new(mapping.as_mut_ptr()).expect("mmap never returns address 0");
        // SAFETY: within the mapping.
        let behind_headers = unsafe { start.add(headers_bytes) };
        let skip = behind_headers.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: less than 2 MiB, which the mapping has besides headers and payloads.
        let first = unsafe { behind_headers.add(skip) };
        let mut buffers = Self {
            mapping: Arc::new(mapping),
            start,
            first,
            payload_bytes,
            vectors: Vec::new(),
            holders: vec![Holder::Queue; depth],
        };
        buffers.vectors = (0..depth).map(|index| buffers.vectors_of(index)).collect();
        buffers.advise();
        if let Err(error) = buffers.prefer(node) {
            tracing::warn!(%error, node = node.0, "buffers of a ring come from whatever node touches them first");
        }
        Ok(buffers)
    }

    /// Large pages for the payloads, and nothing of it in core dumps. Hints: a kernel without them costs speed only.
    fn advise(&self) {
        let (payloads_at, payloads_bytes) = (
            self.first.addr().get() - self.start.addr().get(),
            self.depth() * self.payload_bytes,
        );
        let large = self.mapping.advise_range(Advice::HugePage, payloads_at, payloads_bytes);
        for taken in [large, self.mapping.advise(Advice::DontDump)] {
            if let Err(error) = taken {
                tracing::debug!(%error, "advice for the buffers of a ring not taken");
            }
        }
    }

    /// Has the pages come from `node` while it has any.
    fn prefer(&self, node: NodeId) -> io::Result<()> {
        const WORD_BITS: usize = libc::c_ulong::BITS as usize;
        let mut nodes = [0 as libc::c_ulong; 1024 / WORD_BITS];
        let word = nodes
            .get_mut(usize::from(node.0) / WORD_BITS)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (usize::from(node.0) % WORD_BITS);
        // The kernel takes one bit less than it is told.
        let bits = nodes.len() * WORD_BITS + 1;
        let (start, bytes, mode) = (self.start.as_ptr(), self.mapping.len(), libc::MPOL_PREFERRED);
        // SAFETY: says where pages of our own mapping come from; the mask is readable for its bits.
        let result = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, nodes.as_ptr(), bits, 0) };
        // A kernel without NUMA has nothing to choose from.
        match io::Error::last_os_error() {
            error if result != 0 && error.raw_os_error() != Some(libc::ENOSYS) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.holders.len()
    }

    /// Returns the entry's header and payload, as a registration tells them to the kernel.
    pub(super) fn vectors(&self, index: usize) -> &[libc::iovec; 2] {
        &self.vectors[index]
    }

    fn vectors_of(&self, index: usize) -> [libc::iovec; 2] {
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
        assert!(self.holders[index] == Holder::Queue, "an entry is given once");
        self.holders[index] = Holder::Kernel;
    }

    /// The entry's command has completed.
    pub(super) fn take_back(&mut self, index: usize) {
        assert!(self.holders[index] == Holder::Kernel, "a command completes once");
        self.holders[index] = Holder::Queue;
    }

    /// Gives the entry to another thread.
    pub(super) fn lend(&mut self, index: usize) -> Lent {
        assert!(self.holders[index] == Holder::Queue, "an entry is lent once");
        self.holders[index] = Holder::Other;
        Lent {
            index,
            payload: self.payload_at(index),
            bytes: self.payload_bytes,
            mapping: Arc::clone(&self.mapping),
        }
    }

    /// Takes an entry of these back.
    pub(super) fn return_lent(&mut self, lent: Lent) {
        assert!(Arc::ptr_eq(&lent.mapping, &self.mapping), "foreign payload");
        assert!(self.holders[lent.index] == Holder::Other, "the entry was lent");
        self.holders[lent.index] = Holder::Queue;
    }

    /// A copy of the entry's header.
    pub(super) fn header(&self, index: usize) -> RingHeader {
        assert!(self.holders[index] != Holder::Kernel, "the kernel may be writing");
        let at = self.header_at(index).cast::<[u8; RING_HEADER_BYTES]>();
        // SAFETY: mapped, initialised by the kernel (zeros), and nobody writes to it now.
        RingHeader(unsafe { at.read() })
    }

    pub(super) fn set_header(&mut self, index: usize, header: &RingHeader) {
        assert!(self.holders[index] == Holder::Queue, "another may be reading");
        let at = self.header_at(index).cast::<[u8; RING_HEADER_BYTES]>();
        // SAFETY: mapped, and nobody else uses it now.
        unsafe { at.write(header.0) };
    }

    /// The entry's payload.
    pub(super) fn payload(&mut self, index: usize) -> &mut [u8] {
        assert!(self.holders[index] == Holder::Queue, "another may be writing");
        let at = self.payload_at(index);
        // SAFETY: mapped for that length, initialised by the kernel (zeros), with the kernel no more and not lent, and borrowed from
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
        // SAFETY: the mapping starts with `depth` headers.
        unsafe { self.start.add(index * HEADER_STRIDE_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn ring_entries_do_not_overlap_and_keep_their_bytes() {
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
    fn buffers_are_bound_to_the_node() {
        let buffers = Buffers::new(2, 128 << 10, NodeId(0)).unwrap();
        let mut mode: libc::c_int = -1;
        let mut nodes = [0 as libc::c_ulong; 16];
        let (bits, address) = (nodes.len() * 64, buffers.payload_at(1).as_ptr());
        // SAFETY: both results have room for what is asked: a number, and a mask of that many bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                nodes.as_mut_ptr(),
                bits,
                address,
                MPOL_F_ADDR,
            )
        };
        if result != 0 {
            // Past the test harness's capture.
            let error = io::Error::last_os_error();
            let _ = writeln!(io::stderr(), "SKIPPED: this kernel has no NUMA: {error}");
            return;
        }
        assert_eq!((mode, nodes[0]), (libc::MPOL_PREFERRED, 1));
        assert!(buffers.prefer(NodeId(u16::MAX)).is_err());
    }

    /// The policy of an address.
    const MPOL_F_ADDR: libc::c_int = 2;

    #[test]
    #[should_panic(expected = "another may be writing")]
    fn buffers_owned_by_the_kernel_are_not_readable() {
        let mut buffers = Buffers::new(1, 128 << 10, NodeId(0)).unwrap();
        buffers.give(0);
        buffers.payload(0);
    }

    #[test]
    fn a_lent_payload_keeps_its_bytes_after_the_buffers_are_dropped() {
        let mut buffers = Buffers::new(2, 128 << 10, NodeId(0)).unwrap();
        buffers.payload(1)[0] = 5;
        let mut lent = buffers.lend(1);
        let written = std::thread::spawn(move || {
            lent.payload()[1] = 6;
            lent
        });
        let lent = written.join().unwrap();
        buffers.return_lent(lent);
        assert_eq!(buffers.payload(1)[..2], [5, 6]);
        let mut lent = buffers.lend(1);
        drop(buffers);
        assert_eq!(lent.payload()[..2], [5, 6]);
    }

    #[test]
    #[should_panic(expected = "another may be writing")]
    fn lent_buffers_are_not_readable() {
        let mut buffers = Buffers::new(1, 128 << 10, NodeId(0)).unwrap();
        let _lent = buffers.lend(0);
        buffers.payload(0);
    }
}
