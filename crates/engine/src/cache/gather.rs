//! Blocks of the main queue are moved together, so that frames of streams come back in whole runs.
//!
//! A block that is used again and again stays for long, and breaks the run of frames that it lies in. Where large requests find no runs, the thread
//! that tends the slice takes two runs with such blocks, and moves those of the run that has fewer to the other one: there to frames that are free or in
//! probation. The run that has some left is the next one's counterpart. Each run thus becomes full of such blocks, or free of them.
//!
//! A move is an eviction, and a fill whose bytes are those of the old frame: no thread uses a block that is cool and out of use, and threads that want it
//! wait for the copy. A block stays where it is when it is dirty, or used again within two epochs. Its place in the order, and whether it was
//! used, stay as they are.
//!
//! Cost: nothing as long as large requests find runs. Otherwise [`RUNS_MAX`] runs are looked at and [`MOVES_MAX`] blocks moved each time that a thread
//! tends the slice, and up to three epochs begin.

use super::free::RUN;
use super::space::{Slice, Space};
use super::{Cache, Cached, Disk};
use crate::{Block, Disks};
use homenode_shared::Cooled;
use std::sync::atomic::{Ordering, fence};

/// Most runs that are looked at, and most blocks that are moved, at a time: 1 MiB.
const RUNS_MAX: u32 = 64;
const MOVES_MAX: usize = 256;
/// Blocks that are moved between two times that the slice is locked.
const BATCH: usize = 16;

/// Blocks of a slice that are about to be moved, by numbers of frames within the slice.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// A large request has found no run.
    is_wanted: bool,
    /// Run to look at next.
    next: u32,
    /// Run that has some blocks that stay, and room for others.
    held: Option<u32>,
    moves: Vec<Move>,
    /// Epoch in which the last frame of `moves` became cool.
    epoch: u32,
}

impl Gather {
    /// Notes that a large request has found no run.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }
}

#[derive(Clone, Copy, Debug)]
struct Move {
    from: u32,
    to: u32,
    /// Whether it was hot before it was made cool for the move.
    was_hot: bool,
}

/// Frames of a run, a bit each.
#[derive(Clone, Copy, Debug)]
struct Run {
    number: u32,
    /// Frames whose blocks stay.
    staying: u64,
    /// Frames that are free or in probation.
    places: u64,
}

impl Run {
    fn new(space: &Space, number: u32) -> Self {
        let bits = |is_meant: &dyn Fn(u32) -> bool| {
            let all = (0..RUN).filter(|nth| is_meant(number * RUN + nth));
            all.fold(0, |bits, nth| bits | 1 << nth)
        };
        Self {
            number,
            staying: bits(&|frame| space.order.is_main(frame)),
            places: bits(&|frame| space.order.may_go_early(frame)),
        }
    }

    fn has_both(&self) -> bool {
        self.staying != 0 && self.places != 0
    }

    /// Takes the first frame out of some of its bits.
    fn take(number: u32, bits: &mut u64) -> Option<u32> {
        let nth = (*bits != 0).then(|| bits.trailing_zeros())?;
        *bits &= *bits - 1;
        Some(number * RUN + nth)
    }
}

impl Cache {
    /// Chooses blocks to move, and makes them cool.
    fn plan(&self, slice: &Slice, space: &mut Space) {
        let runs = slice.frames / RUN;
        let held = space.gather.held.take().map(|held| Run::new(space, held));
        let mut held = held.filter(Run::has_both);
        for _ in 0..RUNS_MAX.min(runs) {
            if space.gather.moves.len() + RUN as usize > MOVES_MAX {
                break;
            }
            let next = space.gather.next % runs;
            space.gather.next = next + 1;
            let run = Run::new(space, next);
            if run.has_both() && held.is_none_or(|held| held.number != next) {
                held = match held {
                    None => Some(run),
                    Some(held) => Some(self.pair(slice, space, held, run)).filter(Run::has_both),
                };
            }
        }
        space.gather.held = held.map(|held| held.number);
        space.gather.epoch = self.epochs.now();
    }

    /// Plans moves from the run of two that has fewer blocks that stay to the other one; gives the run that is neither full nor empty then.
    fn pair(&self, slice: &Slice, space: &mut Space, one: Run, other: Run) -> Run {
        let is_fewer = one.staying.count_ones() < other.staying.count_ones();
        let (mut from, mut to) = if is_fewer { (one, other) } else { (other, one) };
        while to.places != 0
            && let Some(frame) = Run::take(from.number, &mut from.staying)
        {
            let was_hot = match self.cool_to_move(slice, frame) {
                Cooled::Now => true,
                Cooled::Before => false,
                Cooled::Busy | Cooled::Gone => continue,
            };
            let place = Run::take(to.number, &mut to.places).expect("looked at above");
            to.staying |= 1 << (place % RUN);
            space.gather.moves.push(Move {
                from: frame,
                to: place,
                was_hot,
            });
        }
        if from.staying == 0 { to } else { from }
    }

    fn cool_to_move(&self, slice: &Slice, frame: u32) -> Cooled {
        let frame = slice.first + frame;
        match self.owned(slice, frame) {
            Some((disk, at)) => disk.index.cool(at, frame, |frame| self.stamp(frame)),
            None => Cooled::Gone,
        }
    }

    /// The block that has a frame of the order.
    fn owned(&self, slice: &Slice, frame: u32) -> Option<(&Disk, u64)> {
        let block = Block::from_raw(slice.owner(frame).block.load(Ordering::Relaxed));
        let disk = self.disks[usize::from(block.member().0)].get()?;
        Some((disk, block.index()))
    }

    /// Takes the frame that a block is to be moved to, and the block from its old one; `None` when one of both cannot be.
    fn begin_move(&self, slice: &Slice, space: &mut Space, Move { from, to, was_hot }: Move) -> Option<Moving<'_>> {
        if !space.order.is_main(from) {
            return None;
        }
        let (old, new) = (slice.first + from, slice.first + to);
        let (disk, at) = self.owned(slice, old)?;
        let has_place = space.free.take_this(to) || {
            let victim = space
                .order
                .evict_early(to, &mut |frame| self.look(slice, slice.first + frame));
            victim.inspect(|victim| self.remember(slice, *victim)).is_some()
        };
        let is_out_of_use = || self.epochs.is_over(slice.owner(old).stamp.load(Ordering::Relaxed));
        if has_place {
            slice.owner(new).give(disk.block(at));
        }
        if !has_place || !disk.index.begin_move(at, old, new, is_out_of_use) {
            if has_place {
                space.free.put(to);
            }
            // It was used.
            if was_hot {
                let _ = disk.index.warm(at);
            }
            return None;
        }
        space.order.replace(from, to);
        Some(Moving {
            cache: self,
            disk,
            at,
            old,
            new,
            is_cool: !was_hot,
            is_copied: false,
        })
    }
}

/// A block that is being moved. Dropping shows it in its new frame if it was copied, and else takes both away: it is clean.
struct Moving<'a> {
    cache: &'a Cache,
    disk: &'a Disk,
    at: u64,
    old: u32,
    new: u32,
    is_cool: bool,
    is_copied: bool,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let Self { cache, disk, at, .. } = *self;
        if self.is_copied && disk.index.end_fill(at, self.new) {
            if self.is_cool {
                disk.index.cool(at, self.new, |frame| cache.stamp(frame));
            }
        } else {
            disk.index.give_up(at, self.new);
            cache.give_back(self.new);
        }
        cache.give_back(self.old);
        disk.ending.tell();
    }
}

impl<M: Disks> Cached<M> {
    /// Moves some blocks of a slice where large requests have found no run.
    pub(super) fn gather(&self, cache: &Cache, slice: usize) {
        let slice = &cache.slices[slice];
        let epoch = {
            let mut space = slice.space.lock();
            if space.gather.moves.is_empty() && std::mem::take(&mut space.gather.is_wanted) {
                cache.plan(slice, &mut space);
            }
            if space.gather.moves.is_empty() {
                return;
            }
            space.gather.epoch
        };
        for _ in 0..3 {
            if !cache.epochs.is_over(epoch) {
                cache.epochs.advance(&cache.slots);
            }
        }
        // Some thread is inside for long: next time.
        if !cache.epochs.is_over(epoch) {
            return;
        }
        loop {
            // Dropped behind the lock, which their drop takes.
            let mut begun: Vec<Moving<'_>> = Vec::with_capacity(BATCH);
            let mut space = slice.space.lock();
            let left = space.gather.moves.len().saturating_sub(BATCH);
            let batch = space.gather.moves.split_off(left);
            if batch.is_empty() {
                break;
            }
            begun.extend(
                batch
                    .into_iter()
                    .filter_map(|next| cache.begin_move(slice, &mut space, next)),
            );
            drop(space);
            for mut moving in begun {
                // As in `Disk::begin_reads`: it is seen here that the disk is gone, or the block is found and forgotten.
                fence(Ordering::SeqCst);
                if !moving.disk.is_gone.load(Ordering::Relaxed) {
                    let copied = self.below.copy(cache.block(moving.old), cache.block(moving.new), 1);
                    moving.is_copied = copied.is_ok();
                }
            }
        }
    }
}
