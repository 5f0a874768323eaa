//! Numbers of queues and tables of RSS of network cards: changed only when asked for, in the journal before, and taken back.
//!
//! Numbers first, then tables, each durable before it begins; revert as well, after the masks of queues. While a number
//! changes, a table that is ours to set is as if nobody had set it: it may name queues that go, and virtio-net (Linux 6.18)
//! sends with a table the number of queues that there was when nobody had set one, which the card then takes.
//!
//! Drivers spread a table that nobody has set anew when the number changes, or do not (virtio-net of Linux 6.1): entries
//! that are the same before and after are still nobody's.
//!
//! So a number is not changed while a table is set that is not asked for as well: nobody knows what is in effect then. If
//! somebody sets one after us, revert sets it aside, and gives it back.
//!
//! What becomes of the masks of queues (XPS, RPS) is in `masks`. What a driver does to the affinity of its interrupts stays.

mod masks;
mod restore;

use super::cards_book::{CardSetting, Cards};
use super::error::Error;
use super::kernel::Kernel;
use super::outcome::CardOutcome;
use super::record::{Key, Record};
use super::store::Store;
use super::{Actor, errno};
use crate::affinity::Table;
use crate::affinity::sense::cards::is_not_offered;
use crate::affinity::sense::gaps::has_vanished;
pub(super) use masks::{Masks, texts};
pub(super) use restore::restore;
use std::collections::BTreeMap;
use std::io;

/// Settings that are asked for of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardWish {
    /// Its name.
    pub device: String,
    /// Number of queues in each direction.
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

/// A change of a card, checked and ready to be made.
struct Ready {
    setting: CardSetting,
    to: Vec<u32>,
    found: Vec<u32>,
    /// Masks of the card's queues, if the number of queues changes.
    masks: Masks,
    /// Masks that the queues are to have without us.
    owned: Masks,
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
            // What the driver has made of it is ours as well.
            let became = match &outcome {
                CardOutcome::Became(now) => Some(now.clone()),
                _ => None,
            };
            let made = match (&one.setting, &outcome) {
                (CardSetting::Table { .. }, _) => None,
                (_, CardOutcome::Done | CardOutcome::Became(_)) => {
                    // What cannot be given now, revert gives, or tells.
                    let _ = masks::bring_back(&self.kernel, one.setting.device(), &one.owned);
                    masks::of(&self.kernel, one.setting.device()).ok()
                }
                _ => Some(one.masks),
            };
            if became.is_some() || made.is_some() {
                let to = became.unwrap_or_else(|| one.record.to.clone());
                let made = made.as_ref().map(texts);
                self.journal.append(&[&Record { to, made, ..one.record }])?;
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
        let is_number = matches!(wanted, Wanted::Number(_));
        if is_number && set_by_somebody(&self.kernel, self.journal.cards(), setting.device()).is_some() {
            return Err(CardOutcome::Table);
        }
        let had = unchanged(&self.kernel, setting, before).unwrap_or_else(|| now.clone());
        let known = self.journal.cards().get(setting);
        let known = known.filter(|entry| entry.identity == identity && (entry.old == had || entry.has_set(&had)));
        let masks = match is_number {
            true => masks::of(&self.kernel, setting.device()).map_err(failed)?,
            false => Masks::new(),
        };
        let owned = masks::owned(&masks, known, self.journal.entries());
        let record = Record {
            target: Key::from(setting),
            identity,
            old: numbers(known.map_or(&had, |entry| &entry.old)),
            whole: false,
            session: 0,
            to: to.clone(),
            at,
            masks: texts(&owned),
            made: None,
            stays: false,
        };
        let setting = setting.clone();
        Ok(Ready {
            setting,
            to,
            found: now,
            masks,
            owned,
            record,
        })
    }

    /// Returns the values that a card is to have, or the reason why it cannot have them.
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
        let masks = match one.setting {
            CardSetting::Queues { .. } => masks::of(&self.kernel, one.setting.device())?,
            CardSetting::Table { .. } => Masks::new(),
        };
        if now != one.found || masks != one.masks {
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

/// Tables before a number of queues changes, by card.
type Tables = BTreeMap<String, Table>;

fn tables_of<'a>(kernel: &impl Kernel, devices: impl Iterator<Item = &'a str>) -> Tables {
    let tables = devices.filter_map(|device| Some((device.to_owned(), kernel.table(device).ok()?)));
    tables.collect()
}

/// Returns the value of a table before the number of queues changed, if its entries are still the same. With another number
/// of queues the table may look as if somebody had set it, or as if nobody had.
fn unchanged(kernel: &impl Kernel, setting: &CardSetting, before: &Tables) -> Option<Vec<u32>> {
    let CardSetting::Table { device } = setting else {
        return None;
    };
    let before = before.get(device)?;
    let now = kernel.table(device).ok()?;
    (now.entries == before.entries).then(|| value(before))
}

/// The entries of a table that is set: not one that the driver has made, for the queues there are or for those there were.
fn set_by_somebody(kernel: &impl Kernel, cards: &Cards, device: &str) -> Option<Vec<u32>> {
    let table = kernel.table(device).ok()?;
    let number = CardSetting::Queues {
        device: device.to_owned(),
    };
    let numbers = cards.get(&number).into_iter().flat_map(|entry| entry.values());
    let mut counts = numbers.map(receive_queues).chain([table.queues]);
    let is_made = table.entries.iter().any(|queue| *queue >= table.queues)
        || counts.any(|queues| {
            Table {
                queues,
                ..table.clone()
            }
            .is_even()
        });
    (!is_made).then_some(table.entries)
}

/// Returns the number of queues that receive, from numbers of combined, receive and transmit queues.
fn receive_queues(numbers: &[u32]) -> u32 {
    numbers.iter().take(2).sum()
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

/// Formats numbers as the journal has them.
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
