//! Completion of reads. One thread at a time takes a disk's completions; others sleep until it has reported some or left.
//!
//! A *marked* block stays filling after its read until a thread wants it; that thread then starts the next read-ahead.
//!
//! Invariant: sleepers are woken when a block is filled or given up, when a read begins or its turn is unused, and when no thread takes completions.

use super::{Cache, Cached, Disk};
use crate::{Disks, MemberId, MemoryError};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Most blocks of a disk that are kept back.
const KEPT_MAX: usize = 16;
/// Times that a thread looks whether a block is there before it sleeps.
const LOOKS: u32 = 20;

/// Ends of a disk's reads: the thread that takes them, the threads that sleep, and the blocks kept back.
#[derive(Debug, Default)]
pub(super) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug, Default)]
struct State {
    /// Somebody takes ends.
    is_taking: bool,
}

/// A block that is kept back.
#[derive(Clone, Copy, Debug)]
struct Kept {
    at: u64,
    frame: u32,
    is_cool: bool,
}

impl Ending {
    /// Wakes those who sleep, after something has changed for them.
    pub(super) fn tell(&self) {
        // Either a thread that is about to sleep is counted here, or it sees the change.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // Between its last look and its sleep it has the lock.
            drop(self.state.lock());
            self.changed.notify_all();
        }
    }
}

impl Cache {
    /// Keeps a block back that was read into a frame.
    pub(super) fn keep_back(&self, disk: &Disk, at: u64, (frame, is_cool): (u32, bool)) {
        let mut kept = disk.ending.kept.lock();
        kept.push_back(Kept { at, frame, is_cool });
        let oldest = if kept.len() > KEPT_MAX { kept.pop_front() } else { None };
        drop(kept);
        if let Some(oldest) = oldest {
            self.show(disk, oldest);
        }
    }

    /// Shows a block if it was kept back; whether it was.
    fn show_kept(&self, disk: &Disk, at: u64) -> bool {
        let mut all = disk.ending.kept.lock();
        let found = all.iter().position(|kept| kept.at == at);
        let kept = found.and_then(|found| all.remove(found));
        drop(all);
        if let Some(kept) = kept {
            self.show(disk, kept);
        }
        kept.is_some()
    }

    fn show(&self, disk: &Disk, kept: Kept) {
        self.end_run(disk, kept.at, &[(kept.frame, kept.is_cool)], true);
    }
}

impl<M: Disks> Cached<M> {
    /// Waits while somebody reads a block, and takes part in telling the ends of reads.
    ///
    /// # Errors
    /// [`MemoryError`] when that read has failed.
    pub(super) fn wait_for_others(&self, (cache, disk): (&Cache, &Disk), at: u64) -> Result<(), MemoryError> {
        let before = disk.unread.lock().count();
        let is_filling = || disk.index.is_filling(at);
        let mut looks = 0;
        // The thread with the turn keeps it until its block is there: sleepers are woken when a read has ended, not every 2 ms.
        let mut turn = None;
        while is_filling() && !cache.show_kept(disk, at) {
            looks += 1;
            if let Some(has_come) = self.take_in_turn((cache, disk), &mut turn) {
                if !has_come && let Some(frame) = self.below.left_frame(disk.block(at)) {
                    // The thread that began it may sleep for ever in a call of its own. The late read finds the word changed, and gives the frame back.
                    disk.index.give_up(at, frame);
                    turn = None;
                    disk.ending.tell();
                    self.fill_one((cache, disk), disk.home, at)?;
                }
                continue;
            }
            if looks < LOOKS {
                std::thread::yield_now();
            } else {
                let is_kept = || disk.ending.kept.lock().iter().any(|kept| kept.at == at);
                self.sleep(disk, || is_filling() && !is_kept());
            }
        }
        let has_failed = looks > 0 && !disk.index.has_frame(at) && disk.unread.lock().met(before, &(at..at + 1));
        if has_failed { Err(MemoryError) } else { Ok(()) }
    }

    /// Tells the ends of reads that have ended, if nobody else does; and shows block `at` if it is kept back. Never waits.
    pub(super) fn end_reads(&self, (cache, disk): (&Cache, &Disk), at: u64) {
        if !cache.show_kept(disk, at) {
            self.take_ends((cache, disk), false);
        }
    }

    /// Waits until all reads of a disk have ended that were begun for those who went on, and shows what is kept back. None is begun any more.
    pub fn end_all_reads_of(&self, member: MemberId) {
        let Some((cache, disk)) = self.disk(member) else { return };
        while self.below.has_reads(member) {
            if self.take_ends((cache, disk), true).is_none() {
                std::thread::yield_now();
            }
        }
        // Who found blocks away a while ago may have begun one just now.
        self.below.close_reads(member, &mut |fetch| cache.give_up(disk, &fetch));
        let kept = std::mem::take(&mut *disk.ending.kept.lock());
        kept.into_iter().for_each(|kept| cache.show(disk, kept));
    }

    /// [`Cached::end_reads`] of all disks.
    pub(super) fn end_all_reads(&self, cache: &Cache) {
        let members = cache.members.lock().clone();
        for (_, disk) in members.iter().filter_map(|member| self.disk(*member)) {
            self.take_ends((cache, disk), false);
        }
    }

    /// Takes ends, and waits for one if it `waits`; `None` when somebody else does, or no read is under way.
    fn take_ends(&self, (cache, disk): (&Cache, &Disk), waits: bool) -> Option<()> {
        let _turn = self.turn_to_take(disk)?;
        self.take((cache, disk), waits);
        Some(())
    }

    /// Waits for ends in the caller's turn, which is kept for the next time, and returns whether one has come; `None`, without the turn, where somebody else
    /// has it, or no read is under way. Whoever sleeps or returns has given it back.
    pub(super) fn take_in_turn<'a>(
        &self,
        (cache, disk): (&Cache, &'a Disk),
        turn: &mut Option<Taking<'a>>,
    ) -> Option<bool> {
        *turn = turn.take().or_else(|| self.turn_to_take(disk));
        if !self.below.has_reads(disk.member) {
            *turn = None;
        }
        turn.is_some().then(|| self.take((cache, disk), true))
    }

    /// The turn to take ends; `None` when somebody else has it, or no read is under way.
    fn turn_to_take<'a>(&self, disk: &'a Disk) -> Option<Taking<'a>> {
        let is_free =
            self.below.has_reads(disk.member) && !std::mem::replace(&mut disk.ending.state.lock().is_taking, true);
        is_free.then(|| Taking(&disk.ending))
    }

    /// Takes ends, in the caller's turn, and waits for one if it `waits`. Returns whether there was one.
    fn take(&self, (cache, disk): (&Cache, &Disk), waits: bool) -> bool {
        let mut has_come = false;
        self.below.take_reads(disk.member, waits, &mut |fetch, is_read| {
            has_come = true;
            self.end_begun((cache, disk), &fetch, is_read);
        });
        has_come
    }

    /// Sleeps until something has changed, or there is something else to do for a thread that waits while `is_waiting`.
    pub(super) fn sleep(&self, disk: &Disk, is_waiting: impl Fn() -> bool) {
        let ending = &disk.ending;
        let mut state = ending.state.lock();
        ending.sleepers.fetch_add(1, Ordering::Relaxed);
        // See `tell`.
        fence(Ordering::SeqCst);
        if is_waiting() && (state.is_taking || !self.below.has_reads(disk.member)) {
            ending.changed.wait(&mut state);
        }
        ending.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The turn to take ends.
pub(super) struct Taking<'a>(&'a Ending);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_taking = false;
        self.0.tell();
    }
}
