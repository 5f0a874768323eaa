//! Which transmit queue CPUs send through once threads and queues have moved, and that its packets are processed there.
//!
//! With XPS a flow moves to the queue of its thread's CPU, and many cards then receive it there too. When a thread or queue of a card moves, the CPUs
//! of the affected domains send through a queue processed on their node, or take an idle queue along. Queues processed elsewhere lose these CPUs.
//!
//! Invariants: where nothing of a card moves, nothing of it happens, so a settled load stays settled; no queue is left
//! without a sender, if only those beside it; what is off, held by its dwell time, refused or taken over keeps what it has,
//! and is looked at again only when something of its card moves.
//! Cost: all flows once; of a card of which something moves, its moved domains times its queues times their CPUs.

use super::model::Model;
use super::reason::{Reason, Why};
use super::report;
use super::state::State;
use super::{Config, Policy, Previous, Queue, QueueKind, Target};
use crate::CpuId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// Changes besides the moves of the search.
#[derive(Debug, Default)]
pub(super) struct Senders {
    /// Idle channels that come along, with why.
    pub(super) come: BTreeMap<usize, Reason>,
    /// New senders of transmit queues, with why, unless their channel moves.
    pub(super) set: BTreeMap<Target, (Vec<CpuId>, Reason)>,
}

/// Returns the changes that a moved placement needs, and puts idle channels that come along on their CPUs.
pub(super) fn follow(state: &mut State<'_>, previous: &Previous) -> Senders {
    let mut senders = Senders::default();
    let moved = moved(state);
    for (device, domains) in &moved {
        let card = Card::of(state.model, previous, device);
        for domain in domains {
            card.settle(state, *domain, domains, &mut senders);
        }
        card.make_way(state, domains, &mut senders);
    }
    senders
}

/// Returns by card the domains whose CPUs may need another transmit queue. Each is a domain that a thread or a queue of
/// the card moves to, a domain with threads that use a queue coming to their node, or a domain with threads whose own
/// queue goes elsewhere.
fn moved<'a>(state: &State<'a>) -> BTreeMap<&'a str, BTreeSet<usize>> {
    let model = state.model;
    let mut moved: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut goes = |channel: usize, domain: usize| {
        let it = &model.channels[channel];
        if it.policy == Policy::Local && !it.has(QueueKind::Block) {
            moved.entry(it.device).or_default().insert(domain);
        }
    };
    for (task, place) in state.place_of.iter().enumerate() {
        let it = &model.tasks[task];
        if *place != it.origin && it.policy == Policy::Local {
            for (channel, _) in &it.flows {
                goes(*channel, model.places.all[*place].domain);
            }
        }
    }
    let domains = &model.domains;
    let weights = model.channels.iter().zip(&state.weight);
    let used = weights.flat_map(|(it, weight)| {
        let used = (0..domains.len()).filter(|domain| weight[*domain] > 0);
        used.map(|domain| (it.device, domain))
    });
    let used: BTreeSet<(&str, usize)> = used.collect();
    for (channel, cpu) in state.cpu_of.iter().enumerate() {
        let Some(cpu) = *cpu else {
            continue;
        };
        goes(channel, domains.domain(cpu));
        let near = |domain: &usize| domains.domains[*domain].node == domains.node(cpu);
        let reads = |domain: &usize| state.weight[channel][*domain] > 0;
        for domain in (0..domains.len()).filter(near).filter(reads) {
            goes(channel, domain);
        }
        let it = &model.channels[channel];
        let queues = it.queues.iter().filter(|queue| queue.kind == QueueKind::Transmit);
        let left = queues.flat_map(|queue| domains.indices(&queue.cpus));
        let left: BTreeSet<usize> = left.map(|cpu| domains.domain(cpu)).collect();
        for domain in left.into_iter().filter(|domain| used.contains(&(it.device, *domain))) {
            goes(channel, domain);
        }
    }
    moved
}

/// The transmit queues of a card, by channel.
struct Card<'a> {
    device: &'a str,
    queues: Vec<Sends<'a>>,
}

struct Sends<'a> {
    channel: usize,
    target: Target,
    queue: &'a Queue,
    /// Whether its senders may be changed.
    changes: bool,
}

impl<'a> Card<'a> {
    fn of(model: &Model<'a>, previous: &Previous, device: &'a str) -> Self {
        let channels = model.channels.iter().enumerate();
        let channels = channels.filter(|(_, channel)| channel.device == device);
        let queues = channels.flat_map(|(channel, it)| it.queues.iter().map(move |queue| (channel, *queue)));
        let queues = queues.filter(|(_, queue)| queue.kind == QueueKind::Transmit);
        let sends = queues.filter_map(|(channel, queue)| {
            let target = Target::of_queue(device, queue.kind, queue.index)?;
            Some(Sends {
                channel,
                changes: changes(model, previous, channel, queue, &target),
                target,
                queue,
            })
        });
        Self {
            device,
            queues: sends.collect(),
        }
    }

    /// Sees to it that a domain's CPUs send through a queue that processes on their node, if they send through one that
    /// does not.
    fn settle(&self, state: &mut State<'_>, domain: usize, moved: &BTreeSet<usize>, senders: &mut Senders) {
        let model = state.model;
        let here = &model.domains.domains[domain];
        let cpus = model.domains.mask(&here.cpus);
        let elsewhere = |sends: &&Sends<'_>| is_far(state, sends.channel, domain) && overlap(&sends.queue.cpus, &cpus);
        if !self.queues.iter().any(|sends| elsewhere(&sends)) || self.is_served(state, domain, senders) {
            return;
        }
        let reason = Reason::NearSenders {
            device: String::from(self.device),
            node: here.node,
        };
        let near = self.queues.iter();
        let near = near.filter(|sends| sends.changes && is_near(state, sends.channel, domain));
        // Among equals the one that the fewest send through.
        let key = |sends: &&Sends<'_>| {
            let outside = !processes_in(state, sends.channel).contains(&domain);
            (outside, senders.of(state, sends).len())
        };
        if let Some(sends) = near.min_by_key(key) {
            let mut all = senders.of(state, sends);
            all.extend(cpus);
            all.sort_unstable();
            all.dedup();
            senders.set.insert(sends.target.clone(), (all, reason));
            return;
        }
        let idle = |sends: &&Sends<'_>| {
            let it = &model.channels[sends.channel];
            let small = matches!(it.hold, Some(Why::Small { .. })) && !senders.set.contains_key(&sends.target);
            let mut processes = processes_in(state, sends.channel).into_iter();
            small && it.interrupts_move && sends.changes && !processes.any(|domain| moved.contains(&domain))
        };
        let comes = self.queues.iter().filter(elsewhere).find(idle);
        if let Some(channel) = comes.map(|sends| sends.channel) {
            let before = state.cpu_of[channel];
            state.lift_channel(channel);
            let taken = |cpu: usize| state.cpu_of.iter().filter(|other| **other == Some(cpu)).count();
            let cpu = here.open.iter().copied();
            let cpu = cpu.min_by_key(|cpu| (state.channel_overload(channel, *cpu), taken(*cpu), *cpu));
            state.put_channel(channel, cpu.or(before));
            if cpu.is_some() {
                senders.come.insert(channel, reason);
            }
        }
    }

    /// Whether one of its CPUs is to send through a queue that processes on their node.
    fn is_served(&self, state: &State<'_>, domain: usize, senders: &Senders) -> bool {
        let cpus = state.model.domains.mask(&state.model.domains.domains[domain].cpus);
        let mut queues = self.queues.iter();
        queues.any(|sends| is_near(state, sends.channel, domain) && overlap(&senders.of(state, sends), &cpus))
    }

    /// Takes the CPUs of served domains from queues that process elsewhere. One that has no other gets those of where it
    /// processes.
    fn make_way(&self, state: &State<'_>, moved: &BTreeSet<usize>, senders: &mut Senders) {
        let domains = &state.model.domains;
        let served = moved.iter().copied();
        let served: Vec<usize> = served
            .filter(|domain| self.is_served(state, *domain, senders))
            .collect();
        for sends in self.queues.iter().filter(|sends| sends.changes) {
            let far = served.iter().filter(|domain| is_far(state, sends.channel, **domain));
            let far: Vec<usize> = far.copied().collect();
            let goes = |cpu: &usize| far.contains(&domains.domain(*cpu));
            let had = domains.indices(&senders.of(state, sends));
            let Some(first) = had.iter().copied().find(goes) else {
                continue;
            };
            let mut to: Vec<usize> = had.into_iter().filter(|cpu| !goes(cpu)).collect();
            if to.is_empty() {
                let processes = processes_in(state, sends.channel).into_iter();
                to = processes
                    .flat_map(|domain| domains.domains[domain].cpus.clone())
                    .collect();
                to.sort_unstable();
            }
            let reason = Reason::MadeWay {
                device: String::from(self.device),
                node: domains.node(first),
            };
            senders.set.insert(sends.target.clone(), (domains.mask(&to), reason));
        }
    }
}

impl Senders {
    /// CPUs that a queue has now, or is to have, without those that do not run.
    fn of(&self, state: &State<'_>, sends: &Sends<'_>) -> Vec<CpuId> {
        let domains = &state.model.domains;
        let set = self.set.get(&sends.target).map(|(cpus, _)| cpus.clone());
        let moved = || state.cpu_of[sends.channel].filter(|_| sends.changes);
        set.or_else(|| moved().map(|cpu| beside(state.model, cpu)))
            .unwrap_or_else(|| domains.mask(&domains.indices(&sends.queue.cpus)))
    }
}

/// Who sends through a queue that is put on a CPU: from beside it, it is as near.
pub(super) fn beside(model: &Model<'_>, cpu: usize) -> Vec<CpuId> {
    let domain = model.domains.domain(cpu);
    model.domains.mask(&model.domains.domains[domain].cpus)
}

fn changes(model: &Model<'_>, previous: &Previous, channel: usize, queue: &Queue, target: &Target) -> bool {
    let Config { dwell_periods, .. } = model.config;
    let it = &model.channels[channel];
    let held = matches!(it.hold, Some(Why::Off | Why::TakenOver | Why::Dwell { .. }));
    let runs = |cpu| model.domains.index(cpu).is_some();
    let taken = previous.taken_over(target, &queue.cpus, runs);
    let local = it.policy == Policy::Local;
    let may = report::changes(queue, target, previous);
    local && may && !held && !taken && previous.dwell_left(target, *dwell_periods) == 0
}

/// The domains in which a channel's packets are processed.
fn processes_in(state: &State<'_>, channel: usize) -> BTreeSet<usize> {
    let processing = state.position(channel).processing;
    processing
        .into_iter()
        .map(|cpu| state.model.domains.domain(cpu))
        .collect()
}

/// Whether a channel's packets are all processed on the node of a domain.
fn is_near(state: &State<'_>, channel: usize, domain: usize) -> bool {
    let (near, far) = split(state, channel, domain);
    near && !far
}

/// Whether none of them is.
fn is_far(state: &State<'_>, channel: usize, domain: usize) -> bool {
    let (near, far) = split(state, channel, domain);
    far && !near
}

/// Whether some are processed there, and some elsewhere.
fn split(state: &State<'_>, channel: usize, domain: usize) -> (bool, bool) {
    let domains = &state.model.domains.domains;
    let processes = processes_in(state, channel);
    let here = |other: &usize| domains[*other].node == domains[domain].node;
    (processes.iter().any(here), !processes.iter().all(here))
}

/// Whether two ascending lists have a CPU in common.
fn overlap(some: &[CpuId], others: &[CpuId]) -> bool {
    some.iter().any(|cpu| others.binary_search(cpu).is_ok())
}
