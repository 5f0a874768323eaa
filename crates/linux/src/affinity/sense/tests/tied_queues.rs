//! Interrupts, devices and queues.

use super::*;
use homenode_policy::affinity::{Queue, QueueKind};
use std::os::unix::fs::PermissionsExt;

/// An NVMe controller with two disks, a virtio disk, a virtio card with two queues, and a function with two cards.
fn machine() -> Made {
    let machine = four_cpus();
    let lines = [
        (30, [9, 0, 0], "nvme0q0"),
        (31, [0, 0, 0], "nvme0q1"),
        (32, [0, 0, 4], "nvme0q2"),
        (40, [0, 0, 0], "virtio1-config"),
        (41, [1, 0, 0], "virtio1-req.0"),
        (50, [0, 0, 0], "virtio2-config"),
        (51, [0, 2, 0], "virtio2-input.0"),
        (52, [0, 3, 0], "virtio2-output.0"),
        (53, [0, 0, 0], "virtio2-input.1"),
        (54, [0, 0, 0], "virtio2-output.1"),
        (60, [0, 0, 0], "ens1f0-TxRx-0"),
        (61, [0, 0, 0], "i40e-ens1f1-TxRx-0"),
        (70, [0, 0, 0], "ttyS0"),
    ];
    machine.interrupts(&lines);
    for (number, ..) in lines {
        machine.affinity(number, "0-2", "1");
    }
    let function = |number: &str, node: u8, interrupts: std::ops::Range<u32>| {
        let directory = format!("sys/devices/pci0000:00/0000:00:{number}.0");
        machine.file(&format!("{directory}/numa_node"), &format!("{node}\n"));
        for interrupt in interrupts {
            machine.file(&format!("{directory}/msi_irqs/{interrupt}"), "msix\n");
        }
        directory
    };
    let nvme = function("01", 1, 30..33);
    for disk in ["nvme0n1", "nvme0n2"] {
        let directory = format!("{nvme}/nvme/nvme0/{disk}");
        machine.file(&format!("{directory}/mq/0/cpu_list"), "0, 1\n");
        machine.file(&format!("{directory}/mq/1/cpu_list"), "2, 3\n");
        machine.link(
            &format!("sys/block/{disk}"),
            &format!("../{}", &directory["sys/".len()..]),
        );
    }
    // No list of this one's interrupts: as behind a bus that is not PCI.
    let disk = function("02", 0, 0..0) + "/virtio1/block/vda";
    machine.file(&format!("{disk}/mq/0/cpu_list"), "0, 1, 2, 3\n");
    machine.link("sys/block/vda", &format!("../{}", &disk["sys/".len()..]));
    let card = |function: &str, name: &str, queues: u32| {
        let device = function.to_owned();
        for queue in 0..queues {
            let directory = format!("{device}/net/{name}/queues");
            machine.file(&format!("{directory}/rx-{queue}/rps_cpus"), "0\n");
            machine.file(&format!("{directory}/tx-{queue}/traffic_class"), "\n");
            if queues > 1 {
                machine.file(
                    &format!("{directory}/tx-{queue}/xps_cpus"),
                    &format!("{:x}\n", 5 << queue),
                );
            }
        }
        machine.link(&format!("{device}/net/{name}/device"), "../..");
        let target = format!("../../{}/net/{name}", &device["sys/".len()..]);
        machine.link(&format!("sys/class/net/{name}"), &target);
    };
    card(&(function("03", 0, 50..55) + "/virtio2"), "eth0", 2);
    let two = function("04", 0, 60..62);
    card(&two, "ens1f0", 1);
    card(&two, "ens1f1", 1);
    machine
}

fn seen(machine: &Made) -> Sensed {
    let block = |name| (name, DeviceKind::Block);
    let card = |name| (name, DeviceKind::Network);
    let devices = [
        block("nvme0n1"),
        block("nvme0n2"),
        block("vda"),
        card("eth0"),
        card("ens1f0"),
        card("ens1f1"),
    ];
    machine.sensor().sense(&topology(&devices)).unwrap()
}

#[test]
fn interrupts_are_matched_to_devices() {
    let seen = seen(&machine());
    let devices: Vec<_> = seen
        .snapshot
        .interrupts
        .iter()
        .map(|interrupt| (interrupt.number, interrupt.device.as_deref()))
        .collect();
    let expected = [
        (30, Some("nvme0n1")),
        (31, Some("nvme0n1")),
        (32, Some("nvme0n1")),
        (40, Some("vda")),
        (41, Some("vda")),
        (50, Some("eth0")),
        (51, Some("eth0")),
        (52, Some("eth0")),
        (53, Some("eth0")),
        (54, Some("eth0")),
        (60, Some("ens1f0")),
        (61, Some("ens1f1")),
        (70, None),
    ];
    assert_eq!(devices, expected);
}

#[test]
fn queues_have_their_interrupts_and_cpus() {
    use QueueKind::{Block, Receive, Transmit};
    let queue = |device: &str, kind, index, interrupt, cpu_numbers: Option<&[u32]>| Queue {
        device: device.to_owned(),
        kind,
        index,
        interrupt: Some(interrupt),
        cpus: cpus(cpu_numbers.unwrap_or_default()),
        movable: kind != Block && cpu_numbers.is_some(),
    };
    let expected = [
        queue("ens1f0", Receive, 0, 60, Some(&[])),
        queue("ens1f0", Transmit, 0, 60, None),
        queue("ens1f1", Receive, 0, 61, Some(&[])),
        queue("ens1f1", Transmit, 0, 61, None),
        queue("eth0", Receive, 0, 51, Some(&[])),
        queue("eth0", Receive, 1, 53, Some(&[])),
        queue("eth0", Transmit, 0, 52, Some(&[0, 2])),
        queue("eth0", Transmit, 1, 54, Some(&[1, 3])),
        queue("nvme0n1", Block, 0, 31, Some(&[0, 1])),
        queue("nvme0n1", Block, 1, 32, Some(&[2, 3])),
        queue("nvme0n2", Block, 0, 31, Some(&[0, 1])),
        queue("nvme0n2", Block, 1, 32, Some(&[2, 3])),
        queue("vda", Block, 0, 41, Some(&[0, 1, 2, 3])),
    ];
    assert_eq!(seen(&machine()).snapshot.queues, expected);
}

#[test]
fn a_multipath_disk_has_the_queues_of_its_only_path() {
    let machine = four_cpus();
    machine.interrupts(&[(31, [1, 0, 0], "nvme3q1"), (41, [1, 0, 0], "nvme4q1")]);
    machine.file("sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/size", "8\n");
    machine.link(
        "sys/block/nvme0n1",
        "../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
    );
    let add = |controller: u32, interrupt: u32| {
        machine.affinity(interrupt, "0-1", "0");
        let function = format!("devices/pci0000:00/0000:00:0{controller}.0");
        let path = format!("{function}/nvme/nvme{controller}/nvme0c{controller}n1");
        machine.file(&format!("sys/{function}/msi_irqs/{interrupt}"), "msix\n");
        machine.file(&format!("sys/{path}/mq/0/cpu_list"), "0, 1\n");
        machine.link(&format!("sys/block/nvme0c{controller}n1"), &format!("../{path}"));
    };
    let sense = || {
        let sensed = machine
            .sensor()
            .sense(&topology(&[("nvme0n1", DeviceKind::Block)]))
            .unwrap();
        let unseen = sensed.unseen.into_iter().map(|unseen| unseen.what);
        let unseen = unseen.filter(|what| what.contains("nvme0n1")).collect::<Vec<_>>();
        (sensed.snapshot.queues, unseen)
    };
    add(3, 31);
    let queue = Queue {
        device: "nvme0n1".to_owned(),
        kind: QueueKind::Block,
        index: 0,
        interrupt: Some(31),
        cpus: cpus(&[0, 1]),
        movable: false,
    };
    assert_eq!(sense(), (vec![queue], vec![]));
    add(4, 41);
    assert_eq!(sense(), (vec![], vec!["queues of disk nvme0n1".to_owned()]));
}

#[test]
fn virtual_cards_are_recognized() {
    let machine = machine();
    for (name, file, mask) in [
        ("veth0", "rx-0/rps_cpus", "2"),
        ("veth0", "tx-0/xps_cpus", "0"),
        ("lo", "rx-0/rps_cpus", "0"),
    ] {
        machine.file(
            &format!("sys/devices/virtual/net/{name}/queues/{file}"),
            &format!("{mask}\n"),
        );
    }
    for name in ["veth0", "lo"] {
        machine.link(
            &format!("sys/class/net/{name}"),
            &format!("../../devices/virtual/net/{name}"),
        );
    }
    machine.file("sys/class/net/bonding_masters", "bond0\n");
    let queue = |kind, numbers: &[u32]| Queue {
        device: "veth0".to_owned(),
        kind,
        index: 0,
        interrupt: None,
        cpus: cpus(numbers),
        movable: true,
    };
    let seen = seen(&machine);
    let queues: Vec<_> = seen
        .snapshot
        .queues
        .into_iter()
        .filter(|queue| ["veth0", "lo"].contains(&queue.device.as_str()))
        .collect();
    assert_eq!(
        queues,
        [queue(QueueKind::Receive, &[1]), queue(QueueKind::Transmit, &[])]
    );
    assert!(
        seen.unseen.iter().all(|unseen| !unseen.why.contains("bonding")),
        "{:?}",
        seen.unseen
    );
}

fn managed(seen: &Sensed) -> Vec<u32> {
    let managed = seen.snapshot.interrupts.iter().filter(|interrupt| interrupt.managed);
    managed.map(|interrupt| interrupt.number).collect()
}

fn guesses(seen: &Sensed) -> bool {
    seen.unseen.iter().any(|unseen| unseen.what.contains("cannot be moved"))
}

#[test]
fn managed_interrupts_by_drivers_by_mode_and_by_flags() {
    let machine = machine();
    let by_names = seen(&machine);
    assert_eq!((managed(&by_names), guesses(&by_names)), (vec![31, 32, 41], true));
    let fixed = machine.root().join("proc/irq/51/smp_affinity_list");
    fs::set_permissions(fixed, fs::Permissions::from_mode(0o444)).unwrap();
    let by_mode = seen(&machine);
    assert_eq!((managed(&by_mode), guesses(&by_mode)), (vec![51], false));
    for number in [30, 31, 32, 40, 41, 50, 51, 52, 53, 54, 60, 61, 70] {
        let flag = if number == 54 {
            "            IRQD_AFFINITY_MANAGED\n"
        } else {
            ""
        };
        let text = format!("handler:  handle_edge_irq\ndstate:   0x2d401200\n{flag}");
        machine.file(&format!("sys/kernel/debug/irq/irqs/{number}"), &text);
    }
    let by_flags = seen(&machine);
    assert_eq!((managed(&by_flags), guesses(&by_flags)), (vec![54], false));
}

#[test]
fn vanished_files_are_skipped_and_unreadable_ones_reported() {
    let machine = machine();
    fs::remove_dir_all(machine.root().join("proc/irq/32")).unwrap();
    fs::remove_dir_all(machine.root().join("sys/devices/pci0000:00/0000:00:03.0")).unwrap();
    fs::remove_file(machine.root().join("proc/irq/70/effective_affinity_list")).unwrap();
    machine.file("proc/irq/41/smp_affinity_list", "nonsense\n");
    // Root may read any file, but no directory as one.
    let queue = "sys/block/vda/mq/0/cpu_list";
    fs::remove_file(machine.root().join(queue)).unwrap();
    fs::create_dir(machine.root().join(queue)).unwrap();
    let seen = seen(&machine);
    let numbers: Vec<u32> = seen
        .snapshot
        .interrupts
        .iter()
        .map(|interrupt| interrupt.number)
        .collect();
    assert_eq!(numbers, [30, 31, 40, 50, 51, 52, 53, 54, 60, 61, 70]);
    assert_eq!(seen.snapshot.interrupts[10].effective, cpus(&[0, 1, 2]));
    assert!(
        seen.snapshot
            .queues
            .iter()
            .all(|queue| queue.device != "vda" && queue.device != "eth0")
    );
    let told: Vec<String> = seen.unseen.iter().map(ToString::to_string).collect();
    let tells = |what: &str, path: &str| told.iter().any(|line| line.contains(what) && line.contains(path));
    assert!(
        tells(
            "CPUs of interrupts",
            "/proc/irq/41/smp_affinity_list: it cannot be understood"
        ),
        "{told:?}"
    );
    assert!(
        tells(
            "CPUs of queues of disks",
            "/sys/block/vda/mq/0/cpu_list: Is a directory"
        ),
        "{told:?}"
    );
}
