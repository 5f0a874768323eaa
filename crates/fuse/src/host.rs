//! Questions of the server to the machine it runs on. The library answers them through `homenode-linux`; tests have
//! machines of their own. Nodes of CPUs are the pool's to tell.

use homenode_engine::CpuId;
use homenode_engine::backing::BackingStore;
use std::io;
use std::sync::Arc;

/// CPUs and threads of the machine.
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

    /// A store of files whose bytes the kernel moves itself, for at most `files_max` files of `bytes` bytes together; with `noatime` reading
    /// moves no access times.
    ///
    /// # Errors
    /// EPERM when this process may not mount; `Unsupported` on a machine that has no such store.
    fn backing_store(&self, bytes: u64, files_max: u64, noatime: bool) -> io::Result<Arc<dyn BackingStore>>;
}
