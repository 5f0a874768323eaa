//! `homenode doctor`: what this machine is, what of its I/O is remote or misplaced, and the command that mends it.

mod json;
mod remedy;
mod text;

use crate::affinity::known::{JournalArgs, Known};
use crate::affinity::look::{LookArgs, failure, of_recording};
use crate::affinity::pools::ask;
use crate::affinity::settings::{Settings, SettingsArgs};
use crate::control::protocol::{Access, StatusReport};
use crate::failure::Result;
use crate::mountinfo::shown;
use crate::pool::mounted::{self, Mounted, Server};
use crate::pool::{durable, known};
use crate::status;
use clap::Args;
use homenode_linux::doctor::{Examined, examine, recorded};
use homenode_linux::topology::Source;
use homenode_policy::affinity::{Config, Plan, Previous, Snapshot, Target, Why, decide};
use homenode_policy::doctor::{Finding, Helper, Problem, Verdict, findings, verdict};
use std::collections::BTreeSet;
use std::path::Path;

/// Find remote and misplaced I/O on this machine, with the gain and the command to fix each finding.
///
/// The command observes the machine for a few seconds, and changes nothing. The first line says how much there is to gain, or
/// "nothing to gain here". Without root the command judges the data it may read, and lists the data it could not read. The
/// exit code is 0 with or without findings, and 1 only if the machine could not be observed.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: LookArgs,
}

/// A machine that was looked at, and what is thought of it.
#[derive(Debug)]
struct Judged {
    source: Source,
    examined: Examined,
    plan: Plan,
    findings: Vec<Finding>,
    verdict: Verdict,
    /// Facts about what is mounted here, with nothing to mend.
    notices: Vec<String>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let judged = match &args.look.from {
        Some(directory) => Judged::new(Source::Xml(directory.clone()), of_recording(directory, recorded)?),
        None => {
            let examined = examine(&Source::Live, Path::new("/"), args.look.period.period, ask());
            let mut examined = examined.map_err(failure)?;
            let here = Here::of(&examined.sensed.snapshot, &SettingsArgs::default());
            if here.despite_irqbalance {
                examined.facts.helpers.retain(|helper| *helper != Helper::Irqbalance);
            }
            Judged {
                notices: of_pools(),
                ..Judged::by(Source::Live, examined, here.plan, &here.interrupts)
            }
        }
    };
    if args.json {
        crate::print_json(&json::of(&judged))
    } else {
        crate::print_text(&text::of(&judged))
    }
}

/// This machine as `affinity` sees it.
struct Here {
    /// Plan by its configuration and by what `affinity` has set before, which is nobody else's; as if no other program set the same: that is a
    /// finding of its own.
    plan: Plan,
    despite_irqbalance: bool,
    /// Interrupts that `affinity` has set.
    interrupts: BTreeSet<u32>,
}

impl Here {
    fn of(snapshot: &Snapshot, args: &SettingsArgs) -> Self {
        let settings = Settings::read(args).unwrap_or_else(|error| {
            complain!("homenode: {error}; the defaults are taken");
            Settings::default()
        });
        settings.tell_unknown_devices(snapshot);
        let mut known = Known::glance(&JournalArgs::default(), &settings);
        known.conflicts.clear();
        let interrupts = known.changed.iter().filter_map(|change| match change.target {
            Target::Interrupt(number) => Some(number),
            _ => None,
        });
        Self {
            interrupts: interrupts.collect(),
            plan: known.decide(snapshot, &settings),
            despite_irqbalance: settings.despite_irqbalance,
        }
    }
}

/// Whether interrupts are on one CPU because `affinity` has put them there.
fn is_ours(problem: &Problem, ours: &BTreeSet<u32>) -> bool {
    match problem {
        Problem::OneCpu { numbers, .. } => numbers.iter().filter(|number| !ours.contains(number)).count() < 2,
        _ => false,
    }
}

impl Judged {
    /// Judges by the default configuration, and as if nothing had been set before.
    fn new(source: Source, examined: Examined) -> Self {
        let plan = decide(&examined.sensed.snapshot, &Config::default(), &Previous::default());
        Self::by(source, examined, plan, &BTreeSet::new())
    }

    /// Judges by a plan, where `affinity` has set the interrupts `ours`.
    fn by(source: Source, examined: Examined, plan: Plan, ours: &BTreeSet<u32>) -> Self {
        let snapshot = &examined.sensed.snapshot;
        let mut findings = findings(&examined.facts, snapshot, &plan);
        findings.retain(|finding| !is_ours(&finding.problem, ours));
        let verdict = verdict(snapshot, &plan, &findings);
        Self {
            source,
            examined,
            plan,
            findings,
            verdict,
            notices: Vec::new(),
        }
    }

    /// How many threads stay because their bytes are not known.
    fn unread(&self) -> usize {
        self.plan.stays.iter().filter(|stay| stay.why == Why::Unread).count()
    }
}

/// Facts about pools: durable pools that cannot be written any more first.
fn of_pools() -> Vec<String> {
    let mounts = mounted::all().unwrap_or_default();
    let known: Vec<_> = known::names().unwrap_or_default();
    let (mut wrong, mut facts) = (Vec::new(), Vec::new());
    for Mounted { mount, server } in &mounts {
        let place = shown(&mount.mount_point);
        match server {
            Server::Answers(report) => {
                let lost = status::reserved_lost(&report.pool);
                wrong.extend(lost.map(|lost| {
                    format!("{lost}, in the pool at {place}; a pool with `--data pool` keeps reservations")
                }));
                let Some(durable) = &report.durable else { continue };
                let pool = format!("the pool {} at {place}", status::named(durable));
                if report.has_failed() {
                    wrong.push(format!("{pool} is {}", status::failed_line(durable, &report.directory)));
                }
                let problems = status::problems(report);
                wrong.extend(problems.map(|(member, problem)| format!("member {member} of {pool} {problem}")));
                let small = status::small_slices(report);
                facts.extend(
                    small.map(|slice| {
                        format!("the cache of {pool} is small {slice}; `homenode up --cache` gives it more")
                    }),
                );
            }
            Server::Dead => wrong.push(status::dead_line(mount)),
            Server::Silent => {}
        }
        let is_written = |report: &StatusReport| {
            let durable = report.durable.as_ref();
            durable.is_some_and(|durable| durable.access == Access::ReadWrite)
        };
        let is_unsynced = match server {
            Server::Answers(report) => is_written(report),
            Server::Dead => false,
            Server::Silent => known.iter().any(|name| mount.source == *name.as_str()),
        };
        if is_unsynced {
            // The kernel asks no FUSE server for it.
            facts.push(format!(
                "sync(2) and syncfs(2) do not reach the pool {} at {place}: data without an fsync is durable some seconds later",
                mount.source.display()
            ));
        }
    }
    let members = known
        .iter()
        .filter_map(|name| known::find(name).ok()?)
        .flat_map(|known| known.members);
    let mut open: Vec<_> = members.filter(|path| durable::is_open_to_others(path)).collect();
    open.sort_unstable();
    open.dedup();
    wrong.extend(open.iter().map(|path| durable::open_to_others(path)));
    wrong.extend(facts);
    wrong
}

#[cfg(test)]
mod tests;
