//! Gives cards back what they had: numbers of queues with their masks, then tables.

use super::super::cards_book::{CardEntry, CardSetting};
use super::super::errno;
use super::super::journal::Journal;
use super::super::kernel::Kernel;
use super::super::outcome::CardRestore;
use super::super::record::{Key, Record};
use super::super::store::Store;
use super::{Tables, give, has, masks, numbers, receive_queues, set_by_somebody, tables_of, unchanged};
use crate::affinity::Table;
use crate::affinity::sense::gaps::has_vanished;
use std::collections::BTreeMap;
use std::io;

/// When what they have is ours.
pub(in super::super) fn restore(
    kernel: &impl Kernel,
    journal: &mut Journal<impl Store>,
) -> Vec<(CardSetting, CardRestore)> {
    let aside = set_aside(kernel, journal);
    let cards = journal.cards().clone();
    let tables = cards
        .keys()
        .filter(|setting| matches!(setting, CardSetting::Table { .. }));
    let before = tables_of(kernel, tables.map(CardSetting::device));
    // Numbers are first; what became of them is told last.
    let restored = cards.iter().rev().map(|(setting, entry)| {
        let restored = match setting {
            CardSetting::Queues { .. } => restore_number(kernel, journal, setting, entry),
            CardSetting::Table { .. } => restore_table(kernel, setting, entry, &before),
        };
        let restored = restored.unwrap_or_else(|error| failure(&error));
        let restored = match (aside.get(setting), restored) {
            (Some(Whose::Ours), CardRestore::Same) => CardRestore::Restored,
            (Some(Whose::Theirs), CardRestore::Same | CardRestore::Restored) => CardRestore::Left(entry.old.clone()),
            (_, restored) => restored,
        };
        (setting.clone(), restored)
    });
    let mut restored: Vec<_> = restored.collect();
    restored.reverse();
    restored
}

/// Owner of a table that is set aside while the number of queues changes.
enum Whose {
    Ours,
    /// Somebody has set it since. It is given back as it is.
    Theirs,
}

/// Tables of cards whose number of queues is to change are as if nobody had set them. Which were set.
fn set_aside(kernel: &impl Kernel, journal: &mut Journal<impl Store>) -> BTreeMap<CardSetting, Whose> {
    let cards = journal.cards().clone();
    let mut aside = BTreeMap::new();
    for (number, entry) in &cards {
        let CardSetting::Queues { device } = number else {
            continue;
        };
        let has_identity = |identity: &str| kernel.card(device).is_ok_and(|card| card.as_deref() == Some(identity));
        let changes = || has(kernel, number).is_ok_and(|now| now != entry.old && entry.has_set(&now));
        if !has_identity(&entry.identity) || !changes() {
            continue;
        }
        let setting = CardSetting::Table { device: device.clone() };
        let known = cards.get(&setting).filter(|known| known.identity == entry.identity);
        let is_known = |now: &Vec<u32>| known.is_some_and(|known| *now == known.old || known.has_set(now));
        let whose = match has(kernel, &setting) {
            Ok(now) if !now.is_empty() && is_known(&now) => {
                known.map(|known| clear_ours(kernel, journal, &setting, known))
            }
            Ok(_) => set_by_somebody(kernel, &cards, device)
                .filter(|theirs| theirs.iter().all(|queue| *queue < receive_queues(&entry.old)))
                .map(|theirs| clear_theirs(kernel, journal, number, entry, &theirs)),
            Err(_) => None,
        };
        // What cannot be done the restoring tells.
        if let Some(Ok(whose)) = whose {
            aside.insert(setting, whose);
        }
    }
    aside
}

/// Also one that is as it was before, and is given back like that.
fn clear_ours(
    kernel: &impl Kernel,
    journal: &mut Journal<impl Store>,
    setting: &CardSetting,
    entry: &CardEntry,
) -> io::Result<Whose> {
    // Whoever goes on from here has to know it for ours.
    let to = Vec::new();
    let noted = entry.last(setting).map(|record| Record { to, ..record });
    let mut noted = || journal.append(&noted.iter().collect::<Vec<_>>()).is_ok();
    let meanwhile: &[u32] = if entry.old.is_empty() || noted() {
        &[]
    } else {
        &entry.old
    };
    give(kernel, setting, meanwhile)?;
    Ok(Whose::Ours)
}

/// Not without a journal that knows it.
fn clear_theirs(
    kernel: &impl Kernel,
    journal: &mut Journal<impl Store>,
    number: &CardSetting,
    entry: &CardEntry,
    theirs: &[u32],
) -> io::Result<Whose> {
    let device = number.device().to_owned();
    let setting = CardSetting::Table { device };
    let record = entry.last(number).map(|record| Record {
        target: Key::from(&setting),
        old: numbers(theirs),
        to: Vec::new(),
        masks: Vec::new(),
        made: None,
        ..record
    });
    let noted = journal.append(&record.iter().collect::<Vec<_>>());
    noted.map_err(io::Error::other)?;
    give(kernel, &setting, &[])?;
    Ok(Whose::Theirs)
}

fn restore_number(
    kernel: &impl Kernel,
    journal: &mut Journal<impl Store>,
    setting: &CardSetting,
    entry: &CardEntry,
) -> io::Result<CardRestore> {
    let device = setting.device();
    if kernel.card(device)?.as_ref() != Some(&entry.identity) {
        return Ok(CardRestore::Vanished);
    }
    let (now, before) = (has(kernel, setting)?, masks::of(kernel, device)?);
    let mut owned = masks::owned(&before, Some(entry), journal.entries());
    let restored = if now == entry.old {
        CardRestore::Same
    } else if entry.has_set(&now) {
        // Where this cannot be written, masks that the driver makes may stay, should this be the last that we do.
        let mut note = |to: &[u32], made: Option<&masks::Masks>| {
            let record = entry.last(setting).map(|record| Record {
                to: to.to_vec(),
                masks: masks::texts(&owned),
                made: made.map(masks::texts),
                ..record
            });
            journal.append(&record.iter().collect::<Vec<_>>()).ok()
        };
        note(&entry.old, None);
        give(kernel, setting, &entry.old).inspect_err(|_| {
            note(&now, Some(&before));
        })?;
        match has(kernel, setting)? {
            now if now == entry.old => CardRestore::Restored,
            now => CardRestore::Left(now),
        }
    } else {
        CardRestore::Left(now)
    };
    if let (CardRestore::Left(_), None) = (&restored, &entry.made) {
        // Somebody else has changed the number after a change of ours that was not seen to its end.
        owned.retain(|queue, _| before.get(queue).is_some_and(|mask| mask.cpus().is_empty()));
    }
    Ok(match masks::give(kernel, device, &owned)? {
        true if restored == CardRestore::Same => CardRestore::Restored,
        _ => restored,
    })
}

fn restore_table(
    kernel: &impl Kernel,
    setting: &CardSetting,
    entry: &CardEntry,
    before: &Tables,
) -> io::Result<CardRestore> {
    let device = setting.device();
    if kernel.card(device)?.as_ref() != Some(&entry.identity) {
        return Ok(CardRestore::Vanished);
    }
    let now = has(kernel, setting)?;
    if now == entry.old {
        return Ok(CardRestore::Same);
    }
    let is_unchanged = || unchanged(kernel, setting, before).is_some_and(|had| had == entry.old || entry.has_set(&had));
    if !entry.has_set(&now) && !is_unchanged() {
        return Ok(CardRestore::Left(now));
    }
    let table = kernel.table(device)?;
    let old = Table {
        entries: entry.old.clone(),
        ..table
    };
    // A table that nobody had set may have been that of another number of queues.
    let to: &[u32] = if old.is_even() { &[] } else { &entry.old };
    give(kernel, setting, to)?;
    Ok(match has(kernel, setting)? {
        now if now == to => CardRestore::Restored,
        now => CardRestore::Left(now),
    })
}

fn failure(error: &io::Error) -> CardRestore {
    if has_vanished(error) {
        CardRestore::Vanished
    } else {
        CardRestore::Failed(errno(error))
    }
}
