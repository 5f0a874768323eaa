//! `homenode affinity apply`: carries plans out until nothing is left to move but what has just moved.

use super::card_advice::{advice, lines};
use super::known::{JournalArgs, Known, failure, of_others, standing, unopened};
use super::look::{Look, PeriodArgs};
use super::plan::text::{cpus, headline, of_file};
use super::plan::{Decided, json};
use super::pools::{FileMoved, move_file, moved_text};
use super::settings::{Settings, SettingsArgs};
use super::table::{Side, aligned};
use super::words::{name, others, plain, unseen};
use crate::failure::{Failure, Result, fail};
use crate::signals;
use clap::Args;
use homenode_linux::affinity::act::{Actor, Applied, Live, Outcome};
use homenode_policy::affinity::{Plan, Snapshot, Stay, Why};
use signal_hook::low_level::signal_name;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// Carry out the moves of `plan`, and those that become visible after them.
///
/// The command observes the machine for a few seconds, decides, records each change in the journal, makes it, and reports
/// the outcome. Moved threads use other queues, and new threads are moved only if they are still there, so the command
/// repeats this, at most three times, until only targets that have just moved are left: these stay for `dwell_periods`, and
/// are reported. `homenode affinity revert` restores all values. A second `apply` continues from the state it finds, and the
/// journal keeps the first values. Exit code 1 means that the kernel refused a change, the command could not continue, or
/// SIGINT (Ctrl-C) or SIGTERM ended it; the command then prints how many changes stand.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    period: PeriodArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    journal: JournalArgs,
    /// Print JSON: each round, with the fields of `plan --json`, and the outcome of each action.
    #[arg(long)]
    json: bool,
}

/// A load that stays the same is settled by then.
const LOOKS_MAX: usize = 3;

/// Attempts so far. Text is printed as it comes; JSON at the end, also after a failure.
#[derive(Default)]
struct Told {
    looks: Vec<serde_json::Value>,
    changes: usize,
    made: usize,
    refused: usize,
}

pub(super) fn run(args: &ApplyArgs) -> Result<()> {
    // From here on a signal is a message, so that what stands is told.
    let signals = signals::listen(&signals::that_end())?;
    let settings = Settings::read(&args.settings)?;
    let mut actor = args.journal.open().map_err(unopened)?;
    let mut told = Told::default();
    let looked = looks(args, &settings, &mut actor, &signals, &mut told);
    let printed = if args.json {
        crate::print_json(&serde_json::json!({"output_version": 1, "looks": told.looks}))
    } else {
        Ok(())
    };
    // Where the machine cannot be read any more, what was made does not seem to be there.
    let stands = || standing(&actor).max(told.made);
    looked
        .and(printed)
        .map_err(|failure| with_standing(&failure, stands(), &args.journal.revert()))?;
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

/// Whoever is told that it has failed must not take it for not having begun.
fn with_standing(failure: &Failure, standing: usize, revert: &str) -> Failure {
    Failure::new(match standing {
        0 => format!("{failure}: no change stands"),
        1 => format!("{failure}; 1 change that was made before stands: {revert} takes it back"),
        number => format!("{failure}; {number} changes that were made before stand: {revert} takes them back"),
    })
}

fn looks(
    args: &ApplyArgs,
    settings: &Settings,
    actor: &mut Actor<Live>,
    signals: &Receiver<i32>,
    told: &mut Told,
) -> Result<()> {
    let mut look = Look::begin()?;
    let mut known = Known {
        previous: actor.previous().map_err(failure)?,
        changed: Vec::new(),
        files: Vec::new(),
        conflicts: of_others(settings),
    };
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_) | Outcome::NoCpu);
    for number in 1..=LOOKS_MAX {
        match signals.recv_timeout(args.period.period) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(signal) => fail!("ended by {}", signal_name(signal).unwrap_or("a signal")),
            Err(RecvTimeoutError::Disconnected) => fail!("cannot listen for signals any more"),
        }
        let sensed = look.sense()?;
        if number == 1 {
            settings.tell_unknown_devices(&sensed.snapshot);
        }
        let plan = known.decide(&sensed.snapshot, settings);
        let applied = actor
            .apply(&plan, &sensed.snapshot, &known.conflicts)
            .map_err(failure)?;
        known.previous = applied.next(&known.previous, &plan, &sensed.snapshot, &settings.decide);
        actor.note_files(&plan.files).map_err(failure)?;
        let mut signal = None;
        let files = plan.files.iter().map(|file| {
            signal = signal.or_else(|| signals.try_recv().ok());
            signal.map_or_else(|| move_file(file), |_| Err("ended by a signal".to_owned()))
        });
        let files: Vec<FileMoved> = files.collect();
        told.changes += plan.actions.len() + files.len();
        told.made += applied.made();
        told.refused += applied.outcomes.iter().filter(|(_, outcome)| failed(outcome)).count();
        told.refused += files.iter().filter(|moved| moved.is_err()).count();
        let is_last = number == LOOKS_MAX || is_settled(&plan);
        let decided = Decided {
            advice: advice(&sensed, &plan),
            sensed,
            plan,
            conflicts: if is_last { known.conflicts.clone() } else { Vec::new() },
        };
        if args.json {
            let report = json::of(&decided, "live".to_owned(), settings.decide.policy);
            told.looks
                .push(serde_json::json!(report.with_outcomes(&applied, &files)));
        } else {
            let heading = if number == 1 { "" } else { "\nlooked again: " };
            let done = Done {
                applied: &applied,
                files: &files,
            };
            crate::print_text(&text(heading, &decided, &done, is_last, &args.journal.revert()))?;
        }
        if let Some(signal) = signal {
            fail!("ended by {}", signal_name(signal).unwrap_or("a signal"));
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Whether another look would find nothing else to do.
fn is_settled(plan: &Plan) -> bool {
    plan.actions.is_empty() && plan.files.is_empty() && !plan.stays.iter().any(has_begun)
}

fn has_begun(stay: &Stay) -> bool {
    stay.why == Why::New
}

/// Outcomes of a plan.
struct Done<'a> {
    applied: &'a Applied,
    files: &'a [FileMoved],
}

/// Returns the decisions of a look and their outcomes; for the last look, also conflicts and unseen data.
fn text(heading: &str, decided: &Decided, done: &Done<'_>, is_last: bool, revert: &str) -> String {
    let (snapshot, plan) = (&decided.sensed.snapshot, &decided.plan);
    let lately = if is_last { lately(plan) } else { String::new() };
    let mut text = format!("{heading}{}{lately}\n", headline(plan, snapshot.period_ns));
    if !(plan.actions.is_empty() && plan.files.is_empty()) {
        text += &format!("\n{}", table(snapshot, plan, done));
        let moved = done.files.iter().filter(|moved| moved.is_ok()).count();
        let (made, all) = (done.applied.made() + moved, plan.actions.len() + plan.files.len());
        text += &format!("\n{made} of {all} changes made; {revert} takes back all that is ours\n");
    }
    if !is_last {
        return text;
    }
    let notes = lines(&decided.advice) + &others(&decided.conflicts) + &unseen(&decided.sensed.unseen);
    if !notes.is_empty() {
        text += &format!("\n{notes}");
    }
    text
}

/// `; 3 moved lately and are not to move again yet; 1 has just begun and is not moved yet`: whether they should is not
/// known.
fn lately(plan: &Plan) -> String {
    let of = |is: fn(&Stay) -> bool, one: &str, several: &str| match plan.stays.iter().filter(|stay| is(stay)).count() {
        0 => String::new(),
        1 => format!("; 1 {one}"),
        number => format!("; {number} {several}"),
    };
    of(
        |stay| matches!(stay.why, Why::Dwell { .. }),
        "moved lately and is not to move again yet",
        "moved lately and are not to move again yet",
    ) + &of(
        has_begun,
        "has just begun and is not moved yet",
        "have just begun and are not moved yet",
    )
}

/// In the order of the plan.
fn table(snapshot: &Snapshot, plan: &Plan, done: &Done<'_>) -> String {
    let heading = ["WHAT", "FROM", "TO", "OUTCOME", "WHY"].map(str::to_owned);
    let rows = plan
        .actions
        .iter()
        .zip(&done.applied.outcomes)
        .map(|(action, (_, outcome))| {
            [
                name(snapshot, &action.target),
                cpus(&action.from),
                cpus(&action.to),
                plain(&outcome.to_string()),
                plain(&action.reason.to_string()),
            ]
        });
    let files = plan.files.iter().zip(done.files).map(|(one, moved)| {
        let [what, from, to, why] = of_file(one, true);
        [what, from, to, plain(&moved_text(moved)), why]
    });
    let rows: Vec<_> = [heading].into_iter().chain(rows).chain(files).collect();
    aligned([Side::Left; 5], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::affinity::act::Error;
    use homenode_policy::affinity::{Cost, Target};

    #[test]
    fn a_failure_tells_how_many_changes_stand_and_how_to_revert_them() {
        let failed = failure(Error::Journal {
            what: "write",
            path: "/x".into(),
            source: std::io::Error::from_raw_os_error(28),
        });
        let told = |standing| with_standing(&failed, standing, "`revert`").to_string();
        let problem = "cannot write /x: No space left on device (os error 28): make room there";
        assert_eq!(told(0), format!("{problem}: no change stands"));
        assert_eq!(
            told(1),
            format!("{problem}; 1 change that was made before stands: `revert` takes it back")
        );
        assert_eq!(
            told(2),
            format!("{problem}; 2 changes that were made before stand: `revert` takes them back")
        );
    }

    #[test]
    fn targets_moved_lately_are_counted() {
        let stay = |number, why| Stay {
            target: Target::Interrupt(number),
            why,
            cost: Cost::default(),
        };
        let held = |number| stay(number, Why::Dwell { periods_left: 3 });
        let told = |stays| {
            lately(&Plan {
                stays,
                ..Plan::default()
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
        assert_eq!(
            told(vec![held(1), stay(2, Why::New)]),
            "; 1 moved lately and is not to move again yet; 1 has just begun and is not moved yet"
        );
    }
}
