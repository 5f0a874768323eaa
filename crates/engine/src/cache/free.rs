//! Free frames of a slice, chosen so that blocks lie in frames as on the disk.
//!
//! The first block of a run reserves [`RUN`] adjacent frames, while there are that many. Each later block of the run gets its place among them, in
//! whatever order they come. Other blocks may take these places where they find none of their own. So it can be guessed where a block is
//! ([`FrameIndex::guess`]), and neighbours are read and written by one request. FreeBSD reserves large pages in this way. Blocks of a large request
//! reserve anew where those reserved before are taken.
//!
//! Cost: a bit a frame, and 10 bytes a run; constant time, amortised. Blocks that are alone in their runs lie far apart: on as many large pages.

use homenode_shared::FrameIndex;
use std::collections::VecDeque;
use std::ops::Range;

/// Frames of a run: bits of a word.
pub(super) const RUN: u32 = u64::BITS;
const _: () = assert!(FrameIndex::RUN == RUN as u64);

/// Which frames have no block.
#[derive(Debug)]
pub(super) struct Free {
    /// A bit for each frame, a word for each run.
    words: Box<[u64]>,
    /// Runs that may be free as a whole, and runs that may have a free frame. No such run is missing; an entry may be out of date.
    whole: VecDeque<u32>,
    /// About in the order in which they came back: so those of a stream stay adjacent.
    some: VecDeque<u32>,
    listed: Box<[Listed]>,
    count: usize,
}

/// Whether a run is in each list.
#[derive(Clone, Copy, Debug)]
struct Listed {
    whole: bool,
    some: bool,
}

/// A frame that was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) frame: u32,
    /// Whether the frames beside it are reserved for the other blocks of its run.
    pub(super) is_reserved: bool,
}

impl Free {
    /// All of so many frames are free.
    pub(super) fn new(frames: u32) -> Self {
        let (runs, whole) = (frames.div_ceil(RUN), frames / RUN);
        let mut words = vec![u64::MAX; runs as usize];
        if let Some(last) = words.get_mut(whole as usize) {
            *last = (1 << (frames % RUN)) - 1;
        }
        let listed = |run| Listed {
            whole: run < whole,
            some: true,
        };
        Self {
            words: words.into(),
            // The first are taken first.
            whole: (0..whole).collect(),
            some: (0..runs).collect(),
            listed: (0..runs).map(listed).collect(),
            count: frames as usize,
        }
    }

    /// Memory for each frame, at most.
    pub(super) const BYTES: usize = 1;

    /// How many are free.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Gives a frame back that [`Free::take`] gave.
    ///
    /// # Panics
    /// When it is free already.
    pub(super) fn put(&mut self, frame: u32) {
        let run = frame / RUN;
        let word = &mut self.words[run as usize];
        assert_eq!(*word & 1 << (frame % RUN), 0, "frame {frame} is free already");
        *word |= 1 << (frame % RUN);
        self.count += 1;
        let listed = &mut self.listed[run as usize];
        if !std::mem::replace(&mut listed.some, true) {
            self.some.push_back(run);
        }
        if *word == u64::MAX && !std::mem::replace(&mut listed.whole, true) {
            self.whole.push_back(run);
        }
    }

    /// A frame for the block at `at` of a disk, if there is one, the first of these that is free: `beside`, which is beside those of its run; where
    /// there are no such, or the block `reserves`, its place in a run that is all free; `next`; any.
    pub(super) fn take(&mut self, at: u64, beside: Option<u32>, next: Option<u32>, reserves: bool) -> Option<Taken> {
        let is_free = |frame: &u32| self.is_free(*frame);
        let (beside_free, next) = (beside.filter(is_free), next.filter(is_free));
        let may_reserve = beside.is_none() || reserves && beside_free.is_none();
        let reserved = if may_reserve { self.of_whole(at, next) } else { None };
        let frame = beside_free.or(reserved).or(next).or_else(|| self.any())?;
        self.take_this(frame);
        Some(Taken {
            frame,
            is_reserved: reserved.is_some(),
        })
    }

    fn is_free(&self, frame: u32) -> bool {
        let word = self.words.get((frame / RUN) as usize);
        word.is_some_and(|word| word & 1 << (frame % RUN) != 0)
    }

    /// Takes this frame; false when it is not free.
    pub(super) fn take_this(&mut self, frame: u32) -> bool {
        let is_free = self.is_free(frame);
        if is_free {
            self.words[(frame / RUN) as usize] &= !(1 << (frame % RUN));
            self.count -= 1;
        }
        is_free
    }

    /// The frames of a frame's run; the last run may have fewer.
    pub(super) fn run_of(frame: u32) -> Range<u32> {
        let first = frame / RUN * RUN;
        first..first + RUN
    }

    /// The place of a block in a run that is all free: that of `next` if possible.
    fn of_whole(&mut self, at: u64, next: Option<u32>) -> Option<u32> {
        let place = (at % FrameIndex::RUN) as u32;
        let is_whole = |words: &[u64], run: u32| words[run as usize] == u64::MAX;
        if let Some(next) = next.filter(|next| next % RUN == place && is_whole(&self.words, next / RUN)) {
            return Some(next);
        }
        while let Some(run) = self.whole.pop_front() {
            self.listed[run as usize].whole = false;
            if is_whole(&self.words, run) {
                return Some(run * RUN + place);
            }
        }
        None
    }

    /// Any frame; the list decides of which run.
    fn any(&mut self) -> Option<u32> {
        while let Some(run) = self.some.front() {
            let word = self.words[*run as usize];
            if word != 0 {
                return Some(run * RUN + word.trailing_zeros());
            }
            self.listed[*run as usize].some = false;
            self.some.pop_front();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn frame(taken: Option<Taken>) -> Option<u32> {
        taken.map(|taken| taken.frame)
    }

    #[test]
    fn blocks_of_a_run_lie_as_they_do_on_the_disk() {
        let mut free = Free::new(256);
        let first = free.take(40, None, None, false).unwrap();
        assert_eq!((first.frame % RUN, first.is_reserved), (40, true));
        let other = free.take(3, None, Some(first.frame + 1), false).unwrap();
        assert!(other.is_reserved && other.frame / RUN != first.frame / RUN);
        let beside = first.frame - 33;
        assert_eq!(frame(free.take(7, Some(beside), None, false)), Some(beside));
        // Where that is taken no other run is broken for it.
        let next = first.frame + 1;
        let taken = free.take(7, Some(beside), Some(next), false).unwrap();
        assert_eq!((taken.frame, taken.is_reserved), (next, false));
        assert!(!free.take(7, Some(beside), Some(next), false).unwrap().is_reserved);
        // A large request breaks one.
        assert!(free.take(7, Some(beside), Some(next), true).unwrap().is_reserved);
    }

    #[test]
    fn a_run_that_is_free_again_is_a_run_again() {
        let mut free = Free::new(64);
        let all: Vec<u32> = (0..64)
            .map(|at| frame(free.take(at.into(), Some(at), None, false)).unwrap())
            .collect();
        assert_eq!(free.take(0, None, None, false), None);
        all.into_iter().rev().for_each(|frame| free.put(frame));
        assert_eq!(frame(free.take(9, None, None, false)), Some(9));
    }

    proptest! {
        /// Beside a set: each free frame is given once, and one is given as long as there is one.
        #[test]
        fn each_frame_is_free_or_taken(
            frames in 1u32..300,
            steps in prop::collection::vec((any::<bool>(), any::<u32>(), prop::option::of(0u32..320)), 0..800),
        ) {
            let (mut free, mut taken) = (Free::new(frames), BTreeSet::new());
            for (takes, nth, wanted) in steps {
                if takes && nth % 5 == 0 && let Some(wanted) = wanted {
                    let is_free = wanted < frames && taken.insert(wanted);
                    prop_assert_eq!(free.take_this(wanted), is_free);
                } else if takes {
                    let was_free = wanted.filter(|frame| *frame < frames && !taken.contains(frame));
                    let (beside, next) = if nth % 2 == 0 { (wanted, None) } else { (None, wanted) };
                    match free.take(nth.into(), beside, next, nth % 3 == 0) {
                        Some(Taken { frame, is_reserved }) => {
                            prop_assert!(frame < frames && taken.insert(frame));
                            prop_assert!(is_reserved || was_free.is_none_or(|wanted| wanted == frame));
                        }
                        None => prop_assert_eq!(taken.len(), frames as usize),
                    }
                } else if let Some(frame) = taken.iter().nth(nth as usize % taken.len().max(1)).copied() {
                    taken.remove(&frame);
                    free.put(frame);
                }
                prop_assert_eq!(free.len() + taken.len(), frames as usize);
            }
        }
    }
}
