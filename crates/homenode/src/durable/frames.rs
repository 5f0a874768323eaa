//! Memory of the cache that durable pools have for their disks: a DRAM member on each node with memory, all of it populated.

use crate::machine::{Machine, Node};
use crate::{Error, MEMBER_BYTES_MIN, NodeId};
use homenode_engine::cache::{SliceOptions, slice_frames_max};
use homenode_engine::pool::MemberKind;
use homenode_engine::{BLOCK_BYTES, MemberId, Memory};
use homenode_linux::memory::{MemberFile, NodeMemory, free_bytes, group_free_bytes};

/// Number of the frames' first member; durable members have lower ones.
pub(super) const FIRST: u16 = 2048;

/// Frames on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frames {
    pub(super) member: MemberId,
    pub(super) home: NodeId,
    pub(super) bytes: u64,
}

impl Frames {
    /// Returns the frames as a slice of the cache.
    pub(super) fn slice(&self) -> SliceOptions {
        SliceOptions {
            member: self.member,
            node: self.home,
            frames: u32::try_from(self.bytes / BLOCK_BYTES as u64).unwrap_or(u32::MAX),
        }
    }
}

/// Adds the frames that a pool of these files needs to `memory`, of `cache` bytes in all, and populates them; none where no file is a disk.
pub(super) fn add<'a>(
    machine: &Machine,
    memory: &NodeMemory,
    files: impl IntoIterator<Item = &'a MemberFile>,
    cache: Option<u64>,
) -> Result<Vec<Frames>, Error> {
    let kinds: Vec<MemberKind> = files.into_iter().map(MemberFile::kind).collect::<Result<_, _>>()?;
    if !kinds.contains(&MemberKind::Block) {
        return Ok(Vec::new());
    }
    let nodes: Vec<&Node> = machine.with_memory().collect();
    cache.map_or(Ok(()), |bytes| check(&nodes, bytes))?;
    let of_group = group_free_bytes() / nodes.len().max(1) as u64;
    let sizes = sizes(&nodes, cache, |node| free_bytes(node).unwrap_or(u64::MAX).min(of_group));
    let homes = nodes.iter().map(|node| node.id);
    let frames = (FIRST..).zip(homes).zip(sizes).map(|((number, home), bytes)| Frames {
        member: MemberId(number),
        home,
        bytes,
    });
    let frames: Vec<Frames> = frames.collect();
    for frames in &frames {
        memory.add(frames.member, frames.home, frames.bytes)?;
    }
    // Nodes clear their pages at the same time.
    std::thread::scope(|scope| {
        let populate = |frames| scope.spawn(move || populate(memory, frames));
        let populating: Vec<_> = frames.iter().map(populate).collect();
        let mut ends = populating
            .into_iter()
            .map(|one| one.join().expect("a populating thread does not panic"));
        ends.try_for_each(|end| end)
    })?;
    Ok(frames)
}

/// Whether the cache of a pool on this machine can have so many bytes, as far as that can be told beforehand.
///
/// # Errors
/// [`Error::CacheSize`].
pub fn check_cache(bytes: u64) -> Result<(), Error> {
    check(&Machine::read(None)?.with_memory().collect::<Vec<_>>(), bytes)
}

fn check(nodes: &[&Node], bytes: u64) -> Result<(), Error> {
    let least_bytes = MEMBER_BYTES_MIN;
    let most_bytes = nodes.iter().map(|node| node.memory_bytes).sum();
    if (least_bytes..=most_bytes).contains(&bytes) {
        return Ok(());
    }
    Err(Error::CacheSize {
        bytes,
        least_bytes,
        most_bytes,
    })
}

fn populate(memory: &NodeMemory, frames: &Frames) -> Result<(), Error> {
    const RUN_BLOCKS: u64 = MEMBER_BYTES_MIN / BLOCK_BYTES as u64;
    let mut runs = 0..frames.bytes / MEMBER_BYTES_MIN;
    let populated = runs.try_for_each(|run| memory.populate(frames.member, run * RUN_BLOCKS, RUN_BLOCKS));
    populated.map_err(|_| Error::CacheRoom {
        node: frames.home,
        bytes: frames.bytes,
    })
}

/// Bytes on each of these nodes, in whole runs: at least one.
fn sizes(nodes: &[&Node], cache: Option<u64>, free_bytes: impl Fn(NodeId) -> u64) -> Vec<u64> {
    let all_bytes: u64 = nodes.iter().map(|node| node.memory_bytes).sum();
    let most = u64::from(slice_frames_max(nodes.len())) * BLOCK_BYTES as u64;
    let share = |node: &&Node| {
        let bytes = match cache {
            Some(bytes) => {
                let share = u128::from(bytes) * u128::from(node.memory_bytes) / u128::from(all_bytes);
                u64::try_from(share).expect("a share of a u64 fits a u64")
            }
            None => (node.memory_bytes / 4).min(free_bytes(node.id) / 2),
        };
        if bytes > most {
            tracing::warn!(node = %node.id, most, "a slice of the cache is smaller than wanted: it cannot have more frames");
        }
        (bytes.min(most) / MEMBER_BYTES_MIN).max(1) * MEMBER_BYTES_MIN
    };
    nodes.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sizes_of(memory: &[u64], cache: Option<u64>, free: u64) -> Vec<u64> {
        let nodes = (0..).zip(memory).map(|(number, memory)| Node {
            id: NodeId(number),
            cpus: Vec::new(),
            memory_bytes: memory * MIB,
        });
        let nodes: Vec<Node> = nodes.collect();
        let nodes: Vec<&Node> = nodes.iter().collect();
        let sizes = sizes(&nodes, cache.map(|cache| cache * MIB), |_| free * MIB);
        sizes.iter().map(|bytes| bytes / MIB).collect()
    }

    #[test]
    fn a_cache_is_divided_by_the_nodes_memory() {
        assert_eq!(sizes_of(&[1000, 3000], Some(100), 0), [24, 74]);
        assert_eq!(sizes_of(&[1, 4000], Some(8), 0), [2, 6]);
        assert_eq!(sizes_of(&[7], Some(9), 0), [8]);
        assert_eq!(sizes_of(&[1000, 1000], Some(3), 0), [2, 2], "a run each");
    }

    #[test]
    fn the_default_cache_is_a_quarter_of_memory_and_at_most_half_of_the_free() {
        assert_eq!(sizes_of(&[1000, 3001], None, 4000), [250, 750]);
        assert_eq!(sizes_of(&[1000, 3001], None, 600), [250, 300]);
        assert_eq!(sizes_of(&[1000], None, 0), [2]);
    }

    #[test]
    fn a_slice_has_at_most_the_numbered_frames() {
        const TIB: u64 = 1 << 20;
        assert_eq!(sizes_of(&[4 * TIB], None, u64::MAX >> 20), [512 << 10]);
        assert_eq!(sizes_of(&[2 * TIB; 2], None, u64::MAX >> 20), [256 << 10; 2]);
        assert_eq!(sizes_of(&[TIB; 8], None, u64::MAX >> 20), [64 << 10; 8]);
    }
}
