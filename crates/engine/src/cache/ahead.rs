//! Work of the threads that tend a slice: read ahead, keep frames free, write back.

use super::{Cache, Cached, Disk};
use crate::{Block, Disks, NodeId};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// Most stretches that wait to be read ahead.
const WANTED_MAX: usize = 64;
/// Most blocks of a read ahead: 128 KiB. Who wants the first of them does not wait for many others, and several are under way.
const AHEAD_BLOCKS: u64 = 32;

/// Blocks that somebody is likely to want soon.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    node: NodeId,
    at: Block,
    blocks: u64,
}

/// Stretches that are to be read ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    wanted: Mutex<VecDeque<Wanted>>,
    came: Condvar,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            wanted: Mutex::new(VecDeque::with_capacity(WANTED_MAX)),
            came: Condvar::new(),
        }
    }
}

impl Ahead {
    /// Asks for blocks; forgotten when too many are wanted.
    fn send(&self, wanted: Wanted) {
        let mut all = self.wanted.lock();
        if all.len() < WANTED_MAX {
            all.push_back(wanted);
            drop(all);
            self.came.notify_one();
        }
    }

    /// Takes blocks that are wanted on `node`, or else any; waits up to `most` for some.
    fn take(&self, node: NodeId, most: Duration) -> Option<Wanted> {
        let mut all = self.wanted.lock();
        if all.is_empty() && !most.is_zero() {
            self.came.wait_for(&mut all, most);
        }
        let own = all.iter().position(|wanted| wanted.node == node);
        all.remove(own.unwrap_or(0))
    }
}

impl<M: Disks> Cached<M> {
    /// Begins to read blocks of a disk that have no frame, as long as there are free ones; those who tend a slice are asked to where the disk has no way
    /// for it.
    pub(super) fn fill_soon(
        &self,
        (cache, disk): (&Cache, &Disk),
        stretches: &[(NodeId, Block, u64)],
        mut is_marked: bool,
    ) {
        let mut fetches = Vec::with_capacity(stretches.len());
        for (node, first, blocks) in stretches {
            let end = (first.index() + blocks).min(disk.index.blocks());
            let mut at = first.index();
            while at < end {
                if disk.index.has_frame(at) {
                    at += 1;
                    continue;
                }
                let most = (end - at).min(AHEAD_BLOCKS);
                let Some(mut fetch) = self.begin_fetch_of((cache, disk), *node, disk.block(at), most) else {
                    // It cannot be done so, or there are no frames.
                    break;
                };
                fetch.is_marked = std::mem::take(&mut is_marked);
                at += fetch.blocks();
                fetches.push(fetch);
            }
            // Who tends a slice reads by itself, and must not wait for a disk that is slow.
            if fetches.is_empty() && at < end && cache.has_turn(disk) {
                cache.ahead.send(Wanted {
                    node: *node,
                    at: *first,
                    blocks: *blocks,
                });
            }
        }
        if fetches.is_empty() {
            return;
        }
        let refused = self.below.begin_reads(disk.member, fetches);
        // Who sleeps waits for reads that are under way: there are more now.
        disk.ending.tell();
        refused.iter().for_each(|fetch| cache.give_up(disk, fetch));
    }

    /// Tends a slice for once: reads ahead what is wanted, keeps frames free, and writes back. Waits up to `most` where there
    /// is nothing to do, and not long after it was woken.
    pub fn tend(&self, slice: usize, most: Duration) {
        const SOON: Duration = Duration::from_millis(1);
        let Some(cache) = &self.cache else { return };
        let has_room = self.tend_space(slice);
        if slice == 0 {
            self.end_all_reads(cache);
        }
        // Errors are told to those who sync the blocks.
        let is_busy = self.write_back(slice).unwrap_or(false);
        let wait = match (has_room, is_busy) {
            (_, true) => Duration::ZERO,
            (false, false) => SOON.min(most),
            (true, false) => most,
        };
        if let Some(wanted) = cache.ahead.take(cache.slices[slice].node, wait)
            && let Some((_, disk)) = self.disk(wanted.at.member())
        {
            self.fill_ahead(disk, wanted);
        }
    }

    /// Reads blocks that have no frame, as long as there are free ones.
    fn fill_ahead(&self, disk: &Disk, wanted: Wanted) {
        let Some(cache) = &self.cache else { return };
        let first = wanted.at.index();
        let end = (first + wanted.blocks).min(disk.index.blocks());
        let mut at = first;
        while at < end {
            if disk.index.has_frame(at) {
                at += 1;
                continue;
            }
            match self.fill_at_once((cache, disk), wanted.node, at, end) {
                Ok(blocks) if blocks > 0 => at += blocks,
                // Whoever wants them reads them himself, and is told.
                _ => return,
            }
        }
    }
}
