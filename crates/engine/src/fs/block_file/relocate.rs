//! Where a file's blocks lie, and moving them between members while the file is in use.

use super::super::{Error, Fs, Inode, Result};
use super::BlockFile;

use crate::fs::durable::EXTENT_RECORD_BYTES_MAX;
use crate::log::Effect;
use crate::pool::Taken;
use crate::{BLOCK_BYTES, Block, Clock, Memory, NodeId};
use homenode_shared::{BlockMap, Change, Found, RUN_BLOCKS};
use std::collections::BTreeMap;
use std::convert::Infallible;

/// Runs of blocks that are counted inside the gate at once.
const RUNS_AT_ONCE: usize = 512;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Adds the bytes on each node of some runs from a file block on; gives the block where the next ones begin.
    pub(in crate::fs) fn map_some_blocks(
        &self,
        inode: &Inode,
        file: &BlockFile,
        mut at: u64,
        by_node: &mut BTreeMap<NodeId, u64>,
    ) -> Option<u64> {
        // Readers and writers go on meanwhile, unless so many threads have a slot that none is left for this. Who closes the gate waits for these runs.
        let slot = self.slots.claim();
        let _inside = slot.as_ref().map(|slot| inode.enter(file, slot));
        let _closed = slot.is_none().then(|| inode.close(file, &self.slots));
        for _ in 0..RUNS_AT_ONCE {
            if at >= BlockMap::LIMIT {
                return None;
            }
            at += match file.map.find(&self.nodes, at, BlockMap::LIMIT - at) {
                Found::Placed { block, blocks } => {
                    *by_node.entry(self.pool.home(block.member())).or_default() += blocks * BLOCK_BYTES as u64;
                    blocks
                }
                Found::Empty { blocks } => blocks,
            };
        }
        Some(at)
    }

    /// See [`Fs::move_to`].
    pub(in crate::fs) fn move_blocks(
        &self,
        inode: &Inode,
        file: &BlockFile,
        node: NodeId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        self.relocate(
            inode,
            file,
            progress,
            &mut |block| self.pool.home(block.member()) != node,
            &mut |want| self.pool.take_on(node, want).ok_or(Error::NoSpace),
            None,
        )
    }

    /// Copies each block that `is_wanted` to blocks from `take`, and frees the old one. Closes the gate for a 2 MiB stretch
    /// of the file at a time. Blocks that cannot be copied are counted in `unread` and stay, if it is given.
    pub(in crate::fs) fn relocate<'a>(
        &'a self,
        inode: &Inode,
        file: &BlockFile,
        progress: &mut dyn FnMut(u64, u64),
        is_wanted: &mut dyn FnMut(Block) -> bool,
        take: &mut dyn FnMut(u64) -> Result<Taken<'a, M>>,
        mut unread: Option<&mut u64>,
    ) -> Result<u64> {
        let (mut moved, mut at) = (0, 0);
        loop {
            self.bring_to_move(inode, file, at, is_wanted);
            // Each stretch is told to the log. Before the lock: room may be made by a commit.
            let _room = self.admit_bytes(Effect::Adds, RUN_BLOCKS * EXTENT_RECORD_BYTES_MAX)?;
            // A commit that has begun makes the old blocks durable that it settles.
            let no_commit = self.journal.as_ref().map(|journal| journal.settling.lock());
            let mut old = Old {
                fs: self,
                blocks: Vec::new(),
            };
            let closed = inode.close(file, &self.slots);
            let total = file.blocks.sum();
            let Some(stretch) = self.next_placed(file, at) else {
                drop((closed, no_commit));
                progress(total * BLOCK_BYTES as u64, total * BLOCK_BYTES as u64);
                return Ok(moved);
            };
            at = stretch + RUN_BLOCKS;
            let mut change = |block: Block, blocks: u64| -> Result<Change> {
                if !is_wanted(block) {
                    return Ok(Change::Keep);
                }
                let taken = take(blocks)?;
                if taken.blocks() < blocks {
                    return Ok(Change::Split);
                }
                let copied = self.pool.memory().copy(block, taken.first(), blocks);
                match (copied, &mut unread) {
                    (Ok(()), _) => {}
                    (Err(_), Some(_)) if blocks > 1 => return Ok(Change::Split),
                    // The block that it was to go to is bad.
                    (Err(error), Some(_)) if self.pool.memory().load(block, 0, &mut [0; BLOCK_BYTES]).is_ok() => {
                        return Err(error.into());
                    }
                    (Err(_), Some(unread)) => {
                        **unread += 1;
                        return Ok(Change::Keep);
                    }
                    (Err(error), None) => return Err(error.into()),
                }
                old.blocks.push((block, blocks));
                moved += blocks * BLOCK_BYTES as u64;
                Ok(Change::To(taken.record()))
            };
            let updated = file.map.update(&self.nodes, stretch..at, &mut change);
            if !old.blocks.is_empty() {
                self.note_dirty(inode.ino, file, stretch..at);
                self.log_extents(&closed, file, stretch..at);
            }
            // Not before the log knows where their bytes are now.
            drop(old);
            updated?;
            drop((closed, no_commit));
            progress(at.min(total) * BLOCK_BYTES as u64, total * BLOCK_BYTES as u64);
        }
    }

    /// Brings blocks of the next stretch to the cache that are about to be moved, with nothing held: as many as stay there, most likely. An error comes to
    /// light when they are moved.
    fn bring_to_move(&self, inode: &Inode, file: &BlockFile, at: u64, is_wanted: &mut dyn FnMut(Block) -> bool) {
        let memory = self.pool.memory();
        if !self.reads_disks() {
            return;
        }
        let mut placed = Vec::new();
        if let Some(slot) = self.slots.claim() {
            let _inside = inode.enter(file, &slot);
            let Some(stretch) = self.next_placed(file, at) else {
                return;
            };
            let placing = file.each_placed(&self.nodes, stretch..stretch + RUN_BLOCKS, |block, blocks| {
                placed.push((block, blocks));
                Ok::<(), Infallible>(())
            });
            let Ok(()) = placing;
        }
        let mut left = memory.fetch_max();
        for (first, blocks) in placed.into_iter().filter(|(first, _)| is_wanted(*first)) {
            let node = self.pool.home(first.member());
            for at in 0..blocks.min(left) {
                // A request brings those behind it as well.
                if !memory.is_here(first.plus(at)) && memory.fetch(node, first.plus(at), blocks.min(left) - at).is_err()
                {
                    return;
                }
            }
            left = left.saturating_sub(blocks);
        }
    }

    /// Start of the first aligned 2 MiB stretch at or behind file block `at` that has a block.
    fn next_placed(&self, file: &BlockFile, mut at: u64) -> Option<u64> {
        while at < BlockMap::LIMIT {
            match file.map.find(&self.nodes, at, BlockMap::LIMIT - at) {
                Found::Placed { .. } => return Some(at / RUN_BLOCKS * RUN_BLOCKS),
                Found::Empty { blocks } => at += blocks,
            }
        }
        None
    }
}

/// Blocks whose bytes have moved. Freed when dropped, also by a panic between the move and the log.
struct Old<'a, M: Memory, C: Clock> {
    fs: &'a Fs<M, C>,
    blocks: Vec<(Block, u64)>,
}

impl<M: Memory, C: Clock> Drop for Old<'_, M, C> {
    fn drop(&mut self) {
        for (block, blocks) in self.blocks.drain(..) {
            self.fs.free_blocks(block, blocks);
        }
    }
}
