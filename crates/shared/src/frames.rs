//! Which frame of memory holds a block of a disk: one word for each block, read on every copy and changed without a lock.
//!
//! A word names a frame and says how it may be used. *Hot*: threads may copy. *Cool*: a thread makes the frame hot before it copies; a frame that
//! stays cool is evicted. *Filling*: one thread reads the bytes. *Dirty*: newer than the disk, never cool. *Held*: one thread saves, cools or evicts
//! the frame; others go on using it, and a store makes it dirty again.
//!
//! Threads use a frame only inside a slot. Rules:
//!
//! 1. A cooled frame is evicted, or its block is moved to another one, after every thread that was in a slot ([`crate::Slots`]) then has left ([`Epochs`]).
//! 2. A thread stores, passes [`Slots::barrier_inside`], then makes the frame dirty if it is clean; a saver clears dirty, passes
//!    [`Slots::barrier_outside`], then reads. Each store is saved, or its frame is dirty again, and savers wait for no thread. [`FrameIndex::warm_to_store`] sets dirty before the store.
//! 3. A block is forgotten only when no thread can reach it, except one that fills its frame: that thread sees the changed word and keeps the frame.
//! 4. A frame's epoch stamp is taken after the frame became cool, while it is held, so the stamp is not older than any thread that found it hot.

mod guesses;

use crate::barrier::behind_change;
use crate::slots::Inside;
use crate::sync::{AtomicU16, AtomicU32, Backoff, Mutex, Ordering};
use crate::{Slots, prefetch};
use guesses::Guesses;

const HOT: u32 = 1 << 31;
const DIRTY: u32 = 1 << 30;
const HELD: u32 = 1 << 29;
const FILLING: u32 = 1 << 28;
const FRAME: u32 = FILLING - 1;
const ABSENT: u32 = 0;

/// Blocks whose dirty ones are counted together.
const GROUP: u64 = 512;

/// The first block from `at` on that is in one of these groups.
#[must_use]
pub fn first_among(groups: &[u32], at: u64) -> Option<u64> {
    let nth = groups.partition_point(|group| u64::from(*group) < at / GROUP);
    groups.get(nth).map(|group| at.max(u64::from(*group) * GROUP))
}

/// The words of one disk.
#[derive(Debug)]
pub struct FrameIndex {
    words: Box<[AtomicU32]>,
    /// For each [`GROUP`] blocks, at least as many as are dirty: counted before one becomes so, and until after it is so no more.
    dirty: Box<[AtomicU16]>,
    guesses: Guesses,
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
    /// It is dirty, held or being filled: it stays as it is.
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
    /// The block had this frame, which was dirty and is the caller's now.
    DirtyFrame(u32),
}

impl FrameIndex {
    /// Blocks whose frames should lie one behind the other.
    pub const RUN: u64 = guesses::RUN;

    /// Most frames that words can name: 1 TiB.
    pub const FRAMES_MAX: u32 = FRAME;

    /// Words of `blocks` blocks without frames; `None` when the process cannot have [`FrameIndex::bytes`] more.
    #[must_use]
    pub fn new(blocks: u64) -> Option<Self> {
        let guesses = Guesses::new(blocks)?;
        let groups = usize::try_from(blocks.div_ceil(GROUP)).ok()?;
        let blocks = usize::try_from(blocks).ok()?;
        #[cfg(not(loom))]
        return Some(Self {
            words: bytemuck::try_zeroed_slice_box(blocks).ok()?,
            dirty: bytemuck::try_zeroed_slice_box(groups).ok()?,
            guesses,
        });
        #[cfg(loom)]
        Some(Self {
            words: (0..blocks).map(|_| AtomicU32::new(ABSENT)).collect(),
            dirty: (0..groups).map(|_| AtomicU16::new(0)).collect(),
            guesses,
        })
    }

    /// Bytes that the words of `blocks` blocks take, where blocks were ever read or written: a thousandth of theirs.
    #[must_use]
    pub const fn bytes(blocks: u64) -> u64 {
        (blocks + blocks.div_ceil(guesses::RUN)) * 4 + blocks.div_ceil(GROUP) * 2
    }

    /// Gives the memory of all words back: no block has a frame then. The disk is gone, and so are all frames but those that are being filled.
    pub fn clear(&self) {
        give_back(&self.words);
        give_back(&self.dirty);
        self.guesses.clear();
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

    /// Has the processor load the word of a block that will be asked for soon.
    pub fn announce(&self, at: u64) {
        if let Some(word) = usize::try_from(at).ok().and_then(|at| self.words.get(at)) {
            prefetch(std::ptr::from_ref(word).cast(), 4);
        }
    }

    /// The frame of a block, if it is hot. Inside a slot.
    #[inline(always)]
    #[must_use]
    pub fn find(&self, at: u64) -> Option<u32> {
        // Acquire pairs with the publication: the bytes are there.
        let word = self.word(at).load(Ordering::Acquire);
        (word & HOT != 0).then(|| frame(word))
    }

    /// The frame that a block is likely to have; none where that is anyone's guess. It may be no frame at all.
    #[inline(always)]
    #[must_use]
    pub fn guess(&self, at: u64) -> Option<u32> {
        self.guesses.get(at)
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

    /// The frame of a block if its run's guess is right, with however few votes.
    #[must_use]
    pub fn beside(&self, at: u64) -> Option<u32> {
        self.guesses.beside(at)
    }

    /// Notes that frames beside this one, which a block is about to have, are meant for the other blocks of its run.
    pub fn reserve(&self, at: u64, frame: u32) {
        self.guesses.reserve(at, frame);
    }

    /// Frame of a block, and whether it is dirty: then a store into it changes no word. The frame of one that is clean is a guess, as another thread may
    /// evict it until [`FrameIndex::warm_to_store`] has returned. Inside a slot.
    #[inline(always)]
    #[must_use]
    pub fn find_to_store(&self, at: u64) -> Option<(u32, bool)> {
        // Acquire: as in `find`. A dirty frame is hot.
        let word = self.word(at).load(Ordering::Acquire);
        let is_dirty = word & DIRTY != 0;
        (is_dirty || matches!(kind(word), Kind::Hot | Kind::Cool)).then(|| (frame(word), is_dirty))
    }

    /// Makes a block's frame hot and dirty ahead of a store. Returns the frame, and whether it was clean. Inside a slot. Behind the store the word would
    /// be changed only when all bytes have left the processor; ahead of it they are not waited for. The look behind the store is needed all the
    /// same, as a saver may come in between.
    ///
    /// # Errors
    /// [`Away`] when it has none.
    pub fn warm_to_store(&self, at: u64) -> Result<(u32, bool), Away> {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Acquire);
        loop {
            match kind(word) {
                Kind::Absent => return Err(Away::Absent),
                Kind::Filling => return Err(Away::Filling),
                Kind::Hot if word & DIRTY != 0 => return Ok((frame(word), false)),
                Kind::Hot | Kind::Cool => {}
            }
            self.count(at);
            // SeqCst: as in `warm` and `mark_dirty`.
            match cell.compare_exchange(word, word | HOT | DIRTY, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Ok((frame(word), true)),
                Err(now) => word = now,
            }
            self.uncount(at);
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
        self.guesses.note(at, frame);
        self.word(at)
            .compare_exchange(filling, HOT | (frame + 1), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Shows a frame that holds bytes newer than the disk's, or is about to, as [`FrameIndex::end_fill`].
    #[must_use]
    pub fn end_fill_dirty(&self, at: u64, frame: u32) -> bool {
        let filling = FILLING | (frame + 1);
        self.count(at);
        self.guesses.note(at, frame);
        let is_there = self
            .word(at)
            .compare_exchange(filling, HOT | DIRTY | (frame + 1), Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if !is_there {
            self.uncount(at);
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

    /// Takes a block away from whoever fills its frame, if somebody does, for newer bytes of all of it: the filler finds the word changed, and keeps the frame.
    pub fn interrupt(&self, at: u64) {
        let cell = self.word(at);
        // Relaxed: nothing is read behind it.
        let word = cell.load(Ordering::Relaxed);
        if kind(word) == Kind::Filling {
            let _ = cell.compare_exchange(word, ABSENT, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether a block's frame is dirty: asked after a store, [`Slots::barrier_inside`] between.
    #[inline(always)]
    #[must_use]
    pub fn is_dirty(&self, at: u64) -> bool {
        // Acquire: whoever sees it finds it counted.
        self.word(at).load(Ordering::Acquire) & DIRTY != 0
    }

    /// Makes a block's frame dirty after a store, a barrier between, in the slot in which the frame was found. Gives the frame when it was not.
    pub fn mark_dirty(&self, at: u64) -> Option<u32> {
        let cell = self.word(at);
        self.count(at);
        // SeqCst: see rule 2.
        let before = cell.fetch_or(HOT | DIRTY, Ordering::SeqCst);
        debug_assert!(!matches!(kind(before), Kind::Absent | Kind::Filling));
        if before & DIRTY != 0 {
            self.uncount(at);
            return None;
        }
        Some(frame(before))
    }

    fn group(&self, at: u64) -> &AtomicU16 {
        &self.dirty[usize::try_from(at / GROUP).unwrap_or(usize::MAX)]
    }

    /// Counts a block that is about to become dirty.
    fn count(&self, at: u64) {
        // Relaxed: whoever sees the word changed sees it too, by that change's order.
        self.group(at).fetch_add(1, Ordering::Relaxed);
    }

    /// A block is dirty no more, or was already.
    fn uncount(&self, at: u64) {
        // Release: not before the change of the word.
        self.group(at).fetch_sub(1, Ordering::Release);
    }

    /// The first dirty block from `from` on and before `end`: none that was so before the call is missed, unless somebody saves it meanwhile.
    #[must_use]
    pub fn next_dirty(&self, from: u64, end: u64) -> Option<u64> {
        let (mut at, end) = (from, end.min(self.blocks()));
        while at < end {
            let behind = ((at / GROUP + 1) * GROUP).min(end);
            // Acquire: what is not counted any more is seen clean.
            if self.group(at).load(Ordering::Acquire) > 0 {
                let found = (at..behind).find(|at| self.word(*at).load(Ordering::Acquire) & DIRTY != 0);
                if found.is_some() {
                    return found;
                }
            }
            at = behind;
        }
        None
    }

    /// Groups of blocks with dirty ones, ascending, for [`first_among`].
    #[must_use]
    pub fn dirty_groups(&self) -> Vec<u32> {
        // Acquire: as in `next_dirty`.
        let dirty = (0..)
            .zip(&self.dirty)
            .filter(|(_, count)| count.load(Ordering::Acquire) > 0);
        dirty.map(|(group, _)| group).collect()
    }

    /// Takes the dirt off a block's frame, to write its bytes; `None` when it is clean, or held. Read its bytes after [`Slots::barrier_outside`], which
    /// may be one for many blocks.
    #[must_use]
    pub fn begin_save(&self, at: u64) -> Option<u32> {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            if word & DIRTY == 0 || word & HELD != 0 {
                return None;
            }
            match cell.compare_exchange(word, word & !DIRTY | HELD, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.uncount(at);
        Some(frame(word))
    }

    /// Notes that a block's frame was written: it becomes cool, and `stamp` is called, unless it is dirty again. True when it is clean.
    pub fn end_save(&self, at: u64, stamp: impl Fn(u32)) -> bool {
        let cell = self.word(at);
        let cool = |word: u32| (word & DIRTY == 0).then_some(word & !HOT);
        if let Ok(word) = cell.fetch_update(Ordering::SeqCst, Ordering::Relaxed, cool) {
            // Who entered a slot and still found it hot is seen by the epoch that follows: rule 4.
            behind_change();
            stamp(frame(word));
        }
        // SeqCst: who sees it free sees the stamp.
        cell.fetch_and(!HELD, Ordering::SeqCst) & DIRTY == 0
    }

    /// Notes that a block's frame could not be written: it is dirty still. True when nobody had made it so meanwhile.
    pub fn fail_save(&self, at: u64) -> bool {
        let cell = self.word(at);
        self.count(at);
        let is_new = cell.fetch_or(DIRTY, Ordering::SeqCst) & DIRTY == 0;
        if !is_new {
            self.uncount(at);
        }
        cell.fetch_and(!HELD, Ordering::SeqCst);
        is_new
    }

    /// Makes the frame of a block cool, and calls `stamp`, unless it is busy.
    pub fn cool(&self, at: u64, frame: u32, stamp: impl Fn(u32)) -> Cooled {
        let cell = self.word(at);
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            if word & FRAME != frame + 1 {
                return Cooled::Gone;
            }
            if word & (DIRTY | HELD | FILLING) != 0 {
                return Cooled::Busy;
            }
            if word & HOT == 0 {
                return Cooled::Before;
            }
            match cell.compare_exchange(word, word & !HOT | HELD, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        // As in `end_save`, here and below.
        behind_change();
        stamp(frame);
        cell.fetch_and(!HELD, Ordering::SeqCst);
        Cooled::Now
    }

    /// Takes a frame away from its block that is cool, and out of use, as [`Epochs`] say of its stamp; false when it is not.
    #[must_use]
    pub fn evict(&self, at: u64, frame: u32, is_out_of_use: impl Fn() -> bool) -> bool {
        self.take_away(at, frame, ABSENT, is_out_of_use)
    }

    /// [`FrameIndex::evict`] of a frame whose bytes the caller copies to the frame `to`, which is the caller's as well: the block is being filled there.
    #[must_use]
    pub fn begin_move(&self, at: u64, frame: u32, to: u32, is_out_of_use: impl Fn() -> bool) -> bool {
        debug_assert!(to < Self::FRAMES_MAX && to != frame);
        // In one change: a block that is absent for a moment may get newer bytes, be saved and be evicted, and old ones would come behind them.
        self.take_away(at, frame, FILLING | (to + 1), is_out_of_use)
    }

    /// Replaces the word of a block whose frame is cool and out of use.
    fn take_away(&self, at: u64, frame: u32, by: u32, is_out_of_use: impl Fn() -> bool) -> bool {
        let (cell, cool) = (self.word(at), frame + 1);
        // Most of those that are not are told so without a write.
        if cell.load(Ordering::Acquire) != cool || !is_out_of_use() {
            return false;
        }
        // SeqCst on success: the stamp of the last time that it became cool is seen, and it is not made cool again while it is held.
        if cell
            .compare_exchange(cool, cool | HELD, Ordering::SeqCst, Ordering::Relaxed)
            .is_err()
        {
            return false;
        }
        // It fails when somebody made it hot: he may use it still.
        let is_taken = is_out_of_use()
            && cell
                .compare_exchange(cool | HELD, by, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
        if !is_taken {
            cell.fetch_and(!HELD, Ordering::SeqCst);
        }
        is_taken
    }

    /// Takes away what a block has that no thread can reach any more: rule 3. Waits while it is held.
    pub fn forget(&self, at: u64) -> Forgotten {
        let cell = self.word(at);
        let mut backoff = Backoff::default();
        loop {
            let word = cell.load(Ordering::Acquire);
            let kind = kind(word);
            if kind == Kind::Absent {
                return Forgotten::Nothing;
            }
            if word & HELD != 0 {
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
                    _ if word & DIRTY != 0 => {
                        self.uncount(at);
                        Forgotten::DirtyFrame(frame(word))
                    }
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

/// Has the kernel take the whole pages of words of a heap's memory back, which read as zeros then. There are no pages in a model.
fn give_back<T>(words: &[T]) {
    const PAGE_BYTES: usize = 4096;
    let bytes = words.as_ptr_range();
    let first = bytes.start.addr().next_multiple_of(PAGE_BYTES);
    let length = bytes.end.addr().saturating_sub(first) / PAGE_BYTES * PAGE_BYTES;
    if length > 0 && cfg!(not(any(loom, miri))) {
        let start = bytes.start.cast::<libc::c_void>().with_addr(first).cast_mut();
        // SAFETY: whole pages within the words, of private memory. Zeros are words, and all threads reach words as atomics only.
        unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
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
        let index = FrameIndex::new(2000).unwrap();
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
        assert_eq!(index.begin_save(7), None, "the block is being saved");
        assert_eq!(index.cool(7, 0, stamp), Cooled::Busy);
        assert!(index.mark_dirty(7).is_some(), "stored meanwhile");
        assert!(!index.end_save(7, stamp), "dirty again");
        assert_eq!(index.begin_save(7), Some(0));
        assert!(index.fail_save(7) && index.is_dirty(7));
        assert_eq!((index.begin_save(7), stamps.get()), (Some(0), 1));
        assert!(index.end_save(7, stamp) && stamps.get() == 2);
        assert_eq!(index.cool(7, 0, stamp), Cooled::Before);
        assert!(!index.evict(7, 0, || false), "the frame is in use");
        assert_eq!((index.find_to_store(7), index.find(7)), (Some((0, false)), None));
        assert_eq!(index.warm_to_store(7), Ok((0, true)));
        assert_eq!(index.warm_to_store(7), Ok((0, false)), "the block is dirty already");
        assert_eq!(
            (index.find_to_store(7), index.next_dirty(0, 2000)),
            (Some((0, true)), Some(7))
        );
        assert!(index.begin_save(7) == Some(0) && index.end_save(7, stamp));
        assert_eq!(index.next_dirty(0, 2000), None);
        assert!(index.evict(7, 0, || true) && !index.has_frame(7));
        assert_eq!(
            (index.find_to_store(7), index.warm_to_store(7)),
            (None, Err(Away::Absent))
        );
    }

    #[test]
    fn a_forgotten_block_leaves_the_frame_to_its_filler() {
        let index = FrameIndex::new(10).unwrap();
        assert!(index.begin_fill(3, 5));
        assert_eq!(index.forget(3), Forgotten::Nothing);
        assert!(!index.end_fill(3, 5));
        assert!(index.begin_fill(3, 6), "another thread fills another frame");
        index.give_up(3, 5);
        assert!(index.end_fill_dirty(3, 6));
        assert_eq!(index.forget(3), Forgotten::DirtyFrame(6));
        assert!(index.begin_fill(3, 6) && index.end_fill(3, 6));
        assert_eq!(index.forget(3), Forgotten::Frame(6));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri gives no memory back")]
    fn clear_releases_the_memory_of_a_removed_disk() {
        let index = FrameIndex::new(1 << 20).unwrap();
        for (frame, at) in (0..).zip((0..1 << 20).step_by(512)) {
            assert!(index.begin_fill(at, frame) && index.end_fill(at, frame));
        }
        index.clear();
        // The first and the last page may be others' as well.
        assert!((1024..(1 << 20) - 1024).all(|at| index.find(at).is_none()));
        assert!(index.begin_fill(5000, 6) && index.end_fill(5000, 6));
        assert_eq!(index.find(5000), Some(6));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where there is no memory")]
    fn a_disk_whose_index_finds_no_memory_gets_none() {
        // More than any process can address.
        assert_eq!(FrameIndex::bytes(1 << 50), (1 << 52) + (1 << 46) + (1 << 42));
        for blocks in [1 << 50, u64::MAX] {
            assert!(FrameIndex::new(blocks).is_none());
        }
    }

    #[test]
    fn dirty_blocks_are_found_in_order() {
        let index = FrameIndex::new(200_000).unwrap();
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
        assert_eq!(all(0, u64::MAX / 2), dirty, "no block is beyond the end");
        assert_eq!(all(1, 512), [1, 511]);
        for at in dirty {
            index.begin_save(at).expect("the block is dirty");
            assert!(index.end_save(at, |_| {}));
        }
        assert_eq!(index.next_dirty(0, 200_000), None);
        assert_eq!(index.mark_dirty(40_000), Some(4));
        assert_eq!(all(0, 200_000), [40_000]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
