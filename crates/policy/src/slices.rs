//! Slices: decides which node's frames take the blocks that a node misses.
//!
//! The cache has a slice of frames on each node, and a block goes to the slice of the node that missed it. Slices of fixed size lose hits
//! where nodes do not use equally much: eight equal slices took a database's trace from 68 % of hits to 61. A frame cannot move to
//! another node; so a slice that is too small *takes* frames of others: these evict for it, and the block lies there. In that slice it
//! competes with the blocks of that node, and the hot ones stay. The caller counts such frames as stolen.
//!
//! - Free frames are taken first, the node's own and then the nearest: they cost nobody a block.
//! - Who may take: a node gains by more frames as its blocks *return*, that is, come back while their ghost is there. A node may take
//!   from another one when it had twice as many returns for each frame in the last period, and until it has fewer. Nothing
//!   of a scan returns, so it stays in its own slice.
//! - How many: among its own slice and those that it may take from, a block goes to the one to which fewest blocks came for each frame in
//!   this period. So a block stays equally long in each of them, as it would in one cache. The own slice comes first until it has
//!   a quarter more than the least; among the others the nearest does.
//!
//! A period is over when as many blocks were missed as a [`PERIOD_PART`] of all frames: longer ones follow too late, in shorter ones chance
//! decides.
//!
//! Invariants: without clock and randomness; ties break by distance, then by the lowest number.
//! Cost: [`Slices::place`] looks at each slice once, and at each pair of them when a period ends.
//! Source: Jericho divides buffers into slices, one for each node; taking by marginal gain is this project's own.

use alloc::vec;
use alloc::vec::Vec;

/// Part of all frames for which blocks are missed in a period.
pub const PERIOD_PART: u64 = 32;
/// Returns for each frame, in those of the other node, from which on a node may take its frames.
const GAIN_TAKE: u128 = 2;
/// A node may not take frames when at most this share of its misses returns: a scan meets some ghosts by chance.
const SCAN_PERCENT: u128 = 1;
/// Blocks that come to each frame of a node's own slice, in percent of those of another one, before that one is taken from.
const OWN_PERCENT: u128 = 125;

/// Slices by number, and what happened to them in this period.
#[derive(Debug)]
pub struct Slices {
    slices: Vec<Slice>,
    /// Misses until the period is over.
    left: u64,
}

#[derive(Debug)]
struct Slice {
    frames: u64,
    /// The other slices, by distance.
    nearest: Vec<usize>,
    /// Whether the node of this slice may take frames of another slice, by number of the other slice.
    may_take: Vec<bool>,
    /// Blocks that came to the slice.
    came: u64,
    /// Blocks that the node missed, and those of them that returned.
    missed: u64,
    returned: u64,
}

impl Slices {
    /// Slices of so many frames each; to be made anew when members come or go. `distances[a][b]` orders nodes as the latency from node `a` to memory of node `b` does.
    ///
    /// # Panics
    /// When the matrix is not square, or has not as many rows as there are slices.
    #[must_use]
    pub fn new(frames: &[u64], distances: &[Vec<u32>]) -> Self {
        let count = frames.len();
        assert!(
            distances.len() == count && distances.iter().all(|row| row.len() == count),
            "the distances must have a row and a column for each of {count} slices"
        );
        let slice = |(number, frames): (usize, &u64)| {
            let mut nearest: Vec<usize> = (0..count).filter(|other| *other != number).collect();
            nearest.sort_by_key(|other| (distances[number][*other], *other));
            Slice {
                frames: *frames,
                nearest,
                may_take: vec![false; count],
                came: 0,
                missed: 0,
                returned: 0,
            }
        };
        let mut slices = Self {
            slices: frames.iter().enumerate().map(slice).collect(),
            left: 0,
        };
        slices.left = slices.period();
        slices
    }

    /// The slice whose frames take the next `blocks` blocks that a node misses: one, or a few at once. More than a 500th of all frames
    /// are too coarse. `has_free` tells whether a slice has frames without blocks. A slice without frames is named only if there is no other one.
    pub fn place(&mut self, asking: usize, blocks: u64, has_free: impl Fn(usize) -> bool) -> usize {
        let slice = self.choose(asking, has_free);
        self.note_placed(asking, slice, blocks);
        slice
    }

    /// Takes note of blocks that a node missed, and that a slice took.
    pub fn note_placed(&mut self, asking: usize, slice: usize, blocks: u64) {
        self.slices[slice].came += blocks;
        self.slices[asking].missed += blocks;
        self.left = self.left.saturating_sub(blocks);
        if self.left == 0 {
            self.end_period();
        }
    }

    /// The other slices by distance.
    #[must_use]
    pub fn nearest(&self, asking: usize) -> &[usize] {
        &self.slices[asking].nearest
    }

    /// Takes note of blocks that a node missed while their ghosts were there.
    pub fn note_returned(&mut self, asking: usize, blocks: u64) {
        self.slices[asking].returned += blocks;
    }

    /// Whether a node may take frames of another one's slice in this period, free or not.
    #[must_use]
    pub fn may_take(&self, asking: usize, from: usize) -> bool {
        self.slices[asking].may_take[from]
    }

    /// [`Slices::place`] of blocks that may find no frame: it is told [afterwards](Slices::note_placed).
    pub fn choose(&self, asking: usize, has_free: impl Fn(usize) -> bool) -> usize {
        let Slice { nearest, may_take, .. } = &self.slices[asking];
        let by_distance = || core::iter::once(asking).chain(nearest.iter().copied());
        if let Some(slice) = by_distance().find(|slice| has_free(*slice)) {
            return slice;
        }
        let has_frames = |slice: &usize| self.slices[*slice].frames > 0;
        let Some(first) = by_distance().find(has_frames) else {
            return asking;
        };
        let mut least = first;
        for other in nearest.iter().copied().filter(|other| may_take[*other]) {
            let percent = if least == first { OWN_PERCENT } else { 100 };
            let [one, other_one] = [least, other].map(|slice| &self.slices[slice]);
            if percent * product(other_one.came, one.frames) < 100 * product(one.came, other_one.frames) {
                least = other;
            }
        }
        least
    }

    fn end_period(&mut self) {
        for asking in 0..self.slices.len() {
            let may_take = (0..self.slices.len()).map(|from| {
                let (one, other) = (&self.slices[asking], &self.slices[from]);
                let gain = if one.may_take[from] { 1 } else { GAIN_TAKE };
                let is_scan = 100 * u128::from(one.returned) <= SCAN_PERCENT * u128::from(one.missed);
                let gains = product(one.returned, other.frames) > gain * product(other.returned, one.frames);
                asking != from && !is_scan && gains
            });
            self.slices[asking].may_take = may_take.collect();
        }
        for slice in &mut self.slices {
            (slice.came, slice.missed, slice.returned) = (0, 0, 0);
        }
        self.left = self.period();
    }

    /// Misses in a period.
    fn period(&self) -> u64 {
        let frames: u64 = self.slices.iter().map(|slice| slice.frames).sum();
        (frames / PERIOD_PART).max(1)
    }
}

fn product(one: u64, other: u64) -> u128 {
    u128::from(one) * u128::from(other)
}
