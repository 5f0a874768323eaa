//! Other programs that set what this one does, and who gives way.
//!
//! | program | what it sets | what is done |
//! |---|---|---|
//! | irqbalance | every ten seconds all interrupts but managed ones and those it is told to leave (`--banirq`) | interrupts are left to it; threads, XPS and RPS are set |
//! | tuned, with a profile that isolates CPUs | masks of threads, at its start and of new threads; the default of interrupts | threads whose mask it has narrowed are left alone, as all whose mask somebody else has |
//! | systemd's `.link` files with `ReceivePacketSteeringCPUMask` | RPS of cards they apply to, when a card appears | RPS of these cards is left alone |
//! | systemd's `.link` files with numbers of queues | how many queues a card has, when it appears | nothing: they are set when a card appears, and changed here only when asked for |
//!
//! An operator who wants to have it otherwise hands on no conflict, or only some ([`super::Actor::apply`],
//! [`leave_alone`]): irqbalance then moves interrupts back, which is noticed, and they are left to it from then on.
//!
//! Everything is read below a root directory. Cost: a file for each process, some for each card.

use crate::topology::sysfs::Tree;
use homenode_policy::affinity::{Previous, QueueKind, Snapshot, Target};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// A program that sets the same, and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Which program.
    pub who: Who,
    /// What it does: `irqbalance (process 812) moves interrupts every ten seconds`.
    pub what: String,
    /// What comes of it: what is left alone, or may be changed back.
    pub effect: String,
    /// What an operator may do.
    pub remedy: String,
    sets: Sets,
}

/// Programs that are known to set CPUs of interrupts, queues or threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Who {
    /// irqbalance.
    Irqbalance,
    /// tuned.
    Tuned,
    /// systemd's udev, by .link files.
    SystemdLink,
}

/// What is to be left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sets {
    Nothing,
    /// All but these.
    Interrupts(BTreeSet<u32>),
    /// RPS of these cards.
    Steering(Vec<String>),
}

impl Conflict {
    /// Whether it sets this target, so that it is to be left alone.
    #[must_use]
    pub fn sets(&self, target: &Target) -> bool {
        match (&self.sets, target) {
            (Sets::Interrupts(spared), Target::Interrupt(number)) => !spared.contains(number),
            (Sets::Steering(devices), Target::Receive { device, .. }) => devices.contains(device),
            _ => false,
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.what, self.effect, self.remedy)
    }
}

/// The conflicts of the machine below `root`. What cannot be read is taken for not being there.
#[must_use]
pub fn conflicts(root: &Path) -> Vec<Conflict> {
    let tree = Tree::new(root);
    let mut found = Vec::new();
    let mut processes = Vec::new();
    // Without /proc there are no processes to be found.
    let _ = tree.numbers("proc", &mut processes);
    let mut has_tuned = false;
    for process in processes {
        match tree.text(format!("proc/{process}/comm")).as_deref() {
            Some("irqbalance") => found.push(irqbalance(&tree, process)),
            Some("tuned") if !has_tuned => {
                has_tuned = true;
                found.extend(tuned(&tree, process));
            }
            _ => {}
        }
    }
    found.extend(links(&tree));
    found.sort_by_key(|conflict| conflict.who);
    found
}

/// Has decisions leave alone what others set.
pub fn leave_alone(conflicts: &[Conflict], snapshot: &Snapshot, previous: &mut Previous) {
    let movable = snapshot.interrupts.iter().filter(|interrupt| !interrupt.managed);
    let interrupts = movable.map(|interrupt| Target::Interrupt(interrupt.number));
    let receiving = snapshot.queues.iter().filter(|queue| queue.kind == QueueKind::Receive);
    let queues = receiving.filter_map(|queue| Target::of_queue(&queue.device, queue.kind, queue.index));
    for target in interrupts.chain(queues) {
        if !previous.refused(&target) && conflicts.iter().any(|conflict| conflict.sets(&target)) {
            previous.refuse(target);
        }
    }
}

fn irqbalance(tree: &Tree, process: u32) -> Conflict {
    let words = |file: &str, separator: char| -> Vec<String> {
        let text = tree.text(format!("proc/{process}/{file}")).unwrap_or_default();
        text.split(separator).map(str::to_owned).collect()
    };
    let mut spared = BTreeSet::new();
    let arguments = words("cmdline", '\0');
    for (index, argument) in arguments.iter().enumerate() {
        let value = ["--banirq=", "-i"]
            .iter()
            .find_map(|option| argument.strip_prefix(option));
        let value = match (value, argument.as_str()) {
            (Some(""), _) | (None, "--banirq") => arguments.get(index + 1).map(String::as_str),
            (value, _) => value,
        };
        spared.extend(value.and_then(|value| value.parse::<u32>().ok()));
    }
    for variable in words("environ", '\0') {
        let list = variable
            .strip_prefix("IRQBALANCE_BANNED_INTERRUPTS=")
            .unwrap_or_default();
        spared.extend(
            list.split_ascii_whitespace()
                .filter_map(|number| number.parse::<u32>().ok()),
        );
    }
    let all_but = match spared.len() {
        0 => String::new(),
        _ => format!(", but not those it is told to leave ({})", list(&spared)),
    };
    Conflict {
        who: Who::Irqbalance,
        what: format!("irqbalance (process {process}) moves interrupts every ten seconds{all_but}"),
        effect: "the interrupts it moves are left alone; threads, XPS and RPS are set".to_owned(),
        remedy: "to have them moved by homenode, stop it (systemctl stop irqbalance), or name them to it \
                 (--banirq=NUMBER in /etc/default/irqbalance)"
            .to_owned(),
        sets: Sets::Interrupts(spared),
    }
}

/// Lines of a profile that give threads or interrupts CPUs.
const TUNED_KEYS: [&str; 4] = ["isolated_cores", "default_irq_smp_affinity", "banned_cpus", "affinity"];
/// Profiles include others; no deeper than this.
const PROFILES_MAX: usize = 16;

fn tuned(tree: &Tree, process: u32) -> Option<Conflict> {
    let active = tree.text("etc/tuned/active_profile")?;
    let mut profiles: Vec<String> = active.split_ascii_whitespace().map(str::to_owned).collect();
    let mut keys = BTreeSet::new();
    let mut next = 0;
    while next < profiles.len().min(PROFILES_MAX) {
        let directories = [
            "etc/tuned",
            "etc/tuned/profiles",
            "usr/lib/tuned",
            "usr/lib/tuned/profiles",
        ];
        let texts = directories
            .iter()
            .find_map(|directory| tree.text(format!("{directory}/{}/tuned.conf", profiles[next])));
        for (key, value) in settings(&texts.unwrap_or_default()) {
            if key == "include" {
                let included = value.split([',', ' ']).filter(|name| !name.is_empty());
                profiles.extend(included.map(str::to_owned));
            } else if TUNED_KEYS.contains(&key) {
                keys.insert(key.to_owned());
            }
        }
        next += 1;
    }
    (!keys.is_empty()).then(|| Conflict {
        who: Who::Tuned,
        what: format!(
            "tuned (process {process}) has the profile {active}, which sets {}",
            Vec::from_iter(keys).join(", ")
        ),
        effect: "threads whose mask it has narrowed are left alone; interrupts may be moved, until it starts again"
            .to_owned(),
        remedy:
            "choose a profile that isolates no CPUs (tuned-adm profile …), or say off for the processes it cares for"
                .to_owned(),
        sets: Sets::Nothing,
    })
}

const STEERING_KEY: &str = "ReceivePacketSteeringCPUMask";
const QUEUE_KEYS: [&str; 6] = [
    "RxChannels",
    "TxChannels",
    "OtherChannels",
    "CombinedChannels",
    "TransmitQueues",
    "ReceiveQueues",
];

/// The .link files that udev has applied to a card that is there: it tells for each card which.
fn links(tree: &Tree) -> Vec<Conflict> {
    let mut cards_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for device in tree.names("sys/class/net") {
        let Some(index) = tree.number::<u32>(format!("sys/class/net/{device}/ifindex")) else {
            continue;
        };
        let told = tree.text(format!("run/udev/data/n{index}")).unwrap_or_default();
        let of_key = |key: &str| {
            let value = told.lines().find_map(|line| line.strip_prefix("E:")?.strip_prefix(key));
            value.unwrap_or_default().to_owned()
        };
        let files = [of_key("ID_NET_LINK_FILE="), of_key("ID_NET_LINK_FILE_DROPINS=")];
        for file in files
            .iter()
            .flat_map(|list| list.split(':'))
            .filter(|file| !file.is_empty())
        {
            cards_of.entry(file.to_owned()).or_default().push(device.clone());
        }
    }
    let found = cards_of.into_iter().flat_map(|(file, cards)| {
        let text = tree.text(file.trim_start_matches('/')).unwrap_or_default();
        let keys: BTreeSet<&str> = settings(&text).map(|(key, _)| key).collect();
        let steering = keys.contains(STEERING_KEY).then(|| Conflict {
            who: Who::SystemdLink,
            what: format!("{file} sets {STEERING_KEY} of {}", cards.join(", ")),
            effect: "RPS of these cards is left alone".to_owned(),
            remedy: format!("to have it set by homenode, take {STEERING_KEY} out of {file}"),
            sets: Sets::Steering(cards.clone()),
        });
        let queues: Vec<&str> = QUEUE_KEYS.iter().copied().filter(|key| keys.contains(key)).collect();
        let queues = (!queues.is_empty()).then(|| Conflict {
            who: Who::SystemdLink,
            what: format!("{file} sets {} of {}", queues.join(", "), cards.join(", ")),
            effect: "their number of queues is the one that the file says; homenode does not change it".to_owned(),
            remedy: format!("for a queue for each CPU of the card's node, change {file}"),
            sets: Sets::Nothing,
        });
        [steering, queues].into_iter().flatten()
    });
    found.collect()
}

/// `key = value` of files with sections; an empty value sets nothing.
fn settings(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs
        .map(|(key, value)| (key.trim(), value.trim()))
        .filter(|(_, value)| !value.is_empty())
}

fn list(numbers: &BTreeSet<u32>) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn found(files: &[(&str, &str)]) -> Vec<Conflict> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        conflicts(root.path())
    }

    fn receive(device: &str) -> Target {
        Target::of_queue(device, QueueKind::Receive, 0).unwrap()
    }

    #[test]
    fn a_machine_without_any() {
        assert_eq!(found(&[]), []);
        assert_eq!(
            found(&[("proc/7/comm", "bash\n"), ("etc/tuned/active_profile", "x\n")]),
            []
        );
    }

    #[test]
    fn irqbalance_has_all_interrupts_but_those_it_is_told_to_leave() {
        let all = found(&[("proc/812/comm", "irqbalance\n")]);
        assert_eq!(all.len(), 1);
        assert_eq!(
            all[0].what,
            "irqbalance (process 812) moves interrupts every ten seconds"
        );
        assert!(all[0].sets(&Target::Interrupt(38)) && !all[0].sets(&receive("eth0")));
        let some = found(&[
            ("proc/812/comm", "irqbalance\n"),
            (
                "proc/812/cmdline",
                "/usr/sbin/irqbalance\0--foreground\0--banirq=38\0-i\x0040\0-i41\0--banirq\x0042\0--banirq\0",
            ),
            ("proc/812/environ", "A=1\0IRQBALANCE_BANNED_INTERRUPTS=50 51\0"),
        ]);
        let spared: Vec<u32> = (30..60)
            .filter(|number| !some[0].sets(&Target::Interrupt(*number)))
            .collect();
        assert_eq!(spared, [38, 40, 41, 42, 50, 51]);
        assert!(some[0].what.ends_with("(38, 40, 41, 42, 50, 51)"), "{}", some[0].what);
    }

    #[test]
    fn tuned_with_a_profile_that_isolates() {
        let of = |profile: &str| {
            found(&[
                ("proc/9/comm", "tuned\n"),
                ("proc/10/comm", "tuned\n"),
                ("etc/tuned/active_profile", profile),
                (
                    "usr/lib/tuned/balanced/tuned.conf",
                    "[cpu]\ngovernor=performance\n# isolated_cores=1\n",
                ),
                ("etc/tuned/mine/tuned.conf", "[main]\ninclude=cpu-partitioning\n"),
                (
                    "usr/lib/tuned/cpu-partitioning/tuned.conf",
                    "[scheduler]\nisolated_cores = ${x}\n",
                ),
            ])
        };
        assert_eq!(of("balanced\n"), []);
        let conflicts = of("mine\n");
        assert_eq!(conflicts.len(), 1);
        assert_eq!(
            conflicts[0].what,
            "tuned (process 9) has the profile mine, which sets isolated_cores"
        );
        assert!(!conflicts[0].sets(&Target::Interrupt(1)));
    }

    #[test]
    fn link_files_that_apply_to_a_card() {
        let conflicts = found(&[
            ("sys/class/net/eth0/ifindex", "2\n"),
            ("sys/class/net/eth1/ifindex", "3\n"),
            (
                "run/udev/data/n2",
                "E:ID_NET_LINK_FILE=/etc/systemd/network/10-a.link\n",
            ),
            (
                "run/udev/data/n3",
                "E:ID_NET_LINK_FILE=/usr/lib/systemd/network/99-default.link\n",
            ),
            (
                "etc/systemd/network/10-a.link",
                "[Link]\nReceivePacketSteeringCPUMask=0-3\nCombinedChannels=4\nRxChannels=\n",
            ),
            ("etc/systemd/network/20-unused.link", "[Link]\nRxChannels=4\n"),
            ("usr/lib/systemd/network/99-default.link", "[Link]\nNamePolicy=keep\n"),
        ]);
        let what: Vec<&str> = conflicts.iter().map(|conflict| conflict.what.as_str()).collect();
        let expected = [
            "/etc/systemd/network/10-a.link sets ReceivePacketSteeringCPUMask of eth0",
            "/etc/systemd/network/10-a.link sets CombinedChannels of eth0",
        ];
        assert_eq!(what, expected);
        assert!(conflicts[0].sets(&receive("eth0")) && !conflicts[0].sets(&receive("eth1")));
        assert!(!conflicts[1].sets(&receive("eth0")));
    }
}
