//! A mapping of a part of a file, what is known of the file, and the copies from and to it.
//!
//! Invariants: while `cuts` has the value under which a mapping learned its file, the file is not smaller than the known size, and dense pieces have
//! no holes. Knowledge comes from the server, or from this process's own writes at the file's end. One thread at a time updates it; readers recheck
//! when `cuts` changes. Docs: docs/decisions/020-words.md.

use crate::attributes;
use crate::faults::Quiet;
use crate::pages::{self, File, Told};
use homenode_shared::{
    Line, PAST_CACHES_BYTES_MIN, PIECE_BYTES, PIECES, Seen, prefetch, try_copy, try_copy_past_caches,
};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Bits for pieces of a mapping.
const BITS: u64 = 4096;
/// Largest part of a file that is mapped at a time, and room that is mapped for a file to grow.
const WINDOW_BYTES_MAX: u64 = 64 << 30;
const GROWTH_BYTES: u64 = 64 << 20;
/// Address space that all mappings of a process take.
const ALL_BYTES_MAX: u64 = 16 << 40;
/// Mappings of a process: a quarter of what the kernel lets it have by default.
const COUNT_MAX: u64 = 1 << 14;
/// Size from which on a processor's caches do not hold a file: what is written there is not expected in them.
const LARGE_BYTES: u64 = 64 << 20;
/// Misses before the server is asked again, at first and at most; the first is also for misses outside the mapping.
const PATIENCE: u32 = 2;
const PATIENCE_MAX: u32 = 1 << 12;
/// Bytes of a mapping for each miss outside that it may be patient with: a larger one costs more to learn.
const OUTSIDE_BYTES: u64 = 16 << 10;
/// Ticks of use without a miss outside after which a part of the file is taken for the one in use.
const CALM_TICKS: u32 = 4;

/// A mapping. Its own memory is never given back, and becomes another mapping's.
#[repr(C, align(64))]
pub(crate) struct Mapped {
    /// Number that no other mapping of the process has had.
    number: AtomicU64,
    line: AtomicPtr<Line>,
    /// Its page's place, and which line of which page it is.
    place: AtomicUsize,
    page: AtomicU64,
    line_number: AtomicU64,
    inode: AtomicU64,
    base: AtomicPtr<u8>,
    /// The part of the file that is mapped.
    start: AtomicU64,
    bytes: AtomicU64,
    can_write: AtomicBool,
    /// Pieces here are so many times twice the server's.
    shift: AtomicU32,

    /// The count under which the rest is known.
    cuts: AtomicU64,
    size: AtomicU64,
    /// Bit for each piece of the mapping: it has no hole.
    dense: [AtomicU64; (BITS / 64) as usize],
    /// When a system call has read and written last, in ticks of the kernel's clock, and the other word of the line before that write.
    read_tick: AtomicU64,
    write_tick: AtomicU64,
    asks: AtomicU64,
    /// Tick in which the server was asked after a cut.
    ask_tick: AtomicU64,
    /// System calls since something was learned for which a copy would have done if more were known, and how many are let pass.
    misses: AtomicU32,
    patience: AtomicU32,
    /// Calls for what is not mapped, and how many are let pass before another part of the file is mapped.
    outside: AtomicU32,
    outside_patience: AtomicU32,
    /// Ticks of use since the last of those calls, and the latest such tick.
    calm_ticks: AtomicU32,
    calm_tick: AtomicU64,
    /// Held by who changes what is known.
    is_changing: AtomicBool,
    /// The next in a list.
    pub(crate) next: AtomicPtr<Self>,
}

/// Mappings that are nobody's.
static FREE: AtomicPtr<Mapped> = AtomicPtr::new(std::ptr::null_mut());
/// Address space that mappings take.
static ALL_BYTES: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Bytes of memory for new mappings, and those that are used.
const CHUNK_BYTES: usize = 64 << 10;
static CHUNK: AtomicPtr<Mapped> = AtomicPtr::new(std::ptr::null_mut());
static CHUNK_USED: AtomicUsize = AtomicUsize::new(0);

/// The way of writes to a file.
#[inline]
fn write_by(is_large: bool) -> unsafe fn(*mut u8, *const u8, usize) -> bool {
    if is_large { try_copy_past_caches } else { try_copy }
}

/// Bytes that are to be copied, in the file.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Range {
    fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Result of a call that has read or written the whole range.
    #[expect(clippy::cast_possible_truncation, reason = "it came from a size_t, below 2^30")]
    pub fn done(self) -> isize {
        self.bytes as isize
    }
}

/// The caller's memory.
pub trait Buffers {
    /// Copies all of it from (or to) memory at `at`; false when a page could not be had. What is written goes past the caches if the file `is_large`.
    ///
    /// # Safety
    /// Those of [`try_copy`].
    unsafe fn copy(&self, at: *mut u8, is_large: bool) -> bool;
}

/// A buffer of so many bytes, to which they are read.
#[derive(Debug)]
pub struct To(pub *mut u8, pub usize);
/// A buffer of so many bytes, from which they are written.
#[derive(Debug)]
pub struct From(pub *const u8, pub usize);
/// Several buffers, to which bytes are read.
#[derive(Debug)]
pub struct ToMany<'a>(pub &'a [libc::iovec]);
/// Several buffers, from which bytes are written.
#[derive(Debug)]
pub struct FromMany<'a>(pub &'a [libc::iovec]);

impl Buffers for To {
    #[inline]
    unsafe fn copy(&self, at: *mut u8, _: bool) -> bool {
        // SAFETY: the caller's.
        unsafe { try_copy(self.0, at, self.1) }
    }
}

impl Buffers for From {
    #[inline]
    unsafe fn copy(&self, at: *mut u8, is_large: bool) -> bool {
        let copy = write_by(is_large);
        // SAFETY: the caller's.
        unsafe { copy(at, self.0, self.1) }
    }
}

fn copy_each(buffers: &[libc::iovec], mut at: *mut u8, copy: impl Fn(*mut u8, &libc::iovec) -> bool) -> bool {
    buffers.iter().all(|buffer| {
        let is_copied = copy(at, buffer);
        at = at.wrapping_add(buffer.iov_len);
        is_copied
    })
}

impl Buffers for ToMany<'_> {
    unsafe fn copy(&self, at: *mut u8, _: bool) -> bool {
        // SAFETY: the caller's.
        copy_each(self.0, at, |at, to| unsafe {
            try_copy(to.iov_base.cast(), at, to.iov_len)
        })
    }
}

impl Buffers for FromMany<'_> {
    unsafe fn copy(&self, at: *mut u8, is_large: bool) -> bool {
        let copy = write_by(is_large);
        // SAFETY: the caller's.
        copy_each(self.0, at, |at, from| unsafe {
            copy(at, from.iov_base.cast(), from.iov_len)
        })
    }
}

/// State before a system call that takes the place of a copy, to learn from that call afterwards.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    /// Which mapping it was: its memory may be another file's by now.
    number: u64,
    seen: Option<Seen>,
    tick: u64,
    /// All bytes were copied and none went; only a time is to be stamped.
    pub(crate) is_copied: bool,
    /// All bytes were copied, whatever went meanwhile.
    pub(crate) has_all: bool,
}

impl Mapped {
    /// Maps what lies around `offset` of a file that was just learned. Lets `patience` calls for other parts pass, if the mapping takes the place of an earlier one.
    /// Only one thread may do so at a time.
    pub(crate) fn new(fd: c_int, file: &File, offset: u64, patience: Option<u32>) -> Option<&'static Self> {
        let (start, bytes) = window(file.told.size, offset)?;
        let protection = match file.can_write {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let length = usize::try_from(bytes).ok()?;
        let base = map(fd, start, length, protection)?;
        let Some(mapped) = Self::take() else {
            // SAFETY: the mapping from above.
            unsafe { libc::munmap(base, length) };
            return None;
        };
        ALL_BYTES.fetch_add(bytes, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
        // Relaxed, all of these: the descriptor's state shows them.
        static LAST: AtomicU64 = AtomicU64::new(0);
        mapped
            .number
            .store(LAST.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        mapped
            .line
            .store(std::ptr::from_ref(file.line).cast_mut(), Ordering::Relaxed);
        mapped.place.store(file.place, Ordering::Relaxed);
        mapped.page.store(file.told.page, Ordering::Relaxed);
        mapped.line_number.store(file.told.line, Ordering::Relaxed);
        mapped.inode.store(file.inode, Ordering::Relaxed);
        mapped.base.store(base.cast(), Ordering::Relaxed);
        mapped.start.store(start, Ordering::Relaxed);
        mapped.bytes.store(bytes, Ordering::Relaxed);
        mapped.can_write.store(file.can_write, Ordering::Relaxed);
        let pieces = bytes.div_ceil(PIECE_BYTES);
        let shift = (0..).find(|shift| pieces.div_ceil(1 << shift) <= BITS)?;
        mapped.shift.store(shift, Ordering::Relaxed);
        mapped.read_tick.store(0, Ordering::Relaxed);
        mapped.write_tick.store(0, Ordering::Relaxed);
        mapped.misses.store(0, Ordering::Relaxed);
        mapped.patience.store(PATIENCE, Ordering::Relaxed);
        mapped.outside.store(0, Ordering::Relaxed);
        mapped
            .outside_patience
            .store(patience.unwrap_or(PATIENCE), Ordering::Relaxed);
        mapped.calm_ticks.store(0, Ordering::Relaxed);
        mapped.calm_tick.store(0, Ordering::Relaxed);
        mapped.is_changing.store(false, Ordering::Relaxed);
        // Not what is told.
        mapped.cuts.store(u64::MAX, Ordering::Relaxed);
        mapped.note(&file.told);
        Some(mapped)
    }

    /// In the child of a fork(2): a thread that is not there may have been changing it.
    pub(crate) fn after_fork(&self) {
        self.is_changing.store(false, Ordering::Relaxed);
    }

    /// Unmaps it, when nobody copies through it.
    pub(crate) fn free(&'static self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        // SAFETY: its own mapping, that nobody uses any more.
        unsafe {
            libc::munmap(
                self.base.load(Ordering::Relaxed).cast(),
                usize::try_from(bytes).unwrap_or(0),
            )
        };
        ALL_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        COUNT.fetch_sub(1, Ordering::Relaxed);
        pages::let_go(self.place.load(Ordering::Relaxed));
        self.next.store(FREE.load(Ordering::Relaxed), Ordering::Relaxed);
        FREE.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
    }

    /// Memory for one. By one thread at a time.
    fn take() -> Option<&'static Self> {
        let free = FREE.load(Ordering::Relaxed);
        if !free.is_null() {
            // SAFETY: what is in the list is never given back.
            let free = unsafe { &*free };
            FREE.store(free.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return Some(free);
        }
        let used = CHUNK_USED.load(Ordering::Relaxed);
        let chunk = CHUNK.load(Ordering::Relaxed);
        if !chunk.is_null() && used < CHUNK_BYTES / size_of::<Self>() {
            CHUNK_USED.store(used + 1, Ordering::Relaxed);
            // SAFETY: it lies in the chunk, of which nothing is given back; zeros are one.
            return unsafe { chunk.wrapping_add(used).as_ref() };
        }
        let (both, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at an address that the kernel chooses.
        let chunk = unsafe { libc::mmap(std::ptr::null_mut(), CHUNK_BYTES, both, flags, -1, 0) };
        if chunk == libc::MAP_FAILED {
            return None;
        }
        CHUNK.store(chunk.cast(), Ordering::Relaxed);
        CHUNK_USED.store(0, Ordering::Relaxed);
        Self::take()
    }

    fn line(&self) -> &'static Line {
        // SAFETY: pages of words stay mapped, and `new` has set it.
        unsafe { &*self.line.load(Ordering::Relaxed) }
    }

    /// The first byte in memory of a range that is mapped; `None` if it is not.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a mapping is no larger than a usize")]
    pub(crate) fn address(&self, range: Range) -> Option<*mut u8> {
        let start = self.start.load(Ordering::Relaxed);
        let within = range.offset.wrapping_sub(start);
        let end = within.checked_add(range.bytes)?;
        // A byte beyond the mapping's end, or one before its start, is a large number.
        (range.offset >= start && end <= self.bytes.load(Ordering::Relaxed))
            .then(|| self.base.load(Ordering::Relaxed).wrapping_add(within as usize))
    }

    /// Looks at the line before a copy, which goes through the caches or not. Returns its words, and the first byte of a range that is mapped, while what
    /// is known of the file is true.
    #[inline]
    fn begin(&self, range: Range, is_cached: bool) -> Result<(Before, Seen, *mut u8), Before> {
        let at = self.address(range);
        if let Some(at) = at
            && is_cached
        {
            // The look takes some 250 instructions, and the bytes are on their way meanwhile.
            prefetch(at, range.bytes);
        }
        let before = Before {
            number: self.number.load(Ordering::Relaxed),
            seen: self.line().look(),
            tick: tick(),
            is_copied: false,
            has_all: false,
        };
        let seen = before
            .seen
            .filter(|seen| seen.cuts == self.cuts.load(Ordering::Acquire))
            .ok_or(before)?;
        Ok((before, seen, at.ok_or(before)?))
    }

    /// Copies from the file; what is to be told to [`Mapped::after_read`] when that is not possible.
    ///
    /// # Safety
    /// The buffers can be written to, `range.bytes` in all.
    #[inline]
    pub(crate) unsafe fn read(&self, range: Range, to: &impl Buffers) -> Result<(), Before> {
        let (before, seen, at) = self.begin(range, true)?;
        // Acquire: pieces that are known below it.
        let is_known = range.end() <= self.size.load(Ordering::Acquire) && self.is_dense(range);
        if !is_known || self.read_tick.load(Ordering::Relaxed) != before.tick {
            return Err(before);
        }
        // SAFETY: the range is mapped as long as the caller is inside; the buffers are the caller's.
        let has_all = unsafe { to.copy(at, false) };
        if has_all && self.line().is_read_since(seen) {
            Ok(())
        } else {
            Err(Before { has_all, ..before })
        }
    }

    /// Copies to the file; what is to be told to [`Mapped::after_write`] when that is not possible.
    ///
    /// # Safety
    /// The buffers can be read, `range.bytes` in all.
    #[inline]
    pub(crate) unsafe fn write(&self, range: Range, from: &impl Buffers) -> Result<(), Before> {
        let is_large = self.size.load(Ordering::Relaxed) >= LARGE_BYTES;
        let (before, seen, at) = self.begin(range, !is_large || range.bytes < PAST_CACHES_BYTES_MIN)?;
        let is_known = range.end() <= self.size.load(Ordering::Acquire) && self.can_write.load(Ordering::Relaxed);
        // Acquire: the system call of another thread came before.
        let is_stamped =
            self.write_tick.load(Ordering::Acquire) == before.tick && self.asks.load(Ordering::Relaxed) == seen.asks;
        if !is_known || !is_stamped {
            return Err(before);
        }
        // SAFETY: the range is mapped as long as the caller is inside; the buffers are the caller's.
        let has_all = unsafe { from.copy(at, is_large) };
        if has_all && self.line().is_written_since(seen) {
            return Ok(());
        }
        Err(Before {
            is_copied: has_all && self.line().is_read_since(seen),
            has_all,
            ..before
        })
    }

    /// Returns true if no bytes of the file went since `before`.
    pub(crate) fn is_uncut(&self, before: &Before) -> bool {
        before.seen.is_some_and(|seen| self.line().is_read_since(seen))
    }

    /// Learns from a read that the system has carried out, of `read` bytes. Returns the patience of a new mapping, if the file should be mapped anew.
    pub(crate) fn after_read(&self, fd: c_int, range: Range, before: Before, read: isize) -> Option<u32> {
        let read = u64::try_from(read).ok()?;
        if read == 0 || before.number != self.number.load(Ordering::Relaxed) {
            return None;
        }
        self.read_tick.store(before.tick, Ordering::Relaxed);
        let is_whole = read == range.bytes;
        let is_missed = is_whole && (range.end() > self.size.load(Ordering::Relaxed) || !self.is_dense(range));
        let is_enough = || range.end() <= self.size.load(Ordering::Relaxed) && self.is_dense(range);
        // Beyond its end the file has nothing that a mapping could be for.
        let had = Range { bytes: read, ..range };
        self.look_again(fd, had, before, is_missed, is_enough)
    }

    /// Notes that the system has carried out a write of which nothing is learned.
    pub(crate) fn note_written_elsewhere(&self) {
        attributes::note_written(self.inode.load(Ordering::Relaxed));
    }

    /// Learns from a write that the system has carried out, of `written` bytes. Otherwise as [`Mapped::after_read`].
    pub(crate) fn after_write(&self, fd: c_int, range: Range, before: Before, written: isize) -> Option<u32> {
        let written = u64::try_from(written).ok()?;
        self.note_written_elsewhere();
        if written == 0
            || before.number != self.number.load(Ordering::Relaxed)
            || !self.can_write.load(Ordering::Relaxed)
        {
            return None;
        }
        if let Some(seen) = before.seen {
            self.asks.store(seen.asks, Ordering::Relaxed);
            // Release: with the word above, and after the system call.
            self.write_tick.store(before.tick, Ordering::Release);
        }
        let range = Range {
            bytes: written,
            ..range
        };
        let is_missed = range.end() > self.size.load(Ordering::Relaxed);
        self.note_written(before, range);
        // The server has no more to tell of a file that grows by such writes alone.
        let is_enough = || range.end() < self.size.load(Ordering::Relaxed);
        self.look_again(fd, range, before, is_missed, is_enough)
    }

    /// Asks the server after bytes went, and when enough was missed. Returns the patience of a new mapping, if what is missed is not mapped, or the file has another line
    /// for this process now. The server is asked less often where its answers are not enough.
    fn look_again(
        &self,
        fd: c_int,
        range: Range,
        before: Before,
        is_missed: bool,
        is_enough: impl Fn() -> bool,
    ) -> Option<u32> {
        if self.address(range).is_none() {
            return self.miss_outside(range);
        }
        if self.calm_tick.swap(before.tick, Ordering::Relaxed) != before.tick {
            self.calm_ticks.fetch_add(1, Ordering::Relaxed);
        }
        // Too late to be wrong: what is told now is true now.
        let is_cut = before
            .seen
            .is_some_and(|seen| seen.cuts != self.cuts.load(Ordering::Relaxed));
        if !is_cut && !is_missed {
            return None;
        }
        let misses = self.misses.fetch_add(1, Ordering::Relaxed) + 1;
        let patience = self.patience.load(Ordering::Relaxed);
        // Others may cut the file all the time.
        let is_due = is_cut && self.ask_tick.swap(before.tick, Ordering::Relaxed) != before.tick;
        if !is_due && (is_cut || misses < patience) {
            return None;
        }
        self.misses.store(0, Ordering::Relaxed);
        let told = pages::ask(fd, range.offset)?;
        // The descriptor may be of another file by now, which may have the line that this one had.
        if !pages::look(fd).is_ok_and(|found| found.inode == self.inode.load(Ordering::Relaxed)) {
            return None;
        }
        let own = [&self.page, &self.line_number].map(|own| own.load(Ordering::Relaxed));
        // If not, the process has become another user: what is told is true under that user's line. While nothing is cut, what is known holds.
        let is_own = [told.page, told.line] == own;
        if !is_own && is_cut {
            return Some(self.outside_patience.load(Ordering::Relaxed));
        }
        if is_own {
            self.note(&told);
        }
        let patience = if is_enough() {
            PATIENCE
        } else {
            (patience * 2).min(PATIENCE_MAX)
        };
        self.patience.store(patience, Ordering::Relaxed);
        None
    }

    /// Counts a call for what is not mapped. Returns the patience of a mapping that is to take the place of this one, when this one's has come to its end.
    ///
    /// A file that is used all over has no part that is worth more than another: each move there doubles the patience. It halves where a part was in use for long.
    fn miss_outside(&self, range: Range) -> Option<u32> {
        let mut patience = self.outside_patience.load(Ordering::Relaxed);
        if self.calm_ticks.swap(0, Ordering::Relaxed) >= CALM_TICKS {
            patience = (patience / 2).max(PATIENCE);
            self.outside.store(0, Ordering::Relaxed);
            self.outside_patience.store(patience, Ordering::Relaxed);
        }
        let misses = self.outside.fetch_add(1, Ordering::Relaxed) + 1;
        if misses < patience {
            return None;
        }
        self.outside.store(0, Ordering::Relaxed);
        let (first, length) = window(range.end(), range.offset)?;
        let (start, bytes) = (self.start.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        // Nothing of a file that has grown is left.
        let has_all = first <= start && first + length >= start + bytes;
        let most = u32::try_from(bytes / OUTSIDE_BYTES).unwrap_or(u32::MAX).max(PATIENCE);
        let patience = match has_all {
            true => patience,
            false => patience.saturating_mul(2).min(most),
        };
        self.outside_patience.store(patience, Ordering::Relaxed);
        Some(patience)
    }

    /// The numbers of the pieces that a range lies in.
    #[inline]
    fn pieces(&self, start: u64, end: u64) -> std::ops::Range<u64> {
        let (first, shift) = (self.start.load(Ordering::Relaxed), self.shift.load(Ordering::Relaxed));
        let bits = PIECE_BYTES.trailing_zeros() + shift;
        (start - first) >> bits..((end - first + (1 << bits) - 1) >> bits).min(BITS)
    }

    /// Whether a range that is mapped has no hole, as far as is known.
    #[inline]
    fn is_dense(&self, range: Range) -> bool {
        if self.address(range).is_none() {
            return false;
        }
        // Relaxed: the size that was loaded before, or a later count of cuts, shows them.
        self.pieces(range.offset, range.end())
            .all(|piece| self.dense[(piece / 64) as usize].load(Ordering::Relaxed) >> (piece % 64) & 1 == 1)
    }

    fn set_dense(&self, piece: u64, is_dense: bool) {
        let word = &self.dense[(piece / 64) as usize];
        match is_dense {
            true => word.fetch_or(1 << (piece % 64), Ordering::Relaxed),
            false => word.fetch_and(!(1 << (piece % 64)), Ordering::Relaxed),
        };
    }

    /// Takes over what the server tells.
    fn note(&self, told: &Told) {
        let Some(_changing) = Changing::new(self) else { return };
        let known = self.cuts.load(Ordering::Relaxed);
        if known != u64::MAX && told.cuts < known {
            return;
        }
        if told.cuts != known {
            // Nobody believes what is below until the count is there.
            self.cuts.store(u64::MAX, Ordering::SeqCst);
            self.dense.iter().for_each(|word| word.store(0, Ordering::SeqCst));
            self.size.store(0, Ordering::SeqCst);
        }
        let (start, bytes) = (self.start.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let size = self.size.load(Ordering::Relaxed);
        if told.size > size && size > start && size < start + bytes {
            // It may have grown with a hole.
            self.set_dense(self.pieces(size, size + 1).start, false);
        }
        let shift = self.shift.load(Ordering::Relaxed);
        let piece_bytes = PIECE_BYTES << shift;
        let (from, until) = (told.first * PIECE_BYTES, (told.first + PIECES) * PIECE_BYTES);
        let end = told.size.min(start + bytes);
        for piece in self.pieces(start, end.max(start)) {
            let (first, last) = (
                start + piece * piece_bytes,
                (start + (piece + 1) * piece_bytes).min(end),
            );
            // Beyond a size that is older than what is known, another thread may have left a hole.
            if first < from || last > until || told.size < size && start + (piece + 1) * piece_bytes > told.size {
                continue;
            }
            let mut parts = (first - from) / PIECE_BYTES..(last - from).div_ceil(PIECE_BYTES);
            if parts.all(|part| told.dense[(part / 64) as usize] >> (part % 64) & 1 == 1) {
                self.set_dense(piece, true);
            }
        }
        // Release, both: with the pieces above.
        self.size
            .store(told.size.max(self.size.load(Ordering::Relaxed)), Ordering::Release);
        self.cuts.store(told.cuts, Ordering::Release);
    }

    /// Notes what a system call has written, if no bytes went since before.
    fn note_written(&self, before: Before, range: Range) {
        let size = self.size.load(Ordering::Relaxed);
        if range.end() <= size {
            return;
        }
        let Some(_changing) = Changing::new(self) else { return };
        let size = self.size.load(Ordering::Relaxed);
        let is_known = before.seen.is_some_and(|seen| {
            // Another cut, from here on, changes the count once more.
            seen.cuts == self.cuts.load(Ordering::Relaxed) && self.line().is_read_since(seen)
        });
        let start = self.start.load(Ordering::Relaxed);
        if !is_known || range.end() <= size || self.address(range).is_none() || size < start {
            return;
        }
        // From where on everything is written, if not all of it is.
        let (written, end) = (if range.offset > size { range.offset } else { size }, range.end());
        let bits = PIECE_BYTES.trailing_zeros() + self.shift.load(Ordering::Relaxed);
        if range.offset > size && size < start + self.bytes.load(Ordering::Relaxed) {
            self.set_dense(self.pieces(size, size + 1).start, false);
        }
        for piece in self.pieces(written, end) {
            if start + (piece << bits) >= written {
                self.set_dense(piece, true);
            }
        }
        // Release: with the pieces above.
        self.size.store(end, Ordering::Release);
    }
}

/// The right to change what is known of a file. No handler comes in between.
struct Changing<'a> {
    mapped: &'a Mapped,
    _quiet: Quiet,
}

impl<'a> Changing<'a> {
    fn new(mapped: &'a Mapped) -> Option<Self> {
        let quiet = Quiet::new();
        // Acquire and release: what the last one has changed.
        let taken = mapped
            .is_changing
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Self { mapped, _quiet: quiet })
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.mapped.is_changing.store(false, Ordering::Release);
    }
}

/// Maps a part of a file where its huge pages can be mapped as such: they begin at multiples of 2 MiB, in the file and in memory.
fn map(fd: c_int, start: u64, length: usize, protection: c_int) -> Option<*mut c_void> {
    const HUGE_BYTES: usize = 2 << 20;
    let (none, flags) = (
        std::ptr::null_mut(),
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    let reserved_bytes = length.checked_add(HUGE_BYTES)?;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let reserved = unsafe { libc::mmap(none, reserved_bytes, libc::PROT_NONE, flags, -1, 0) };
    if reserved == libc::MAP_FAILED {
        return None;
    }
    let within = usize::try_from(start).ok()? % HUGE_BYTES;
    let before = (within + HUGE_BYTES - reserved.addr() % HUGE_BYTES) % HUGE_BYTES;
    let base = reserved.wrapping_byte_add(before);
    let (at, flags) = (i64::try_from(start).ok()?, libc::MAP_SHARED | libc::MAP_FIXED);
    // In two steps: after mlockall(MCL_FUTURE) the kernel makes all of an accessible mapping present at once, and so fills the file's holes.
    // SAFETY: it takes the place of a part of what was reserved.
    let is_mapped = unsafe { libc::mmap(base, length, libc::PROT_NONE, flags, fd, at) } != libc::MAP_FAILED
        // SAFETY: the mapping from above.
        && unsafe { libc::mprotect(base, length, protection) } == 0;
    if !is_mapped {
        // SAFETY: what was reserved.
        unsafe { libc::munmap(reserved, reserved_bytes) };
        return None;
    }
    // A dump would have all of the file in it, and take room for its holes.
    // SAFETY: the mapping from above.
    unsafe { libc::madvise(base, length, libc::MADV_DONTDUMP) };
    if before > 0 {
        // SAFETY: what was reserved before it.
        unsafe { libc::munmap(reserved, before) };
    }
    if before < HUGE_BYTES {
        // SAFETY: what was reserved behind it.
        unsafe { libc::munmap(base.wrapping_byte_add(length), HUGE_BYTES - before) };
    }
    Some(base)
}

/// The part of a file of `size` bytes that is to be mapped for uses around `offset`: its first byte and its length; `None` when the process has no address space for it.
fn window(size: u64, offset: u64) -> Option<(u64, u64)> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: there is room for a limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } != 0 {
        return None;
    }
    let (all, most) = match limit.rlim_cur {
        libc::RLIM_INFINITY => (ALL_BYTES_MAX, WINDOW_BYTES_MAX),
        // What the program itself wants comes first.
        limit => (limit / 16, (limit / 64).min(WINDOW_BYTES_MAX)),
    };
    let most = most / (2 * PIECE_BYTES) * (2 * PIECE_BYTES);
    let whole = size
        .max(offset.saturating_add(1))
        .checked_add(GROWTH_BYTES)?
        .checked_next_multiple_of(GROWTH_BYTES)?;
    // Around the offset, if not all of it.
    let start = if whole <= most {
        0
    } else {
        offset.saturating_sub(most / 2) / PIECE_BYTES * PIECE_BYTES
    };
    let bytes = (whole - start).min(most);
    let has_room =
        ALL_BYTES.load(Ordering::Relaxed).saturating_add(bytes) <= all && COUNT.load(Ordering::Relaxed) < COUNT_MAX;
    (bytes > 0 && has_room).then_some((start, bytes))
}

/// The kernel's clock of ticks, by which it stamps files.
#[inline]
pub(crate) fn tick() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    tick_of(now.tv_sec, now.tv_nsec)
}

/// A time as a number, as ticks are.
#[inline]
pub(crate) fn tick_of(seconds: i64, nanoseconds: i64) -> u64 {
    (seconds as u64) << 30 | nanoseconds as u64
}

/// The range of a call at an offset, if it can be a copy at all.
#[inline]
pub fn range(offset: i64, bytes: usize) -> Option<Range> {
    let offset = u64::try_from(offset).ok()?;
    let bytes = u64::try_from(bytes).ok()?;
    // What is longer the kernel cuts; what comes near the largest offset is not worth a thought.
    (bytes > 0 && bytes < 1 << 30 && offset < 1 << 62).then_some(Range { offset, bytes })
}
