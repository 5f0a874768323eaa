//! The block layer.

mod conforming;
mod interleaved;
mod memory;
mod requirements;
mod single;
mod timed;
mod traced;
