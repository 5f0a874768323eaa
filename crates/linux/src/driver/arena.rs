//! The memory that requests name: `Request::buffer` is a number of bytes from its start.
//!
//! Invariants: it is mapped once, present from the start, and stays where it is until the last who has it lets go; no
//! reference to its bytes exists: they move by [`copy`] or the kernel only, so who uses the same bytes at the same time
//! gets a mix of them and no worse; every range is checked against its end before it becomes an address.

use crate::copy;
use crate::memory::mapping::{HUGE_BYTES, Mapping};
use crate::memory::{NodeMemory, free_bytes, group_free_bytes, total_bytes};
use homenode_engine::blk::conformance::Buffers;
use homenode_engine::{Block, NodeId};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// Memory for the data of requests, shared by who submits them and the drivers.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    bytes: usize,
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// Zero bytes, or more than there are addresses.
    #[error("cannot allocate {0} bytes of memory for requests: ask for 1 byte or more, within the machine's memory")]
    Size(u64),
    /// There is no such node, or it cannot be asked.
    #[error("{node} cannot give memory to requests ({source}): `homenode topology` lists the nodes")]
    Node {
        /// The node.
        node: NodeId,
        /// The errno.
        source: io::Error,
    },
    /// It is not free.
    #[error(
        "{} can give {} MiB to requests now, not {} MiB: ask for less, or free memory",
        home.map_or("the machine".to_owned(), |node| node.to_string()), free >> 20, bytes.div_ceil(1 << 20)
    )]
    Room {
        /// Where it was to come from.
        home: Option<NodeId>,
        /// Asked for.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The kernel refused.
    #[error("{doing} for {} MiB of memory for requests: {source}", bytes.div_ceil(1 << 20))]
    Map {
        /// Asked for.
        bytes: u64,
        /// Operation that the kernel refused.
        doing: &'static str,
        /// The errno.
        source: io::Error,
    },
}

impl Arena {
    /// Maps `bytes` bytes and makes them present, of `home` where one is given: in huge pages where the kernel has them.
    ///
    /// # Errors
    /// See [`ArenaError`]; nothing is left behind.
    pub fn new(bytes: u64, home: Option<NodeId>) -> Result<Arc<Self>, ArenaError> {
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let length = length.ok_or(ArenaError::Size(bytes))?;
        let mapped = length
            .checked_next_multiple_of(HUGE_BYTES)
            .ok_or(ArenaError::Size(bytes))?;
        require(bytes, home)?;
        let arena = Self::map(length, mapped)?;
        arena.prefer(0, mapped, home)?;
        arena.populate(mapped)?;
        Ok(Arc::new(arena))
    }

    /// Parts of `part_bytes` bytes (whole huge pages of 2 MiB), one behind the other, each of its home; of any node where the home
    /// has no memory at all.
    ///
    /// # Errors
    /// See [`ArenaError`]; nothing is left behind.
    pub(crate) fn parted(part_bytes: u64, homes: &[NodeId]) -> Result<Arc<Self>, ArenaError> {
        let bytes = part_bytes.saturating_mul(homes.len() as u64);
        let length = usize::try_from(bytes).ok().filter(|length| *length > 0);
        let length = length.ok_or(ArenaError::Size(bytes))?;
        let part = usize::try_from(part_bytes).map_err(|_| ArenaError::Size(bytes))?;
        assert!(part.is_multiple_of(HUGE_BYTES), "each part is whole huge pages");
        let has_memory = |home: NodeId| total_bytes(home).is_ok_and(|bytes| bytes > 0);
        let homes: Vec<_> = homes
            .iter()
            .map(|home| Some(*home).filter(|home| has_memory(*home)))
            .collect();
        for home in homes.iter().collect::<BTreeSet<_>>() {
            let wanted = part_bytes * homes.iter().filter(|other| *other == home).count() as u64;
            require(wanted, *home)?;
        }
        let free = group_free_bytes();
        if bytes > free {
            return Err(ArenaError::Room {
                home: None,
                bytes,
                free,
            });
        }
        let arena = Self::map(length, length)?;
        for (index, home) in homes.iter().enumerate() {
            arena.prefer(index * part, part, *home)?;
        }
        arena.populate(length)?;
        Ok(Arc::new(arena))
    }

    /// Addresses for `mapped` bytes, with memory to come.
    fn map(length: usize, mapped: usize) -> Result<Self, ArenaError> {
        let failed = |doing| move |source| failed(length, doing, source);
        let mapping = Mapping::reserve(mapped).map_err(failed("reserving addresses"))?;
        mapping.fill().map_err(failed("mapping"))?;
        // Both cost speed or space only where they are not taken.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_DONTDUMP] {
            let _ = mapping.advise(advice);
        }
        // A seldom used buffer would be the first to be swapped out, and those whose pages are dirty for the device wait for it then. Whoever may not lock so
        // much goes without.
        let _ = mapping.lock();
        Ok(Self { mapping, bytes: length })
    }

    fn prefer(&self, offset: usize, bytes: usize, home: Option<NodeId>) -> Result<(), ArenaError> {
        let Some(home) = home else { return Ok(()) };
        match self.mapping.prefer(offset, bytes, home) {
            // A kernel without NUMA has nothing to choose from; and the process may not take memory of that node (cpuset).
            Ok(()) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => Ok(()),
            Err(error) => Err(failed(self.bytes, "choosing the node", error)),
        }
    }

    fn populate(&self, mapped: usize) -> Result<(), ArenaError> {
        let taken = self.mapping.populate(0, mapped);
        taken.map_err(|source| failed(self.bytes, "taking the pages", source))
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Puts `from` at `at`.
    ///
    /// # Panics
    /// When that goes beyond its end.
    pub fn write(&self, at: u64, from: &[u8]) {
        let to = self.expect(at, from.len());
        // SAFETY: `expect` answers for as many mapped bytes; `from` is a slice, of which none lies in an arena.
        unsafe { copy::store(to, from.as_ptr(), from.len()) }
    }

    /// Copies what is at `at`.
    ///
    /// # Panics
    /// When that goes beyond its end.
    pub fn read(&self, at: u64, to: &mut [u8]) {
        let from = self.expect(at, to.len());
        // SAFETY: as in `write`; `to` is the caller's alone.
        unsafe { copy::load(to.as_mut_ptr(), from, to.len()) }
    }

    /// Copies `bytes` bytes from `offset` behind the start of `from` to `at`, in one copy.
    ///
    /// # Panics
    /// When they go beyond the end of the arena, or of the block's member.
    #[inline]
    pub fn load(&self, at: u64, memory: &NodeMemory, (from, offset): (Block, usize), bytes: usize) {
        let to = self.expect(at, bytes);
        let from = memory.address(from, offset, bytes);
        // SAFETY: `expect` and `address` answer for as many mapped bytes, of different mappings; an arena's bytes are reached by
        // `copy` and the kernel only.
        unsafe { copy::load(to, from, bytes) }
    }

    /// Copies `bytes` bytes at `at` to `offset` behind the start of `to`, in one copy.
    ///
    /// # Panics
    /// When they go beyond the end of the arena, or of the block's member.
    #[inline]
    pub fn store(&self, at: u64, memory: &NodeMemory, (to, offset): (Block, usize), bytes: usize) {
        let from = self.expect(at, bytes);
        let to = memory.address(to, offset, bytes);
        // SAFETY: as in `load`.
        unsafe { copy::store(to, from, bytes) }
    }

    /// Writes `bytes` zeros at `at`.
    ///
    /// # Panics
    /// When that goes beyond its end.
    pub fn zero(&self, at: u64, bytes: usize) {
        let at = self.expect(at, bytes);
        // SAFETY: `expect` answers for as many mapped bytes.
        unsafe { copy::zero(at, bytes) }
    }

    /// The address of `bytes` bytes from `at` on, if it has them. They stay mapped while the arena lives.
    #[inline]
    pub(crate) fn range(&self, at: u64, bytes: usize) -> Option<*mut u8> {
        let last = self.bytes.checked_sub(bytes)?;
        let at = usize::try_from(at).ok().filter(|at| *at <= last)?;
        Some(self.mapping.base().wrapping_add(at))
    }

    fn expect(&self, at: u64, bytes: usize) -> *mut u8 {
        let Some(range) = self.range(at, bytes) else {
            panic!(
                "{bytes} bytes at {at} are not within the {} bytes of an arena",
                self.bytes
            );
        };
        range
    }
}

impl Buffers for Arena {
    fn bytes(&self) -> u64 {
        Arena::bytes(self)
    }

    fn fill(&self, buffer: u64, from: &[u8]) {
        self.write(buffer, from);
    }

    fn copy(&self, buffer: u64, to: &mut [u8]) {
        self.read(buffer, to);
    }
}

fn require(bytes: u64, home: Option<NodeId>) -> Result<(), ArenaError> {
    let free = free(home)?;
    if bytes > free {
        return Err(ArenaError::Room { home, bytes, free });
    }
    Ok(())
}

fn failed(bytes: usize, doing: &'static str, source: io::Error) -> ArenaError {
    let bytes = bytes as u64;
    ArenaError::Map { bytes, doing, source }
}

/// Returns the free bytes of `home`, or of all nodes together.
fn free(home: Option<NodeId>) -> Result<u64, ArenaError> {
    let of = |node| free_bytes(node).map_err(|source| ArenaError::Node { node, source });
    match home {
        Some(node) => of(node),
        None => {
            let with_memory = |node: &NodeId| total_bytes(*node).is_ok_and(|bytes| bytes > 0);
            // Linux has at most 1024 nodes.
            let all: u64 = (0..1024)
                .map(NodeId)
                .filter(with_memory)
                .map(of)
                .sum::<Result<_, _>>()?;
            Ok(all.min(group_free_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_where_they_are_put() {
        let arena = Arena::new(3 << 20, Some(NodeId(0))).unwrap();
        assert_eq!(arena.bytes(), 3 << 20);
        assert_eq!(arena.mapping.base().addr() % HUGE_BYTES, 0);
        arena.write(5, b"abc");
        arena.write((3 << 20) - 1, b"z");
        let mut read = [1; 5];
        arena.read(4, &mut read);
        assert_eq!(&read, b"\0abc\0");
        arena.read((3 << 20) - 1, &mut read[..1]);
        assert_eq!(read[0], b'z');
    }

    #[test]
    fn parts_lie_one_behind_the_other() {
        let arena = Arena::parted(HUGE_BYTES as u64, &[NodeId(0), NodeId(900), NodeId(0)]).unwrap();
        assert_eq!(arena.bytes(), 3 * HUGE_BYTES as u64);
        arena.write(3 * HUGE_BYTES as u64 - 1, b"z");
        let text = |part, homes: &[NodeId]| Arena::parted(part, homes).unwrap_err().to_string();
        assert!(text(1 << 50, &[NodeId(0)]).starts_with("node 0 can give "));
        assert!(text(HUGE_BYTES as u64, &[]).contains("0 bytes"));
    }

    #[test]
    fn arena_ranges_end_at_its_size() {
        let arena = Arena::new(4096, None).unwrap();
        assert!(arena.range(0, 4096).is_some());
        assert!(arena.range(4096, 0).is_some());
        for (at, bytes) in [
            (0, 4097),
            (4096, 1),
            (1, 4096),
            (u64::MAX, 1),
            (1, usize::MAX),
            (u64::MAX, usize::MAX),
        ] {
            assert!(arena.range(at, bytes).is_none(), "{bytes} at {at}");
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095 are not within the 4096 bytes of an arena")]
    fn beyond_its_end() {
        Arena::new(4096, None).unwrap().write(4095, &[0; 2]);
    }

    #[test]
    fn impossible_arenas_are_refused_with_the_reason() {
        let text = |bytes, home| Arena::new(bytes, home).unwrap_err().to_string();
        assert!(text(0, None).starts_with("cannot allocate 0 bytes of memory for requests"));
        assert!(text(u64::MAX, None).contains("18446744073709551615"));
        assert!(
            text(1 << 50, None).starts_with("the machine can give "),
            "{}",
            text(1 << 50, None)
        );
        assert!(text(1 << 50, Some(NodeId(0))).starts_with("node 0 can give "));
        assert!(text(4096, Some(NodeId(900))).contains("node 900"));
    }
}
