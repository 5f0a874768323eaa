//! `homenode affinity`: which CPUs interrupts, queues and threads are to use: told, done, undone, explained.
//!
//! A file per verb. `look` senses one period of this machine or reads a recorded one, `known` is what was set before and
//! what others set, `settings` the configuration, `signals` what is to end a verb that changes something; `words` names what is placed, `table` aligns columns, and `card_advice` names the `ethtool` commands for the operator. `pools` asks the
//! servers of pools what threads do, and to move files.

mod apply;
pub(crate) mod card_advice;
mod explain;
pub(crate) mod known;
pub(crate) mod look;
mod metrics;
mod plan;
pub(crate) mod pools;
mod record;
mod revert;
mod run;
pub(crate) mod settings;
pub(crate) mod table;
mod target;
pub(crate) mod words;

pub(crate) use known::changes_in_force;
pub(crate) use metrics::METRICS_TYPE;

use crate::failure::Result;
use clap::Subcommand;

/// Place interrupts, queues and threads on CPUs near their devices.
#[derive(Debug, Subcommand)]
pub(crate) enum AffinityCommand {
    Plan(plan::PlanArgs),
    Apply(apply::ApplyArgs),
    Run(run::RunArgs),
    Revert(revert::RevertArgs),
    Explain(explain::ExplainArgs),
    Record(record::RecordArgs),
}

pub(crate) fn run(command: &AffinityCommand) -> Result<()> {
    match command {
        AffinityCommand::Plan(args) => plan::run(args),
        AffinityCommand::Apply(args) => apply::run(args),
        AffinityCommand::Run(args) => run::run(args),
        AffinityCommand::Revert(args) => revert::run(args),
        AffinityCommand::Explain(args) => explain::run(args),
        AffinityCommand::Record(args) => record::run(args),
    }
}
