//! `homenode affinity revert`: everything that is still as it was set gets back what it had before.

use super::known::{JournalArgs, failure, tell_others};
use super::pools::file_name;
use super::words::{count, plain};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::shown;
use clap::Args;
use homenode_linux::affinity::act::{Restore, Reverted};
use homenode_policy::affinity::Target;
use std::fs;
use std::io;

/// Restore every value that `apply` or a killed `run` changed.
///
/// Values that another program has changed since stay as they are, and are reported. Moved files stay where they are. Threads and processes that inherited a mask are
/// restored too. `run` reverts its changes when it ends.
#[derive(Args, Debug)]
pub(crate) struct RevertArgs {
    #[command(flatten)]
    journal: JournalArgs,
}

pub(super) fn run(args: &RevertArgs) -> Result<()> {
    let path = args.journal.path();
    if matches!(path.try_exists(), Ok(false)) {
        let missing = format!("there is no journal {}", shown(&path));
        let others = args.journal.others();
        tell_others(&others.map_err(|error| Failure::new(format!("{missing}, and {}", failure(error))))?);
        return crate::print_line(&format!("nothing to revert: {missing}"));
    }
    let mut actor = args.journal.open().map_err(failure)?;
    let reverted = actor.revert().map_err(failure)?;
    let told: String = lines(&reverted).iter().map(|line| format!("  {line}\n")).collect();
    crate::print_text(&format!("{}\n{told}", summary(&reverted)))?;
    end(&reverted)
}

/// Fails unless everything was restored and the journal is gone.
pub(super) fn end(reverted: &Reverted) -> Result<()> {
    let left = "some values could not be restored and are still in the journal: `homenode affinity revert` tries \
                again";
    match (reverted.is_complete(), &reverted.stale) {
        (true, None) => Ok(()),
        (true, Some(stale)) => fail!(
            "all values are restored, but {stale}. The journal's changes are no longer in force; fix that, and \
             `homenode affinity revert` removes it"
        ),
        (false, None) => fail!("{left}"),
        (false, Some(stale)) => fail!("{left}. The journal also lists restored changes, because {stale}"),
    }
}

/// A line for all that there still is.
pub(super) fn lines(reverted: &Reverted) -> Vec<String> {
    let targets = reverted.targets.iter();
    let targets = targets.map(|(target, restore)| (named(target), restore));
    let inherited = reverted.inherited.iter().map(|(thread, restore)| {
        let name = named(&Target::Thread(*thread));
        (format!("{name}, which has inherited its mask"), restore)
    });
    let there = targets
        .chain(inherited)
        .filter(|(_, restore)| **restore != Restore::Vanished);
    let there = there.map(|(name, restore)| format!("{name}: {restore}"));
    let unread = reverted.unread.map(|errno| {
        let why = io::Error::from_raw_os_error(errno);
        format!(
            "threads that have inherited a mask: not all restored, because threads of the machine cannot be read: {why}"
        )
    });
    let unsure = "threads that have inherited a mask: all that were found; but in every pass a thread ended before it was \
                  read, and may have started another";
    let unsure = reverted.is_unsure.then(|| unsure.to_owned());
    let files = reverted.files.iter();
    let files = files.map(|(file, node)| {
        format!(
            "{}: was moved to {node}, and stays there",
            plain(&file_name(*file, true))
        )
    });
    there.chain(files).chain(unread).chain(unsure).collect()
}

/// `thread 4711 (fio)`, as long as it is there.
pub(super) fn named(target: &Target) -> String {
    let name = match target {
        Target::Thread(id) => fs::read_to_string(format!("/proc/{}/task/{}/comm", id.process, id.thread)).ok(),
        _ => None,
    };
    name.map_or_else(
        || target.to_string(),
        |name| format!("{target} ({})", plain(name.trim_end())),
    )
}

/// `3 values restored; 1 left alone, because another program has changed it since; 2 with the target gone`.
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
    let files = reverted.files.len();
    if restored + same + left + gone + failed + files == 0 {
        return "nothing was to be restored".to_owned();
    }
    let mut text = format!("{} restored", count(restored, "value"));
    for (number, what) in [
        (same, "already as before"),
        (left, "left alone, because another program has changed it since"),
        (gone, "with the target gone"),
        (failed, "not restored"),
    ] {
        if number > 0 {
            text += &format!("; {number} {what}");
        }
    }
    match files {
        0 => text,
        1 => text + "; 1 file stays where it was moved to",
        _ => format!("{text}; {files} files stay where they were moved to"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_policy::affinity::FileId;
    use homenode_policy::{CpuId, NodeId};

    #[test]
    fn revert_summary_counts_every_outcome() {
        let of = |restores: &[Restore]| {
            let targets = restores
                .iter()
                .zip(1..)
                .map(|(restore, number)| (Target::Interrupt(number), restore.clone()));
            Reverted {
                targets: targets.collect(),
                ..Reverted::default()
            }
        };
        assert_eq!(summary(&of(&[])), "nothing was to be restored");
        assert_eq!(summary(&of(&[Restore::Restored])), "1 value restored");
        let left = Restore::Left(vec![CpuId(0)]);
        let all = of(&[
            Restore::Same,
            left,
            Restore::Vanished,
            Restore::Failed(5),
            Restore::Restored,
        ]);
        let expected = "1 value restored; 1 already as before; 1 left alone, because another program has changed it since; 1 with \
                        the target gone; 1 not restored";
        assert_eq!(summary(&all), expected);
        assert_eq!(lines(&all).len(), 4);
        let file = FileId {
            // No filesystem has it.
            pool: (4095, 45),
            inode: 17,
        };
        let with_file = Reverted {
            files: vec![(file, NodeId(2))],
            ..of(&[Restore::Restored])
        };
        assert_eq!(
            summary(&with_file),
            "1 value restored; 1 file stays where it was moved to"
        );
        assert_eq!(
            lines(&with_file)[1],
            "file 17 of pool 4095:45: was moved to node 2, and stays there"
        );
        assert_eq!(lines(&all)[1], "interrupt 2: left alone: another program has set CPU 0");
    }

    #[test]
    fn failures_at_the_end_of_a_revert_have_their_own_message() {
        let told = |reverted: &Reverted| end(reverted).unwrap_err().to_string();
        let mut reverted = Reverted::default();
        assert!(end(&reverted).is_ok());
        reverted.stale = Some("cannot remove /x: Read-only file system".to_owned());
        let said = told(&reverted);
        assert!(
            said.starts_with("all values are restored, but cannot remove /x: Read-only file system. ")
                && !said.contains("nothing is changed"),
            "{said}"
        );
        reverted.unread = Some(5);
        let said = told(&reverted);
        assert!(
            said.starts_with("some values could not be restored ")
                && said.ends_with("because cannot remove /x: Read-only file system"),
            "{said}"
        );
        assert!(lines(&reverted)[0].contains("cannot be read: Input/output error"));
        reverted.is_unsure = true;
        assert_eq!(lines(&reverted).len(), 2);
    }
}
