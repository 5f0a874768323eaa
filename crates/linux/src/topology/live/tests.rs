use super::*;
use crate::topology::made::Made;
use homenode_policy::topology::{Latency, Node, NodeKind, Topology};

/// A recorded machine: two nodes with CPUs (CPU 3 is offline, 4 to 7 may be plugged later) and a memory-only node, an
/// NVMe disk on node 1, a virtio disk whose node is only known two devices up, and two network cards.
fn recorded() -> Made {
    let machine = Made::new();
    let file = |path: &str, text: &str| {
        machine.file(&format!("sys/{path}"), text);
    };
    let link = |path: &str, target: &str| {
        machine.link(&format!("sys/{path}"), target);
    };
    file("devices/system/cpu/possible", "0-7\n");
    file("devices/system/cpu/present", "0-3\n");
    file("devices/system/cpu/online", "0-2\n");
    for (cpu, node) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
        link(
            &format!("devices/system/cpu/cpu{cpu}/node{node}"),
            &format!("../../node/node{node}"),
        );
    }
    file("devices/system/node/node0/cpulist", "0,2\n");
    file("devices/system/node/node1/cpulist", "1\n");
    file("devices/system/node/node2/cpulist", "\n");

    let nvme = "devices/pci0000:80/0000:80:01.0";
    file(&format!("{nvme}/numa_node"), "1\n");
    file(&format!("{nvme}/nvme/nvme0/numa_node"), "1\n");
    for queue in 0..11 {
        file(
            &format!("{nvme}/nvme/nvme0/nvme0n1/mq/{queue}/cpu_list"),
            "0, 1, 2, 3, 9\n",
        );
    }
    link("block/nvme0n1", &format!("../{nvme}/nvme/nvme0/nvme0n1"));
    let virtio = "devices/pci0000:00/0000:00:02.0";
    file(&format!("{virtio}/numa_node"), "0\n");
    file(&format!("{virtio}/virtio1/block/vda/size"), "8\n");
    link("block/vda", &format!("../{virtio}/virtio1/block/vda"));
    file("devices/virtual/block/loop0/size", "8\n");
    link("block/loop0", "../devices/virtual/block/loop0");

    let card = "devices/pci0000:80/0000:80:02.0";
    file(&format!("{card}/numa_node"), "-1\n");
    link(&format!("{card}/virtio2/net/eth0/device"), "../..");
    for (queue, mask) in [("rx-0", None), ("rx-1", None), ("tx-0", Some("5")), ("tx-1", Some("a"))] {
        let queue = format!("{card}/virtio2/net/eth0/queues/{queue}");
        file(&format!("{queue}/traffic_class"), "");
        if let Some(mask) = mask {
            file(&format!("{queue}/xps_cpus"), mask);
        }
    }
    link("class/net/eth0", &format!("../../{card}/virtio2/net/eth0"));
    file("devices/virtual/net/lo/queues/rx-0/rps_cpus", "0");
    link("class/net/lo", "../../devices/virtual/net/lo");
    machine
}

/// Returns hwloc's view of [`recorded`]: the memory-only node has the CPU of node 1.
fn seen_by_hwloc() -> Parts {
    let node = |id, cpus: &[u32]| Node {
        cpus: cpus.iter().copied().map(CpuId).collect(),
        memory_bytes: 1 << 30,
        ..Node::new(NodeId(id))
    };
    let cpu = |id| Cpu {
        id: CpuId(id),
        core: Some(id),
        package: Some(0),
        online: true,
    };
    Parts {
        nodes: vec![node(0, &[0, 2]), node(1, &[]), node(2, &[1])],
        cpus: (0..3).map(cpu).collect(),
        possible_cpus: 3,
        caches: vec![],
        latency: Latency {
            matrix: vec![vec![10; 3]; 3],
            ..Latency::default()
        },
        devices: vec![Device {
            name: "vda".to_owned(),
            kind: DeviceKind::Block,
            home: None,
            queues: vec![],
        }],
    }
}

fn amended() -> Topology {
    let machine = recorded();
    let mut parts = seen_by_hwloc();
    amend(&mut parts, &machine.tree());
    Topology::new(parts).unwrap()
}

#[test]
fn cpus_belong_to_the_kernels_node() {
    let machine = amended();
    let numbers = |node: u16| {
        machine
            .node(NodeId(node))
            .unwrap()
            .cpus
            .iter()
            .map(|cpu| cpu.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(0), [0, 2]);
    assert_eq!(numbers(1), [1, 3]);
    assert_eq!(machine.node(NodeId(2)).unwrap().kind(), NodeKind::MemoryOnly);
    let nodes: Vec<u16> = machine.cpu_nodes().iter().map(|node| node.0).collect();
    assert_eq!(nodes, [0, 1, 0, 1, 1, 1, 1, 1]);
    let online: Vec<bool> = machine.cpus().iter().map(|cpu| cpu.online).collect();
    assert_eq!(online, [true, true, true, false]);
}

#[test]
fn devices_have_homes_and_queues() {
    let machine = amended();
    let seen: Vec<_> = machine
        .devices()
        .iter()
        .map(|device| {
            (
                device.name.as_str(),
                device.kind,
                device.home.map(|node| node.0),
                device.queues.len(),
            )
        })
        .collect();
    let expected = [
        ("nvme0n1", DeviceKind::Block, Some(1), 11),
        ("vda", DeviceKind::Block, Some(0), 0),
        ("eth0", DeviceKind::Network, None, 4),
    ];
    assert_eq!(seen, expected);
    let nvme = &machine.devices()[0];
    assert_eq!(nvme.queues[10].name, "10");
    assert_eq!(nvme.queues[10].cpus, [0, 1, 2, 3].map(CpuId), "CPU 9 is not possible");
    let queues = &machine.devices()[2].queues;
    assert_eq!((queues[0].name.as_str(), queues[0].cpus.len()), ("rx-0", 0));
    assert_eq!(
        (queues[3].name.as_str(), &queues[3].cpus[..]),
        ("tx-1", &[CpuId(1), CpuId(3)][..])
    );
}

/// A disk behind two controllers, on nodes 0 and 1, with a queue more on the second.
#[test]
fn a_multipath_disk_has_the_home_and_queues_of_its_only_path() {
    let machine = recorded();
    let put = |path: &str, text: &str| {
        machine.file(&format!("sys/{path}"), text);
    };
    let link = |name: &str, target: &str| {
        machine.link(&format!("sys/block/{name}"), target);
    };
    let subsystem = "devices/virtual/nvme-subsystem/nvme-subsys1";
    put(&format!("{subsystem}/nvme1n1/size"), "8\n");
    link("nvme1n1", &format!("../{subsystem}/nvme1n1"));
    let controllers = [1, 2].map(|controller| {
        let function = format!("devices/pci0000:00/0000:00:1{controller}.0");
        put(&format!("{function}/numa_node"), &format!("{}\n", controller - 1));
        let path = format!("nvme1c{controller}n1");
        let controller_directory = format!("{function}/nvme/nvme{controller}");
        put(&format!("{controller_directory}/state"), "live\n");
        for queue in 0..controller {
            put(&format!("{controller_directory}/{path}/mq/{queue}/cpu_list"), "0, 1\n");
        }
        link(&path, &format!("../{controller_directory}/{path}"));
        (controller_directory.clone(), format!("{controller_directory}/{path}"))
    });
    let seen = || {
        let mut parts = seen_by_hwloc();
        amend(&mut parts, &machine.tree());
        let topology = Topology::new(parts).unwrap();
        let disks = topology
            .devices()
            .iter()
            .filter(|device| device.name.starts_with("nvme1"));
        let disks = disks.map(|disk| (disk.name.clone(), disk.home.map(|node| node.0), disk.queues.len()));
        disks.collect::<Vec<_>>()
    };
    let disk = |home, queues| vec![("nvme1n1".to_owned(), home, queues)];
    assert_eq!(seen(), disk(None, 0), "two live paths");
    put(&format!("{}/state", controllers[0].0), "connecting\n");
    assert_eq!(seen(), disk(Some(1), 2), "one live path");
    put(&format!("{}/state", controllers[0].0), "live\n");
    put(&format!("{}/ana_state", controllers[1].1), "non-optimized\n");
    assert_eq!(seen(), disk(Some(0), 1), "one path is better");
    put(&format!("{}/ana_state", controllers[1].1), "inaccessible\n");
    put(&format!("{}/state", controllers[0].0), "dead\n");
    assert_eq!(seen(), disk(None, 0), "no path");
}

#[test]
fn a_single_node_has_all_cpus_and_devices() {
    let machine = recorded();
    let mut parts = seen_by_hwloc();
    parts.nodes.truncate(1);
    parts.latency.matrix = vec![vec![10]];
    amend(&mut parts, &machine.tree());
    assert!(
        parts.devices.iter().all(|device| device.home == Some(NodeId(0))),
        "{:?}",
        parts.devices
    );
}

#[test]
fn an_empty_sysfs_changes_nothing() {
    let mut parts = seen_by_hwloc();
    amend(&mut parts, &Made::new().tree());
    assert_eq!(parts, seen_by_hwloc());
}
