//! Settings rather than counts: where interrupts may arrive, and which CPUs use which queues.
//!
//! Cost: two files an interrupt, one a queue and a few requests a card, thousands on large machines; so it is not read in
//! every period.

use super::cards::{self, Card};
use super::counts::Counts;
use super::gaps::Gaps;
use super::names;
use super::ties::Ties;
use crate::topology::paths::Paths;
use crate::topology::sysfs::{Tree, number_after, parse_list, parse_mask};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Queue, QueueKind};
use homenode_policy::topology::{Device, DeviceKind, Topology};
use std::collections::BTreeMap;
use std::io;

const FLAGS: &str = "sys/kernel/debug/irq/irqs";

/// Settings of all interrupts and queues.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) interrupts: BTreeMap<u32, Setting>,
    pub(super) queues: Vec<Queue>,
    pub(super) cards: Vec<Card>,
    /// The names of the cards by the numbers that the kernel gives them.
    pub(super) card_names: BTreeMap<u32, String>,
}

/// An interrupt's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) device: Option<String>,
    pub(super) affinity: Vec<CpuId>,
    pub(super) effective: Vec<CpuId>,
    pub(super) managed: bool,
}

impl Settings {
    pub(super) fn read(tree: &Tree, counts: &Counts, topology: &Topology, gaps: &mut Gaps) -> Self {
        let paths = Paths::read(tree);
        let ties = Ties::read(tree, topology.devices(), &paths, counts);
        let mut interrupts = BTreeMap::new();
        for (number, line) in &counts.lines {
            let Some((affinity, effective)) = affinities(tree, *number, gaps) else {
                continue;
            };
            let setting = Setting {
                device: ties.device(*number, &line.name),
                affinity,
                effective,
                managed: false,
            };
            interrupts.insert(*number, setting);
        }
        tell_managed(tree, counts, &mut interrupts, gaps);
        let (network, others): (Vec<&Device>, Vec<&Device>) = topology
            .devices()
            .iter()
            .partition(|device| device.kind == DeviceKind::Network);
        let mut names: Vec<String> = network.iter().map(|device| device.name.clone()).collect();
        names.extend(virtual_cards(tree, topology));
        let mut queues = Vec::new();
        for device in others {
            queues.extend(disk_queues(tree, device, &paths, gaps));
        }
        for name in &names {
            queues.extend(card_queues(tree, name, gaps));
        }
        let cards = cards::read(tree, &names, gaps);
        let number = |name: &str| tree.text(format!("sys/class/net/{name}/ifindex"))?.trim().parse().ok();
        let card_names = names.iter().filter_map(|name| Some((number(name)?, name.clone())));
        let card_names = card_names.collect();
        for queue in &mut queues {
            queue.interrupt = ties.interrupt(&queue.device, queue.kind, queue.index);
        }
        queues.sort_by(|a, b| (&a.device, a.kind, a.index).cmp(&(&b.device, b.kind, b.index)));
        Self {
            interrupts,
            queues,
            cards,
            card_names,
        }
    }
}

/// The CPUs an interrupt may arrive on, and does. Kernels of some architectures tell the first only.
fn affinities(tree: &Tree, number: u32, gaps: &mut Gaps) -> Option<(Vec<CpuId>, Vec<CpuId>)> {
    let mut list = |file: &str| {
        let path = format!("proc/irq/{number}/{file}");
        let text = tree.try_text(&path);
        let parsed = text.and_then(|text| parse_list(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()));
        parsed
            .inspect_err(|error| gaps.unreadable("CPUs of interrupts", &path, error))
            .ok()
            .map(cpus)
    };
    let affinity = list("smp_affinity_list")?;
    let effective = list("effective_affinity_list").unwrap_or_else(|| affinity.clone());
    Some((affinity, effective))
}

/// Who has spread them: the kernel says so in its debugging files, where there are some; newer ones let nobody write the
/// affinity of an interrupt that cannot be moved; of the others only the drivers' ways are known.
fn tell_managed(tree: &Tree, counts: &Counts, interrupts: &mut BTreeMap<u32, Setting>, gaps: &mut Gaps) {
    let read_only = |number: &u32| tree.is_read_only(format!("proc/irq/{number}/smp_affinity_list"));
    let tells_by_mode = interrupts.keys().any(read_only);
    let mut guessed = 0_usize;
    for (number, setting) in interrupts {
        let flags = tree.text(format!("{FLAGS}/{number}"));
        setting.managed = match flags {
            Some(flags) => flags.contains("IRQD_AFFINITY_MANAGED"),
            None if tells_by_mode => read_only(number),
            None => {
                let managed = counts
                    .lines
                    .get(number)
                    .is_some_and(|line| names::is_managed(&line.name));
                guessed += usize::from(managed);
                managed
            }
        };
    }
    if guessed > 0 {
        let why = format!("this kernel does not tell; {guessed} are taken for such, by their drivers");
        gaps.tell("which interrupts cannot be moved", &why);
    }
}

/// Read anew as kernels spread queues over CPUs each in its own way, and again when CPUs come and go.
fn disk_queues(tree: &Tree, device: &Device, paths: &Paths, gaps: &mut Gaps) -> Vec<Queue> {
    tell_paths(device, paths, gaps);
    let directory = format!("{}/mq", paths.directory(&device.name));
    let queue = |name: String| {
        let path = format!("{directory}/{name}/cpu_list");
        let list = tree.try_text(&path);
        let list = list.inspect_err(|error| gaps.unreadable("CPUs of queues of disks", &path, error));
        Some(Queue {
            device: device.name.clone(),
            kind: QueueKind::Block,
            index: name.parse().ok()?,
            interrupt: None,
            cpus: cpus(parse_list(&list.ok()?)?),
            movable: false,
        })
    };
    tree.names(&directory).into_iter().filter_map(queue).collect()
}

/// Tells what is not known of a disk with several paths.
fn tell_paths(device: &Device, paths: &Paths, gaps: &mut Gaps) {
    let Some(count) = paths.count(&device.name).filter(|count| *count != 1) else {
        return;
    };
    let why = match (count, device.home) {
        (0, _) => "none of its paths is live".to_owned(),
        (_, Some(home)) => format!("it uses {count} paths, all on {home}: the kernel chooses one for each request"),
        (_, None) => format!("it uses {count} paths, not all on one node: the kernel chooses one for each request"),
    };
    let what = match device.home {
        Some(_) => "queues",
        None => "home and queues",
    };
    gaps.tell(&format!("{what} of disk {}", device.name), &why);
}

/// Interfaces without a device behind them: pairs of network namespaces, bridges, tunnels. They have no interrupts and no
/// home; packets are processed where they are sent, unless RPS says otherwise.
fn virtual_cards<'a>(tree: &'a Tree, topology: &'a Topology) -> impl Iterator<Item = String> + 'a {
    const LOOPBACK: &str = "lo";
    let is_known = |name: &String| topology.devices().iter().any(|device| device.name == *name);
    let names = tree.names("sys/class/net").into_iter();
    names.filter(move |name| name != LOOPBACK && !is_known(name))
}

fn card_queues(tree: &Tree, device: &str, gaps: &mut Gaps) -> Vec<Queue> {
    let directory = format!("sys/class/net/{device}/queues");
    let queue = |name: String| {
        let receive = number_after(&name, "rx-").map(|index| (QueueKind::Receive, index, "rps_cpus"));
        let transmit = || number_after(&name, "tx-").map(|index| (QueueKind::Transmit, index, "xps_cpus"));
        let (kind, index, file) = receive.or_else(transmit)?;
        let path = format!("{directory}/{name}/{file}");
        // A card with a single queue has the file and does not answer: there is nothing to choose.
        let mask = tree.try_text(&path);
        let mask = mask.inspect_err(|error| gaps.unreadable("CPUs of queues of cards", &path, error));
        let cpus = mask.ok().and_then(|mask| parse_mask(&mask));
        Some(Queue {
            device: device.to_owned(),
            kind,
            index,
            interrupt: None,
            movable: cpus.is_some(),
            cpus: cpus.unwrap_or_default(),
        })
    };
    tree.names(&directory).into_iter().filter_map(queue).collect()
}

fn cpus(numbers: Vec<u32>) -> Vec<CpuId> {
    numbers.into_iter().map(CpuId).collect()
}
