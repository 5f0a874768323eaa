//! Any bytes as one of the files of a recording: read or refused, never a panic.
//!
//! Input: the number of a file (with the highest bit: the list has the size it had), and its bytes.
#![no_main]

use homenode_linux::affinity::{record, recorded};
use homenode_linux::topology::Source;
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// With the list that has its size, and its name there.
const FILES: [(&str, Option<(&str, &str)>); 6] = [
    ("meta", None),
    ("0.files", None),
    ("1.files", None),
    ("0/proc/interrupts", Some(("0.files", "proc/interrupts"))),
    ("1/proc/interrupts", Some(("1.files", "proc/interrupts"))),
    ("1/proc/homenode/tasks", Some(("1.files", "proc/homenode/tasks"))),
];
const SIZE_STAYS: u8 = 0x80;

static RECORDING: LazyLock<PathBuf> = LazyLock::new(|| {
    let scratch = homenode_fuzz::scratch("recording");
    let (machine, recording) = (scratch.join("machine"), scratch.join("recording"));
    let file = |path: &str, text: &str| {
        let path = machine.join(path);
        fs::create_dir_all(path.parent().expect("it has a parent")).expect("scratch can be written");
        fs::write(path, text).expect("scratch can be written");
    };
    file("proc/interrupts", "      CPU0 CPU1\n30: 1 2 PCI-MSI 1-edge nvme0q1\n");
    file("proc/uptime", "100.00 1.00\n");
    file("sys/devices/system/cpu/online", "0-1\n");
    file("proc/irq/30/smp_affinity_list", "0-1\n");
    let hardware = Source::Synthetic("node:2 core:1 pu:1".to_owned());
    record(&hardware, &machine, &recording, Duration::ZERO, Box::new(Vec::new)).expect("the hardware is valid");
    recorded(&recording).expect("the machine was just recorded");
    recording
});

fuzz_target!(|bytes: &[u8]| {
    let Some((number, bytes)) = bytes.split_first() else {
        return;
    };
    let directory = &*RECORDING;
    let (file, list) = FILES[usize::from(number & !SIZE_STAYS) % FILES.len()];
    let mut changed = vec![Changed::new(directory, file, bytes)];
    if let Some((of, name)) = list.filter(|_| number & SIZE_STAYS == 0) {
        let text = fs::read_to_string(directory.join(of)).expect("the recording has the file");
        let lines = text.lines().map(|line| with_size(line, name, bytes.len()) + "\n");
        changed.push(Changed::new(directory, of, lines.collect::<String>().as_bytes()));
    }
    let _ = recorded(directory);
});

/// `MODE BYTES NAME` with another size, when it is that file's.
fn with_size(line: &str, name: &str, bytes: usize) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [mode, _, of] if of == name => format!("{mode} {bytes} {name}"),
        _ => line.to_owned(),
    }
}

/// A file that is as it was again when this goes.
struct Changed {
    path: PathBuf,
    before: Vec<u8>,
}

impl Changed {
    fn new(directory: &Path, file: &str, bytes: &[u8]) -> Self {
        let path = directory.join(file);
        let before = fs::read(&path).expect("the recording has the file");
        fs::write(&path, bytes).expect("scratch can be written");
        Self { path, before }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        fs::write(&self.path, &self.before).expect("scratch can be written");
    }
}
