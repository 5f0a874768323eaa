//! `homenode affinity plan`: what would be done, and why. Changes nothing.

pub(super) mod codes;
pub(super) mod json;
pub(super) mod text;

use super::card_advice::{Advice, advice};
use super::known::JournalArgs;
use super::look::LookArgs;
use super::settings::{Settings, SettingsArgs};
use crate::failure::Result;
use clap::Args;
use homenode_linux::affinity::Sensed;
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_policy::affinity::Plan;

/// Show what `apply` would move, and why; change nothing.
///
/// The command observes interrupts, queues and threads for a few seconds and decides which CPUs they should use. The servers of mounted pools report where
/// threads' buffers are, but not which reads a mount's page cache serves. Without root the command uses the data it may read, and lists the data it could not read. Cost and gain are in MB/s that travel
/// twice the local distance; work that CPUs have no time for counts too. If a busy card has too few queues, or leaves some unused, the output ends with the
/// `ethtool` command to type: homenode changes no card.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// Also list what stays, each with the reason.
    #[arg(long)]
    all: bool,
    /// Print JSON; implies --all.
    #[arg(long)]
    json: bool,
}

/// A period, and what is to be done after it.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) sensed: Sensed,
    pub(super) plan: Plan,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) advice: Vec<Advice>,
}

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let settings = Settings::read(&args.settings)?;
    let sensed = args.look.look()?;
    settings.tell_unknown_devices(&sensed.snapshot);
    let mut known = args.look.known(&args.journal, &settings);
    let plan = known.decide(&sensed.snapshot, &settings);
    let conflicts = known.conflicts;
    let decided = Decided {
        advice: advice(&sensed, &plan),
        sensed,
        plan,
        conflicts,
    };
    if args.json {
        crate::print_json(&json::of(&decided, args.look.source(), settings.decide.policy))
    } else {
        crate::print_text(&text::of(&decided, args.all, args.look.is_live()))
    }
}
