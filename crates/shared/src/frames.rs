//! Which frame of memory holds a block of a disk: one word for each block, read on every copy and changed without a lock.
//!
//! A word names a frame and says what may be done with it. *Hot*: threads copy to and from the frame. *Cool*: whoever wants it makes it hot
//! first, which is all that a hit costs; a frame that nobody wanted for long is evicted. *Filling*: its bytes are being read, and it is nobody
//! else's. *Dirty*: newer than the disk, never cool. *Saving*: it is being written; a store meanwhile makes it dirty again.
//!
//! Rules. (1) Threads use a frame inside a slot ([`crate::Slots`]); one that was cooled is evicted when all have left that were inside then:
//! [`Epochs`]. (2) Who stores into a frame makes it dirty *after* the store, a barrier between; who saves it takes the dirt away *before* it reads
//! the bytes, likewise: so each store is saved, or seen to be dirty again, and savers wait for nobody. (3) A block is forgotten when no thread can reach it any
//! more, but one that is filling its frame: that one finds the word changed, and keeps the frame.

use crate::Slots;
use crate::slots::Inside;
use crate::sync::{AtomicU32, AtomicU64, Backoff, Mutex, Ordering, fence};

const HOT: u32 = 1 << 31;
const DIRTY: u32 = 1 << 30;
const SAVING: u32 = 1 << 29;
const FILLING: u32 = 1 << 28;
const FRAME: u32 = FILLING - 1;
const ABSENT: u32 = 0;

/// Blocks that share a bit which says that some are dirty.
const GROUP: u64 = 512;

/// The words of one disk.
#[derive(Debug)]
pub struct FrameIndex {
    words: Box<[AtomicU32]>,
    /// A bit for each [`GROUP`] blocks.
    dirty: Box<[AtomicU64]>,
}

/// A block has no frame that can be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// It has none.
    Absent,
    /// Somebody is filling one.
    Filling,
}

/// Answer of [`FrameIndex::cool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooled {
    /// It was hot, and is cool now.
    Now,
    /// It is cool since some time.
    Before,
    /// It is dirty, or being saved or filled: it stays as it is.
    Busy,
    /// Its block has it no more.
    Gone,
}

/// Answer of [`FrameIndex::forget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// The block has no frame, or none that is the caller's to give back.
    Nothing,
    /// The block had this frame, which is the caller's now.
    Frame(u32),
    /// As before, and it was dirty.
    DirtyFrame(u32),
}

impl FrameIndex {
    /// Most frames that words can name: 1 TiB.
    pub const FRAMES_MAX: u32 = FRAME;

    /// Words of `blocks` blocks without frames. Takes 4 bytes a block, of which memory is used where blocks were ever read or written.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let blocks = usize::try_from(blocks).expect("a disk of less than 2^63 bytes");
        let groups = blocks.div_ceil(64 * usize::try_from(GROUP).expect("few"));
        #[cfg(not(loom))]
        return Self {
            words: bytemuck::zeroed_slice_box(blocks),
            dirty: bytemuck::zeroed_slice_box(groups),
        };
        #[cfg(loom)]
        Self {
            words: (0..blocks).map(|_| AtomicU32::new(ABSENT)).collect(),
            dirty: (0..groups).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// How many blocks there are words for.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.words.len() as u64
    }

    #[inline(always)]
    fn word(&self, at: u64) -> &AtomicU32 {
        &self.words[usize::try_from(at).unwrap_or(usize::MAX)]
    }

    /// The frame of a block, if it is hot. Inside a slot.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, at: u64) -> Option<u32> {
        // Acquire pairs with the publication: the bytes are there.
        let word = self.word(at).load(Ordering::Acquire);
        (word & HOT != 0).then(|| frame(word))
    }

    /// The frame of a block, hot or to be made so. Inside a slot.
    ///
    /// # Errors
    /// [`Away`] when it has none.
    pub fn warm(&self, at: u64) -> Result<u32, Away> {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Acquire);
        loop {
            match kind(word) {
                Kind::Hot => return Ok(frame(word)),
                Kind::Absent => return Err(Away::Absent),
                Kind::Filling => return Err(Away::Filling),
                Kind::Cool => {}
            }
            match cell.compare_exchange(word, word | HOT, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Ok(frame(word)),
                Err(now) => word = now,
            }
        }
    }

    /// Whether a block has a frame, or is about to have one; a guess where no slot holds it.
    #[must_use]
    pub fn has_frame(&self, at: u64) -> bool {
        self.word(at).load(Ordering::Relaxed) != ABSENT
    }

    /// Whether somebody is filling a block's frame.
    #[must_use]
    pub fn is_filling(&self, at: u64) -> bool {
        // Acquire: who sees the end sees the bytes.
        self.word(at).load(Ordering::Acquire) & FILLING != 0
    }

    /// Gives a block without a frame `frame`, which is the caller's, to fill it; false when it has one by now.
    #[must_use]
    pub fn begin_fill(&self, at: u64, frame: u32) -> bool {
        debug_assert!(frame < Self::FRAMES_MAX);
        // Relaxed on failure: nothing is read behind it.
        let filling = FILLING | (frame + 1);
        self.word(at)
            .compare_exchange(ABSENT, filling, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Shows a frame that was filled with the disk's bytes; false when the block was forgotten meanwhile: the frame is the caller's still.
    #[must_use]
    pub fn end_fill(&self, at: u64, frame: u32) -> bool {
        // Release: whoever sees it sees the bytes.
        let filling = FILLING | (frame + 1);
        self.word(at)
            .compare_exchange(filling, HOT | (frame + 1), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Shows a frame that holds bytes newer than the disk's, or is about to, as [`FrameIndex::end_fill`].
    #[must_use]
    pub fn end_fill_dirty(&self, at: u64, frame: u32) -> bool {
        let filling = FILLING | (frame + 1);
        let is_there = self
            .word(at)
            .compare_exchange(filling, HOT | DIRTY | (frame + 1), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if is_there {
            self.note_group(at);
        }
        is_there
    }

    /// Takes a frame back that could not be filled; it is the caller's again, whatever happened to the block.
    pub fn give_up(&self, at: u64, frame: u32) {
        let filling = FILLING | (frame + 1);
        let _ = self
            .word(at)
            .compare_exchange(filling, ABSENT, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether a block's frame is dirty: asked after a store, the caller's barrier between.
    #[inline(always)]
    #[must_use]
    pub fn is_dirty(&self, at: u64) -> bool {
        self.word(at).load(Ordering::Relaxed) & DIRTY != 0
    }

    /// Makes a block's frame dirty after a store, a barrier between, in the slot in which the frame was found. Gives the frame when it was not.
    pub fn mark_dirty(&self, at: u64) -> Option<u32> {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            debug_assert!(!matches!(kind(word), Kind::Absent | Kind::Filling));
            if word & DIRTY != 0 {
                return None;
            }
            match cell.compare_exchange(word, word | HOT | DIRTY, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.note_group(at);
        Some(frame(word))
    }

    fn note_group(&self, at: u64) {
        let (cell, bit) = self.group(at);
        // SeqCst, as the change of the word before it: see `next_dirty`.
        if cell.load(Ordering::SeqCst) & bit == 0 {
            cell.fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn group(&self, at: u64) -> (&AtomicU64, u64) {
        let group = at / GROUP;
        let cell = usize::try_from(group / 64).expect("an index");
        (&self.dirty[cell], 1 << (group % 64))
    }

    /// The first dirty block from `from` on and before `end`; a guess, as others make them dirty and clean.
    #[must_use]
    pub fn next_dirty(&self, from: u64, end: u64) -> Option<u64> {
        let (mut at, end) = (from, end.min(self.blocks()));
        while at < end {
            let (cell, bit) = self.group(at);
            let bits = cell.load(Ordering::SeqCst) & !(bit - 1);
            let first = at / GROUP / 64 * 64;
            if bits == 0 {
                at = (first + 64) * GROUP;
                continue;
            }
            let group = first + u64::from(bits.trailing_zeros());
            let start = at.max(group * GROUP);
            let whole = (group + 1) * GROUP;
            let is_whole = start == group * GROUP && whole.min(self.blocks()) <= end;
            if is_whole {
                // Before the words are looked at: who makes one dirty later sets it again.
                self.group(start).0.fetch_and(!self.group(start).1, Ordering::SeqCst);
            }
            let found = (start..whole.min(end)).find(|at| self.word(*at).load(Ordering::SeqCst) & DIRTY != 0);
            if let Some(found) = found {
                if is_whole {
                    self.note_group(found);
                }
                return Some(found);
            }
            at = whole;
        }
        None
    }

    /// Takes the dirt off a block's frame, to write its bytes; `None` when it is clean, or being saved. Read its bytes after this returned.
    #[must_use]
    pub fn begin_save(&self, at: u64) -> Option<u32> {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            if word & DIRTY == 0 || word & SAVING != 0 {
                return None;
            }
            match cell.compare_exchange(word, word & !DIRTY | SAVING, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        // Stores that were not followed by a look at the word before are seen: rule 2.
        fence(Ordering::SeqCst);
        Some(frame(word))
    }

    /// Notes that a block's frame was written: it becomes cool, after `stamp` was called, unless it is dirty again. True when it is clean.
    pub fn end_save(&self, at: u64, stamp: impl Fn(u32)) -> bool {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            let is_clean = word & DIRTY == 0;
            let next = if is_clean {
                stamp(frame(word));
                word & !(SAVING | HOT)
            } else {
                word & !SAVING
            };
            match cell.compare_exchange(word, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return is_clean,
                Err(now) => word = now,
            }
        }
    }

    /// Notes that a block's frame could not be written: it is dirty still. True when nobody had made it so meanwhile.
    pub fn fail_save(&self, at: u64) -> bool {
        let cell = self.word(at);
        let is_new = cell.fetch_or(DIRTY, Ordering::SeqCst) & DIRTY == 0;
        if is_new {
            self.note_group(at);
        }
        cell.fetch_and(!SAVING, Ordering::SeqCst);
        is_new
    }

    /// Whether a block is being saved.
    #[must_use]
    pub fn is_saving(&self, at: u64) -> bool {
        self.word(at).load(Ordering::Acquire) & SAVING != 0
    }

    /// Makes the frame of a block cool, after `stamp` was called, unless it is busy.
    pub fn cool(&self, at: u64, frame: u32, stamp: impl Fn(u32)) -> Cooled {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            if word & FRAME != frame + 1 {
                return Cooled::Gone;
            }
            if word & (DIRTY | SAVING | FILLING) != 0 {
                return Cooled::Busy;
            }
            if word & HOT == 0 {
                return Cooled::Before;
            }
            stamp(frame);
            match cell.compare_exchange(word, word & !HOT, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Cooled::Now,
                Err(now) => word = now,
            }
        }
    }

    /// Takes a frame away from its block that is cool, and out of use, as [`Epochs`] say of its stamp; false when it is not.
    #[must_use]
    pub fn evict(&self, at: u64, frame: u32, is_out_of_use: impl FnOnce() -> bool) -> bool {
        let cell = self.word(at);
        // Acquire, and before the look at the stamp: that was set before the frame became cool.
        let word = cell.load(Ordering::Acquire);
        let may_go = word & FRAME == frame + 1 && kind(word) == Kind::Cool && is_out_of_use();
        may_go
            && cell
                .compare_exchange(word, ABSENT, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes away what a block has that no thread can reach any more: rule 3. Waits while it is being saved.
    pub fn forget(&self, at: u64) -> Forgotten {
        let cell = self.word(at);
        let mut backoff = Backoff::default();
        loop {
            let word = cell.load(Ordering::Acquire);
            let kind = kind(word);
            if kind == Kind::Absent {
                return Forgotten::Nothing;
            }
            if word & SAVING != 0 {
                backoff.wait();
                continue;
            }
            if cell
                .compare_exchange(word, ABSENT, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                return match kind {
                    // Its filler finds the word changed.
                    Kind::Filling => Forgotten::Nothing,
                    _ if word & DIRTY != 0 => Forgotten::DirtyFrame(frame(word)),
                    _ => Forgotten::Frame(frame(word)),
                };
            }
        }
    }

    /// Calls `show` with each block that has a frame to use, the frame, and whether it is dirty. At rest.
    pub fn visit(&self, mut show: impl FnMut(u64, u32, bool)) {
        for (at, cell) in self.words.iter().enumerate() {
            let word = cell.load(Ordering::Relaxed);
            if !matches!(kind(word), Kind::Absent | Kind::Filling) {
                show(at as u64, frame(word), word & DIRTY != 0);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Absent,
    Filling,
    Cool,
    Hot,
}

fn kind(word: u32) -> Kind {
    match word {
        ABSENT => Kind::Absent,
        _ if word & HOT != 0 => Kind::Hot,
        _ if word & FILLING != 0 => Kind::Filling,
        _ => Kind::Cool,
    }
}

#[inline(always)]
fn frame(word: u32) -> u32 {
    (word & FRAME).wrapping_sub(1)
}

/// Counts how often all threads have left that were inside an inode: what was taken out of reach in one epoch is out of use two later.
#[derive(Debug, Default)]
pub struct Epochs {
    now: AtomicU32,
    leaving: Mutex<Option<Inside>>,
}

impl Epochs {
    /// The epoch that it is.
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::SeqCst)
    }

    /// Whether what was taken out of reach in `epoch`, or just after that was asked for, is out of use now.
    pub fn is_over(&self, epoch: u32) -> bool {
        // One may have begun before.
        self.now().wrapping_sub(epoch) >= 2
    }

    /// Begins the next epoch if all threads have left; waits for none. The first call after an epoch began looks who is inside.
    pub fn advance(&self, slots: &Slots) {
        let mut leaving = self.leaving.lock();
        let inside = leaving.get_or_insert_with(|| slots.inside());
        if slots.have_left(inside) {
            *leaving = None;
            self.now.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_goes_through_its_states() {
        let index = FrameIndex::new(2000);
        let stamps = std::cell::Cell::new(0);
        let stamp = |frame| {
            assert_eq!(frame, 0);
            stamps.set(stamps.get() + 1);
        };
        assert_eq!(index.warm(7), Err(Away::Absent));
        assert!(index.begin_fill(7, 0) && !index.begin_fill(7, 1));
        assert_eq!((index.warm(7), index.find(7)), (Err(Away::Filling), None));
        assert!(index.end_fill(7, 0) && index.find(7) == Some(0));
        assert_eq!(index.cool(7, 3, stamp), Cooled::Gone);
        assert_eq!(
            (index.cool(7, 0, stamp), index.find(7), stamps.get()),
            (Cooled::Now, None, 1)
        );
        assert_eq!(index.cool(7, 0, stamp), Cooled::Before);
        assert_eq!((index.warm(7), index.find(7)), (Ok(0), Some(0)));
        assert_eq!((index.mark_dirty(7), index.mark_dirty(7)), (Some(0), None));
        assert_eq!(index.cool(7, 0, stamp), Cooled::Busy);
        assert!(!index.evict(7, 0, || true));
        assert_eq!(index.begin_save(7), Some(0));
        assert_eq!((index.begin_save(7), index.is_saving(7)), (None, true));
        assert!(index.mark_dirty(7).is_some(), "stored meanwhile");
        assert!(!index.end_save(7, stamp), "dirty again");
        assert_eq!(index.begin_save(7), Some(0));
        assert!(index.fail_save(7) && index.is_dirty(7));
        assert_eq!((index.begin_save(7), stamps.get()), (Some(0), 1));
        assert!(index.end_save(7, stamp) && stamps.get() == 2);
        assert_eq!(index.cool(7, 0, stamp), Cooled::Before);
        assert!(!index.evict(7, 0, || false), "it is in use");
        assert!(index.evict(7, 0, || true) && !index.has_frame(7));
    }

    #[test]
    fn a_block_that_is_forgotten_leaves_its_filler_the_frame() {
        let index = FrameIndex::new(10);
        assert!(index.begin_fill(3, 5));
        assert_eq!(index.forget(3), Forgotten::Nothing);
        assert!(!index.end_fill(3, 5));
        assert!(index.begin_fill(3, 6), "somebody else fills another");
        index.give_up(3, 5);
        assert!(index.end_fill_dirty(3, 6));
        assert_eq!(index.forget(3), Forgotten::DirtyFrame(6));
        assert!(index.begin_fill(3, 6) && index.end_fill(3, 6));
        assert_eq!(index.forget(3), Forgotten::Frame(6));
    }

    #[test]
    fn dirty_blocks_are_found_in_order() {
        let index = FrameIndex::new(200_000);
        let dirty = [0_u64, 1, 511, 512, 40_000, 131_071, 199_999];
        for (frame, at) in (0..).zip(dirty) {
            assert!(index.begin_fill(at, frame) && index.end_fill_dirty(at, frame));
        }
        let all = |from, end| {
            let mut found = Vec::new();
            let mut at = from;
            while let Some(next) = index.next_dirty(at, end) {
                found.push(next);
                at = next + 1;
            }
            found
        };
        assert_eq!(all(0, 200_000), dirty);
        assert_eq!(all(0, u64::MAX / 2), dirty, "beyond the end there is nothing");
        assert_eq!(all(1, 512), [1, 511]);
        for at in dirty {
            index.begin_save(at).expect("it is dirty");
            assert!(index.end_save(at, |_| {}));
        }
        assert_eq!(index.next_dirty(0, 200_000), None);
        assert_eq!(index.mark_dirty(40_000), Some(4));
        assert_eq!(all(0, 200_000), [40_000]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
