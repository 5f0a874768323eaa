//! Where a file's blocks go and lie: its policy, its map, moving it, draining a member.

use super::inode::{Body, FileBody};
use super::{Asking, Error, Fs, Inode, Result};
use crate::log::Log;
use crate::pool::PoolError;
use crate::{BLOCK_BYTES, Block, Clock, MemberId, Memory, NodeId};
use homenode_shared::{BlockMap, Change, Found, RUN_BLOCKS};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Placement policy of an inode, in one word so that a write can look at it without a lock.
#[derive(Debug, Default)]
pub(super) struct Policy(AtomicU32);

/// Where new blocks of an inode go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On the asking node.
    #[default]
    Local,
    /// On every member in turn, 2 MiB of the file at a time.
    Interleave,
    /// On that node.
    Node(NodeId),
}

impl Policy {
    const UNSET: u32 = 0;
    const LOCAL: u32 = 1;
    const INTERLEAVE: u32 = 2;
    const NODES: u32 = 3;

    pub(super) fn load(&self) -> Option<Placement> {
        match self.0.load(Ordering::Relaxed) {
            Self::UNSET => None,
            Self::LOCAL => Some(Placement::Local),
            Self::INTERLEAVE => Some(Placement::Interleave),
            node => u16::try_from(node - Self::NODES)
                .ok()
                .map(|node| Placement::Node(NodeId(node))),
        }
    }

    pub(super) fn store(&self, placement: Option<Placement>) {
        let word = match placement {
            None => Self::UNSET,
            Some(Placement::Local) => Self::LOCAL,
            Some(Placement::Interleave) => Self::INTERLEAVE,
            Some(Placement::Node(node)) => Self::NODES + u32::from(node.0),
        };
        self.0.store(word, Ordering::Relaxed);
    }
}

/// `local`, `interleave` or `node:N`, as in `user.homenode.policy`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Interleave => f.write_str("interleave"),
            Self::Node(node) => write!(f, "node:{}", node.0),
        }
    }
}

/// Text that is no placement policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no policy: write local, interleave or node:N")]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> std::result::Result<Self, UnknownPlacement> {
        let unknown = || UnknownPlacement(text.to_owned());
        match text {
            "local" => Ok(Self::Local),
            "interleave" => Ok(Self::Interleave),
            _ => {
                let number = text.strip_prefix("node:").ok_or_else(unknown)?;
                number
                    .parse()
                    .map(|node| Self::Node(NodeId(node)))
                    .map_err(|_| unknown())
            }
        }
    }
}

impl<M: Memory, C: Clock, L: Log> Fs<M, C, L> {
    /// Which node's members a first write at `file_block` asks for.
    pub(super) fn node_for(&self, inode: &Inode, file_block: u64, asking: &Asking<'_>) -> NodeId {
        match inode.policy.load() {
            None | Some(Placement::Local) => (asking.node)(),
            Some(Placement::Node(node)) => node,
            // The inode's number staggers small files.
            Some(Placement::Interleave) => self.pool.nth_home(file_block / RUN_BLOCKS + inode.ino.0),
        }
    }

    /// Bytes of the file on each node, ascending by node; nodes with none left out.
    pub fn map(&self, inode: &Inode) -> Vec<(NodeId, u64)> {
        let Body::File(file) = &inode.body else {
            return Vec::new();
        };
        // Readers and writers go on meanwhile, unless so many threads have a slot that none is left for this.
        let slot = self.slots.claim();
        let _inside = slot.as_ref().map(|slot| inode.enter(file, slot));
        let _closed = slot.is_none().then(|| inode.close(file, &self.slots));
        let mut bytes = BTreeMap::<NodeId, u64>::new();
        let mut at = 0;
        while at < BlockMap::LIMIT {
            at += match file.map.find(&self.nodes, at, BlockMap::LIMIT - at) {
                Found::Placed { block, blocks } => {
                    *bytes.entry(self.pool.home(block.member())).or_default() += blocks * BLOCK_BYTES as u64;
                    blocks
                }
                Found::Empty { blocks } => blocks,
            };
        }
        bytes.into_iter().collect()
    }

    /// Moves the file's blocks to members of `node` while it is in use; gives the bytes moved. Writers wait for 2 MiB at
    /// a time at most. `progress` hears bytes looked at, and all of them.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when the node's members are full, [`Error::Invalid`] when it has none; what moved stays moved.
    pub fn move_to(&self, inode: &Inode, node: NodeId, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let file = inode.file()?;
        if !self.pool.has_member_on(node) {
            return Err(Error::Invalid);
        }
        self.relocate(
            inode,
            file,
            progress,
            &mut |block| self.pool.home(block.member()) != node,
            &mut |want| self.pool.take_on(node, want).ok_or(Error::NoSpace),
        )
    }

    /// Moves everything off `member`, which takes no new blocks from then on; gives the bytes moved. `progress` hears bytes
    /// moved, and all to move.
    ///
    /// # Errors
    /// When the other members have no room; the member is in service again then, with what is left on it.
    pub fn drain(&self, member: MemberId, progress: &mut dyn FnMut(u64, u64)) -> std::result::Result<u64, PoolError> {
        let node = self.pool.home(member);
        let mut moved = 0;
        // Again while something is left: writers that had taken blocks before the drain publish them during it.
        loop {
            let left = self.pool.start_drain(member)?;
            if left == 0 {
                return Ok(moved);
            }
            let before = moved;
            let mut files = Vec::new();
            self.table.for_each(|inode| files.push(Arc::clone(inode)));
            for inode in files {
                let Body::File(file) = &inode.body else { continue };
                let result = self.relocate(
                    &inode,
                    file,
                    &mut |_, _| {},
                    &mut |block| block.member() == member,
                    &mut |want| self.pool.take_near(node, want).ok_or(Error::NoSpace),
                );
                match result {
                    Ok(bytes) => moved += bytes,
                    Err(_) => {
                        self.pool.cancel_drain(member);
                        return Err(PoolError::NoSpace(member));
                    }
                }
                progress(moved, moved.max(left * BLOCK_BYTES as u64));
            }
            if moved == before {
                // What is left is in the hands of writers: they are about to publish it.
                std::thread::yield_now();
            }
        }
    }

    /// Copies each block that `is_wanted` to blocks from `take`, and frees the old one. Closes the gate for a 2 MiB stretch
    /// of the file at a time.
    fn relocate(
        &self,
        inode: &Inode,
        file: &FileBody,
        progress: &mut dyn FnMut(u64, u64),
        is_wanted: &mut dyn FnMut(Block) -> bool,
        take: &mut dyn FnMut(u64) -> Result<(Block, u64)>,
    ) -> Result<u64> {
        let mut moved = 0;
        let mut at = 0;
        loop {
            let closed = inode.close(file, &self.slots);
            let total = file.blocks.sum();
            let Some(stretch) = self.next_placed(file, at) else {
                drop(closed);
                progress(total * BLOCK_BYTES as u64, total * BLOCK_BYTES as u64);
                return Ok(moved);
            };
            at = stretch + RUN_BLOCKS;
            let mut change = |block: Block, blocks: u64| -> Result<Change> {
                if !is_wanted(block) {
                    return Ok(Change::Keep);
                }
                let (to, got) = take(blocks)?;
                if got < blocks {
                    self.pool.free(to, got);
                    return Ok(Change::Split);
                }
                self.pool.memory().copy(block, to, blocks);
                self.pool.free(block, blocks);
                moved += blocks * BLOCK_BYTES as u64;
                Ok(Change::To(to))
            };
            file.map.update(&self.nodes, stretch..at, &mut change)?;
            drop(closed);
            progress(at.min(total) * BLOCK_BYTES as u64, total * BLOCK_BYTES as u64);
        }
    }

    /// Start of the first aligned 2 MiB stretch at or behind file block `at` that has a block.
    fn next_placed(&self, file: &FileBody, mut at: u64) -> Option<u64> {
        while at < BlockMap::LIMIT {
            match file.map.find(&self.nodes, at, BlockMap::LIMIT - at) {
                Found::Placed { .. } => return Some(at / RUN_BLOCKS * RUN_BLOCKS),
                Found::Empty { blocks } => at += blocks,
            }
        }
        None
    }
}
