//! Status of a cache and of its slices.

use super::Cached;
use super::save::count;
use super::space::Slice;
use crate::NodeId;
use std::sync::atomic::Ordering;

/// State of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// Slices, ascending by node.
    pub slices: Vec<SliceStatus>,
    /// Bytes of tables, besides the frames: as far as all of each disk was used.
    pub table_bytes: u64,
}

/// State of a slice. Frames and blocks have 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceStatus {
    /// Its node.
    pub node: NodeId,
    /// Frames that it has.
    pub frames: u64,
    /// Frames that hold no block.
    pub free: u64,
    /// Frames that are newer than their disks.
    pub dirty: u64,
    /// Blocks read from disks so far.
    pub fetched: u64,
    /// Blocks written to disks so far.
    pub saved: u64,
    /// Frames given to other nodes' blocks so far.
    pub stolen: u64,
    /// Blocks read for the node so far that had been evicted not long before, from whichever slice: as many were evicted since as there are frames.
    pub returned: u64,
}

impl<M> Cached<M> {
    /// Its state.
    pub fn cache_status(&self) -> CacheStatus {
        let Some(cache) = &self.cache else {
            return CacheStatus::default();
        };
        let slices = cache.slices.iter().map(|slice| {
            let (free, _) = slice.counts();
            // Relaxed: figures.
            SliceStatus {
                node: slice.node,
                frames: slice.frames.into(),
                free,
                dirty: count(&slice.dirty),
                fetched: slice.fetched.load(Ordering::Relaxed),
                saved: slice.saved.load(Ordering::Relaxed),
                stolen: slice.stolen.load(Ordering::Relaxed),
                returned: slice.returned.load(Ordering::Relaxed),
            }
        });
        let slices: Vec<_> = slices.collect();
        let frames: u64 = slices.iter().map(|slice| slice.frames).sum();
        let disks = cache.disks.iter().filter_map(|disk| disk.get());
        let blocks: u64 = disks.map(|disk| disk.index.blocks()).sum();
        CacheStatus {
            slices,
            table_bytes: frames * Slice::TABLE_BYTES as u64 + blocks * 4,
        }
    }
}
