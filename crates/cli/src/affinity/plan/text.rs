//! The plan for a person: what is gained, what moves, what stays and why, and what could not be seen.

use super::{Decided, codes};
use crate::affinity::card_advice::lines;
use crate::affinity::pools::file_name;
use crate::affinity::table::{Side, aligned};
use crate::affinity::words::{count, name, others, plain, rate, seconds, unseen};
use crate::topology::{human_bytes, ranges};
use homenode_policy::CpuId;
use homenode_policy::affinity::{Action, MoveFile, Plan, Snapshot, Stay, Target};
use std::cmp::Reverse;
use std::collections::BTreeMap;

pub(super) fn of(decided: &Decided, all: bool, is_live: bool) -> String {
    let (snapshot, plan) = (&decided.sensed.snapshot, &decided.plan);
    let mut text = headline(plan, snapshot.period_ns) + "\n";
    if !(plan.actions.is_empty() && plan.files.is_empty()) {
        text += &format!("\n{}", actions(snapshot, plan, is_live));
    }
    if !plan.stays.is_empty() {
        text += &if all {
            format!("\n{}", stays(decided))
        } else {
            format!("\n{}", stays_by_reason(decided))
        };
    }
    let notes = lines(&decided.advice) + &others(&decided.conflicts) + &unseen(&decided.sensed.unseen);
    if !notes.is_empty() {
        text += &format!("\n{notes}");
    }
    text
}

/// `2 of 14 threads and 1 of 9 interrupts move: 412.0 MB/s less …`.
pub(in crate::affinity) fn headline(plan: &Plan, period_ns: u64) -> String {
    let moving = counts(plan.actions.iter().map(|action| &action.target));
    let staying = counts(plan.stays.iter().map(|stay| &stay.target));
    let by_kind = || KINDS.iter().zip(moving).zip(staying);
    if plan.actions.is_empty() && plan.files.is_empty() {
        let told = by_kind().filter(|(_, all)| *all > 0);
        let told: Vec<String> = told.map(|((kind, _), all)| count(all, kind.name())).collect();
        let all = if told.is_empty() {
            "nothing".to_owned()
        } else {
            listed(&told)
        };
        return format!("nothing to move: {all} looked at for {}", seconds(period_ns));
    }
    let told = by_kind().filter(|((_, moving), _)| *moving > 0);
    let told = told.map(|((kind, moving), staying)| format!("{moving} of {}", count(moving + staying, kind.name())));
    let files = plan.files.len();
    let told: Vec<String> = told.chain((files > 0).then(|| count(files, "file"))).collect();
    let bound = plan.actions.iter().filter(|action| !action.moves()).count();
    let verb = match (plan.actions.len() + files, bound) {
        (1, 0) => "moves",
        (_, 0) => "move",
        (1, _) => "is bound to where it is",
        (all, bound) if all == bound => "are bound to where they are",
        _ => "move or are bound to where they are",
    };
    let (moves, before, after) = (listed(&told), plan.cost_before, plan.cost_after);
    match before.bytes_per_s().saturating_sub(after.bytes_per_s()) {
        0 => format!("{moves} {verb}: remote traffic and overload cost {before} now, {after} after"),
        gain => {
            let gain = rate(gain, 1_000_000_000);
            format!("{moves} {verb}: {gain} less remote traffic and overload ({before} now, {after} after)")
        }
    }
}

fn actions(snapshot: &Snapshot, plan: &Plan, is_live: bool) -> String {
    let heading = ["WHAT", "FROM", "TO", "COST", "WHY"].map(str::to_owned);
    let row = |action: &Action| {
        [
            name(snapshot, &action.target),
            cpus(&action.from),
            cpus(&action.to),
            format!("{} -> {}", action.cost_before, action.cost_after),
            plain(&action.reason.to_string()),
        ]
    };
    let file = |one: &MoveFile| {
        let [what, from, to, why] = of_file(one, is_live);
        [
            what,
            from,
            to,
            format!("{} -> {}", one.cost_before, one.cost_after),
            why,
        ]
    };
    let rows = plan.actions.iter().map(row).chain(plan.files.iter().map(file));
    let rows: Vec<_> = [heading].into_iter().chain(rows).collect();
    aligned([Side::Left, Side::Left, Side::Left, Side::Right, Side::Left], &rows)
}

/// Cells of a file that moves: its name, how much of it moves, to where, and why.
pub(in crate::affinity) fn of_file(one: &MoveFile, is_live: bool) -> [String; 4] {
    [
        plain(&file_name(one.file, is_live)),
        format!("{} elsewhere", human_bytes(one.bytes)),
        one.to.to_string(),
        format!("{one}; `revert` leaves it there"),
    ]
}

/// Each thing that stays.
fn stays(decided: &Decided) -> String {
    let heading = ["STAYS", "COST", "WHY"].map(str::to_owned);
    let row = |stay: &Stay| {
        [
            name(&decided.sensed.snapshot, &stay.target),
            stay.cost.to_string(),
            plain(&codes::of_stay(stay, &decided.conflicts).2),
        ]
    };
    let rows: Vec<_> = [heading]
        .into_iter()
        .chain(decided.plan.stays.iter().map(row))
        .collect();
    aligned([Side::Left, Side::Right, Side::Left], &rows)
}

/// How many stay for which reason, most first.
fn stays_by_reason(decided: &Decided) -> String {
    let mut by_reason: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    for stay in &decided.plan.stays {
        let (_, why, _) = codes::of_stay(stay, &decided.conflicts);
        by_reason.entry(why).or_default()[kind(&stay.target) as usize] += 1;
    }
    let mut by_reason: Vec<(String, [usize; 3])> = by_reason.into_iter().collect();
    by_reason.sort_by_key(|(_, numbers)| Reverse(numbers.iter().sum::<usize>()));
    let row = |(why, numbers): &(String, [usize; 3])| {
        let told = KINDS.iter().zip(numbers).filter(|(_, number)| **number > 0);
        let told: Vec<String> = told.map(|(kind, number)| count(*number, kind.name())).collect();
        [format!("  {}", listed(&told)), why.clone()]
    };
    let rows: Vec<_> = by_reason.iter().map(row).collect();
    "staying (--all lists each):\n".to_owned() + &aligned([Side::Left, Side::Left], &rows)
}

/// An empty set is that of a queue that uses no CPU of its own.
pub(in crate::affinity) fn cpus(cpus: &[CpuId]) -> String {
    if cpus.is_empty() {
        "none".to_owned()
    } else {
        ranges(cpus)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thread,
    Interrupt,
    Queue,
}

const KINDS: [Kind; 3] = [Kind::Thread, Kind::Interrupt, Kind::Queue];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Interrupt => "interrupt",
            Self::Queue => "queue",
        }
    }
}

fn kind(target: &Target) -> Kind {
    match target {
        Target::Thread(_) => Kind::Thread,
        Target::Interrupt(_) => Kind::Interrupt,
        Target::Transmit { .. } | Target::Receive { .. } => Kind::Queue,
    }
}

fn counts<'a>(targets: impl Iterator<Item = &'a Target>) -> [usize; 3] {
    let mut counts = [0; 3];
    for target in targets {
        counts[kind(target) as usize] += 1;
    }
    counts
}

/// `a`, `a and b`, `a, b and c`.
fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
