//! Words of files, by which programs that copy through mappings learn what the server does to the files.
//!
//! Owns the protocol of both sides, and its fences; the server holds lines for writing, clients map them for reading.
//!
//! Invariants: `cuts` is odd while bytes of the line's file go, and never goes back; whoever has copied and then finds both words as they were has done so
//! before the bytes went and before attributes were read for an answer. Cost: two loads of a line before a copy, and two after it.
//! Choice: docs/decisions/020-words.md.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(not(loom))]
mod page;

#[cfg(not(loom))]
pub use page::Words;

use crate::sync::{AtomicU64, Ordering, fence};

/// Lines of a user's file of words.
pub const LINES: u32 = 4096;
/// Pieces of a file that an answer about it tells of, a bit for each, and their size.
pub const PIECES: u64 = 1024;
/// See [`PIECES`].
pub const PIECE_BYTES: u64 = 64 << 10;
/// Numbers of 64 bits that [`PIECES`] take.
pub const PIECE_WORDS: usize = 16;
const _: () = assert!(PIECES == PIECE_WORDS as u64 * 64, "a bit for each piece");

/// The words of one file.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line {
    cuts: AtomicU64,
    asks: AtomicU64,
}

/// The time in which bytes of a file go. Dropping ends it.
#[derive(Debug)]
pub struct Cut<'a>(&'a Line);

/// Values of a line's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How often bytes went, twice; even.
    pub cuts: u64,
    /// How often attributes were asked for or set.
    pub asks: u64,
}

impl Line {
    /// Begins to take bytes away. At most one thread at a time takes bytes of a file away.
    #[must_use = "dropping it ends the cut"]
    pub fn cut(&self) -> Cut<'_> {
        let cuts = self.cuts.load(Ordering::Relaxed);
        debug_assert!(cuts.is_multiple_of(2), "one cut at a time");
        self.cuts.store(cuts + 1, Ordering::Relaxed);
        // A client that loads the value before this has stored by now what it copies, and the bytes that go now include that.
        fence(Ordering::SeqCst);
        Cut(self)
    }

    /// Tells that attributes are read now for an answer, or were set.
    pub fn raise_asks(&self) {
        self.asks.fetch_add(1, Ordering::Relaxed);
        // A client that loads the value before this has stored by now what it copies: it was written before the attributes were asked for.
        fence(Ordering::SeqCst);
    }

    /// Gives the line to another file: what anybody knows of it is out of date.
    pub fn pass_on(&self) {
        drop(self.cut());
    }

    /// Returns the words; `None` while bytes go.
    #[inline]
    #[must_use]
    pub fn look(&self) -> Option<Seen> {
        // Acquire: the copy comes after, and sees what the last cut has left.
        let cuts = self.cuts.load(Ordering::Acquire);
        // Acquire: likewise for a time that was set.
        let asks = self.asks.load(Ordering::Acquire);
        cuts.is_multiple_of(2).then_some(Seen { cuts, asks })
    }

    /// True if no bytes went since `seen` was looked at. Called after a copy from the file.
    #[inline]
    #[must_use]
    pub fn is_read_since(&self, seen: Seen) -> bool {
        // The copy comes before the load below.
        fence(Ordering::Acquire);
        self.cuts.load(Ordering::Relaxed) == seen.cuts
    }

    /// True if no bytes went and nobody has asked for attributes since `seen` was looked at. Called after a copy to the file.
    #[inline]
    #[must_use]
    pub fn is_written_since(&self, seen: Seen) -> bool {
        // The stores come before the loads below: see `cut` and `raise_asks`.
        full_fence();
        self.cuts.load(Ordering::Relaxed) == seen.cuts && self.asks.load(Ordering::Relaxed) == seen.asks
    }
}

/// A full fence, as `fence(Ordering::SeqCst)`.
#[inline]
fn full_fence() {
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    fence(Ordering::SeqCst);
    // The compiler's fence is MFENCE, which takes twice as long.
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: it changes nothing on the stack.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // Release: who loads it sees what the cut has left. Nobody else stores meanwhile.
        self.0.cuts.fetch_add(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_look_during_a_cut_returns_none_and_earlier_looks_expire() {
        let line = Line::default();
        let before = line.look().expect("nothing is cut yet");
        assert!(line.is_read_since(before) && line.is_written_since(before));
        let cut = line.cut();
        assert_eq!(line.look(), None);
        drop(cut);
        let after = line.look().expect("the cut has ended");
        assert!(!line.is_read_since(before) && !line.is_written_since(before) && line.is_read_since(after));
        line.raise_asks();
        assert!(line.is_read_since(after) && !line.is_written_since(after));
        line.pass_on();
        assert!(!line.is_read_since(after) && line.look().is_some());
    }

    /// Fails without the client's fence, where two CPUs are idle: the store of bytes waits behind stores that miss the cache, and the load of the words does
    /// not.
    #[cfg(not(miri))]
    #[test]
    fn an_asking_reader_sees_earlier_writes() {
        const FAR: usize = 1 << 20;
        const ROUNDS: u64 = 100_000;
        let (line, bytes) = (Line::default(), AtomicU64::new(0));
        let far: Vec<AtomicU64> = (0..FAR * 8).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let (mut at, mut number) = (0, 0);
                // By what was asked: the last bytes that were written before it.
                let mut written = vec![0; usize::try_from(ROUNDS).expect("the number is small") + 1];
                loop {
                    let seen = line.look().expect("nothing is cut");
                    for _ in 0..8 {
                        // An odd factor and any constant: every line in turn, no two of them neighbours.
                        at = (at * 5 + 350_891) % FAR;
                        far[at * 8].store(1, Ordering::Relaxed);
                    }
                    number += 1;
                    bytes.store(number, Ordering::Relaxed);
                    if line.is_written_since(seen) {
                        written[usize::try_from(seen.asks).expect("the number is small")] = number;
                    }
                    if seen.asks == ROUNDS {
                        return written;
                    }
                }
            });
            let read: Vec<u64> = (0..ROUNDS)
                .map(|round| {
                    (0..round % 64).for_each(|_| std::hint::spin_loop());
                    line.raise_asks();
                    bytes.load(Ordering::Relaxed)
                })
                .collect();
            let written = client.join().expect("the thread does not panic");
            assert!(written.iter().any(|number| *number > 0), "no write was done");
            for (asks, (read, written)) in read.iter().zip(&written).enumerate() {
                assert!(read >= written, "ask {asks} missed write {written}: {read}");
            }
        });
    }
}
