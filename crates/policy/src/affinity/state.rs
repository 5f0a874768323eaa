//! Who is where, and what that costs; changed step by step, at the price of what a step touches.

use super::channels::Position;
use super::cost::{Cost, OVERLOAD_PER_NS};
use super::load::Load;
use super::model::Model;
use super::tasks::Counts;
use crate::CpuId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Saved costs and prices, which may be negative.
pub(super) type Delta = i64;

#[derive(Clone, Debug)]
pub(super) struct State<'a> {
    pub(super) model: &'a Model<'a>,
    /// Place of each task.
    pub(super) place_of: Vec<usize>,
    /// CPU that each channel was put on; none for a channel that is where it was found.
    pub(super) cpu_of: Vec<Option<usize>>,
    /// Result of [`super::channels::Channel::reach`] for each channel at its current position.
    reach: Vec<Vec<u64>>,
    /// Bytes a second that threads in each domain move through each channel, by channel, then domain.
    pub(super) weight: Vec<Vec<u64>>,
    pub(super) load: Load,
    /// Price of moving each task: a move must save more.
    pub(super) task_price: Vec<Delta>,
    /// Price of moving each channel: a move must save more.
    pub(super) channel_price: Vec<Delta>,
    /// How much was evaluated so far.
    pub(super) work: u64,
}

impl<'a> State<'a> {
    /// Everything where it was found.
    pub(super) fn new(model: &'a Model<'a>) -> Self {
        let per_cpu = model.config.busy_ns_max();
        let channels = model.channels.iter();
        let mut state = Self {
            model,
            place_of: model.tasks.iter().map(|task| task.origin).collect(),
            cpu_of: vec![None; model.channels.len()],
            reach: channels
                .map(|channel| channel.reach(&model.domains, &channel.origin))
                .collect(),
            weight: vec![vec![0; model.domains.len()]; model.channels.len()],
            load: Load::new(&model.domains, per_cpu),
            task_price: Vec::new(),
            channel_price: Vec::new(),
            work: 0,
        };
        for task in 0..model.tasks.len() {
            state.enter(task, state.place_of[task]);
        }
        for channel in 0..model.channels.len() {
            state.occupy(channel, true);
        }
        state.add_masks();
        state.load.bear(&model.domains, &model.lacking);
        let percent = u64::from(model.config.hysteresis_percent);
        let share = |cost: u64| (cost / 100).saturating_mul(percent);
        let price = |cost: u64| Delta::try_from(model.config.migration_price.0.saturating_add(share(cost)));
        let price = |cost: u64| price(cost).unwrap_or(Delta::MAX / 4).min(Delta::MAX / 4);
        let tasks = 0..model.tasks.len();
        let prices = tasks.map(|task| price(state.flow_cost(task, state.place_of[task])));
        state.task_price = prices.collect();
        let channels = 0..model.channels.len();
        state.channel_price = channels.map(|channel| price(state.channel_cost(channel))).collect();
        state
    }

    /// Returns this placement for a model that differs in the rates of bytes only.
    pub(super) fn of<'b>(&self, model: &'b Model<'b>) -> State<'b> {
        let mut state = State::new(model);
        for (task, place) in self.place_of.iter().enumerate() {
            state.leave(task, state.place_of[task]);
            state.put_task(task, *place);
        }
        for (channel, cpu) in self.cpu_of.iter().enumerate() {
            state.occupy(channel, false);
            state.put_channel(channel, *cpu);
        }
        state
    }

    /// Returns the cost of all bytes and overloads.
    pub(super) fn cost(&self) -> Cost {
        let tasks = (0..self.place_of.len()).map(|task| self.flow_cost(task, self.place_of[task]));
        let channels = self.model.channels.iter().zip(&self.reach);
        let unknown = channels.map(|(channel, reach)| channel.unknown_rate.saturating_mul(beyond(reach)));
        let sum = tasks.chain(unknown).fold(0, u64::saturating_add);
        Cost(sum).plus(Cost::of_overload(self.load.all_over()))
    }

    /// Returns the value that the search minimizes: the cost, plus the prices of the moves.
    pub(super) fn value(&self) -> Delta {
        let tasks = (0..self.place_of.len()).filter(|task| self.place_of[*task] != self.model.tasks[*task].origin);
        let channels = (0..self.cpu_of.len()).filter(|channel| self.cpu_of[*channel].is_some());
        let prices = tasks.map(|task| self.task_price[task]);
        let prices = prices.chain(channels.map(|channel| self.channel_price[channel]));
        let cost = Delta::try_from(self.cost().0).unwrap_or(Delta::MAX);
        prices.fold(cost, Delta::saturating_add)
    }

    /// Returns the cost of a task's bytes from a place.
    pub(super) fn flow_cost(&self, task: usize, place: usize) -> u64 {
        let domain = self.model.places.all[place].domain;
        let mut cost = 0;
        self.model
            .pulls(task, place, |channel, rate| cost += rate * self.reach[channel][domain]);
        cost
    }

    /// Returns the cost of moving `rate` bytes a second through a channel from a domain.
    pub(super) fn pull_cost(&self, channel: usize, domain: usize, rate: u64) -> Delta {
        signed(rate * self.reach[channel][domain])
    }

    /// Returns the cost of a channel's bytes where the channel is.
    pub(super) fn channel_cost(&self, channel: usize) -> u64 {
        self.channel_cost_at(channel, &self.reach[channel])
    }

    fn channel_cost_at(&self, channel: usize, reach: &[u64]) -> u64 {
        let known: u64 = self.weight[channel]
            .iter()
            .zip(reach)
            .map(|(rate, reach)| rate * reach)
            .sum();
        known + self.model.channels[channel].unknown_rate * beyond(reach)
    }

    /// Takes a task out of where it is. [`State::put_task`] follows. What it cost there, with the price if it was moved.
    pub(super) fn lift_task(&mut self, task: usize) -> Delta {
        let place = self.place_of[task];
        self.leave(task, place);
        self.task_at(task, place)
    }

    /// Returns the cost of a lifted task at a place, with the overload it adds and the price of moving.
    pub(super) fn task_at(&mut self, task: usize, place: usize) -> Delta {
        let (model, at) = (self.model, &self.model.places.all[place]);
        self.work += model.tasks[task].flows.len() as u64 + model.tasks[task].disks.len() as u64 * 4 + 4;
        let more = self.load.more(at.domain, &at.cpus, at.whole, model.tasks[task].wants);
        let moved = if place == model.tasks[task].origin {
            0
        } else {
            self.task_price[task]
        };
        signed(self.flow_cost(task, place)) + signed(more * OVERLOAD_PER_NS) + moved
    }

    /// Puts a lifted task down.
    pub(super) fn put_task(&mut self, task: usize, place: usize) {
        self.enter(task, place);
        self.place_of[task] = place;
    }

    /// Takes a channel out of where it is, as [`State::lift_task`].
    pub(super) fn lift_channel(&mut self, channel: usize) -> Delta {
        self.occupy(channel, false);
        let more = self.overload_on(channel, &self.position(channel).processing);
        let moved = self.cpu_of[channel].map_or(0, |_| self.channel_price[channel]);
        signed(self.channel_cost(channel)) + more + moved
    }

    /// Returns the cost of a lifted channel's bytes on a CPU, with the price of the move, without overload.
    pub(super) fn channel_at(&mut self, channel: usize, cpu: usize) -> Delta {
        self.work += self.model.domains.len() as u64 + 4;
        let it = &self.model.channels[channel];
        let reach = it.reach(&self.model.domains, &it.at(cpu));
        signed(self.channel_cost_at(channel, &reach)) + self.channel_price[channel]
    }

    /// Returns the cost of the overload that a lifted channel would add on a CPU.
    pub(super) fn channel_overload(&self, channel: usize, cpu: usize) -> Delta {
        self.overload_on(channel, &self.model.channels[channel].at(cpu).processing)
    }

    /// CPUs of one domain have their overload in common, so what each adds is told by adding it.
    fn overload_on(&self, channel: usize, cpus: &[usize]) -> Delta {
        let each = self.model.channels[channel].load / cpus.len().max(1) as u64;
        if let [cpu] = cpus {
            let more = self.load.more(self.model.domains.domain(*cpu), cpus, false, each);
            return signed(more * OVERLOAD_PER_NS);
        }
        let mut load = self.load.clone();
        for cpu in cpus {
            load.add(self.model.domains.domain(*cpu), &[*cpu], false, each);
        }
        signed((load.all_over() - self.load.all_over()) * OVERLOAD_PER_NS)
    }

    /// Puts a lifted channel on a CPU, or back where it was found.
    pub(super) fn put_channel(&mut self, channel: usize, cpu: Option<usize>) {
        self.cpu_of[channel] = cpu;
        let position = self.position(channel);
        self.reach[channel] = self.model.channels[channel].reach(&self.model.domains, &position);
        self.occupy(channel, true);
    }

    /// Where a channel is.
    pub(super) fn position(&self, channel: usize) -> Position {
        let it = &self.model.channels[channel];
        self.cpu_of[channel].map_or_else(|| it.origin.clone(), |cpu| it.at(cpu))
    }

    fn enter(&mut self, task: usize, place: usize) {
        let (model, at) = (self.model, &self.model.places.all[place]);
        model.pulls(task, place, |channel, rate| self.weight[channel][at.domain] += rate);
        if model.tasks[task].counts == Counts::AtPlace {
            self.load.add(at.domain, &at.cpus, at.whole, model.tasks[task].wants);
        }
    }

    fn leave(&mut self, task: usize, place: usize) {
        let (model, at) = (self.model, &self.model.places.all[place]);
        model.pulls(task, place, |channel, rate| self.weight[channel][at.domain] -= rate);
        if model.tasks[task].counts == Counts::AtPlace {
            self.load.remove(at.domain, &at.cpus, at.whole, model.tasks[task].wants);
        }
    }

    /// Adds the load of threads that count on all CPUs of their masks.
    fn add_masks(&mut self) {
        let model = self.model;
        let mut wanted: BTreeMap<&[CpuId], u64> = BTreeMap::new();
        for task in model.tasks.iter().filter(|task| task.counts == Counts::OnMask) {
            *wanted.entry(&task.thread.allowed).or_default() += task.wants;
        }
        for (mask, wants) in wanted {
            let cpus = model.domains.indices(mask);
            for (domain, part) in model.domains.parts(&cpus) {
                let whole = part.len() == model.domains.domains[domain].cpus.len();
                let load = wants / cpus.len() as u64 * part.len() as u64;
                self.load.add(domain, &part, whole, load);
            }
        }
    }

    fn occupy(&mut self, channel: usize, enters: bool) {
        let cpus = self.position(channel).processing;
        let each = self.model.channels[channel].load / cpus.len().max(1) as u64;
        for cpu in &cpus {
            let domain = self.model.domains.domain(*cpu);
            match enters {
                true => self.load.add(domain, &[*cpu], false, each),
                false => self.load.remove(domain, &[*cpu], false, each),
            }
        }
    }
}

/// Returns the cost of a byte beyond the CPU that processes it: the last of [`super::channels::Channel::reach`].
fn beyond(reach: &[u64]) -> u64 {
    reach.last().copied().unwrap_or(0)
}

fn signed(cost: u64) -> Delta {
    Delta::try_from(cost).unwrap_or(Delta::MAX / 4)
}
