//! A card's number of queues is changed and given back, with the masks of queues that went meanwhile.

use super::machine::{CARD, QUEUES, make_cards, queue_files};
use homenode_linux::affinity::Sensor;
use homenode_linux::affinity::act::{Actor, CardOutcome, CardRestore, CardSetting, CardWish, Live, Spread};
use homenode_linux::topology::{self, Source};
use std::fs;
use std::path::Path;

pub(crate) fn run(journal: &Path) {
    make_cards();
    for index in 0..QUEUES {
        fs::write(format!("/sys/class/net/{CARD}/queues/tx-{index}/xps_cpus"), "2").unwrap();
        fs::write(format!("/sys/class/net/{CARD}/queues/rx-{index}/rps_cpus"), "1").unwrap();
    }
    let before = queue_files();
    assert_eq!((before.len(), sensed()), (4 * QUEUES as usize, (QUEUES, QUEUES)));

    let mut actor = Actor::open(Live::new(), journal).unwrap();
    let wish = |queues, rss| CardWish {
        device: CARD.to_owned(),
        queues,
        rss,
    };
    let number = CardSetting::Queues {
        device: CARD.to_owned(),
    };
    let too_many = actor.arrange(&[wish(Some(QUEUES + 1), None)]).unwrap();
    let expected = CardOutcome::Number {
        asked: QUEUES + 1,
        max: QUEUES,
    };
    assert_eq!(too_many, [(number.clone(), expected)]);
    let no_table = actor.arrange(&[wish(None, Some(Spread::Even))]).unwrap();
    assert_eq!(no_table[0].1, CardOutcome::NotOffered);
    assert!(!journal.exists() && queue_files() == before);

    let fewer = actor.arrange(&[wish(Some(2), None)]).unwrap();
    assert_eq!(fewer, [(number.clone(), CardOutcome::Done)]);
    assert_eq!((queue_files().len(), sensed()), (2 * QUEUES as usize + 4, (2, QUEUES)));
    drop(actor);
    let mut actor = Actor::open(Live::new(), journal).unwrap();
    assert_eq!(actor.changed_cards(), std::slice::from_ref(&number));
    assert_eq!(actor.revert().unwrap().cards, [(number, CardRestore::Restored)]);
    assert_eq!(queue_files(), before);
    assert!(!journal.exists());
}

/// How many receive queues the card has, and can have.
fn sensed() -> (u32, u32) {
    let topology = topology::read(&Source::Live).unwrap();
    let sensed = Sensor::new(Path::new("/"), Box::new(Vec::new))
        .unwrap()
        .sense(&topology)
        .unwrap();
    let card = sensed.cards.iter().find(|card| card.device == CARD).unwrap();
    let queues = card.queues.unwrap();
    assert!(queues.is_separate() && card.table.is_none() && card.filters.is_none());
    (queues.receive.now, queues.max())
}
