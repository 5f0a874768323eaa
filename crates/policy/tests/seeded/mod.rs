//! Runs a property with a seed that is printed, and can be given again in `HOMENODE_SEED`.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Checks `property` on `cases` values of `strategy`; a failure shows the smallest value found and the seed.
pub(crate) fn check<S: Strategy>(cases: u32, strategy: S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = match std::env::var("HOMENODE_SEED") {
        Ok(text) => text.parse().expect("HOMENODE_SEED is a number"),
        Err(_) => rand_seed(),
    };
    check_seed(seed, cases, strategy, property);
}

/// Checks `property` on the values that one seed makes.
pub(crate) fn check_seed<S: Strategy>(
    seed: u64,
    cases: u32,
    strategy: S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    println!("HOMENODE_SEED={seed} repeats this run");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    if let Err(failure) = runner.run(&strategy, property) {
        panic!("HOMENODE_SEED={seed}: {failure}");
    }
}

/// The standard library's hasher is keyed at random.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
