//! Status of a cache and of its slices.

use super::Cached;
use super::save::count;
use super::space::Slice;
use crate::{BLOCK_BYTES, NodeId};
use homenode_shared::FrameIndex;
use std::sync::atomic::Ordering;

/// State of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct CacheStatus {
    /// Slices, ascending by node.
    #[cfg_attr(feature = "serde", serde(rename = "cache"))]
    pub slices: Vec<SliceStatus>,
    /// Bytes of tables, besides the frames: as far as all of each disk was used.
    #[cfg_attr(feature = "serde", serde(rename = "cache_table_bytes"))]
    pub table_bytes: u64,
}

/// State of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SliceStatus {
    /// Its node.
    pub node: NodeId,
    /// All its frames.
    pub bytes: u64,
    /// Frames that hold no block.
    pub free_bytes: u64,
    /// Frames that are newer than their disks.
    pub dirty_bytes: u64,
    /// Copies to and from its frames, those of blocks that had to be read first among them. The pool counts them: 0 until it says so.
    pub copies: u64,
    /// Read from disks so far: misses, and what was read ahead.
    pub fetched_bytes: u64,
    /// Written to disks so far.
    pub saved_bytes: u64,
    /// Frames given to other nodes' blocks so far.
    pub stolen_bytes: u64,
    /// Read for the node so far though evicted not long before, from whichever slice: as many were evicted since as there are frames.
    #[cfg_attr(feature = "serde", serde(default))]
    pub returned_bytes: u64,
}

impl<M> Cached<M> {
    /// Its state.
    pub fn cache_status(&self) -> CacheStatus {
        let Some(cache) = &self.cache else {
            return CacheStatus::default();
        };
        let slices = cache.slices.iter().map(|slice| {
            let (free, _) = slice.counts();
            let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
            // Relaxed: figures.
            SliceStatus {
                node: slice.node,
                bytes: bytes(slice.frames.into()),
                free_bytes: bytes(free),
                dirty_bytes: bytes(count(&slice.dirty)),
                copies: 0,
                fetched_bytes: bytes(slice.fetched.load(Ordering::Relaxed)),
                saved_bytes: bytes(slice.saved.load(Ordering::Relaxed)),
                stolen_bytes: bytes(slice.stolen.load(Ordering::Relaxed)),
                returned_bytes: bytes(slice.returned.load(Ordering::Relaxed)),
            }
        });
        let frames: u64 = cache.slices.iter().map(|slice| u64::from(slice.frames)).sum();
        let disks = cache.disks.iter().filter_map(|disk| disk.get());
        let there = disks.filter(|disk| !disk.is_gone.load(Ordering::Relaxed));
        let indexes: u64 = there.map(|disk| FrameIndex::bytes(disk.index.blocks())).sum();
        let instead = cache.instead.get().map_or(0, |blocks| blocks.len() * BLOCK_BYTES);
        CacheStatus {
            slices: slices.collect(),
            table_bytes: frames * Slice::TABLE_BYTES as u64 + indexes + instead as u64,
        }
    }
}
