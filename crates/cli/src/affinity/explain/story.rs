//! Text about a thread, interrupt or queue: a heading, and a line for each known fact.

use crate::affinity::card_advice::Advice;
use crate::affinity::known::Known;
use crate::affinity::plan::text::cpus;
use crate::affinity::pools::file_name;
use crate::affinity::words::{of_thread, plain, rate};
use homenode_linux::affinity::Card;
use homenode_policy::affinity::{Interrupt, Plan, Queue, QueueKind, Snapshot, Target, Thread, Why};
use homenode_policy::{CpuId, NodeId};
use std::collections::BTreeSet;

pub(super) struct Story<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) cards: &'a [Card],
    pub(super) advice: &'a [Advice],
    pub(super) plan: &'a Plan,
    pub(super) known: &'a Known,
    pub(super) is_live: bool,
}

/// `  now      CPU 2`.
fn line(label: &str, text: &str) -> String {
    format!("  {label:<9} {}\n", plain(text))
}

/// Returns a queue's name as `explain` takes it: `eth0/tx-0`.
pub(super) fn queue_name(queue: &Queue) -> String {
    let (device, index) = (&queue.device, queue.index);
    match queue.kind {
        QueueKind::Block => format!("{device}/{index}"),
        QueueKind::Receive => format!("{device}/rx-{index}"),
        QueueKind::Transmit => format!("{device}/tx-{index}"),
    }
}

impl<'a> Story<'a> {
    pub(super) fn of_thread(&self, thread: &Thread) -> String {
        let mut text = plain(&format!("thread {} ({})", thread.id.thread, of_thread(thread))) + "\n";
        let here = self.snapshot.node(thread.cpu);
        let may = match (&thread.allowed, &thread.cpuset) {
            (allowed, cpuset) if allowed == cpuset => format!("may run on {}, all of its cpuset", cpus(allowed)),
            (allowed, cpuset) => format!("may run on {} of its cpuset {}", cpus(allowed), cpus(cpuset)),
        };
        text += &line(
            "now",
            &format!("on CPU {}{}; {may}", thread.cpu.0, self.of_nodes(&[thread.cpu])),
        );
        let busy = u128::from(thread.cpu_ns) * 100 / u128::from(self.snapshot.period_ns.max(1));
        text += &line("busy", &format!("{busy} % of a CPU"));
        for disk in &thread.disk {
            let rate = rate(disk.bytes, self.snapshot.period_ns);
            let from = match &disk.device {
                Some(device) => format!("{device}{}", self.home(device, here)),
                None => "disks, it is not known which".to_owned(),
            };
            text += &line("moves", &format!("{rate} from and to {from}"));
        }
        for it in &thread.received {
            let rate = rate(it.bytes, self.snapshot.period_ns);
            let queue = it.queue.as_ref();
            let queue = queue.map(|(device, index)| format!(" through receive queue {index} of {device}"));
            let place = match it.cpu {
                Some(cpu) => format!(
                    "processed on CPU {}{}",
                    cpu.0,
                    self.apart(here, self.snapshot.node(cpu))
                ),
                None => "processed it is not known where".to_owned(),
            };
            let queue = queue.unwrap_or_default();
            text += &line("receives", &format!("{rate} from the network{queue}, {place}"));
        }
        for it in &thread.sent {
            let rate = rate(it.bytes, self.snapshot.period_ns);
            let card = it.device.as_ref().map(|device| format!(" through {device}"));
            text += &line("sends", &format!("{rate} to the network{}", card.unwrap_or_default()));
        }
        text += &self.buffers(thread, here);
        if thread.is_unread {
            text += &line(
                "unknown",
                "not all of its bytes are readable: `could not be seen` tells which",
            );
        }
        text + &self.decision(&Target::Thread(thread.id))
    }

    /// Where its buffers are, and what becomes of its files.
    fn buffers(&self, thread: &Thread, here: Option<NodeId>) -> String {
        let mut text = String::new();
        let period_ns = self.snapshot.period_ns;
        for (node, bytes) in &thread.memory {
            let (rate, apart) = (rate(*bytes, period_ns), self.apart(here, Some(*node)));
            text += &line("copies", &format!("{rate} from and to buffers of pools{apart}"));
        }
        for (file, bytes_per_s) in &thread.files {
            let rate = rate(*bytes_per_s, 1_000_000_000);
            text += &line("of", &format!("{}, {rate}", file_name(*file, self.is_live)));
            if let Some((_, node)) = self.known.files.iter().find(|(known, _)| known == file) {
                let moved = format!("by homenode affinity to {node}, where it stays: `revert` does not move it back");
                text += &line("moved", &moved);
            }
            if let Some(one) = self.plan.files.iter().find(|one| one.file == *file) {
                let goes = format!(
                    "that file goes to {}, where it stays also after `revert`: {one}",
                    one.to
                );
                text += &line("plan", &goes);
            }
        }
        text
    }

    pub(super) fn of_interrupt(&self, interrupt: &Interrupt) -> String {
        let mut text = plain(&format!("interrupt {} ({})", interrupt.number, interrupt.name)) + "\n";
        text += &line("device", &self.device(interrupt.device.as_deref()));
        let served = self.snapshot.queues.iter();
        let served: Vec<String> = served
            .filter(|queue| queue.interrupt == Some(interrupt.number))
            .map(queue_name)
            .collect();
        if !served.is_empty() {
            text += &line("serves", &served.join(", "));
        }
        text += &line("now", &self.arrivals_place(interrupt));
        text += &line("arrived", &self.arrivals(interrupt));
        text + &self.decision(&Target::Interrupt(interrupt.number))
    }

    pub(super) fn of_queue(&self, queue: &Queue) -> String {
        let what = match queue.kind {
            QueueKind::Block => "queue of a disk",
            QueueKind::Receive => "receive queue",
            QueueKind::Transmit => "transmit queue",
        };
        let mut text = plain(&format!("{} ({what})", queue_name(queue))) + "\n";
        text += &line("device", &self.device(Some(&queue.device)));
        text += &self.card(queue);
        let nodes = self.of_nodes(&queue.cpus);
        let set = cpus(&queue.cpus);
        text += &line(
            "now",
            &match (queue.kind, queue.cpus.is_empty()) {
                (QueueKind::Block, _) => format!("CPUs {set}{nodes} submit to it"),
                (QueueKind::Receive, true) => "packets are processed where the interrupt arrives".to_owned(),
                (QueueKind::Receive, false) => format!("packets are processed on {set}{nodes} (RPS)"),
                (QueueKind::Transmit, true) => "no CPU is told to send through it (XPS)".to_owned(),
                (QueueKind::Transmit, false) => format!("CPUs {set}{nodes} send through it (XPS)"),
            },
        );
        let interrupts = self.snapshot.interrupts.iter();
        for interrupt in interrupts.filter(|interrupt| queue.interrupt == Some(interrupt.number)) {
            let place = self.arrivals_place(interrupt);
            text += &line(
                "interrupt",
                &format!("{}, {place}; {}", interrupt.number, self.arrivals(interrupt)),
            );
        }
        match Target::of_queue(&queue.device, queue.kind, queue.index) {
            Some(target) => text + &self.decision(&target),
            None => {
                text + &line(
                    "plan",
                    "stays: the kernel allows no change; the threads that use it move instead",
                )
            }
        }
    }

    pub(super) fn advice_on(&self, device: &str) -> Option<&'a Advice> {
        self.advice.iter().find(|one| one.device == device)
    }

    /// How its card spreads packets over its queues, and what this one gets.
    fn card(&self, queue: &Queue) -> String {
        let Some(card) = self.cards.iter().find(|card| card.device == queue.device) else {
            return String::new();
        };
        let advice = self.advice_on(&card.device).map(|one| line("advice", &one.to_string()));
        let text = line("card", &card.to_string()) + &advice.unwrap_or_default();
        match (&card.table, queue.kind) {
            (Some(table), QueueKind::Receive) => {
                let share = card.shares().get(&queue.index).copied().unwrap_or_default();
                let all = table.entries.len();
                text + &line(
                    "rss",
                    &format!("{share} of the table's {all} entries send packets here"),
                )
            }
            _ => text,
        }
    }

    fn decision(&self, target: &Target) -> String {
        self.set(target) + &self.planned(target)
    }

    /// Returns the line about the target's change in the journal, if any.
    pub(super) fn set(&self, target: &Target) -> String {
        let changed = self.known.changed.iter().find(|changed| changed.target == *target);
        let told = changed.map(|changed| {
            let (to, old) = (cpus(&changed.to), cpus(changed.old.cpus()));
            line(
                "set",
                &format!("by homenode affinity to {to}; it had {old}, which `revert` gives back"),
            )
        });
        told.unwrap_or_default()
    }

    fn planned(&self, target: &Target) -> String {
        if let Some(action) = self.plan.action(target) {
            let (from, to) = (cpus(&action.from), cpus(&action.to));
            let cost = format!("{} now, {} after", action.cost_before, action.cost_after);
            return line("plan", &format!("goes from {from} to {to}: {}", action.reason)) + &line("cost", &cost);
        }
        let others = self.known.conflicts.iter().find(|conflict| conflict.sets(target));
        match (self.plan.stay(target), others) {
            (Some(stay), Some(conflict)) if stay.why == Why::Refused => line("plan", &format!("stays: {conflict}")),
            (Some(stay), _) => line("plan", &format!("stays: {}", stay.why)) + &line("cost", &stay.cost.to_string()),
            (None, _) => line("plan", "stays: it belongs to nothing that is placed"),
        }
    }

    fn device(&self, device: Option<&str>) -> String {
        match device {
            Some(device) => format!("{device}{}", self.home(device, None)),
            None => "not known".to_owned(),
        }
    }

    /// Where a device is at home, and how far from a node that is.
    fn home(&self, device: &str, from: Option<NodeId>) -> String {
        match self.snapshot.home(device) {
            Some(home) => self.apart(from, Some(home)),
            None => " (its home is not known)".to_owned(),
        }
    }

    /// ` (node 1, at distance 21)`.
    fn apart(&self, from: Option<NodeId>, to: Option<NodeId>) -> String {
        let Some(to) = to else { return String::new() };
        match from {
            Some(from) if from != to => match self.distance(from, to) {
                Some(distance) => format!(" ({to}, at distance {distance})"),
                None => format!(" ({to})"),
            },
            Some(_) => format!(" ({to}, the same)"),
            None => format!(" ({to})"),
        }
    }

    fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let topology = &self.snapshot.topology;
        let nodes = topology.node_ids();
        let at = |node| nodes.iter().position(|known| *known == node);
        Some(topology.latency().matrix[at(from)?][at(to)?])
    }

    /// ` (node 0)`, ` (nodes 0, 1)`.
    fn of_nodes(&self, cpus: &[CpuId]) -> String {
        let nodes: BTreeSet<NodeId> = cpus.iter().filter_map(|cpu| self.snapshot.node(*cpu)).collect();
        let numbers: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
        match numbers.len() {
            0 => String::new(),
            1 => format!(" (node {})", numbers[0]),
            _ => format!(" (nodes {})", numbers.join(", ")),
        }
    }

    fn arrivals_place(&self, interrupt: &Interrupt) -> String {
        let (may, does) = (&interrupt.affinity, &interrupt.effective);
        let managed = if interrupt.managed {
            ", as the kernel has spread it"
        } else {
            ""
        };
        format!(
            "arrives on {}{}, may on {}{managed}",
            cpus(does),
            self.of_nodes(does),
            cpus(may)
        )
    }

    fn arrivals(&self, interrupt: &Interrupt) -> String {
        let one = |(cpu, number): &(CpuId, u64)| format!("{number} on CPU {}{}", cpu.0, self.of_nodes(&[*cpu]));
        let arrivals: Vec<String> = interrupt.arrivals.iter().map(one).collect();
        if arrivals.is_empty() {
            "never in this period".to_owned()
        } else {
            arrivals.join(", ")
        }
    }
}
