//! Entries of a journal: targets, and files that were moved.

use super::is_same;
use super::mask::{Mask, is_what_became_of};
use super::record::{Key, Place, Record};
use homenode_policy::affinity::{FileId, Target};
use homenode_policy::{CpuId, NodeId};
use std::collections::BTreeMap;

/// Old and set masks of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) identity: String,
    pub(super) old: Mask,
    pub(super) whole: bool,
    pub(super) session: u32,
    /// The last one last.
    pub(super) set: Vec<Given>,
    /// Place of the first record: later changes are taken back first.
    order: usize,
}

/// CPUs that a target was given, and the time in which others may have inherited them; in clock ticks since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) cpus: Vec<CpuId>,
    pub(super) from: u64,
    /// When the old mask was back, [`OPEN`] if other threads of the process may have had these CPUs then; none while these CPUs
    /// are in force, or others that were set since.
    until: Option<u64>,
}

/// All targets.
pub(super) type Entries = BTreeMap<Target, Entry>;

/// A file that was moved, and stays there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MovedFile {
    pub(super) to: NodeId,
    at: u64,
}

/// Files that are kept of those that were moved, the latest ones.
const FILES_MAX: usize = 1024;
/// End of an interval that is not known.
pub(super) const OPEN: u64 = u64::MAX;
/// Intervals that are kept of a mask that went back again and again; then they become one.
const INTERVALS_MAX: usize = 8;

/// All entries, in their order.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) entries: Entries,
    pub(super) files: BTreeMap<FileId, MovedFile>,
    /// The old mask that was read last: most threads had the same.
    old: Option<Mask>,
    next_order: usize,
}

impl Given {
    /// Whether a thread or process that started then may have inherited these CPUs from the target.
    pub(super) fn was_in_force(&self, started: u64) -> bool {
        self.from <= started && self.until.is_none_or(|until| started <= until)
    }
}

impl Entry {
    /// Whether CPUs that something has are ones that were set and have not gone back, for a target that can have `room`.
    pub(super) fn has_set(&self, now: &[CpuId], room: Option<&[CpuId]>) -> bool {
        self.has_in_force(|set| is_what_became_of(set, now, room))
    }

    /// Whether `is_it` holds for CPUs that were set and have not gone back.
    pub(super) fn has_in_force(&self, is_it: impl Fn(&[CpuId]) -> bool) -> bool {
        let mut set = self.set.iter().filter(|given| given.until.is_none());
        set.any(|given| is_it(&given.cpus))
    }

    /// The CPUs that were set last.
    pub(super) fn last(&self) -> &[CpuId] {
        self.set.last().map_or(&[], |given| &given.cpus)
    }

    /// Whether the target got its old mask back.
    pub(super) fn is_back(&self) -> bool {
        self.set.last().is_some_and(|given| given.until.is_some())
    }

    /// Takes in what was set, or that the old mask was back at `at`.
    fn give(&mut self, cpus: Vec<CpuId>, at: u64, is_back: bool) {
        if is_back {
            let open = self.set.iter_mut().filter(|given| given.until.is_none());
            open.for_each(|given| given.until = Some(at));
            return;
        }
        let mut same = self.set.iter().filter(|given| given.cpus == cpus);
        let is_full = same.clone().count() == INTERVALS_MAX;
        let goes_on = |given: &&Given| is_full || given.until.is_none_or(|until| until == OPEN);
        let from = same.find(goes_on).map_or(at, |given| given.from);
        self.set.retain(|given| given.cpus != cpus || given.from < from);
        self.set.push(Given {
            cpus,
            from,
            until: None,
        });
    }

    /// Returns the record of `set`, which something was given at a time, with the old value of this entry.
    pub(super) fn record(&self, target: &Target, set: &[CpuId], at: u64) -> Record {
        Record {
            target: Key::from(target),
            identity: self.identity.clone(),
            old: self.old.text().to_owned(),
            whole: self.whole,
            session: self.session,
            to: set.iter().map(|cpu| cpu.0).collect(),
            at,
            back: false,
            stays: false,
        }
    }

    /// Returns the record of a mask that was back at a time.
    pub(super) fn record_back(&self, target: &Target, at: u64) -> Record {
        let back = true;
        Record {
            back,
            ..self.record(target, self.last(), at)
        }
    }
}

/// The record of a file that is moved.
pub(super) fn of_file(file: FileId, to: NodeId, at: u64) -> Record {
    Record {
        target: Key::from(file),
        identity: String::new(),
        old: String::new(),
        whole: false,
        session: 0,
        to: vec![to.0.into()],
        at,
        back: false,
        stays: true,
    }
}

impl Book {
    /// The targets, the latest change first.
    pub(super) fn latest_first(&self) -> Vec<Target> {
        let mut targets: Vec<&Target> = self.entries.keys().collect();
        targets.sort_by_key(|target| std::cmp::Reverse(self.entries[target].order));
        targets.into_iter().cloned().collect()
    }

    /// The records of all entries, in their order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record> {
        let mut targets = self.latest_first();
        targets.reverse();
        let of_targets = targets.into_iter().flat_map(|target| {
            let entry = &self.entries[&target];
            entry.set.iter().flat_map(move |given| {
                let back = given.until.map(|at| entry.record_back(&target, at));
                [entry.record(&target, &given.cpus, given.from)].into_iter().chain(back)
            })
        });
        let of_files = self
            .files
            .iter()
            .map(|(file, moved)| of_file(*file, moved.to, moved.at));
        of_targets.chain(of_files)
    }

    /// Whether nothing has been changed.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.files.is_empty()
    }

    /// Takes a line of a journal in; else what is wrong with it.
    pub(super) fn read(&mut self, record: &Record) -> Result<(), String> {
        match record.place() {
            Place::Target(target) => {
                let known = self.old.take().filter(|old| old.text() == record.old);
                let old = known.map_or_else(|| Mask::parse(record.old.clone()), Ok);
                let old = old.map_err(|error| error.to_string())?;
                self.old = Some(old.clone());
                self.note(target, record, old);
                Ok(())
            }
            Place::File(file) => {
                let node = record.to.first().and_then(|node| u16::try_from(*node).ok());
                let to = NodeId(node.ok_or("a file goes to a node")?);
                self.files.insert(file, MovedFile { to, at: record.at });
                let oldest = self.files.iter().min_by_key(|(_, moved)| moved.at);
                if let Some(oldest) = oldest.map(|(file, _)| *file).filter(|_| self.files.len() > FILES_MAX) {
                    self.files.remove(&oldest);
                }
                Ok(())
            }
        }
    }

    fn note(&mut self, target: Target, record: &Record, old: Mask) {
        let to: Vec<CpuId> = record.to.iter().copied().map(CpuId).collect();
        // Two whole cpusets are the same old value, also when the cpuset has changed in between.
        let same = |entry: &&mut Entry| {
            is_same(&entry.identity, &record.identity) && (entry.old == old || entry.whole && record.whole)
        };
        if let Some(entry) = self.entries.get_mut(&target).filter(same) {
            entry.identity.clone_from(&record.identity);
            match to.is_empty() {
                // A driver has taken all CPUs from a queue: nothing of ours is set.
                true => entry.set.clear(),
                false => entry.give(to, record.at, record.back),
            }
            return;
        }
        let given = Given {
            cpus: to,
            from: record.at,
            until: record.back.then_some(record.at),
        };
        let entry = Entry {
            identity: record.identity.clone(),
            old,
            whole: record.whole,
            session: record.session,
            set: Vec::from_iter((!given.cpus.is_empty()).then_some(given)),
            order: self.next_order,
        };
        self.next_order += 1;
        self.entries.insert(target, entry);
    }
}
