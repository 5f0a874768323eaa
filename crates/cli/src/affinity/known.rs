//! What decisions know besides a period: what was set before, by the journal, and what other programs set.

use super::settings::Settings;
use super::words::plain;
use crate::failure::{Failure, chain};
use clap::Args;
use homenode_linux::affinity::act::conflicts::{Conflict, conflicts, leave_alone};
use homenode_linux::affinity::act::{Actor, Changed, Error, Live, Store};
use homenode_policy::affinity::{Plan, Previous, Snapshot, decide};
use homenode_policy::doctor::Helper;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "/var/lib/homenode";
const FILE: &str = "affinity.journal";

/// Where changes are written down before they are made.
#[derive(Args, Clone, Debug)]
pub(super) struct JournalArgs {
    /// The journal: what has been changed, and what it was before. Default: affinity.journal in /var/lib/homenode, or in
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

    /// To change what is in it, alone.
    pub(super) fn open(&self) -> Result<Actor<Live>, Failure> {
        let actor = Actor::open(Live::new(), &self.path()).map_err(failure)?;
        if actor.has_rebooted() {
            eprintln!(
                "homenode: the journal {} was of an earlier boot: nothing of it is in force, and it is gone",
                self.path().display()
            );
        }
        if let Some(cut) = actor.cut() {
            eprintln!("homenode: {}", of_cut(&self.path(), cut));
        }
        Ok(actor)
    }
}

/// All that is known of what is not taken back.
fn of_cut(journal: &Path, cut: &str) -> String {
    format!(
        "the last line of the journal {} is cut, and is not used; all before it is. A program that was killed while it \
         wrote the line has changed nothing by it. If the file was cut later, what the line names may still be as it was \
         set: look at it, and set it by hand. What there is of the line: {}",
        journal.display(),
        plain(cut)
    )
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn failure(error: Error) -> Failure {
    let why = match &error {
        Error::Journal { .. } => ": nothing is changed without a journal",
        _ => "",
    };
    Failure::new(chain(&error) + why)
}

/// Of this machine; nothing of a recorded one.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) previous: Previous,
    pub(super) changed: Vec<Changed>,
    pub(super) conflicts: Vec<Conflict>,
}

impl Known {
    /// Without taking the journal, which `run` may have. One that cannot be read is told of.
    pub(super) fn glance(journal: &JournalArgs, settings: &Settings) -> Self {
        let actor = Actor::with_store(Live::new(), Glance(journal.path()));
        let read = actor.and_then(|actor| Ok((actor.previous()?, actor.changed())));
        let (previous, changed) = read.unwrap_or_else(|error| {
            let said = plain(&failure(error).to_string());
            eprintln!("homenode: {said}; what was set before is taken for somebody else's");
            Default::default()
        });
        let conflicts = of_others(settings);
        Self {
            previous,
            changed,
            conflicts,
        }
    }

    pub(super) fn decide(&mut self, snapshot: &Snapshot, settings: &Settings) -> Plan {
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
