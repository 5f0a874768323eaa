//! `homenode affinity revert`: everything that is still as it was set gets back what it had before.

use super::known::{JournalArgs, failure};
use super::words::count;
use crate::failure::{Result, fail};
use clap::Args;
use homenode_linux::affinity::act::{Restore, Reverted};
use homenode_policy::affinity::Target;

/// Give back every value that `apply` or a killed `run` has left.
///
/// What somebody else has changed since is left alone, and told. Threads and processes that have inherited a mask are
/// restored too. `run` reverts by itself when it ends.
#[derive(Args, Debug)]
pub(crate) struct RevertArgs {
    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &RevertArgs) -> Result<()> {
    let path = args.journal.path();
    if matches!(path.try_exists(), Ok(false)) {
        return crate::print_line(&format!("nothing to revert: there is no journal {}", path.display()));
    }
    let mut actor = args.journal.open()?;
    let reverted = actor.revert().map_err(failure)?;
    let told: String = lines(&reverted).iter().map(|line| format!("  {line}\n")).collect();
    crate::print_text(&format!("{}\n{told}", summary(&reverted)))?;
    if reverted.is_complete() {
        Ok(())
    } else {
        fail!(
            "not everything could be restored; what could not is still in {}: try again",
            path.display()
        )
    }
}

/// A line for all that there still is.
pub(super) fn lines(reverted: &Reverted) -> Vec<String> {
    let targets = reverted
        .targets
        .iter()
        .map(|(target, restore)| (target.to_string(), restore));
    let inherited = reverted.inherited.iter().map(|(thread, restore)| {
        let name = format!("{}, which has inherited its mask", Target::Thread(*thread));
        (name, restore)
    });
    let there = targets
        .chain(inherited)
        .filter(|(_, restore)| **restore != Restore::Vanished);
    there.map(|(name, restore)| format!("{name}: {restore}")).collect()
}

/// `3 values restored; 1 left alone, as somebody else has changed it; 2 are of what is not there any more`.
pub(super) fn summary(reverted: &Reverted) -> String {
    let [mut restored, mut same, mut left, mut gone, mut failed] = [0; 5];
    let targets = reverted.targets.iter().map(|(_, restore)| restore);
    for restore in targets.chain(reverted.inherited.iter().map(|(_, restore)| restore)) {
        match restore {
            Restore::Restored | Restore::Partly(_) => restored += 1,
            Restore::Same => same += 1,
            Restore::Left(_) => left += 1,
            Restore::Vanished => gone += 1,
            _ => failed += 1,
        }
    }
    let mut text = format!("{} restored", count(restored, "value"));
    for (number, what) in [
        (same, "already as before"),
        (left, "left alone, as somebody else has changed it since"),
        (gone, "of what is not there any more"),
        (failed, "not restored"),
    ] {
        if number > 0 {
            text += &format!("; {number} {what}");
        }
    }
    text
}
