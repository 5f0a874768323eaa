//! Any bytes as the files that core affinity senses, those that programs in the kernel fill among them, when a period begins
//! and when it ends: a snapshot that can be decided for, or a refusal, never a panic.
//!
//! Input: parts, each the number of a file (with the highest bit: as the period ends), its length, and its bytes.
#![no_main]

use homenode_linux::affinity::Sensor;
use homenode_linux::topology::{Source, read};
use homenode_policy::affinity::{Config, Previous, decide};
use homenode_policy::topology::Topology;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

const FILES: [&str; 12] = [
    "proc/bpf/threads",
    "proc/bpf/sockets",
    "proc/bpf/disks",
    "proc/interrupts",
    "proc/uptime",
    "sys/devices/system/cpu/online",
    "proc/7/task/8/stat",
    "proc/7/task/8/schedstat",
    "proc/7/task/8/io",
    "proc/7/task/8/status",
    "proc/7/task/8/cgroup",
    "proc/irq/30/smp_affinity_list",
];
const AT_END: u8 = 0x80;

/// Numbers and texts of the files that are there unless the input replaces them.
const USUAL: [(usize, &str); 9] = [
    (3, "      CPU0 CPU1\n30: 1 2 PCI-MSI 1-edge nvme0q1\n"),
    (4, "100.00 1.00\n"),
    (5, "0-1\n"),
    (
        6,
        "8 (io) S 1 1 1 0 -1 0 0 0 0 0 9 9 0 0 20 0 1 0 50 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 1 0 0\n",
    ),
    (7, "1 0 0\n"),
    (8, "read_bytes: 1\nwrite_bytes: 1\n"),
    (9, "Name:\tio\nCpus_allowed_list:\t0-1\n"),
    (10, "0::/\n"),
    (11, "0-1\n"),
];

struct Machine {
    root: PathBuf,
    topology: Topology,
}

static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
    let root = homenode_fuzz::scratch("sensing");
    for file in FILES {
        fs::create_dir_all(root.join(file).parent().expect("it has a parent")).expect("scratch can be written");
    }
    let topology = read(&Source::Synthetic("node:2 core:1 pu:1".to_owned())).expect("the hardware is valid");
    Machine { root, topology }
});

fuzz_target!(|bytes: &[u8]| {
    let machine = &*MACHINE;
    let write = |file: usize, bytes: &[u8]| fs::write(machine.root.join(FILES[file]), bytes).expect("scratch");
    for file in 0..3 {
        // Without programs, /proc is read.
        let _ = fs::remove_file(machine.root.join(FILES[file]));
    }
    for (file, text) in USUAL {
        write(file, text.as_bytes());
    }
    let parts = parts(bytes);
    let at = |end: bool| parts.iter().filter(move |(number, _)| (number & AT_END != 0) == end);
    for (number, bytes) in at(false) {
        write(usize::from(number & !AT_END) % FILES.len(), bytes);
    }
    let Ok(mut sensor) = Sensor::new(&machine.root, Box::new(Vec::new)) else {
        return;
    };
    for (number, bytes) in at(true) {
        write(usize::from(number & !AT_END) % FILES.len(), bytes);
    }
    let Ok(sensed) = sensor.sense(&machine.topology) else {
        return;
    };
    let snapshot = &sensed.snapshot;
    assert!(snapshot.threads.is_sorted_by_key(|thread| thread.id));
    for thread in &snapshot.threads {
        assert!(thread.allowed.iter().all(|cpu| snapshot.online.contains(cpu)));
    }
    let plan = decide(snapshot, &Config::default(), &Previous::default());
    assert!(
        plan.actions
            .iter()
            .all(|action| action.to.iter().all(|cpu| snapshot.online.contains(cpu)))
    );
});

fn parts(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut parts = Vec::new();
    while let [number, length, rest @ ..] = bytes {
        let (part, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        parts.push((*number, part));
        bytes = rest;
    }
    parts
}
