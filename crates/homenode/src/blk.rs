//! The block layer: devices that threads submit requests to without locks. See [`homenode_engine::blk`] for how it works.

pub use homenode_engine::blk::*;
pub use homenode_linux::clock::StampClock;
pub use homenode_linux::driver::{Arena, ArenaError, OpenError, Ram, Storage, UringFile, UringOptions};
