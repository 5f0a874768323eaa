//! `homenode affinity`: which CPUs interrupts, queues and threads are to use: told, done, undone, explained.
//!
//! A file per verb. `look` senses one period of this machine or reads a recorded one, `settings` is the configuration,
//! `words` names what is placed, and `table` aligns columns.

mod explain;
mod look;
mod metrics;
mod plan;
mod record;
mod settings;
mod table;
mod target;
mod words;

use crate::failure::Result;
use clap::Subcommand;

/// Decide which CPUs interrupts, queues and threads use, together and near the devices.
#[derive(Debug, Subcommand)]
pub(crate) enum AffinityCommand {
    Plan(plan::PlanArgs),
    Explain(explain::ExplainArgs),
    Record(record::RecordArgs),
}

pub(crate) fn run(command: &AffinityCommand) -> Result<()> {
    match command {
        AffinityCommand::Plan(args) => plan::run(args),
        AffinityCommand::Explain(args) => explain::run(args),
        AffinityCommand::Record(args) => record::run(args),
    }
}
