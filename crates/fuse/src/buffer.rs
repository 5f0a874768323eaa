//! Buffers of a thread, or of a request that waits for the disk, laid out so that data lies on page boundaries.
//!
//! What precedes the data (headers) ends where a page starts: the bytes of a WRITE request and of a READ answer are then
//! aligned for the copy, and header and data are one piece for one system call. They are no part of a core dump: they hold what users
//! read and write.

use memmap2::{Advice, MmapMut};
use std::io;

const PAGE_BYTES: usize = 4096;

/// Memory for `prefix_bytes` and, page-aligned behind them, `data_bytes`.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: MmapMut,
    start: usize,
    length: usize,
}

impl Buffer {
    /// A mapping of its own. The pages themselves come when first used, near the thread.
    ///
    /// # Errors
    /// When the process may map no more.
    pub(crate) fn new(prefix_bytes: usize, data_bytes: usize) -> io::Result<Self> {
        let front = prefix_bytes.next_multiple_of(PAGE_BYTES);
        let memory = MmapMut::map_anon(Self::bytes_of(prefix_bytes, data_bytes))?;
        if let Err(error) = memory.advise(Advice::DontDump) {
            tracing::debug!(%error, "core dumps will contain users' data");
        }
        Ok(Self {
            memory,
            start: front - prefix_bytes,
            length: prefix_bytes + data_bytes,
        })
    }

    /// Memory that such a buffer takes.
    pub(crate) const fn bytes_of(prefix_bytes: usize, data_bytes: usize) -> usize {
        (prefix_bytes.next_multiple_of(PAGE_BYTES) + data_bytes).next_multiple_of(PAGE_BYTES)
    }

    /// Memory that it takes.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Prefix and data, to read.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    /// Prefix and data.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_starts_on_a_page() {
        for (prefix, data) in [(0, 1), (16, 1 << 20), (80, 4097), (4096, 10), (5000, 3)] {
            let mut buffer = Buffer::new(prefix, data).unwrap();
            let bytes = buffer.bytes();
            assert_eq!(bytes.len(), prefix + data);
            assert_eq!(bytes[prefix..].as_ptr().align_offset(PAGE_BYTES), 0);
        }
    }

    #[test]
    fn buffers_are_excluded_from_core_dumps() {
        let mut buffer = Buffer::new(80, 1 << 20).unwrap();
        buffer.bytes().fill(7);
        let first = buffer.bytes().as_ptr().addr();
        let last = first + buffer.bytes().len() - 1;
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for at in [first, last] {
            let mut is_ours = false;
            // A line of addresses begins each mapping; "dd" says that it is not dumped.
            let flags = smaps.lines().find(|line| {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let address = |text| usize::from_str_radix(text, 16).ok();
                if let Some((Some(start), Some(end))) = range.map(|(start, end)| (address(start), address(end))) {
                    is_ours = (start..end).contains(&at);
                }
                is_ours && line.starts_with("VmFlags:")
            });
            let flags = flags.expect("it is mapped");
            assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
        }
    }
}
