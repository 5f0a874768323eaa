//! The command that mends what was found: whole lines for a root shell. Where only the operator can know a part of it,
//! that part is in capitals; where only its maker can know what may change, as of a cpuset, the command only looks.

use super::Judged;
use crate::affinity::card_advice;
use crate::topology::ranges;
use homenode_linux::affinity::act::Mask;
use homenode_policy::affinity::{QueueKind, Snapshot, Target};
use homenode_policy::doctor::{Held, Helper, Mobility, Problem, Threads, Tmpfs, Way};
use homenode_policy::topology::NodeKind;
use homenode_policy::{CpuId, NodeId};

const APPLY: &str = "homenode affinity apply";
/// For a node all of whose CPUs are set apart.
const LOOK_AT_ISOLATED: &str = "cat /sys/devices/system/cpu/isolated";

pub(super) fn command(judged: &Judged, problem: &Problem) -> String {
    let snapshot = &judged.examined.sensed.snapshot;
    if let Some(command) = card_advice::command(&judged.examined.sensed.cards, problem) {
        return command;
    }
    match problem {
        Problem::FarThreads { .. }
        | Problem::FarBuffers {
            way: Way::Threads | Way::Files,
            ..
        }
        | Problem::RemoteInterrupts {
            mobility: Mobility::Planned | Mobility::ManagedPlanned,
            ..
        } => APPLY.to_owned(),
        Problem::HeldThreads {
            threads, home, held, ..
        }
        | Problem::FarBuffers {
            threads,
            home,
            way: Way::Held(held),
            ..
        } => release(snapshot, threads, *home, *held),
        Problem::RemoteInterrupts {
            wanted,
            numbers,
            mobility: Mobility::Loose,
            ..
        } => match &running(snapshot, *wanted)[..] {
            [] => LOOK_AT_ISOLATED.to_owned(),
            cpus => for_each(numbers, |irq| {
                format!("echo {} >/proc/irq/{irq}/smp_affinity_list", ranges(cpus))
            }),
        },
        Problem::RemoteInterrupts { wanted, .. } => {
            format!("numactl --cpunodebind={} --localalloc COMMAND", wanted.0)
        }
        Problem::OneCpu { .. } => {
            if plans(judged, |target| matches!(target, Target::Interrupt(_))) {
                APPLY.to_owned()
            } else {
                "systemctl enable --now irqbalance".to_owned()
            }
        }
        Problem::NoXps { device, queues } | Problem::XpsCrosses { device, queues } => {
            let is_its = |target: &Target| matches!(target, Target::Transmit { device: of, .. } if of == device);
            if plans(judged, is_its) {
                return APPLY.to_owned();
            }
            steer(snapshot, device, queues)
        }
        Problem::RpsCrosses { device, queues } => {
            let is_its = |target: &Target| matches!(target, Target::Receive { device: of, .. } if of == device);
            if plans(judged, is_its) {
                return APPLY.to_owned();
            }
            narrow(snapshot, device, queues)
        }
        Problem::HomeUnknown { device, address, .. } => match address {
            Some(address) => format!("echo NODE >/sys/bus/pci/devices/{address}/numa_node"),
            None => format!("homenode affinity explain {device}"),
        },
        Problem::Conflict(helper) => match helper {
            Helper::Irqbalance | Helper::Numad => format!("systemctl disable --now {helper}"),
            Helper::Tuned => "tuned-adm list; tuned-adm profile PROFILE".to_owned(),
            Helper::SystemdLink => {
                "grep -rlE 'ReceivePacketSteeringCPUMask|Channels|Queues' /etc/systemd/network".to_owned()
            }
        },
        _ => of_memory(judged, problem),
    }
}

fn of_memory(judged: &Judged, problem: &Problem) -> String {
    match problem {
        Problem::CacheOnOneNode(_) => "sync; echo 1 >/proc/sys/vm/drop_caches".to_owned(),
        Problem::TmpfsOnOneNode { mounts, .. } => spread(mounts),
        Problem::NodeFull { .. } => format!("numactl --interleave={} COMMAND", nodes_with_memory(judged)),
        Problem::PlacedFar { balanced: false, .. } => "sysctl -w kernel.numa_balancing=1".to_owned(),
        // Which processes have asked for a policy; what has none is a driver's.
        Problem::PlacedFar { .. } => "grep -lE ' (bind|prefer|interleave)' /proc/[0-9]*/numa_maps".to_owned(),
        Problem::NoMemory { node, .. } => match nearest_with_memory(judged, *node) {
            Some(near) => format!("numactl --cpunodebind={} --membind={} COMMAND", near.0, near.0),
            None => "homenode topology".to_owned(),
        },
        Problem::NoCpus { .. } => format!("numactl --membind={} COMMAND", nodes_with_memory(judged)),
        Problem::IdleBalancing { .. } => "sysctl -w kernel.numa_balancing=0".to_owned(),
        Problem::ZoneReclaim { .. } => "sysctl -w vm.zone_reclaim_mode=0".to_owned(),
        Problem::NoRings => "echo Y >/sys/module/fuse/parameters/enable_uring".to_owned(),
        Problem::NoHugePages => "echo never >/sys/kernel/mm/transparent_hugepage/shmem_enabled".to_owned(),
        _ => unreachable!("cards, memory and settings have commands of their own"),
    }
}

/// Lets threads run on their device's node. Of a cpuset it tells the group that has it: it or one above it is what
/// restricts, others may be in it, and what made it may set it again.
fn release(snapshot: &Snapshot, threads: &Threads, home: NodeId, held: Held) -> String {
    let cpus = running(snapshot, home);
    for_each(&threads.numbers, |thread| match held {
        Held::Mask if cpus.is_empty() => LOOK_AT_ISOLATED.to_owned(),
        Held::Mask => format!("taskset -cp {} {thread}", ranges(&cpus)),
        Held::Cpuset => format!("cat /proc/{thread}/cpuset"),
    })
}

/// Has packets processed on those CPUs of each queue that are on the node where they arrive; where there are none, on the CPU that they arrive on.
fn narrow(snapshot: &Snapshot, device: &str, numbers: &[u32]) -> String {
    let one = |number: &u32| {
        let mut queues = snapshot.queues.iter();
        let queue =
            queues.find(|queue| queue.kind == QueueKind::Receive && queue.index == *number && queue.device == device);
        let mut interrupts = snapshot.interrupts.iter();
        let arrives = queue.and_then(|queue| interrupts.find(|known| Some(known.number) == queue.interrupt));
        let nodes = arrives.map_or(&[][..], |interrupt| &interrupt.effective).iter();
        let nodes: Vec<NodeId> = nodes.filter_map(|cpu| snapshot.node(*cpu)).collect();
        let near = nodes.iter().flat_map(|node| running(snapshot, *node));
        let mut near: Vec<CpuId> = near
            .filter(|cpu| queue.is_some_and(|queue| queue.cpus.contains(cpu)))
            .collect();
        near.sort_unstable();
        near.dedup();
        let mask = Mask::of(&near);
        format!("echo {mask} >/sys/class/net/{device}/queues/rx-{number}/rps_cpus")
    };
    numbers.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// A command for one number, or a loop over several.
fn for_each(numbers: &[u32], command: impl Fn(&str) -> String) -> String {
    match numbers {
        [one] => command(&one.to_string()),
        several => {
            let list: Vec<String> = several.iter().map(u32::to_string).collect();
            format!("for n in {}; do {}; done", list.join(" "), command("$n"))
        }
    }
}

/// Has each queue used by the CPUs of the node that its interrupt arrives on; of those without, by nodes in turn.
fn steer(snapshot: &Snapshot, device: &str, numbers: &[u32]) -> String {
    let mut nodes: Vec<NodeId> = snapshot.online.iter().filter_map(|cpu| snapshot.node(*cpu)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let one = |(turn, number): (usize, &u32)| {
        let mut queues = snapshot.queues.iter();
        let queue =
            queues.find(|queue| queue.kind == QueueKind::Transmit && queue.index == *number && queue.device == device);
        let interrupt = queue.and_then(|queue| queue.interrupt);
        let mut interrupts = snapshot.interrupts.iter();
        let arrives = interrupts
            .find(|known| Some(known.number) == interrupt)
            .and_then(|known| known.effective.first().copied());
        let node = arrives
            .and_then(|cpu| snapshot.node(cpu))
            .unwrap_or_else(|| nodes[turn % nodes.len()]);
        let cpus = running(snapshot, node);
        let mask = Mask::of(&cpus);
        format!("echo {mask} >/sys/class/net/{device}/queues/tx-{number}/xps_cpus")
    };
    let commands: Vec<String> = numbers.iter().enumerate().map(one).collect();
    commands.join("; ")
}

/// New pages of the fullest mount on all nodes alike. A pool puts them where their writers are.
fn spread(mounts: &[Tmpfs]) -> String {
    match mounts.first() {
        Some(mount) => format!("mount -o remount,mpol=interleave {}", quoted(&mount.at)),
        None => "homenode up DIR".to_owned(),
    }
}

/// For a shell.
fn quoted(text: &str) -> String {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "/._-+,@".contains(one);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn plans(judged: &Judged, wanted: impl Fn(&Target) -> bool) -> bool {
    judged.plan.actions.iter().any(|action| wanted(&action.target))
}

/// The node's CPUs that run and are not set apart.
fn running(snapshot: &Snapshot, node: NodeId) -> Vec<CpuId> {
    let online = snapshot.online.iter().copied();
    let on_node = online.filter(|cpu| snapshot.node(*cpu) == Some(node));
    on_node.filter(|cpu| !snapshot.isolated.contains(cpu)).collect()
}

/// Lists the nodes that have both memory and CPUs: `0-1,3`.
fn nodes_with_memory(judged: &Judged) -> String {
    let nodes = judged.examined.sensed.snapshot.topology.nodes().iter();
    let numbers: Vec<CpuId> = nodes
        .filter(|node| node.kind() == NodeKind::Dram)
        .map(|node| CpuId(node.id.0.into()))
        .collect();
    ranges(&numbers)
}

fn nearest_with_memory(judged: &Judged, node: NodeId) -> Option<NodeId> {
    let topology = &judged.examined.sensed.snapshot.topology;
    let nodes = topology.nodes();
    let row = nodes.iter().position(|one| one.id == node)?;
    let latency = |column: usize| topology.latency().matrix[row][column];
    let with_memory = (0..nodes.len()).filter(|index| nodes[*index].kind() == NodeKind::Dram);
    with_memory
        .min_by_key(|index| latency(*index))
        .map(|index| nodes[index].id)
}
