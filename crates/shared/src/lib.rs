//! What the server and its clients share in memory: slots and the block map. Small. Slots, and filling and
//! growing the map, are model-checked with loom; what needs a closed gate is tested against a model.

mod barrier;
mod block_map;
mod slots;
mod sync;

pub use block_map::{BlockMap, Change, Extent, Found, Nodes, NodesExhausted, Places, RUN_BLOCKS};
pub use slots::{Gate, Pass, Slot, SlotNumber, Slots};
