//! The heap of a process that runs for long: memory that was freed goes back to the kernel.
//!
//! glibc keeps freed memory in its arenas, and gives back only what lies at an arena's end. A server that once held many
//! names and attributes would keep their memory for ever.

use std::time::Instant;

/// Gives freed memory of the heap back, when much of it was freed since the last time.
#[derive(Debug)]
pub struct Heap {
    /// Most bytes that were held since the last time, and those that were held when it was asked last.
    most_bytes: u64,
    last_bytes: u64,
    rests_until: Option<Instant>,
}

/// Freed bytes that are worth the walk through the arenas, and their least part of those that were held. The walk passes every freed block of an arena with the
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
            most_bytes: 0,
            last_bytes: 0,
            rests_until: None,
        }
    }

    /// Gives back what was freed if that is worth it; `held_bytes` is what the process knows to hold, as no allocator tells its free bytes without a walk. Call
    /// this every few seconds.
    #[cfg(target_env = "gnu")]
    pub fn give_back(&mut self, held_bytes: u64) {
        self.most_bytes = self.most_bytes.max(held_bytes);
        let worth_bytes = WORTH_BYTES.max(self.most_bytes / WORTH_PART);
        // What is still being freed goes back in one walk, and in large pieces.
        let is_falling = std::mem::replace(&mut self.last_bytes, held_bytes).saturating_sub(held_bytes) >= worth_bytes;
        let begin = Instant::now();
        let rests = self.rests_until.is_some_and(|until| begin < until);
        if is_falling || rests || self.most_bytes - held_bytes < worth_bytes {
            return;
        }
        // SAFETY: gives whole free pages of the heap back; no memory that is in use changes.
        unsafe { libc::malloc_trim(0) };
        self.most_bytes = held_bytes;
        self.rests_until = Some(begin + begin.elapsed() * REST);
    }

    /// Nothing: this C library gives freed memory back itself.
    #[cfg(not(target_env = "gnu"))]
    pub fn give_back(&mut self, held_bytes: u64) {
        (self.most_bytes, self.last_bytes, self.rests_until) = (held_bytes, held_bytes, None);
    }
}
