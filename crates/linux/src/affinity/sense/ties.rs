//! Which interrupt belongs to which device, and to which of its queues.
//!
//! sysfs lists the interrupts of each PCI function; names tell the queues (`names`). Where a function has several disks
//! (NVMe namespaces) or cards (ports), its queues are those of each disk, and of the card that the name speaks of.

use super::counts::Counts;
use super::names::{self, Role};
use crate::topology::paths::Paths;
use crate::topology::sysfs::Tree;
use homenode_policy::affinity::QueueKind;
use homenode_policy::topology::{Device, DeviceKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Interrupts, devices and queues that belong together.
#[derive(Debug)]
pub(super) struct Ties {
    devices: Vec<Known>,
    queues: BTreeMap<(String, QueueKind, u32), u32>,
}

/// A device, and by what its interrupts are recognised.
#[derive(Debug)]
struct Known {
    name: String,
    kind: DeviceKind,
    interrupts: BTreeSet<u32>,
    /// The directories it is in: `nvme0`, `virtio1`.
    above: BTreeSet<String>,
}

impl Ties {
    pub(super) fn read(tree: &Tree, devices: &[Device], paths: &Paths, counts: &Counts) -> Self {
        let mut ties = Self {
            devices: devices.iter().map(|device| known(tree, device, paths)).collect(),
            queues: BTreeMap::new(),
        };
        for (number, line) in &counts.lines {
            for part in names::parts(&line.name) {
                ties.add(*number, part);
            }
        }
        ties
    }

    fn add(&mut self, number: u32, part: &str) {
        let mut found = Vec::new();
        for device in self.candidates(number, part) {
            let is_card = device.kind == DeviceKind::Network;
            // Cards with a single interrupt give it their own name.
            let role = names::role(part).or((is_card && part == device.name).then_some(Role::Both(0)));
            let kinds: &[QueueKind] = match role {
                Some(Role::Block(_)) if !is_card => &[QueueKind::Block],
                Some(Role::Receive(_)) if is_card => &[QueueKind::Receive],
                Some(Role::Transmit(_)) if is_card => &[QueueKind::Transmit],
                Some(Role::Both(_)) if is_card => &[QueueKind::Receive, QueueKind::Transmit],
                _ => continue,
            };
            let Some(Role::Block(index) | Role::Receive(index) | Role::Transmit(index) | Role::Both(index)) = role
            else {
                continue;
            };
            found.extend(kinds.iter().map(|kind| (device.name.clone(), *kind, index)));
        }
        for queue in found {
            self.queues.entry(queue).or_insert(number);
        }
    }

    /// The device of an interrupt; of several the first by name that it speaks of.
    pub(super) fn device(&self, number: u32, name: &str) -> Option<String> {
        let mut parts = names::parts(name);
        parts.find_map(|part| Some(self.candidates(number, part).first()?.name.clone()))
    }

    pub(super) fn interrupt(&self, device: &str, kind: QueueKind, index: u32) -> Option<u32> {
        self.queues.get(&(device.to_owned(), kind, index)).copied()
    }

    /// The devices that an interrupt may belong to: those that sysfs lists it for, else those it is named after.
    fn candidates(&self, number: u32, part: &str) -> Vec<&Known> {
        let speaks_of = |device: &&Known| part.split(['-', '@']).any(|word| word == device.name);
        let listed = |device: &&Known| device.interrupts.contains(&number);
        let mut found: Vec<&Known> = self.devices.iter().filter(listed).collect();
        if found.is_empty() {
            let owner = names::owner(part);
            let named = |device: &&Known| speaks_of(device) || device.above.contains(owner);
            found = self.devices.iter().filter(named).collect();
        }
        if found.iter().any(speaks_of) {
            found.retain(speaks_of);
        }
        found
    }
}

/// The interrupts are at the PCI function: the device itself or, for virtio and disks, somewhere above it.
fn known(tree: &Tree, device: &Device, paths: &Paths) -> Known {
    let place = match device.kind {
        DeviceKind::Network => format!("sys/class/net/{}/device", device.name),
        _ => paths.directory(&device.name),
    };
    let above = tree.above(place);
    let listed = |path: &PathBuf| {
        let numbers = tree.names(path.join("msi_irqs"));
        let numbers: BTreeSet<u32> = numbers.iter().filter_map(|number| number.parse().ok()).collect();
        if numbers.is_empty() {
            // One line for all, as before message-signalled interrupts; 0 is none.
            let line = tree.number(path.join("irq")).filter(|line| *line > 0)?;
            return Some(BTreeSet::from([line]));
        }
        Some(numbers)
    };
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    Known {
        name: device.name.clone(),
        kind: device.kind,
        interrupts: above.iter().find_map(listed).unwrap_or_default(),
        above: above.iter().filter_map(|path| name(path)).collect(),
    }
}
