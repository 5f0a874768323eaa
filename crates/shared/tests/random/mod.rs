//! Random numbers whose seed is printed, and can be given again in `HOMENODE_SEED`.

use std::hash::{BuildHasher, RandomState};

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("HOMENODE_SEED") {
        Ok(text) => text.parse().expect("HOMENODE_SEED is a number"),
        // The standard library's hasher is keyed at random.
        Err(_) => RandomState::new().hash_one(std::process::id()),
    };
    println!("HOMENODE_SEED={seed} repeats this run");
    seed
}

/// A small generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
