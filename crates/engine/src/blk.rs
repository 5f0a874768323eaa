//! The block layer: two levels of queues between those who ask for blocks and the devices that have them (Bjørling,
//! Axboe, Nellans, Bonnet, "Linux Block IO: Introducing Multi-queue SSD Access on Multi-core Systems", SYSTOR 2013).
//!
//! Each core has a software queue, where requests are staged, merged and put in order; each device has hardware
//! queues, whose drivers take them in batches. A core that owns the hardware queue it is mapped to calls the driver itself;
//! else its requests go to the core that does and come back, by two rings. A request is a tag, and a slot by that tag
//! has what every layer knows of it.
//!
//! Invariants: a request that was taken is completed exactly once, on the core that submitted it, if its core and its
//! hardware queue's core run; what the driver refuses is served first; nothing waits and nothing is taken from the heap after a core
//! has joined, but when it is mapped to another hardware queue; a core writes no line that another one writes, but for
//! rings it shares with it, tags beyond its share, and shares and limits of streams.
//!
//! The paper's requirements of a block layer (section 3) by name: *device fairness* is [`Scheduling::Fair`] within a core and turns
//! between cores; *accounting* is [`SoftwareCounts`] and [`HardwareCounts`]; the *staging area* is the software queue.

mod accounts;
pub mod conformance;
mod core;
mod device;
mod driver;
mod hardware;
mod latencies;
mod link;
mod request;
mod scheduler;
mod slot;
mod software;
mod time;
pub mod trace;

pub use accounts::{HardwareCounts, OperationCounts, SoftwareCounts};
pub use core::Core;
pub use device::{Device, JoinError, MapError, Options};
pub use driver::{
    Delay, DelayQueue, Distribution, Done, Driver, DriverQueue, Faults, FaultsQueue, Late, Limits, Null, NullQueue,
    Rates,
};
pub use latencies::Latencies;
pub use request::{Completion, Durability, Errno, Operation, Outcome, Refusal, Rejected, Request};
pub use scheduler::{Scheduling, Shares, Stream};
pub use slot::{Segment, Segments, Slots, Tag};
pub use time::{ByRequest, ByRun, Time, Timing};
