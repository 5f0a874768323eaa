//! Carries plans out on a machine, and takes everything back.
//!
//! An [`Actor`] writes what it is about to change into its journal (`journal`), makes it durable, and only then acts:
//! `sched_setaffinity` for threads, `smp_affinity` for interrupts, XPS and RPS for queues. Each action is told with what
//! became of it; the *effective* state is read back. [`Actor::revert`] gives every value back that is still ours, byte for
//! byte, and the masks of threads and processes that have inherited one of ours (`children`). A plan gives single threads
//! their masks back before that, by the same rules; their entries stay in the journal for those that have inherited.
//!
//! What is absent:
//! - No action without a durable record of what was there before.
//! - No write to a managed interrupt, to anything that the kernel has refused once, or to a thread whose mask someone else
//!   has narrowed; nothing that does not have what the plan says it has.
//! - No value is restored that this program did not set, or that another program changed since. Exception: a thread below one of ours that
//!   started while our mask was in force and pinned itself to exactly that mask, or a later one of the same session whose parent has ended, cannot
//!   be told from one that inherited it; nor can the first thread of a process that has the mask of another one which has ended.
//! - No thread gets CPUs outside of its cpuset: the kernel cuts what is asked for, and what it gave is read back. The old
//!   mask of a thread that had its whole cpuset is restored by asking for all CPUs, so that CPUs and cpusets which grow
//!   later count for it again (Linux 6.2 and newer remember what was asked for). Where a cpuset cannot be seen, a thread
//!   with fewer than all CPUs is taken for somebody else's before it is moved, and one that has nothing but CPUs we gave
//!   it for ours afterwards.
//!
//! Other programs that set the same are in [`conflicts`]. Numbers of queues and tables of RSS are never changed: that is
//! `ethtool`'s.
//!
//! Cost: an action reads its target three times and writes it once; a plan costs one fsync. A revert reads the mask of
//! every thread of the machine. A thread's number that another thread gets between the last look and the write is not
//! noticed: Linux has no way to set the mask of a thread by anything but its number.

mod book;
mod carry;
mod children;
pub mod conflicts;
mod error;
mod journal;
mod kernel;
mod live;
mod lock;
mod mask;
mod outcome;
mod record;
mod restore;
mod store;

use super::sense::cpusets::within;
use super::sense::gaps::has_vanished;
use book::Entry;
use children::Families;
pub use conflicts::Conflict;
pub use error::Error;
use homenode_policy::affinity::{FileId, MoveFile, Plan, Previous, Reset, Return, Snapshot, Target, Thread, ThreadId};
use homenode_policy::{CpuId, NodeId};
use journal::Journal;
pub use kernel::{Kernel, Process};
pub use live::Live;
pub use lock::last_journal;
pub use mask::Mask;
use mask::is_within;
use outcome::is_for_good;
pub use outcome::{Applied, Hold, Outcome, Restore, Reverted, Standing};
use record::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
pub use store::{Disk, Store};

/// Changes a machine, and knows how it was before. Only one at a time may act ([`Actor::open`]). Dropping it changes
/// nothing: what is in force stays, and the next actor with the same journal knows of it.
#[derive(Debug)]
pub struct Actor<K, S = Disk> {
    kernel: K,
    journal: Journal<S>,
    /// With their identities.
    refused: BTreeMap<Target, String>,
    /// Threads of the last snapshot that was searched for inheritors which have inherited nothing, with their masks.
    strangers: BTreeMap<ThreadId, Arc<[CpuId]>>,
}

/// Entry of the journal for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Target that was changed.
    pub target: Target,
    /// Mask of the target before the change.
    pub old: Mask,
    /// The CPUs it was given last.
    pub to: Vec<CpuId>,
}

impl<K: Kernel> Actor<K> {
    /// Takes the journal at `path`, which need not be there, as the only actor on this machine.
    ///
    /// # Errors
    /// There is another actor, also with another journal; or this one is damaged, foreign, or of other namespaces.
    pub fn open(kernel: K, path: &Path) -> Result<Self, Error> {
        Self::with_store(kernel, Disk::open_alone(path)?)
    }
}

impl<K: Kernel, S: Store> Actor<K, S> {
    /// Makes an actor with its journal in `store`.
    ///
    /// # Errors
    /// As [`Actor::open`].
    pub fn with_store(kernel: K, store: S) -> Result<Self, Error> {
        let boot = kernel.boot().map_err(Error::kernel("the number of this boot"))?;
        let namespaces = kernel.namespaces();
        let namespaces = namespaces.map_err(Error::kernel("the namespaces of this process"))?;
        Ok(Self {
            journal: Journal::open(store, &boot, &namespaces)?,
            kernel,
            refused: BTreeMap::new(),
            strangers: BTreeMap::new(),
        })
    }

    /// Whether the journal was of another boot, of which nothing is in force any more: it has been removed.
    #[must_use]
    pub fn has_rebooted(&self) -> bool {
        self.journal.rebooted
    }

    /// Returns the rest of the journal's last line if that line was cut. The change in it is not taken back: it was never
    /// made, unless the file was cut after that line had been written.
    #[must_use]
    pub fn cut(&self) -> Option<&str> {
        self.journal.cut.as_deref()
    }

    /// Returns the changes, by this actor or before it, that have not been restored; by target.
    #[must_use]
    pub fn changed(&self) -> Vec<Changed> {
        let change = |(target, entry): (&Target, &book::Entry)| Changed {
            target: target.clone(),
            old: entry.old.clone(),
            to: entry.last().to_vec(),
        };
        let in_force = |(_, entry): &(&Target, &book::Entry)| !entry.is_back();
        self.journal.entries().iter().filter(in_force).map(change).collect()
    }

    /// Returns the files that were moved, with the nodes they were moved to. Nothing moves them back.
    #[must_use]
    pub fn moved_files(&self) -> Vec<(FileId, NodeId)> {
        self.journal.files()
    }

    /// Writes down that these files are about to be moved, which is not taken back.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn note_files(&mut self, files: &[MoveFile]) -> Result<(), Error> {
        let now = self.kernel.now().map_err(Error::kernel("the time since boot"))?;
        let records: Vec<Record> = files.iter().map(|one| book::of_file(one.file, one.to, now)).collect();
        if files.is_empty() {
            return Ok(());
        }
        self.forget_vanished()?;
        self.journal.append(&records.iter().collect::<Vec<_>>())
    }

    /// Whether nothing has been changed that was not restored.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.journal.is_empty()
    }

    /// Carries out a plan that was made for `snapshot`, but not what one of `conflicts` sets.
    ///
    /// # Errors
    /// The journal cannot be written, or the machine's CPUs cannot be read: nothing was set. Threads may have their masks back.
    pub fn apply(&mut self, plan: &Plan, snapshot: &Snapshot, conflicts: &[Conflict]) -> Result<Applied, Error> {
        let online = self.online()?;
        let now = self.kernel.now().map_err(Error::kernel("the time since boot"))?;
        self.forget_vanished()?;
        let taken_up = self.note_resets(&plan.resets, now)?;
        // Before anything is set: an error loses no outcome.
        let returned = self.give_back(&plan.returns)?;
        let mut outcomes = BTreeMap::new();
        let mut ready = Vec::new();
        for action in &plan.actions {
            let held = self.hold(action, snapshot, conflicts).map(Outcome::Withheld);
            let prepared = held.map_or_else(|| self.prepare(action, snapshot, &online, now), Err);
            match prepared {
                Ok(prepared) => ready.push(prepared),
                Err(outcome) => {
                    outcomes.insert(&action.target, outcome);
                }
            }
        }
        if !ready.is_empty() {
            let records: Vec<&Record> = ready.iter().map(|it| &it.record).collect();
            self.journal.append(&records)?;
        }
        let refused_before = self.refused.len();
        for ready in ready {
            let outcome = self.carry_out(&ready, &online).unwrap_or_else(|error| failed(&error));
            if let Outcome::Refused(errno) = outcome
                && is_for_good(errno)
            {
                self.refused.insert(ready.action.target.clone(), ready.record.identity);
            }
            outcomes.insert(&ready.action.target, outcome);
        }
        if self.refused.len() > refused_before {
            // A small file is read for each.
            let is_there = |target: &Target, identity: &String| {
                let now = self.kernel.identity(target);
                now.map_or(true, |now| now.is_some_and(|now| is_same(&now, identity)))
            };
            self.refused.retain(|target, identity| is_there(target, identity));
        }
        let outcomes = outcomes.into_iter().map(|(target, outcome)| (target.clone(), outcome));
        Ok(Applied {
            outcomes: outcomes.collect(),
            returned,
            taken_up,
        })
    }

    /// Writes down what the kernel or a driver has set anew, so that it counts as ours. A driver would have set the same
    /// without us, so that is what to restore; where the kernel took an interrupt off CPUs of ours it is the old value.
    /// Returns what still had the value that the plan says.
    fn note_resets(&mut self, resets: &[Reset], now: u64) -> Result<Vec<Target>, Error> {
        let record = |reset: &Reset| {
            let entry = self.journal.entries().get(&reset.target)?;
            let identity = self.kernel.identity(&reset.target).ok()??;
            let has = self.kernel.read(&reset.target).ok()?;
            let is_it = is_same(&identity, &entry.identity) && has.cpus() == reset.now;
            let record = is_it.then(|| entry.record(&reset.target, &reset.now, now))?;
            let record = match self.is_drivers(&reset.target, &has) {
                true => Record {
                    old: has.text().to_owned(),
                    ..record
                },
                false => record,
            };
            Some((reset.target.clone(), record))
        };
        let (targets, records): (Vec<Target>, Vec<Record>) = resets.iter().filter_map(record).unzip();
        if !records.is_empty() {
            self.journal.append(&records.iter().collect::<Vec<_>>())?;
        }
        Ok(targets)
    }

    /// Whether a driver has set this: drivers leave their choice of an interrupt's CPUs as a hint, and the kernel itself sets
    /// no queues.
    fn is_drivers(&self, target: &Target, has: &Mask) -> bool {
        match target {
            Target::Interrupt(number) => self.kernel.hint(*number).is_ok_and(|hint| hint == has.cpus()),
            _ => true,
        }
    }

    /// Gives threads their masks back, and writes that down afterwards. A program that is killed in between leaves entries
    /// that count as in force; the next one finds the old masks there.
    fn give_back(&mut self, returns: &[Return]) -> Result<Vec<(ThreadId, Restore)>, Error> {
        if returns.is_empty() {
            return Ok(Vec::new());
        }
        let threads = returns.iter().map(|one| one.thread);
        let restored = restore::give_back(&self.kernel, &self.journal, threads)?;
        let is_back = |restore: &Restore| matches!(restore, Restore::Restored | Restore::Partly(_) | Restore::Same);
        let back = restored.iter().filter(|(_, restore)| is_back(restore));
        let is_alone = |thread: &ThreadId| self.kernel.process(thread.process).is_ok_and(|it| it.threads == 1);
        let alone: BTreeSet<ThreadId> = restored.iter().map(|(thread, _)| *thread).filter(is_alone).collect();
        // Read after the masks and numbers of threads: what these processes start from now on inherits nothing of ours.
        let now = self.kernel.now().map_err(Error::kernel("the time since boot"))?;
        let records: Vec<Record> = back
            .filter_map(|(thread, _)| {
                let target = Target::Thread(*thread);
                let until = if alone.contains(thread) { now } else { book::OPEN };
                Some(self.journal.entries().get(&target)?.record_back(&target, until))
            })
            .collect();
        if !records.is_empty() {
            self.journal.append(&records.iter().collect::<Vec<_>>())?;
        }
        Ok(restored)
    }

    /// How everything stands that was changed; by target. Reads two or three small files a target: for after a plan, not
    /// for every period.
    ///
    /// # Errors
    /// The machine's CPUs cannot be read.
    pub fn verify(&self) -> Result<Vec<(Target, Standing)>, Error> {
        let online = self.online()?;
        let entries = self.journal.entries().iter().filter(|(_, entry)| !entry.is_back());
        let standings = entries.map(|(target, entry)| {
            let standing = match self.stands(target, entry, &online) {
                Ok(standing) => standing,
                Err(error) if has_vanished(&error) => Standing::Vanished,
                Err(error) => Standing::Unreadable(errno(&error)),
            };
            (target.clone(), standing)
        });
        Ok(standings.collect())
    }

    /// Returns the changes in the journal that are in force or pending, inherited masks included, for decisions.
    ///
    /// # Errors
    /// The machine's CPUs or threads cannot be read.
    pub fn previous(&self) -> Result<Previous, Error> {
        let mut previous = Previous::default();
        for (target, standing) in self.verify()? {
            if matches!(standing, Standing::InForce | Standing::Pending) {
                let cpus = self.journal.entries()[&target].last().to_vec();
                previous.note(target, cpus);
            }
        }
        let threads = Families::new(&self.kernel, self.journal.entries()).inheritors();
        for inheritor in threads.map_err(Error::kernel("the threads of the machine"))?.found {
            previous.inherit(inheritor.thread, inheritor.now.cpus().to_vec());
        }
        Ok(previous)
    }

    /// Takes note of the threads of a snapshot that have inherited a mask of ours, and writes them down: who they have it of may end before
    /// they get their own back. Reads files only for threads that have one which neither `previous` nor the last call knows.
    ///
    /// # Errors
    /// The journal cannot be written: none of them is known.
    pub fn note_inheritors(&mut self, snapshot: &Snapshot, previous: &mut Previous) -> Result<(), Error> {
        let families = Families::new(&self.kernel, self.journal.entries());
        let (mut strangers, mut found, mut records) = (BTreeMap::new(), Vec::new(), Vec::new());
        for thread in snapshot.threads.iter().filter(|thread| thread.allowed != thread.cpuset) {
            let target = Target::Thread(thread.id);
            if previous.cpus(&target).is_some() || self.journal.entries().contains_key(&target) {
                continue;
            }
            // Nobody inherits after the start.
            let is_stranger = self.strangers.get(&thread.id) == Some(&thread.allowed);
            match is_stranger {
                true => _ = strangers.insert(thread.id, thread.allowed.clone()),
                false => match families.ancestor(thread.id, &thread.allowed, Some(&thread.cpuset)) {
                    Ok(Some((_, entry))) => {
                        if let Some(record) = self.inherited(thread, entry) {
                            records.push(record);
                            found.push(thread);
                        }
                    }
                    Ok(None) => _ = strangers.insert(thread.id, thread.allowed.clone()),
                    Err(_) => {}
                },
            }
        }
        if !records.is_empty() {
            self.forget_vanished()?;
            self.journal.append(&records.iter().collect::<Vec<_>>())?;
        }
        self.strangers = strangers;
        for thread in found {
            previous.inherit(thread.id, thread.allowed.to_vec());
        }
        Ok(())
    }

    /// Record of a thread that has the mask of `entry` since its start, or since the entry has it: by execve(2) it has the start of another thread. None of
    /// one that has ended.
    fn inherited(&self, thread: &Thread, entry: &book::Entry) -> Option<Record> {
        let target = Target::Thread(thread.id);
        let given = entry.set.iter().map(|given| given.from).min();
        let since = thread.id.started.max(given.unwrap_or(0));
        Some(Record {
            identity: self.kernel.identity(&target).ok()??,
            session: self.kernel.process(thread.id.process).ok()?.session,
            ..entry.record(&target, &thread.allowed, since)
        })
    }

    /// Whether a target is still there, for [`Previous::retain`]. Reads a small file.
    #[must_use]
    pub fn is_there(&self, target: &Target) -> bool {
        let now = self.kernel.identity(target);
        let known = self.journal.entries().get(target);
        match (now, known) {
            (Ok(None), _) => false,
            (Ok(Some(now)), Some(known)) => is_same(&now, &known.identity),
            // What cannot be told is taken for still being there.
            (Ok(Some(_)), None) | (Err(_), _) => true,
        }
    }

    /// Restores everything that is still ours, and removes the journal when nothing failed. Cut at any point, it can be
    /// called again.
    ///
    /// # Errors
    /// The machine's CPUs cannot be read: nothing was restored. What goes wrong later is told in [`Reverted`].
    pub fn revert(&mut self) -> Result<Reverted, Error> {
        restore::revert(&self.kernel, &mut self.journal)
    }

    /// Whether a target has this identity.
    fn is_it(&self, target: &Target, identity: &str) -> io::Result<bool> {
        Ok(self.kernel.identity(target)?.is_some_and(|now| is_same(&now, identity)))
    }

    fn online(&self) -> Result<Vec<CpuId>, Error> {
        self.kernel.online().map_err(Error::kernel("the CPUs that run"))
    }

    fn stands(&self, target: &Target, entry: &book::Entry, online: &[CpuId]) -> io::Result<Standing> {
        if !self.is_it(target, &entry.identity)? {
            return Ok(Standing::Vanished);
        }
        let now = self.kernel.read(target)?;
        let last = entry.last();
        if now.cpus() != last {
            let room = self.room(target, online)?;
            // Of a cpuset that is not seen: whatever it has of them.
            let left = within(last, room.as_deref().unwrap_or(now.cpus()));
            if left.is_empty() || now.cpus() != left {
                return Ok(Standing::Changed(now.cpus().to_vec()));
            }
        }
        match target {
            Target::Interrupt(number) if !is_within(&self.kernel.effective(*number)?, last) => Ok(Standing::Pending),
            _ => Ok(Standing::InForce),
        }
    }

    /// Writes a journal that has become long anew, without what has vanished or is back, unless a thread that is still there has inherited of it.
    fn forget_vanished(&mut self) -> Result<(), Error> {
        if !self.journal.is_long() {
            return Ok(());
        }
        let kernel = &self.kernel;
        let inheritors = Families::new(kernel, self.journal.entries()).inheritors();
        let inheritors = inheritors.map_err(Error::kernel("the threads of the machine"))?;
        if inheritors.failed.is_some() {
            // It may have inherited of anybody.
            return Ok(());
        }
        let entries = self.journal.entries().clone();
        self.journal.retain(|target| {
            let entry = &entries[target];
            let renamed = kernel.renamed(target, &entry.identity);
            let there = is_there(kernel, renamed.as_ref().unwrap_or(target), entry);
            !entry.is_back() && there.unwrap_or(true)
                || inheritors.found.iter().any(|inheritor| inheritor.ancestor == *target)
        })
    }
}

/// Whether what an entry is of is there still. The interrupt of a card that is down has no handler, and so no name, and gets one again with this mask: it is
/// there while it has CPUs that were set.
fn is_there<K: Kernel>(kernel: &K, target: &Target, entry: &Entry) -> io::Result<bool> {
    match (kernel.identity(target)?, target) {
        (Some(now), _) => Ok(is_same(&now, &entry.identity)),
        (None, Target::Interrupt(_)) => match kernel.read(target) {
            Ok(now) => Ok(entry.has_set(now.cpus(), None)),
            Err(error) if has_vanished(&error) => Ok(false),
            Err(error) => Err(error),
        },
        (None, _) => Ok(false),
    }
}

/// Whether two identities are one target's. Drivers that share an interrupt's line add their names to it.
fn is_same(one: &str, other: &str) -> bool {
    one == other || one.split(", ").any(|name| other.split(", ").any(|known| known == name))
}

fn failed(error: &io::Error) -> Outcome {
    if has_vanished(error) {
        Outcome::Vanished
    } else {
        Outcome::Refused(errno(error))
    }
}

/// Returns the errno of an error; `EIO` where there is none, as for a file that cannot be understood.
fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests;
