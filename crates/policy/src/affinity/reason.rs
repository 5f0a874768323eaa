//! Why something moves, and why something stays, in words.

use super::{Cost, Policy};
use crate::NodeId;
use alloc::string::String;
use core::fmt;

/// Work that a thread does most, as the paper classifies threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It moves bytes of the network.
    Network,
    /// It moves bytes of disks.
    Disk,
    /// Both, and of each at least a tenth of the other.
    Both,
    /// It copies more bytes of buffers in memory than of both.
    Buffers,
    /// Neither, beyond the smallest rate that is looked at.
    Compute,
}

impl Class {
    /// Returns the class of a thread from its bytes a second; fewer than `least` in all count as none.
    #[must_use]
    pub fn of(network: u64, disk: u64, memory: u64, least: u64) -> Self {
        let devices = network.saturating_add(disk);
        if devices.saturating_add(memory) < least.max(1) {
            Self::Compute
        } else if memory > devices {
            Self::Buffers
        } else if network.min(disk) >= network.max(disk) / 10 {
            Self::Both
        } else if network > disk {
            Self::Network
        } else {
            Self::Disk
        }
    }
}

/// Why something moves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A thread goes to where its bytes are.
    NearQueues {
        /// The thread's name.
        thread: String,
        /// Class of the thread.
        class: Class,
        /// The device it moves most bytes with.
        device: String,
        /// Where it goes.
        node: NodeId,
    },
    /// A thread goes to where its buffers are.
    NearBuffers {
        /// The thread's name.
        thread: String,
        /// Home of most of its buffers.
        home: NodeId,
        /// Share of their bytes there.
        percent: u64,
        /// Bytes a second of all its buffers.
        bytes_per_s: u64,
        /// Where it goes.
        node: NodeId,
    },
    /// A thread is where its policy wants it, or near enough to its bytes, and is bound to there: its mask would let it
    /// leave.
    Kept {
        /// The thread's name.
        thread: String,
        /// Where it is.
        node: NodeId,
    },
    /// A thread leaves CPUs that are too busy.
    Relieved {
        /// The thread's name.
        thread: String,
        /// The node of those CPUs.
        from: NodeId,
        /// Where it goes.
        node: NodeId,
    },
    /// A queue, with its interrupt, goes to the thread that takes most of its bytes.
    NearThreads {
        /// The queue's device.
        device: String,
        /// That thread's name.
        thread: String,
        /// Where it goes.
        node: NodeId,
    },
    /// A queue, of which nobody knows who takes its bytes, goes near its device or to a CPU with room.
    NearDevice {
        /// The queue's device.
        device: String,
        /// Where it goes.
        node: NodeId,
    },
    /// A queue, through which CPUs of a node are to send, comes to them, or is near and gets them as its own.
    NearSenders {
        /// The queue's device.
        device: String,
        /// Their node.
        node: NodeId,
    },
    /// A transmit queue, whose packets are processed elsewhere, leaves CPUs to a queue that is near them.
    MadeWay {
        /// The queue's device.
        device: String,
        /// The node of those CPUs; where there are several, of the first.
        node: NodeId,
    },
    /// The policy puts it there.
    Policy {
        /// Which.
        policy: Policy,
        /// The thread or the queue's device.
        name: String,
        /// Where it goes.
        node: NodeId,
    },
}

/// Why something stays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The configuration says so, of all, its device or its process.
    Off,
    /// The thread's mask is narrower than its cpuset, and it was not this program that set it.
    Foreign,
    /// It was set by this program, and has been changed by someone else since.
    TakenOver,
    /// The kernel has refused it before, or another program sets it.
    Refused,
    /// The kernel has spread the interrupt itself: the threads that use it move.
    Managed,
    /// The queue's CPUs cannot be changed, or there is no need: its packets are processed where its interrupt arrives.
    NotMovable,
    /// It belongs to no queue that was seen.
    NoQueue,
    /// The thread moves no bytes to speak of.
    Compute,
    /// The thread has a mask of this program, and moves no bytes to speak of now.
    Quiet {
        /// After so many such periods it gets its mask back.
        periods: u64,
    },
    /// Its bytes could not be read, so what it does is not known.
    Unread,
    /// It moves less than the smallest rate that is looked at.
    Small {
        /// Bytes a second that the thread or queue moves.
        bytes_per_s: u64,
    },
    /// It moves bytes, but it is not known with which device.
    DeviceUnknown,
    /// It was moved lately.
    Dwell {
        /// After so many periods it may move again.
        periods_left: u64,
    },
    /// It began in this period, and may be gone after it: it moves when it is still there in the next.
    New,
    /// There is no other place: of the machine, or that its cpuset lets it have.
    OnePlace,
    /// The CPU or CPUs that the policy wants are not in its cpuset.
    NoCpu(Policy),
    /// It is where the policy wants it.
    InPlace(Policy),
    /// Another place is better, but not by what a move must save.
    TooLittle {
        /// Cost that a move would save.
        gain: Cost,
        /// Price of the move, which the saving must exceed.
        price: Cost,
    },
    /// The load is the one for which the last plan was made.
    Settled,
    /// Nowhere is it better.
    Best,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "network-bound",
            Self::Disk => "disk-bound",
            Self::Both => "bound to network and disk",
            Self::Buffers => "bound to its buffers",
            Self::Compute => "compute-bound",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NearQueues {
                thread,
                class,
                device,
                node,
            } => write!(f, "{thread} is {class}: to {node}, near the queues of {device}"),
            Self::NearBuffers {
                thread,
                home,
                percent,
                bytes_per_s,
                node,
            } => {
                write!(
                    f,
                    "{thread}: its buffers are on {home}: {percent} % of {}",
                    Rate(*bytes_per_s)
                )?;
                match home == node {
                    true => Ok(()),
                    false => write!(f, ", and {node} is nearer"),
                }
            }
            Self::Kept { thread, node } => write!(
                f,
                "{thread} is where it should be, or near enough: it is kept on {node}"
            ),
            Self::Relieved { thread, from, node } if from == node => {
                write!(f, "{thread} leaves CPUs of {from} that are too busy for others of it")
            }
            Self::Relieved { thread, from, node } => {
                write!(f, "{thread} leaves CPUs of {from} that are too busy: to {node}")
            }
            Self::NearThreads { device, thread, node } => {
                write!(f, "{thread} takes most of these bytes of {device}: to it, on {node}")
            }
            Self::NearDevice { device, node } => {
                write!(
                    f,
                    "no lasting thread is known to take these bytes of {device}: near it, to {node}"
                )
            }
            Self::NearSenders { device, node } => {
                write!(f, "CPUs of {node} are to send through this queue of {device}")
            }
            Self::MadeWay { device, node } => {
                write!(
                    f,
                    "it is far from {node}, whose CPUs send through a nearer queue of {device}"
                )
            }
            Self::Policy { policy, name, node } => write!(f, "policy {policy} puts {name} there, on {node}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => write!(f, "the configuration says that it is left alone"),
            Self::Foreign => write!(f, "someone else has narrowed its mask"),
            Self::TakenOver => write!(f, "someone else has changed it since it was moved"),
            Self::Refused => write!(f, "the kernel has refused to move it, or another program sets it"),
            Self::Managed => write!(f, "the kernel spreads this interrupt itself; its threads move instead"),
            Self::NotMovable => write!(
                f,
                "its CPUs cannot be changed, or follow its interrupt, or nothing is known to be gained"
            ),
            Self::NoQueue => write!(f, "it belongs to no known queue"),
            Self::Compute => write!(f, "it is compute-bound: it moves no bytes to speak of"),
            Self::Quiet { periods } => write!(
                f,
                "it moves no bytes to speak of now: after {periods} such periods it gets back the CPUs that it had"
            ),
            Self::Unread => write!(
                f,
                "bytes not readable (not root, or the kernel does not count them): its traffic is not known"
            ),
            Self::Small { bytes_per_s } => write!(f, "it moves {bytes_per_s} bytes/s, too few to be looked at"),
            Self::DeviceUnknown => write!(f, "it is not known with which device it moves bytes"),
            Self::Dwell { periods_left } => write!(f, "it was moved lately, and stays for {periods_left} more periods"),
            Self::New => write!(
                f,
                "it has begun in this period, and may be gone before a move is worth it"
            ),
            Self::OnePlace => write!(f, "it has one place only, by its cpuset or on this machine"),
            Self::NoCpu(policy) => write!(f, "its cpuset has none of the CPUs of policy {policy}"),
            Self::InPlace(policy) => write!(f, "it is where policy {policy} wants it"),
            Self::TooLittle { gain, price } => {
                write!(f, "a move would save {gain}, and would have to save more than {price}")
            }
            Self::Settled => write!(f, "the load is the one for which it was placed"),
            Self::Best => write!(f, "nowhere is it better"),
        }
    }
}

/// Bytes a second: `1.2 GB/s`, `412.0 MB/s`.
pub(crate) struct Rate(pub(crate) u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tenths, unit) = match self.0 {
            1_000_000_000.. => (self.0 / 100_000_000, "GB/s"),
            _ => (self.0 / 100_000, "MB/s"),
        };
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}
