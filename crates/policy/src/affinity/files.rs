//! Files of pools that come to their threads, where these cannot go to them or are dearer to move.
//!
//! A file is wanted on the node from which far more of its bytes are used than from all others ([`mover::dominant`]), when
//! moving pays as the mover of pools weighs it and saves cost by distances, and when
//! - its threads there are held by masks, cpusets or the kernel, or
//! - several of them would move at a higher price than the file, or
//! - they stay far from it although they were free: with all that is placed, that is best for them.
//!
//! A file that has moved rests, as a thread does. Nothing is moved for threads that are left alone or have just moved. A file stays, too, while a thread
//! that was moved lately is on its node: when that may move again, its threads can perhaps go there.
//! Cost: the files of the snapshot times the threads that use each; a second model when any file moves.

use super::cost::{Cost, NS_PER_S};
use super::reason::Why;
use super::state::State;
use super::tasks::Task;
use super::{FileId, FileReason, MoveFile, Policy, PoolFile, Previous, Snapshot};
use crate::NodeId;
use crate::mover::{self, Reason};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// When files are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Everything is where it was found.
    Found,
    /// Threads and queues have their places.
    Placed,
}

/// A thread that uses a file.
struct User {
    task: usize,
    node: NodeId,
    /// Bytes a second.
    rate: u64,
}

/// Bytes a second of each task's buffers, by home; what is decided for one file counts for the next.
type Buffers = Vec<BTreeMap<NodeId, u64>>;

/// The files that are to move, ascending.
pub(super) fn wanted(snapshot: &Snapshot, previous: &Previous, state: &State<'_>, moment: Moment) -> Vec<MoveFile> {
    let model = state.model;
    if !model.config.moves_files || snapshot.files.is_empty() {
        return Vec::new();
    }
    let mut users: BTreeMap<FileId, Vec<User>> = BTreeMap::new();
    for (task, place) in state.place_of.iter().enumerate() {
        for (file, rate) in &model.tasks[task].thread.files {
            users.entry(*file).or_default().push(User {
                task,
                node: model.node_of(*place),
                rate: *rate,
            });
        }
    }
    let mut buffers: Buffers = model.tasks.iter().map(|task| buffers(task, state)).collect();
    let mut kept: BTreeSet<NodeId> = BTreeSet::new();
    if moment == Moment::Placed {
        let resting = (0..model.tasks.len()).filter(|task| matches!(model.tasks[*task].hold, Some(Why::Dwell { .. })));
        kept.extend(resting.map(|task| model.node_of(state.place_of[task])));
    }
    let files: BTreeMap<FileId, &PoolFile> = snapshot.files.iter().map(|file| (file.id, file)).collect();
    let rests = |file: &&&PoolFile| previous.file_rests(file.id, model.config.dwell_periods);
    let movable = files.values().filter(|file| !rests(file));
    // On the node with most of its bytes.
    let most = |file: &PoolFile| file.lies.iter().max_by_key(|(_, bytes)| *bytes).map(|(node, _)| *node);
    let is_blocked = |file: &PoolFile| most(file).is_some_and(|node| kept.contains(&node));
    movable
        .filter(|file| !is_blocked(file))
        .filter_map(|file| decide(file, users.get(&file.id)?, state, moment, &mut buffers))
        .collect()
}

fn buffers(task: &Task<'_>, state: &State<'_>) -> BTreeMap<NodeId, u64> {
    let channels = &state.model.channels;
    let memory = task.flows.iter().filter(|(channel, _)| channels[*channel].is_memory);
    memory
        .filter_map(|(channel, rate)| Some((channels[*channel].home?, *rate)))
        .collect()
}

fn decide(file: &PoolFile, users: &[User], state: &State<'_>, moment: Moment, all: &mut Buffers) -> Option<MoveFile> {
    let model = state.model;
    let mut rates: BTreeMap<NodeId, u64> = BTreeMap::new();
    for user in users {
        let sum = rates.entry(user.node).or_default();
        *sum = sum.saturating_add(user.rate);
    }
    let to = mover::dominant(&rates)?;
    let room = |node: NodeId| {
        file.room
            .iter()
            .find(|(on, _)| *on == node)
            .map_or(0, |(_, bytes)| *bytes)
    };
    let decision = mover::weigh(file.id.inode, &rates, &file.lies, room)?;
    let there: Vec<&User> = users.iter().filter(|user| user.node == to).collect();
    let price = Cost::new(mover::price(decision.bytes), 100).plus(model.config.migration_price);
    let reason = reason(&there, state, moment, price)?;
    let percent = |a, b| model.domains.distances.percent(a, b);
    let (mut before, mut after) = (0_u64, 0_u64);
    let mut moved = Vec::new();
    for user in users {
        for (node, bytes) in parts(file, user.rate, &all[user.task]).filter(|(node, _)| *node != to) {
            before = before.saturating_add(bytes.saturating_mul(percent(user.node, node)));
            after = after.saturating_add(bytes.saturating_mul(percent(user.node, to)));
            moved.push((user.task, node, bytes));
        }
    }
    let pays = decision.reason == Reason::Pays && Cost(before).beyond(Cost(after)) > price;
    if !pays {
        return None;
    }
    for (task, node, bytes) in moved {
        shift(&mut all[task], node, to, bytes);
    }
    Some(MoveFile {
        file: file.id,
        to,
        threads: there.len(),
        bytes: decision.bytes,
        saved_bytes_per_s: decision.saved_rate,
        reason,
        cost_before: Cost(before),
        cost_after: Cost(after),
    })
}

/// Why the file is to come to these threads; none where it is not.
fn reason(there: &[&User], state: &State<'_>, moment: Moment, price: Cost) -> Option<FileReason> {
    let model = state.model;
    let rate = |wanted: &dyn Fn(usize) -> bool| {
        let found = there.iter().filter(|user| wanted(user.task));
        found.fold(0, |sum: u64, user| sum.saturating_add(user.rate))
    };
    let all = rate(&|_| true);
    let moves = |task: usize| state.place_of[task] != model.tasks[task].origin;
    if rate(&|task| is_left(&model.tasks[task]) || moves(task)).saturating_mul(2) > all {
        return None;
    }
    if rate(&|task| is_held(&model.tasks[task])).saturating_mul(2) >= all {
        return Some(FileReason::Held);
    }
    let free = there
        .iter()
        .filter(|user| model.tasks[user.task].hold.is_none())
        .count();
    let of_threads = model.config.migration_price.0.saturating_mul(free as u64);
    match moment {
        Moment::Placed => Some(FileReason::Placed),
        Moment::Found if free > 1 && price.0 < of_threads => Some(FileReason::Together),
        Moment::Found => None,
    }
}

/// Whether nothing is done for a task now.
fn is_left(task: &Task<'_>) -> bool {
    task.policy != Policy::Local || matches!(task.hold, Some(Why::Off | Why::Dwell { .. } | Why::New))
}

/// Whether others keep a task where it is.
fn is_held(task: &Task<'_>) -> bool {
    matches!(task.hold, Some(Why::Foreign | Why::OnePlace | Why::Refused))
}

/// Divides a user's rate among nodes, each no more than its buffers there have.
fn parts<'a>(
    file: &'a PoolFile,
    rate: u64,
    buffers: &'a BTreeMap<NodeId, u64>,
) -> impl Iterator<Item = (NodeId, u64)> + use<'a> {
    let all = file
        .lies
        .iter()
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    file.lies.iter().map(move |(node, bytes)| {
        let there = buffers.get(node).copied().unwrap_or(0);
        (*node, mover::share(rate, *bytes, all).min(there))
    })
}

fn shift(buffers: &mut BTreeMap<NodeId, u64>, from: NodeId, to: NodeId, bytes: u64) {
    let there = buffers.entry(from).or_default();
    let bytes = bytes.min(*there);
    *there -= bytes;
    let here = buffers.entry(to).or_default();
    *here = here.saturating_add(bytes);
}

/// Makes the snapshot of when these files have moved.
pub(super) fn carried_out(snapshot: &Snapshot, moves: &[MoveFile]) -> Snapshot {
    let mut after = snapshot.clone();
    let to = |id: FileId| moves.iter().find(|one| one.file == id).map(|one| one.to);
    let moved: Vec<(&PoolFile, NodeId)> = snapshot
        .files
        .iter()
        .filter_map(|file| Some((file, to(file.id)?)))
        .collect();
    for thread in &mut after.threads {
        let mut buffers: BTreeMap<NodeId, u64> = thread.memory.iter().copied().collect();
        for (file, to) in &moved {
            let Some((_, rate)) = thread.files.iter().find(|(id, _)| *id == file.id) else {
                continue;
            };
            let bytes = u128::from(*rate) * u128::from(snapshot.period_ns) / u128::from(NS_PER_S);
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            let parts: Vec<(NodeId, u64)> = parts(file, bytes, &buffers).collect();
            for (node, bytes) in parts.into_iter().filter(|(node, _)| node != to) {
                shift(&mut buffers, node, *to, bytes);
            }
        }
        thread.memory = buffers.into_iter().collect();
    }
    for file in &mut after.files {
        if let Some(to) = to(file.id) {
            let all = file
                .lies
                .iter()
                .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
            file.lies = Vec::from([(to, all)]);
        }
    }
    after
}
