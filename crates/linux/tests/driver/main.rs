//! The drivers of Linux keep the block layer's contract, and what is theirs besides.
#![expect(clippy::unwrap_used, reason = "a test may end so")]
#![expect(clippy::cast_possible_truncation, reason = "numbers of places are small")]

mod disk;
mod file;
mod ram;
mod whole;
