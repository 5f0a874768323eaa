//! Facts that the kernel of a running machine adds to hwloc's view, read from sysfs below a root directory.

use super::nodes;
use super::paths::{Paths, disk_of};
use super::sysfs::{Tree, parse_mask};
use homenode_policy::topology::{Cpu, Device, DeviceKind, DeviceQueue, Parts};
use homenode_policy::{CpuId, NodeId};

const CPUS: &str = "sys/devices/system/cpu";
const DISKS: &str = "sys/block";
const CARDS: &str = "sys/class/net";

/// Disks that have no hardware: they move nothing between the outside and memory.
const VIRTUAL_DISKS: [&str; 6] = ["loop", "ram", "zram", "dm-", "md", "nbd"];

/// Corrects `parts` by what `tree` tells: the CPUs that may ever come, the node the kernel counts each CPU to, and the
/// disks and network cards with their queues. Where the tree tells nothing, what hwloc said stays.
pub(super) fn amend(parts: &mut Parts, tree: &Tree) {
    cpus(parts, tree);
    cpu_homes(parts, tree);
    memory(parts, tree);
    let mut devices = disks(tree);
    devices.extend(cards(tree));
    for device in &mut devices {
        let known = |home: &NodeId| parts.nodes.iter().any(|node| node.id == *home);
        let only = || {
            if let [only] = &parts.nodes[..] {
                Some(only.id)
            } else {
                None
            }
        };
        device.home = device.home.filter(known).or_else(only);
        // A device of another kind with the same name cannot be: both views name the kernel's devices.
        parts.devices.retain(|other| other.name != device.name);
        for queue in &mut device.queues {
            queue.cpus.retain(|cpu| cpu.0 < parts.possible_cpus);
        }
    }
    parts.devices.retain(|device| disk_of(&device.name).is_none());
    parts.devices.extend(devices);
}

/// Adds the CPUs that are present but offline, and learns how many may ever come.
fn cpus(parts: &mut Parts, tree: &Tree) {
    let online = tree.list(format!("{CPUS}/online")).unwrap_or_default();
    for cpu in &mut parts.cpus {
        cpu.online = if online.is_empty() {
            cpu.online
        } else {
            online.contains(&cpu.id.0)
        };
    }
    for number in tree.list(format!("{CPUS}/present")).unwrap_or_default() {
        let id = CpuId(number);
        if parts.cpus.iter().all(|cpu| cpu.id != id) {
            parts.cpus.push(Cpu {
                id,
                core: None,
                package: None,
                online: online.contains(&number),
            });
        }
    }
    let possible = tree.list(format!("{CPUS}/possible")).unwrap_or_default();
    let known = parts.cpus.iter().map(|cpu| cpu.id.0);
    parts.possible_cpus = possible.into_iter().chain(known).max().map_or(0, |highest| highest + 1);
}

/// Counts each CPU to the node that the kernel counts it to. A node's list has the online CPUs; the link in the CPU's
/// own directory stays while it is offline.
fn cpu_homes(parts: &mut Parts, tree: &Tree) {
    for cpu in &parts.cpus {
        let homes = nodes::ids(tree, format!("{CPUS}/cpu{}", cpu.id.0));
        let home = homes.first().copied();
        let Some(home) = home.filter(|home| parts.nodes.iter().any(|node| node.id == *home)) else {
            continue;
        };
        for node in &mut parts.nodes {
            node.cpus.retain(|other| other != &cpu.id);
            if node.id == home {
                node.cpus.push(cpu.id);
            }
        }
    }
    for node in &mut parts.nodes {
        // Memory-only nodes: hwloc calls the CPUs nearest to them theirs.
        if nodes::has_no_cpus(tree, node.id) {
            let online = |id: &CpuId| parts.cpus.iter().any(|cpu| cpu.id == *id && cpu.online);
            node.cpus.retain(|id| !online(id));
        }
    }
}

/// Gives the only node with memory that of the machine.
fn memory(parts: &mut Parts, tree: &Tree) {
    if let [(only, info)] = nodes::with_memory(tree)[..]
        && let Some(node) = parts.nodes.iter_mut().find(|node| node.id == only)
    {
        node.memory_bytes = node.memory_bytes.max(info.total);
    }
}

/// Names of the disks with a device behind them, without their paths, and of the cards.
pub(crate) fn real_devices(tree: &Tree) -> Vec<String> {
    real_disks(tree).chain(real_cards(tree)).collect()
}

fn real_disks(tree: &Tree) -> impl Iterator<Item = String> {
    let real = |name: &String| !VIRTUAL_DISKS.iter().any(|prefix| name.starts_with(prefix)) && disk_of(name).is_none();
    tree.names(DISKS).into_iter().filter(real)
}

/// Network cards are the interfaces with a device behind them; bridges, tunnels and the loopback have none.
fn real_cards(tree: &Tree) -> impl Iterator<Item = String> {
    let names = tree.names(CARDS).into_iter();
    names.filter(|name| tree.exists(format!("{CARDS}/{name}/device")))
}

fn disks(tree: &Tree) -> Vec<Device> {
    let names = real_disks(tree);
    let paths = Paths::read(tree);
    let disk = |name: String| {
        let directory = paths.directory(&name);
        let queue = |number: String| DeviceQueue {
            cpus: tree
                .list(format!("{directory}/mq/{number}/cpu_list"))
                .unwrap_or_default()
                .into_iter()
                .map(CpuId)
                .collect(),
            name: number,
        };
        Device {
            kind: if name.starts_with("pmem") {
                DeviceKind::Pmem
            } else {
                DeviceKind::Block
            },
            home: tree.home(format!("{DISKS}/{name}")).or_else(|| paths.home(tree, &name)),
            queues: tree.names(format!("{directory}/mq")).into_iter().map(queue).collect(),
            name,
        }
    };
    names.map(disk).collect()
}

fn cards(tree: &Tree) -> Vec<Device> {
    let real = real_cards(tree);
    let card = |name: String| {
        // xps_cpus answers only where there are several queues; without it every CPU may send.
        let queue = |queue: String| DeviceQueue {
            cpus: tree
                .text(format!("{CARDS}/{name}/queues/{queue}/xps_cpus"))
                .and_then(|mask| parse_mask(&mask))
                .unwrap_or_default(),
            name: queue,
        };
        Device {
            kind: DeviceKind::Network,
            home: tree.home(format!("{CARDS}/{name}/device")),
            queues: tree
                .names(format!("{CARDS}/{name}/queues"))
                .into_iter()
                .map(queue)
                .collect(),
            name,
        }
    };
    real.map(card).collect()
}

#[cfg(test)]
mod tests;
