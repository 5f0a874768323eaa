//! `homenode doctor`: what this machine is, what of its I/O is remote or misplaced, and the command that mends it.

mod json;
mod remedy;
mod text;

use crate::affinity::look::{failure, of_recording};
use crate::affinity::settings::period;
use crate::failure::Result;
use clap::Args;
use homenode_linux::doctor::{Examined, examine, recorded};
use homenode_linux::topology::Source;
use homenode_policy::affinity::{Config, Plan, Previous, Why, decide};
use homenode_policy::doctor::{Finding, Verdict, findings, verdict};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Tell what of this machine's I/O is remote or misplaced, what mending it would bring, and the command that does.
///
/// Looks at the machine for a few seconds, and changes nothing. The first line says how much there is to gain, or
/// "nothing to gain here". Without root it judges what it may read, and says what it could not see. It exits with 0 also
/// when it found something, and with 1 only when it could not look.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Look at the machine for so many seconds: what is idle meanwhile is not judged.
    #[arg(long, value_name = "SECONDS", value_parser = period, default_value = "3")]
    period: Duration,
    /// Judge the machine that `homenode affinity record` put into DIR, instead of this one.
    #[arg(long, value_name = "DIR", conflicts_with = "period")]
    from: Option<PathBuf>,
}

/// A machine that was looked at, and what is thought of it.
#[derive(Debug)]
struct Judged {
    source: Source,
    examined: Examined,
    plan: Plan,
    findings: Vec<Finding>,
    verdict: Verdict,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let (source, examined) = match &args.from {
        Some(directory) => (Source::Xml(directory.clone()), of_recording(directory, recorded)?),
        None => {
            let examined = examine(&Source::Live, Path::new("/"), args.period);
            (Source::Live, examined.map_err(failure)?)
        }
    };
    let judged = Judged::new(source, examined);
    if args.json {
        crate::print_json(&json::of(&judged))
    } else {
        crate::print_text(&text::of(&judged))
    }
}

impl Judged {
    fn new(source: Source, examined: Examined) -> Self {
        let snapshot = &examined.sensed.snapshot;
        let plan = decide(snapshot, &Config::default(), &Previous::default());
        let findings = findings(&examined.facts, snapshot, &plan);
        let verdict = verdict(snapshot, &plan, &findings);
        Self {
            source,
            examined,
            plan,
            findings,
            verdict,
        }
    }

    /// How many threads stay because their bytes are not known.
    fn unread(&self) -> usize {
        self.plan.stays.iter().filter(|stay| stay.why == Why::Unread).count()
    }
}

#[cfg(test)]
mod tests;
