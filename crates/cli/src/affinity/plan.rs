//! `homenode affinity plan`: what would be done, and why. Changes nothing.

pub(super) mod codes;
pub(super) mod json;
pub(super) mod text;

use super::cards::asked;
use super::known::JournalArgs;
use super::look::LookArgs;
use super::settings::{Settings, SettingsArgs};
use crate::failure::Result;
use clap::Args;
use homenode_linux::affinity::Sensed;
use homenode_linux::affinity::act::conflicts::Conflict;
use homenode_policy::affinity::Plan;

/// Tell what `apply` would move, and why; change nothing.
///
/// Looks at interrupts, queues and threads for a few seconds and decides which CPUs they should use; the servers of mounted pools tell where
/// threads' buffers are, but not what a mount's page cache serves. Without root it decides by what it may read, and says what it could not see. Cost and gain are in MB/s that travel as far again as to
/// the local node; work that CPUs have no time for counts too.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// List all that stays, each with the reason.
    #[arg(long)]
    all: bool,
    /// Print JSON, always with all that stays.
    #[arg(long)]
    json: bool,
}

/// A period, and what is to be done after it.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) sensed: Sensed,
    pub(super) plan: Plan,
    pub(super) conflicts: Vec<Conflict>,
    /// Text about the card settings to be made before the plan.
    pub(super) asked: String,
}

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let settings = Settings::read(&args.settings)?;
    let sensed = args.look.look()?;
    settings.tell_unknown_devices(&sensed.snapshot);
    let mut known = args.look.known(&args.journal, &settings);
    let plan = known.decide(&sensed.snapshot, &settings);
    let conflicts = known.conflicts;
    let asked = asked(&settings, &sensed.cards);
    let decided = Decided {
        asked,
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
