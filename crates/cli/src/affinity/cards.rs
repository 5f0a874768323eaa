//! Network cards whose number of queues or RSS table the configuration asks for: changed before the first plan, told.

use super::known::failure;
use super::settings::Settings;
use super::words::plain;
use crate::failure::Result;
use homenode_linux::affinity::Card;
use homenode_linux::affinity::act::{Actor, CardOutcome, CardSetting, CardWish, Live, Spread};

/// Gives cards what is asked for. Everything is to be looked at anew after it.
pub(super) fn arrange(actor: &mut Actor<Live>, settings: &Settings) -> Result<Vec<(CardSetting, CardOutcome)>> {
    actor.arrange(&settings.cards).map_err(failure)
}

/// `RSS table of eth0: done`.
pub(super) fn line((setting, outcome): &(CardSetting, CardOutcome)) -> String {
    plain(&format!("{setting}: {outcome}"))
}

/// Returns the card settings that `apply` would make first, under a heading; empty if none is asked for.
pub(super) fn asked(settings: &Settings, cards: &[Card]) -> String {
    if settings.cards.is_empty() {
        return String::new();
    }
    let one = |wish: &CardWish| {
        let card = cards.iter().find(|card| card.device == wish.device);
        let now = card.map_or_else(|| "no such card is seen".to_owned(), |card| format!("it has {card}"));
        plain(&format!("  {}: {}; {now}", wish.device, words(wish))) + "\n"
    };
    let lines: String = settings.cards.iter().map(one).collect();
    format!("asked of cards by the configuration, before all else:\n{lines}")
}

/// `4 queues and RSS over queues 0, 1`.
fn words(wish: &CardWish) -> String {
    let queues = wish.queues.map(|queues| super::words::count(queues as usize, "queue"));
    let rss = wish.rss.as_ref().map(|rss| match rss {
        Spread::Even => "RSS over all queues".to_owned(),
        Spread::Over(queues) => {
            let numbers: Vec<String> = queues.iter().map(u32::to_string).collect();
            format!("RSS over queues {}", numbers.join(", "))
        }
    });
    let parts: Vec<String> = queues.into_iter().chain(rss).collect();
    if parts.is_empty() {
        "nothing".to_owned()
    } else {
        parts.join(" and ")
    }
}
