//! Runs a property with a seed that is printed, and can be given again in `HOMENODE_SEED`.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("HOMENODE_SEED") {
        Ok(text) => text.parse().expect("HOMENODE_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("HOMENODE_SEED={seed} repeats this run");
    seed
}

/// Checks `property` on `cases` values of `strategy`; a failure shows the smallest value found and the seed.
pub(crate) fn check<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_time: 20_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    match runner.run(&strategy, property) {
        Ok(()) => {}
        Err(TestError::Fail(reason, smallest)) => panic!("HOMENODE_SEED={seed}: {reason}: {smallest:?}"),
        Err(aborted) => panic!("HOMENODE_SEED={seed}: {aborted}"),
    }
}
