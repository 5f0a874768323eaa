//! Takes everything back: the latest change first, then the masks that were inherited.

use super::children::{Families, Inheritor};
use super::errno;
use super::error::Error;
use super::journal::{Entry, Journal};
use super::kernel::Kernel;
use super::mask::{Mask, is_within};
use super::outcome::{Restore, Reverted};
use super::store::Store;
use crate::affinity::gaps::has_vanished;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Target, ThreadId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Inheritors start others until they have been restored themselves: looked for so often.
const PASSES_MAX: usize = 16;

pub(super) fn revert<K: Kernel, S: Store>(kernel: &K, journal: &mut Journal<S>) -> Result<Reverted, Error> {
    let machine = Machine {
        kernel,
        online: kernel.online().map_err(Error::kernel("the CPUs that run"))?,
        possible: kernel.possible().map_err(Error::kernel("the CPUs there can be"))?,
    };
    let mut reverted = Reverted::default();
    let mut failed = BTreeSet::new();
    for target in journal.latest_first() {
        let families = Families::new(kernel, journal.entries());
        let restore = machine.restore(&target, &journal.entries()[&target], &families);
        if let Restore::Failed(_) = restore {
            failed.insert(target.clone());
        }
        reverted.targets.push((target, restore));
    }
    let mut inherited: BTreeMap<ThreadId, Restore> = BTreeMap::new();
    for _ in 0..PASSES_MAX {
        let families = Families::new(kernel, journal.entries());
        let found = families
            .inheritors()
            .map_err(Error::kernel("the threads of the machine"))?;
        // One that was changed while it was looked at is looked at again.
        let settled = |restore: &Restore| !matches!(restore, Restore::Left(_));
        let is_new = |it: &&Inheritor| !inherited.get(&it.thread).is_some_and(settled);
        let news: Vec<&Inheritor> = found.iter().filter(is_new).collect();
        if news.is_empty() {
            break;
        }
        for inheritor in news {
            let restored = machine.restore_inheritor(inheritor, &families);
            let restore = restored.unwrap_or_else(|error| failure(&error));
            if let Restore::Failed(_) = restore {
                failed.insert(inheritor.ancestor.clone());
            }
            inherited.insert(inheritor.thread, restore);
        }
    }
    reverted.inherited = inherited.into_iter().collect();
    journal.retain(|target| failed.contains(target))?;
    Ok(reverted)
}

struct Machine<'a, K> {
    kernel: &'a K,
    online: Vec<CpuId>,
    possible: Vec<CpuId>,
}

impl<K: Kernel> Machine<'_, K> {
    fn restore(&self, target: &Target, entry: &Entry, families: &Families<'_, K>) -> Restore {
        let restored = self.restore_if_ours(target, entry, families);
        restored.unwrap_or_else(|error| failure(&error))
    }

    fn restore_if_ours(&self, target: &Target, entry: &Entry, families: &Families<'_, K>) -> io::Result<Restore> {
        if self.kernel.identity(target)?.as_ref() != Some(&entry.identity) {
            return Ok(Restore::Vanished);
        }
        let now = self.kernel.read(target)?;
        if now == entry.old {
            return Ok(Restore::Same);
        }
        let (room, inherited) = match target {
            Target::Thread(id) => {
                let room = self.kernel.cpuset(*id)?;
                let inherited = families.ancestor(*id, now.cpus(), &room).is_some();
                (room, inherited)
            }
            _ => (self.online.clone(), false),
        };
        if inherited || entry.has_set(now.cpus(), &room) {
            return self.give_back(target, entry);
        }
        match entry.whole && is_within(&room, now.cpus()) {
            true => Ok(Restore::Same),
            false => Ok(Restore::Left(now.cpus().to_vec())),
        }
    }

    /// The list of inheritors is old by now: it is looked at again.
    fn restore_inheritor(&self, inheritor: &Inheritor, families: &Families<'_, K>) -> io::Result<Restore> {
        let target = Target::Thread(inheritor.thread);
        if self.kernel.identity(&target)?.is_none() {
            return Ok(Restore::Vanished);
        }
        match families.look(inheritor.thread)? {
            Some(now) => self.give_back(&target, families.entry(&now.ancestor)),
            None => Ok(Restore::Left(self.kernel.read(&target)?.cpus().to_vec())),
        }
    }

    fn give_back(&self, target: &Target, entry: &Entry) -> io::Result<Restore> {
        if entry.whole {
            self.kernel.write(target, &Mask::of(&self.possible))?;
        } else {
            self.kernel.write(target, &entry.old)?;
        }
        let now = self.kernel.read(target)?;
        let whole = match target {
            Target::Thread(id) if entry.whole => is_within(&self.kernel.cpuset(*id)?, now.cpus()),
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
