//! The steps of the search: one thread or one channel goes somewhere, and what that saves.

use crate::affinity::Policy;
use crate::affinity::model::Model;
use crate::affinity::state::{Delta, State};
use alloc::vec::Vec;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    Channel(usize),
    Task(usize),
}

/// Tasks and channels that the search may move, the heaviest first.
pub(super) struct Free {
    pub(super) tasks: Vec<usize>,
    pub(super) channels: Vec<usize>,
}

impl Free {
    /// Everything that has policy local and is not held.
    pub(super) fn of(model: &Model<'_>) -> Self {
        let local = |policy| policy == Policy::Local;
        let tasks = model.tasks.iter().enumerate();
        let mut tasks: Vec<usize> = tasks
            .filter(|(_, task)| task.hold.is_none() && local(task.policy))
            .map(|(index, _)| index)
            .collect();
        let rate = |task: &usize| -> u64 {
            let task = &model.tasks[*task];
            task.flows.iter().chain(&task.disks).map(|(_, rate)| rate).sum()
        };
        tasks.sort_by_key(|task| (core::cmp::Reverse(rate(task)), *task));
        let channels = model.channels.iter().enumerate();
        let mut channels: Vec<usize> = channels
            .filter(|(_, channel)| channel.hold.is_none() && local(channel.policy))
            .map(|(index, _)| index)
            .collect();
        channels.sort_by_key(|channel| (core::cmp::Reverse(model.channels[*channel].rate()), *channel));
        Self { tasks, channels }
    }

    pub(super) fn items(&self) -> Vec<Item> {
        let channels = self.channels.iter().map(|channel| Item::Channel(*channel));
        channels
            .chain(self.tasks.iter().map(|task| Item::Task(*task)))
            .collect()
    }
}

/// Moves something to where it is best; what that saves.
pub(super) fn step(state: &mut State<'_>, item: Item) -> Delta {
    match item {
        Item::Channel(channel) => step_channel(state, channel),
        Item::Task(task) => step_task(state, task),
    }
}

/// Where else something may be, as [`where_is`] tells it.
pub(super) fn options(state: &State<'_>, item: Item) -> Vec<Option<usize>> {
    let model = state.model;
    let now = where_is(state, item);
    let all: Vec<Option<usize>> = match item {
        Item::Task(task) => model.tasks[task].candidates.iter().copied().map(Some).collect(),
        Item::Channel(_) => model.domains.open().into_iter().map(Some).chain([None]).collect(),
    };
    all.into_iter().filter(|at| *at != now).collect()
}

/// Moves a task to the best of its places; what that saves.
fn step_task(state: &mut State<'_>, task: usize) -> Delta {
    let model = state.model;
    let now = state.place_of[task];
    let cost = state.lift_task(task);
    let mut best = (cost, 0, now);
    for place in model.tasks[task]
        .candidates
        .iter()
        .copied()
        .filter(|place| *place != now)
    {
        let found = state.task_at(task, place);
        let found = (found, state.load.total[model.places.all[place].domain], place);
        // Only what saves something moves; among the equally good the less busy.
        if found.0 < cost && (best.2 == now || found < best) {
            best = found;
        }
    }
    state.put_task(task, best.2);
    cost - best.0
}

/// Whether a task would be better elsewhere by its bytes and the price of a move. After single steps only overload keeps it.
pub(super) fn lacks_room(state: &State<'_>, task: usize) -> bool {
    let it = &state.model.tasks[task];
    let now = state.place_of[task];
    let price = if now == it.origin { state.task_price[task] } else { 0 };
    let here = state.flow_cost(task, now);
    let saves = |place: &usize| here.saturating_sub(state.flow_cost(task, *place));
    it.candidates
        .iter()
        .any(|place| Delta::try_from(saves(place)).is_ok_and(|saves| saves > price))
}

/// Moves a channel to the best CPU, or back; what that saves.
fn step_channel(state: &mut State<'_>, channel: usize) -> Delta {
    let model = state.model;
    let now = state.cpu_of[channel];
    let cost = state.lift_channel(channel);
    let mut best = (cost, now);
    for domain in 0..model.domains.len() {
        let cpus = &model.domains.domains[domain].open;
        let Some(first) = cpus.first() else { continue };
        let bytes = state.channel_at(channel, *first);
        if bytes >= best.0 {
            continue;
        }
        let overload = |cpu: &usize| (state.channel_overload(channel, *cpu), state.load.bound[*cpu], *cpu);
        if let Some((more, _, cpu)) = cpus
            .iter()
            .map(overload)
            .min()
            .filter(|(more, ..)| bytes + more < best.0)
        {
            best = (bytes + more, Some(cpu));
        }
    }
    if now.is_some() {
        // Where it was found is a place too, and costs no move.
        state.put_channel(channel, None);
        let back = state.lift_channel(channel);
        if back <= best.0 {
            best = (back, None);
        }
    }
    state.put_channel(channel, best.1);
    cost - best.0
}

/// Moves a task to a domain if it may, whatever that costs; what that saves.
fn force_task(state: &mut State<'_>, task: usize, domain: usize) -> Delta {
    let model = state.model;
    let cost = state.lift_task(task);
    let now = state.place_of[task];
    let there = model.tasks[task].candidates.iter().copied();
    let there = there.filter(|place| model.places.all[*place].domain == domain);
    let best = there.map(|place| (state.task_at(task, place), place)).min();
    let (found, place) = best.unwrap_or((cost, now));
    state.put_task(task, place);
    cost - found
}

/// Moves a channel to a domain, whatever that costs; what that saves.
fn force_channel(state: &mut State<'_>, channel: usize, domain: usize) -> Delta {
    let model = state.model;
    let inside = |cpu: &usize| model.domains.domain(*cpu) == domain;
    let origin = &model.channels[channel].origin.processing;
    let now = state.cpu_of[channel];
    let already = now.map_or_else(|| !origin.is_empty() && origin.iter().all(inside), |cpu| inside(&cpu));
    if already {
        return 0;
    }
    let cpus = &model.domains.domains[domain].open;
    if cpus.is_empty() {
        return 0;
    }
    let cost = state.lift_channel(channel);
    let overload = |cpu: &usize| (state.channel_overload(channel, *cpu), state.load.bound[*cpu], *cpu);
    let (more, _, cpu) = cpus.iter().map(overload).min().expect("looked at above");
    let found = state.channel_at(channel, cpu) + more;
    state.put_channel(channel, Some(cpu));
    cost - found
}

/// The domain it is in; none of a channel that is in several.
pub(super) fn domain(state: &State<'_>, item: Item) -> Option<usize> {
    let model = state.model;
    match item {
        Item::Task(task) => Some(model.places.all[state.place_of[task]].domain),
        Item::Channel(channel) => {
            let position = state.position(channel).processing;
            let first = model.domains.domain(*position.first()?);
            position
                .iter()
                .all(|cpu| model.domains.domain(*cpu) == first)
                .then_some(first)
        }
    }
}

/// A place or a CPU, as [`State::place_of`] and [`State::cpu_of`] have it.
pub(super) fn where_is(state: &State<'_>, item: Item) -> Option<usize> {
    match item {
        Item::Task(task) => Some(state.place_of[task]),
        Item::Channel(channel) => state.cpu_of[channel],
    }
}

pub(super) fn put_back(state: &mut State<'_>, item: Item, at: Option<usize>) {
    match item {
        Item::Task(task) => {
            state.lift_task(task);
            state.put_task(task, at.expect("a lifted task had a place"));
        }
        Item::Channel(channel) => {
            state.lift_channel(channel);
            state.put_channel(channel, at);
        }
    }
}

/// Moves something to a domain if it may, whatever that costs; what that saves.
pub(super) fn force(state: &mut State<'_>, item: Item, domain: usize) -> Delta {
    match item {
        Item::Task(task) => force_task(state, task, domain),
        Item::Channel(channel) => force_channel(state, channel, domain),
    }
}
