//! Bytes that must be brought to memory before they can be copied: which of a request, and bringing them, with nothing held.

use super::super::{Asking, Error, Fs, Inode, Result};
use super::BlockFile;
use super::data::in_block;
use crate::{BLOCK_BYTES, Block, Clock, Memory, NodeId};
use homenode_shared::{Found, RUN_BLOCKS};
use std::ops::Range;
use std::sync::atomic::Ordering;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are brought at a time.
const BLOCKS_MAX: u64 = 256;

/// Blocks that follow each other and are away, and the node that they are to come to.
type Missing = Vec<(NodeId, Block, u64)>;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// After [`Error::Away`], brings what is away of the first blocks of `bytes` of a file; other errors stay.
    pub(super) fn bring_if_away(
        &self,
        error: Error,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        bytes: Range<u64>,
    ) -> Result<()> {
        if error != Error::Away {
            return Err(error);
        }
        let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
        self.fetch(&self.missing(asking, inode, file, [blocks]))
    }

    /// After [`Error::Away`], brings what a write of `bytes` bytes at `offset` leaves of the blocks that it changes, and waits for places for the
    /// others.
    pub(super) fn bring_to_write(
        &self,
        error: Error,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        offset: u64,
        bytes: usize,
    ) -> Result<()> {
        if error != Error::Away {
            return Err(error);
        }
        let (first, end) = (offset / BLOCK, (offset + bytes as u64).div_ceil(BLOCK));
        let size = file.size.load(Ordering::Acquire);
        let is_part = |at: u64| in_block(at) > 0;
        // The block of the size, and what a cut left behind it, become zero when the file grows.
        let gap = match size {
            size if size < offset => {
                size / BLOCK
                    ..offset
                        .div_ceil(BLOCK)
                        .min(size.next_multiple_of(RUN_BLOCKS * BLOCK) / BLOCK)
            }
            _ => 0..0,
        };
        let head = first..first + u64::from(is_part(offset));
        let tail = end - u64::from(is_part(offset + bytes as u64))..end;
        self.fetch(&self.missing(asking, inode, file, [gap, head, tail]))?;
        let node = self.node_for(inode, first, asking);
        Ok(self
            .pool
            .memory()
            .wait_for_places(node, (end - first).min(BLOCKS_MAX))?)
    }

    /// Carries `act` out on bytes of a file, again and again while some of them must be brought.
    pub(super) fn brought<T>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        bytes: &Range<u64>,
        act: impl Fn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match act() {
                Err(Error::Away) => {
                    let count = usize::try_from(bytes.end - bytes.start).unwrap_or(usize::MAX);
                    self.bring_to_write(Error::Away, asking, inode, file, bytes.start, count)?;
                }
                result => return result,
            }
        }
    }

    /// What is placed in some stretches of file blocks and is away, [`BLOCKS_MAX`] blocks at most.
    fn missing<const N: usize>(
        &self,
        asking: &Asking<'_>,
        inode: &Inode,
        file: &BlockFile,
        stretches: [Range<u64>; N],
    ) -> Missing {
        let memory = self.pool.memory();
        let _inside = inode.enter(file, asking.slot);
        let (mut missing, mut left) = (Missing::new(), BLOCKS_MAX);
        for stretch in stretches {
            let mut at = stretch.start;
            while at < stretch.end && left > 0 {
                let most = (stretch.end - at).min(left);
                at += match file.map.find(&self.nodes, at, most) {
                    Found::Empty { blocks } => blocks,
                    Found::Placed { block, blocks } => {
                        let node = self.node_for(inode, at, asking);
                        for block in (0..blocks).map(|count| block.plus(count)) {
                            if memory.is_here(block) {
                                continue;
                            }
                            match missing.last_mut() {
                                Some((other, first, count)) if *other == node && first.plus(*count) == block => {
                                    *count += 1
                                }
                                _ => missing.push((node, block, 1)),
                            }
                        }
                        left -= blocks;
                        blocks
                    }
                };
            }
        }
        missing
    }

    fn fetch(&self, missing: &Missing) -> Result<()> {
        let memory = self.pool.memory();
        let mut stretches = missing.iter();
        Ok(stretches.try_for_each(|(node, first, blocks)| memory.fetch(*node, *first, *blocks))?)
    }
}
