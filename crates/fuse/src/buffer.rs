//! A thread's buffers, laid out so that data lies on page boundaries.
//!
//! What precedes the data (headers) ends where a page starts: the bytes of a WRITE request and of a READ answer are then
//! aligned for the copy, and header and data are one piece for one system call.

const PAGE_BYTES: usize = 4096;

/// Memory for `prefix_bytes` and, page-aligned behind them, `data_bytes`.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// The only allocation: made once per thread. The pages themselves come when first used, near the thread.
    pub(crate) fn new(prefix_bytes: usize, data_bytes: usize) -> Self {
        let front = prefix_bytes.next_multiple_of(PAGE_BYTES);
        let memory = vec![0; front + data_bytes + PAGE_BYTES];
        // Not aligned by an offset happens only under interpreters, where alignment does not matter either.
        let page = Some(memory.as_ptr().align_offset(PAGE_BYTES))
            .filter(|&offset| offset < PAGE_BYTES)
            .unwrap_or(0);
        Self {
            memory,
            start: page + front - prefix_bytes,
            length: prefix_bytes + data_bytes,
        }
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
            let mut buffer = Buffer::new(prefix, data);
            let bytes = buffer.bytes();
            assert_eq!(bytes.len(), prefix + data);
            assert_eq!(bytes[prefix..].as_ptr().align_offset(PAGE_BYTES), 0);
        }
    }
}
