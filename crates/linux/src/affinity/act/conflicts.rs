//! Other programs that set what this one does, and who gives way.
//!
//! | program | what it sets | what is done |
//! |---|---|---|
//! | irqbalance | every ten seconds all interrupts but managed ones and those it is told to leave (`--banirq`) | interrupts are left to it; threads, XPS and RPS are set |
//! | numad | masks and memory of busy processes, every few seconds | threads whose mask it has narrowed are left alone, as all whose mask somebody else has; what it does to others is noticed |
//! | tuned, with a profile that isolates CPUs | masks of threads, at its start and of new threads; the default of interrupts | threads whose mask it has narrowed are left alone, as all whose mask somebody else has |
//! | systemd's `.link` files with `ReceivePacketSteeringCPUMask` | RPS of cards they apply to, when a card appears | RPS of these cards is left alone |
//! | systemd's `.link` files with numbers of queues | how many queues a card has, when it appears | nothing: homenode sets none |
//!
//! An operator who wants to have it otherwise hands on no conflict, or only some ([`super::Actor::apply`],
//! [`leave_alone`]): irqbalance then moves interrupts back, which is noticed, and they are left to it from then on.
//!
//! Everything is read below a root directory. Cost: a file for each process, some for each card.

mod links;
mod tuned;

use crate::topology::sysfs::Tree;
use homenode_policy::affinity::{Previous, QueueKind, Snapshot, Target};
use homenode_policy::doctor::Helper;
use links::links;
use std::collections::BTreeSet;
use std::path::Path;
use std::{fmt, fs};
use tuned::tuned;

/// A program that sets the same, and what that means.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Conflict {
    /// Which program.
    #[serde(skip)]
    pub who: Helper,
    /// Action of the program: `irqbalance (process 812) moves interrupts every ten seconds`.
    pub what: String,
    /// Consequence: targets that are left alone, or may be changed back.
    pub effect: String,
    /// Steps that an operator may take.
    pub remedy: String,
    #[serde(skip)]
    sets: Sets,
}

/// Targets that are to be left alone.
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
        let name = tree.text(format!("proc/{process}/comm"));
        match name.as_deref() {
            Some("irqbalance" | "numad" | "tuned") if !is_roots(&tree, process) => {}
            // Nor that of a program of root's that anybody may start, as sudo, by a link with that name.
            Some(name @ ("irqbalance" | "numad")) if !is_program(&tree, process, name) => {}
            Some("irqbalance") => found.push(irqbalance(&tree, process)),
            Some("numad") => found.push(numad(process)),
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

/// Whether a process is root's: any user can choose its name. A process without a status has ended, or is of a recording and taken for root's.
fn is_roots(tree: &Tree, process: u32) -> bool {
    let status = tree.bytes(format!("proc/{process}/status")).unwrap_or_default();
    let mut lines = status.split(|byte| *byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"));
    let is_root = |users: &[u8]| users.trim_ascii().split(|byte| *byte == b'\t').all(|user| user == b"0");
    users.map_or(!tree.is_live(), is_root)
}

/// Whether a process runs the program of this name, which may have been replaced since. Where that cannot be read it is taken for it.
fn is_program(tree: &Tree, process: u32, name: &str) -> bool {
    let program = fs::read_link(tree.path(format!("proc/{process}/exe")));
    let program = program
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    program.is_none_or(|program| program.trim_end_matches(" (deleted)") == name)
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
        who: Helper::Irqbalance,
        what: format!("irqbalance (process {process}) moves interrupts every ten seconds{all_but}"),
        effect: "the interrupts it moves are left alone; threads, XPS and RPS are set".to_owned(),
        remedy: "to have them moved by homenode, stop it (systemctl stop irqbalance), or name them to it \
                 (--banirq=NUMBER in /etc/default/irqbalance)"
            .to_owned(),
        sets: Sets::Interrupts(spared),
    }
}

fn numad(process: u32) -> Conflict {
    Conflict {
        who: Helper::Numad,
        what: format!("numad (process {process}) moves processes between nodes, with their memory"),
        effect: "threads whose mask it has narrowed are left alone; it may move away threads that were moved first".to_owned(),
        remedy:
            "to have threads moved by homenode alone, stop it (systemctl disable --now numad), or name it the processes that \
             it is to leave (numad -x PROCESS); or say off for those it cares for"
                .to_owned(),
        sets: Sets::Nothing,
    }
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
mod tests;
