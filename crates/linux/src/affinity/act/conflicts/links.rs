//! systemd's `.link` files that udev has applied to cards.

use super::{Conflict, Sets, settings};
use crate::topology::sysfs::Tree;
use homenode_policy::doctor::Helper;
use std::collections::{BTreeMap, BTreeSet};

const STEERING_KEY: &str = "ReceivePacketSteeringCPUMask";
const QUEUE_KEYS: [&str; 6] = [
    "RxChannels",
    "TxChannels",
    "OtherChannels",
    "CombinedChannels",
    "TransmitQueues",
    "ReceiveQueues",
];

/// The .link files that udev has applied to a card that is there: it tells for each card which.
pub(super) fn links(tree: &Tree) -> Vec<Conflict> {
    let mut cards_of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for device in tree.names("sys/class/net") {
        let Some(index) = tree.number::<u32>(format!("sys/class/net/{device}/ifindex")) else {
            continue;
        };
        let told = tree.text(format!("run/udev/data/n{index}")).unwrap_or_default();
        let of_key = |key: &str| {
            let value = told.lines().find_map(|line| line.strip_prefix("E:")?.strip_prefix(key));
            value.unwrap_or_default().to_owned()
        };
        let files = [of_key("ID_NET_LINK_FILE="), of_key("ID_NET_LINK_FILE_DROPINS=")];
        for file in files
            .iter()
            .flat_map(|list| list.split(':'))
            .filter(|file| !file.is_empty())
        {
            cards_of.entry(file.to_owned()).or_default().push(device.clone());
        }
    }
    let found = cards_of.into_iter().flat_map(|(file, cards)| {
        let text = tree.text(file.trim_start_matches('/')).unwrap_or_default();
        let keys: BTreeSet<&str> = settings(&text).map(|(key, _)| key).collect();
        let steering = keys.contains(STEERING_KEY).then(|| Conflict {
            who: Helper::SystemdLink,
            what: format!("{file} sets {STEERING_KEY} of {}", cards.join(", ")),
            effect: "RPS of these cards is left alone".to_owned(),
            remedy: format!("to have it set by homenode, take {STEERING_KEY} out of {file}"),
            sets: Sets::Steering(cards.clone()),
        });
        let queues: Vec<&str> = QUEUE_KEYS.iter().copied().filter(|key| keys.contains(key)).collect();
        let queues = (!queues.is_empty()).then(|| Conflict {
            who: Helper::SystemdLink,
            what: format!("{file} sets {} of {}", queues.join(", "), cards.join(", ")),
            effect: "the file sets their number of queues; homenode does not change it".to_owned(),
            remedy: format!("for a queue for each CPU of the card's node, change {file}"),
            sets: Sets::Nothing,
        });
        [steering, queues].into_iter().flatten()
    });
    found.collect()
}
