//! Dynamic core affinity: which CPUs interrupts, queues and threads are to use, decided together, from one period to the
//! next (multi-queue dynamic core affinity).

mod snapshot;

pub use snapshot::{DiskBytes, Interrupt, Queue, QueueKind, Snapshot, Thread, ThreadId};
