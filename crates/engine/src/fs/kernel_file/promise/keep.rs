//! Promises made real where little room is left.

use super::count::Counts;
use super::{BLOCK, Clock, Error, KernelFile, MARGIN_BLOCKS, Memory, Ordering, Pool, Promise, Range, STEP_BLOCKS};
use crate::fs::{Fs, Ino, Inode};
use std::time::Duration;

/// Most effort between two looks at the room. A single file may take more.
const LOOK_EFFORT: u64 = 1024;
/// Files that are copied from the list of all at once.
const PART_FILES: usize = 1024;
/// Files with promises of less than a step that get their steps in one round, in about the time of a large step.
const SMALL_FILES: usize = 64;
/// Longest wait of [`Fs::keep_promises`] for another thread that changes a file's promises, or makes them real.
pub(super) const KEEP_PATIENCE: Duration = Duration::from_millis(1);
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

impl KernelFile {
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
        match self.allocate(pool, &mut promise, blocks, promised) {
            Ok(()) => Step::More,
            Err(Error::NoSpace | Error::NoMemory) => Step::Broken(self.promise_nothing(pool, &mut promise)),
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
}

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Whether anything may be promised: [`Fs::keep_promises`] is to be called often.
    pub fn has_promises(&self) -> bool {
        !self.promising.lock().files.is_empty()
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

    /// Files to which room is promised, with the blocks, the most last. Copied by parts: calls wait for the list.
    fn promising_files(&self) -> Vec<(u64, Ino)> {
        let (mut all, mut from) = (Vec::new(), Some(Ino(0)));
        while let Some(first) = from {
            let before = all.len();
            all.extend(self.promising.lock().files.range(first..).take(PART_FILES));
            from = all[before..].last().map(|last: &Ino| Ino(last.0 + 1));
        }
        let blocks = |ino: Ino| {
            let inode = self.table.find(ino);
            let file = inode.as_deref().and_then(Inode::kernel_file);
            // Relaxed: a figure.
            file.map_or(0, |file| file.promised.load(Ordering::Relaxed))
        };
        let mut all: Vec<_> = all.into_iter().map(|ino| (blocks(ino), ino)).collect();
        all.sort_unstable();
        all
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
        let is_time = || self.pool.is_time_for_promises(MARGIN_BLOCKS);
        let was_time = is_time();
        if was_time {
            promising = self.promising_files();
        }
        // This thread would count all the time while the other one has everything to do, and maybe waits for ever.
        if !promising.iter().rev().any(|(_, ino)| self.has_promised(*ino, promised)) {
            // Forgets promises that were kept. Relaxed: only how often this is done depends on it.
            let counted_ns = self.promises_counted_ns.load(Ordering::Relaxed);
            let is_due = self.now_ns().saturating_sub(counted_ns) >= COUNT_PERIOD_NS;
            if is_due && self.count_some_promises(Counts::Look, LOOK_EFFORT, u64::MAX) {
                self.promises_counted_ns.store(self.now_ns(), Ordering::Relaxed);
            }
            return (!was_time).then_some(0);
        }
        let (mut broken, mut spent) = (0, 0);
        // Blocks that were written meanwhile need no room any more. A few counts are always worth it; the others only while there is time.
        for (_, ino) in promising.iter().rev() {
            if spent >= LOOK_EFFORT && self.pool.is_time_for_promises(0) {
                break;
            }
            spent += self.count_promise(*ino, u64::MAX);
        }
        // A step of each in turn, as the last one has as much to lose; but of few of those that have little to lose, as each takes its time.
        while !promising.is_empty() && is_time() {
            let small = promising.partition_point(|(blocks, _)| *blocks < STEP_BLOCKS);
            let mut round = promising.split_off(small.saturating_sub(SMALL_FILES));
            round.retain(|(_, ino)| {
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
            promising.append(&mut round);
        }
        if broken > 0 {
            let mut all = self.broken_promises.lock();
            let (blocks, _) = all.get_or_insert((0, self.now_ns()));
            *blocks += broken;
        }
        Some(broken)
    }

    /// Blocks that were promised and found no room so far, and the time of the first ones in nanoseconds.
    pub fn broken_promises(&self) -> Option<(u64, i64)> {
        *self.broken_promises.lock()
    }
}
