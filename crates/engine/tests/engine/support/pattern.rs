//! Bytes that differ everywhere.

/// `bytes` bytes of a stream that `seed` names.
pub(crate) fn bytes(seed: u64, bytes: usize) -> Vec<u8> {
    let mut all = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut all);
    all
}
