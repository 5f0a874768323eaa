//! Problems that a machine may have.

use super::{Helper, Tmpfs};
use crate::affinity::Class;
use crate::{CpuId, NodeId};
use alloc::string::String;
use alloc::vec::Vec;

/// Something that makes bytes travel between nodes, or costs time in another way that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Threads run far from the queues they use, and may move.
    FarThreads {
        /// Which.
        threads: Threads,
        /// The device they move most bytes with.
        device: String,
        /// Class of the threads, or of the first thread where the classes differ.
        class: Class,
        /// Where the affinity plan puts them.
        to: NodeId,
    },
    /// Threads run far from their device, and are kept there.
    HeldThreads {
        /// Which.
        threads: Threads,
        /// The device they move most bytes with.
        device: String,
        /// The device's home.
        home: NodeId,
        /// Mask or cpuset that keeps the threads there.
        held: Held,
    },
    /// Threads run far from their buffers in memory of pools.
    FarBuffers {
        /// The threads.
        threads: Threads,
        /// Node with most of the buffers.
        home: NodeId,
        /// Share of their bytes there.
        percent: u64,
        /// Bytes a second of all their buffers.
        bytes_per_s: u64,
        /// How the two can come together.
        way: Way,
    },
    /// Interrupts arrive on another node than they should.
    RemoteInterrupts {
        /// The device.
        device: String,
        /// Where they belong: on its home, or where the affinity plan puts them, which is near the threads that take its bytes.
        wanted: NodeId,
        /// Whether that is its home.
        wanted_at_home: bool,
        /// The interrupts' numbers, ascending.
        numbers: Vec<u32>,
        /// How many arrived on other nodes in the period.
        remote: u64,
        /// How many arrived in the period.
        all: u64,
        /// Other nodes on which the interrupts arrived, ascending.
        on: Vec<NodeId>,
        /// Whether they can move.
        mobility: Mobility,
    },
    /// All interrupts that can move arrive on one CPU.
    OneCpu {
        /// Which.
        cpu: CpuId,
        /// The interrupts' numbers, ascending.
        numbers: Vec<u32>,
        /// How many arrived in the period.
        arrivals: u64,
    },
    /// A busy card has fewer queues than its node has CPUs, and could have more.
    FewQueues {
        /// The card.
        device: String,
        /// Its home.
        home: NodeId,
        /// Its queues.
        queues: u64,
        /// CPUs of its home that run.
        cpus: u64,
        /// Most queues that the card can have, where the number is known.
        max: Option<u64>,
    },
    /// A busy card has queues that its RSS table sends no packets to.
    UnusedQueues {
        /// The card.
        device: String,
        /// Queues that the table names.
        used: u64,
        /// Its queues.
        queues: u64,
    },
    /// A card has several transmit queues, and no CPU is told which to use.
    NoXps {
        /// The card.
        device: String,
        /// Its transmit queues, ascending.
        queues: Vec<u32>,
    },
    /// Transmit queues are used by CPUs of several nodes, though there are enough queues for each node to have its own.
    XpsCrosses {
        /// The card.
        device: String,
        /// The queues, ascending.
        queues: Vec<u32>,
    },
    /// Packets are handed to CPUs of another node than the one that took their interrupt.
    RpsCrosses {
        /// The card.
        device: String,
        /// The receive queues, ascending.
        queues: Vec<u32>,
    },
    /// A busy device does not say on which node it is.
    HomeUnknown {
        /// The device.
        device: String,
        /// Its address on the PCI bus, where it has one.
        address: Option<String>,
        /// Its interrupts in the period.
        arrivals: u64,
    },
    /// Somebody else places what the affinity plan would place.
    Conflict(Helper),
    /// Most page cache lies on one node, and threads of others run.
    CacheOnOneNode(Heap),
    /// Most of tmpfs and shared memory lies on one node, and threads of others run.
    TmpfsOnOneNode {
        /// Where.
        heap: Heap,
        /// The mounts that hold the most.
        mounts: Vec<Tmpfs>,
    },
    /// A node had no memory to give.
    NodeFull {
        /// Which.
        node: NodeId,
        /// Its memory.
        bytes: u64,
        /// That of the largest node.
        largest_bytes: u64,
        /// Pages that came from other nodes.
        pages: u64,
        /// Nodes that gave the pages, ascending.
        from: Vec<NodeId>,
    },
    /// A policy, or a driver, put memory on another node than that of the CPU that asked.
    PlacedFar {
        /// Where the memory is, ascending.
        nodes: Vec<NodeId>,
        /// How many pages.
        pages: u64,
        /// Whether the kernel brings pages near their users later.
        balanced: bool,
    },
    /// Threads run on a node that has no memory.
    NoMemory {
        /// Which.
        node: NodeId,
        /// How busy they keep its CPUs, in percent of one.
        busy_percent: u64,
    },
    /// Memory is in use on a node that has no CPUs.
    NoCpus {
        /// Which.
        node: NodeId,
        /// How much is in use.
        used_bytes: u64,
    },
    /// The kernel looks for pages to move, which costs programs faults, and moves hardly any.
    IdleBalancing {
        /// Faults a second.
        faults_per_s: u64,
        /// Pages moved a second.
        migrated_per_s: u64,
    },
    /// Page cache is thrown away when a node is full, though others have room.
    ZoneReclaim {
        /// The mode that is set.
        mode: u32,
        /// How often it was tried since boot.
        reclaims: u64,
    },
    /// Pools would be mounted without rings.
    NoRings,
    /// Pools would have small pages.
    NoHugePages,
}

/// Threads of one process name that are in the same situation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Their process's name.
    pub process: String,
    /// Their numbers, ascending.
    pub numbers: Vec<u32>,
    /// The node they run on.
    pub from: NodeId,
}

/// How threads and their buffers can come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The affinity plan moves the threads.
    Threads,
    /// The affinity plan moves files to them.
    Files,
    /// Someone keeps the threads where they are.
    Held(Held),
}

/// Restriction that keeps threads where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Someone has narrowed their masks.
    Mask,
    /// Their cpuset.
    Cpuset,
}

/// How interrupts can be brought where they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mobility {
    /// The affinity plan moves them.
    Planned,
    /// They can move, and no plan knows what for: they serve no queue that is known.
    Loose,
    /// Nobody can move them. The threads that use the device can, and the plan moves some.
    ManagedPlanned,
    /// Nobody can move them, and whose they are is not known.
    Managed,
}

/// Much of one kind of memory on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Where.
    pub node: NodeId,
    /// How much.
    pub bytes: u64,
    /// Its share of all nodes'.
    pub percent: u64,
    /// Free memory of the other nodes that have CPUs.
    pub free_elsewhere_bytes: u64,
}

impl Problem {
    /// Its name in machine-readable output: lower case, with hyphens.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::FarThreads { .. } => "far-threads",
            Self::HeldThreads { .. } => "held-threads",
            Self::FarBuffers { .. } => "far-buffers",
            Self::RemoteInterrupts { .. } => "remote-interrupts",
            Self::OneCpu { .. } => "interrupts-on-one-cpu",
            Self::FewQueues { .. } => "few-queues",
            Self::UnusedQueues { .. } => "unused-queues",
            Self::NoXps { .. } => "no-xps",
            Self::XpsCrosses { .. } => "xps-crosses-nodes",
            Self::RpsCrosses { .. } => "rps-crosses-nodes",
            Self::HomeUnknown { .. } => "home-unknown",
            Self::Conflict(_) => "conflict",
            Self::CacheOnOneNode(_) => "page-cache-on-one-node",
            Self::TmpfsOnOneNode { .. } => "tmpfs-on-one-node",
            Self::NodeFull { .. } => "node-full",
            Self::PlacedFar { .. } => "memory-placed-far",
            Self::NoMemory { .. } => "node-without-memory",
            Self::NoCpus { .. } => "node-without-cpus",
            Self::IdleBalancing { .. } => "idle-numa-balancing",
            Self::ZoneReclaim { .. } => "zone-reclaim",
            Self::NoRings => "no-fuse-rings",
            Self::NoHugePages => "no-huge-pages",
        }
    }

    /// Whether it is about bytes, threads or memory of several nodes; else it is about pools, on any machine.
    #[must_use]
    pub const fn is_of_nodes(&self) -> bool {
        !matches!(self, Self::NoRings | Self::NoHugePages)
    }
}
