//! Cost of a placement. One cost model serves everything that is placed: queues and threads, and tasks with their
//! buffers.
//!
//! **Unit.** Cost is counted in bytes a second that travel as far again as a local access: 1 MB/s between nodes of
//! distance 20, where 10 is local, costs 1 MB/s; at distance 15 it costs half. So the cost is 0 when every byte stays on
//! its node and in its cache.
//!
//! **Distance**, in percent beyond a local access, from the machine's latencies: `(ab + ba) / (aa + bb) - 1` between two
//! nodes, up to [`DISTANCE_PERCENT_MAX`]; [`CACHE_PERCENT`] between two caches of a node; 0 within a cache.
//!
//! **Bytes.** A byte's way is thread - CPU that processes it - CPU of the interrupt - device's home. The CPUs work on it,
//! so between CPUs the distance counts in full; the last stretch is the device's own access to memory, which no CPU
//! waits for, and counts [`DEVICE_ACCESS_PERCENT`]. Where no interrupt is known, only the last stretch counts, from the
//! thread's CPU. A thread or queue with several CPUs uses each alike. A device without home is local to all.
//! A byte that the thread copies from or to a buffer in memory travels between its CPU and the buffer's home: the distance
//! counts in full, as a CPU waits for it.
//!
//! **Overload.** CPU time beyond what a CPU may take is lost: a whole CPU's worth of it costs
//! [`OVERLOAD_BYTES_PER_CPU`] a second. That is more than a core can copy, so that nothing is made local at the price of
//! stalling it.
//!
//! The load of CPUs is the threads' CPU time, and for interrupts that can move [`INTERRUPT_NS`] each and
//! [`RECEIVE_NS_PER_KIB`]. Completions of disks whose interrupts cannot move go with the thread, and are not counted.
//!
//! **Migration.** A move costs what the configuration says, once for each thing that is moved in a period, and the
//! hysteresis: a share of what the moved thing's bytes cost where it is.

use crate::NodeId;
use crate::topology::Topology;
use alloc::vec::Vec;
use core::fmt;

/// Between two caches of one node: a line is fetched from the other cache, which is nearer than the other node's memory.
pub const CACHE_PERCENT: u64 = 10;
/// No node is farther: five times a local access. Firmware tables hold 255 for "unreachable".
pub const DISTANCE_PERCENT_MAX: u64 = 400;
/// The share of a distance that counts for the device's own access to memory.
pub const DEVICE_ACCESS_PERCENT: u64 = 50;
/// Cost of one CPU's worth of overload, in bytes a second. A core copies up to about 2 GB/s from one node to another
/// and back.
pub const OVERLOAD_BYTES_PER_CPU: u64 = 4_000_000_000;
/// Time for which an interrupt keeps its CPU busy, roughly.
pub const INTERRUPT_NS: u64 = 2_000;
/// Time to process 1 KiB of received packets, roughly.
pub const RECEIVE_NS_PER_KIB: u64 = 300;
/// Bytes that an interrupt brings at least: a packet. Bytes that no lasting thread is known to take count as unknown.
pub const ARRIVAL_BYTES: u64 = 1_500;
/// Rates are cut here, above what any device moves, so that sums cannot overflow.
pub const RATE_BYTES_PER_S_MAX: u64 = 100_000_000_000;

/// Rates of a thread's buffers on a node are cut here, above what a CPU copies: a server that tells more weighs no more than a real load.
pub const BUFFER_BYTES_PER_S_MAX: u64 = 16_000_000_000;

pub(crate) const NS_PER_S: u64 = 1_000_000_000;
/// Cost units of one nanosecond of overload in a second.
pub(super) const OVERLOAD_PER_NS: u64 = OVERLOAD_BYTES_PER_CPU / NS_PER_S * 100;

/// A cost: bytes a second, times the percent that they travel beyond a local access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub(super) u64);

/// Serializes the bytes a second.
#[cfg(feature = "serde")]
impl serde::Serialize for Cost {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.bytes_per_s())
    }
}

impl Cost {
    /// Returns the cost of bytes a second that travel over a distance, in percent beyond a local access.
    #[must_use]
    pub const fn new(bytes_per_s: u64, distance_percent: u64) -> Self {
        Self(bytes_per_s.saturating_mul(distance_percent))
    }

    /// Returns the cost of an overload: CPU time a second beyond the time that CPUs may take.
    #[must_use]
    pub const fn of_overload(ns_per_s: u64) -> Self {
        Self(ns_per_s.saturating_mul(OVERLOAD_PER_NS))
    }

    /// Bytes a second that travel as far again as a local access.
    #[must_use]
    pub const fn bytes_per_s(self) -> u64 {
        self.0 / 100
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the cost beyond another cost; 0 when this one is less.
    #[must_use]
    pub const fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100 / 100_000;
        write!(f, "{}.{} MB/s", tenths / 10, tenths % 10)
    }
}

/// How far the nodes of a machine are from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distances {
    nodes: Vec<NodeId>,
    percent: Vec<Vec<u64>>,
}

impl Distances {
    /// Computes the distances between the nodes of a machine.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let nodes = topology.node_ids();
        let matrix = &topology.latency().matrix;
        let at = |a: usize, b: usize| u64::from(matrix[a][b]);
        let percent = |a: usize, b: usize| {
            if a == b {
                return 0;
            }
            let local = (at(a, a) + at(b, b)).max(1);
            let beyond = (100 * (at(a, b) + at(b, a)) / local).saturating_sub(100);
            beyond.clamp(CACHE_PERCENT, DISTANCE_PERCENT_MAX)
        };
        let index = 0..nodes.len();
        let row = |a: usize| index.clone().map(|b| percent(a, b)).collect();
        let percent = index.clone().map(row).collect();
        Self { nodes, percent }
    }

    /// Percent beyond a local access; 0 for a node that the machine does not have.
    #[must_use]
    pub fn percent(&self, a: NodeId, b: NodeId) -> u64 {
        let place = |node: NodeId| self.nodes.binary_search(&node).ok();
        match (place(a), place(b)) {
            (Some(a), Some(b)) => self.percent[a][b],
            _ => 0,
        }
    }

    /// Returns the cost of the device's own access for a byte, in percent; 0 where the device has no home.
    #[must_use]
    pub fn device_percent(&self, node: NodeId, home: Option<NodeId>) -> u64 {
        home.map_or(0, |home| self.percent(node, home) * DEVICE_ACCESS_PERCENT / 100)
    }
}
