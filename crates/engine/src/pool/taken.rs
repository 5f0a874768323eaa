//! Blocks on their way from the pool into a file's map.

use super::Pool;
use crate::{Block, Memory};

/// Consecutive blocks that were taken and that no map records yet. They go back to the pool when this is dropped, by an error or
/// a panic.
#[derive(Debug)]
#[must_use = "dropped, the blocks go back"]
pub(crate) struct Taken<'a, M: Memory> {
    pool: &'a Pool<M>,
    first: Block,
    blocks: u64,
    /// The pool had kept room for them, and keeps it again when they go back.
    reserved: bool,
}

impl<'a, M: Memory> Taken<'a, M> {
    pub(super) fn new(pool: &'a Pool<M>, (first, blocks): (Block, u64), reserved: bool) -> Self {
        Self {
            pool,
            first,
            blocks,
            reserved,
        }
    }

    pub(crate) fn first(&self) -> Block {
        self.first
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether the pool had kept room for them.
    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved
    }

    /// Gives all but the first `blocks` blocks back.
    pub(crate) fn shorten(&mut self, blocks: u64) {
        if blocks < self.blocks {
            let rest = self.blocks - blocks;
            self.blocks = blocks;
            self.give_back(self.first.plus(blocks), rest);
        }
    }

    fn give_back(&self, first: Block, blocks: u64) {
        if self.reserved {
            self.pool.keep_room(blocks);
        }
        self.pool.free(first, blocks);
    }

    /// Hands the blocks over to the caller, who records them now.
    pub(crate) fn record(mut self) -> Block {
        self.blocks = 0;
        self.first
    }
}

impl<M: Memory> Drop for Taken<'_, M> {
    fn drop(&mut self) {
        if self.blocks > 0 {
            self.give_back(self.first, self.blocks);
        }
    }
}
