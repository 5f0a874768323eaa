//! Steers new pages of files of the kernel to nodes that have room.
//!
//! While every node with memory is a candidate, files without a policy of their own need none: the kernel takes pages of the writer's
//! node. When a node gets fat, is drained, or has no member, files that may be written are told which nodes remain, and so is each
//! file that is opened for writing later. The limit of a node is soft: [`Fs::steer_files`] looks again and again, and until
//! then writers go on.

use super::KernelFile;
use crate::fs::{Error, Fs, Inode, Placement, Result};

use crate::pool::{PoolError, Spill};
use crate::{BLOCK_BYTES, Clock, MemberId, Memory, NodeId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nodes that take new pages.
#[derive(Debug, Default)]
pub(in crate::fs) struct Steering {
    /// Number of the latest change of `known`; 0 while every node takes pages.
    change: AtomicU64,
    known: Mutex<Known>,
    /// Blocks that files took when the pool was told last where they lie; 0 when it was told nothing. Held while a thread looks.
    looking: Mutex<u64>,
    /// Held while pages are moved on purpose, so that none come to a node that is drained.
    moving: Mutex<()>,
    /// Blocks that files took at the last look for spills.
    used_before: Mutex<u64>,
}

#[derive(Debug, Default)]
struct Known {
    changes: u64,
    /// `None` while every node takes pages.
    nodes: Option<Vec<NodeId>>,
}

/// Time without progress after which a drain gives up: pages that the kernel does not move stay.
const DRAIN_IDLE_NS: i64 = 5_000_000_000;

/// Bytes that a drain moves until the monitor hears of them.
const NOTE_BYTES: u64 = 256 << 20;

impl<M: Memory, C: Clock> Fs<M, C> {
    /// Looks which nodes have room for pages of files, and tells the kernel when that has changed. Call this again and again: until it
    /// has looked, writers fill a node beyond its limit. Reads where the files lie when `is_due` and they could fill a node, and when
    /// files grew or shrank so much since it was read last that a node may have changed.
    pub fn steer_files(&self, is_due: bool) {
        let Some(store) = self.pool.store() else { return };
        let used = store.used_blocks();
        let mut looked = self.steering.looking.lock();
        let by_node = match store.nodes() {
            [only] => Some(vec![(*only, used * BLOCK_BYTES as u64)]),
            _ if !self.pool.may_files_fill_a_node() => Some(Vec::new()),
            _ => {
                let (grown, shrunk) = (used.saturating_sub(*looked), looked.saturating_sub(used));
                let is_wanted = is_due || self.pool.may_nodes_change(grown, shrunk);
                is_wanted.then(|| self.backing_by_node())
            }
        };
        if let Some(by_node) = by_node {
            *looked = if by_node.is_empty() { 0 } else { used };
            self.pool.note_files(&by_node);
        }
        let homes = self.pool.homes_with_room();
        let is_free = store.nodes().iter().all(|node| homes.contains(node));
        let nodes = (!is_free).then_some(homes);
        {
            let mut known = self.steering.known.lock();
            if known.nodes == nodes {
                return;
            }
            known.changes += 1;
            known.nodes = nodes;
            let change = if is_free { 0 } else { known.changes };
            // SeqCst: a writer is noted before this is read, so that either this look or the writer's open places the file.
            self.steering.change.store(change, Ordering::SeqCst);
        }
        self.table.for_each(|inode| {
            if let Some(file) = inode.kernel_file().filter(|file| file.may_be_written()) {
                self.place(inode, file);
            }
        });
    }

    /// Counts bytes that CPUs of each node wrote since the last call. Writes from nodes that take no pages count as spilled, up to the growth
    /// of all files: an estimate, as writes over other bytes and removed files hide in it.
    pub fn note_written(&self, written: &BTreeMap<NodeId, u64>) {
        let Some(store) = self.pool.store() else { return };
        let used = store.used_blocks();
        let before = std::mem::replace(&mut *self.steering.used_before.lock(), used);
        let mut grown = used.saturating_sub(before);
        let nodes = self.steering.known.lock().nodes.clone();
        for (from, bytes) in written {
            if nodes.as_ref().is_some_and(|nodes| !nodes.contains(from))
                && let Some(home) = self.pool.homes_near(*from).first()
            {
                let blocks = grown.min(bytes / BLOCK_BYTES as u64);
                grown -= blocks;
                self.pool.note_spill(Spill {
                    from: *from,
                    home: *home,
                    bytes: blocks * BLOCK_BYTES as u64,
                });
            }
        }
    }

    /// Places pages to come of a file that is opened for writing, if that changed since it was placed.
    pub(super) fn place_for_writer(&self, inode: &Inode, file: &KernelFile) {
        // SeqCst: see where this is changed.
        if self.steering.change.load(Ordering::SeqCst) != *file.placed.lock() {
            self.place(inode, file);
        }
    }

    /// Sets the kernel's policy for pages that the file has yet to get. Ignores errors: the file works without a policy.
    pub(in crate::fs) fn place(&self, inode: &Inode, file: &KernelFile) {
        let mut placed = file.placed.lock();
        let (nodes, change) = {
            let known = self.steering.known.lock();
            (known.nodes.clone(), self.steering.change.load(Ordering::SeqCst))
        };
        let placement = match inode.policy.load().unwrap_or_default() {
            Placement::Node(node) if nodes.is_some() => {
                Placement::Node(self.pool.homes_near(node).first().copied().unwrap_or(node))
            }
            other => other,
        };
        let _ = file.file.place(placement, nodes.as_deref());
        *placed = change;
    }

    /// Moves pages of files off the home of a member that is drained, unless another member there takes data; returns the bytes moved
    /// until now.
    pub(in crate::fs) fn drain_kernel_files(
        &self,
        member: MemberId,
        mut moved: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<u64, PoolError> {
        let home = self.pool.home(member);
        if self.pool.store().is_none() || self.pool.has_member_on(home) {
            return Ok(moved);
        }
        // Moves to this node that have begun; others are refused from now on.
        drop(self.steering.moving.lock());
        self.steer_files(true);
        let (mut last_progress_ns, mut noted, mut least) = (self.now_ns(), moved, u64::MAX);
        loop {
            let mut left = 0;
            self.table.try_for_each(|inode| {
                let Some(file) = inode.kernel_file() else { return Ok(()) };
                moved += self.move_off(file, home).map_err(|error| match error {
                    Error::NoSpace => PoolError::NoSpace(member),
                    _ => PoolError::Io(member),
                })?;
                left += file.bytes_on(home).map_err(|_| PoolError::Io(member))?;
                progress(moved, moved + left);
                if moved - noted >= NOTE_BYTES {
                    self.steer_files(true);
                    noted = moved;
                }
                Ok(())
            })?;
            if left == 0 {
                return Ok(moved);
            }
            let now_ns = self.now_ns();
            // Who puts pages back there again and again does not make it go on.
            if left < least {
                (least, last_progress_ns) = (left, now_ns);
            } else if now_ns.saturating_sub(last_progress_ns) > DRAIN_IDLE_NS {
                return Err(PoolError::Pinned(member, left));
            }
            std::thread::yield_now();
        }
    }

    /// Moves pages of a file from one node to the nearest nodes with room; returns the bytes moved.
    fn move_off(&self, file: &KernelFile, from: NodeId) -> Result<u64> {
        let mut moved = 0;
        let homes = self.pool.homes_near(from);
        // First where all of it fits, then wherever some does.
        let all = homes.iter().map(|home| (*home, true));
        let some = homes.iter().map(|home| (*home, false));
        for (to, is_for_all) in all.chain(some) {
            let before = file.bytes_on(from)?;
            if before == 0 {
                return Ok(moved);
            }
            if is_for_all && self.pool.room_on(to) * (BLOCK_BYTES as u64) < before {
                continue;
            }
            let result = self.move_kernel_pages(file, Some(from), to, &mut |_, _| {});
            moved += before.saturating_sub(file.bytes_on(from)?);
            match result {
                Ok(_) => return Ok(moved),
                // The node itself is full.
                Err(Error::NoSpace) => {}
                Err(Error::Stale) => return Ok(moved),
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoSpace)
    }

    /// Moves pages of a file, one file at a time. The pool learns by [`Fs::steer_files`] where they lie now.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the node is full, [`Error::Invalid`] when it has no member in service.
    pub(in crate::fs) fn move_kernel_pages(
        &self,
        file: &KernelFile,
        from: Option<NodeId>,
        to: NodeId,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        let _alone = self.steering.moving.lock();
        if !self.pool.has_member_on(to) {
            return Err(Error::Invalid);
        }
        file.move_pages(from, to, progress)
    }
}
