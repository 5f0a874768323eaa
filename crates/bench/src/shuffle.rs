//! Random orders that are the same in every run.

/// The numbers below `count` in a random order.
pub(crate) fn permutation(count: usize, seed: u64) -> Vec<u32> {
    let count = u32::try_from(count).expect("passes have fewer than 2^32 operations");
    let mut order: Vec<u32> = (0..count).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}
