//! Bytes that differ everywhere.

/// `bytes` bytes of a stream that `seed` names.
pub(crate) fn bytes(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut all: Vec<u8> = (0..bytes.div_ceil(8))
        .flat_map(|_| random.next().to_le_bytes())
        .collect();
    all.truncate(bytes);
    all
}

/// A small generator of numbers (splitmix64).
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

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
