//! The policies that are rules and no search: spread, pack and single-core, as the paper compares them.
//!
//! What is on one CPU already stays there as long as the rule allows it, so that a thread that comes or goes does not
//! move the others. What cannot move now, but is there, counts.

use super::Policy;
use super::model::Model;
use super::state::State;
use crate::NodeId;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

/// A channel or a task, by its number in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Channel(usize),
    Task(usize),
}

/// Puts everything with such a policy where its rule wants it.
pub(super) fn apply(state: &mut State<'_>) {
    let model = state.model;
    let channels = (0..model.channels.len()).filter(|index| model.channels[*index].policy == Policy::Spread);
    spread(state, &channels.map(Item::Channel).collect::<Vec<_>>());
    let tasks = (0..model.tasks.len()).filter(|index| model.tasks[*index].policy == Policy::Spread);
    spread(state, &tasks.map(Item::Task).collect::<Vec<_>>());
    let mut taken = vec![0; model.domains.cpu_count()];
    for device in devices(model) {
        pack(
            state,
            &of_device(model, device, Policy::Pack),
            &near(model, device),
            &mut taken,
        );
        if let Some(cpu) = near(model, device).first() {
            for item in of_device(model, device, Policy::SingleCore) {
                put(state, item, *cpu);
            }
        }
    }
}

/// Whether a free task has none of the CPUs its policy wants.
pub(super) fn lacks_cpu(model: &Model<'_>, task: usize) -> bool {
    let task = &model.tasks[task];
    let wanted = task.device.and_then(|device| near(model, device).first().copied());
    let place = wanted.and_then(|cpu| model.places.single(cpu));
    task.policy == Policy::SingleCore && place.is_none_or(|place| !task.candidates.contains(&place))
}

fn devices<'a>(model: &Model<'a>) -> BTreeSet<&'a str> {
    let of_tasks = model.tasks.iter().filter_map(|task| task.device);
    let channels = model.channels.iter().filter(|channel| !channel.is_memory);
    channels.map(|channel| channel.device).chain(of_tasks).collect()
}

fn of_device(model: &Model<'_>, device: &str, policy: Policy) -> Vec<Item> {
    let channels = model.channels.iter().enumerate();
    let channels = channels
        .filter(|(_, channel)| channel.device == device && channel.policy == policy)
        .map(|(index, _)| Item::Channel(index));
    let tasks = model.tasks.iter().enumerate();
    let tasks = tasks
        .filter(|(_, task)| task.device == Some(device) && task.policy == policy)
        .map(|(index, _)| Item::Task(index));
    channels.chain(tasks).collect()
}

/// All CPUs that interrupts may come to, the nearest to the device first, those of one cache together.
fn near(model: &Model<'_>, device: &str) -> Vec<usize> {
    let home: Option<NodeId> = model
        .channels
        .iter()
        .find(|channel| channel.device == device)
        .and_then(|it| it.home);
    let mut cpus = model.domains.open();
    cpus.sort_by_key(|cpu| {
        let apart = model.domains.distances.device_percent(model.domains.node(*cpu), home);
        (apart, model.domains.domain(*cpu), *cpu)
    });
    cpus
}

/// Puts the same number of items on each CPU, give or take one.
fn spread(state: &mut State<'_>, items: &[Item]) {
    let quota = items.len().div_ceil(state.model.domains.cpu_count().max(1));
    let mut count = vec![0; state.model.domains.cpu_count()];
    let (held, free): (Vec<Item>, Vec<Item>) = items.iter().partition(|item| is_held(state.model, **item));
    for cpu in held.iter().filter_map(|item| single(state.model, *item)) {
        count[cpu] += 1;
    }
    let mut rest = Vec::new();
    for item in free {
        match single(state.model, item).filter(|cpu| count[*cpu] < quota) {
            Some(cpu) => count[cpu] += 1,
            None => rest.push(item),
        }
    }
    for item in rest {
        let may = allowed(state.model, item).into_iter();
        if let Some(cpu) = may.min_by_key(|cpu| (count[*cpu], *cpu)) {
            put(state, item, cpu);
            count[cpu] += 1;
        }
    }
}

/// Puts items on as few of the `order`ed CPUs as the load needs, filling one CPU after the other. `taken` is the load
/// of packed items of other devices on each CPU.
fn pack(state: &mut State<'_>, items: &[Item], order: &[usize], taken: &mut [u64]) {
    let model = state.model;
    let (held, free): (Vec<Item>, Vec<Item>) = items.iter().partition(|item| is_held(model, **item));
    let held_on: Vec<usize> = held.iter().filter_map(|item| single(model, *item)).collect();
    for item in held {
        if let Some(cpu) = single(model, item) {
            taken[cpu] += load(model, item);
        }
    }
    let mut filled = taken.to_vec();
    let picked = first_fit(model, &free, order, &mut filled);
    let in_use = |cpu: &usize| held_on.contains(cpu) || picked.contains(&Some(*cpu));
    let count = order.iter().rposition(in_use).map_or(0, |last| last + 1);
    let most = filled.iter().copied().max().unwrap_or(0);
    if !packed(model, &free, &order[..count], most, taken) {
        for (item, cpu) in free.iter().zip(&picked) {
            cpu.iter().for_each(|cpu| put(state, *item, *cpu));
        }
        taken.copy_from_slice(&filled);
    }
}

/// The first CPU that has room for each; the one with the least on it, where none has.
fn first_fit(model: &Model<'_>, items: &[Item], order: &[usize], taken: &mut [u64]) -> Vec<Option<usize>> {
    let pick = |item: &Item| {
        let (may, load) = (allowed(model, *item), load(model, *item));
        let may = order.iter().copied().filter(|cpu| may.contains(cpu));
        let fits = may.clone().find(|cpu| taken[*cpu] + load <= model.config.busy_ns_max());
        let cpu = fits.or_else(|| may.min_by_key(|cpu| taken[*cpu]))?;
        taken[cpu] += load;
        Some(cpu)
    };
    items.iter().map(pick).collect()
}

/// Whether the items are packed already: on CPUs that are `needed` anyway, and none of these much too busy, or busier
/// than the `most` it would be otherwise. Then they stay, and `taken` counts them. So a load on the edge does not go to
/// and fro.
fn packed(model: &Model<'_>, items: &[Item], needed: &[usize], most: u64, taken: &mut [u64]) -> bool {
    let mut with = taken.to_vec();
    for item in items {
        match single(model, *item).filter(|cpu| needed.contains(cpu)) {
            Some(cpu) => with[cpu] += load(model, *item),
            // Its cpuset has no CPU at all.
            None if allowed(model, *item).is_empty() => {}
            None => return false,
        }
    }
    let most = most.max(model.config.busy_ns_max() / 100 * (100 + u64::from(model.config.hysteresis_percent)));
    if with.iter().any(|load| *load > most) {
        return false;
    }
    taken.copy_from_slice(&with);
    true
}

fn is_held(model: &Model<'_>, item: Item) -> bool {
    match item {
        Item::Channel(channel) => model.channels[channel].hold.is_some(),
        Item::Task(task) => model.tasks[task].hold.is_some(),
    }
}

fn load(model: &Model<'_>, item: Item) -> u64 {
    match item {
        Item::Channel(channel) => model.channels[channel].load,
        Item::Task(task) => model.tasks[task].load,
    }
}

/// The CPU it is on, where that is one.
fn single(model: &Model<'_>, item: Item) -> Option<usize> {
    let cpus = match item {
        Item::Channel(channel) => &model.channels[channel].origin.processing,
        Item::Task(task) => &model.places.all[model.tasks[task].origin].cpus,
    };
    match cpus[..] {
        [cpu] => Some(cpu),
        _ => None,
    }
}

/// The CPUs it may be put on alone.
fn allowed(model: &Model<'_>, item: Item) -> Vec<usize> {
    match item {
        Item::Channel(_) => model.domains.open(),
        Item::Task(task) => {
            let places = model.tasks[task]
                .candidates
                .iter()
                .map(|place| &model.places.all[*place].cpus);
            places.filter(|cpus| cpus.len() == 1).map(|cpus| cpus[0]).collect()
        }
    }
}

fn put(state: &mut State<'_>, item: Item, cpu: usize) {
    let model = state.model;
    if is_held(model, item) {
        return;
    }
    match item {
        Item::Channel(channel) => {
            state.lift_channel(channel);
            let it = &model.channels[channel];
            state.put_channel(channel, (it.at(cpu) != it.origin).then_some(cpu));
        }
        Item::Task(task) => {
            let place = model.places.single(cpu);
            if let Some(place) = place.filter(|place| model.tasks[task].candidates.contains(place)) {
                state.lift_task(task);
                state.put_task(task, place);
            }
        }
    }
}
