//! Numbers of queues and tables of RSS of network cards: changed only when asked for, in the journal before, and taken back.
//!
//! Numbers first, then tables, each durable before it begins; revert as well, after the masks of queues. While a number
//! changes, a table that is ours to set is as if nobody had set it: it may name queues that go, and virtio-net (Linux 6.18)
//! sends with a table the number of queues that there was when nobody had set one, which the card then takes.
//!
//! Drivers spread a table that nobody has set anew when the number changes, or do not (virtio-net of Linux 6.1): entries
//! that are the same before and after are still nobody's.
//!
//! A queue that goes when there are to be fewer takes its masks (XPS, RPS) with it, and drivers may set those of all queues
//! anew when their number changes. The journal has the masks that were there, and revert gives them to queues that have none
//! or whose mask the kernel has changed with the number. What a driver does to the affinity of its interrupts stays.

use super::cards_book::{CardEntry, CardSetting};
use super::error::Error;
use super::journal::Journal;
use super::kernel::Kernel;
use super::mask::Mask;
use super::outcome::{CardOutcome, CardRestore};
use super::record::{Key, Record};
use super::store::Store;
use super::{Actor, errno};
use crate::affinity::Table;
use crate::affinity::cards::is_not_offered;
use crate::affinity::gaps::has_vanished;
use homenode_policy::affinity::Target;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// What is asked for of one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardWish {
    /// Its name.
    pub device: String,
    /// So many queues in each direction.
    pub queues: Option<u32>,
    /// The queues that packets are received by.
    pub rss: Option<Spread>,
}

/// Over which queues a card spreads what it receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All alike, as when nobody has set it.
    Even,
    /// These alike.
    Over(Vec<u32>),
}

/// One change, looked at.
struct Ready {
    setting: CardSetting,
    to: Vec<u32>,
    found: Vec<u32>,
    record: Record,
}

impl<K: Kernel, S: Store> Actor<K, S> {
    /// Gives cards the numbers of queues and the tables that are asked for. Everything is to be sensed anew after it:
    /// queues and interrupts may have come and gone.
    ///
    /// # Errors
    /// The journal cannot be written: nothing was changed that is not in it.
    pub fn arrange(&mut self, wishes: &[CardWish]) -> Result<Vec<(CardSetting, CardOutcome)>, Error> {
        let tables = |of: &dyn Fn(&CardWish) -> Option<Spread>| {
            let tables = wishes.iter().filter_map(|wish| {
                let device = wish.device.clone();
                Some((CardSetting::Table { device }, Wanted::Spread(of(wish)?)))
            });
            tables.collect::<Vec<_>>()
        };
        let cleared = tables(&|wish| self.is_cleared(wish).then_some(Spread::Even));
        // What it would tell, the next steps do.
        self.step(cleared, &Tables::new())?;
        let before = tables_of(&self.kernel, wishes.iter().map(|wish| &*wish.device));
        let numbers = wishes.iter().filter_map(|wish| {
            let device = wish.device.clone();
            Some((CardSetting::Queues { device }, Wanted::Number(wish.queues?)))
        });
        let mut outcomes = self.step(numbers.collect(), &before)?;
        outcomes.extend(self.step(tables(&|wish| wish.rss.clone()), &before)?);
        Ok(outcomes)
    }

    /// Whether its table is not to be set while its number of queues changes: both are asked for, and it can have them.
    fn is_cleared(&self, wish: &CardWish) -> bool {
        let (Some(queues), Some(rss)) = (wish.queues, &wish.rss) else {
            return false;
        };
        let fits = match rss {
            Spread::Even => true,
            Spread::Over(over) => over.iter().all(|queue| *queue < queues),
        };
        let counts = self.kernel.queue_counts(&wish.device);
        fits && counts.is_ok_and(|counts| counts.now() != counts.with(queues) && (1..=counts.max()).contains(&queues))
    }

    fn step(
        &mut self,
        wanted: Vec<(CardSetting, Wanted)>,
        before: &Tables,
    ) -> Result<Vec<(CardSetting, CardOutcome)>, Error> {
        let at = self.kernel.now().map_err(Error::kernel("the time since boot"))?;
        let mut outcomes = Vec::new();
        let mut ready = Vec::new();
        for (setting, wanted) in wanted {
            match self.look(&setting, &wanted, before, at) {
                Ok(one) => ready.push(one),
                Err(outcome) => outcomes.push((setting, outcome)),
            }
        }
        let records: Vec<&Record> = ready.iter().map(|one| &one.record).collect();
        if !records.is_empty() {
            self.journal.append(&records)?;
        }
        for one in ready {
            let outcome = self.set(&one).unwrap_or_else(|error| failed(&error));
            if let CardOutcome::Became(now) = &outcome {
                // What the driver has made of it is ours as well.
                let to = now.clone();
                self.journal.append(&[&Record { to, ..one.record }])?;
            }
            outcomes.push((one.setting, outcome));
        }
        Ok(outcomes)
    }

    fn look(&self, setting: &CardSetting, wanted: &Wanted, before: &Tables, at: u64) -> Result<Ready, CardOutcome> {
        let failed = |error: io::Error| failed(&error);
        let identity = self.kernel.card(setting.device()).map_err(failed)?;
        let identity = identity.ok_or(CardOutcome::Vanished)?;
        let to = self.wanted(setting, wanted)?;
        let now = has(&self.kernel, setting).map_err(failed)?;
        if now == to {
            return Err(CardOutcome::Same);
        }
        let had = unchanged(&self.kernel, setting, before).unwrap_or_else(|| now.clone());
        let known = self.journal.cards().get(setting);
        let known = known.filter(|entry| entry.identity == identity && entry.has_set(&had));
        let record = Record {
            target: Key::from(setting),
            identity,
            old: numbers(known.map_or(&had, |entry| &entry.old)),
            whole: false,
            session: 0,
            to: to.clone(),
            at,
            masks: written_down(&self.kernel, setting).map_err(failed)?,
        };
        let setting = setting.clone();
        Ok(Ready {
            setting,
            to,
            found: now,
            record,
        })
    }

    /// What a card is to have, if it can.
    fn wanted(&self, setting: &CardSetting, wanted: &Wanted) -> Result<Vec<u32>, CardOutcome> {
        let failed = |error: io::Error| failed(&error);
        match wanted {
            Wanted::Number(asked) => {
                let counts = self.kernel.queue_counts(setting.device()).map_err(failed)?;
                let max = counts.max();
                if *asked == 0 || *asked > max {
                    return Err(CardOutcome::Number { asked: *asked, max });
                }
                Ok(counts.with(*asked).to_vec())
            }
            Wanted::Spread(spread) => {
                let table = self.kernel.table(setting.device()).map_err(failed)?;
                let Spread::Over(over) = spread else {
                    return Ok(Vec::new());
                };
                let queues = table.queues;
                if let Some(queue) = over.iter().copied().find(|queue| *queue >= queues) {
                    return Err(CardOutcome::NoQueue { queue, queues });
                }
                let entries: Vec<u32> = over.iter().copied().cycle().take(table.entries.len()).collect();
                Ok(value(&Table { entries, ..table }))
            }
        }
    }

    fn set(&self, one: &Ready) -> io::Result<CardOutcome> {
        if self.kernel.card(one.setting.device())?.as_ref() != Some(&one.record.identity) {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        let now = has(&self.kernel, &one.setting)?;
        if now != one.found || written_down(&self.kernel, &one.setting)? != one.record.masks {
            return Ok(CardOutcome::Changed(now));
        }
        give(&self.kernel, &one.setting, &one.to)?;
        Ok(match has(&self.kernel, &one.setting)? {
            now if now == one.to => CardOutcome::Done,
            now => CardOutcome::Became(now),
        })
    }
}

enum Wanted {
    Number(u32),
    Spread(Spread),
}

/// Gives cards back what they had, when what they have is ours.
pub(super) fn restore(kernel: &impl Kernel, journal: &mut Journal<impl Store>) -> Vec<(CardSetting, CardRestore)> {
    let cleared = clear(kernel, journal);
    let cards = journal.cards();
    let tables = cards
        .keys()
        .filter(|setting| matches!(setting, CardSetting::Table { .. }));
    let before = tables_of(kernel, tables.map(CardSetting::device));
    // Numbers are first; what became of them is told last.
    let restored = cards.iter().rev().map(|(setting, entry)| {
        let restored = match restore_one(kernel, setting, entry, &before) {
            CardRestore::Same if cleared.contains(setting) => CardRestore::Restored,
            restored => restored,
        };
        (setting.clone(), restored)
    });
    let mut restored: Vec<_> = restored.collect();
    restored.reverse();
    restored
}

/// Tables of cards whose number of queues is to change are as if nobody had set them: those that are ours, or would be
/// given back as they are. Which were.
fn clear(kernel: &impl Kernel, journal: &mut Journal<impl Store>) -> BTreeSet<CardSetting> {
    let mut cleared = BTreeSet::new();
    let cards = journal.cards().clone();
    for (setting, entry) in &cards {
        let CardSetting::Table { device } = setting else {
            continue;
        };
        let device = device.clone();
        let number = CardSetting::Queues { device };
        let changes = cards.get(&number).is_some_and(|entry| {
            let now = has(kernel, &number);
            now.is_ok_and(|now| now != entry.old && entry.has_set(&now))
        });
        let is_ours = || {
            let identity = kernel.card(setting.device()).ok().flatten();
            let is_value = |now: Vec<u32>| !now.is_empty() && (now == entry.old || entry.has_set(&now));
            identity.as_ref() == Some(&entry.identity) && has(kernel, setting).is_ok_and(is_value)
        };
        if !changes || !is_ours() {
            continue;
        }
        // Whoever goes on from here has to know it for ours.
        let known = entry.records(setting).last();
        let known = known.map(|record| Record {
            to: Vec::new(),
            ..record
        });
        let mut noted = || journal.append(&known.iter().collect::<Vec<_>>()).is_ok();
        let meanwhile: &[u32] = if entry.old.is_empty() || noted() {
            &[]
        } else {
            &entry.old
        };
        // What cannot be done the restoring tells.
        if is_ours() && give(kernel, setting, meanwhile).is_ok() && entry.old == meanwhile {
            cleared.insert(setting.clone());
        }
    }
    cleared
}

fn restore_one(kernel: &impl Kernel, setting: &CardSetting, entry: &CardEntry, before: &Tables) -> CardRestore {
    restore_if_ours(kernel, setting, entry, before).unwrap_or_else(|error| {
        if has_vanished(&error) {
            CardRestore::Vanished
        } else {
            CardRestore::Failed(errno(&error))
        }
    })
}

fn restore_if_ours(
    kernel: &impl Kernel,
    setting: &CardSetting,
    entry: &CardEntry,
    tables: &Tables,
) -> io::Result<CardRestore> {
    if kernel.card(setting.device())?.as_ref() != Some(&entry.identity) {
        return Ok(CardRestore::Vanished);
    }
    let now = has(kernel, setting)?;
    let before = masks(kernel, setting.device())?;
    let restored = if now == entry.old {
        CardRestore::Same
    } else if entry.has_set(&now)
        || unchanged(kernel, setting, tables).is_some_and(|had| had == entry.old || entry.has_set(&had))
    {
        give(kernel, setting, &entry.old)?;
        match (has(kernel, setting)?, setting) {
            (now, _) if now == entry.old => CardRestore::Restored,
            // Entries that look even as long as there are so many queues.
            (_, CardSetting::Table { device }) if kernel.table(device)?.entries == entry.old => CardRestore::Restored,
            (now, _) => CardRestore::Left(now),
        }
    } else {
        CardRestore::Left(now)
    };
    for (target, mask) in masks(kernel, setting.device())? {
        let old = entry
            .masks
            .iter()
            .find(|(known, _)| *known == target)
            .map(|(_, old)| old);
        let as_before = before.iter().any(|known| *known == (target.clone(), mask.clone()));
        if let Some(old) = old.filter(|old| **old != mask && (mask.cpus().is_empty() || !as_before)) {
            kernel.write(&target, old)?;
        }
    }
    Ok(restored)
}

/// Tables before a number of queues changes, by card.
type Tables = BTreeMap<String, Table>;

fn tables_of<'a>(kernel: &impl Kernel, devices: impl Iterator<Item = &'a str>) -> Tables {
    let tables = devices.filter_map(|device| Some((device.to_owned(), kernel.table(device).ok()?)));
    tables.collect()
}

/// What a table was before, if its entries are the same still: with another number of queues it may look as if somebody
/// had set it, or as if nobody had.
fn unchanged(kernel: &impl Kernel, setting: &CardSetting, before: &Tables) -> Option<Vec<u32>> {
    let CardSetting::Table { device } = setting else {
        return None;
    };
    let before = before.get(device)?;
    let now = kernel.table(device).ok()?;
    (now.entries == before.entries).then(|| value(before))
}

/// The masks that go with a change, as the journal has them.
fn written_down(kernel: &impl Kernel, setting: &CardSetting) -> io::Result<Vec<(Key, String)>> {
    let CardSetting::Queues { device } = setting else {
        return Ok(Vec::new());
    };
    let masks = masks(kernel, device)?.into_iter();
    Ok(masks
        .map(|(target, mask)| (Key::from(&target), mask.text().to_owned()))
        .collect())
}

/// XPS and RPS of its queues, as far as it has them.
fn masks(kernel: &impl Kernel, device: &str) -> io::Result<Vec<(Target, Mask)>> {
    let mut masks = Vec::new();
    for target in kernel.queues(device)? {
        match kernel.read(&target) {
            Ok(mask) => masks.push((target, mask)),
            // It has gone meanwhile, or is the only one: there is nothing to choose.
            Err(error) if has_vanished(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(masks)
}

/// Numbers of combined, receive and transmit queues, or the entries of a table; none of an even one.
fn has(kernel: &impl Kernel, setting: &CardSetting) -> io::Result<Vec<u32>> {
    match setting {
        CardSetting::Queues { device } => kernel.queue_counts(device).map(|counts| counts.now().to_vec()),
        CardSetting::Table { device } => kernel.table(device).map(|table| value(&table)),
    }
}

fn value(table: &Table) -> Vec<u32> {
    if table.is_even() {
        Vec::new()
    } else {
        table.entries.clone()
    }
}

fn give(kernel: &impl Kernel, setting: &CardSetting, to: &[u32]) -> io::Result<()> {
    match (setting, to) {
        (CardSetting::Table { device }, entries) => kernel.set_table(device, entries),
        (CardSetting::Queues { device }, [combined, receive, transmit]) => {
            kernel.set_queues(device, [*combined, *receive, *transmit])
        }
        // A journal that says so was not written by this program.
        (CardSetting::Queues { .. }, _) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// As the journal has them.
pub(super) fn numbers(numbers: &[u32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    numbers.join(" ")
}

fn failed(error: &io::Error) -> CardOutcome {
    if has_vanished(error) {
        CardOutcome::Vanished
    } else if is_not_offered(error) && error.raw_os_error() != Some(libc::EINVAL) {
        CardOutcome::NotOffered
    } else {
        CardOutcome::Refused(errno(error))
    }
}
