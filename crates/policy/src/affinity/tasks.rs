//! Threads: what each does, what it may have, and what its bytes go through.

use super::channels::{self, Channel};
use super::cost::{BUFFER_BYTES_PER_S_MAX, NS_PER_S};
use super::domains::Domains;
use super::load::Wanted;
use super::model::{Model, Places, per_second};
use super::reason::{Class, Why};
use super::{Config, Policy, Previous, QueueKind, Received, Return, Snapshot, Target, Thread};
use crate::{CpuId, NodeId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) thread: &'a Thread,
    pub(super) class: Class,
    /// The device it moves most bytes with.
    pub(super) device: Option<&'a str>,
    /// Bytes a second of its buffers, where there are more than of devices.
    pub(super) buffers: Option<Buffers>,
    pub(super) policy: Policy,
    /// Why it cannot move.
    pub(super) hold: Option<Why>,
    /// CPU time it takes, in nanoseconds a second.
    pub(super) load: u64,
    /// CPU time it wants, as [`super::load`] counts it.
    pub(super) wants: u64,
    /// Where its load counts.
    pub(super) counts: Counts,
    /// Channels its bytes of the network and of buffers go through, with bytes a second; wherever it runs.
    pub(super) flows: Vec<(usize, u64)>,
    /// Disks, with bytes a second; through which channel depends on where it runs.
    pub(super) disks: Vec<(usize, u64)>,
    /// The place it has: what its mask has of the domain in which it ran.
    pub(super) origin: usize,
    /// The places it may have, `origin` among them.
    pub(super) candidates: Vec<usize>,
}

/// Where a thread's load counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    /// At its place, which this plan chooses.
    AtPlace,
    /// On all CPUs of its mask alike: the scheduler chooses one.
    OnMask,
    /// Nowhere: the scheduler puts it where there is room on the machine.
    Nowhere,
}

/// A thread's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffers {
    /// Node with most of the bytes, the lowest of equals.
    pub(super) home: NodeId,
    /// Bytes a second of those on it.
    pub(super) there: u64,
    /// Bytes a second of all.
    pub(super) all: u64,
}

/// A thread's bytes a second.
#[derive(Default)]
struct Bytes {
    network: u64,
    disk: u64,
    memory: u64,
    flows: BTreeMap<usize, u64>,
    disks: BTreeMap<usize, u64>,
    /// Received bytes among `flows` whose queue or CPU is known.
    received: BTreeMap<usize, u64>,
}

pub(super) fn all<'a>(
    snapshot: &'a Snapshot,
    config: &Config,
    previous: &Previous,
    model: &mut Model<'a>,
) -> Vec<Task<'a>> {
    let mut threads: Vec<&Thread> = snapshot.threads.iter().collect();
    threads.sort_by_key(|thread| thread.id);
    let ways = Ways::new(snapshot, model);
    let direct: Vec<Vec<u64>> = model
        .channels
        .iter()
        .map(|channel| channel.reach(&model.domains, &channel.origin))
        .collect();
    let mut returns = previous.returns(snapshot, config);
    let quiet_count = returns.len();
    let mut sets = Sets::default();
    let mut tasks = Vec::with_capacity(threads.len());
    for thread in threads {
        let own = sets.number(&model.domains, &thread.allowed);
        let all = sets.number(&model.domains, &thread.cpuset);
        let mut bytes = attribute(thread, snapshot, model, &ways);
        let total = bytes.network.saturating_add(bytes.disk).saturating_add(bytes.memory);
        // A mask that was set keeps the thread there, and others away: however little it moves, it may be moved again.
        let least = if previous.is_bound(thread.id) {
            1
        } else {
            config.rate_bytes_per_s_min
        };
        if total < least {
            (bytes.flows, bytes.disks) = (BTreeMap::new(), BTreeMap::new());
        }
        for (channel, rate) in &bytes.received {
            model.channels[*channel].process(*rate);
        }
        let origin = origin(thread, &mut sets.all[own], &mut model.places, &model.domains);
        let device = main_device(&bytes, model);
        if thread.is_new {
            disown(&mut bytes, origin, model);
        }
        for (channel, rate) in &bytes.flows {
            model.channels[*channel].carry(*rate);
        }
        let mut task = Task {
            thread,
            class: Class::of(bytes.network, bytes.disk, bytes.memory, least),
            device,
            buffers: None,
            policy: Policy::Off,
            hold: None,
            load: per_second(thread.cpu_ns, snapshot).min(NS_PER_S),
            wants: 0,
            counts: Counts::AtPlace,
            flows: bytes.flows.into_iter().collect(),
            disks: bytes.disks.into_iter().collect(),
            origin,
            candidates: vec![origin],
        };
        task.buffers = (task.class == Class::Buffers).then(|| buffers(&task, model)).flatten();
        of_disks(task.disks.iter().copied(), origin, model, Channel::carry);
        task.policy = config.of_thread(&thread.process_name, task.device);
        let set = |number: usize| &sets.all[number].cpus[..];
        let foreign =
            || own != all && previous.foreign(thread.id, set(own), set(all), |cpus| model.domains.indices(cpus));
        let is_returned = returns[..quiet_count]
            .binary_search_by_key(&thread.id, |it| it.thread)
            .is_ok();
        let is_quiet = is_returned || total == 0 && !previous.is_unknown(thread);
        let quiet = is_quiet.then(|| previous.quiet_periods(thread.id, config));
        task.hold = hold(&task, total, config, previous, quiet.flatten(), foreign);
        if task.hold == Some(Why::Off) && !is_returned && previous.may_go_back(thread.id, config) {
            returns.push(Return {
                thread: thread.id,
                quiet_periods: None,
            });
        }
        task.counts = match &task.hold {
            None => Counts::AtPlace,
            Some(_) if sets.all[own].cpus.len() == model.domains.cpu_count() => Counts::Nowhere,
            Some(_) => Counts::OnMask,
        };
        if task.hold.is_none() {
            candidates(&mut task, &mut sets.all[all], model, &direct);
        }
        tasks.push(task);
    }
    let counted = tasks.iter().filter(|task| task.counts != Counts::Nowhere);
    let counted = counted.map(|task| task.thread).collect();
    let wanted = Wanted::new(snapshot, &model.domains, counted, config.busy_ns_max());
    for task in &mut tasks {
        task.wants = wanted.of(task.thread);
    }
    model.lacking = wanted.lacking();
    returns.sort_by_key(|one| one.thread);
    model.returns = returns;
    tasks
}

/// Which channels bytes of the network belong to.
struct Ways<'a> {
    /// Received: with how often each is interrupted there.
    by_cpu: Vec<Vec<(usize, u64)>>,
    /// Received, by card and queue.
    by_queue: BTreeMap<(&'a str, u32), usize>,
    /// Receive channels of each card, each with the same share.
    receiving: BTreeMap<&'a str, Vec<(usize, u64)>>,
    sending: BTreeMap<&'a str, Vec<(usize, u64)>>,
    /// The only card with interrupts. Virtual ones may be of other network namespaces than a thread.
    only_card: Option<&'a str>,
}

impl<'a> Ways<'a> {
    fn new(snapshot: &Snapshot, model: &Model<'a>) -> Self {
        let mut sending = channels::by_device(&model.channels, QueueKind::Transmit);
        // Queues of a bond or a bridge lead to no hardware: what it sends goes on through a card.
        let devices: BTreeSet<&str> = snapshot.topology.devices().iter().map(|it| it.name.as_str()).collect();
        sending.retain(|device, _| devices.contains(device));
        Self {
            by_cpu: channels::by_cpu(&model.channels, &model.domains),
            by_queue: channels::by_queue(&model.channels),
            receiving: channels::by_device(&model.channels, QueueKind::Receive),
            sending,
            only_card: only_card(&model.channels),
        }
    }

    /// The channel of a queue, where it is known.
    fn channel(&self, it: &Received) -> Option<usize> {
        let (device, index) = it.queue.as_ref()?;
        self.by_queue.get(&(&device[..], *index)).copied()
    }

    /// The channels whose packets the CPU processes, each with its share.
    fn shares(&self, it: &Received, domains: &Domains) -> Option<&[(usize, u64)]> {
        Some(&self.by_cpu[domains.index(it.cpu?)?])
    }
}

/// Returns a snapshot with bytes of the network at the cards and queues that plans count them for. Bytes of bonds, bridges
/// and unknown queues are at those of hardware then, as far as the CPU or the thread's other bytes tell.
pub(super) fn by_card(snapshot: &Snapshot, model: &Model<'_>) -> Snapshot {
    let ways = Ways::new(snapshot, model);
    let mut by_card = snapshot.clone();
    for thread in &mut by_card.threads {
        let mut bytes = Bytes::default();
        let mut received = Vec::new();
        for it in core::mem::take(&mut thread.received) {
            let mut parts = BTreeMap::new();
            match (ways.channel(&it), ways.shares(&it, &model.domains)) {
                (Some(channel), _) => *bytes.received.entry(channel).or_default() += it.bytes,
                (None, shares) => divide(it.bytes, shares.unwrap_or_default(), &mut parts),
            }
            for (channel, part) in &parts {
                *bytes.received.entry(*channel).or_default() += part;
                let mut queues = model.channels[*channel].queues.iter();
                let queue = queues.find(|queue| queue.kind == QueueKind::Receive);
                received.push(Received {
                    queue: queue.map(|queue| (queue.device.clone(), queue.index)),
                    bytes: *part,
                    ..it.clone()
                });
            }
            // What rounding leaves.
            let rest = it.bytes - parts.values().sum::<u64>();
            received.extend((rest > 0).then_some(Received { bytes: rest, ..it }));
        }
        thread.received = received;
        let likely = network_device(&bytes, model).or(ways.only_card);
        for it in &mut thread.sent {
            if !it
                .device
                .as_deref()
                .is_some_and(|device| ways.sending.contains_key(device))
            {
                it.device = likely.map(String::from).or(it.device.take());
            }
        }
    }
    by_card
}

/// Masks, each once, as threads mostly have the same ones.
#[derive(Default)]
struct Sets<'a> {
    numbers: BTreeMap<&'a [CpuId], usize>,
    all: Vec<Set>,
}

struct Set {
    /// Indices, ascending.
    cpus: Vec<usize>,
    /// Place of threads that ran in each domain: the domain's CPUs in the set.
    origins: BTreeMap<usize, usize>,
    /// Places in the set, by whether the policy is [`Policy::Local`] (otherwise single CPUs are wanted), and by disk.
    candidates: BTreeMap<(bool, Option<usize>), Vec<usize>>,
}

impl<'a> Sets<'a> {
    fn number(&mut self, domains: &Domains, cpus: &'a [CpuId]) -> usize {
        *self.numbers.entry(cpus).or_insert_with(|| {
            self.all.push(Set {
                cpus: domains.indices(cpus),
                origins: BTreeMap::new(),
                candidates: BTreeMap::new(),
            });
            self.all.len() - 1
        })
    }
}

/// Returns the place of the CPUs that the thread's mask has in the domain in which the thread ran.
fn origin(thread: &Thread, own: &mut Set, places: &mut Places, domains: &Domains) -> usize {
    let Set { cpus, origins, .. } = own;
    let ran = domains.index(thread.cpu).filter(|cpu| cpus.binary_search(cpu).is_ok());
    let ran = ran.or_else(|| cpus.first().copied()).unwrap_or(0);
    let domain = domains.domain(ran);
    *origins.entry(domain).or_insert_with(|| {
        let inside = cpus.iter().copied().filter(|cpu| domains.domain(*cpu) == domain);
        let mut inside: Vec<usize> = inside.collect();
        if inside.is_empty() {
            inside.push(ran);
        }
        places.number(domains, inside)
    })
}

/// Which channels and disks a thread's bytes belong to.
fn attribute(thread: &Thread, snapshot: &Snapshot, model: &Model<'_>, ways: &Ways<'_>) -> Bytes {
    let mut bytes = Bytes::default();
    for entry in &thread.disk {
        let rate = per_second(entry.bytes, snapshot);
        bytes.disk = bytes.disk.saturating_add(rate);
        // Bytes of no known disk are the only disk's, where there is only one.
        let disk = match (&entry.device, model.disks.len()) {
            (Some(name), _) => model.disks.binary_search_by(|disk| disk.name.cmp(name)).ok(),
            (None, 1) => Some(0),
            (None, _) => None,
        };
        if let Some(disk) = disk {
            *bytes.disks.entry(disk).or_default() += rate;
        }
    }
    for (node, count) in &thread.memory {
        if let Some(channel) = model.memories.get(node) {
            let rate = per_second(*count, snapshot).min(BUFFER_BYTES_PER_S_MAX);
            bytes.memory = bytes.memory.saturating_add(rate);
            *bytes.flows.entry(*channel).or_default() += rate;
        }
    }
    let mut unplaced = 0;
    for it in &thread.received {
        let rate = per_second(it.bytes, snapshot);
        bytes.network = bytes.network.saturating_add(rate);
        // A queue of a bond or a bridge has no channel: of which the bytes are, only the CPU tells.
        match (ways.channel(it), ways.shares(it, &model.domains)) {
            (Some(channel), _) => *bytes.received.entry(channel).or_default() += rate,
            (None, Some(shares)) => divide(rate, shares, &mut bytes.received),
            (None, None) => unplaced += rate,
        }
    }
    for (channel, rate) in &bytes.received {
        *bytes.flows.entry(*channel).or_default() += rate;
    }
    let likely = network_device(&bytes, model).or(ways.only_card);
    let sending = |device: Option<&str>| ways.sending.get(device?);
    for entry in &thread.sent {
        let rate = per_second(entry.bytes, snapshot);
        bytes.network = bytes.network.saturating_add(rate);
        let Some(all) = sending(entry.device.as_deref()).or_else(|| sending(likely)) else {
            continue;
        };
        let chosen = all.iter().copied();
        let chosen: Vec<(usize, u64)> = chosen
            .filter(|(channel, _)| model.channels[*channel].sends_from(thread.cpu))
            .collect();
        divide(rate, if chosen.is_empty() { all } else { &chosen }, &mut bytes.flows);
    }
    if let Some(receiving) = likely.and_then(|device| ways.receiving.get(device)) {
        divide(unplaced, receiving, &mut bytes.flows);
    }
    bytes
}

/// Adds a rate to channels, by their shares.
fn divide(rate: u64, shares: &[(usize, u64)], to: &mut BTreeMap<usize, u64>) {
    let sum = shares.iter().fold(0, |sum: u64, (_, share)| sum.saturating_add(*share));
    for (channel, share) in shares {
        let part = u128::from(rate) * u128::from(*share) / u128::from(sum.max(1));
        let part = u64::try_from(part).expect("a part of a u64 fits a u64");
        if part > 0 {
            *to.entry(*channel).or_default() += part;
        }
    }
}

/// The network card that a thread receives most from.
fn network_device<'a>(bytes: &Bytes, model: &Model<'a>) -> Option<&'a str> {
    let most = bytes
        .received
        .iter()
        .max_by_key(|(channel, rate)| (**rate, usize::MAX - **channel));
    most.map(|(channel, _)| model.channels[*channel].device)
}

fn only_card<'a>(channels: &[Channel<'a>]) -> Option<&'a str> {
    let carries = |channel: &&Channel<'_>| channel.has(QueueKind::Receive) || channel.has(QueueKind::Transmit);
    let mut cards = channels
        .iter()
        .filter(carries)
        .filter(|channel| !channel.interrupts.is_empty());
    let first = cards.next()?.device;
    cards.all(|channel| channel.device == first).then_some(first)
}

/// Among equals the first by name.
fn main_device<'a>(bytes: &Bytes, model: &Model<'a>) -> Option<&'a str> {
    let mut rates: BTreeMap<&str, u64> = BTreeMap::new();
    for (channel, rate) in &bytes.flows {
        let channel = &model.channels[*channel];
        if !channel.is_memory {
            *rates.entry(channel.device).or_default() += rate;
        }
    }
    for (disk, rate) in &bytes.disks {
        *rates.entry(model.disks[*disk].name).or_default() += rate;
    }
    let most = rates.iter().rev().max_by_key(|(_, rate)| **rate);
    most.map(|(device, _)| *device)
}

fn buffers(task: &Task<'_>, model: &Model<'_>) -> Option<Buffers> {
    let rates = task.flows.iter();
    let memory = rates.filter(|(channel, _)| model.channels[*channel].is_memory);
    let (channel, there) = memory.clone().rev().max_by_key(|(_, rate)| *rate)?;
    Some(Buffers {
        home: model.channels[*channel].home?,
        there: *there,
        all: memory.map(|(_, rate)| *rate).fold(0, u64::saturating_add),
    })
}

/// Takes from a new thread its bytes of devices, whose queues then stay near the device: the thread may be gone before they have come,
/// and the next thread is elsewhere.
fn disown(bytes: &mut Bytes, origin: usize, model: &mut Model<'_>) {
    bytes.flows.retain(|channel, rate| {
        let channel = &mut model.channels[*channel];
        if !channel.is_memory {
            channel.leave_unknown(*rate);
        }
        channel.is_memory
    });
    of_disks(core::mem::take(&mut bytes.disks), origin, model, Channel::leave_unknown);
}

/// Tells the channels of a place's CPUs of bytes of disks.
fn of_disks<'a>(
    disks: impl IntoIterator<Item = (usize, u64)>,
    origin: usize,
    model: &mut Model<'a>,
    tell: fn(&mut Channel<'a>, u64),
) {
    let cpus = &model.places.all[origin].cpus;
    for (disk, rate) in disks {
        for cpu in cpus {
            let channel = model.disks[disk].channel_of[*cpu];
            tell(&mut model.channels[channel], rate / cpus.len() as u64);
        }
    }
}

fn hold(
    task: &Task<'_>,
    bytes_per_s: u64,
    config: &Config,
    previous: &Previous,
    quiet: Option<u64>,
    foreign: impl Fn() -> bool,
) -> Option<Why> {
    let target = Target::Thread(task.thread.id);
    let periods_left = previous.dwell_left(&target, config.dwell_periods);
    if task.policy == Policy::Off {
        Some(Why::Off)
    } else if previous.refused(&target) {
        Some(Why::Refused)
    } else if let Some(periods) = quiet.filter(|_| !foreign()) {
        Some(Why::Quiet { periods })
    } else if task.class == Class::Compute && task.thread.is_unread {
        Some(Why::Unread)
    } else if bytes_per_s == 0 {
        Some(Why::Compute)
    } else if task.class == Class::Compute {
        Some(Why::Small { bytes_per_s })
    } else if task.thread.is_new {
        Some(Why::New)
    } else if foreign() {
        Some(Why::Foreign)
    } else if task.device.is_none() && !(task.buffers.is_some() && task.policy == Policy::Local) {
        Some(Why::DeviceUnknown)
    } else {
        (periods_left > 0).then_some(Why::Dwell { periods_left })
    }
}

/// The places its cpuset has.
fn candidates(task: &mut Task<'_>, all: &mut Set, model: &mut Model<'_>, reach: &[Vec<u64>]) {
    let is_local = task.policy == Policy::Local;
    let disk = task.disks.iter().rev().max_by_key(|(_, rate)| *rate);
    let disk = disk.map(|(disk, _)| *disk).filter(|_| is_local);
    let Set { cpus, candidates, .. } = all;
    let places = candidates.entry((is_local, disk)).or_insert_with(|| match is_local {
        true => near(cpus, disk, model, reach),
        false => {
            let singles = cpus.iter().map(|cpu| vec![*cpu]);
            singles.map(|cpu| model.places.number(&model.domains, cpu)).collect()
        }
    });
    task.candidates.extend_from_slice(places);
    task.candidates.sort_unstable();
    task.candidates.dedup();
    if task.candidates.len() == 1 {
        task.hold = Some(Why::OnePlace);
    }
}

/// Returns the place of each domain's CPUs among `cpus`. Adds the place of its CPUs from which the disk is nearest,
/// where these are fewer.
fn near(cpus: &[usize], disk: Option<usize>, model: &mut Model<'_>, reach: &[Vec<u64>]) -> Vec<usize> {
    let mut places = Vec::new();
    for (domain, part) in model.domains.parts(cpus) {
        if let Some(disk) = disk {
            let cost = |cpu: &usize| reach[model.disks[disk].channel_of[*cpu]][domain];
            let least = part.iter().map(cost).min();
            let nearest: Vec<usize> = part.iter().copied().filter(|cpu| Some(cost(cpu)) == least).collect();
            if nearest.len() < part.len() {
                places.push(model.places.number(&model.domains, nearest));
            }
        }
        places.push(model.places.number(&model.domains, part));
    }
    places
}
