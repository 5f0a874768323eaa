//! The heap of a process that runs for long: memory that was freed goes back to the kernel.
//!
//! glibc keeps freed memory in its arenas, and gives back only what lies at an arena's end. A server that once held many
//! names and attributes would keep their memory for ever.

/// Gives freed memory of the heap back, when there is more of it than at its lowest since the last time.
#[derive(Debug)]
pub struct Heap {
    free_bytes_lowest: usize,
}

/// Freed bytes that are worth the walk through the arenas, which takes about a millisecond for each 100 MB.
#[cfg(target_env = "gnu")]
const WORTH_BYTES: usize = 1 << 20;

/// Freed bytes at an arena's end that the allocator keeps. Without a number it keeps twice the largest block that was ever freed,
/// and a trim does not reach the end of a thread's arena.
#[cfg(target_env = "gnu")]
const END_BYTES: libc::c_int = 1 << 20;

impl Heap {
    /// The heap of this process, whose arenas keep at most 1 MiB at their ends from now on.
    #[expect(clippy::new_without_default, reason = "it changes the process")]
    pub fn new() -> Self {
        #[cfg(target_env = "gnu")]
        // SAFETY: sets a number of the allocator, under its lock.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, END_BYTES)
        };
        Self { free_bytes_lowest: 0 }
    }

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
