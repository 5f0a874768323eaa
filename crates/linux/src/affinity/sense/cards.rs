//! How network cards spread packets over their queues: sensed, recorded, and told.
//!
//! Decisions do not need it: they go by where packets arrive. People do, who wonder why all arrive at one queue, and advice
//! about cards.
//! A recording has what a card answered as `proc/ethtool/CARD`.

use super::ethtool::{Ethtool, QueueCounts, Table};
use super::gaps::{Gaps, has_vanished};
use crate::topology::sysfs::Tree;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// Where a recording has what cards answered.
const FILES: &str = "proc/ethtool";
const SPREAD: &str = "how cards spread packets over their queues";

/// A network card, and how it spreads packets over its queues. What its driver does not offer is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its name.
    pub device: String,
    /// How many queues it has and can have.
    pub queues: Option<QueueCounts>,
    /// The table of RSS.
    pub table: Option<Table>,
    /// Whether filters that send flows to a queue (ntuple) are on.
    pub filters: Option<bool>,
}

impl Card {
    /// How many entries of the table each queue has, by queue; empty where there is no table.
    #[must_use]
    pub fn shares(&self) -> BTreeMap<u32, usize> {
        let mut shares = BTreeMap::new();
        for queue in self.table.iter().flat_map(|table| &table.entries) {
            *shares.entry(*queue).or_default() += 1;
        }
        shares
    }

    fn is_plain(&self) -> bool {
        self.queues.is_none() && self.table.is_none() && self.filters.is_none()
    }
}

/// Returns the cards of `names` that answer something, in the order of `names`.
pub(super) fn read(tree: &Tree, names: &[String], gaps: &mut Gaps) -> Vec<Card> {
    if !tree.is_live() {
        return names.iter().filter_map(|name| recorded(tree, name, gaps)).collect();
    }
    let ethtool = match Ethtool::new() {
        Ok(ethtool) => ethtool,
        Err(error) => {
            gaps.tell(SPREAD, &format!("cannot make a socket to ask them: {error}"));
            return Vec::new();
        }
    };
    let cards = names.iter().map(|name| asked(&ethtool, name, gaps));
    let cards: Vec<Card> = cards.filter(|card| !card.is_plain()).collect();
    for card in &cards {
        let text = serde_json::to_vec(card).expect("numbers and strings always serialize to JSON");
        tree.keep(format!("{FILES}/{}", card.device), &text);
    }
    cards
}

fn asked(ethtool: &Ethtool, name: &str, gaps: &mut Gaps) -> Card {
    Card {
        device: name.to_owned(),
        queues: offered(ethtool.queues(name), name, gaps),
        table: offered(ethtool.table(name), name, gaps),
        filters: offered(ethtool.filters(name), name, gaps),
    }
}

/// Returns a card's answer; none after an error. The error is a gap, unless the driver does not offer the answer or the
/// card has gone.
fn offered<T>(answer: io::Result<T>, name: &str, gaps: &mut Gaps) -> Option<T> {
    let is_plain = |error: &io::Error| is_not_offered(error) || has_vanished(error);
    let told = answer.inspect_err(|error| {
        if !is_plain(error) {
            gaps.tell(SPREAD, &format!("{name} does not tell: {error}"));
        }
    });
    told.ok()
}

/// Whether a driver does not know a request. Some say that it makes no sense.
fn is_not_offered(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

fn recorded(tree: &Tree, name: &str, gaps: &mut Gaps) -> Option<Card> {
    let text = tree.text(format!("{FILES}/{name}"))?;
    let card = serde_json::from_str(&text);
    card.inspect_err(|error| {
        gaps.tell(
            SPREAD,
            &format!("the recording of {name} cannot be understood: {error}"),
        )
    })
    .ok()
}

impl fmt::Display for Card {
    /// `4 of at most 8 queues, RSS over queues 0, 1, ntuple filters off`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(queues) = &self.queues {
            let kinds = [
                ("", queues.combined),
                ("receive ", queues.receive),
                ("transmit ", queues.transmit),
            ];
            let used = kinds.iter().filter(|(_, count)| count.now > 0);
            parts.extend(used.map(|(kind, count)| format!("{} of at most {} {kind}queues", count.now, count.max)));
        }
        match &self.table {
            Some(table) if table.is_even() => {
                parts.push(format!("RSS spreads over all {} receive queues alike", table.queues));
            }
            Some(_) => {
                let shares = self.shares().into_iter();
                let shares: Vec<String> = shares.map(|(queue, entries)| format!("{queue} ({entries})")).collect();
                parts.push(format!("RSS spreads over queues {} (entries each)", shares.join(", ")));
            }
            None => parts.push("no RSS table".to_owned()),
        }
        parts.push(
            match self.filters {
                Some(true) => "ntuple filters on",
                Some(false) => "ntuple filters off",
                None => "no ntuple filters",
            }
            .to_owned(),
        );
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ethtool::Count;
    use super::*;
    use crate::topology::made::Made;

    fn card() -> Card {
        Card {
            device: "eth0".to_owned(),
            queues: Some(QueueCounts {
                combined: Count { now: 2, max: 8 },
                ..QueueCounts::default()
            }),
            table: Some(Table {
                queues: 2,
                entries: vec![0, 1, 0, 1],
            }),
            filters: Some(false),
        }
    }

    #[test]
    fn a_card_is_described_on_one_line() {
        let even = "2 of at most 8 queues; RSS spreads over all 2 receive queues alike; ntuple filters off";
        assert_eq!(card().to_string(), even);
        let mut uneven = card();
        uneven.table.as_mut().unwrap().entries[2] = 1;
        uneven.filters = None;
        let text = uneven.to_string();
        assert!(
            text.ends_with("RSS spreads over queues 0 (1), 1 (3) (entries each); no ntuple filters"),
            "{text}"
        );
    }

    #[test]
    fn a_recording_keeps_the_answers_of_cards() {
        let machine = Made::new();
        let (tree, names) = (machine.tree(), ["eth0".to_owned(), "eth1".to_owned()]);
        let mut gaps = Gaps::default();
        assert_eq!(read(&tree, &names, &mut gaps), []);
        machine.file(&format!("{FILES}/eth0"), &serde_json::to_string(&card()).unwrap());
        assert_eq!(read(&tree, &names, &mut gaps), [card()]);
        assert_eq!(gaps.finish(), []);
        machine.file(&format!("{FILES}/eth1"), "{}");
        let mut gaps = Gaps::default();
        assert_eq!(read(&tree, &names, &mut gaps), [card()]);
        assert!(gaps.finish()[0].why.contains("eth1 cannot be understood"));
    }
}
