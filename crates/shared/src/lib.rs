//! Memory that threads share without a lock: slots, gates and block maps of files; rings, tags and token buckets of cores.
//! And the parser of mountinfo that crates above use.
//!
//! Loom checks each structure; scripts/loom.sh says how far. Block maps are compared with a slow, obvious model as well.

mod barrier;
mod block_map;
mod bucket;
mod copy;
mod fault;
mod frames;
mod freeze;
mod gate;
mod mountinfo;
mod remap;
mod ring;
mod slots;
mod sync;
mod tags;
mod words;

pub use block_map::{
    Allowance, Asker, BlockMap, Change, Extent, Found, Nodes, NodesExhausted, Places, RUN_BLOCKS, Taker,
};
pub use bucket::Bucket;
pub use copy::{PAST_CACHES_BYTES_MIN, end_copy, prefetch, try_copy, try_copy_past_caches};
pub use fault::{Guarded, is_lost, let_bus_errors_through};
pub use frames::{Away, Cooled, Epochs, Forgotten, FrameIndex, first_among};
pub use freeze::Freeze;
pub use gate::{Baton, Gate};
pub use mountinfo::{MountLine, unescaped};
pub use remap::{Door, Map};
pub use ring::{Receiver, Sender, ring};
pub use slots::{Pass, Slot, SlotNumber, Slots};
pub use tags::{TagSpace, Tags};
#[cfg(not(loom))]
pub use words::Words;
pub use words::{Cut, LINES, Line, PIECE_BYTES, PIECE_WORDS, PIECES, Seen};
