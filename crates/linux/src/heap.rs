//! The heap of a process that runs for long: memory that was freed goes back to the kernel.
//!
//! glibc keeps freed memory in its arenas, and gives back only what lies at an arena's end. A server that once held many
//! names and attributes would keep their memory for ever.

/// Gives freed memory of the heap back, when there is more of it than at its lowest since the last time.
#[derive(Debug, Default)]
pub struct Heap {
    free_bytes_lowest: usize,
}

/// Freed bytes that are worth the walk through the arenas, which takes about a millisecond for each 100 MB.
#[cfg(target_env = "gnu")]
const WORTH_BYTES: usize = 1 << 20;

impl Heap {
    /// Looks, and gives back if it is worth it. Call this every few seconds.
    #[cfg(target_env = "gnu")]
    pub fn give_back(&mut self) {
        let free_bytes = free_bytes();
        if free_bytes < self.free_bytes_lowest.saturating_add(WORTH_BYTES) {
            self.free_bytes_lowest = self.free_bytes_lowest.min(free_bytes);
            return;
        }
        // SAFETY: gives whole free pages of the heap back; no memory that is in use changes.
        unsafe { libc::malloc_trim(0) };
        self.free_bytes_lowest = self::free_bytes();
    }

    /// Nothing: this C library gives freed memory back itself.
    #[cfg(not(target_env = "gnu"))]
    pub fn give_back(&mut self) {
        self.free_bytes_lowest = 0;
    }
}

/// Bytes that are free in all arenas, whether the kernel has their pages back or not.
#[cfg(target_env = "gnu")]
fn free_bytes() -> usize {
    // SAFETY: only reads the allocator's counts, under its locks.
    unsafe { libc::mallinfo2() }.fordblks
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    const COUNT: usize = 1000;
    const BYTES: usize = 60_000;

    fn resident_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.and_then(|number| number.parse().ok()).expect("Linux tells it")
    }

    /// In a thread, so that its arena is not the main one. Each block that is freed has a small one behind it that is not,
    /// so nothing lies at the arena's end.
    #[test]
    fn freed_memory_between_used_memory_goes_back() {
        let left_kib = std::thread::spawn(|| {
            let mut heap = Heap::default();
            heap.give_back();
            let before = resident_kib();
            let both: Vec<(Vec<u8>, Box<u64>)> = (0..COUNT).map(|i| (vec![1; BYTES], Box::new(i as u64))).collect();
            let (large, small): (Vec<_>, Vec<_>) = both.into_iter().unzip();
            let full = resident_kib();
            assert!(
                full - before > COUNT * BYTES / 1024 * 9 / 10,
                "{before} then {full}: not measured"
            );
            drop(large);
            heap.give_back();
            let left = resident_kib().saturating_sub(before);
            drop(small);
            left
        })
        .join()
        .expect("no panic");
        assert!(left_kib < COUNT * BYTES / 1024 / 4, "{left_kib} KiB stay");
    }
}
