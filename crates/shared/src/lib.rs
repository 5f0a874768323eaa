//! What the server and its clients share in memory: slots and the block map. Small, and model-checked with loom.

mod slots;
pub use slots::{Slot, Slots};
