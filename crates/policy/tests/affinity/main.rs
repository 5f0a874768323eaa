//! `decide` on machines made by hand and at random, against slow and obvious models.

mod buffers;
mod nonsense;
mod optimum;
mod permuted;
mod quiet;
mod resets;
#[path = "../seeded/mod.rs"]
mod seeded;
mod senders;
mod settling;
mod slow_cost;
mod speed;
mod threads;
mod world;
mod worlds;
