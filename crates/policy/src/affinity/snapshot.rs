//! Interrupts, queues and threads of a machine, as seen in one period.

use crate::topology::Topology;
use crate::{CpuId, NodeId};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// State and counts of a machine in one period. Lists are ascending by number or name; sets of CPUs are ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Nodes, CPUs, caches and devices.
    pub topology: Topology,
    /// The CPUs that run.
    pub online: Vec<CpuId>,
    /// CPUs that are kept free of other work (isolcpus=, nohz_full=): no interrupt is moved to them.
    pub isolated: Vec<CpuId>,
    /// How long the period was. Counts below are of the period, not since boot.
    pub period_ns: u64,
    /// Interrupts that belong to a device.
    pub interrupts: Vec<Interrupt>,
    /// Queues of disks and network cards.
    pub queues: Vec<Queue>,
    /// Threads that moved bytes or took CPU time.
    pub threads: Vec<Thread>,
    /// Files of pools that could come to their threads.
    pub files: Vec<PoolFile>,
    /// CPUs came or went, or the machine slept, since interrupts and queues were looked at last: the kernel, and drivers of
    /// any device, may have set their CPUs anew.
    pub has_restarted: bool,
    /// Network cards that were down since then: their drivers may have set their CPUs anew. Ascending.
    pub restarted: Vec<String>,
}

/// An interrupt of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// The kernel's number.
    pub number: u32,
    /// Name in /proc/interrupts: `nvme0q3`, `virtio1-input.0`.
    pub name: String,
    /// The device's name in [`Topology::devices`], where one is known.
    pub device: Option<String>,
    /// How often it arrived, by CPU; none is 0.
    pub arrivals: Vec<(CpuId, u64)>,
    /// The CPUs it may arrive on.
    pub affinity: Vec<CpuId>,
    /// The CPUs it arrives on; changes only with the next arrival.
    pub effective: Vec<CpuId>,
    /// The kernel has spread it itself, and lets nobody move it.
    pub managed: bool,
}

/// Kind of a queue, by the data that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueKind {
    /// Requests to a disk, and their completions.
    Block,
    /// Packets from the network.
    Receive,
    /// Packets to the network.
    Transmit,
}

/// A hardware queue of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The device's name.
    pub device: String,
    /// Kind of the queue.
    pub kind: QueueKind,
    /// Its number in the device.
    pub index: u32,
    /// The number of its interrupt, where one is known.
    pub interrupt: Option<u32>,
    /// Block: the CPUs that submit to it. Transmit: those of XPS. Receive: those of RPS, on which packets are processed;
    /// empty when they are processed where the interrupt arrives.
    pub cpus: Vec<CpuId>,
    /// Whether `cpus` can be changed: XPS and RPS where the kernel has them; never of a block queue.
    pub movable: bool,
}

/// Names one thread for as long as the machine runs: a number may be used again, but not with the same start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ThreadId {
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

/// A thread and its work in the period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Which.
    pub id: ThreadId,
    /// Its name.
    pub name: String,
    /// Its process's name.
    pub process_name: String,
    /// The CPU it ran on last.
    pub cpu: CpuId,
    /// Its own mask. Threads have few different masks, and share them: a mask of 256 CPUs has a kilobyte.
    pub allowed: Arc<[CpuId]>,
    /// The CPUs its cpuset lets it have: the most its mask may ever be.
    pub cpuset: Arc<[CpuId]>,
    /// CPU time it took.
    pub cpu_ns: u64,
    /// Time it was ready to run and waited for a CPU.
    pub waited_ns: u64,
    /// Bytes read from and written to disks.
    pub disk: Vec<DeviceBytes>,
    /// Bytes received from sockets, by the way they came.
    pub received: Vec<Received>,
    /// Bytes sent to sockets, by the card that their route leads to.
    pub sent: Vec<DeviceBytes>,
    /// Bytes copied from and to buffers of pools, by the node they lie on.
    pub memory: Vec<(NodeId, u64)>,
    /// Files of pools that it moves most bytes with, with bytes a second; a few.
    pub files: Vec<(FileId, u64)>,
    /// It began in this period: the last look has not seen it.
    pub is_new: bool,
    /// Not all of its bytes could be read: what is 0 above may be more.
    pub is_unread: bool,
}

/// Names one file of a mounted pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Device number of the pool's mount, major and minor.
    pub pool: (u32, u32),
    /// Number of the file's inode.
    pub inode: u64,
}

/// Place of a file, which its pool may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFile {
    /// The file.
    pub id: FileId,
    /// Bytes of it on each node.
    pub lies: Vec<(NodeId, u64)>,
    /// Bytes that nodes still take of it.
    pub room: Vec<(NodeId, u64)>,
}

/// Bytes that a thread received one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The CPU that processed the packets, where it is known.
    pub cpu: Option<CpuId>,
    /// The receive queue, by its card's name in [`Queue::device`] and its number in the card, where both are known.
    pub queue: Option<(String, u32)>,
    /// How many.
    pub bytes: u64,
}

/// A thread's bytes of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceBytes {
    /// The disk's name in [`Topology::devices`], or the card's; none where only the sum is known.
    pub device: Option<String>,
    /// Bytes moved; for a disk, bytes read and written together.
    pub bytes: u64,
}

impl Thread {
    /// A thread without a name that did nothing, and may run on all CPUs of its cpuset.
    #[must_use]
    pub fn idle(id: ThreadId, cpu: CpuId, cpuset: Arc<[CpuId]>) -> Self {
        Self {
            id,
            name: String::new(),
            process_name: String::new(),
            cpu,
            allowed: cpuset.clone(),
            cpuset,
            cpu_ns: 0,
            waited_ns: 0,
            disk: Vec::new(),
            received: Vec::new(),
            sent: Vec::new(),
            memory: Vec::new(),
            files: Vec::new(),
            is_new: false,
            is_unread: false,
        }
    }

    /// Bytes received and sent.
    #[must_use]
    pub fn network_bytes(&self) -> u64 {
        let received = self.received.iter().map(|it| it.bytes);
        received.fold(self.sent_bytes(), u64::saturating_add)
    }

    /// Bytes copied from and to buffers of pools.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
    }

    /// Bytes sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent.iter().map(|it| it.bytes).fold(0, u64::saturating_add)
    }
}

impl Snapshot {
    /// A machine without interrupts, queues and threads.
    #[must_use]
    pub fn idle(topology: Topology, online: Vec<CpuId>, period_ns: u64) -> Self {
        Self {
            topology,
            online,
            isolated: Vec::new(),
            period_ns,
            interrupts: Vec::new(),
            queues: Vec::new(),
            threads: Vec::new(),
            files: Vec::new(),
            has_restarted: false,
            restarted: Vec::new(),
        }
    }

    /// The home of a device, where it is known.
    #[must_use]
    pub fn home(&self, device: &str) -> Option<NodeId> {
        let devices = self.topology.devices();
        devices.iter().find(|known| known.name == device)?.home
    }

    /// The node of a CPU.
    #[must_use]
    pub fn node(&self, cpu: CpuId) -> Option<NodeId> {
        self.topology.cpu_nodes().get(cpu.0 as usize).copied()
    }
}
