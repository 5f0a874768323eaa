//! The narrow side of a kernel that plans are carried out on, so that a model can stand for it.

use super::mask::Mask;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::io;

/// Operations on a machine that acting needs. Errors are those of the system calls: `ESRCH`, `ENOENT` and `ENODEV` say
/// that the target has vanished.
pub trait Kernel {
    /// Names this boot: nothing that was set survives it.
    ///
    /// # Errors
    /// It cannot be read.
    fn boot(&self) -> io::Result<String>;

    /// Names the namespaces in which numbers of threads and names of cards mean what they mean here.
    ///
    /// # Errors
    /// They cannot be read.
    fn namespaces(&self) -> io::Result<String>;

    /// Now, in clock ticks since boot, as threads tell their start.
    ///
    /// # Errors
    /// It cannot be read.
    fn now(&self) -> io::Result<u64>;

    /// The CPUs that run, ascending.
    ///
    /// # Errors
    /// They cannot be read.
    fn online(&self) -> io::Result<Vec<CpuId>>;

    /// The CPUs that may ever run, ascending.
    ///
    /// # Errors
    /// They cannot be read.
    fn possible(&self) -> io::Result<Vec<CpuId>>;

    /// Returns the identity that a target's name does not tell: an interrupt's name, a card's index. `None` when there is no
    /// such target.
    ///
    /// # Errors
    /// It cannot be read.
    fn identity(&self, target: &Target) -> io::Result<Option<String>>;

    /// A queue under the name that the card of this identity has now; none where no card has it, and for other targets.
    fn renamed(&self, _target: &Target, _identity: &str) -> Option<Target> {
        None
    }

    /// The CPUs that a target has.
    ///
    /// # Errors
    /// They cannot be read, or the target has vanished.
    fn read(&self, target: &Target) -> io::Result<Mask>;

    /// Gives a target CPUs. A thread gets those of them that its cpuset has.
    ///
    /// # Errors
    /// The kernel refuses. `EINVAL`: none of the CPUs can be had.
    fn write(&self, target: &Target, mask: &Mask) -> io::Result<()>;

    /// The CPUs that an interrupt arrives on: those it was given last only after its next arrival.
    ///
    /// # Errors
    /// They cannot be read, or there is no such interrupt.
    fn effective(&self, interrupt: u32) -> io::Result<Vec<CpuId>>;

    /// The CPUs that an interrupt's driver has proposed; none where it has not.
    ///
    /// # Errors
    /// They cannot be read, or there is no such interrupt.
    fn hint(&self, interrupt: u32) -> io::Result<Vec<CpuId>>;

    /// The running CPUs that a thread's cpuset lets it have; none where that cannot be seen.
    ///
    /// # Errors
    /// They cannot be read, or the thread has ended.
    fn cpuset(&self, thread: ThreadId) -> io::Result<Option<Vec<CpuId>>>;

    /// Where a process comes from.
    ///
    /// # Errors
    /// It cannot be read, or the process has ended.
    fn process(&self, process: u32) -> io::Result<Process>;

    /// All threads, without those of the kernel itself.
    ///
    /// # Errors
    /// They cannot be listed. Threads that vanish meanwhile are left out.
    fn threads(&self) -> io::Result<Vec<ThreadId>>;
}

/// Where a process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// Its parent; 0 for none.
    pub parent: u32,
    /// Its session; 0 for none.
    pub session: u32,
    /// Number of its threads.
    pub threads: u32,
}
