mod counted;
mod live;
mod recordings;
mod seen_threads;
mod tied_queues;

use super::*;
use crate::topology::made::Made;
use homenode_policy::NodeId;
use homenode_policy::topology::{Cpu, Device, DeviceKind, Latency, Node, Parts};
use std::fs;

/// Four CPUs on two nodes, of which CPU 3 is offline.
fn four_cpus() -> Made {
    let machine = Made::of(&[(ONLINE, "0-2\n"), (UPTIME, "100.00 300.00\n")]);
    machine.interrupts(&[]);
    machine
}

impl Made {
    fn uptime(&self, text: &str) -> &Self {
        self.file(UPTIME, &format!("{text} 0.00\n"))
    }

    /// Lines of /proc/interrupts: number, counts on CPUs 0 to 2, name.
    fn interrupts(&self, lines: &[(u32, [u64; 3], &str)]) -> &Self {
        let mut text = "           CPU0       CPU1       CPU2\n".to_owned();
        for (number, [a, b, c], name) in lines {
            text += &format!(" {number}:  {a}  {b}  {c}  PCI-MSIX-0000:00:01.0   1-edge   {name}\n");
        }
        text += "LOC:  1  2  3   Local timer interrupts\n";
        self.file(INTERRUPTS, &text)
    }

    fn affinity(&self, number: u32, may: &str, does: &str) -> &Self {
        self.file(&format!("proc/irq/{number}/smp_affinity_list"), &format!("{may}\n"))
            .file(
                &format!("proc/irq/{number}/effective_affinity_list"),
                &format!("{does}\n"),
            )
    }

    fn sensor(&self) -> Sensor {
        Sensor::new(self.root(), Box::new(Vec::new)).unwrap()
    }
}

/// Builds the topology that hwloc would tell of the machine, with `devices`.
fn topology(devices: &[(&str, DeviceKind)]) -> Topology {
    let cpu = |id| Cpu {
        id: CpuId(id),
        core: Some(id),
        package: Some(0),
        online: id != 3,
    };
    let node = |id, cpus: [u32; 2]| Node {
        cpus: cpus.map(CpuId).to_vec(),
        memory_bytes: 1 << 30,
        ..Node::new(NodeId(id))
    };
    let device = |(name, kind): &(&str, DeviceKind)| Device {
        name: (*name).to_owned(),
        kind: *kind,
        home: Some(NodeId(1)),
        queues: Vec::new(),
    };
    let parts = Parts {
        nodes: vec![node(0, [0, 1]), node(1, [2, 3])],
        cpus: (0..4).map(cpu).collect(),
        possible_cpus: 4,
        caches: Vec::new(),
        latency: Latency {
            matrix: vec![vec![10, 20], vec![20, 10]],
            ..Latency::default()
        },
        devices: devices.iter().map(device).collect(),
    };
    Topology::new(parts).unwrap()
}

fn cpus(numbers: &[u32]) -> Vec<CpuId> {
    numbers.iter().copied().map(CpuId).collect()
}

#[test]
fn isolated_cpus_are_those_of_all_lists() {
    let machine = four_cpus();
    assert_eq!(machine.sensor().sense(&topology(&[])).unwrap().snapshot.isolated, []);
    machine
        .file("sys/devices/system/cpu/isolated", "2\n")
        .file("sys/devices/system/cpu/nohz_full", "1-2\n");
    let isolated = machine.sensor().sense(&topology(&[])).unwrap().snapshot.isolated;
    assert_eq!(isolated, cpus(&[1, 2]));
    machine.file("sys/devices/system/cpu/nohz_full", "(null)\n");
    machine.file("sys/fs/cgroup/cpuset.cpus.isolated", "3\n");
    let isolated = machine.sensor().sense(&topology(&[])).unwrap().snapshot.isolated;
    assert_eq!(isolated, cpus(&[2, 3]));
}

#[test]
fn a_period_is_the_difference_of_two_readings() {
    let machine = four_cpus();
    machine
        .interrupts(&[(30, [5, 0, 0], "timer"), (31, [1, 1, 1], "gone")])
        .affinity(30, "0-2", "0");
    let mut sensor = machine.sensor();
    machine.uptime("101.50").interrupts(&[(30, [5, 7, 0], "timer")]);
    let first = sensor.sense(&topology(&[])).unwrap().snapshot;
    assert_eq!(first.period_ns, 1_500_000_000);
    assert_eq!(first.online, cpus(&[0, 1, 2]));
    let expected = Interrupt {
        number: 30,
        name: "timer".to_owned(),
        device: None,
        arrivals: vec![(CpuId(1), 7)],
        affinity: cpus(&[0, 1, 2]),
        effective: cpus(&[0]),
        managed: false,
    };
    assert_eq!(first.interrupts, [expected]);
    machine.uptime("101.51").interrupts(&[(30, [6, 7, 0], "timer")]);
    let second = sensor.sense(&topology(&[])).unwrap().snapshot;
    assert_eq!(second.period_ns, 10_000_000);
    assert_eq!(second.interrupts[0].arrivals, [(CpuId(0), 1)]);
}

#[test]
fn settings_are_reread_on_request_and_periodically() {
    let machine = four_cpus();
    machine.interrupts(&[(30, [0; 3], "timer")]).affinity(30, "0-2", "0");
    let mut sensor = machine.sensor();
    let seen = |sensor: &mut Sensor| {
        sensor.sense(&topology(&[])).unwrap().snapshot.interrupts[0]
            .affinity
            .clone()
    };
    assert_eq!(seen(&mut sensor), cpus(&[0, 1, 2]));
    machine.affinity(30, "1", "1");
    assert_eq!(seen(&mut sensor), cpus(&[0, 1, 2]));
    sensor.settings_changed();
    assert_eq!(seen(&mut sensor), cpus(&[1]));
    machine.affinity(30, "2", "2");
    let periods = (1..=SETTINGS_PERIODS).find(|_| seen(&mut sensor) == cpus(&[2]));
    assert_eq!(periods, Some(SETTINGS_PERIODS));
    machine.affinity(30, "0", "0").interrupts(&[(30, [0; 3], "another")]);
    assert_eq!(seen(&mut sensor), cpus(&[0]));
    machine.affinity(30, "0-1", "1").file(ONLINE, "0-1\n");
    assert_eq!(seen(&mut sensor), cpus(&[0, 1]));
}

#[test]
fn hardware_changes_are_seen() {
    let machine = four_cpus();
    machine.interrupts(&[(30, [0; 3], "timer")]);
    machine.file("sys/block/vda/size", "1\n");
    let mut sensor = machine.sensor();
    let mut hardware = |sense: bool| {
        if sense {
            sensor.sense(&topology(&[])).unwrap();
        }
        sensor.hardware()
    };
    let first = hardware(true);
    machine.interrupts(&[(30, [9; 3], "timer")]);
    assert_eq!(hardware(true), first);
    // A container's.
    machine.file("sys/class/net/veth1/mtu", "1500\n");
    machine.file("sys/block/loop7/size", "1\n");
    assert_eq!(hardware(true), first);
    machine.file("sys/class/net/eth0/device/vendor", "0x1af4\n");
    let with_card = hardware(false);
    assert_ne!(with_card, first);
    machine.interrupts(&[(30, [9; 3], "timer"), (31, [0; 3], "eth0")]);
    let with_interrupt = hardware(true);
    assert_ne!(with_interrupt, with_card);
    machine.file(ONLINE, "0-1\n");
    assert_ne!(hardware(true), with_interrupt);
}

#[test]
fn a_missing_required_file_is_named() {
    for path in [ONLINE, UPTIME, INTERRUPTS] {
        let machine = four_cpus();
        machine.file("proc/1/comm", "x\n");
        fs::remove_file(machine.root().join(path)).unwrap();
        let error = Sensor::new(machine.root(), Box::new(Vec::new)).unwrap_err();
        assert!(
            matches!(error, Error::Read { .. }) && error.to_string().contains(path),
            "{error}"
        );
        machine.file(path, "?\n");
        let error = Sensor::new(machine.root(), Box::new(Vec::new)).unwrap_err();
        assert!(
            matches!(error, Error::Unclear { .. }) && error.to_string().contains(path),
            "{error}"
        );
    }
}

#[test]
fn uptime_is_parsed() {
    assert_eq!(uptime_ticks("4711.42 9000.00"), Some(471_142));
    assert_eq!(uptime_ticks("0.05 0.00"), Some(5));
    for text in ["", "5", "5.1 0", "x.00 0", "5.123 0"] {
        assert_eq!(uptime_ticks(text), None, "{text}");
    }
    assert_eq!(period_ns(100, 250), 1_500_000_000);
    assert_eq!(period_ns(100, 100), 10_000_000);
}

/// Settings are read in every eighth period, or when CPUs come and go; and once more, as drivers may be slower.
#[test]
fn restarts_are_told_in_the_two_periods_that_read_settings_anew() {
    let machine = four_cpus();
    machine.file("sys/class/net/eth0/device/vendor", "0x1af4\n");
    machine.file("sys/class/net/eth0/carrier_changes", "2\n");
    let mut sensor = machine.sensor();
    let mut uptime = 100;
    let mut period = || {
        uptime += 1;
        machine.uptime(&format!("{uptime}.00"));
        let snapshot = sensor.sense(&topology(&[])).unwrap().snapshot;
        (snapshot.has_restarted, snapshot.restarted)
    };
    let nothing = (false, Vec::new());
    assert_eq!(period(), nothing);
    machine.file(ONLINE, "0-1\n");
    for _ in 0..2 {
        assert_eq!(period(), (true, Vec::new()));
    }
    assert_eq!(period(), nothing);
    machine.file("sys/class/net/eth0/carrier_changes", "4\n");
    let told: Vec<_> = (0..9).map(|_| period()).filter(|told| *told != nothing).collect();
    let card = || (false, vec!["eth0".to_owned()]);
    assert_eq!(told, [card(), card()]);
}
