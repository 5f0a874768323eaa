//! Queues with the interrupts they share: what moves as one.

use super::cost::{ARRIVAL_BYTES, Distances, INTERRUPT_NS, NS_PER_S, RATE_BYTES_PER_S_MAX, RECEIVE_NS_PER_KIB};
use super::domains::Domains;
use super::reason::Why;
use super::{Config, Interrupt, Policy, Previous, Queue, QueueKind, Snapshot, Target};
use crate::{CpuId, NodeId};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Where a channel's bytes are worked on: indices of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Where its interrupts arrive; empty when it has none that is known.
    pub(super) interrupt: Vec<usize>,
    /// Where its packets are processed: as `interrupt`, unless there is RPS.
    pub(super) processing: Vec<usize>,
}

/// Queues of one device that share an interrupt, or are the two directions of one number.
#[derive(Debug)]
pub(super) struct Channel<'a> {
    pub(super) device: &'a str,
    pub(super) home: Option<NodeId>,
    pub(super) queues: Vec<&'a Queue>,
    pub(super) interrupts: Vec<&'a Interrupt>,
    pub(super) origin: Position,
    pub(super) policy: Policy,
    /// Why it cannot move at all.
    pub(super) hold: Option<Why>,
    /// Whether its interrupts go along.
    pub(super) interrupts_move: bool,
    /// Whether packets stay where they are processed, wherever the interrupt arrives.
    processing_stays: bool,
    /// How often its interrupts arrive in a second.
    pub(super) arrivals_per_s: u64,
    /// CPU time that the channel's interrupts and packets take, in nanoseconds a second.
    pub(super) load: u64,
    /// Bytes a second that threads are known to move through it.
    pub(super) known_rate: u64,
    /// Bytes a second that nobody is known to take.
    pub(super) unknown_rate: u64,
    /// Whether it is the memory of its home, which a CPU waits for, and no device.
    pub(super) is_memory: bool,
}

impl<'a> Channel<'a> {
    /// Where its bytes are worked on when it is put on one CPU.
    pub(super) fn at(&self, cpu: usize) -> Position {
        let stays = |stays: bool, set: &Vec<usize>| if stays { set.clone() } else { vec![cpu] };
        Position {
            interrupt: stays(!self.interrupts_move, &self.origin.interrupt),
            processing: stays(self.processing_stays, &self.origin.processing),
        }
    }

    /// Returns the cost of a byte on its way through the channel, in percent, from each domain. A last entry has the
    /// part of the cost beyond the CPU that processes the byte.
    pub(super) fn reach(&self, domains: &Domains, position: &Position) -> Vec<u64> {
        let Position { interrupt, processing } = position;
        let hop = match interrupt == processing {
            true => 0,
            false => domains.mean_apart(processing, interrupt),
        };
        let last = if interrupt.is_empty() { processing } else { interrupt };
        let access = |node| self.access(&domains.distances, node);
        let last_sum: u64 = last.iter().map(|cpu| access(domains.node(*cpu))).sum();
        let beyond = hop + last_sum / last.len().max(1) as u64;
        let from = |domain: usize| {
            if processing.is_empty() && interrupt.is_empty() {
                return access(domains.domains[domain].node);
            }
            let first = &domains.domains[domain].cpus[..1];
            domains.mean_apart(first, processing) + beyond
        };
        (0..domains.len()).map(from).chain([beyond]).collect()
    }

    /// Cost of the last stretch of a byte's way from a node, in percent.
    pub(super) fn access(&self, distances: &Distances, node: NodeId) -> u64 {
        match self.home.filter(|_| self.is_memory) {
            Some(home) => distances.percent(node, home),
            None => distances.device_percent(node, self.home),
        }
    }

    pub(super) fn rate(&self) -> u64 {
        self.known_rate.saturating_add(self.unknown_rate)
    }

    /// Whether one of its queues is of this kind.
    pub(super) fn has(&self, kind: QueueKind) -> bool {
        self.queues.iter().any(|queue| queue.kind == kind)
    }

    /// RPS queues of it.
    pub(super) fn steered(&self) -> impl Iterator<Item = &'a Queue> {
        let receive = |queue: &&'a Queue| queue.kind == QueueKind::Receive && !queue.cpus.is_empty();
        self.queues.iter().copied().filter(receive)
    }

    /// Everything of it that can have its CPUs changed, with those it has.
    pub(super) fn targets(&self) -> Vec<(Target, &'a [CpuId])> {
        let interrupts = self.interrupts.iter().copied();
        let mut targets: Vec<(Target, &[CpuId])> = interrupts
            .map(|interrupt| (Target::Interrupt(interrupt.number), &interrupt.affinity[..]))
            .collect();
        for queue in &self.queues {
            let target = Target::of_queue(&queue.device, queue.kind, queue.index);
            targets.extend(target.map(|target| (target, &queue.cpus[..])));
        }
        targets
    }

    /// Whether XPS has this CPU send through it.
    pub(super) fn sends_from(&self, cpu: CpuId) -> bool {
        let sends = |queue: &&Queue| queue.kind == QueueKind::Transmit && queue.cpus.binary_search(&cpu).is_ok();
        self.queues.iter().any(sends)
    }

    /// Counts bytes of threads in; [`Channel::settle`] follows when all are.
    pub(super) fn carry(&mut self, bytes_per_s: u64) {
        self.known_rate = self.known_rate.saturating_add(bytes_per_s);
    }

    /// Adds bytes a second that only new threads take.
    pub(super) fn leave_unknown(&mut self, bytes_per_s: u64) {
        self.unknown_rate = self.unknown_rate.saturating_add(bytes_per_s).min(RATE_BYTES_PER_S_MAX);
    }

    /// Counts the work for received bytes in.
    pub(super) fn process(&mut self, bytes_per_s: u64) {
        self.load = self.load.saturating_add(RECEIVE_NS_PER_KIB * (bytes_per_s >> 10));
    }

    /// Completes the channel's counts with its interrupts and with bytes that no lasting thread is known to take. Holds a
    /// channel that moves too little to be looked at.
    pub(super) fn settle(&mut self, config: &Config) {
        let counted = self.interrupts_move || self.queues.iter().any(|queue| queue.kind != QueueKind::Block);
        if counted {
            self.load = (self.load + self.arrivals_per_s.saturating_mul(INTERRUPT_NS)).min(NS_PER_S);
            let least = self
                .arrivals_per_s
                .saturating_mul(ARRIVAL_BYTES)
                .min(RATE_BYTES_PER_S_MAX);
            self.unknown_rate = self.unknown_rate.max(least.saturating_sub(self.known_rate));
        }
        let bytes_per_s = self.rate();
        if self.hold.is_none() && bytes_per_s < config.rate_bytes_per_s_min {
            self.hold = Some(Why::Small { bytes_per_s });
        }
    }
}

/// The channels of a snapshot, in the order of their first queue by device, kind and number.
pub(super) fn all<'a>(
    snapshot: &'a Snapshot,
    config: &Config,
    previous: &Previous,
    domains: &Domains,
) -> Vec<Channel<'a>> {
    let numbers: BTreeMap<u32, &Interrupt> = snapshot.interrupts.iter().map(|it| (it.number, it)).collect();
    let mut queues: Vec<&Queue> = snapshot.queues.iter().collect();
    queues.sort_by_key(|queue| (&queue.device, queue.kind, queue.index));
    let mut groups: Vec<(Vec<&Queue>, Vec<&Interrupt>)> = Vec::new();
    let mut by_number = BTreeMap::new();
    let mut by_interrupt = BTreeMap::new();
    for queue in queues {
        let interrupt = queue.interrupt.and_then(|number| numbers.get(&number).copied());
        let key = (&queue.device, queue.kind == QueueKind::Block, queue.index);
        let shared = interrupt.and_then(|interrupt| by_interrupt.get(&interrupt.number));
        let group = shared.or_else(|| by_number.get(&key)).copied().unwrap_or(groups.len());
        if group == groups.len() {
            groups.push((Vec::new(), Vec::new()));
        }
        by_number.entry(key).or_insert(group);
        groups[group].0.push(queue);
        if let Some(interrupt) = interrupt
            && by_interrupt.insert(interrupt.number, group).is_none()
        {
            groups[group].1.push(interrupt);
        }
    }
    let make = |(queues, interrupts)| channel(snapshot, config, previous, domains, queues, interrupts);
    groups.into_iter().map(make).collect()
}

/// Makes the channel of a disk's bytes from CPUs that no queue of the disk names.
pub(super) fn direct<'a>(device: &'a str, home: Option<NodeId>) -> Channel<'a> {
    Channel {
        device,
        home,
        queues: Vec::new(),
        interrupts: Vec::new(),
        origin: Position::default(),
        policy: Policy::Off,
        hold: Some(Why::NotMovable),
        interrupts_move: false,
        processing_stays: true,
        arrivals_per_s: 0,
        load: 0,
        known_rate: 0,
        unknown_rate: 0,
        is_memory: false,
    }
}

/// Makes the channel of bytes of buffers on a node. It has no name.
pub(super) fn memory<'a>(node: NodeId) -> Channel<'a> {
    Channel {
        is_memory: true,
        ..direct("", Some(node))
    }
}

fn channel<'a>(
    snapshot: &Snapshot,
    config: &Config,
    previous: &Previous,
    domains: &Domains,
    queues: Vec<&'a Queue>,
    interrupts: Vec<&'a Interrupt>,
) -> Channel<'a> {
    let device = queues[0].device.as_str();
    let mut channel = direct(device, snapshot.home(device));
    channel.policy = config.of_device(device);
    let refused = |interrupt: &&Interrupt| previous.refused(&Target::Interrupt(interrupt.number));
    channel.interrupts_move = !interrupts.is_empty() && !interrupts.iter().any(|it| it.managed || refused(it));
    channel.queues = queues;
    channel.interrupts = interrupts;
    let arrivals = channel.interrupts.iter().flat_map(|interrupt| &interrupt.arrivals);
    let arrivals = arrivals.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
    channel.arrivals_per_s = super::model::per_second(arrivals, snapshot);
    let places = channel.interrupts.iter().flat_map(|interrupt| arrives(interrupt));
    channel.origin.interrupt = domains.indices(&places.copied().collect::<Vec<_>>());
    let steered: Vec<CpuId> = channel.steered().flat_map(|queue| queue.cpus.iter().copied()).collect();
    channel.origin.processing = domains.indices(&steered);
    let moves = |queue: &Queue| {
        let target = Target::of_queue(&queue.device, queue.kind, queue.index);
        queue.movable && target.is_some_and(|target| !previous.refused(&target))
    };
    let steering_moves = channel.steered().next().is_some() && channel.steered().all(moves);
    if channel.origin.processing.is_empty() {
        channel.origin.processing = channel.origin.interrupt.clone();
        channel.processing_stays = !channel.interrupts_move;
    } else {
        channel.processing_stays = !steering_moves;
    }
    let movable = channel.interrupts_move || steering_moves;
    channel.hold = hold(&channel, movable, config, previous, domains);
    channel
}

fn hold(channel: &Channel<'_>, movable: bool, config: &Config, previous: &Previous, domains: &Domains) -> Option<Why> {
    let runs = |cpu| domains.index(cpu).is_some();
    let targets = channel.targets();
    let taken_over = |(target, now): &(Target, &[CpuId])| previous.taken_over(target, now, runs);
    let left = |(target, _): &(Target, &[CpuId])| previous.dwell_left(target, config.dwell_periods);
    let periods_left = targets.iter().map(left).max().unwrap_or(0);
    if channel.policy == Policy::Off {
        Some(Why::Off)
    } else if !movable && channel.interrupts.iter().any(|interrupt| interrupt.managed) {
        Some(Why::Managed)
    } else if !movable && targets.iter().any(|(target, _)| previous.refused(target)) {
        Some(Why::Refused)
    } else if !movable {
        Some(Why::NotMovable)
    } else if targets.iter().any(taken_over) {
        Some(Why::TakenOver)
    } else {
        (periods_left > 0).then_some(Why::Dwell { periods_left })
    }
}

/// The CPUs it arrives on. A mask of one CPU says more than where it arrived last.
fn arrives(interrupt: &Interrupt) -> &[CpuId] {
    match (interrupt.affinity.len(), interrupt.effective.is_empty()) {
        (1, _) | (_, true) => &interrupt.affinity,
        _ => &interrupt.effective,
    }
}

/// The disks with queues, each with the channel of each CPU.
pub(super) fn of_disks<'a>(channels: &[Channel<'a>], domains: &Domains) -> BTreeMap<&'a str, Vec<Option<usize>>> {
    let mut disks: BTreeMap<&str, Vec<Option<usize>>> = BTreeMap::new();
    for (index, channel) in channels.iter().enumerate() {
        for queue in channel.queues.iter().filter(|queue| queue.kind == QueueKind::Block) {
            let disk = disks
                .entry(channel.device)
                .or_insert_with(|| vec![None; domains.cpu_count()]);
            for cpu in domains.indices(&queue.cpus) {
                disk[cpu].get_or_insert(index);
            }
        }
    }
    disks
}

/// The channels with receive queues, by card and queue; of those that are known to process somewhere.
pub(super) fn by_queue<'a>(channels: &[Channel<'a>]) -> BTreeMap<(&'a str, u32), usize> {
    let channels = channels.iter().enumerate();
    let known = channels.filter(|(_, channel)| !channel.origin.processing.is_empty());
    let queues = known.flat_map(|(index, channel)| channel.queues.iter().map(move |queue| (index, *queue)));
    let receive = queues.filter(|(_, queue)| queue.kind == QueueKind::Receive);
    receive
        .map(|(index, queue)| ((&queue.device[..], queue.index), index))
        .collect()
}

/// The channels with such queues, by device, each with the same share.
pub(super) fn by_device<'a>(channels: &[Channel<'a>], kind: QueueKind) -> BTreeMap<&'a str, Vec<(usize, u64)>> {
    let mut found: BTreeMap<&str, Vec<(usize, u64)>> = BTreeMap::new();
    for (index, channel) in channels.iter().enumerate().filter(|(_, it)| it.has(kind)) {
        found.entry(channel.device).or_default().push((index, 1));
    }
    found
}

/// For each CPU, the channels whose packets are processed there, with how often.
pub(super) fn by_cpu(channels: &[Channel<'_>], domains: &Domains) -> Vec<Vec<(usize, u64)>> {
    let mut found: Vec<Vec<(usize, u64)>> = vec![Vec::new(); domains.cpu_count()];
    for (index, channel) in channels
        .iter()
        .enumerate()
        .filter(|(_, channel)| channel.has(QueueKind::Receive))
    {
        if channel.steered().next().is_some() {
            for cpu in &channel.origin.processing {
                found[*cpu].push((index, channel.arrivals_per_s.max(1)));
            }
            continue;
        }
        for (cpu, count) in channel.interrupts.iter().flat_map(|interrupt| &interrupt.arrivals) {
            if let Some(cpu) = domains.index(*cpu).filter(|_| *count > 0) {
                found[cpu].push((index, *count));
            }
        }
    }
    for (cpu, found) in found.iter_mut().enumerate().filter(|(_, found)| found.is_empty()) {
        let here = |(_, channel): &(usize, &Channel<'_>)| {
            channel.has(QueueKind::Receive) && channel.origin.processing.contains(&cpu)
        };
        let quiet = channels.iter().enumerate().filter(here);
        *found = quiet.map(|(index, _)| (index, 1)).collect();
    }
    found
}
