//! Dynamic core affinity: which CPUs interrupts, queues and threads are to use, decided together, from one period to the
//! next (multi-queue dynamic core affinity).
//!
//! A thread is given the CPUs that share a cache, never one that its cpuset does not have, and only where nobody else has
//! narrowed its mask. A disk's queues and their managed interrupts do not move: the CPU decides which queue is used, so
//! the thread goes to the right CPUs. Queues of the network move to one CPU, each with its interrupts, XPS and, where it
//! is used, RPS. A thread whose buffers lie in memory of pools goes to them, or, where it cannot, a file of them comes to it
//! ([`MoveFile`]). [`cost`] says what a placement costs. A bound thread that moves almost nothing for long gets its mask back
//! ([`Return`]).
//!
//! Invariants: the same snapshot, in whatever order, gives the same plan; a managed interrupt is in no action; what was
//! moved stays for the dwell time. A load that stays the same is settled by its first plan; one that changes moves
//! only what saves more than the price of a move.
//! Cost: 1024 threads, 256 queues and 8 nodes are decided in less than 10 ms; 20,000 threads of which 1,000 move bytes, on 256
//! CPUs, in some 100 ms.

mod channels;
mod config;
pub mod cost;
mod domains;
mod files;
mod load;
mod model;
mod plan;
mod previous;
mod reason;
mod report;
mod rules;
mod search;
mod senders;
mod snapshot;
mod state;
mod tasks;

pub use config::{Config, Policy};
pub use cost::Cost;
pub use plan::{Action, FileReason, MoveFile, Plan, Reset, Return, Stay, Target};
pub use previous::Previous;
pub(crate) use reason::Rate;
pub use reason::{Class, Reason, Why};
pub use snapshot::{DeviceBytes, FileId, Interrupt, PoolFile, Queue, QueueKind, Received, Snapshot, Thread, ThreadId};

use alloc::borrow::Cow;
use files::Moment;
use model::Model;
use state::State;

/// Returns a snapshot with bytes of the network at the cards and queues that plans count them for: those of bonds and bridges
/// at the cards below.
#[must_use]
pub fn by_card(snapshot: &Snapshot, config: &Config) -> Snapshot {
    tasks::by_card(snapshot, &Model::new(snapshot, config, &Previous::default()))
}

/// Decides the plan to carry out after this period, given the settings of earlier plans.
#[must_use]
pub fn decide(snapshot: &Snapshot, config: &Config, previous: &Previous) -> Plan {
    let resets = previous.resets(snapshot);
    let previous = &*match resets.is_empty() {
        true => Cow::Borrowed(previous),
        false => Cow::Owned(previous.with(&resets)),
    };
    let model = Model::new(snapshot, config, previous);
    let found = State::new(&model);
    let mut files = files::wanted(snapshot, previous, &found, Moment::Found);
    // Search for a machine on which these files have moved.
    let moved = (!files.is_empty()).then(|| files::carried_out(snapshot, &files));
    let model_moved = moved.as_ref().map(|moved| Model::new(moved, config, previous));
    let start = model_moved.as_ref().map_or_else(|| found.clone(), State::new);
    let mut placed = if previous.is_settled(snapshot, config, found.cost()) {
        start
    } else {
        let mut ruled = start;
        rules::apply(&mut ruled);
        search::improve(ruled)
    };
    let senders = senders::follow(&mut placed, previous);
    let now = moved.as_ref().unwrap_or(snapshot);
    let late = files::wanted(now, previous, &placed, Moment::Placed);
    let moved = (!late.is_empty()).then(|| files::carried_out(now, &late));
    let model_moved = moved.as_ref().map(|moved| Model::new(moved, config, previous));
    if let Some(model) = &model_moved {
        placed = placed.of(model);
    }
    files.extend(late);
    files.sort_by_key(|one| one.file);
    let mut plan = report::plan(snapshot, previous, &found, placed, &senders);
    plan.files = files;
    plan.returns.clone_from(&model.returns);
    plan.resets = resets;
    report::check(&plan, |cpu| model.domains.index(cpu).is_some());
    plan
}
