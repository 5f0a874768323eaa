//! Work of the threads that tend a slice: read ahead, keep frames free.

use super::{Cache, Cached, Disk, Fetch};
use crate::{Block, Disks, NodeId};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Duration;

/// Most stretches that wait to be read ahead.
const WANTED_MAX: usize = 64;
/// Most blocks of a read ahead: 512 KiB. To begin one takes time, and two or three are under way for a stream at its full window.
const AHEAD_BLOCKS: u64 = 128;

/// Blocks that somebody is likely to want soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) node: NodeId,
    pub(super) at: Block,
    pub(super) blocks: u64,
    /// The first of them is kept back until somebody wants it: [`ending`](super::ending).
    pub(super) is_marked: bool,
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
    pub(super) fn send(&self, wanted: Wanted) {
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
    /// Begins to read blocks of a disk that have no frame, as long as there are free ones; those who tend a slice are asked to when they have freed
    /// some.
    pub(super) fn fill_soon(
        &self,
        (cache, disk): (&Cache, &Disk),
        stretches: &[(NodeId, Block, u64)],
        mut is_marked: bool,
    ) {
        let mut fetches = Vec::with_capacity(stretches.len());
        for (node, at, blocks) in stretches {
            let (node, at, blocks) = (*node, *at, *blocks);
            let mut wanted = Wanted {
                node,
                at,
                blocks,
                is_marked,
            };
            let before = fetches.len();
            let is_all = self.begin_stretch((cache, disk), &mut wanted, &mut fetches);
            let is_sent = !is_all && fetches.len() == before && cache.has_turn(disk);
            if is_sent {
                cache.ahead.send(wanted);
            }
            is_marked = wanted.is_marked && !is_sent;
        }
        self.begin_all((cache, disk), fetches);
    }

    /// Gives free frames to blocks that have none, to read them; false when there are not enough.
    fn begin_stretch(&self, (cache, disk): (&Cache, &Disk), wanted: &mut Wanted, fetches: &mut Vec<Fetch>) -> bool {
        let mut at = wanted.at.index();
        let end = (at + wanted.blocks).min(disk.index.blocks());
        while at < end {
            if disk.index.has_frame(at) {
                at += 1;
                continue;
            }
            let most = (end - at).min(AHEAD_BLOCKS);
            let Some(mut fetch) = self.begin_fetch_of((cache, disk), wanted.node, disk.block(at), most) else {
                return false;
            };
            fetch.new_frames().for_each(|frame| cache.note_ahead(frame));
            fetch.is_marked = std::mem::take(&mut wanted.is_marked);
            at += fetch.blocks();
            fetches.push(fetch);
        }
        true
    }

    /// Begins reads. Waits for none: the disk may never answer.
    fn begin_all(&self, (cache, disk): (&Cache, &Disk), fetches: Vec<Fetch>) {
        if fetches.is_empty() {
            return;
        }
        let refused = self.below.begin_reads(disk.member, fetches);
        // Who sleeps waits for reads that are under way: there are more now.
        disk.ending.tell();
        // A thread that wants them reads them itself.
        refused.iter().for_each(|fetch| cache.give_up(disk, fetch));
    }

    /// Tends a slice for once: reads ahead what is wanted, and keeps frames free. Waits up to `most` where there is nothing to do, and not long after it was
    /// woken; for no write, which a disk may never end.
    pub fn tend(&self, slice: usize, most: Duration) {
        const SOON: Duration = Duration::from_millis(1);
        let Some(cache) = &self.cache else { return };
        let has_room = self.tend_space(slice);
        self.gather(cache, slice);
        if slice == 0 {
            self.end_all_reads(cache);
        }
        let wait = if has_room { most } else { SOON.min(most) };
        if let Some(mut wanted) = cache.ahead.take(cache.slices[slice].node, wait)
            && let Some(disk) = self.disk(wanted.at.member())
        {
            let mut fetches = Vec::new();
            self.begin_stretch(disk, &mut wanted, &mut fetches);
            self.begin_all(disk, fetches);
        }
    }
}
