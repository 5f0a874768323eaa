//! Prints the rows of all figures at a small size: what `scripts/mutants.py` compares.
use homenode_sim::figures::{ALL, Effort};

fn main() {
    let effort = Effort {
        draws: 3,
        seed: 1,
        is_small: true,
    };
    for (name, make) in ALL {
        println!("{name}\n{}", make(&effort).rows());
    }
}
