//! The search for a placement that costs little: greedy, then improved until nothing does or the effort is spent.
//!
//! It starts twice, from where everything was found and from where everything would be if queues followed their threads,
//! and goes on from the better one. A step moves one thread or one queue. When no step helps, exchanges are tried; then
//! detours, where one or two things go elsewhere at a loss and the others follow, as a thread and its queues gain nothing by
//! going alone; then shakes, detours of more things picked at random.
//! Cost: [`WORK_MAX`] bounds the evaluations of all but single steps, [`SHAKES_WORK_MAX`] those of shakes in vain, [`PASSES`] those of
//! single steps.

mod steps;

use super::state::{Delta, State};
use alloc::vec;
use alloc::vec::Vec;
use steps::{Free, Item, domain, force, lacks_room, options, put_back, step, where_is};

/// Rounds of single steps. Two or three are the rule.
const PASSES: usize = 6;
/// Evaluations of exchanges, detours and shakes: some milliseconds.
const WORK_MAX: u64 = 200_000;
/// Evaluations of [`shakes`] that find nothing: less than a millisecond.
const SHAKES_WORK_MAX: u64 = 20_000;
/// Where the random numbers of [`shakes`] start: the same snapshot is always decided alike.
const SHAKE_SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// Improves the placement of everything that has policy local and is free.
pub(super) fn improve<'a>(found: State<'a>) -> State<'a> {
    let model = found.model;
    let free = Free::of(model);
    if model.domains.cpu_count() == 0 || (free.tasks.is_empty() && free.channels.is_empty()) {
        return found;
    }
    let mut best = found.clone();
    settle(&mut best, &free, &[]);
    let mut other = found;
    gather(&mut other, &free);
    settle(&mut other, &free, &[]);
    if other.value() < best.value() {
        best = other;
    }
    while best.work < WORK_MAX && (exchanges(&mut best, &free) || detours(&mut best, &free) || shakes(&mut best, &free))
    {
        settle(&mut best, &free, &[]);
    }
    best
}

/// Single steps, until none helps; of all but those that are `kept` where they are.
fn settle(state: &mut State<'_>, free: &Free, kept: &[Item]) {
    for _ in 0..PASSES {
        let mut gain = 0;
        for item in free.items().into_iter().filter(|item| !kept.contains(item)) {
            gain = step(state, item).saturating_add(gain);
        }
        if gain == 0 {
            break;
        }
    }
}

/// Puts every thread where it would be best if its queues came along, the heaviest first.
fn gather(state: &mut State<'_>, free: &Free) {
    let model = state.model;
    let at_home: Vec<Vec<u64>> = model
        .channels
        .iter()
        .map(|channel| {
            let node = |domain: usize| model.domains.domains[domain].node;
            let access = |domain| channel.access(&model.domains.distances, node(domain));
            (0..model.domains.len()).map(access).collect()
        })
        .collect();
    let mut comes = vec![false; model.channels.len()];
    free.channels.iter().for_each(|channel| comes[*channel] = true);
    for task in &free.tasks {
        state.lift_task(*task);
        let best = model.tasks[*task].candidates.iter().copied().min_by_key(|place| {
            let at = &model.places.all[*place];
            let mut together = state.task_at(*task, *place);
            model.pulls(*task, *place, |channel, rate| {
                if comes[channel] {
                    together += Delta::try_from(rate * at_home[channel][at.domain]).unwrap_or(Delta::MAX / 4);
                    together -= state.pull_cost(channel, at.domain, rate);
                }
            });
            (together, state.load.total[at.domain], *place)
        });
        state.put_task(*task, best.unwrap_or(model.tasks[*task].origin));
    }
}

/// Tries to exchange two things of two domains, as neither may have room for one more. Whether something helped.
fn exchanges(state: &mut State<'_>, free: &Free) -> bool {
    // A look at a task takes as long as some of the steps that are counted.
    state.work += 8 * free.tasks.len() as u64;
    if state.load.all_over() == 0 && !free.tasks.iter().any(|task| lacks_room(state, *task)) {
        return false;
    }
    let items = free.items();
    let mut helped = false;
    for (index, one) in items.iter().enumerate() {
        for other in &items[index + 1..] {
            if state.work >= WORK_MAX {
                return helped;
            }
            state.work += 1;
            let (Some(here), Some(there)) = (domain(state, *one), domain(state, *other)) else {
                continue;
            };
            if here == there {
                continue;
            }
            let before = [(*one, where_is(state, *one)), (*other, where_is(state, *other))];
            if force(state, *one, there) + force(state, *other, here) > 0 {
                helped = true;
                continue;
            }
            for (item, at) in before {
                put_back(state, item, at);
            }
        }
    }
    helped
}

/// Tries what the others would do if one thing, or two, went elsewhere, although that gains nothing alone. Whether
/// something helped.
fn detours(state: &mut State<'_>, free: &Free) -> bool {
    let items = free.items();
    let mut helped = false;
    for (index, one) in items.iter().enumerate() {
        for at in options(state, *one) {
            helped |= detour(state, free, &[(*one, at)]);
        }
        for other in &items[..index] {
            for (at, other_at) in pairs(&options(state, *one), &options(state, *other)) {
                if state.work >= WORK_MAX {
                    return helped;
                }
                helped |= detour(state, free, &[(*one, at), (*other, other_at)]);
            }
        }
    }
    helped
}

/// Tries detours of three to five things picked at random, as long as there is effort left. Whether something helped.
fn shakes(state: &mut State<'_>, free: &Free) -> bool {
    let items = free.items();
    if items.len() < 3 {
        return false;
    }
    let mut random = SHAKE_SEED;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % limit as u64).expect("limit is a usize")
    };
    let end = WORK_MAX.min(state.work.saturating_add(SHAKES_WORK_MAX));
    while state.work < end {
        let mut forced: Vec<(Item, Option<usize>)> = Vec::new();
        for _ in 0..3 + below(3) {
            let item = items[below(items.len())];
            let there = options(state, item);
            if !there.is_empty() && forced.iter().all(|(other, _)| *other != item) {
                forced.push((item, there[below(there.len())]));
            }
        }
        state.work += 1;
        if forced.len() >= 3 && detour(state, free, &forced) {
            return true;
        }
    }
    false
}

/// Puts some things elsewhere, lets the others follow, and then all find their place. Keeps what saves something.
fn detour(state: &mut State<'_>, free: &Free, forced: &[(Item, Option<usize>)]) -> bool {
    if state.work >= WORK_MAX {
        return false;
    }
    let mut other = state.clone();
    for (item, at) in forced {
        put_back(&mut other, *item, *at);
    }
    let kept: Vec<Item> = forced.iter().map(|(item, _)| *item).collect();
    settle(&mut other, free, &kept);
    settle(&mut other, free, &[]);
    let helped = other.value() < state.value();
    state.work = other.work + 8 * free.tasks.len() as u64;
    if helped {
        other.work = state.work;
        *state = other;
    }
    helped
}

fn pairs(one: &[Option<usize>], other: &[Option<usize>]) -> Vec<(Option<usize>, Option<usize>)> {
    let with = |one: &Option<usize>| other.iter().map(|other| (*one, *other)).collect::<Vec<_>>();
    one.iter().flat_map(with).collect()
}
