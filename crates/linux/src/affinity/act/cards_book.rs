//! What a journal knows of cards.

use super::cards::numbers;
use super::mask::Mask;
use super::record::{Key, Place, Record};
use homenode_policy::affinity::Target;
use std::collections::BTreeMap;
use std::fmt;

/// What of a card is set; in the order in which it is taken back.
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

/// What is known of one setting. Values are as `cards` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CardEntry {
    pub(super) identity: String,
    pub(super) old: Vec<u32>,
    /// The values that were set, the last one last, each with when it was first.
    set: Vec<(Vec<u32>, u64)>,
    /// Of queues, when their number was changed first.
    pub(super) masks: Vec<(Target, Mask)>,
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

    pub(super) fn records(&self, setting: &CardSetting) -> impl Iterator<Item = Record> {
        self.set.iter().map(move |(set, at)| Record {
            target: Key::from(setting),
            identity: self.identity.clone(),
            old: numbers(&self.old),
            whole: false,
            session: 0,
            to: set.clone(),
            at: *at,
            masks: self
                .masks
                .iter()
                .map(|(target, mask)| (Key::from(target), mask.text().to_owned()))
                .collect(),
        })
    }
}

/// Takes a change in.
pub(super) fn note(cards: &mut Cards, setting: CardSetting, record: &Record) -> Result<(), String> {
    let numbers = record.old.split_ascii_whitespace().map(str::parse::<u32>);
    let old: Vec<u32> = numbers
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{:?} are no numbers: {error}", record.old))?;
    let same = |entry: &&mut CardEntry| entry.identity == record.identity && entry.old == old;
    if let Some(entry) = cards.get_mut(&setting).filter(same) {
        let known = entry.set.iter().position(|(set, _)| *set == record.to);
        let at = known.map_or(record.at, |index| entry.set.remove(index).1);
        entry.set.push((record.to.clone(), at));
        return Ok(());
    }
    let mask = |(key, text): &(Key, String)| match Place::from(key) {
        Place::Target(target) => Mask::parse(text.clone())
            .map(|mask| (target, mask))
            .map_err(|error| error.to_string()),
        Place::Card(_) => Err("cards have no masks".to_owned()),
    };
    let entry = CardEntry {
        identity: record.identity.clone(),
        old,
        set: vec![(record.to.clone(), record.at)],
        masks: record.masks.iter().map(mask).collect::<Result<_, _>>()?,
    };
    cards.insert(setting, entry);
    Ok(())
}
