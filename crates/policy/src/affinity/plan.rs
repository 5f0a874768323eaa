//! Plan of a period: the changes, and why everything else stays.

use super::cost::Cost;
use super::reason::{Rate, Reason, Why};
use super::{FileId, QueueKind, ThreadId};
use crate::{CpuId, NodeId};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Something that has a set of CPUs which can be changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "kind", rename_all = "snake_case"))]
pub enum Target {
    /// A thread's own mask.
    Thread(ThreadId),
    /// The affinity of the interrupt with this number.
    #[cfg_attr(feature = "serde", serde(serialize_with = "number"))]
    Interrupt(u32),
    /// XPS of a transmit queue: the CPUs that send through it.
    Transmit {
        /// The network card.
        device: String,
        /// The queue's number.
        index: u32,
    },
    /// RPS of a receive queue: the CPUs that process its packets.
    Receive {
        /// The network card.
        device: String,
        /// The queue's number.
        index: u32,
    },
}

/// Serializes the number of an interrupt under a name.
#[cfg(feature = "serde")]
fn number<S: serde::Serializer>(number: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeStruct;
    let mut interrupt = serializer.serialize_struct("Interrupt", 1)?;
    interrupt.serialize_field("number", number)?;
    interrupt.end()
}

/// A change of one target's CPUs. `from` and `to` are ascending and differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Action {
    /// Thread, interrupt or queue whose CPUs change.
    pub target: Target,
    /// The CPUs it has, as the snapshot has them.
    pub from: Vec<CpuId>,
    /// The CPUs it is to have; all of them run.
    pub to: Vec<CpuId>,
    /// Why.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub reason: Reason,
    /// Cost of the target's bytes before. The bytes of a thread are those of its queues too: these costs do not add up.
    #[cfg_attr(feature = "serde", serde(rename = "cost_before_bytes_per_s"))]
    pub cost_before: Cost,
    /// Cost of the target's bytes when the whole plan is done.
    #[cfg_attr(feature = "serde", serde(rename = "cost_after_bytes_per_s"))]
    pub cost_after: Cost,
}

impl Action {
    /// Whether its target goes elsewhere. Else it is only bound to where it is.
    #[must_use]
    pub fn moves(&self) -> bool {
        !matches!(self.reason, Reason::Kept { .. })
    }
}

/// A file that comes to its threads. It is not moved back when everything else is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveFile {
    /// The file.
    pub file: FileId,
    /// Node of those threads.
    pub to: NodeId,
    /// Number of those threads.
    pub threads: usize,
    /// Bytes of the file on other nodes.
    pub bytes: u64,
    /// Bytes a second that no longer cross nodes.
    pub saved_bytes_per_s: u64,
    /// Why it comes to them, and not they to it.
    pub reason: FileReason,
    /// Cost of its bytes before.
    pub cost_before: Cost,
    /// Cost of its bytes when it has moved.
    pub cost_after: Cost,
}

/// Why a file comes to its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileReason {
    /// Masks, cpusets or the kernel keep them where they are.
    Held,
    /// There are several, and the file is cheaper to move.
    Together,
    /// Everything considered, as their devices, they are best where they are.
    Placed,
}

impl fmt::Display for MoveFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, to) = (self.threads, self.to);
        match (self.reason, threads) {
            (FileReason::Held, 1) => write!(f, "a thread on {to} uses it and cannot move")?,
            (FileReason::Held, _) => write!(f, "{threads} threads on {to} use it and cannot all move")?,
            (FileReason::Together, _) => write!(f, "{threads} threads on {to} use it, and it is cheaper to move")?,
            (FileReason::Placed, 1) => write!(f, "a thread that is best on {to} uses it")?,
            (FileReason::Placed, _) => write!(f, "{threads} threads that are best on {to} use it")?,
        }
        write!(f, ": {} cross nodes", Rate(self.saved_bytes_per_s))
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((major, minor), inode) = (self.pool, self.inode);
        write!(f, "file {inode} of pool {major}:{minor}")
    }
}

/// A thread that gets back the mask it had before this program bound it, as it moves almost nothing, or is to be left alone. It need not have run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// The thread.
    pub thread: ThreadId,
    /// Periods without bytes to speak of; none of one whose policy is off.
    pub quiet_periods: Option<u64>,
}

impl fmt::Display for Return {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quiet_periods {
            Some(periods) => write!(f, "it has moved almost nothing for {periods} periods")?,
            None => write!(f, "its policy is off")?,
        }
        write!(f, ", and gets back the CPUs that it had")
    }
}

/// An interrupt or queue whose CPUs the kernel or a driver has set anew: they count as set by this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The interrupt or queue.
    pub target: Target,
    /// The CPUs it has now.
    pub now: Vec<CpuId>,
}

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stay {
    /// Thread, interrupt or queue that stays.
    pub target: Target,
    /// Why.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub why: Why,
    /// Cost of the target's bytes when the plan is done.
    #[cfg_attr(feature = "serde", serde(rename = "cost_bytes_per_s"))]
    pub cost: Cost,
}

/// Decisions of one period: changes, stays and moves of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes, by target. No target is named twice.
    pub actions: Vec<Action>,
    /// Everything else that was looked at, by target.
    pub stays: Vec<Stay>,
    /// The files that move, ascending.
    pub files: Vec<MoveFile>,
    /// The threads that get their masks back, ascending; none of them is in `actions`.
    pub returns: Vec<Return>,
    /// Interrupts and queues that the kernel or a driver has set anew, by target.
    pub resets: Vec<Reset>,
    /// Cost of all bytes and overloads now.
    pub cost_before: Cost,
    /// Cost of all bytes and overloads when the plan is done, without the prices of the moves.
    pub cost_after: Cost,
}

impl Plan {
    /// Whether there is nothing to do for whoever carries it out, besides moves of files.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.actions.is_empty() && self.returns.is_empty() && self.resets.is_empty()
    }

    /// Returns the change of a target. None when the target stays, or was not seen.
    #[must_use]
    pub fn action(&self, target: &Target) -> Option<&Action> {
        let found = self.actions.binary_search_by(|action| action.target.cmp(target));
        found.ok().map(|index| &self.actions[index])
    }

    /// Why a target stays. None when it moves, or was not seen.
    #[must_use]
    pub fn stay(&self, target: &Target) -> Option<&Stay> {
        let found = self.stays.binary_search_by(|stay| stay.target.cmp(target));
        found.ok().map(|index| &self.stays[index])
    }
}

impl Target {
    /// The target that changes a queue's CPUs. None for a disk's: its kernel lets nobody change them.
    #[must_use]
    pub fn of_queue(device: &str, kind: QueueKind, index: u32) -> Option<Self> {
        let device = String::from(device);
        match kind {
            QueueKind::Block => None,
            QueueKind::Transmit => Some(Self::Transmit { device, index }),
            QueueKind::Receive => Some(Self::Receive { device, index }),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread(id) => write!(f, "thread {}", id.thread),
            Self::Interrupt(number) => write!(f, "interrupt {number}"),
            Self::Transmit { device, index } => write!(f, "transmit queue {index} of {device}"),
            Self::Receive { device, index } => write!(f, "receive queue {index} of {device}"),
        }
    }
}
