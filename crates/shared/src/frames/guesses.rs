//! Frames that blocks are likely to have, so that a copy can be announced while the block's own word is still on its way from memory.
//!
//! Most blocks of a run have frames that lie one behind the other, as the blocks do. For each run there is the frame of its first block, if all lay so,
//! and votes above it: a frame that is filled gives one, or takes one away, and where there are none its own place is next (Boyer and Moore's
//! majority). Cost: a sixty-fourth of the words, which a processor's cache holds when it does not hold these. Nothing but speed hangs on a guess: how
//! soon a copy begins, and where a frame is taken.

// Not the atomics of a model: no thread waits for what is here, nor is told anything.
use core::sync::atomic::{AtomicU32, Ordering};

pub(super) const RUN: u64 = 64;
const FRAME: u32 = super::FRAME;
const VOTE: u32 = FRAME + 1;
const VOTES_MAX: u32 = u32::MAX / VOTE;
/// Votes from which on a guess is good.
const ENOUGH: u32 = 8;

/// Guesses for all blocks of a disk.
#[derive(Debug)]
pub(super) struct Guesses(Box<[AtomicU32]>);

impl Guesses {
    pub(super) fn new(blocks: u64) -> Option<Self> {
        let runs = usize::try_from(blocks.div_ceil(RUN)).ok()?;
        bytemuck::try_zeroed_slice_box(runs).ok().map(Self)
    }

    /// Gives their memory back.
    pub(super) fn clear(&self) {
        super::give_back(&self.0);
    }

    #[inline(always)]
    fn of(&self, at: u64) -> Option<(&AtomicU32, u32)> {
        let run = self.0.get(usize::try_from(at / RUN).ok()?)?;
        Some((run, (at % RUN) as u32))
    }

    /// Replaces a run's guess by one vote: a block has this frame.
    pub(super) fn reserve(&self, at: u64, frame: u32) {
        if let Some((run, nth)) = self.of(at) {
            run.store(frame.wrapping_sub(nth) & FRAME | VOTE, Ordering::Relaxed);
        }
    }

    /// Notes that a block has this frame from now on.
    pub(super) fn note(&self, at: u64, frame: u32) {
        let Some((run, nth)) = self.of(at) else { return };
        // Relaxed, and no exchange, here and below: a vote that is lost is only a vote.
        let word = run.load(Ordering::Relaxed);
        let first = frame.wrapping_sub(nth) & FRAME;
        let next = match word / VOTE {
            0 => first | VOTE,
            VOTES_MAX if word & FRAME == first => return,
            _ if word & FRAME == first => word + VOTE,
            _ => word - VOTE,
        };
        run.store(next, Ordering::Relaxed);
    }

    /// The frame of a block if its run's guess is right, with however few votes.
    pub(super) fn beside(&self, at: u64) -> Option<u32> {
        let (run, nth) = self.of(at)?;
        let word = run.load(Ordering::Relaxed);
        (word >= VOTE).then_some(word.wrapping_add(nth) & FRAME)
    }

    /// The frame that a block is likely to have.
    #[inline(always)]
    pub(super) fn get(&self, at: u64) -> Option<u32> {
        let (run, nth) = self.of(at)?;
        let word = run.load(Ordering::Relaxed);
        (word >= ENOUGH * VOTE).then_some(word.wrapping_add(nth) & FRAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_runs_are_guessed_despite_other_accesses() {
        let guesses = Guesses::new(200).unwrap();
        assert_eq!(guesses.get(70), None);
        (64..84).for_each(|at| guesses.note(at, 1000 + u32::try_from(at).unwrap()));
        // Also blocks that were not noted, and beside a few that lie elsewhere.
        (100..104).for_each(|at| guesses.note(at, 7));
        assert_eq!([64, 90, 127].map(|at| guesses.get(at)), [1064, 1090, 1127].map(Some));
        assert_eq!([63, 128, 199, 5000].map(|at| guesses.get(at)), [None; 4]);
        // Another place has most of them in the end.
        (64..128).for_each(|at| guesses.note(at, u32::try_from(at).unwrap() - 64));
        assert_eq!(guesses.get(65), Some(1));
    }

    #[test]
    fn frames_in_the_middle_of_a_run_are_guessed_too() {
        let guesses = Guesses::new(64).unwrap();
        (5..30).for_each(|at| guesses.note(at, u32::try_from(at).unwrap() - 5));
        assert_eq!(guesses.get(5), Some(0));
        // There is no such frame.
        assert_eq!(guesses.get(4), Some(FRAME));
    }

    #[test]
    fn blocks_of_a_reserved_run_lie_beside_each_other() {
        let guesses = Guesses::new(64).unwrap();
        assert_eq!(guesses.beside(3), None);
        guesses.reserve(40, 1040);
        assert_eq!(
            ([3, 63].map(|at| guesses.beside(at)), guesses.get(3)),
            ([1003, 1063].map(Some), None)
        );
        // Those that find no room there, while as many are there, do not change it.
        (0..20).for_each(|at| guesses.note(at, 1000 + u32::try_from(at).unwrap()));
        (20..30).for_each(|at| guesses.note(at, 7));
        assert_eq!(guesses.beside(50), Some(1050));
        (0..6).for_each(|at| guesses.note(at, 7));
        assert_ne!(guesses.beside(50), Some(1050));
    }

    #[test]
    fn frames_in_any_order_are_not_guessed() {
        let guesses = Guesses::new(64).unwrap();
        for at in 0..64 {
            guesses.note(at, u32::try_from(at * 37 % 64).unwrap());
            assert_eq!(guesses.get(at), None);
        }
    }
}
