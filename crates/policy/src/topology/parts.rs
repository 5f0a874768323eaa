//! Parts of a machine, before they are checked.

use crate::{CpuId, NodeId};
use alloc::string::String;
use alloc::vec::Vec;

/// Everything that was sensed about one machine; [`super::Topology::new`] checks it. Order does not matter, except in
/// [`Latency`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The NUMA nodes. [`Latency`] counts in the order given here.
    pub nodes: Vec<Node>,
    /// The CPUs that are known, offline ones too.
    pub cpus: Vec<Cpu>,
    /// How many CPU numbers the kernel may ever use: one above the highest. At least one above the highest of `cpus`.
    pub possible_cpus: u32,
    /// The caches of the CPUs.
    pub caches: Vec<Cache>,
    /// How far the nodes are from each other.
    pub latency: Latency,
    /// Disks, network cards and what else moves data.
    pub devices: Vec<Device>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Node {
    /// The kernel's number.
    #[cfg_attr(feature = "serde", serde(rename = "node"))]
    pub id: NodeId,
    /// CPUs whose local node this is, as the kernel sees it. A CPU is in one node only.
    pub cpus: Vec<CpuId>,
    /// Memory of the node; 0 when it has none or all of it is offline.
    pub memory_bytes: u64,
    /// Technology of the memory, where the machine tells: `HBM`, `CXL`, `NVM`, `GPUMemory` …
    pub technology: Option<String>,
    /// Read latency from the nearest CPUs, where the machine tells (HMAT).
    pub latency_ns: Option<u32>,
    /// Read bandwidth from the nearest CPUs in MiB/s, where the machine tells (HMAT).
    pub bandwidth_mib_per_s: Option<u64>,
}

/// Kind of a node: whether it has memory, CPUs, both or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum NodeKind {
    /// Memory with CPUs next to it.
    Dram,
    /// Memory without CPUs: CXL expanders, HBM, persistent memory used as RAM.
    MemoryOnly,
    /// CPUs without memory: their memory has not been plugged, or is offline.
    CpuOnly,
    /// Neither: the kernel knows its number and nothing else is online.
    Empty,
}

impl Node {
    /// A node with an id and nothing else known.
    #[must_use]
    pub const fn new(id: NodeId) -> Self {
        Self {
            id,
            cpus: Vec::new(),
            memory_bytes: 0,
            technology: None,
            latency_ns: None,
            bandwidth_mib_per_s: None,
        }
    }

    /// Returns the kind of this node.
    #[must_use]
    pub fn kind(&self) -> NodeKind {
        match (self.memory_bytes > 0, self.cpus.is_empty()) {
            (true, false) => NodeKind::Dram,
            (true, true) => NodeKind::MemoryOnly,
            (false, false) => NodeKind::CpuOnly,
            (false, true) => NodeKind::Empty,
        }
    }
}

/// A CPU: one hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cpu {
    /// The kernel's number.
    #[cfg_attr(feature = "serde", serde(rename = "cpu"))]
    pub id: CpuId,
    /// The core it is a thread of, unique in the machine; none when the CPU is offline.
    pub core: Option<u32>,
    /// The package (socket) it is in.
    pub package: Option<u32>,
    /// Whether it runs.
    pub online: bool,
}

/// A CPU cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u8,
    /// Content of the cache.
    pub kind: CacheKind,
    /// Its size; 0 when unknown.
    pub bytes: u64,
    /// The CPUs that share it.
    pub cpus: Vec<CpuId>,
}

/// Content of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum CacheKind {
    /// Data and instructions.
    Unified,
    /// Data.
    Data,
    /// Instructions.
    Instruction,
}

/// How far each node's CPUs are from each node's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Latency {
    /// Where the numbers come from, hence their unit.
    pub source: LatencySource,
    /// `matrix[a][b]`: from CPUs of the a-th node to memory of the b-th node of [`Parts::nodes`]. Need not be symmetric.
    pub matrix: Vec<Vec<u32>>,
}

/// Where latencies come from. They may be compared only within one matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum LatencySource {
    /// Nanoseconds, from the firmware's heterogeneous memory attribute table.
    Hmat,
    /// Relative distances (10 is local), from the firmware's system locality information table.
    Slit,
    /// Nanoseconds that somebody measured on this machine.
    Measured,
    /// Relative distances (10 is local) made up from who shares a package, because the machine tells none.
    #[default]
    Assumed,
}

/// Something that moves data between the outside and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Device {
    /// The kernel's name: `nvme0n1`, `eth0`.
    pub name: String,
    /// Kind of the device.
    pub kind: DeviceKind,
    /// The node it is attached to, where the machine tells.
    pub home: Option<NodeId>,
    /// Its hardware queues; empty when it has none or they are not known.
    pub queues: Vec<DeviceQueue>,
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum DeviceKind {
    /// A disk.
    Block,
    /// Persistent memory: a pmem disk or a dax device.
    Pmem,
    /// A network card.
    Network,
    /// A graphics card or another accelerator.
    Accelerator,
}

/// A hardware queue of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceQueue {
    /// The kernel's name within the device: `0` for a disk, `rx-0` or `tx-0` for a network card.
    pub name: String,
    /// The CPUs that submit to it; empty when every CPU may.
    pub cpus: Vec<CpuId>,
}
