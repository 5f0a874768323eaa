//! The topology as a tree for a person.

use crate::affinity::words::count;
use homenode_linux::topology::Source;
use homenode_policy::CpuId;
use homenode_policy::topology::{Cache, CacheKind, Device, DeviceKind, LatencySource, Node, NodeKind, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// A line and what is below it.
struct Branch {
    line: String,
    below: Vec<Branch>,
}

/// Ends with a newline.
pub(crate) fn of(topology: &Topology, source: &Source) -> String {
    let mut branches: Vec<Branch> = topology
        .nodes()
        .iter()
        .map(|node| node_branch(topology, node))
        .collect();
    let homeless: Vec<Branch> = devices(topology, |device| device.home.is_none());
    if !homeless.is_empty() {
        branches.push(Branch {
            line: "no known home".to_owned(),
            below: homeless,
        });
    }
    let mut text = heading(topology, source) + "\n";
    draw(&mut text, "", &branches);
    if topology.nodes().len() > 1 {
        text.push_str(&distances(topology));
    }
    text
}

/// `16.0 GiB`, `512 KiB`: in the largest unit that leaves a digit before the point; tenths where they say something.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = if bytes == 0 { 0 } else { bytes.ilog2() / 10 };
    let name = UNITS[unit as usize];
    let whole = bytes >> (unit * 10);
    let tenths = (u128::from(bytes) * 10) >> (unit * 10);
    if unit == 0 || whole >= 100 || tenths % 10 == 0 && unit < 3 {
        format!("{whole} {name}")
    } else {
        format!("{whole}.{} {name}", tenths % 10)
    }
}

fn heading(topology: &Topology, source: &Source) -> String {
    let memory: u64 = topology.nodes().iter().map(|node| node.memory_bytes).sum();
    let online = topology.cpus().iter().filter(|cpu| cpu.online).count();
    let mut text = format!(
        "{source}: {}, {}",
        count(topology.nodes().len(), "node"),
        count(online, "CPU")
    );
    if topology.cpu_nodes().len() > online {
        let _ = write!(text, " ({} possible)", topology.cpu_nodes().len());
    }
    text + ", " + &human_bytes(memory)
}

fn draw(text: &mut String, indent: &str, branches: &[Branch]) {
    for (index, branch) in branches.iter().enumerate() {
        let last = index + 1 == branches.len();
        let _ = writeln!(text, "{indent}{}{}", if last { "└─ " } else { "├─ " }, branch.line);
        let below = format!("{indent}{}", if last { "   " } else { "│  " });
        draw(text, &below, &branch.below);
    }
}

fn node_branch(topology: &Topology, node: &Node) -> Branch {
    let mut line = format!("{}: {}", node.id, kind(node.kind()));
    if let Some(technology) = node.technology.as_ref().filter(|technology| *technology != "DRAM") {
        let _ = write!(line, " ({technology})");
    }
    if node.memory_bytes > 0 {
        line += &format!(", {}", human_bytes(node.memory_bytes));
    }
    if let Some(latency) = node.latency_ns {
        let _ = write!(line, ", {latency} ns");
    }
    if let Some(bandwidth) = node.bandwidth_mib_per_s {
        let _ = write!(line, ", {}/s", human_bytes(bandwidth.saturating_mul(1 << 20)));
    }
    if !node.cpus.is_empty() {
        line += &format!(", CPUs {}{}", ranges(&node.cpus), places(topology, node));
    }
    let mut below = Vec::new();
    let caches = caches(topology, node);
    if !caches.is_empty() {
        below.push(Branch {
            line: format!("caches: {}", caches.join(", ")),
            below: Vec::new(),
        });
    }
    below.extend(devices(topology, |device| device.home == Some(node.id)));
    Branch { line, below }
}

/// ` (8 cores of package 0; 3 offline)`.
fn places(topology: &Topology, node: &Node) -> String {
    let mine = || topology.cpus().iter().filter(|cpu| node.cpus.contains(&cpu.id));
    let cores: BTreeSet<u32> = mine().filter_map(|cpu| cpu.core).collect();
    let packages: BTreeSet<u32> = mine().filter_map(|cpu| cpu.package).collect();
    let offline: Vec<CpuId> = mine().filter(|cpu| !cpu.online).map(|cpu| cpu.id).collect();
    let mut parts = Vec::new();
    if !cores.is_empty() {
        let packages: Vec<String> = packages.iter().map(u32::to_string).collect();
        let of = match packages.len() {
            0 => String::new(),
            1 => format!(" of package {}", packages[0]),
            _ => format!(" of packages {}", packages.join(", ")),
        };
        parts.push(count(cores.len(), "core") + &of);
    }
    if !offline.is_empty() {
        parts.push(format!("offline: {}", ranges(&offline)));
    }
    if parts.is_empty() {
        String::new()
    } else {
        format!(" ({})", parts.join("; "))
    }
}

fn kind(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Dram => "dram",
        NodeKind::MemoryOnly => "memory-only",
        NodeKind::CpuOnly => "cpu-only",
        NodeKind::Empty => "empty",
    }
}

fn device_kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Block => "block",
        DeviceKind::Pmem => "pmem",
        DeviceKind::Network => "network",
        DeviceKind::Accelerator => "accelerator",
    }
}

/// `0-3,8`; the numbers ascend.
pub(crate) fn ranges(cpus: &[CpuId]) -> String {
    let runs = cpus.chunk_by(|a, b| a.0 + 1 == b.0);
    let parts: Vec<String> = runs
        .map(|run| match run {
            [one] => one.0.to_string(),
            [first, .., last] => format!("{}-{}", first.0, last.0),
            [] => String::new(),
        })
        .collect();
    parts.join(",")
}

/// The caches of the node's CPUs, farthest first: `L3 32 MiB`, `8 × L2 1 MiB`.
fn caches(topology: &Topology, node: &Node) -> Vec<String> {
    let mut alike: BTreeMap<_, (usize, bool)> = BTreeMap::new();
    for cache in topology.caches() {
        let inside = |cache: &Cache| cache.cpus.iter().filter(|cpu| node.cpus.contains(cpu)).count();
        if inside(cache) > 0 {
            let entry = alike.entry((cache.level, cache.kind, cache.bytes)).or_default();
            entry.0 += 1;
            entry.1 |= inside(cache) < cache.cpus.len();
        }
    }
    let name = |((level, kind, bytes), (number, shared)): (&(u8, CacheKind, u64), &(usize, bool))| {
        let times = if *number == 1 {
            String::new()
        } else {
            format!("{number} × ")
        };
        let suffix = match kind {
            CacheKind::Unified => "",
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
        };
        let shared = if *shared { " (shared with other nodes)" } else { "" };
        format!("{times}L{level}{suffix} {}{shared}", human_bytes(*bytes))
    };
    alike.iter().rev().map(name).collect()
}

fn devices(topology: &Topology, wanted: impl Fn(&Device) -> bool) -> Vec<Branch> {
    let devices = topology.devices().iter().filter(|device| wanted(device));
    let branch = |device: &Device| Branch {
        line: format!("{}: {}{}", device.name, device_kind(device.kind), queues(device)),
        below: Vec::new(),
    };
    devices.map(branch).collect()
}

/// `, 8 queues` or `, 4 rx and 4 tx queues`.
fn queues(device: &Device) -> String {
    let starting = |prefix: &str| {
        device
            .queues
            .iter()
            .filter(|queue| queue.name.starts_with(prefix))
            .count()
    };
    match (starting("rx-"), starting("tx-"), device.queues.len()) {
        (_, _, 0) => String::new(),
        (0, 0, all) => format!(", {}", count(all, "queue")),
        (rx, tx, _) => format!(", {rx} rx and {}", count(tx, "tx queue")),
    }
}

fn distances(topology: &Topology) -> String {
    let latency = topology.latency();
    let mut text = match latency.source {
        LatencySource::Hmat => "latencies in ns (firmware's HMAT), from row to column:\n",
        LatencySource::Measured => "latencies in ns (measured), from row to column:\n",
        LatencySource::Slit => "distances (firmware's SLIT, 10 is local), from row to column:\n",
        LatencySource::Assumed => "distances (assumed: the machine tells none; 10 is local), from row to column:\n",
    }
    .to_owned();
    let names: Vec<String> = topology.nodes().iter().map(|node| node.id.0.to_string()).collect();
    let cells = latency.matrix.iter().flatten().map(|value| value.to_string().len());
    let width = cells.chain(names.iter().map(String::len)).max().unwrap_or(1) + 2;
    let left = names.iter().map(String::len).max().unwrap_or(1) + "  node ".len();
    let _ = write!(text, "{:left$}", "");
    for name in &names {
        let _ = write!(text, "{name:>width$}");
    }
    text.push('\n');
    for ((name, row), node) in names.iter().zip(&latency.matrix).zip(topology.nodes()) {
        if node.cpus.is_empty() && latency.source == LatencySource::Hmat {
            // Nobody measured from there.
            continue;
        }
        let _ = write!(text, "{:left$}", format!("  node {name}"));
        for value in row {
            let _ = write!(text, "{value:>width$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::topology::read;

    #[test]
    fn sizes_are_shown_in_readable_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (48 << 10, "48 KiB"),
            (1536, "1.5 KiB"),
            (16 << 30, "16.0 GiB"),
            ((16 << 30) - 1, "15.9 GiB"),
            (200 << 30, "200 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn ranges_of_cpus() {
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11].map(CpuId)), "0-3,8,10-11");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn topology_is_shown_as_a_tree_and_a_table() {
        let source: Source = "pack:2 [numa(memory=1GiB)] l3:1(size=2MiB) core:2 pu:1"
            .parse()
            .unwrap();
        let text = of(&read(&source).unwrap(), &source);
        let expected = "\
\"pack:2 [numa(memory=1GiB)] l3:1(size=2MiB) core:2 pu:1\": 2 nodes, 4 CPUs, 2.0 GiB
├─ node 0: dram, 1.0 GiB, CPUs 0-1 (2 cores of package 0)
│  └─ caches: L3 2 MiB
└─ node 1: dram, 1.0 GiB, CPUs 2-3 (2 cores of package 1)
   └─ caches: L3 2 MiB
distances (assumed: the machine tells none; 10 is local), from row to column:
           0   1
  node 0  10  20
  node 1  20  10
";
        assert_eq!(text, expected);
    }
}
