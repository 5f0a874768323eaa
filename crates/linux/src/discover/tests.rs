use super::*;
use crate::topology::made::Made;

const GIB: u64 = 1 << 30;

impl Made {
    fn node(&self, number: u16, cpus: &str, gib: u64) -> &Self {
        let kilobytes = gib << 20;
        let meminfo = format!(
            "\nNode {number} MemTotal: {kilobytes} kB\nNode {number} MemFree: {} kB\nNode {number} Active(file): 100 kB\n\
             Node {number} Inactive(file): 40 kB\nNode {number} Dirty: 20 kB\nNode {number} Writeback: 20 kB\n",
            kilobytes / 2
        );
        let directory = format!("sys/devices/system/node/node{number}");
        self.file(&format!("{directory}/meminfo"), &meminfo);
        self.file(&format!("{directory}/cpulist"), &format!("{cpus}\n"))
    }

    /// An NVMe disk of 1 GiB behind a PCI function on `node`.
    fn nvme(&self, number: u8, node: i8) -> &Self {
        let function = format!("devices/pci0000:00/0000:00:0{number}.0");
        let disk = format!("{function}/nvme/nvme{number}/nvme{number}n1");
        self.file(&format!("sys/{function}/numa_node"), &format!("{node}\n"));
        self.file(&format!("sys/{disk}/size"), "2097152\n");
        self.file(&format!("sys/{disk}/dev"), &format!("259:{number}\n"));
        self.link(&format!("sys/class/block/nvme{number}n1"), &format!("../../{disk}"));
        self.link(&format!("sys/block/nvme{number}n1"), &format!("../{disk}"))
    }

    fn offers(&self) -> Vec<Offer> {
        offers(self.root())
    }

    fn offer(&self, name: &str) -> Offer {
        let found = self.offers().into_iter().find(|offer| offer.name == name);
        found.unwrap_or_else(|| panic!("no {name} in {:#?}", self.offers()))
    }
}

#[test]
fn memory_of_each_node() {
    let machine = Made::new();
    machine
        .node(10, "4-7", 2)
        .node(0, "0-3", 4)
        .node(2, "", 8)
        .node(3, "8", 0);
    machine.file("sys/devices/system/node/possible", "0-15");
    let free = |gib: u64| gib * GIB / 2 + 100 * 1024;
    let memory = |number, kind, gib| Offer {
        name: format!("node{number}"),
        kind,
        home: Some(NodeId(number)),
        bytes: gib * GIB,
        free_bytes: Some(free(gib)),
        path: None,
        in_use: None,
    };
    let expected = [
        memory(0, OfferKind::Dram, 4),
        memory(2, OfferKind::MemoryOnly, 8),
        memory(10, OfferKind::Dram, 2),
    ];
    assert_eq!(machine.offers(), expected, "node 3 has no memory");
}

#[test]
fn a_member_in_a_file_is_at_home_where_its_disk_is() {
    let machine = Made::new();
    machine.nvme(1, 1).nvme(2, -1).nvme(3, 1).nvme(4, 0);
    let number = |number: &str, directory: &str| {
        machine.link(&format!("sys/dev/block/{number}"), &format!("../../{directory}"));
    };
    let disk = |n: u8| format!("devices/pci0000:00/0000:00:0{n}.0/nvme/nvme{n}/nvme{n}n1");
    number("259:1", &disk(1));
    number("259:2", &disk(2));
    let partition = format!("{}/nvme1n1p2", disk(1));
    machine.file(&format!("sys/{partition}/partition"), "2\n");
    number("259:9", &partition);
    for (n, others) in [(0, [1, 3]), (1, [1, 4]), (2, [1, 2])] {
        let over = format!("devices/virtual/block/dm-{n}");
        for other in others {
            let name = format!("nvme{other}n1");
            machine.link(
                &format!("sys/{over}/slaves/{name}"),
                &format!("../../../../../{}", disk(other)),
            );
        }
        number(&format!("253:{n}"), &over);
    }
    let home = |major, minor| home_of_disk(machine.root(), (major, minor));
    assert_eq!(home(259, 1), Some(NodeId(1)));
    assert_eq!(home(259, 9), Some(NodeId(1)), "a partition");
    assert_eq!(home(259, 2), None, "the firmware does not say");
    assert_eq!(home(253, 0), Some(NodeId(1)), "over two disks of one node");
    assert_eq!(home(253, 1), None, "over disks of two nodes");
    assert_eq!(home(253, 2), None, "over an unknown disk");
    assert_eq!(home(0, 33), None, "a tmpfs has no disk");
}

#[test]
fn a_kernel_without_numa_reports_node_0() {
    let machine = Made::new();
    machine.file("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 1024 kB\n");
    let offers = machine.offers();
    assert_eq!(offers.len(), 1);
    assert_eq!((offers[0].home, offers[0].bytes), (Some(NodeId(0)), GIB));
    assert_eq!(offers[0].free_bytes, Some(1 << 20));
    assert!(Made::new().offers().is_empty());
}

#[test]
fn a_single_nodes_memory_is_the_machines() {
    let machine = Made::new();
    machine.node(4, "0-3", 2).node(0, "", 0);
    let meminfo = "MemTotal: 8388608 kB\nMemFree: 4194304 kB\nActive(file): 0 kB\nInactive(file): 0 kB\n";
    machine.file("proc/meminfo", meminfo);
    let expected = (Some(NodeId(4)), OfferKind::Dram, 8 * GIB, Some(4 * GIB));
    let offers = machine.offers();
    assert_eq!(
        (offers[0].home, offers[0].kind, offers[0].bytes, offers[0].free_bytes),
        expected
    );
    machine.node(1, "", 2);
    assert_eq!(machine.offer("node4").bytes, 2 * GIB, "one of several nodes");
}

#[test]
fn nvme_disks_and_their_uses_are_found() {
    let machine = Made::new();
    machine.node(0, "0", 1).node(1, "1", 1);
    for number in 0..6 {
        machine.nvme(number, i8::try_from(number % 2).unwrap());
    }
    machine.nvme(6, -1);
    let part = "sys/devices/pci0000:00/0000:00:01.0/nvme/nvme1/nvme1n1/nvme1n1p2";
    machine
        .file(&format!("{part}/partition"), "2\n")
        .file(&format!("{part}/dev"), "259:77\n");
    machine.link("sys/class/block/nvme1n1p2", &format!("../../../{part}"));
    machine.file(
        "proc/self/mountinfo",
        "22 1 0:20 / /proc rw - proc proc rw\n29 1 259:77 / /mnt/my\\040data rw,noatime shared:1 - xfs /dev/root rw\n",
    );
    machine.file(
        "proc/swaps",
        "Filename Type Size Used Priority\n/dev/nvme2n1 partition 9 0 -2\n",
    );
    machine.file(
        "sys/devices/pci0000:00/0000:00:03.0/nvme/nvme3/nvme3n1/nvme3n1p1/partition",
        "1\n",
    );
    machine.file(
        "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme4/nvme4n1/holders/md0/x",
        "",
    );
    let state = |number: u8| {
        let offer = machine.offer(&format!("nvme{number}n1"));
        assert_eq!((offer.kind, offer.bytes), (OfferKind::Nvme, GIB));
        assert_eq!(offer.path, Some(format!("/dev/nvme{number}n1").into()));
        (offer.home.map(|node| node.0), offer.in_use)
    };
    assert_eq!(state(0), (Some(0), None));
    assert_eq!(state(1), (Some(1), Some(InUse::Mounted("/mnt/my data".to_owned()))));
    assert_eq!(state(2), (Some(0), Some(InUse::Swap)));
    assert_eq!(state(3), (Some(1), Some(InUse::Partitioned)));
    assert_eq!(state(4), (Some(0), Some(InUse::Held(vec!["md0".to_owned()]))));
    assert_eq!(state(5), (Some(1), None));
    assert_eq!(state(6), (None, None), "the firmware does not say where");
}

/// A name that cannot be shown whole is no reason to offer the disk.
#[test]
fn a_mounted_disk_is_in_use_beside_a_mount_name_that_is_not_utf8() {
    let machine = Made::new();
    machine.node(0, "0", 1).nvme(7, 0);
    for name in [&b"/mnt/caf\xe9"[..], b"/mnt"] {
        let other = [b"29 1 0:30 / ", &b"/mnt/\xff"[..], b" rw - tmpfs none rw\n"].concat();
        let disk = [b"30 1 259:7 / ", name, b" rw - xfs /dev/root rw\n"].concat();
        machine.bytes("proc/self/mountinfo", &[other, disk].concat());
        let in_use = machine.offer("nvme7n1").in_use;
        assert!(matches!(in_use, Some(InUse::Mounted(_))), "{in_use:?}");
    }
}

#[test]
fn a_multipath_disk_is_at_home_with_its_paths() {
    let machine = Made::new();
    machine.node(0, "0", 1).node(1, "1", 1);
    machine.file(
        "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/size",
        "2097152",
    );
    machine.link(
        "sys/block/nvme0n1",
        "../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
    );
    for path in 0..2 {
        let function = format!("devices/pci0000:80/0000:80:0{path}.0");
        machine.file(&format!("sys/{function}/numa_node"), "1\n");
        machine.file(&format!("sys/{function}/nvme/nvme{path}/nvme0c{path}n1/hidden"), "1\n");
        machine.file(
            &format!("sys/{function}/nvme/nvme{path}/nvme0c{path}n1/size"),
            "2097152\n",
        );
        machine.link(
            &format!("sys/block/nvme0c{path}n1"),
            &format!("../{function}/nvme/nvme{path}/nvme0c{path}n1"),
        );
    }
    assert_eq!(machine.offer("nvme0n1").home, Some(NodeId(1)));
    assert_eq!(machine.offers().len(), 3, "paths are no disks");
    machine.file("sys/devices/pci0000:80/0000:80:01.0/numa_node", "0\n");
    assert_eq!(machine.offer("nvme0n1").home, None, "paths on both nodes");
}

#[test]
fn persistent_memory() {
    let machine = Made::new();
    machine.node(0, "0", 1).node(1, "1", 1);
    let region = "devices/LNXSYSTM:00/ACPI0012:00/ndbus0/region1";
    machine.file(&format!("sys/{region}/numa_node"), "1\n");
    machine.file(&format!("sys/{region}/pfn1.0/block/pmem1/size"), "4194304\n");
    machine.link("sys/block/pmem1", &format!("../{region}/pfn1.0/block/pmem1"));
    for (name, size, holder) in [("1.0", 2 * GIB, "pfn1.0"), ("1.1", GIB, ""), ("1.2", 0, "")] {
        machine.file(&format!("sys/{region}/namespace{name}/size"), &size.to_string());
        machine.file(&format!("sys/{region}/namespace{name}/holder"), &format!("{holder}\n"));
        machine.file(&format!("sys/{region}/namespace{name}/mode"), "raw\n");
        let link = format!("sys/bus/nd/devices/namespace{name}");
        machine.link(&link, &format!("../../../{region}/namespace{name}"));
    }
    let disk = machine.offer("pmem1");
    assert_eq!(
        (disk.kind, disk.home, disk.bytes),
        (OfferKind::Pmem, Some(NodeId(1)), 2 * GIB)
    );
    assert_eq!(disk.in_use, None);
    let idle = machine.offer("namespace1.1");
    assert_eq!((idle.home, idle.bytes, idle.path), (Some(NodeId(1)), GIB, None));
    assert!(
        idle.in_use
            .unwrap()
            .to_string()
            .contains("ndctl create-namespace --force --reconfig=namespace1.1")
    );
    assert_eq!(machine.offers().len(), 4, "1.0 is pmem1, 1.2 is empty");
}

#[test]
fn dax_devices() {
    let machine = Made::new();
    machine.node(0, "0", 1).node(2, "", 8);
    for (name, near, target, driver) in [
        ("dax0.0", 0, 2, Some("kmem")),
        ("dax1.0", 0, 3, Some("device_dax")),
        ("dax2.0", -1, 4, None),
    ] {
        let device = format!("devices/platform/hmem.0/{name}");
        machine.file(&format!("sys/{device}/size"), &(8 * GIB).to_string());
        machine.file(&format!("sys/{device}/numa_node"), &near.to_string());
        machine.file(&format!("sys/{device}/target_node"), &target.to_string());
        if let Some(driver) = driver {
            machine.link(
                &format!("sys/{device}/driver"),
                &format!("../../../../bus/dax/drivers/{driver}"),
            );
        }
        machine.link(&format!("sys/bus/dax/devices/{name}"), &format!("../../../{device}"));
    }
    let state = |name| {
        let offer = machine.offer(name);
        assert_eq!((offer.kind, offer.bytes), (OfferKind::Dax, 8 * GIB));
        (offer.home.map(|node| node.0), offer.in_use)
    };
    assert_eq!(state("dax0.0"), (Some(0), Some(InUse::SystemMemory(Some(NodeId(2))))));
    assert_eq!(state("dax1.0"), (Some(0), None));
    let (home, in_use) = state("dax2.0");
    assert_eq!(home, Some(4));
    assert!(in_use.unwrap().to_string().contains("daxctl enable-device dax2.0"));
    let kinds: Vec<OfferKind> = machine.offers().into_iter().map(|offer| offer.kind).collect();
    use OfferKind::{Dax, Dram, MemoryOnly};
    assert_eq!(kinds, [Dram, MemoryOnly, Dax, Dax, Dax]);
}

#[test]
fn a_single_node_is_the_home_of_every_device() {
    let machine = Made::new();
    machine.node(0, "0", 1).nvme(0, -1);
    assert_eq!(machine.offer("nvme0n1").home, Some(NodeId(0)));
}

#[test]
fn this_machine_offers_its_memory() {
    let offers = offers(Path::new("/"));
    let memory: Vec<_> = offers.iter().filter(|offer| offer.kind == OfferKind::Dram).collect();
    assert!(!memory.is_empty());
    for offer in memory {
        assert!(offer.bytes > 0 && offer.free_bytes.unwrap() <= offer.bytes, "{offer:?}");
    }
}
