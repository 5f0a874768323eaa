//! `homenode affinity apply`: carries a plan out, once.

use super::cards::{arrange, line};
use super::known::{JournalArgs, Known, failure, of_others};
use super::look::{PeriodArgs, live};
use super::plan::text::{cpus, headline};
use super::plan::{Decided, json};
use super::settings::{Settings, SettingsArgs};
use super::table::{Side, aligned};
use super::words::{name, others, plain, unseen};
use crate::failure::{Result, fail};
use clap::Args;
use homenode_linux::affinity::act::{Applied, Outcome};
use homenode_policy::affinity::{Plan, Snapshot};

/// Move what `plan` says, once.
///
/// Looks at the machine for a few seconds, decides, writes what it is about to change into the journal, and changes it;
/// then tells what became of each change. `homenode affinity revert` takes all of it back. Run again, it goes on from what
/// it finds, and the journal keeps the first values. Exits with 1 when the kernel refused something.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// As JSON, as `plan --json` has it, with what became of each action.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ApplyArgs) -> Result<()> {
    let settings = Settings::read(&args.settings)?;
    let mut actor = args.journal.open()?;
    let arranged = arrange(&mut actor, &settings)?;
    let sensed = live(args.period.period)?;
    settings.tell_unknown_devices(&sensed.snapshot);
    let mut known = Known {
        previous: actor.previous().map_err(failure)?,
        changed: Vec::new(),
        conflicts: of_others(&settings),
    };
    let plan = known.decide(&sensed.snapshot, &settings);
    let applied = actor
        .apply(&plan, &sensed.snapshot, &known.conflicts)
        .map_err(failure)?;
    let decided = Decided {
        asked: arranged.iter().map(|one| line(one) + "\n").collect(),
        sensed,
        plan,
        conflicts: known.conflicts,
    };
    if args.json {
        let report = json::of(&decided, "live".to_owned(), settings.decide.policy);
        crate::print_json(&report.with_outcomes(&applied))?;
    } else {
        crate::print_text(&text(&decided, &applied))?;
    }
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_) | Outcome::NoCpu);
    let refused = applied.outcomes.iter().filter(|(_, outcome)| failed(outcome)).count();
    let refused_cards = arranged.iter().filter(|(_, outcome)| !outcome.is_done()).count();
    match refused + refused_cards {
        0 => Ok(()),
        number => fail!(
            "{number} of {} changes could not be made: the lines above tell why",
            decided.plan.actions.len() + arranged.len()
        ),
    }
}

fn text(decided: &Decided, applied: &Applied) -> String {
    let (snapshot, plan) = (&decided.sensed.snapshot, &decided.plan);
    let mut text = decided.asked.clone() + &headline(plan, snapshot.period_ns) + "\n";
    if !plan.actions.is_empty() {
        text += &format!("\n{}", table(snapshot, plan, applied));
        let made = applied.outcomes.iter().filter(|(_, outcome)| outcome.is_done()).count();
        let all = plan.actions.len();
        text += &format!("\n{made} of {all} changes made; `homenode affinity revert` takes back all that is ours\n");
    }
    let notes = others(&decided.conflicts) + &unseen(&decided.sensed.unseen);
    if !notes.is_empty() {
        text += &format!("\n{notes}");
    }
    text
}

/// In the order of the plan.
fn table(snapshot: &Snapshot, plan: &Plan, applied: &Applied) -> String {
    let heading = ["WHAT", "FROM", "TO", "OUTCOME", "WHY"].map(str::to_owned);
    let rows = plan
        .actions
        .iter()
        .zip(&applied.outcomes)
        .map(|(action, (_, outcome))| {
            [
                name(snapshot, &action.target),
                cpus(&action.from),
                cpus(&action.to),
                plain(&outcome.to_string()),
                plain(&action.reason.to_string()),
            ]
        });
    let rows: Vec<_> = [heading].into_iter().chain(rows).collect();
    aligned([Side::Left; 5], &rows)
}
