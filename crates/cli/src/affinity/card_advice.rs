//! Advice about network cards: the `ethtool` command to type where a busy card has or uses too few queues.

use super::words::plain;
use homenode_linux::affinity::{Card, Sensed};
use homenode_linux::doctor::facts_of_cards;
use homenode_policy::affinity::Plan;
use homenode_policy::doctor::{Problem, findings};
use serde::Serialize;
use std::fmt;

/// Advice about one card.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Advice {
    pub(super) device: String,
    why: String,
    command: String,
}

/// Returns the advice for a period and its plan, at most one for each card.
pub(super) fn advice(sensed: &Sensed, plan: &Plan) -> Vec<Advice> {
    let found = findings(&facts_of_cards(&sensed.cards), &sensed.snapshot, plan).into_iter();
    let of_cards = found.filter_map(|finding| {
        Some(Advice {
            command: command(&sensed.cards, &finding.problem)?,
            device: finding.problem.object(),
            why: finding.problem.to_string(),
        })
    });
    of_cards.collect()
}

/// Returns the command that mends a problem with a card's number or use of queues; `None` for any other problem.
pub(crate) fn command(cards: &[Card], problem: &Problem) -> Option<String> {
    match problem {
        Problem::FewQueues { device, cpus, max, .. } => {
            let card = cards.iter().find(|card| card.device == *device);
            let queues = max.map_or(*cpus, |max| max.min(*cpus));
            let is_separate = card.is_some_and(|card| card.queues.is_some_and(|queues| queues.is_separate()));
            let number = if is_separate {
                format!("rx {queues} tx {queues}")
            } else {
                format!("combined {queues}")
            };
            // A table that somebody has set keeps packets from new queues, and so does any with some drivers.
            let has_table = card.is_some_and(|card| card.table.is_some());
            let spread = has_table.then(|| format!("; ethtool -X {device} default"));
            Some(format!("ethtool -L {device} {number}{}", spread.unwrap_or_default()))
        }
        Problem::UnusedQueues { device, .. } => Some(format!("ethtool -X {device} default")),
        _ => None,
    }
}

impl fmt::Display for Advice {
    /// `eth0: busy, with 1 queue for the 4 CPUs of node 1: type `ethtool -L eth0 combined 4``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: type `{}`", self.device, self.why, self.command)
    }
}

/// Formats a line each, under a heading; empty where there is no advice.
pub(super) fn lines(advice: &[Advice]) -> String {
    if advice.is_empty() {
        return String::new();
    }
    let lines = advice.iter().map(|one| format!("  {}\n", plain(&one.to_string())));
    "commands for you to run:\n".to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use homenode_linux::affinity::{Count, QueueCounts, Table};
    use homenode_policy::NodeId;

    #[test]
    fn ethtool_commands_fit_the_cards_kind_of_queues_and_reset_the_rss_table() {
        let few = Problem::FewQueues {
            device: "eth0".to_owned(),
            home: NodeId(1),
            queues: 2,
            cpus: 4,
            max: None,
        };
        let told = |card: Card| command(&[card], &few).unwrap();
        let mut card = Card {
            device: "eth0".to_owned(),
            ..Card::default()
        };
        assert_eq!(told(card.clone()), "ethtool -L eth0 combined 4");
        card.table = Some(Table::default());
        assert_eq!(
            told(card.clone()),
            "ethtool -L eth0 combined 4; ethtool -X eth0 default"
        );
        let two = Count { now: 2, max: 8 };
        card.queues = Some(QueueCounts {
            receive: two,
            transmit: two,
            ..QueueCounts::default()
        });
        card.table = None;
        assert_eq!(told(card), "ethtool -L eth0 rx 4 tx 4");
        assert_eq!(command(&[], &Problem::NoRings), None);
    }
}
