//! Signs that the kernel or drivers have set CPUs of interrupts and queues anew.
//!
//! When the last CPU of an interrupt goes offline, the kernel gives the interrupt all CPUs that run
//! (`kernel/irq/cpuhotplug.c`), and leaves it so when the CPU comes back. Some drivers, as virtio's, set all interrupts and
//! XPS of a card whenever a CPU comes or goes. A sleep takes all CPUs but one offline and back. A card that was down may have
//! asked for its interrupts anew, which have the kernel's default or the driver's choice then.

use super::ONLINE;
use crate::topology::sysfs::Tree;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;

/// The clock of all time and that without sleep drift apart by less while the machine is awake.
const AWAKE_MS: u128 = 100;

/// Counts that a restart changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Restarts {
    /// The CPUs that run, as text.
    online: Option<String>,
    asleep_ms: u128,
    /// How often the link of each card with hardware has come or gone. Veths of containers come and go all the time, and
    /// have no driver that sets queues.
    links: BTreeMap<String, String>,
}

/// CPUs and cards that have restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Restarted {
    /// CPUs came or went, or the machine slept.
    pub(super) all: bool,
    /// Network cards, ascending.
    pub(super) cards: Vec<String>,
}

impl Restarts {
    pub(super) fn read(tree: &Tree) -> Self {
        let changes = |card: &String| tree.text(format!("sys/class/net/{card}/carrier_changes"));
        let is_hardware = |card: &String| tree.exists(format!("sys/class/net/{card}/device"));
        let cards = tree.names("sys/class/net").into_iter().filter(is_hardware);
        Self {
            online: tree.text(ONLINE),
            asleep_ms: asleep_ms(),
            links: cards
                .filter_map(|card| Some((changes(&card)?, card)))
                .map(|(count, card)| (card, count))
                .collect(),
        }
    }

    /// Compares with an earlier look. A card that is new has been set by nobody.
    pub(super) fn since(&self, before: &Self) -> Restarted {
        let changed = |(card, count): &(&String, &String)| before.links.get(*card).is_some_and(|known| known != *count);
        Restarted {
            all: self.online != before.online || self.asleep_ms > before.asleep_ms + AWAKE_MS,
            cards: self
                .links
                .iter()
                .filter(changed)
                .map(|(card, _)| card.clone())
                .collect(),
        }
    }
}

impl Restarted {
    pub(super) fn and(mut self, other: Self) -> Self {
        self.all |= other.all;
        self.cards.extend(other.cards);
        self.cards.sort();
        self.cards.dedup();
        self
    }
}

/// How long the machine has slept since boot.
fn asleep_ms() -> u128 {
    let ms = |clock| {
        let time = clock_gettime(clock);
        let seconds = u128::try_from(time.tv_sec).unwrap_or(0);
        seconds * 1000 + u128::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
    };
    // The least of some looks: what passes between the two clocks of one, as while another thread runs, would count as sleep.
    let look = || {
        let awake = ms(ClockId::Monotonic);
        ms(ClockId::Boottime).saturating_sub(awake)
    };
    (0..3).map(|_| look()).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::made::Made;

    #[test]
    fn restarts_of_cpus_cards_and_the_machine_are_told() {
        let machine = Made::of(&[(ONLINE, "0-3\n")]);
        for card in ["eth0", "eth1", "eth2"] {
            machine.file(&format!("sys/class/net/{card}/device/vendor"), "0x1af4\n");
        }
        machine.file("sys/class/net/eth0/carrier_changes", "2\n");
        machine.file("sys/class/net/veth0/carrier_changes", "2\n");
        machine.file("sys/class/net/eth1/carrier_changes", "2\n");
        let look = || Restarts::read(&machine.tree());
        let first = look();
        assert_eq!(look().since(&first), Restarted::default());
        machine.file("sys/class/net/eth1/carrier_changes", "4\n");
        machine.file("sys/class/net/veth0/carrier_changes", "4\n");
        machine.file("sys/class/net/eth2/carrier_changes", "1\n");
        let second = look();
        let cards = vec!["eth1".to_owned()];
        assert_eq!(second.since(&first), Restarted { all: false, cards });
        machine.file(ONLINE, "0-2\n");
        let all = Restarted {
            all: true,
            cards: Vec::new(),
        };
        assert_eq!(look().since(&second), all);
        let mut slept = second.clone();
        slept.asleep_ms += 2000;
        assert_eq!(slept.since(&second), all);
    }
}
