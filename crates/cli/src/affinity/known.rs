//! Knowledge for decisions besides a period: earlier settings, from the journal, and settings of other programs.

use super::settings::Settings;
use super::words::{count, plain};
use crate::failure::{Failure, chain};
use crate::mountinfo::shown;
use clap::Args;
use homenode_linux::affinity::act::conflicts::{Conflict, conflicts, leave_alone};
use homenode_linux::affinity::act::{Actor, Changed, Error, Live, Standing, Store, last_journal};
use homenode_policy::NodeId;
use homenode_policy::affinity::{FileId, Plan, Previous, Snapshot, decide};
use homenode_policy::doctor::Helper;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "/var/lib/homenode";
const FILE: &str = "affinity.journal";

/// Where changes are written down before they are made.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct JournalArgs {
    /// Journal of changes with the values before. Default: affinity.journal in /var/lib/homenode, or in
    /// systemd's $STATE_DIRECTORY.
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl JournalArgs {
    pub(super) fn path(&self) -> PathBuf {
        let of_service = || {
            let directories = env::var_os("STATE_DIRECTORY")?;
            env::split_paths(&directories).next()
        };
        let default = || of_service().unwrap_or_else(|| DIRECTORY.into()).join(FILE);
        self.journal.clone().unwrap_or_else(default)
    }

    /// The command that takes back what is in it.
    pub(super) fn revert(&self) -> String {
        match &self.journal {
            Some(path) => revert_of(path),
            None => "`homenode affinity revert`".to_owned(),
        }
    }

    /// To change what is in it, alone. Changes in other journals are told of.
    pub(super) fn open(&self) -> Result<Actor<Live>, Error> {
        // The next line names this journal as the last one. When somebody else acts, it fails.
        let others = self.others().unwrap_or_default();
        let actor = Actor::open(Live::new(), &self.path())?;
        tell_others(&others);
        if actor.has_rebooted() {
            complain!(
                "homenode: the journal {} was of an earlier boot: its changes are no longer in force, and it is removed",
                self.path().display()
            );
        }
        if let Some(cut) = actor.cut() {
            complain!("homenode: {}", of_cut(&self.path(), cut));
        }
        Ok(actor)
    }

    /// Other journals with changes that stand, and how many these are, where it is known: of who acted last, and the
    /// default one.
    ///
    /// # Errors
    /// A program acts now.
    pub(super) fn others(&self) -> Result<Vec<(PathBuf, usize)>, Error> {
        let own = fs::canonicalize(self.path()).ok();
        let default = Self { journal: None }.path();
        let known = last_journal()?.into_iter().chain([default]);
        let known: BTreeSet<PathBuf> = known.filter_map(|path| fs::canonicalize(path).ok()).collect();
        let others = known.into_iter().filter(|path| Some(path) != own.as_ref());
        let with_changes = others.filter_map(|path| {
            // One that cannot be read tells of no changes that are known.
            let actor = Actor::with_store(Live::new(), Glance(path.clone())).ok()?;
            Some((path, standing(&actor))).filter(|(_, changes)| *changes > 0)
        });
        Ok(with_changes.collect())
    }
}

/// Tells of the changes in other journals, which only another command takes back.
pub(super) fn tell_others(others: &[(PathBuf, usize)]) {
    for (path, changes) in others {
        let (changes, verb) = (
            count(*changes, "change"),
            if *changes == 1 { "stands" } else { "stand" },
        );
        complain!(
            "homenode: another journal, {}, has {changes} that {verb}: {} reverts that journal",
            shown(path),
            revert_of(path)
        );
    }
}

fn revert_of(journal: &Path) -> String {
    format!("`homenode affinity revert --journal {}`", shown(journal))
}

/// All that is known of what is not taken back.
fn of_cut(journal: &Path, cut: &str) -> String {
    format!(
        "the last line of the journal {} is cut, and is not used; earlier lines are. A program that was killed while it \
         wrote the line has changed nothing by it. If the file was cut later, what the line names may still be as it was \
         set: check it, and set it by hand. The line as far as it goes: {}",
        journal.display(),
        plain(cut)
    )
}

pub(super) fn failure(error: Error) -> Failure {
    Failure::new(chain(&error))
}

/// Returns the failure for a journal that cannot be opened for writing.
pub(super) fn unopened(error: Error) -> Failure {
    let why = match &error {
        Error::Journal { .. } => {
            ": nothing is changed without a journal, and another one can be named (--journal FILE)"
        }
        _ => "",
    };
    Failure::new(format!("{}{why}", failure(error)))
}

/// Changes of `homenode affinity` that are in force by the default journal; none where that cannot be read.
pub(crate) fn changes_in_force() -> usize {
    let path = JournalArgs { journal: None }.path();
    let actor = Actor::with_store(Live::new(), Glance(path));
    actor.map_or(0, |actor| standing(&actor))
}

/// How many changes are in a journal and stand; all of them, where that cannot be told.
pub(super) fn standing<S: Store>(actor: &Actor<Live, S>) -> usize {
    let stands = |standing: &Standing| matches!(standing, Standing::InForce | Standing::Pending);
    actor.verify().map_or(actor.changed().len(), |all| {
        all.iter().filter(|(_, standing)| stands(standing)).count()
    })
}

/// Knowledge about this machine; empty for a recorded machine.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) previous: Previous,
    pub(crate) changed: Vec<Changed>,
    /// Files that were moved, with the nodes they were moved to.
    pub(super) files: Vec<(FileId, NodeId)>,
    pub(crate) conflicts: Vec<Conflict>,
}

impl Known {
    /// Without taking the journal, which `run` may have. One that cannot be read is told of.
    pub(crate) fn glance(journal: &JournalArgs, settings: &Settings) -> Self {
        let actor = Actor::with_store(Live::new(), Glance(journal.path()));
        let read = actor.and_then(|actor| Ok((actor.previous()?, actor.changed(), actor.moved_files())));
        let (previous, changed, files) = read.unwrap_or_else(|error| {
            let said = plain(&failure(error).to_string());
            complain!("homenode: {said}; values set before count as another program's");
            Default::default()
        });
        let conflicts = of_others(settings);
        Self {
            previous,
            changed,
            files,
            conflicts,
        }
    }

    pub(crate) fn decide(&mut self, snapshot: &Snapshot, settings: &Settings) -> Plan {
        leave_alone(&self.conflicts, snapshot, &mut self.previous);
        decide(snapshot, &settings.decide, &self.previous)
    }
}

/// The programs that set what is not to be set besides them.
pub(super) fn of_others(settings: &Settings) -> Vec<Conflict> {
    let mut found = conflicts(Path::new("/"));
    found.retain(|conflict| conflict.who != Helper::Irqbalance || !settings.despite_irqbalance);
    found
}

/// Reads a journal and never writes it.
struct Glance(PathBuf);

impl Store for Glance {
    fn path(&self) -> &Path {
        &self.0
    }

    fn load(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let read = || match fs::metadata(&self.0)?.is_file() {
            true => fs::read(&self.0),
            // To read it could take for ever.
            false => Err(io::Error::other("it is no regular file")),
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Journal {
                what: "read",
                path: self.0.clone(),
                source,
            }),
        }
    }

    fn append(&mut self, _: &[u8]) -> Result<(), Error> {
        Err(self.refused())
    }

    fn replace(&mut self, _: &[u8]) -> Result<(), Error> {
        Err(self.refused())
    }

    /// Asked for when it is of another boot: whoever has the journal does that.
    fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl Glance {
    fn refused(&self) -> Error {
        Error::Journal {
            what: "write",
            path: self.0.clone(),
            source: io::ErrorKind::ReadOnlyFilesystem.into(),
        }
    }
}
