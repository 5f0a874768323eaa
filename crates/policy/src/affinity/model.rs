//! A snapshot made ready for the search: everything by index, in an order that does not depend on the snapshot's.

use super::channels::{self, Channel};
use super::cost::{NS_PER_S, RATE_BYTES_PER_S_MAX};
use super::domains::Domains;
use super::tasks::{self, Task};
use super::{Config, Previous, Return, Snapshot};
use crate::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// CPUs of one domain.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) domain: usize,
    /// Indices, ascending.
    pub(super) cpus: Vec<usize>,
    /// Whether these are all of the domain.
    pub(super) whole: bool,
}

/// Every place somebody may have; each once.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) all: Vec<Place>,
    known: BTreeMap<Vec<usize>, usize>,
}

impl Places {
    /// The number of these CPUs' place. They are of one domain, and at least one.
    pub(super) fn number(&mut self, domains: &Domains, cpus: Vec<usize>) -> usize {
        if let Some(number) = self.known.get(&cpus) {
            return *number;
        }
        let domain = domains.domain(cpus[0]);
        self.known.insert(cpus.clone(), self.all.len());
        self.all.push(Place {
            domain,
            whole: cpus.len() == domains.domains[domain].cpus.len(),
            cpus,
        });
        self.all.len() - 1
    }

    /// The number of the place of one CPU, where somebody may have it.
    pub(super) fn single(&self, cpu: usize) -> Option<usize> {
        self.known.get(&[cpu][..]).copied()
    }
}

/// A disk that threads move bytes with.
#[derive(Debug)]
pub(super) struct Disk<'a> {
    pub(super) name: &'a str,
    /// The channel of each CPU.
    pub(super) channel_of: Vec<usize>,
    /// Channels of each place's CPUs, with the number of CPUs that use each channel.
    paths: Vec<Vec<(usize, u64)>>,
}

#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) config: &'a Config,
    pub(super) domains: Domains,
    pub(super) places: Places,
    pub(super) channels: Vec<Channel<'a>>,
    pub(super) disks: Vec<Disk<'a>>,
    /// Channel of each node's memory; empty where no thread's buffers are known.
    pub(super) memories: BTreeMap<NodeId, usize>,
    pub(super) tasks: Vec<Task<'a>>,
    /// Domains whose CPUs are too busy for threads that run there.
    pub(super) lacking: Vec<bool>,
    /// Threads that get their masks back.
    pub(super) returns: Vec<Return>,
}

impl<'a> Model<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, config: &'a Config, previous: &Previous) -> Self {
        let domains = Domains::new(snapshot);
        let mut model = Self {
            config,
            channels: channels::all(snapshot, config, previous, &domains),
            lacking: vec![false; domains.len()],
            returns: Vec::new(),
            domains,
            places: Places::default(),
            disks: Vec::new(),
            memories: BTreeMap::new(),
            tasks: Vec::new(),
        };
        if model.domains.cpu_count() == 0 {
            return model;
        }
        model.find_disks(snapshot);
        if snapshot.threads.iter().any(|thread| !thread.memory.is_empty()) {
            for node in snapshot.topology.node_ids() {
                model.memories.insert(node, model.channels.len());
                model.channels.push(channels::memory(node));
            }
        }
        model.tasks = tasks::all(snapshot, config, previous, &mut model);
        for channel in &mut model.channels {
            channel.settle(config);
        }
        for disk in &mut model.disks {
            disk.paths = model
                .places
                .all
                .iter()
                .map(|place| path(&disk.channel_of, place))
                .collect();
        }
        model
    }

    /// Disks with queues, then those that only threads name.
    fn find_disks(&mut self, snapshot: &'a Snapshot) {
        let mut names = channels::of_disks(&self.channels, &self.domains);
        let named = snapshot.threads.iter().flat_map(|thread| &thread.disk);
        for name in named.filter_map(|disk| disk.device.as_deref()) {
            names
                .entry(name)
                .or_insert_with(|| vec![None; self.domains.cpu_count()]);
        }
        for (name, channel_of) in names {
            let direct = self.channels.len();
            self.channels.push(channels::direct(name, snapshot.home(name)));
            self.disks.push(Disk {
                name,
                channel_of: channel_of
                    .into_iter()
                    .map(|channel| channel.unwrap_or(direct))
                    .collect(),
                paths: Vec::new(),
            });
        }
    }

    /// Calls `each` with every channel that the task's bytes go through from a place, and the bytes a second.
    pub(super) fn pulls(&self, task: usize, place: usize, mut each: impl FnMut(usize, u64)) {
        let task = &self.tasks[task];
        for (channel, rate) in &task.flows {
            each(*channel, *rate);
        }
        let width = self.places.all[place].cpus.len() as u64;
        for (disk, rate) in &task.disks {
            for (channel, count) in &self.disks[*disk].paths[place] {
                each(*channel, rate * count / width);
            }
        }
    }

    pub(super) fn node_of(&self, place: usize) -> NodeId {
        self.domains.domains[self.places.all[place].domain].node
    }
}

fn path(channel_of: &[usize], place: &Place) -> Vec<(usize, u64)> {
    let mut path: Vec<(usize, u64)> = Vec::new();
    for cpu in &place.cpus {
        match path.iter_mut().find(|(channel, _)| *channel == channel_of[*cpu]) {
            Some((_, count)) => *count += 1,
            None => path.push((channel_of[*cpu], 1)),
        }
    }
    path
}

/// A count of the period as one of a second.
pub(super) fn per_second(count: u64, snapshot: &Snapshot) -> u64 {
    let rate = u128::from(count) * u128::from(NS_PER_S) / u128::from(snapshot.period_ns.max(1));
    u64::try_from(rate).map_or(RATE_BYTES_PER_S_MAX, |rate| rate.min(RATE_BYTES_PER_S_MAX))
}
