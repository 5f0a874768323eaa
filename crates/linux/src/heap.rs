//! The heap of a process that runs for long: memory that was freed goes back to the kernel.
//!
//! glibc keeps freed memory in its arenas, and gives back only what lies at an arena's end. A server that once held many
//! names and attributes would keep their memory for ever.

use std::time::Instant;

/// Gives freed memory of the heap back, when the process has much more of it than it knows to hold.
#[derive(Debug)]
pub struct Heap {
    /// Fewest bytes beyond what was held since the last time, and those when it was asked last.
    least_bytes: u64,
    last_bytes: u64,
    rests_until: Option<Instant>,
}

/// Freed bytes that are worth the walk through the arenas, and their least part of all. The walk passes every freed block of an arena with the
/// arena locked: 0.2 s for two million blocks between blocks that are in use.
#[cfg(target_env = "gnu")]
const WORTH_BYTES: u64 = 1 << 20;
#[cfg(target_env = "gnu")]
const WORTH_PART: u64 = 16;

/// A walk is followed by a rest of so many times its length.
#[cfg(target_env = "gnu")]
const REST: u32 = 1000;

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
        Self {
            least_bytes: 0,
            last_bytes: 0,
            rests_until: None,
        }
    }

    /// Gives back what was freed if that is worth it; `held_bytes` is what the process knows to hold of its own memory. The allocator tells what is free
    /// by the same walk alone. Call this every few seconds.
    #[cfg(target_env = "gnu")]
    pub fn give_back(&mut self, held_bytes: u64) {
        let all = own_bytes();
        let beyond = all.saturating_sub(held_bytes);
        let worth_bytes = WORTH_BYTES.max(all / WORTH_PART);
        // What is still being freed goes back in one walk, and in large pieces.
        let last = std::mem::replace(&mut self.last_bytes, beyond);
        self.least_bytes = self.least_bytes.min(beyond);
        let begin = Instant::now();
        let rests = self.rests_until.is_some_and(|until| begin < until);
        if rests || beyond >= last + worth_bytes || beyond < self.least_bytes + worth_bytes {
            return;
        }
        // SAFETY: gives whole free pages of the heap back; no memory that is in use changes.
        unsafe { libc::malloc_trim(0) };
        self.rests_until = Some(begin + begin.elapsed() * REST);
        self.least_bytes = own_bytes().saturating_sub(held_bytes);
    }

    /// Nothing: this C library gives freed memory back itself.
    #[cfg(not(target_env = "gnu"))]
    pub fn give_back(&mut self, held_bytes: u64) {
        (self.least_bytes, self.last_bytes, self.rests_until) = (held_bytes, held_bytes, None);
    }
}

/// Resident memory that is no file's and shared with nobody; 0 where the kernel does not tell.
#[cfg(target_env = "gnu")]
fn own_bytes() -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text
        .split_ascii_whitespace()
        .skip(1)
        .map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * PAGE_BYTES
}
