//! Problems in words.

use super::{Heap, Held, Helper, Mobility, Problem, Threads, Tmpfs, Way};
use crate::NodeId;
use crate::affinity::Rate;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

impl Problem {
    /// Returns the name of the threads, device, memory, program or setting that has the problem.
    #[must_use]
    pub fn object(&self) -> String {
        match self {
            Self::FarThreads { threads, .. } | Self::HeldThreads { threads, .. } | Self::FarBuffers { threads, .. } => {
                threads.to_string()
            }
            Self::RemoteInterrupts { device, numbers, .. } => format!("interrupts {} of {device}", List(numbers)),
            Self::OneCpu { numbers, .. } => format!("interrupts {}", List(numbers)),
            Self::FewQueues { device, .. } | Self::UnusedQueues { device, .. } | Self::HomeUnknown { device, .. } => {
                device.clone()
            }
            Self::NoXps { device, queues } | Self::XpsCrosses { device, queues } => {
                format!("transmit queues {} of {device}", List(queues))
            }
            Self::RpsCrosses { device, queues } => format!("receive queues {} of {device}", List(queues)),
            Self::Conflict(helper) => helper.to_string(),
            Self::CacheOnOneNode(heap) => format!("page cache on {}", heap.node),
            Self::TmpfsOnOneNode { heap, .. } => format!("tmpfs and shared memory on {}", heap.node),
            Self::PlacedFar { nodes, .. } => format!("memory of {}", Nodes(nodes)),
            Self::NodeFull { node, .. } | Self::NoMemory { node, .. } | Self::NoCpus { node, .. } => node.to_string(),
            Self::IdleBalancing { .. } => "kernel.numa_balancing".to_string(),
            Self::ZoneReclaim { .. } => "vm.zone_reclaim_mode".to_string(),
            Self::NoRings => "FUSE over io_uring".to_string(),
            Self::NoHugePages => "huge pages of tmpfs".to_string(),
        }
    }

    /// Returns the benefit of mending the problem.
    #[must_use]
    pub const fn benefit(&self) -> &'static str {
        match self {
            Self::FarThreads { .. } | Self::HeldThreads { .. } | Self::FarBuffers { .. } => {
                "their bytes stay on one node"
            }
            Self::RemoteInterrupts {
                mobility: Mobility::Planned | Mobility::Loose,
                ..
            } => "completions and packets are worked on beside the device or beside the threads that take them",
            Self::RemoteInterrupts { .. } => {
                "the kernel lets completions arrive where the thread is, and that is then beside the disk"
            }
            Self::OneCpu { .. } => "each node's interrupts on CPUs of that node, and none waits behind the others",
            Self::FewQueues { .. } | Self::UnusedQueues { .. } => "each CPU of the node has a queue of its own",
            Self::NoXps { .. } | Self::XpsCrosses { .. } => "a packet is sent through a queue of the sender's node",
            Self::RpsCrosses { .. } => "packets are processed on the node that they arrived on",
            Self::HomeUnknown { .. } => "the kernel and homenode can place what belongs to it",
            Self::Conflict(_) => "one program decides, and nothing is moved to and fro",
            Self::CacheOnOneNode(_) => "pages come back on the reader's node; until then all reads wait for the disks",
            Self::TmpfsOnOneNode { .. } => "new pages on all nodes alike, or, in a pool, each on its writer's node",
            Self::NodeFull { .. } => "threads of this node find memory there",
            Self::PlacedFar { .. } => "memory lies where the CPU is that asked for it",
            Self::NoMemory { .. } => "these threads find memory on their own node",
            Self::NoCpus { .. } => "memory that is used often lies beside a CPU",
            Self::IdleBalancing { .. } => "programs take no faults that move hardly anything",
            Self::ZoneReclaim { .. } => "files stay cached, on a node with room",
            Self::NoRings => "requests are served on the CPU that asks, without a switch of threads",
            Self::NoHugePages => "a first write takes a fault for 2 MiB, not for each 4 KiB",
        }
    }
}

/// Writes the problem that [`Problem::object`] has, as the rest of a sentence.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FarThreads { .. } | Self::HeldThreads { .. } | Self::FarBuffers { .. } => self.fmt_threads(f),
            Self::RemoteInterrupts {
                wanted,
                wanted_at_home,
                remote,
                all,
                on,
                mobility,
                ..
            } => {
                let near = if *wanted_at_home {
                    "the device"
                } else {
                    "the threads that take its bytes"
                };
                let on = Nodes(on);
                write!(
                    f,
                    "{remote} of {all} arrived on {on} in the period; they belong on {wanted}, near {near}"
                )?;
                match mobility {
                    Mobility::Planned | Mobility::Loose => Ok(()),
                    Mobility::ManagedPlanned => write!(f, "; they cannot be moved, so the threads that use it move"),
                    Mobility::Managed => write!(f, "; they cannot be moved, and it is not known which threads use it"),
                }
            }
            Self::OneCpu { cpu, arrivals, .. } => write!(
                f,
                "all {arrivals} in the period arrived on CPU {}, and no program spreads them",
                cpu.0
            ),
            Self::FewQueues {
                home,
                queues,
                cpus,
                max,
                ..
            } => {
                let plural = if *queues == 1 { "" } else { "s" };
                write!(f, "busy, with {queues} queue{plural} for the {cpus} CPUs of {home}")?;
                max.map_or(Ok(()), |max| write!(f, "; it can have {max}"))
            }
            Self::UnusedQueues { used, queues, .. } => {
                write!(
                    f,
                    "busy, and its RSS table sends packets to {used} of its {queues} queues"
                )
            }
            Self::NoXps { .. } => write!(f, "XPS is not set: packets are sent through queues of any node"),
            Self::XpsCrosses { .. } => write!(f, "XPS has CPUs of several nodes send through the same queue"),
            Self::RpsCrosses { .. } => {
                write!(
                    f,
                    "RPS hands packets to CPUs of another node than the one they arrived on"
                )
            }
            Self::HomeUnknown { arrivals, .. } => {
                write!(
                    f,
                    "{arrivals} interrupts in the period, and the firmware does not tell its node"
                )
            }
            Self::Conflict(helper) => f.write_str(match helper {
                Helper::Irqbalance => "runs, so the interrupts that the affinity plan moves are left to it",
                Helper::Numad => "runs, and moves processes between nodes, as the affinity plan does",
                Helper::Tuned => "runs with a profile that sets affinities, as the affinity plan does",
                Helper::SystemdLink => "set RPS or numbers of queues of a card that the affinity plan cares for",
            }),
            Self::IdleBalancing {
                faults_per_s,
                migrated_per_s,
            } => write!(
                f,
                "on: {faults_per_s} faults a second to find pages to move, and {migrated_per_s} moved"
            ),
            Self::ZoneReclaim { mode, reclaims } => write!(
                f,
                "{mode}: a full node drops page cache though others have room ({reclaims} times since boot)"
            ),
            Self::NoRings => write!(f, "off: pools are served the classic way"),
            Self::NoHugePages => write!(f, "denied to all mounts: pools get pages of 4 KiB"),
            Self::CacheOnOneNode(_)
            | Self::TmpfsOnOneNode { .. }
            | Self::NodeFull { .. }
            | Self::PlacedFar { .. }
            | Self::NoMemory { .. }
            | Self::NoCpus { .. } => self.fmt_memory(f),
        }
    }
}

impl Problem {
    fn fmt_threads(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FarThreads {
                threads,
                device,
                class,
                to,
            } => {
                let belong = if threads.is_one() { "it belongs" } else { "they belong" };
                let from = threads.from;
                write!(
                    f,
                    "on {from}, {class}, far from the queues of {device}: {belong} on {to}"
                )
            }
            Self::HeldThreads {
                threads,
                device,
                home,
                held,
            } => {
                let (from, by) = (threads.from, threads.held_by(*held));
                write!(f, "on {from}, far from {device} on {home}, and cannot move: {by}")
            }
            Self::FarBuffers {
                threads,
                home,
                percent,
                bytes_per_s,
                way,
            } => {
                let (from, its, rate) = (threads.from, threads.its(), Rate(*bytes_per_s));
                write!(
                    f,
                    "on {from}, far from {its} buffers: {percent} % of {rate} are on {home}"
                )?;
                match way {
                    Way::Threads => Ok(()),
                    Way::Files => write!(f, "; files of the pool can come to {}", threads.them()),
                    Way::Held(held) => write!(f, ", and cannot move: {}", threads.held_by(*held)),
                }
            }
            _ => unreachable!("asked for threads only"),
        }
    }

    fn fmt_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheOnOneNode(heap) => write!(f, "{heap}"),
            Self::TmpfsOnOneNode { heap, mounts } => {
                write!(f, "{heap}")?;
                for mount in mounts {
                    write!(f, "; {mount}")?;
                }
                Ok(())
            }
            Self::NodeFull {
                bytes,
                largest_bytes,
                pages,
                from,
                ..
            } => {
                write!(f, "full: {pages} pages in the period came from {} instead", Nodes(from))?;
                if bytes < largest_bytes {
                    let (bytes, largest) = (Size(*bytes), Size(*largest_bytes));
                    write!(f, "; it has {bytes}, the largest node {largest}")?;
                }
                Ok(())
            }
            Self::PlacedFar { pages, balanced, .. } => {
                let later = match balanced {
                    true => "",
                    false => ", and with kernel.numa_balancing off none comes near later",
                };
                write!(
                    f,
                    "{pages} pages in the period for CPUs of other nodes, as a memory policy or a driver wanted{later}"
                )
            }
            Self::NoMemory { busy_percent, .. } => write!(
                f,
                "has no memory, and threads keep its CPUs busy ({busy_percent} % of one): all they use is remote"
            ),
            Self::NoCpus { used_bytes, .. } => {
                write!(
                    f,
                    "has no CPUs, and {} are in use there: remote for all",
                    Size(*used_bytes)
                )
            }
            _ => unreachable!("asked for memory only"),
        }
    }
}

impl Threads {
    fn is_one(&self) -> bool {
        self.numbers.len() == 1
    }

    fn its(&self) -> &'static str {
        if self.is_one() { "its" } else { "their" }
    }

    fn them(&self) -> &'static str {
        if self.is_one() { "it" } else { "them" }
    }

    fn held_by(&self, held: Held) -> String {
        let its = self.its();
        match held {
            Held::Mask => format!("someone has set {its} mask so"),
            Held::Cpuset => format!("{its} cpuset has no CPU there"),
        }
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = if self.is_one() { "thread" } else { "threads" };
        write!(f, "{threads} {} of {}", List(&self.numbers), self.process)
    }
}

impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, percent, free) = (Size(self.bytes), self.percent, Size(self.free_elsewhere_bytes));
        write!(
            f,
            "{bytes}, {percent} % of all, with {free} free on other nodes, whose threads run"
        )
    }
}

impl fmt::Display for Tmpfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = if self.policy.is_empty() {
            "default"
        } else {
            &self.policy
        };
        write!(f, "{} has {}, mpol={policy}", self.at, Size(self.used_bytes))
    }
}

/// The first few, and how many more.
struct List<'a>(&'a [u32]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        let shown = if self.0.len() == SHOWN + 1 { SHOWN + 1 } else { SHOWN };
        for (index, number) in self.0.iter().take(shown).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{number}")?;
        }
        match self.0.len().saturating_sub(shown) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

struct Nodes<'a>(&'a [NodeId]);

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [one] => write!(f, "{one}"),
            several => {
                write!(f, "nodes ")?;
                for (index, node) in several.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", node.0)?;
                }
                Ok(())
            }
        }
    }
}

/// In MiB, and of much memory in GiB.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// From here on whole GiB say enough.
        const GIB_MIN: u64 = 10 << 30;
        match self.0 {
            GIB_MIN.. => write!(f, "{} GiB", self.0 >> 30),
            _ => write!(f, "{} MiB", self.0 >> 20),
        }
    }
}
