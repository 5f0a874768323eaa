//! What the server and its clients share in memory: slots and the block map. And what cores share: rings, tags, token
//! buckets. Small. All is model-checked with loom, but what needs a closed gate; that is tested against a model.

mod barrier;
mod block_map;
mod bucket;
mod freeze;
mod remap;
mod ring;
mod slots;
mod sync;
mod tags;

pub use block_map::{BlockMap, Change, Extent, Found, Nodes, NodesExhausted, Places, RUN_BLOCKS};
pub use bucket::Bucket;
pub use freeze::Freeze;
pub use remap::{Door, Map};
pub use ring::{Receiver, Sender, ring};
pub use slots::{Gate, Pass, Slot, SlotNumber, Slots};
pub use tags::{TagSpace, Tags};
