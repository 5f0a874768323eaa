//! What the server and its clients share in memory: slots and the block map. Small, and model-checked with loom.

mod block_map;
mod slots;
mod sync;

pub use block_map::{BlockMap, Change, Extent, Found, Nodes, NodesExhausted, Places, RUN_BLOCKS};
pub use slots::{Gate, Pass, Slot, SlotNumber, Slots};
