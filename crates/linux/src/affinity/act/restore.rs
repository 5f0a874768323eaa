//! Takes everything back: the latest change first, then the masks that were inherited.

use super::book::Entry;
use super::children::{Families, Inheritor};
use super::error::Error;
use super::journal::Journal;
use super::kernel::Kernel;
use super::mask::{Mask, is_within};
use super::outcome::{Restore, Reverted};
use super::store::Store;
use super::{errno, is_there};
use crate::affinity::sense::gaps::has_vanished;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Inheritors start others until they have been restored themselves: looked for so often.
const PASSES_MAX: usize = 16;

/// Fails only before anything was restored.
pub(super) fn revert<K: Kernel, S: Store>(kernel: &K, journal: &mut Journal<S>) -> Result<Reverted, Error> {
    let machine = Machine::new(kernel)?;
    let mut reverted = Reverted {
        files: journal.take_files(),
        ..Reverted::default()
    };
    let mut failed = BTreeSet::new();
    for target in journal.latest_first() {
        let families = Families::new(kernel, journal.entries());
        let restore = machine.restore(&target, &journal.entries()[&target], &families);
        if let Restore::Failed(_) = restore {
            failed.insert(target.clone());
        }
        reverted.targets.push((target, restore));
    }
    let families = Families::new(kernel, journal.entries());
    if let Err(error) = machine.restore_inheritors(&families, &mut reverted, &mut failed) {
        let is_thread = |target: &&Target| matches!(target, Target::Thread(_));
        failed.extend(journal.entries().keys().filter(is_thread).cloned());
        reverted.unread = Some(errno(&error));
    }
    let retained = journal.retain(|target| failed.contains(target));
    reverted.stale = retained.err().map(|error| error.to_string());
    Ok(reverted)
}

/// Gives threads back the masks that they had, where theirs are still ours or inherited. Fails only before the first one.
pub(super) fn give_back<K: Kernel, S: Store>(
    kernel: &K,
    journal: &Journal<S>,
    threads: impl Iterator<Item = ThreadId>,
) -> Result<Vec<(ThreadId, Restore)>, Error> {
    let machine = Machine {
        is_exact: true,
        ..Machine::new(kernel)?
    };
    let families = Families::new(kernel, journal.entries());
    let restored = threads.map(|thread| {
        let target = Target::Thread(thread);
        let restore = match journal.entries().get(&target) {
            Some(entry) => machine.restore(&target, entry, &families),
            None => {
                let restored = machine.restore_inheritor(thread, &families);
                restored.unwrap_or_else(|error| failure(&error))
            }
        };
        (thread, restore)
    });
    Ok(restored.collect())
}

struct Machine<'a, K> {
    kernel: &'a K,
    online: Vec<CpuId>,
    possible: Vec<CpuId>,
    /// Whether less than what was set is taken for somebody's choice, where a thread's cpuset is not seen.
    is_exact: bool,
}

impl<'a, K: Kernel> Machine<'a, K> {
    fn new(kernel: &'a K) -> Result<Self, Error> {
        Ok(Self {
            kernel,
            online: kernel.online().map_err(Error::kernel("the CPUs that run"))?,
            possible: kernel.possible().map_err(Error::kernel("the CPUs there can be"))?,
            is_exact: false,
        })
    }

    fn restore(&self, target: &Target, entry: &Entry, families: &Families<'_, K>) -> Restore {
        let renamed = self.kernel.renamed(target, &entry.identity);
        let restored = self.restore_if_ours(renamed.as_ref().unwrap_or(target), entry, families);
        restored.unwrap_or_else(|error| failure(&error))
    }

    fn restore_if_ours(&self, target: &Target, entry: &Entry, families: &Families<'_, K>) -> io::Result<Restore> {
        if !is_there(self.kernel, target, entry)? {
            return Ok(Restore::Vanished);
        }
        let now = self.kernel.read(target)?;
        // A mask that looks the same need not be: the thread may have its whole cpuset because that has none of what it
        // was given.
        if now == entry.old && !entry.whole {
            return Ok(Restore::Same);
        }
        let room = match target {
            Target::Thread(id) => self.kernel.cpuset(*id)?,
            _ => Some(self.online.clone()),
        };
        let inherited = || match target {
            Target::Thread(id) if !entry.is_back() => {
                Ok(families.ancestor(*id, now.cpus(), room.as_deref())?.is_some())
            }
            _ => Ok::<_, io::Error>(false),
        };
        let could_have = room.as_deref().or(self.is_exact.then_some(&self.online));
        if entry.has_set(now.cpus(), could_have) || inherited()? {
            return self.give_back(target, entry);
        }
        match entry.whole && is_within(room.as_deref().unwrap_or(&self.online), now.cpus()) {
            true => Ok(Restore::Same),
            false => Ok(Restore::Left(now.cpus().to_vec())),
        }
    }

    /// `failed`: of whom somebody has inherited who could not be restored.
    fn restore_inheritors(
        &self,
        families: &Families<'_, K>,
        reverted: &mut Reverted,
        failed: &mut BTreeSet<Target>,
    ) -> io::Result<()> {
        let mut inherited: BTreeMap<ThreadId, Restore> = BTreeMap::new();
        let mut passes = 0;
        let result = loop {
            let inheritors = match families.inheritors() {
                Ok(inheritors) => inheritors,
                Err(error) => break Err(error),
            };
            // One that was changed while it was looked at is looked at again.
            let settled = |restore: &Restore| !matches!(restore, Restore::Left(_));
            let is_new = |it: &&Inheritor| !inherited.get(&it.thread).is_some_and(settled);
            let news: Vec<&Inheritor> = inheritors.found.iter().filter(is_new).collect();
            if passes == PASSES_MAX || news.is_empty() && inheritors.is_all {
                reverted.is_unsure = !inheritors.is_all;
                for inheritor in news {
                    let restore = self.left(inheritor, families.entry(&inheritor.ancestor));
                    if restore == Restore::Late {
                        failed.insert(inheritor.ancestor.clone());
                    }
                    inherited.insert(inheritor.thread, restore);
                }
                break inheritors.failed.map_or(Ok(()), Err);
            }
            for inheritor in news {
                let restored = self.restore_inheritor(inheritor.thread, families);
                let restore = restored.unwrap_or_else(|error| failure(&error));
                if let Restore::Failed(_) = restore {
                    failed.insert(inheritor.ancestor.clone());
                }
                inherited.insert(inheritor.thread, restore);
            }
            passes += 1;
        };
        reverted.inherited = inherited.into_iter().collect();
        result
    }

    /// Returns the outcome of an inheritor that was not restored. In a cpuset without any of our CPUs, a new thread has all
    /// of the cpuset, as if it had inherited, and is none the worse for it.
    fn left(&self, inheritor: &Inheritor, entry: &Entry) -> Restore {
        match self.kernel.cpuset(inheritor.thread) {
            Ok(Some(room)) if entry.whole && is_within(&room, inheritor.now.cpus()) => Restore::Same,
            Err(error) if has_vanished(&error) => Restore::Vanished,
            _ => Restore::Late,
        }
    }

    /// The list of inheritors is old by now: it is looked at again.
    fn restore_inheritor(&self, thread: ThreadId, families: &Families<'_, K>) -> io::Result<Restore> {
        let target = Target::Thread(thread);
        if self.kernel.identity(&target)?.is_none() {
            return Ok(Restore::Vanished);
        }
        match families.look(thread)? {
            Some(now) => self.give_back(&target, families.entry(&now.ancestor)),
            None => Ok(Restore::Left(self.kernel.read(&target)?.cpus().to_vec())),
        }
    }

    fn give_back(&self, target: &Target, entry: &Entry) -> io::Result<Restore> {
        if entry.whole {
            self.kernel.write(target, &Mask::of(&self.possible))?;
        } else if matches!(target, Target::Interrupt(_))
            && !entry.old.cpus().iter().any(|cpu| self.online.contains(cpu))
        {
            // It is refused, and without us the kernel would have given it these when its own went offline.
            self.kernel.write(target, &Mask::of(&self.online))?;
        } else {
            self.kernel.write(target, &entry.old)?;
        }
        let now = self.kernel.read(target)?;
        let whole = match target {
            // What there is of all CPUs is the whole cpuset, also where that is not seen.
            Target::Thread(id) if entry.whole => {
                let room = self.kernel.cpuset(*id)?;
                room.is_none_or(|room| is_within(&room, now.cpus()))
            }
            _ => false,
        };
        match whole || now == entry.old {
            true => Ok(Restore::Restored),
            false => Ok(Restore::Partly(now.cpus().to_vec())),
        }
    }
}

fn failure(error: &io::Error) -> Restore {
    if has_vanished(error) {
        Restore::Vanished
    } else {
        Restore::Failed(errno(error))
    }
}
