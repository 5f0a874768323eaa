//! `homenode affinity apply`: carries plans out until nothing is left to move but what has just moved.

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
use homenode_linux::affinity::act::{Actor, Applied, Live, Outcome};
use homenode_policy::affinity::{Plan, Snapshot, Stay, Why};

/// Move what `plan` says, and what is seen only then.
///
/// Looks at the machine for a few seconds, decides, writes what it is about to change into the journal, and changes it;
/// then tells what became of each change. What has moved uses other queues, so it looks again, three times at most, until
/// nothing is left to move but what has just moved: that stays for `dwell_periods`, and is told. `homenode affinity revert`
/// takes all of it back. Run again, it goes on from what it finds, and the journal keeps the first values. Exits with 1 when
/// the kernel refused something.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// As JSON: what became of each setting of cards, and of each look what `plan --json` has, with what became of each
    /// action.
    #[arg(long)]
    json: bool,
}

/// A load that stays the same is settled by then.
const LOOKS_MAX: usize = 3;

/// What was tried so far. Text is printed as it comes; JSON at the end, also when something failed before it.
struct Told {
    looks: Vec<serde_json::Value>,
    changes: usize,
    refused: usize,
}

pub(super) fn run(args: &ApplyArgs) -> Result<()> {
    let settings = Settings::read(&args.settings)?;
    let mut actor = args.journal.open()?;
    let arranged = arrange(&mut actor, &settings)?;
    if !args.json {
        crate::print_text(&arranged.iter().map(|one| line(one) + "\n").collect::<String>())?;
    }
    let mut told = Told {
        looks: Vec::new(),
        changes: arranged.len(),
        refused: arranged.iter().filter(|(_, outcome)| !outcome.is_done()).count(),
    };
    let looked = looks(args, &settings, &mut actor, &mut told);
    if args.json {
        let cards: Vec<_> = arranged.iter().map(json::arranged).collect();
        crate::print_json(&serde_json::json!({"output_version": 1, "cards": cards, "looks": told.looks}))?;
    }
    looked?;
    let place = if args.json {
        "`is_done` is false in what is told of them, and `text` tells why"
    } else {
        "the lines above tell why"
    };
    match told.refused {
        0 => Ok(()),
        number => fail!("{number} of {} changes could not be made: {place}", told.changes),
    }
}

fn looks(args: &ApplyArgs, settings: &Settings, actor: &mut Actor<Live>, told: &mut Told) -> Result<()> {
    let mut look = Look::begin()?;
    let mut known = Known {
        previous: actor.previous().map_err(failure)?,
        changed: Vec::new(),
        conflicts: of_others(settings),
    };
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_) | Outcome::NoCpu);
    for number in 1..=LOOKS_MAX {
        let sensed = look.after(args.period.period)?;
        if number == 1 {
            settings.tell_unknown_devices(&sensed.snapshot);
        }
        let plan = known.decide(&sensed.snapshot, settings);
        let applied = actor
            .apply(&plan, &sensed.snapshot, &known.conflicts)
            .map_err(failure)?;
        known.previous = applied.next(&known.previous, &plan, &sensed.snapshot);
        told.changes += plan.actions.len();
        told.refused += applied.outcomes.iter().filter(|(_, outcome)| failed(outcome)).count();
        let is_last = number == LOOKS_MAX || plan.actions.is_empty();
        let decided = Decided {
            asked: String::new(),
            sensed,
            plan,
            conflicts: if is_last { known.conflicts.clone() } else { Vec::new() },
        };
        if args.json {
            let report = json::of(&decided, "live".to_owned(), settings.decide.policy);
            told.looks.push(serde_json::json!(report.with_outcomes(&applied)));
        } else {
            let heading = if number == 1 { "" } else { "\nlooked again: " };
            crate::print_text(&text(heading, &decided, &applied, is_last))?;
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// What was decided by a look, and what became of it; after the last one, what there is to know besides.
fn text(heading: &str, decided: &Decided, applied: &Applied, is_last: bool) -> String {
    let (snapshot, plan) = (&decided.sensed.snapshot, &decided.plan);
    let lately = if is_last { lately(plan) } else { String::new() };
    let mut text = format!("{heading}{}{lately}\n", headline(plan, snapshot.period_ns));
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

/// `; 3 moved lately and are not to move again yet`: whether they should is not known.
fn lately(plan: &Plan) -> String {
    let is_held = |stay: &&Stay| matches!(stay.why, Why::Dwell { .. });
    match plan.stays.iter().filter(is_held).count() {
        0 => String::new(),
        1 => "; 1 moved lately and is not to move again yet".to_owned(),
        number => format!("; {number} moved lately and are not to move again yet"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_policy::affinity::{Cost, Target};

    #[test]
    fn what_was_moved_lately_is_counted() {
        let stay = |number, why| Stay {
            target: Target::Interrupt(number),
            why,
            cost: Cost::default(),
        };
        let held = |number| stay(number, Why::Dwell { periods_left: 3 });
        let told = |stays| {
            lately(&Plan {
                actions: Vec::new(),
                stays,
                cost_before: Cost::default(),
                cost_after: Cost::default(),
            })
        };
        assert_eq!(told(vec![stay(1, Why::Best)]), "");
        assert_eq!(
            told(vec![held(1), stay(2, Why::Settled)]),
            "; 1 moved lately and is not to move again yet"
        );
        assert_eq!(
            told(vec![held(1), stay(2, Why::Best), held(3)]),
            "; 2 moved lately and are not to move again yet"
        );
    }
}
