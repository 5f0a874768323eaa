//! Entries of a journal about cards.

use super::cards::{Masks, numbers, texts};
use super::mask::Mask;
use super::record::{Key, Place, Record};
use std::collections::BTreeMap;
use std::fmt;

/// Setting of a card; in the order in which settings are taken back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CardSetting {
    /// The table by which it spreads packets over its queues.
    Table {
        /// Its name.
        device: String,
    },
    /// How many queues it has.
    Queues {
        /// Its name.
        device: String,
    },
}

/// Old and set values of one setting. Values are as `cards` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CardEntry {
    pub(super) identity: String,
    pub(super) old: Vec<u32>,
    /// The values that were set, the last one last, each with when it was first.
    set: Vec<(Vec<u32>, u64)>,
    /// Masks that queues are to have without us.
    pub(super) masks: Masks,
    /// Masks that queues had after the last change; `None` when that change was not seen to its end.
    pub(super) made: Option<Masks>,
}

/// All settings of cards.
pub(super) type Cards = BTreeMap<CardSetting, CardEntry>;

impl CardSetting {
    /// The card's name.
    #[must_use]
    pub fn device(&self) -> &str {
        match self {
            Self::Table { device } | Self::Queues { device } => device,
        }
    }
}

impl fmt::Display for CardSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table { device } => write!(f, "RSS table of {device}"),
            Self::Queues { device } => write!(f, "number of queues of {device}"),
        }
    }
}

impl CardEntry {
    pub(super) fn has_set(&self, now: &[u32]) -> bool {
        self.set.iter().any(|(set, _)| set == now)
    }

    /// Returns the values that were set, and the old value.
    pub(super) fn values(&self) -> impl Iterator<Item = &[u32]> {
        let set = self.set.iter().map(|(set, _)| &**set);
        set.chain([&*self.old])
    }

    /// The record of the last change.
    pub(super) fn last(&self, setting: &CardSetting) -> Option<Record> {
        self.records(setting).last()
    }

    pub(super) fn records(&self, setting: &CardSetting) -> impl Iterator<Item = Record> {
        self.set.iter().map(move |(set, at)| Record {
            target: Key::from(setting),
            identity: self.identity.clone(),
            old: numbers(&self.old),
            whole: false,
            session: 0,
            to: set.clone(),
            at: *at,
            masks: texts(&self.masks),
            made: self.made.as_ref().map(texts),
            stays: false,
        })
    }
}

/// Takes a change in.
pub(super) fn note(cards: &mut Cards, setting: CardSetting, record: &Record) -> Result<(), String> {
    let numbers = record.old.split_ascii_whitespace().map(str::parse::<u32>);
    let old: Vec<u32> = numbers
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{:?} are no numbers: {error}", record.old))?;
    let (masks, made) = (parsed(&record.masks)?, record.made.as_deref().map(parsed).transpose()?);
    let same = |entry: &&mut CardEntry| entry.identity == record.identity && entry.old == old;
    if let Some(entry) = cards.get_mut(&setting).filter(same) {
        let known = entry.set.iter().position(|(set, _)| *set == record.to);
        let at = known.map_or(record.at, |index| entry.set.remove(index).1);
        entry.set.push((record.to.clone(), at));
        (entry.masks, entry.made) = (masks, made);
        return Ok(());
    }
    let entry = CardEntry {
        identity: record.identity.clone(),
        old,
        set: vec![(record.to.clone(), record.at)],
        masks,
        made,
    };
    cards.insert(setting, entry);
    Ok(())
}

fn parsed(masks: &[(Key, String)]) -> Result<Masks, String> {
    let mask = |(key, text): &(Key, String)| match Place::from(key) {
        Place::Target(target) => Mask::parse(text.clone())
            .map(|mask| (target, mask))
            .map_err(|error| error.to_string()),
        Place::Card(_) | Place::File(_) => Err("cards and files have no masks".to_owned()),
    };
    masks.iter().map(mask).collect()
}
