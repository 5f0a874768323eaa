//! Grants: blocks set aside for the writers of one CPU, so that the members' shared locks are rare.

use crate::{BLOCK_BYTES, Block, NodeId};
use homenode_shared::RUN_BLOCKS;

/// Blocks (64 KiB) of a write that is worth a run of its own: the file will probably be long.
pub(super) const LONG_BLOCKS: u64 = 16;
/// Runs that a CPU may hold before it uses up what it has.
const RUNS_MAX: usize = 4;

/// Grants of one CPU.
#[derive(Debug, Default)]
pub(super) struct Grants {
    runs: Vec<Run>,
    /// Reserved blocks that were placed from grants: as many are owed back to the uncommitted space.
    pub(super) credit: u64,
    spills: Vec<Spill>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    asking: NodeId,
    first: Block,
    blocks: u64,
}

/// Bytes that one node's writers got on another node because nearer members were fat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Spill {
    /// The asking node.
    pub from: NodeId,
    /// Where the bytes went.
    pub home: NodeId,
    /// How many.
    pub bytes: u64,
}

impl Grants {
    /// Up to `want` consecutive blocks that were granted for `asking`, to lie at file block `file_block`.
    ///
    /// Best are those that lie in their 2 MiB as the file block lies in its, so that a file written in order lies in whole
    /// runs. At the start of such a stretch nothing is taken when none does: a new run will.
    pub(super) fn take(&mut self, asking: NodeId, want: u64, file_block: u64) -> Option<(Block, u64)> {
        let fits = |run: &Run| run.first.index() % RUN_BLOCKS == file_block % RUN_BLOCKS;
        let at = match self.runs.iter().rposition(|run| run.asking == asking && fits(run)) {
            Some(at) => at,
            None if file_block.is_multiple_of(RUN_BLOCKS) && want >= LONG_BLOCKS && self.runs.len() < RUNS_MAX => {
                return None;
            }
            None => self.runs.iter().rposition(|run| run.asking == asking)?,
        };
        let run = &mut self.runs[at];
        let (first, got) = (run.first, want.min(run.blocks));
        run.first = first.plus(got);
        run.blocks -= got;
        if run.blocks == 0 {
            self.runs.swap_remove(at);
        }
        Some((first, got))
    }

    pub(super) fn put(&mut self, asking: NodeId, first: Block, blocks: u64) {
        if blocks > 0 {
            self.runs.push(Run { asking, first, blocks });
        }
    }

    /// Everything, to be given back to the members.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (Block, u64)> + use<> {
        std::mem::take(&mut self.runs)
            .into_iter()
            .map(|run| (run.first, run.blocks))
    }

    /// Returns the first block and the length of each run held.
    pub(super) fn held(&self) -> impl Iterator<Item = (Block, u64)> {
        self.runs.iter().map(|run| (run.first, run.blocks))
    }

    pub(super) fn count_spill(&mut self, from: NodeId, home: NodeId, blocks: u64) {
        let bytes = blocks * BLOCK_BYTES as u64;
        add_spill(&mut self.spills, Spill { from, home, bytes });
    }

    pub(super) fn spills(&self) -> &[Spill] {
        &self.spills
    }
}

pub(super) fn add_spill(spills: &mut Vec<Spill>, spill: Spill) {
    match spills
        .iter_mut()
        .find(|other| (other.from, other.home) == (spill.from, spill.home))
    {
        Some(other) => other.bytes += spill.bytes,
        None => spills.push(spill),
    }
}
