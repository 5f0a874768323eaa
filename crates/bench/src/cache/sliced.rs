//! The cache's decisions, without the cache: slices of frames, of which the blocks of a trace take some.
//!
//! The caller of the policies as the cache is one, but for that nothing is dirty, and that nobody uses a frame while it is evicted.

use super::trace::Trace;
use homenode_policy::eviction::{Eviction, Ghosts, Look};
use homenode_policy::slices::Slices;

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) hits: u64,
    /// Blocks that went to another slice than that of the node that asked.
    pub(super) stolen: u64,
}

/// Replays a trace on slices of equal size, `frames` in all. The node that asks is told by the number of the request and the block.
/// Without `takes`, slices take nothing from each other.
pub(super) fn replay(
    trace: &Trace,
    frames: usize,
    slices: usize,
    takes: bool,
    node: impl Fn(usize, u32) -> usize,
) -> Outcome {
    let mut cache = Cache::new(trace, frames, slices);
    let mut outcome = Outcome::default();
    for (request, block) in trace.requests.iter().enumerate() {
        let state = &mut cache.states[*block as usize];
        if *state == State::Away {
            outcome.stolen += u64::from(cache.miss(*block, node(request, *block), takes));
        } else {
            *state = State::Hot;
            outcome.hits += 1;
        }
    }
    outcome
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Cool,
    Hot,
}

struct Slice {
    eviction: Eviction,
    /// Frames without a block.
    free: Vec<u32>,
    /// Block in each frame, indexed by the frame.
    blocks: Vec<u32>,
}

struct Cache<'a> {
    trace: &'a Trace,
    slices: Vec<Slice>,
    ghosts: Ghosts,
    sizes: Slices,
    /// State of each block, indexed by the block.
    states: Vec<State>,
}

impl<'a> Cache<'a> {
    fn new(trace: &'a Trace, frames: usize, slices: usize) -> Self {
        // Nodes in a row: each is as far from another one as there are steps between them.
        let nodes: Vec<u32> = (0..).take(slices).collect();
        let distances: Vec<Vec<u32>> = nodes
            .iter()
            .map(|one| nodes.iter().map(|other| 10 + 10 * one.abs_diff(*other)).collect())
            .collect();
        let sizes: Vec<usize> = (0..slices)
            .map(|slice| frames * (slice + 1) / slices - frames * slice / slices)
            .collect();
        let slices = sizes.iter().map(|size| {
            let count = u32::try_from(*size).expect("a trace has fewer than 2^32 blocks");
            Slice {
                eviction: Eviction::new(count),
                free: (0..count).rev().collect(),
                blocks: vec![0; *size],
            }
        });
        let wide: Vec<u64> = sizes.iter().map(|size| *size as u64).collect();
        Self {
            trace,
            slices: slices.collect(),
            ghosts: Ghosts::new(frames),
            sizes: Slices::new(&wide, &distances),
            states: vec![State::Away; trace.ids.len()],
        }
    }

    /// Brings in a block; whether it went to another slice.
    fn miss(&mut self, block: u32, asking: usize, takes: bool) -> bool {
        let is_returned = self.ghosts.recall(self.trace.ids[block as usize]);
        let slice = if takes {
            self.sizes.note_returned(asking, u64::from(is_returned));
            self.sizes.place(asking, 1, |slice| !self.slices[slice].free.is_empty())
        } else {
            asking
        };
        let frame = match self.slices[slice].free.pop() {
            Some(frame) => frame,
            None => self.evict(slice),
        };
        let Slice { eviction, blocks, .. } = &mut self.slices[slice];
        blocks[frame as usize] = block;
        self.states[block as usize] = if is_returned { State::Cool } else { State::Hot };
        if let Some(cool) = eviction.insert(frame, is_returned) {
            self.states[blocks[cool as usize] as usize] = State::Cool;
        }
        slice != asking
    }

    fn evict(&mut self, slice: usize) -> u32 {
        let Slice { eviction, blocks, .. } = &mut self.slices[slice];
        let victim = eviction.evict(&mut |frame| {
            let state = &mut self.states[blocks[frame as usize] as usize];
            match *state {
                State::Hot => {
                    *state = State::Cool;
                    Look::Referenced
                }
                State::Cool => Look::Unused,
                State::Away => Look::Gone,
            }
        });
        let victim = victim.expect("no frame is busy or used in between");
        let block = blocks[victim.frame as usize];
        self.states[block as usize] = State::Away;
        if victim.is_remembered {
            self.ghosts.remember(self.trace.ids[block as usize]);
        }
        victim.frame
    }
}
