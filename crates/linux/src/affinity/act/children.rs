//! Threads and processes that have inherited a mask of ours: whoever is started gets the mask of the thread that starts it.
//!
//! One is taken for an inheritor when it has exactly a mask that we gave to a thread, started after that, and is of the
//! same process, of a process below it, or of one that has the same session or descends from one that has. A daemon that
//! has left its parent and its session is not recognised.

use super::journal::{Entries, Entry};
use super::kernel::{Kernel, Process};
use super::mask::{Mask, is_what_became_of};
use crate::affinity::gaps::has_vanished;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::collections::VecDeque;
use std::io;

/// No more are looked at.
const ANCESTORS_MAX: usize = 256;
const INIT: u32 = 1;

/// Who may have inherited of which entries.
pub(super) struct Families<'a, K> {
    kernel: &'a K,
    entries: &'a Entries,
}

/// One that has.
#[derive(Debug)]
pub(super) struct Inheritor {
    pub(super) thread: ThreadId,
    pub(super) now: Mask,
    /// The thread whose mask it has.
    pub(super) ancestor: Target,
}

impl<'a, K: Kernel> Families<'a, K> {
    pub(super) fn new(kernel: &'a K, entries: &'a Entries) -> Self {
        Self { kernel, entries }
    }

    /// All that are not in the journal themselves, ascending.
    pub(super) fn inheritors(&self) -> io::Result<Vec<Inheritor>> {
        let is_thread = |target: &Target| matches!(target, Target::Thread(_));
        if !self.entries.keys().any(is_thread) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for thread in self.kernel.threads()? {
            if self.entries.contains_key(&Target::Thread(thread)) {
                continue;
            }
            let looked = self.look(thread);
            match looked {
                Ok(inheritor) => found.extend(inheritor),
                Err(error) if has_vanished(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Of the thread whose mask somebody has inherited.
    pub(super) fn entry(&self, ancestor: &Target) -> &'a Entry {
        &self.entries[ancestor]
    }

    /// Whether a thread has inherited a mask.
    pub(super) fn look(&self, thread: ThreadId) -> io::Result<Option<Inheritor>> {
        let now = self.kernel.read(&Target::Thread(thread))?;
        let room = self.kernel.cpuset(thread)?;
        let ancestor = self.ancestor(thread, now.cpus(), &room);
        Ok(ancestor.map(|(target, _)| Inheritor {
            thread,
            ancestor: target.clone(),
            now,
        }))
    }

    /// The thread that one which has the CPUs `now`, of a cpuset with `room`, has inherited them of.
    pub(super) fn ancestor(&self, thread: ThreadId, now: &[CpuId], room: &[CpuId]) -> Option<(&'a Target, &'a Entry)> {
        let candidates: Vec<(&Target, ThreadId, &Entry, u64)> = self
            .entries
            .iter()
            .filter_map(|(target, entry)| {
                let Target::Thread(id) = target else { return None };
                let mut set = entry.set.iter();
                let (_, at) = set.find(|(set, at)| thread.started >= *at && is_what_became_of(set, now, room))?;
                Some((target, *id, entry, *at))
            })
            .collect();
        if candidates.is_empty() {
            return None;
        }
        let line = self.line(thread.process);
        for (number, process) in &line {
            let of_it = |(_, id, _, at): &&(_, ThreadId, _, u64)| id.process == *number && process.started <= *at;
            if let Some((target, _, entry, _)) = candidates.iter().find(of_it) {
                return Some((target, entry));
            }
        }
        for (number, process) in &line {
            let has_it = |(_, _, entry, _): &&(_, _, &Entry, u64)| {
                process.session != 0 && entry.session == process.session && (*number != INIT || line.len() == 1)
            };
            if let Some((target, _, entry, _)) = candidates.iter().find(has_it) {
                return Some((target, entry));
            }
        }
        None
    }

    /// A process and those it descends from, as far as they are there: parents, and the leaders of sessions, from whom all
    /// of a session descend, also those whose parent has ended.
    fn line(&self, process: u32) -> Vec<(u32, Process)> {
        let mut line: Vec<(u32, Process)> = Vec::new();
        let mut next = VecDeque::from([process]);
        while let Some(number) = next.pop_front() {
            if number == 0 || line.len() == ANCESTORS_MAX || line.iter().any(|(known, _)| *known == number) {
                continue;
            }
            if let Ok(process) = self.kernel.process(number) {
                line.push((number, process));
                next.extend([process.parent, process.session]);
            }
        }
        line
    }
}
