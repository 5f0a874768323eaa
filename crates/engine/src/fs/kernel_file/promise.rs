//! Reservations: space that fallocate promised to a kernel body, and that no thread has written yet.
//!
//! A reservation places nothing: the first writer decides a page's node. The kernel knows no reservations, so the pool counts the blocks as
//! reserved (`pool::lend`). When little space is left, fallocate or [`Fs::keep_promises`] has the kernel allocate them, on the node of the calling
//! thread. A reservation breaks only if writers fill the margin within one period, or while much is being allocated
//! (`Pool::is_time_for_promises`).
//!
//! Below the end of a file, allocating changes no times and waits for no writer. Beyond the end only fallocate(2) allocates; it changes times and
//! may wait for ever, so a separate thread does it. While it waits, the file's other reservations are not allocated either.

use super::KernelFile;
use crate::fs::block_file::FILE_BYTES_MAX;
use crate::fs::{Error, Fs, Ino, Inode, Result};

use crate::pool::Pool;
use crate::{BLOCK_BYTES, Clock, Memory};
use std::collections::BTreeSet;
use std::ops::Range;
use std::slice;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Ranges of a file that are promised apart from each other, at most; beyond them room is allocated at once. 16 bytes each, which nobody
/// is charged: each has a block of the pool booked.
const RANGES_MAX: usize = 1024;
/// Pieces in which a range is counted; those without holes are promised no more, so they are not looked at again.
const PIECES: u64 = 64;
/// Blocks of such a piece at least: 64 MiB.
const PIECE_BLOCKS_MIN: u64 = 16_384;
/// Most effort that a call of a user's takes to count promises, about half a millisecond, and the most that one file may take. Counts of other files
/// are up to a period old: the room of what has been written meanwhile counts twice.
const CALL_EFFORT: u64 = 1024;
/// Most effort between two looks at the room. A single file may take more.
const LOOK_EFFORT: u64 = 1024;
/// Effort to ask for a file, besides its pieces.
const FILE_EFFORT: u64 = 8;
/// Pages that are passed in the time in which an empty piece is asked for.
const PAGES_OF_EFFORT: u64 = 64;
/// Room besides all promises and half of them that makes them real when less is left: 64 MiB, what writers at 13 GB/s take in 5 ms.
pub(super) const MARGIN_BLOCKS: u64 = 16_384;
/// Blocks that one step of allocating takes, a few milliseconds: 16 MiB.
const STEP_BLOCKS: u64 = 4096;

/// Longest wait of [`Fs::keep_promises`] for another thread that counts a file's promises, or makes them real.
const KEEP_PATIENCE: Duration = Duration::from_millis(1);
/// Time after which all promises are counted anew though there is room.
const COUNT_PERIOD_NS: i64 = 1_000_000_000;

/// Outcome of a step of allocating.
enum Step {
    More,
    Done,
    /// Blocks that found no room.
    Broken(u64),
}

/// Promises that [`Fs::keep_promises`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promised {
    /// Below the ends of files.
    Inside,
    /// Beyond the ends of files: waits for writers of theirs, maybe for ever.
    Beyond,
}

/// Promises to one file.
#[derive(Debug, Default)]
pub(super) struct Promise {
    /// In file blocks: ascending, apart from each other.
    ranges: Vec<Range<u64>>,
    /// Blocks of them that take no room yet, as the pool counts them.
    missing: u64,
    /// Both before the fallocate under way, which comes in steps.
    before: Option<(Vec<Range<u64>>, u64)>,
}

impl Promise {
    /// Effort to count it anew, in times of an empty piece, in a file of so many blocks.
    fn effort(&self, blocks: u64) -> u64 {
        let pieces: u64 = self.ranges.iter().map(|range| piece_count(range).1).sum();
        FILE_EFFORT + pieces + blocks.min(sum(&self.ranges)) / PAGES_OF_EFFORT
    }
}

/// Files to which room is promised.
#[derive(Debug, Default)]
pub(in crate::fs) struct Promising {
    files: BTreeSet<Ino>,
    /// Inode at which counting goes on, for calls and for [`Fs::keep_promises`].
    next: [u64; 2],
}

/// Occasion on which promises are counted.
#[derive(Clone, Copy)]
enum Counts {
    /// A call of a user's.
    Call,
    /// [`Fs::keep_promises`].
    Look,
}

impl Promising {
    /// The next file to count, and whether it is the last of a round.
    fn turn(&mut self, who: Counts) -> Option<(Ino, bool)> {
        let next = &mut self.next[who as usize];
        let following = self.files.range(Ino(*next)..).next();
        let ino = *following.or_else(|| self.files.first())?;
        *next = ino.0 + 1;
        Some((ino, self.files.last() == Some(&ino)))
    }
}

/// How room for a range is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    Booked,
    /// Too many ranges are booked: it has to be allocated.
    Unbooked,
}

impl KernelFile {
    /// Begins a fallocate, or goes on with it; returns how far it came: `done`, or 0 if what it has promised was taken back.
    pub(super) fn begin_steps(&self, done: u64) -> u64 {
        let mut promise = self.promise.lock();
        if promise.before.is_none() {
            promise.before = Some((promise.ranges.clone(), promise.missing));
            return 0;
        }
        // Another thread may begin the same call again, from 0: what its first step has promised is not from before the call.
        done
    }

    /// Ends a fallocate that has come to its end.
    pub(super) fn end_steps(&self) {
        self.promise.lock().before = None;
    }

    /// The first blocks of `rest` whose room a call finds in a step: all of them where the file has few blocks to count.
    pub(super) fn countable(&self, rest: &Range<u64>) -> Range<u64> {
        const MOST: u64 = CALL_EFFORT * PAGES_OF_EFFORT;
        match self.file.status().unwrap_or_default().blocks {
            ..=MOST => rest.clone(),
            _ => rest.start..rest.end.min(rest.start + MOST),
        }
    }

    /// Promises room for `range` (file blocks), of a call that wants `rest`.
    fn promise<M: Memory>(&self, pool: &Pool<M>, range: Range<u64>, rest: Range<u64>) -> Result<Given> {
        let mut promise = self.promise.lock();
        if range != rest {
            // Refuses now a range that cannot fit in any case: its steps would take room from other writers meanwhile.
            let blocks = self.file.status().unwrap_or_default().blocks;
            find_room(pool, sum(&outside(&[rest], &promise.ranges)).saturating_sub(blocks))?;
        }
        // Blocks that are promised there already are counted as they were.
        let (new, more) = self.missing(&outside(slice::from_ref(&range), &promise.ranges))?;
        let ranges = with(&promise.ranges, new);
        if ranges.len() > RANGES_MAX {
            return find_room(pool, more);
        }
        let missing = promise.missing + more;
        pool.change_promised(promise.missing, missing)
            .map_err(|_| Error::NoSpace)?;
        promise.ranges = ranges;
        promise.missing = missing;
        self.promised.store(missing, Ordering::Relaxed);
        Ok(Given::Booked)
    }

    /// Finds room for a part of a range of which some may be booked.
    fn find_room<M: Memory>(&self, pool: &Pool<M>, part: Range<u64>) -> Result<Given> {
        let promise = self.promise.lock();
        let (_, more) = self.missing(&outside(slice::from_ref(&part), &promise.ranges))?;
        find_room(pool, more)
    }

    /// Whether `range` (file blocks) can be booked, whatever of it takes room.
    pub(super) fn can_book(&self, range: &Range<u64>) -> bool {
        let promise = self.promise.lock();
        let new = outside(slice::from_ref(range), &promise.ranges);
        let pieces: u64 = new.iter().map(|range| piece_count(range).1).sum();
        promise.ranges.len() as u64 + pieces <= RANGES_MAX as u64
    }

    /// Has the kernel allocate `blocks`; nothing is promised there any more.
    fn allocate<M: Memory>(&self, pool: &Pool<M>, blocks: Range<u64>) -> Result<()> {
        // Held all the time: a truncation beside it would leave pages that nobody asked for.
        self.allocate_held(pool, &mut self.promise.lock(), blocks, Promised::Beyond)
    }

    /// [`Self::allocate`] by the means for that side of the end. Counts these blocks alone: a step takes as long whatever else is promised.
    fn allocate_held<M: Memory>(
        &self,
        pool: &Pool<M>,
        promise: &mut Promise,
        blocks: Range<u64>,
        side: Promised,
    ) -> Result<()> {
        let (start, end) = (blocks.start * BLOCK, (blocks.end * BLOCK).min(FILE_BYTES_MAX));
        let step = [blocks];
        let (_, taken) = self.missing(&outside(&step, &outside(&step, &promise.ranges)))?;
        match side {
            Promised::Inside => self.file.fill(start, end - start)?,
            Promised::Beyond => self.file.allocate(start, end - start)?,
        }
        self.forget_where();
        if self.take_out(promise, &step, u64::MAX) {
            let missing = promise.missing.saturating_sub(taken);
            self.set_less_missing(pool, promise, missing);
        }
        Ok(())
    }

    /// Runs `free`, which frees the blocks `gone`: nothing is promised there any more, unless that would make too many pieces of what is
    /// left, and there is room for the hole. Counts these blocks alone, too.
    pub(super) fn freeing<M: Memory, T>(
        &self,
        pool: &Pool<M>,
        gone: Range<u64>,
        free: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut promise = self.promise.lock();
        let gone = [gone];
        let there = outside(&gone, &outside(&gone, &promise.ranges));
        // Counts none on an error: the next count tells.
        let missing = self.missing(&there).map_or(0, |(_, missing)| missing);
        let freed = free()?;
        let mut is_out = self.take_out(&mut promise, &gone, STEP_BLOCKS);
        if !is_out && !there.is_empty() {
            let more = promise.missing + (sum(&there) - missing);
            if pool.change_promised(promise.missing, more).is_ok() {
                promise.missing = more;
                self.promised.store(more, Ordering::Relaxed);
            } else {
                // Others have the hole's room already: it cannot stay promised, however large the smallest piece is.
                is_out = self.take_out(&mut promise, &gone, u64::MAX);
            }
        }
        if is_out {
            let missing = promise.missing.saturating_sub(missing);
            self.set_less_missing(pool, &mut promise, missing);
            if promise.effort(self.file.status().unwrap_or_default().blocks) <= CALL_EFFORT {
                self.recount(pool, &mut promise);
            }
        }
        Ok(freed)
    }

    /// Takes back what the fallocate under way has promised in `range` (file blocks).
    pub(super) fn take_back<M: Memory>(&self, pool: &Pool<M>, range: Range<u64>) {
        let mut promise = self.promise.lock();
        let Some((before, missing)) = promise.before.take() else {
            return;
        };
        if self.take_out(&mut promise, &outside(&[range], &before), u64::MAX) {
            self.set_less_missing(pool, &mut promise, missing);
        }
    }

    /// Takes ranges out of what is promised; returns whether that changes anything. Allocates the smallest pieces where more are left than are kept; if
    /// those have more blocks than `most`, nothing is taken out.
    fn take_out(&self, promise: &mut Promise, gone: &[Range<u64>], most: u64) -> bool {
        let mut left = outside(&promise.ranges, gone);
        if left == promise.ranges {
            return false;
        }
        // Each range that goes leaves one piece more at most.
        while left.len() > RANGES_MAX {
            let blocks = |piece: &Range<u64>| piece.end - piece.start;
            let smallest = (0..left.len()).min_by_key(|index| blocks(&left[*index]));
            let piece = left.remove(smallest.expect("left has more than RANGES_MAX ranges"));
            if blocks(&piece) > most {
                return false;
            }
            // Room is booked for it; where there is none all the same, the promise is broken as others are.
            let _ = self.file.allocate(piece.start * BLOCK, blocks(&piece) * BLOCK);
        }
        promise.ranges = left;
        true
    }

    /// Whether nothing is promised; false while another thread changes that.
    fn is_promised_nothing(&self) -> bool {
        let promise = self.promise.try_lock();
        promise.is_some_and(|promise| promise.ranges.is_empty())
    }

    /// Effort of [`Self::promised_blocks`], in times of an empty piece: some 0.4 µs. None while another thread changes what is promised.
    fn effort(&self) -> Option<u64> {
        let promise = self.promise.try_lock()?;
        Some(promise.effort(self.file.status().unwrap_or_default().blocks))
    }

    /// Blocks that are promised and not written, for attributes of a file of so many blocks: anew if that takes no longer than a call may, else as they
    /// were counted last.
    pub(in crate::fs) fn told_promised_blocks<M: Memory>(&self, pool: &Pool<M>, blocks: u64) -> u64 {
        self.count(pool, |promise| promise.effort(blocks) <= CALL_EFFORT)
    }

    /// Counts anew what is promised and not written; returns it, in blocks. While another thread changes it, as it was last.
    pub(in crate::fs) fn promised_blocks<M: Memory>(&self, pool: &Pool<M>) -> u64 {
        self.count(pool, |_| true)
    }

    fn count<M: Memory>(&self, pool: &Pool<M>, is_short: impl FnOnce(&Promise) -> bool) -> u64 {
        // Calls wait for nobody here: that thread may hold it for ever.
        if let Some(mut promise) = self.promise.try_lock()
            && !promise.ranges.is_empty()
            && is_short(&promise)
        {
            self.recount(pool, &mut promise);
        }
        // Relaxed: a figure.
        self.promised.load(Ordering::Relaxed)
    }

    fn recount<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) {
        if promise.ranges.is_empty() {
            return self.set_missing(pool, promise, 0);
        }
        let counted = match self.missing(&promise.ranges) {
            Err(Error::Stale) => (Vec::new(), 0),
            // Cannot be asked just now.
            Err(_) => return,
            Ok(counted) => counted,
        };
        let (left, missing) = counted;
        if left.len() <= RANGES_MAX {
            promise.ranges = left;
        }
        let missing = missing.min(promise.missing);
        self.set_missing(pool, promise, missing);
    }

    /// Books that `missing` blocks are promised, no more than before.
    fn set_missing<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, missing: u64) {
        pool.change_promised(promise.missing, missing)
            .expect("a smaller promise always fits");
        promise.missing = missing;
        self.promised.store(missing, Ordering::Relaxed);
    }

    /// Books that at most `missing` blocks are promised, after ranges were taken out.
    fn set_less_missing<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise, missing: u64) {
        let missing = missing.min(promise.missing).min(sum(&promise.ranges));
        self.set_missing(pool, promise, missing);
    }

    /// Promises nothing any more; gives the blocks that were promised and not written.
    pub(super) fn promise_nothing<M: Memory>(&self, pool: &Pool<M>) -> u64 {
        self.break_held(pool, &mut self.promise.lock())
    }

    fn break_held<M: Memory>(&self, pool: &Pool<M>, promise: &mut Promise) -> u64 {
        let broken = promise.missing;
        promise.ranges.clear();
        self.set_missing(pool, promise, 0);
        broken
    }

    /// Has the kernel allocate the next step of what is promised inside, or beyond its end. A promise that finds no room is given up: asking again
    /// and again would take the room from others for a moment each time.
    fn allocate_promised_step<M: Memory>(&self, pool: &Pool<M>, promised: Promised) -> Step {
        // The thread for what lies beyond the end may hold it for long.
        let Some(mut promise) = self.promise.try_lock_for(KEEP_PATIENCE) else {
            return Step::Done;
        };
        let Some(range) = self.first_on_side(&promise, promised) else {
            return Step::Done;
        };
        let blocks = range.start..range.end.min(range.start + STEP_BLOCKS);
        match self.allocate_held(pool, &mut promise, blocks, promised) {
            Ok(()) => Step::More,
            Err(Error::NoSpace | Error::NoMemory) => Step::Broken(self.break_held(pool, &mut promise)),
            // Cannot be asked just now.
            Err(_) => Step::Done,
        }
    }

    /// The first of what is promised on a side of the end.
    fn first_on_side(&self, promise: &Promise, promised: Promised) -> Option<Range<u64>> {
        if promise.ranges.is_empty() {
            return None;
        }
        let end = self.file.status().ok()?.size.div_ceil(BLOCK);
        let side = match promised {
            Promised::Inside => 0..end,
            Promised::Beyond => end..u64::MAX,
        };
        let within = |range: &Range<u64>| range.start.max(side.start)..range.end.min(side.end);
        promise.ranges.iter().map(within).find(|range| !range.is_empty())
    }

    /// Counts blocks of `ranges` that take no room; gives the parts with such blocks, too.
    fn missing(&self, ranges: &[Range<u64>]) -> Result<(Vec<Range<u64>>, u64)> {
        let pieces: Vec<Range<u64>> = ranges.iter().flat_map(pieces).collect();
        let holes = self.file.holes(&pieces)?;
        let missing = holes.iter().sum();
        let with_holes = pieces.into_iter().zip(holes).filter(|(_, holes)| *holes > 0);
        Ok((joined(with_holes.map(|(piece, _)| piece)), missing))
    }
}

/// Whether there is room for `more` blocks that cannot be booked.
fn find_room<M: Memory>(pool: &Pool<M>, more: u64) -> Result<Given> {
    if more > pool.room_of_files() || pool.endangers_promises(more) {
        return Err(Error::NoSpace);
    }
    Ok(Given::Unbooked)
}

/// Blocks of each piece of a range, and how many there are.
fn piece_count(range: &Range<u64>) -> (u64, u64) {
    let blocks = range.end - range.start;
    let each = blocks.div_ceil(PIECES).max(PIECE_BLOCKS_MIN);
    (each, blocks.div_ceil(each))
}

/// A range in pieces to count.
fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (range.start, range.end);
    let (each, count) = piece_count(range);
    (0..count).map(move |number| start + number * each..end.min(start + (number + 1) * each))
}

/// Blocks of all ranges.
fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Parts of `ranges` outside of `gone`, both ascending and each apart from each other.
fn outside(ranges: &[Range<u64>], gone: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut gone = gone.iter().filter(|gone| !gone.is_empty()).peekable();
    for range in ranges {
        let mut start = range.start;
        while let Some(hole) = gone.next_if(|hole| hole.end < range.end) {
            left.push(start..hole.start);
            start = start.max(hole.end);
        }
        // It may reach into the next range, too.
        let end = gone.peek().map_or(range.end, |hole| hole.start.min(range.end));
        left.push(start..end);
    }
    left.retain(|range| !range.is_empty());
    left
}

/// `ranges` and `new`, ascending and apart from each other.
fn with(ranges: &[Range<u64>], new: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all = [ranges, &new].concat();
    all.sort_by_key(|range| range.start);
    joined(all.into_iter())
}

/// Bytes that one step of allocating takes, of a range whose first `done` bytes are done.
fn step_of(range: &Range<u64>, done: u64) -> Range<u64> {
    let start = range.start + done;
    start..range.end.min(start + STEP_BLOCKS * BLOCK)
}

/// Ascending ranges, those that meet as one.
fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Promises room for a range of blocks of a kernel body, of a call that wants `rest`; tells how.
    pub(super) fn promise(
        &self,
        inode: &Inode,
        file: &KernelFile,
        range: &Range<u64>,
        rest: &Range<u64>,
    ) -> Result<Given> {
        let given = self.counting_again(|| file.promise(&self.pool, range.clone(), rest.clone()))?;
        if given == Given::Booked {
            self.promising.lock().files.insert(inode.ino);
        }
        Ok(given)
    }

    /// Finds room for what [`Self::allocate_step`] allocates next, which may be booked.
    pub(super) fn find_step_room(&self, file: &KernelFile, range: &Range<u64>, done: u64) -> Result<Given> {
        let step = step_of(range, done);
        self.counting_again(|| file.find_room(&self.pool, step.start / BLOCK..step.end.div_ceil(BLOCK)))
    }

    /// Tries again after a count where there is no room: others may have written what was promised to them.
    fn counting_again(&self, give: impl Fn() -> Result<Given>) -> Result<Given> {
        let given = give();
        if given != Err(Error::NoSpace) {
            return given;
        }
        self.count_promises_for_call();
        give()
    }

    /// Has the kernel allocate the part of `range` (bytes) that follows its first `done` bytes, a step of it; gives the bytes done then,
    /// `None` for all.
    pub(super) fn allocate_step(&self, file: &KernelFile, range: &Range<u64>, done: u64) -> Result<Option<u64>> {
        let step = step_of(range, done);
        file.allocate(&self.pool, step.start / BLOCK..step.end.div_ceil(BLOCK))?;
        Ok((step.end < range.end).then_some(step.end - range.start))
    }

    /// Counts promises anew for a call of a user's, which does not wait long for it.
    pub(in crate::fs) fn count_promises_for_call(&self) {
        self.count_some_promises(Counts::Call, CALL_EFFORT, CALL_EFFORT);
    }

    /// Counts promises anew, file after file, from where this ended last, each at most once: none that takes more than `file_most`, and none any more
    /// when `effort` is spent. Returns whether it came past the last file.
    fn count_some_promises(&self, who: Counts, effort: u64, file_most: u64) -> bool {
        let mut spent = 0;
        let files = self.promising.lock().files.len();
        for _ in 0..files {
            let Some((ino, is_last)) = self.promising.lock().turn(who) else {
                break;
            };
            spent += self.count_promise(ino, file_most);
            if is_last {
                return true;
            }
            if spent >= effort {
                return false;
            }
        }
        true
    }

    /// Counts what is promised to a file anew, if that takes no more effort than `most`; forgets it when that is nothing. Returns the effort.
    fn count_promise(&self, ino: Ino, most: u64) -> u64 {
        let inode = self.table.find(ino);
        let file = inode.as_deref().and_then(Inode::kernel_file);
        let effort = match file.map(KernelFile::effort) {
            Some(Some(effort)) if effort <= most => effort,
            // Busy, or too large.
            Some(_) => return 1,
            None => 1,
        };
        file.map(|file| file.promised_blocks(&self.pool));
        if file.is_none_or(KernelFile::is_promised_nothing) {
            // Looked at again with the list locked: a promise is made first, and then put there.
            let mut promising = self.promising.lock();
            if file.is_none_or(KernelFile::is_promised_nothing) {
                promising.files.remove(&ino);
            }
        }
        effort
    }

    /// Whether anything may be promised: [`Fs::keep_promises`] is to be called often.
    pub fn has_promises(&self) -> bool {
        !self.promising.lock().files.is_empty()
    }

    /// Whether little room is left besides promises.
    fn is_time_for_promises(&self) -> bool {
        self.pool.is_time_for_promises(MARGIN_BLOCKS)
    }

    /// Whether anything is promised to a file on that side of its end; false while another thread takes long to change that.
    fn has_promised(&self, ino: Ino, promised: Promised) -> bool {
        let inode = self.table.find(ino);
        let Some(file) = inode.as_deref().and_then(Inode::kernel_file) else {
            return false;
        };
        let promise = file.promise.try_lock_for(KEEP_PATIENCE);
        promise.is_some_and(|promise| file.first_on_side(&promise, promised).is_some())
    }

    /// Looks whether there is room for what fallocate has promised, and has the kernel allocate it where little is left.
    ///
    /// Returns the blocks that were promised and found no room; `None` where little room is left, and the other thread alone has something to
    /// do about that. Call this again and again, by a thread for each kind: the less often, the more may others take from promises.
    pub fn keep_promises(&self, promised: Promised) -> Option<u64> {
        if !self.has_promises() {
            return Some(0);
        }
        let mut promising = Vec::new();
        let is_time = self.is_time_for_promises();
        if is_time {
            promising.extend(self.promising.lock().files.iter().copied());
        }
        // This thread would count all the time while the other one has everything to do, and maybe waits for ever.
        if !promising.iter().any(|ino| self.has_promised(*ino, promised)) {
            // Forgets promises that were kept. Relaxed: only how often this is done depends on it.
            let counted_ns = self.promises_counted_ns.load(Ordering::Relaxed);
            let is_due = self.now_ns().saturating_sub(counted_ns) >= COUNT_PERIOD_NS;
            if is_due && self.count_some_promises(Counts::Look, LOOK_EFFORT, u64::MAX) {
                self.promises_counted_ns.store(self.now_ns(), Ordering::Relaxed);
            }
            return (!is_time).then_some(0);
        }
        let mut broken = 0;
        // Blocks that were written meanwhile need no room any more.
        for ino in &promising {
            self.count_promise(*ino, u64::MAX);
        }
        // A step of each in turn: the last file has as much to lose.
        while !promising.is_empty() && self.is_time_for_promises() {
            promising.retain(|ino| {
                let inode = self.table.find(*ino);
                let Some((inode, file)) = inode.as_deref().and_then(|inode| Some((inode, inode.kernel_file()?))) else {
                    return false;
                };
                self.place_for_writer(inode, file);
                match file.allocate_promised_step(&self.pool, promised) {
                    Step::More => return true,
                    Step::Done => {}
                    Step::Broken(blocks) => broken += blocks,
                }
                self.count_promise(*ino, u64::MAX);
                false
            });
        }
        Some(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_out_of_others() {
        let ranges = [0..100, 200..300];
        let reversed = Range { start: 1, end: 0 };
        for nothing in [50..50, reversed, 100..200, 300..400] {
            assert_eq!(outside(&ranges, &[nothing]), ranges);
        }
        for (gone, left) in [
            (vec![10..20, 50..250], vec![0..10, 20..50, 250..300]),
            (
                vec![0..10, 20..30, 90..210, 220..230, 290..400],
                vec![10..20, 30..90, 210..220, 230..290],
            ),
            (vec![0..100, 250..260], vec![200..250, 260..300]),
            (vec![0..200, 200..300], vec![]),
        ] {
            assert_eq!(outside(&ranges, &gone), left);
        }
    }

    #[test]
    fn ranges_merge_where_they_meet() {
        let ranges = with(&[10..20, 30..40], vec![20..25, 50..60]);
        assert_eq!(ranges, [10..25, 30..40, 50..60]);
        assert_eq!(with(&ranges, vec![0..35, 40..45]), [0..45, 50..60]);
    }

    #[test]
    fn pieces_make_up_the_range() {
        for range in [7..8, 0..PIECE_BLOCKS_MIN + 1, 3..3 + 1000 * PIECE_BLOCKS_MIN] {
            let all: Vec<_> = pieces(&range).collect();
            assert!(all.len() <= usize::try_from(PIECES).unwrap(), "{all:?}");
            assert_eq!(joined(all.into_iter()), [range]);
        }
    }
}
