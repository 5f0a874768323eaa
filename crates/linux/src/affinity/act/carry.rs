//! Checks an action, carries it out after the caller wrote it to the journal, and checks the result.

use super::children::Families;
use super::conflicts::Conflict;
use super::kernel::Kernel;
use super::mask::{Mask, is_within};
use super::outcome::{Hold, Outcome};
use super::record::{Key, Record};
use super::store::Store;
use super::{Actor, failed, is_same};
use crate::affinity::sense::cpusets::within;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Action, Snapshot, Target};
use std::io;

/// An action that may be carried out, with the state of its target.
pub(super) struct Ready<'a> {
    pub(super) action: &'a Action,
    pub(super) record: Record,
    found: Mask,
    /// CPUs that the target could have; none for a thread whose cpuset is not seen.
    room: Option<Vec<CpuId>>,
}

impl Ready<'_> {
    /// Whether the record restores what is there now: of a thread that had its whole cpuset only if it still has.
    fn is_as_recorded(&self, found: &Mask, room: &[CpuId]) -> bool {
        let was_whole = self
            .room
            .as_deref()
            .is_some_and(|room| is_within(room, self.found.cpus()));
        match self.record.whole && was_whole {
            true => is_within(room, found.cpus()),
            false => *found == self.found,
        }
    }
}

impl<K: Kernel, S: Store> Actor<K, S> {
    /// The CPUs that a target can have; none of a thread whose cpuset is not seen.
    pub(super) fn room(&self, target: &Target, online: &[CpuId]) -> io::Result<Option<Vec<CpuId>>> {
        match target {
            Target::Thread(id) => self.kernel.cpuset(*id),
            _ => Ok(Some(online.to_vec())),
        }
    }

    /// Why a target is to be left alone, whatever it has.
    pub(super) fn hold(&self, action: &Action, snapshot: &Snapshot, conflicts: &[Conflict]) -> Option<Hold> {
        let managed = |number| {
            let mut interrupts = snapshot.interrupts.iter();
            interrupts.any(|interrupt| interrupt.number == number && interrupt.managed)
        };
        if matches!(action.target, Target::Interrupt(number) if managed(number)) {
            return Some(Hold::Managed);
        }
        let conflict = conflicts.iter().find(|conflict| conflict.sets(&action.target));
        conflict.map(|conflict| Hold::Conflict(Box::new(conflict.clone())))
    }

    /// Looks whether everything is as the plan says, and what would have to be restored.
    pub(super) fn prepare<'a>(
        &self,
        action: &'a Action,
        snapshot: &Snapshot,
        online: &[CpuId],
        now: u64,
    ) -> Result<Ready<'a>, Outcome> {
        let target = &action.target;
        let failed = |error: io::Error| failed(&error);
        let identity = self.kernel.identity(target).map_err(failed)?;
        let identity = identity.filter(|identity| is_the_seen(target, identity, snapshot));
        let identity = identity.ok_or(Outcome::Vanished)?;
        if self
            .refused
            .get(target)
            .is_some_and(|refused| is_same(refused, &identity))
        {
            return Err(Outcome::Withheld(Hold::Refused));
        }
        let found = self.kernel.read(target).map_err(failed)?;
        if within(found.cpus(), online) != within(&action.from, online) {
            return Err(Outcome::Changed(found.cpus().to_vec()));
        }
        if within(&action.to, online).is_empty() {
            return Err(Outcome::NoCpu);
        }
        let mut record = Record {
            target: Key::from(target),
            identity,
            old: found.text().to_owned(),
            whole: false,
            session: 0,
            to: action.to.iter().map(|cpu| cpu.0).collect(),
            at: now,
            back: false,
            stays: false,
        };
        let room = self.room(target, online).map_err(failed)?;
        let is_thread = matches!(target, Target::Thread(_));
        record.whole = is_thread && is_within(room.as_deref().unwrap_or(online), found.cpus());
        let old = self.origin(target, &found, room.as_deref(), &mut record)?;
        record.old = old.text().to_owned();
        Ok(Ready {
            action,
            record,
            found,
            room,
        })
    }

    /// Returns the mask to restore for a target that has `found` now: `found` itself, unless that is ours.
    fn origin(
        &self,
        target: &Target,
        found: &Mask,
        room: Option<&[CpuId]>,
        record: &mut Record,
    ) -> Result<Mask, Outcome> {
        let failed = |error: io::Error| failed(&error);
        let known = self.journal.entries().get(target);
        let known = known.filter(|entry| is_same(&entry.identity, &record.identity));
        let Target::Thread(id) = target else {
            let ours = known.filter(|entry| entry.has_set(found.cpus(), room));
            return Ok(ours.map_or_else(|| found.clone(), |entry| entry.old.clone()));
        };
        record.session = self.kernel.process(id.process).map_err(failed)?.session;
        let families = Families::new(&self.kernel, self.journal.entries());
        let ours = known.filter(|entry| entry.has_set(found.cpus(), room));
        let inherited = families.ancestor(*id, found.cpus(), room).map_err(failed)?;
        match ours.or(inherited.map(|(_, entry)| entry)) {
            Some(entry) => {
                record.whole = entry.whole;
                Ok(entry.old.clone())
            }
            None if record.whole => Ok(found.clone()),
            None => Err(Outcome::Withheld(Hold::Foreign)),
        }
    }

    pub(super) fn carry_out(&self, ready: &Ready<'_>, online: &[CpuId]) -> io::Result<Outcome> {
        let (target, to) = (&ready.action.target, &ready.action.to);
        if !self.is_it(target, &ready.record.identity)? {
            return Ok(Outcome::Vanished);
        }
        let found = self.kernel.read(target)?;
        let room = self.room(target, online)?;
        if found != ready.found || room != ready.room {
            let online = self.kernel.online()?;
            if within(found.cpus(), &online) != within(ready.found.cpus(), &online) {
                return Ok(Outcome::Changed(found.cpus().to_vec()));
            }
            if !room.is_some_and(|room| is_within(to, &room) && ready.is_as_recorded(&found, &room)) {
                return Ok(Outcome::NoCpu);
            }
        }
        match self.kernel.write(target, &Mask::of(to)) {
            // Of an interrupt it would say that its chip cannot.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && matches!(target, Target::Thread(_)) => {
                return Ok(Outcome::NoCpu);
            }
            written => written?,
        }
        let now = self.kernel.read(target)?;
        let all = now.cpus() == to;
        Ok(match target {
            Target::Interrupt(number) if all => {
                let effective = self.kernel.effective(*number)?;
                match is_within(&effective, to) {
                    true => Outcome::Done,
                    false => Outcome::Pending,
                }
            }
            _ if all => Outcome::Done,
            _ if is_within(now.cpus(), &within(to, online)) && !now.cpus().is_empty() => {
                Outcome::Narrowed(now.cpus().to_vec())
            }
            _ => Outcome::Changed(now.cpus().to_vec()),
        })
    }
}

/// Whether what is there now is what the plan was made for. The start of a thread is part of its name.
fn is_the_seen(target: &Target, identity: &str, snapshot: &Snapshot) -> bool {
    let Target::Interrupt(number) = target else {
        return true;
    };
    let mut interrupts = snapshot.interrupts.iter();
    interrupts.any(|interrupt| interrupt.number == *number && is_same(&interrupt.name, identity))
}
