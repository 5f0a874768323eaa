//! Ghosts: keys of blocks that were evicted a short while ago, in a table of fixed size.
//!
//! A key belongs to a set of [`WAYS`] fingerprints, one cache line, newest first; a new one displaces the oldest of its set. So there
//! is no clock: a ghost stays for as many evictions as there are entries, give or take a quarter.
//! Cost: 4 bytes for each frame; a look reads one cache line. Of 2^28 keys that are no ghosts, one is taken for a ghost.

use alloc::boxed::Box;
use alloc::vec;

/// Fingerprints of a set: a cache line.
const WAYS: usize = 16;
/// Where no ghost is.
const EMPTY: u32 = 0;

#[derive(Debug)]
pub(super) struct Ghosts {
    sets: Box<[[u32; WAYS]]>,
}

impl Ghosts {
    /// As many entries as frames, in whole sets.
    pub(super) fn new(frames: u32) -> Self {
        let sets = (frames as usize).div_ceil(WAYS).max(1);
        Self {
            sets: vec![[EMPTY; WAYS]; sets].into_boxed_slice(),
        }
    }

    /// Remembers a key.
    pub(super) fn put(&mut self, key: u64) {
        let (set, fingerprint) = self.place(key);
        set.copy_within(..WAYS - 1, 1);
        set[0] = fingerprint;
    }

    /// Forgets a key; whether it was remembered.
    pub(super) fn take(&mut self, key: u64) -> bool {
        let (set, fingerprint) = self.place(key);
        let Some(at) = set.iter().position(|other| *other == fingerprint) else {
            return false;
        };
        set.copy_within(at + 1.., at);
        set[WAYS - 1] = EMPTY;
        true
    }

    /// The set of a key, by the upper half of its hash, and its fingerprint, the lower half.
    fn place(&mut self, key: u64) -> (&mut [u32; WAYS], u32) {
        let hash = mixed(key);
        let set = ((hash >> 32) * self.sets.len() as u64) >> 32;
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let fingerprint = (hash as u32).max(EMPTY + 1);
        // Below the number of sets, as the upper half is below 2^32.
        (&mut self.sets[set as usize], fingerprint)
    }
}

/// All bits of a key in all bits of the result (the finalizer of splitmix64).
fn mixed(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
