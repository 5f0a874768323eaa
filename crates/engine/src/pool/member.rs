//! A member: its allocator, and how much of the member is backed by memory.

use super::PoolError;
use super::grants::LONG_BLOCKS;
use crate::{Block, MemberId, Memory, NodeId, Starved};
use homenode_policy::pool::{Buddy, HUGE_ORDER};
use homenode_shared::RUN_BLOCKS;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Share of a durable member, one part in this many, below which its free whole runs are spared.
const WHOLE_SHARE: u64 = 4;

/// Kind of storage that holds a member's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum MemberKind {
    /// Memory that loses its bytes with the power.
    Dram,
    /// Memory that keeps them.
    Pmem,
    /// A file that is mapped.
    File,
    /// A block device, which is reached by requests.
    Block,
}

impl MemberKind {
    /// Its name, in small letters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dram => "dram",
            Self::Pmem => "pmem",
            Self::File => "file",
            Self::Block => "block",
        }
    }
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) kind: MemberKind,
    pub(super) home: NodeId,
    pub(super) blocks: u64,
    /// Held while populating, so that one thread does it at a time.
    populating: Mutex<()>,
    space: Mutex<Space>,
    /// Blocks that files of a store take on its home, as far as they count for this member. Relaxed: a figure.
    pub(super) files: AtomicU64,
    /// Whether its home has no free memory for pages of such files.
    pub(super) has_starved_home: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Space {
    buddy: Buddy,
    /// Blocks from the start that are backed by memory.
    pub(super) populated: u64,
    pub(super) draining: bool,
    pub(super) starved: bool,
    /// Whether a log takes segments of it.
    has_log: bool,
}

impl Member {
    pub(super) fn new(id: MemberId, kind: MemberKind, home: NodeId, blocks: u64) -> Self {
        let space = Space {
            buddy: Buddy::new(blocks),
            populated: 0,
            draining: false,
            starved: false,
            has_log: kind != MemberKind::Dram,
        };
        Self::with_space(id, kind, home, blocks, space)
    }

    /// A member all of which is there, with `used` of it (ascending, apart from each other) in use.
    pub(super) fn restored(id: MemberId, kind: MemberKind, home: NodeId, blocks: u64, used: &[Range<u64>]) -> Self {
        let mut buddy = Buddy::new(blocks);
        let mut at = 0;
        for range in used.iter().cloned().chain(std::iter::once(blocks..blocks)) {
            if at < range.start {
                buddy.free(at, range.start - at);
            }
            at = range.end;
        }
        let space = Space {
            buddy,
            populated: blocks,
            draining: false,
            starved: false,
            has_log: kind != MemberKind::Dram,
        };
        Self::with_space(id, kind, home, blocks, space)
    }

    fn with_space(id: MemberId, kind: MemberKind, home: NodeId, blocks: u64, space: Space) -> Self {
        Self {
            id,
            kind,
            home,
            blocks,
            populating: Mutex::new(()),
            space: Mutex::new(space),
            files: AtomicU64::new(0),
            has_starved_home: AtomicBool::new(false),
        }
    }

    pub(super) fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock()
    }

    /// Blocks that the superblocks of a durable member take, as long as it is one.
    pub(super) const fn superblocks(&self) -> u64 {
        match self.kind {
            MemberKind::Dram => 0,
            MemberKind::Pmem | MemberKind::File | MemberKind::Block => 2,
        }
    }

    /// Blocks that must go before the member can.
    pub(super) fn held(&self, space: &Space) -> u64 {
        self.blocks - self.unused(space) - self.superblocks()
    }

    /// Blocks that are in nobody's hands, populated or not.
    pub(super) fn unused(&self, space: &Space) -> u64 {
        space.buddy.free_blocks() + self.blocks - space.populated
    }

    /// Fails unless it was drained, and is empty still.
    pub(super) fn check_drained(&self) -> Result<(), PoolError> {
        let space = self.space();
        match self.held(&space) {
            0 if space.draining => Ok(()),
            held => Err(PoolError::NotEmpty(self.id, held)),
        }
    }

    /// Gives all memory back when no block is in use; else returns the free blocks that have memory.
    pub(super) fn shed<M: Memory>(&self, memory: &M) -> u64 {
        // Writers that find no free block wait for this lock, then populate.
        let _not_populating = self.populating.lock();
        let all = {
            let mut space = self.space.lock();
            let free = space.buddy.free_blocks();
            if free != space.populated {
                return free;
            }
            space.buddy = Buddy::new(self.blocks);
            std::mem::take(&mut space.populated)
        };
        // Others look at the space meanwhile: small pages take seconds to give back.
        if all == 0 || memory.depopulate(self.id) {
            return 0;
        }
        let mut space = self.space.lock();
        space.populated = all;
        space.buddy.free(0, all);
        all
    }

    /// Populates the next run unless `enough` says that it needs not. False: everything is populated.
    pub(super) fn populate_next<M: Memory>(
        &self,
        memory: &M,
        enough: impl Fn(&Space) -> bool,
    ) -> Result<bool, Starved> {
        let _one_at_a_time = self.populating.lock();
        let first = {
            let space = self.space.lock();
            if enough(&space) {
                return Ok(true);
            }
            space.populated
        };
        if first == self.blocks {
            return Ok(false);
        }
        let count = RUN_BLOCKS.min(self.blocks - first);
        let populated = memory.populate(self.id, first, count);
        let mut space = self.space.lock();
        space.starved = populated.is_err();
        populated?;
        space.populated += count;
        space.buddy.free(first, count);
        Ok(true)
    }
}

impl Space {
    pub(super) fn free_blocks(&self) -> u64 {
        self.buddy.free_blocks()
    }

    /// Whether an aligned 2 MiB run is free and populated.
    pub(super) fn has_run(&self) -> bool {
        self.buddy.largest_order().is_some_and(|order| order >= HUGE_ORDER)
    }

    /// A run of at most `blocks` for one who needs `want` of them now; nothing when the member is being drained.
    ///
    /// Where little of a durable member is free in whole runs, less than a run is taken from holes: of few blocks the smallest
    /// ones. Small files that stay must not end up in every run, as the log needs whole segments.
    pub(super) fn allocate(&mut self, member: MemberId, blocks: u64, want: u64) -> Option<(Block, u64)> {
        if self.draining {
            return None;
        }
        let is_short = || self.has_log && self.buddy.whole_blocks() * WHOLE_SHARE < self.buddy.blocks();
        let run = if want >= RUN_BLOCKS || !is_short() {
            self.buddy.allocate_up_to(blocks)
        } else if want < LONG_BLOCKS {
            self.buddy.allocate_smallest(blocks.min(LONG_BLOCKS))
        } else {
            self.buddy.allocate_some(blocks.min(want), LONG_BLOCKS)
        };
        run.map(|(start, got)| (Block::new(member, start), got))
    }

    /// Allocates 2 to the power of `order` blocks; `None` while the member drains or has no such run.
    pub(super) fn allocate_whole(&mut self, member: MemberId, order: u32) -> Option<Block> {
        let start = (!self.draining).then(|| self.buddy.allocate(order)).flatten()?;
        Some(Block::new(member, start))
    }

    /// Allocates an aligned 2 MiB run; `None` while the member drains or has no free run.
    pub(super) fn allocate_run(&mut self, member: MemberId) -> Option<Block> {
        if self.draining {
            return None;
        }
        self.buddy.allocate(HUGE_ORDER).map(|start| Block::new(member, start))
    }

    pub(super) fn free(&mut self, first: Block, blocks: u64) {
        self.buddy.free(first.index(), blocks);
    }

    pub(super) fn check_invariants(&self) {
        self.buddy.check_invariants();
    }
}
