//! Slices: decides when a node takes frames of other nodes for the blocks that it misses.
//!
//! The cache has a slice of frames on each node, and a block that a node misses goes to that node's slice. Slices of fixed size lose
//! hits where nodes do not use equally much: eight equal slices took a trace of a database from 67.7 % of hits to 60.4. A frame cannot
//! move to another node, so a slice that is too small sends some of its misses to the slices of others, which evict for them; these
//! frames count as stolen. There they compete with that node's own blocks, and the hot ones stay.
//!
//! - Who: a node gains by more frames as its blocks *return*: a ghost that is hit was evicted too early. A node takes frames from
//!   another one when it has [`GAIN_TAKE`] times as many returns for each frame, and [`PRESSURE_TAKE_PERCENT`] as many misses; and it
//!   goes on until it has fewer returns, or fewer misses. A scan misses much, but nothing of it returns: it stays in its own slice.
//! - How many: as many as make the misses that come to each frame equal, so that a block stays equally long in each of these slices,
//!   as it would in one cache.
//! - From whom: from all for whom that holds, the nearest first.
//!
//! A period is over when as many blocks were missed as a [`PERIOD_PART`] of all frames: longer ones follow too late, in shorter ones
//! chance decides.
//!
//! Invariants: without clock and randomness; ties break by the lowest number.
//! Cost: the square of the number of slices in a period; [`Loans::take`] takes constant time.
//! Source: Jericho divides the buffers of a node's memory into slices; taking by marginal gain is this project's own.

use alloc::vec;
use alloc::vec::Vec;

/// Part of all frames for which blocks are missed in a period.
pub const PERIOD_PART: u64 = 16;
/// Returns for each frame, of those of the other node, from which on a node takes its frames.
const GAIN_TAKE: u64 = 2;
/// Misses for each frame, in percent of those of the other node, from which on a node takes its frames.
const PRESSURE_TAKE_PERCENT: u64 = 125;
/// A node takes no frames when fewer of its misses return: a scan meets some ghosts by chance.
const RETURNED_MIN_PERCENT: u64 = 1;

/// A slice, and what the CPUs of its node did in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Frames of the slice.
    pub frames: u64,
    /// Frames of it without a block.
    pub free: u64,
    /// Blocks that CPUs of the node missed, whichever slice they went to.
    pub misses: u64,
    /// Those of them whose ghost was there.
    pub returned: u64,
}

/// All slices, by number.
#[derive(Debug)]
pub struct Slices {
    /// By slice, the others from near to far.
    nearest: Vec<Vec<usize>>,
    /// By slice that takes, then by slice that gives.
    is_taking: Vec<Vec<bool>>,
    /// Sums of the period so far.
    sums: Vec<Use>,
}

/// Frames of other slices that a node may take in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loans {
    /// Slice and frames, the nearest slice last.
    left: Vec<(usize, u64)>,
    /// Frames lent in all, of so many misses.
    lent: u64,
    misses: u64,
    /// `lent` times the misses since the last loan, below `misses`.
    due: u64,
}

impl Slices {
    /// Slices that take nothing from each other. `distances[a][b]` is what orders nodes as the latency from node `a` to memory of
    /// node `b` does.
    ///
    /// # Panics
    /// When the matrix is not square.
    #[must_use]
    pub fn new(distances: &[Vec<u32>]) -> Self {
        let count = distances.len();
        let nearest = distances.iter().enumerate().map(|(slice, row)| {
            assert_eq!(row.len(), count, "a column for each slice");
            let mut others: Vec<usize> = (0..count).filter(|other| *other != slice).collect();
            others.sort_by_key(|other| (row[*other], *other));
            others
        });
        Self {
            nearest: nearest.collect(),
            is_taking: vec![vec![false; count]; count],
            sums: vec![Use::default(); count],
        }
    }

    /// Adds what happened since the last call; `None` until the period is over, then what each node may take in the next one.
    ///
    /// # Panics
    /// When there is not one `Use` for each slice.
    pub fn note(&mut self, since: &[Use]) -> Option<Vec<Loans>> {
        assert_eq!(since.len(), self.sums.len(), "one use for each slice");
        for (sum, since) in self.sums.iter_mut().zip(since) {
            *sum = Use {
                misses: sum.misses + since.misses,
                returned: sum.returned + since.returned,
                ..*since
            };
        }
        let all = |count: fn(&Use) -> u64| self.sums.iter().map(count).sum::<u64>();
        if all(|slice| slice.misses) * PERIOD_PART < all(|slice| slice.frames).max(1) {
            return None;
        }
        let count = self.sums.len();
        let period = core::mem::replace(&mut self.sums, vec![Use::default(); count]);
        Some(self.decide(&period))
    }

    fn decide(&mut self, period: &[Use]) -> Vec<Loans> {
        // Misses that come to each slice; those for which it has free frames evict nothing.
        let mut coming: Vec<u64> = period
            .iter()
            .map(|slice| slice.misses.saturating_sub(slice.free))
            .collect();
        let mut loans = vec![Loans::default(); period.len()];
        // Nodes that gain most take first.
        let mut takers: Vec<usize> = (0..period.len()).collect();
        takers.sort_by(|one, other| gain(&period[*other], &period[*one]).then(one.cmp(other)));
        for taker in takers {
            let own = coming[taker];
            let givers = self.givers(taker, period, &coming);
            let shares = level(taker, &givers, period, &mut coming);
            // The nearest last, where `take` begins.
            let order = self.nearest[taker].iter().rev();
            let left = order
                .filter_map(|giver| shares.iter().find(|(of, _)| of == giver))
                .copied();
            loans[taker] = Loans::new(left.collect(), own);
        }
        loans
    }

    /// Slices that a node takes from, now.
    fn givers(&mut self, taker: usize, period: &[Use], coming: &[u64]) -> Vec<usize> {
        let of = &period[taker];
        let may_take = of.returned * 100 >= of.misses * RETURNED_MIN_PERCENT && of.returned > 0;
        let takes = |giver: usize, was: bool| {
            let from = &period[giver];
            let (gain, percent) = if was {
                (1, 100)
            } else {
                (GAIN_TAKE, PRESSURE_TAKE_PERCENT)
            };
            let gains = wide(of.returned) * wide(from.frames) > wide(gain) * wide(from.returned) * wide(of.frames);
            let presses =
                100 * wide(coming[taker]) * wide(from.frames) > wide(percent) * wide(coming[giver]) * wide(of.frames);
            may_take && from.frames > 0 && gains && presses
        };
        for giver in 0..period.len() {
            self.is_taking[taker][giver] = giver != taker && takes(giver, self.is_taking[taker][giver]);
        }
        (0..period.len())
            .filter(|giver| self.is_taking[taker][*giver])
            .collect()
    }
}

/// Divides the misses that come to a slice so that as many come to each frame of it and of those that give; returns how many go to each
/// of these.
fn level(taker: usize, givers: &[usize], period: &[Use], coming: &mut [u64]) -> Vec<(usize, u64)> {
    let (mut misses, mut frames) = (wide(coming[taker]), wide(period[taker].frames));
    let mut givers = givers.to_vec();
    let is_less = |misses: u128, frames: u128, giver: usize, coming: &[u64]| {
        wide(coming[giver]) * frames < misses * wide(period[giver].frames)
    };
    // Those to which least comes first: each one lowers the level, and those that are above it take nothing.
    givers.sort_by(|one, other| {
        let pressure = |slice: usize, of: usize| wide(coming[slice]) * wide(period[of].frames);
        pressure(*one, *other).cmp(&pressure(*other, *one)).then(one.cmp(other))
    });
    givers.retain(|giver| {
        let gives = is_less(misses, frames, *giver, coming);
        if gives {
            misses += wide(coming[*giver]);
            frames += wide(period[*giver].frames);
        }
        gives
    });
    let shares = givers.into_iter().map(|giver| {
        let share = misses * wide(period[giver].frames) / frames;
        // It is at most what came to all of them.
        let share = u64::try_from(share).unwrap_or(u64::MAX) - coming[giver];
        coming[giver] += share;
        coming[taker] -= share;
        (giver, share)
    });
    shares.filter(|(_, share)| *share > 0).collect()
}

/// Compares the returns for each frame.
fn gain(one: &Use, other: &Use) -> core::cmp::Ordering {
    (wide(one.returned) * wide(other.frames)).cmp(&(wide(other.returned) * wide(one.frames)))
}

fn wide(count: u64) -> u128 {
    u128::from(count)
}

impl Loans {
    fn new(left: Vec<(usize, u64)>, misses: u64) -> Self {
        let lent = left.iter().map(|(_, frames)| frames).sum();
        Self {
            left,
            lent,
            misses,
            due: 0,
        }
    }

    /// Slice that gives the frame for a block that the node misses; `None` for its own. Loans are spread over as many misses as the last
    /// period had.
    pub fn take(&mut self) -> Option<usize> {
        if self.left.is_empty() {
            return None;
        }
        self.due += self.lent;
        if self.due < self.misses {
            return None;
        }
        self.due -= self.misses;
        let (slice, frames) = self.left.last_mut()?;
        let slice = *slice;
        *frames -= 1;
        if *frames == 0 {
            self.left.pop();
        }
        Some(slice)
    }

    /// Slices that lend, the nearest first, with the frames that are left.
    pub fn left(&self) -> impl Iterator<Item = (usize, u64)> {
        self.left.iter().rev().copied()
    }
}
