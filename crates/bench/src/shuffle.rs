//! Random orders that are the same in every run: splitmix64 and a Fisher-Yates shuffle.

/// A generator of well mixed 64-bit numbers (splitmix64). Not for secrets.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Equal seeds give equal sequences.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0. The bias is below `bound` in 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }
}

/// The numbers below `count` in a random order.
pub(crate) fn permutation(count: usize, seed: u64) -> Vec<u32> {
    let count = u32::try_from(count).expect("passes have fewer than 2^32 operations");
    let mut order: Vec<u32> = (0..count).collect();
    let mut random = Random::new(seed);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_is_a_permutation_that_depends_on_the_seed() {
        let order = permutation(1000, 7);
        assert_eq!(order, permutation(1000, 7));
        assert_ne!(order, permutation(1000, 8));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_ne!(order, sorted);
        assert_eq!(sorted, (0..1000).collect::<Vec<u32>>());
    }
}
