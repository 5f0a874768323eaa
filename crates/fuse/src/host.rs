//! What the server asks of the machine it runs on; implemented over `homenode-linux` by whoever mounts, and by tests.

use homenode_engine::{CpuId, NodeId};
use std::io;

/// CPUs and nodes of the machine.
pub trait Host: Send + Sync + 'static {
    /// The CPU the calling thread runs on. Asked with every request: a few ns.
    fn current_cpu(&self) -> CpuId;

    /// How many CPUs the machine can ever have, offline ones and empty sockets included.
    fn possible_cpus(&self) -> usize;

    /// Keeps the calling thread on a CPU.
    ///
    /// # Errors
    /// The errno of sched_setaffinity(2): EINVAL when the CPU is offline or not allowed.
    fn pin_to_cpu(&self, cpu: CpuId) -> io::Result<()>;

    /// Keeps the calling thread on the CPUs of a CPU's node.
    ///
    /// # Errors
    /// As [`Host::pin_to_cpu`].
    fn pin_near_cpu(&self, cpu: CpuId) -> io::Result<()>;

    /// The CPU that thread `tid` last ran on; `None` when there is no such thread. Asked only when blocks are to be
    /// placed on a machine with several nodes.
    fn thread_cpu(&self, tid: u32) -> Option<CpuId>;

    /// The node of a CPU.
    fn cpu_node(&self, cpu: CpuId) -> NodeId;

    /// Whether all CPUs belong to one node: then nobody needs to be asked where a request came from.
    fn has_one_node(&self) -> bool;
}
