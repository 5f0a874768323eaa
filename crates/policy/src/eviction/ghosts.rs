//! Ghosts: the keys of blocks that were evicted a short while ago, in a table of fixed size.
//!
//! A key belongs to a set of [`WAYS`] fingerprints, newest first; a new one displaces the oldest of its set. So the table needs no
//! clock: a ghost stays for as many evictions as there are entries, give or take a quarter.
//! Cost: 4 bytes an entry; one cache line is read for each question. Of 2^28 keys that are no ghosts one is taken for a ghost.
//!
//! Threads share a table without a lock. Where two change a set at the same time, a ghost may be lost or stay though it was recalled:
//! a block is then kept shorter or longer than it should be.

use alloc::boxed::Box;
use core::array;
use core::sync::atomic::{AtomicU32, Ordering};

/// Fingerprints of a set: a cache line.
const WAYS: usize = 16;
/// Fingerprint of no key.
const EMPTY: u32 = 0;

/// Relaxed throughout: no other memory depends on a fingerprint.
#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU32; WAYS]);

/// Keys of blocks that were evicted, in the order in which they are forgotten.
#[derive(Debug)]
pub struct Ghosts {
    sets: Box<[Set]>,
}

impl Ghosts {
    /// Room for as many ghosts, in whole sets of 16: as many as the cache has frames.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let set = || Set(array::from_fn(|_| AtomicU32::new(EMPTY)));
        Self {
            sets: (0..entries.div_ceil(WAYS).max(1)).map(|_| set()).collect(),
        }
    }

    /// Remembers the key of a victim.
    pub fn remember(&self, key: u64) {
        let (Set(set), fingerprint) = self.place(key);
        for at in (1..WAYS).rev() {
            set[at].store(set[at - 1].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        set[0].store(fingerprint, Ordering::Relaxed);
    }

    /// Forgets the key of a block that comes in; whether it was remembered.
    pub fn recall(&self, key: u64) -> bool {
        let (Set(set), fingerprint) = self.place(key);
        let is_it = |other: &AtomicU32| other.load(Ordering::Relaxed) == fingerprint;
        let Some(at) = set.iter().position(is_it) else {
            return false;
        };
        for at in at..WAYS - 1 {
            set[at].store(set[at + 1].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        set[WAYS - 1].store(EMPTY, Ordering::Relaxed);
        true
    }

    /// Address of what [`Ghosts::remember`] and [`Ghosts::recall`] read for a key, for a prefetch.
    #[must_use]
    pub fn address(&self, key: u64) -> *const u8 {
        core::ptr::from_ref(self.place(key).0).cast()
    }

    /// The set of a key, by the upper half of its hash; and its fingerprint, the lower half.
    fn place(&self, key: u64) -> (&Set, u32) {
        let hash = mixed(key);
        // Below the number of sets, as a half is below 2^32.
        let set = ((hash >> 32) * self.sets.len() as u64) >> 32;
        #[expect(clippy::cast_possible_truncation, reason = "the lower half of the hash is meant")]
        let fingerprint = (hash as u32).max(EMPTY + 1);
        (&self.sets[set as usize], fingerprint)
    }
}

/// A number with each bit of the key in each of its bits (the finalizer of splitmix64).
fn mixed(key: u64) -> u64 {
    let mut mixed = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_recalled_once() {
        let ghosts = Ghosts::new(100);
        ghosts.remember(7);
        ghosts.remember(8);
        assert!(ghosts.recall(7) && !ghosts.recall(7));
        assert!(ghosts.recall(8) && !ghosts.recall(9));
    }

    #[test]
    fn a_full_set_forgets_its_oldest_ghost() {
        let ghosts = Ghosts::new(WAYS);
        (0..20).for_each(|key| ghosts.remember(key));
        let found: alloc::vec::Vec<u64> = (0..20).filter(|key| ghosts.recall(*key)).collect();
        assert!(found.iter().copied().eq(4..20), "{found:?}");
    }

    #[test]
    fn ghosts_stay_for_about_as_many_evictions_as_entries() {
        const ENTRIES: u64 = 1 << 16;
        let ghosts = Ghosts::new(1 << 16);
        // Keys as blocks of one file have them: one after the other.
        (0..4 * ENTRIES).for_each(|key| ghosts.remember(key));
        let share_of = |ages: core::ops::Range<u64>| {
            let count = ages.end - ages.start;
            let found = ages.filter(|age| ghosts.recall(4 * ENTRIES - 1 - age)).count() as u64;
            found * 100 / count
        };
        assert!(share_of(0..ENTRIES / 2) >= 98);
        assert!((75..=95).contains(&share_of(ENTRIES / 2..ENTRIES)));
        assert!(share_of(ENTRIES * 3 / 2..2 * ENTRIES) <= 5);
        assert_eq!(share_of(2 * ENTRIES..4 * ENTRIES), 0);
        assert!(
            (0..ENTRIES).all(|key| !ghosts.recall(1 << 40 | key)),
            "an unknown key is a ghost"
        );
    }
}
