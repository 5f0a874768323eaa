use super::*;
use crate::topology::made::Made;
use homenode_policy::NodeId;
use homenode_policy::doctor::{Balancing, Helper, NodeMemory, Tmpfs, ZoneReclaim};
use std::fs;

/// Two nodes; node 1 has the disk's home unknown.
fn two_nodes() -> Made {
    let machine = Made::of(&[
        ("proc/uptime", "100.00 300.00\n"),
        ("proc/interrupts", "           CPU0       CPU1\n"),
        ("sys/devices/system/cpu/online", "0-1\n"),
        (
            "proc/vmstat",
            "nr_free_pages 3\nnuma_hint_faults 10\nnuma_pages_migrated 4\n",
        ),
    ]);
    machine
        .counted_node(0, 100, [5, 1, 7, 2])
        .counted_node(1, 200, [0, 0, 0, 0]);
    machine
}

fn hardware() -> Source {
    Source::Synthetic("node:2 core:1 pu:1".to_owned())
}

impl Made {
    fn counted_node(&self, node: u16, free_kib: u64, [foreign, miss, other, interleave]: [u64; 4]) -> &Self {
        let meminfo = format!(
            "Node {node} MemTotal: 1000 kB\nNode {node} MemFree: {free_kib} kB\n\
             Node {node} FilePages: 70 kB\nNode {node} Shmem: 20 kB\n"
        );
        let numastat = format!(
            "numa_hit 9\nnuma_miss {miss}\nnuma_foreign {foreign}\ninterleave_hit {interleave}\n\
             local_node 3\nother_node {other}\n"
        );
        let directory = format!("sys/devices/system/node/node{node}");
        self.file(&format!("{directory}/meminfo"), &meminfo)
            .file(&format!("{directory}/numastat"), &numastat)
    }

    fn facts(&self) -> Facts {
        examine(&hardware(), self.root(), Duration::ZERO, Box::new(Vec::new))
            .unwrap()
            .facts
    }
}

#[test]
fn memory_is_reported_by_node_and_counts_by_period() {
    let machine = two_nodes();
    machine.file("sys/devices/system/node/possible", "0-1\n");
    let tree = machine.tree();
    let before = Before::read(&tree);
    machine.counted_node(0, 50, [25, 11, 107, 32]);
    machine.file("proc/vmstat", "numa_hint_faults 110\nnuma_pages_migrated 6\n");
    machine.file("proc/sys/kernel/numa_balancing", "2\n");
    let expected = NodeMemory {
        node: NodeId(0),
        bytes: 1000 << 10,
        free_bytes: 50 << 10,
        cache_bytes: 50 << 10,
        tmpfs_bytes: 20 << 10,
        foreign_pages: 20,
        missed_pages: 10,
        other_pages: 100,
        interleaved_pages: 30,
    };
    let nodes = memory::nodes(&tree, &before.pages);
    assert_eq!((nodes.len(), nodes[0]), (2, expected));
    let balancing = Balancing {
        on: true,
        hint_faults: 100,
        migrated_pages: 2,
    };
    assert_eq!(settings::balancing(&tree, &before.balancing), Some(balancing));
}

#[test]
fn memory_of_a_single_node_is_the_machines() {
    let machine = two_nodes();
    machine.file("proc/meminfo", "MemTotal: 5000 kB\nMemFree: 3000 kB\n");
    let tree = machine.tree();
    let of_nodes = |tree: &Tree| {
        let nodes = memory::nodes(tree, &PageCounts::new());
        nodes
            .iter()
            .map(|node| (node.bytes >> 10, node.free_bytes >> 10))
            .collect::<Vec<_>>()
    };
    assert_eq!(of_nodes(&tree), [(1000, 100), (1000, 200)]);
    fs::remove_dir_all(machine.root().join("sys/devices/system/node/node1")).unwrap();
    assert_eq!(of_nodes(&tree), [(5000, 3000)]);
}

#[test]
fn mounts_of_tmpfs() {
    let machine = two_nodes();
    machine.file("homenode/tmpfs", "4096  /dev/shm\n8192 bind:0 /a b\n0  /run\nx  /x\n");
    let tmpfs = |at: &str, policy: &str, used_bytes| Tmpfs {
        at: at.to_owned(),
        policy: policy.to_owned(),
        used_bytes,
    };
    let expected = [tmpfs("/a b", "bind:0", 8192), tmpfs("/dev/shm", "", 4096)];
    assert_eq!(machine.facts().tmpfs, expected);
}

#[test]
fn settings_and_helper_programs_are_found() {
    let machine = two_nodes();
    let facts = machine.facts();
    assert_eq!(
        (facts.zone_reclaim, facts.balancing, facts.fuse_rings),
        (None, None, None)
    );
    assert_eq!((facts.huge_tmpfs_denied, facts.helpers), (None, vec![]));
    machine
        .file("proc/sys/vm/zone_reclaim_mode", "3\n")
        .file("proc/vmstat", "zone_reclaim_success 5\nzone_reclaim_failed 6\n")
        .file(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always never [deny] force\n",
        )
        .file("sys/module/fuse/parameters/enable_uring", "N\n")
        .file("proc/cpuinfo", "processor : 0\nflags\t\t: fpu sse hypervisor lm\n")
        .file("proc/sys/kernel/osrelease", "6.1.0\n")
        .file("proc/16/comm", "numad\n")
        .file("proc/17/comm", "tuned\n")
        .file("proc/18/comm", "irqbalance\n")
        .file("proc/19/comm", "irqbalancer\n");
    let seen = examine(&hardware(), machine.root(), Duration::ZERO, Box::new(Vec::new)).unwrap();
    let reclaim = ZoneReclaim { mode: 3, reclaims: 11 };
    assert_eq!(seen.facts.zone_reclaim, Some(reclaim));
    assert_eq!(
        (seen.facts.huge_tmpfs_denied, seen.facts.fuse_rings),
        (Some(true), Some(false))
    );
    assert_eq!(
        seen.facts.helpers,
        [Helper::Irqbalance, Helper::Numad],
        "tuned does no harm"
    );
    machine
        .file("etc/tuned/active_profile", "mine\n")
        .file("etc/tuned/mine/tuned.conf", "[cpu]\nisolated_cores=1\n");
    assert_eq!(
        machine.facts().helpers,
        [Helper::Irqbalance, Helper::Numad, Helper::Tuned]
    );
    assert_eq!((seen.kernel.as_deref(), seen.is_virtual), (Some("6.1.0"), Some(true)));
}

#[test]
fn devices_without_a_home_have_an_address() {
    let machine = two_nodes();
    let function = "sys/devices/pci0000:3a/0000:3b:00.0";
    machine
        .file(&format!("{function}/numa_node"), "-1\n")
        .file(&format!("{function}/nvme/nvme0/nvme0n1/size"), "8\n");
    let disk = "../devices/pci0000:3a/0000:3b:00.0/nvme/nvme0/nvme0n1";
    machine.link("sys/block/nvme0n1", disk);
    let addresses = machine.facts().addresses;
    assert_eq!(addresses.get("nvme0n1").map(String::as_str), Some("0000:3b:00.0"));
    machine.file(&format!("{function}/numa_node"), "1\n");
    assert_eq!(machine.facts().addresses.len(), 0, "the device has a home");
}

#[test]
fn missing_files_are_reported_if_they_matter() {
    let unseen = |hardware: &str, root: &Path| {
        let source = Source::Synthetic(hardware.to_owned());
        examine(&source, root, Duration::ZERO, Box::new(Vec::new))
            .unwrap()
            .sensed
            .unseen
    };
    let machine = two_nodes();
    fs::remove_dir_all(machine.root().join("sys/devices/system/node")).unwrap();
    let told = unseen("node:2 core:1 pu:1", machine.root());
    for what in ["memory of nodes", "what a full node does", "pages between nodes"] {
        assert!(told.iter().any(|gap| gap.what.contains(what)), "{what}: {told:?}");
    }
    let alone = unseen("node:1 core:2 pu:1", machine.root());
    assert!(
        !alone.iter().any(|gap| gap.what.contains("memory of nodes")),
        "{alone:?}"
    );
    let error = examine(&hardware(), Path::new("/nowhere"), Duration::ZERO, Box::new(Vec::new)).unwrap_err();
    assert!(error.to_string().contains("/nowhere/proc/"), "{error}");
}

#[test]
fn a_recording_of_this_machine_reads_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let period = Duration::from_millis(20);
    let sensed = crate::affinity::record(
        &Source::Live,
        Path::new("/"),
        directory.path(),
        period,
        Box::new(Vec::new),
    )
    .unwrap();
    let again = recorded(directory.path()).unwrap();
    assert_eq!(again.sensed.snapshot, sensed.snapshot);
    assert!(again.kernel.is_some());
    let told = fs::read_to_string(directory.path().join("1/homenode/tmpfs")).unwrap();
    let holding = told.lines().filter(|line| !line.starts_with("0 "));
    // One may be mounted over the same place twice.
    let holding: std::collections::BTreeSet<&str> = holding.collect();
    assert_eq!(again.facts.tmpfs.len(), holding.len(), "{told}");
    let nodes = Path::new("/sys/devices/system/node/node0/meminfo").exists();
    assert_eq!(!again.facts.memory.is_empty(), nodes);
}
