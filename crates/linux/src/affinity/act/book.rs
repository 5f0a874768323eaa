//! Entries of a journal: targets, and files that were moved.

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
    /// The CPUs that were set, the last ones last, each with when they were first.
    pub(super) set: Vec<(Vec<CpuId>, u64)>,
    /// It got its old mask back.
    pub(super) is_back: bool,
    /// Place of the first record: later changes are taken back first.
    order: usize,
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

/// All entries, in their order.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) entries: Entries,
    /// Changes of cards by an earlier version, each with the command that puts it back.
    pub(super) cards: Vec<(Record, String)>,
    pub(super) files: BTreeMap<FileId, MovedFile>,
    /// The old mask that was read last: most threads had the same.
    old: Option<Mask>,
    next_order: usize,
}

impl Entry {
    /// Whether CPUs that something has are ones that were set, for a target that can have `room`.
    pub(super) fn has_set(&self, now: &[CpuId], room: Option<&[CpuId]>) -> bool {
        self.set.iter().any(|(set, _)| is_what_became_of(set, now, room))
    }

    /// The CPUs that were set last.
    pub(super) fn last(&self) -> &[CpuId] {
        self.set.last().map_or(&[], |(set, _)| set)
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

    /// Returns the record of a mask that was given back.
    pub(super) fn record_back(&self, target: &Target) -> Record {
        let at = self.set.last().map_or(0, |(_, at)| *at);
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
        let cards = self.cards.iter().map(|(record, _)| record.clone());
        let of_targets = targets.into_iter().flat_map(|target| {
            let entry = &self.entries[&target];
            let back = entry.is_back.then(|| entry.record_back(&target));
            let set = entry.set.iter();
            set.map(move |(set, at)| entry.record(&target, set, *at)).chain(back)
        });
        let of_files = self
            .files
            .iter()
            .map(|(file, moved)| of_file(*file, moved.to, moved.at));
        cards.chain(of_targets).chain(of_files)
    }

    /// Whether nothing has been changed.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.cards.is_empty() && self.files.is_empty()
    }

    /// Takes a line of a journal in; else what is wrong with it.
    pub(super) fn read(&mut self, record: &Record) -> Result<(), String> {
        match record.place()? {
            Place::Target(target) => {
                let known = self.old.take().filter(|old| old.text() == record.old);
                let old = known.map_or_else(|| Mask::parse(record.old.clone()), Ok);
                let old = old.map_err(|error| error.to_string())?;
                self.old = Some(old.clone());
                self.note(target, record, old);
                Ok(())
            }
            Place::Card(command) => {
                self.cards.retain(|(known, _)| known.target != record.target);
                self.cards.push((record.clone(), command));
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
        let same =
            |entry: &&mut Entry| entry.identity == record.identity && (entry.old == old || entry.whole && record.whole);
        // A driver has taken all CPUs from a queue: nothing of ours is set.
        let set = (!to.is_empty()).then(|| (to.clone(), record.at));
        if let Some(entry) = self.entries.get_mut(&target).filter(same) {
            if set.is_none() {
                return;
            }
            let known = entry.set.iter().position(|(set, _)| *set == to);
            let at = known.map_or(record.at, |index| entry.set.remove(index).1);
            entry.set.push((to, at));
            entry.is_back = record.back;
            return;
        }
        let entry = Entry {
            identity: record.identity.clone(),
            old,
            whole: record.whole,
            session: record.session,
            set: set.into_iter().collect(),
            is_back: record.back,
            order: self.next_order,
        };
        self.next_order += 1;
        self.entries.insert(target, entry);
    }
}
