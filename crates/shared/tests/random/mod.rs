//! Seed of random numbers, which is printed, and can be given again in `HOMENODE_SEED`.

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("HOMENODE_SEED") {
        Ok(text) => text.parse().expect("HOMENODE_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("HOMENODE_SEED={seed} repeats this run");
    seed
}
