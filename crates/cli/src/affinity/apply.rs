//! `homenode affinity apply`: carries plans out until nothing is left to move.

use super::cards::{arrange, line};
use super::known::{JournalArgs, Known, failure, of_others};
use super::look::{Look, PeriodArgs};
use super::plan::text::{cpus, headline};
use super::plan::{Decided, json};
use super::settings::{Settings, SettingsArgs};
use super::table::{Side, aligned};
use super::words::{name, others, plain, unseen};
use crate::failure::{Result, fail};
use clap::Args;
use homenode_linux::affinity::act::{Applied, Outcome};
use homenode_policy::affinity::{Plan, Snapshot};

/// Move what `plan` says, and what is seen only then.
///
/// Looks at the machine for a few seconds, decides, writes what it is about to change into the journal, and changes it;
/// then tells what became of each change. What has moved uses other queues, so it looks again until nothing is left to
/// move, three times at most. `homenode affinity revert` takes all of it back. Run again, it goes on from what it finds, and
/// the journal keeps the first values. Exits with 1 when the kernel refused something.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// As JSON: of each look what `plan --json` has, with what became of each action.
    #[arg(long)]
    json: bool,
}

/// A load that stays the same is settled by then.
const LOOKS_MAX: usize = 3;

pub(super) fn run(args: &ApplyArgs) -> Result<()> {
    let settings = Settings::read(&args.settings)?;
    let mut actor = args.journal.open()?;
    let arranged = arrange(&mut actor, &settings)?;
    let mut look = Look::begin()?;
    let mut known = Known {
        previous: actor.previous().map_err(failure)?,
        changed: Vec::new(),
        conflicts: of_others(&settings),
    };
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_) | Outcome::NoCpu);
    let mut count = arranged.len();
    let mut refused = arranged.iter().filter(|(_, outcome)| !outcome.is_done()).count();
    let mut reports = Vec::new();
    for number in 1..=LOOKS_MAX {
        let sensed = look.after(args.period.period)?;
        if number == 1 {
            settings.tell_unknown_devices(&sensed.snapshot);
        }
        let plan = known.decide(&sensed.snapshot, &settings);
        let applied = actor
            .apply(&plan, &sensed.snapshot, &known.conflicts)
            .map_err(failure)?;
        known.previous = applied.next(&known.previous, &plan, &sensed.snapshot);
        count += plan.actions.len();
        refused += applied.outcomes.iter().filter(|(_, outcome)| failed(outcome)).count();
        let is_last = number == LOOKS_MAX || plan.actions.is_empty();
        let decided = Decided {
            asked: match number {
                1 => arranged.iter().map(|one| line(one) + "\n").collect(),
                _ => "\nlooked again: ".to_owned(),
            },
            sensed,
            plan,
            conflicts: if is_last { known.conflicts.clone() } else { Vec::new() },
        };
        if args.json {
            let report = json::of(&decided, "live".to_owned(), settings.decide.policy);
            reports.push(serde_json::json!(report.with_outcomes(&applied)));
        } else {
            crate::print_text(&text(&decided, &applied, is_last))?;
        }
        if is_last {
            break;
        }
    }
    if args.json {
        crate::print_json(&serde_json::json!({"output_version": 1, "looks": reports}))?;
    }
    match refused {
        0 => Ok(()),
        number => fail!("{number} of {count} changes could not be made: the lines above tell why"),
    }
}

/// What was decided by a look, and what became of it; after the last one, what there is to know besides.
fn text(decided: &Decided, applied: &Applied, is_last: bool) -> String {
    let (snapshot, plan) = (&decided.sensed.snapshot, &decided.plan);
    let mut text = decided.asked.clone() + &headline(plan, snapshot.period_ns) + "\n";
    if !plan.actions.is_empty() {
        text += &format!("\n{}", table(snapshot, plan, applied));
        let made = applied.outcomes.iter().filter(|(_, outcome)| outcome.is_done()).count();
        let all = plan.actions.len();
        text += &format!("\n{made} of {all} changes made; `homenode affinity revert` takes back all that is ours\n");
    }
    if !is_last {
        return text;
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
