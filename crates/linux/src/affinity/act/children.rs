//! Threads and processes that have inherited a mask of ours: whoever is started gets the mask of the thread that starts it.
//!
//! One is taken for an inheritor when it has exactly a mask that we gave to a thread, started after that, and is of the
//! same process or of a process below it. Once the thread had its old mask back, only what started before, and what
//! processes start that started before, can have inherited. Where the parent of a process has ended, the session tells
//! instead: the process is taken for a child of any thread of that session which we have moved, also when it started after
//! that thread had its old mask back, because its parent may have inherited before. A daemon that has left its parent and
//! its session is not recognised.
//!
//! A thread that calls execve(2) and is not the first of its process gets the number and the start of the first one, and
//! keeps its mask. The first thread of a process therefore counts as an inheritor, too, when it has the mask of ours that another
//! thread of the process had, and that one has ended.

use super::book::{Entries, Entry, Given};
use super::kernel::{Kernel, Process};
use super::mask::{Mask, is_what_became_of};
use crate::affinity::sense::gaps::has_vanished;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::io;

/// No more are looked at.
const ANCESTORS_MAX: usize = 256;
/// Retries when an ancestor exits while the line of ancestors is read.
const TRIES_MAX: usize = 8;
const INIT: u32 = 1;

/// Who may have inherited of which entries.
pub(super) struct Families<'a, K> {
    kernel: &'a K,
    entries: &'a Entries,
}

/// Inheritors found in one pass over all threads.
#[derive(Debug)]
pub(super) struct Inheritors {
    pub(super) found: Vec<Inheritor>,
    /// Whether no thread ended before it was looked at. A thread that did may have started others after the pass began.
    pub(super) is_all: bool,
    /// Why a thread that is still there could not be looked at.
    pub(super) failed: Option<io::Error>,
}

/// A thread that has inherited a mask of ours.
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

    /// All that are not in the journal themselves.
    pub(super) fn inheritors(&self) -> io::Result<Inheritors> {
        let mut inheritors = Inheritors {
            found: Vec::new(),
            is_all: true,
            failed: None,
        };
        let threads = self
            .entries
            .iter()
            .filter(|(target, _)| matches!(target, Target::Thread(_)));
        let first = threads
            .flat_map(|(_, entry)| entry.set.iter().map(|given| given.from))
            .min();
        let Some(first) = first else {
            return Ok(inheritors);
        };
        for thread in self.kernel.threads()? {
            let may_have = thread.started >= first || is_first(thread) && self.others_of(thread).next().is_some();
            if !may_have || self.entries.contains_key(&Target::Thread(thread)) {
                continue;
            }
            match self.look(thread) {
                Ok(inheritor) => inheritors.found.extend(inheritor),
                Err(error) if has_vanished(&error) => inheritors.is_all = false,
                // The others are found all the same.
                Err(error) => _ = inheritors.failed.get_or_insert(error),
            }
        }
        Ok(inheritors)
    }

    /// Returns the entry of `ancestor`, the thread whose mask was inherited.
    pub(super) fn entry(&self, ancestor: &Target) -> &'a Entry {
        &self.entries[ancestor]
    }

    /// Whether a thread has inherited a mask.
    pub(super) fn look(&self, thread: ThreadId) -> io::Result<Option<Inheritor>> {
        let now = self.kernel.read(&Target::Thread(thread))?;
        let room = self.kernel.cpuset(thread)?;
        let ancestor = self.ancestor(thread, now.cpus(), room.as_deref())?;
        Ok(ancestor.map(|(target, _)| Inheritor {
            thread,
            ancestor: target.clone(),
            now,
        }))
    }

    /// Threads of the process of `thread` that are in the journal.
    fn others_of(&self, thread: ThreadId) -> impl Iterator<Item = (&'a Target, &'a Entry)> {
        let is_of_it = move |target: &Target| matches!(target, Target::Thread(id) if id.process == thread.process);
        self.entries.iter().filter(move |(target, _)| is_of_it(target))
    }

    /// The thread that one which has the CPUs `now`, of a cpuset with `room`, has inherited them of. Where the cpuset is not
    /// seen, only who has exactly what was set: more of them pin themselves within it than have their cpuset narrowed.
    /// Fails with `EAGAIN` where ancestors end faster than they are read.
    pub(super) fn ancestor(
        &self,
        thread: ThreadId,
        now: &[CpuId],
        room: Option<&[CpuId]>,
    ) -> io::Result<Option<(&'a Target, &'a Entry)>> {
        type Candidate<'a> = (&'a Target, ThreadId, &'a Entry, &'a Given);
        let is_it = |set: &[CpuId]| set == now || room.is_some() && is_what_became_of(set, now, room);
        if is_first(thread) {
            // The first thread's start is its process's, so the others began no earlier: a number that comes again belongs to none of them.
            let before = |target: &Target| matches!(target, Target::Thread(id) if id.thread != id.process && id.started >= thread.started);
            let others = self.others_of(thread).filter(|(target, _)| before(target));
            for (target, entry) in others.filter(|(_, entry)| entry.has_in_force(is_it)) {
                if self.kernel.identity(target)?.as_ref() != Some(&entry.identity) {
                    return Ok(Some((target, entry)));
                }
            }
        }
        let candidates: Vec<Candidate<'_>> = self
            .entries
            .iter()
            .filter_map(|(target, entry)| match target {
                Target::Thread(id) => Some((target, *id, entry)),
                _ => None,
            })
            .flat_map(|(target, id, entry)| {
                let given = entry.set.iter();
                let given = given.filter(move |given| given.from <= thread.started && is_it(&given.cpus));
                given.map(move |given| (target, id, entry, given))
            })
            .collect();
        if candidates.is_empty() {
            return Ok(None);
        }
        let Line {
            processes: line,
            is_whole,
        } = self.line(thread.process)?;
        for (number, process) in &line {
            let of_it = |(_, id, _, given): &&Candidate<'_>| {
                let mut starts = line.iter().filter(|(number, _)| *number != id.process);
                id.process == *number
                    && process.started <= given.from
                    && (given.was_in_force(thread.started)
                        || starts.any(|(_, process)| given.was_in_force(process.started)))
            };
            if let Some((target, _, entry, _)) = candidates.iter().find(of_it) {
                return Ok(Some((target, entry)));
            }
        }
        for (number, process) in &line {
            let has_it = |(_, _, entry, given): &&Candidate<'_>| {
                process.session != 0
                    && process.started >= given.from
                    && entry.session == process.session
                    && is_orphan(*number, *process, &line)
            };
            if let Some((target, _, entry, _)) = candidates.iter().find(has_it) {
                return Ok(Some((target, entry)));
            }
        }
        match is_whole {
            true => Ok(None),
            false => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        }
    }

    /// A process and those it descends from, as far as they are there.
    fn line(&self, process: u32) -> io::Result<Line> {
        let mut line = self.line_now(process)?;
        for _ in 0..TRIES_MAX {
            if line.is_whole {
                break;
            }
            let again = self.line_now(process)?;
            // Children of a parent that has ended have another one, so a parent that stays unreadable is hidden.
            let is_hidden = again.processes == line.processes;
            line = again;
            line.is_whole |= is_hidden;
        }
        Ok(line)
    }

    /// Reads a process and its ancestors once, by parents and by leaders of sessions. All processes of a session descend
    /// from its leader, also those whose parent has ended.
    fn line_now(&self, process: u32) -> io::Result<Line> {
        let mut line = Line {
            processes: vec![(process, self.kernel.process(process)?)],
            is_whole: true,
        };
        let mut next = 0;
        while let Some((_, process)) = line.processes.get(next).copied() {
            for (number, must_be) in [(process.parent, true), (process.session, false)] {
                let known = line.processes.iter().any(|(known, _)| *known == number);
                if number == 0 || known || line.processes.len() >= ANCESTORS_MAX {
                    continue;
                }
                match self.kernel.process(number) {
                    Ok(process) => line.processes.push((number, process)),
                    Err(_) => line.is_whole &= !must_be,
                }
            }
            next += 1;
        }
        Ok(line)
    }
}

fn is_first(thread: ThreadId) -> bool {
    thread.thread == thread.process
}

/// Whether its parent has ended: another one, of another session, has taken it over. Who leads a session has a parent of
/// another one anyhow.
fn is_orphan(number: u32, process: Process, line: &[(u32, Process)]) -> bool {
    if process.session == number {
        return false;
    }
    let parent = line.iter().find(|(number, _)| *number == process.parent);
    process.parent == INIT || parent.is_none_or(|(_, parent)| parent.session != process.session)
}

struct Line {
    processes: Vec<(u32, Process)>,
    /// No parent ended before it was looked at: its children have another one then.
    is_whole: bool,
}
