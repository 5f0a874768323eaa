//! Where each member's bytes are: read on every copy, without a lock.
//!
//! Invariant: a range given out lies within memory that was mapped for that member and whose addresses stay reserved as
//! long as the table's owner lives. A wrong block panics; it never reaches other memory.

use homenode_engine::{BLOCK_BYTES, Block, MemberId};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Base and length by member number.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Slot; MemberId::LIMIT]>,
}

#[derive(Debug)]
struct Slot {
    base: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Table {
    pub(super) fn new() -> Self {
        let empty = || Slot {
            base: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
        };
        Self {
            slots: Box::new(std::array::from_fn(|_| empty())),
        }
    }

    /// From now on `member` is `bytes` bytes at `base`.
    pub(super) fn insert(&self, member: MemberId, base: *mut u8, bytes: usize) {
        let slot = &self.slots[usize::from(member.0)];
        slot.base.store(base, Ordering::Relaxed);
        // Release: who sees the length sees the base, and the mapping behind it.
        slot.bytes.store(bytes, Ordering::Release);
    }

    /// From now on every range of `member` panics.
    pub(super) fn clear(&self, member: MemberId) {
        // The base stays: a copy that has seen the length still finds the reserved addresses.
        // Relaxed: the caller promised that nobody names the member any more.
        self.slots[usize::from(member.0)].bytes.store(0, Ordering::Relaxed);
    }

    /// Where that byte would be, were it the member's: an address to give to a prefetch and nothing else.
    #[inline]
    pub(super) fn guess(&self, block: Block, offset: usize) -> *const u8 {
        let slot = &self.slots[usize::from(block.member().0) % MemberId::LIMIT];
        let start = usize::try_from(block.index() << BLOCK_BYTES.ilog2()).unwrap_or(0);
        // Relaxed: whatever is found is only a hint.
        let base = slot.base.load(Ordering::Relaxed).cast_const();
        base.wrapping_add(start).wrapping_add(offset)
    }

    /// The address of `bytes` bytes from `offset` behind the start of `block`.
    ///
    /// # Panics
    /// When they are not all within the block's member.
    #[inline(always)]
    pub(super) fn range(&self, block: Block, offset: usize, bytes: usize) -> *mut u8 {
        self.find(block, offset, bytes)
            .unwrap_or_else(|member_bytes| out_of_bounds(block, offset, bytes, member_bytes))
    }

    /// [`Table::range`].
    ///
    /// # Errors
    /// The bytes of the block's member, when they are not all within it.
    #[inline(always)]
    pub(super) fn find(&self, block: Block, offset: usize, bytes: usize) -> Result<*mut u8, usize> {
        let slot = self.slots.get(usize::from(block.member().0)).ok_or(0_usize)?;
        // Acquire: pairs with the release in `insert`.
        let member_bytes = slot.bytes.load(Ordering::Acquire);
        // An index is below 2^48, so the product is exact; an offset too large for the sum is out of bounds too.
        let start = (block.index() << BLOCK_BYTES.ilog2()).saturating_add(offset as u64);
        if bytes > member_bytes || start > (member_bytes - bytes) as u64 {
            return Err(member_bytes);
        }
        let start = usize::try_from(start).expect("an offset within a mapping fits a usize");
        // Relaxed: stored before the length that was seen.
        Ok(slot.base.load(Ordering::Relaxed).wrapping_add(start))
    }
}

#[cold]
#[inline(never)]
fn out_of_bounds(block: Block, offset: usize, bytes: usize, member_bytes: usize) -> ! {
    let (member, index) = (block.member(), block.index());
    panic!("{bytes} bytes at {offset} behind block {index} are not within the {member_bytes} bytes of {member}");
}
