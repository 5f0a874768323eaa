//! Reads the queues of network cards: their numbers, the table by which a card spreads packets over them (RSS), and perhaps
//! filters that send flows to a queue (ntuple).
//!
//! The requests are those of `linux/ethtool.h`, which every kernel has, by the ioctl `SIOCETHTOOL`; the netlink ones came
//! later, and crates for them need an async runtime. A card whose driver does not know a request answers `EOPNOTSUPP`; one
//! that has gone, `ENODEV`. None needs a privilege.
//!
//! Cost: a system call a request, which waits for whoever configures a card of this network namespace just then.

use serde::{Deserialize, Serialize};
use std::ffi::c_char;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

const GET_FLAGS: u32 = 0x25;
const GET_RECEIVE_QUEUES: u32 = 0x2d;
const GET_FILTER_COUNT: u32 = 0x2e;
const GET_TABLE: u32 = 0x38;
const GET_QUEUES: u32 = 0x3c;

const FLAG_NTUPLE: u32 = 1 << 27;
/// `struct ethtool_rxnfc` has 192 bytes; what the kernel adds goes behind its end.
const RECEIVE_WORDS: usize = 64;
/// `struct ethtool_channels`.
const QUEUES_WORDS: usize = 9;
/// The request and the number of entries, which are before the entries.
const TABLE_HEAD: usize = 2;
/// The largest tables of today's cards have a few thousand entries.
const TABLE_ENTRIES_MAX: usize = 1 << 16;

/// How many queues a card has, and can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounts {
    /// For both directions.
    pub combined: Count,
    /// For receiving alone.
    pub receive: Count,
    /// For sending alone.
    pub transmit: Count,
}

/// Number of queues of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// In use.
    pub now: u32,
    /// Maximum of the card.
    pub max: u32,
}

/// Table by which packets are spread over receive queues (RSS).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// How many receive queues there are.
    pub queues: u32,
    /// Each hash of a packet's addresses has an entry: the queue.
    pub entries: Vec<u32>,
}

/// Asks the kernel about cards of the network namespace it was made in.
#[derive(Debug)]
pub(super) struct Ethtool(UnixDatagram);

impl QueueCounts {
    /// Whether queues for receiving are other ones than those for sending.
    #[must_use]
    pub fn is_separate(&self) -> bool {
        self.combined.now == 0 && self.receive.now + self.transmit.now > 0
    }

    /// How many queues there can be in each direction, of the kind that there are.
    #[must_use]
    pub fn max(&self) -> u32 {
        if self.is_separate() {
            self.receive.max.min(self.transmit.max)
        } else {
            self.combined.max
        }
    }
}

impl Table {
    /// Whether packets go to all queues alike, as kernels spread them when nobody has set the table.
    #[must_use]
    pub fn is_even(&self) -> bool {
        let queues = self.queues.max(1);
        (0..).zip(&self.entries).all(|(index, queue)| index % queues == *queue)
    }
}

impl Ethtool {
    pub(super) fn new() -> io::Result<Self> {
        UnixDatagram::unbound().map(Self)
    }

    pub(super) fn queues(&self, card: &str) -> io::Result<QueueCounts> {
        let mut words = [0; QUEUES_WORDS];
        words[0] = GET_QUEUES;
        self.ask(card, &mut words)?;
        let [_, max_rx, max_tx, _, max_combined, rx, tx, _, combined] = words;
        let count = |now, max| Count { now, max };
        Ok(QueueCounts {
            combined: count(combined, max_combined),
            receive: count(rx, max_rx),
            transmit: count(tx, max_tx),
        })
    }

    pub(super) fn table(&self, card: &str) -> io::Result<Table> {
        let mut words = vec![GET_TABLE, 0];
        // Without room for any, the kernel tells how many there are, and refuses to write more than it is told there is
        // room for.
        self.ask(card, &mut words)?;
        let entries = words[1] as usize;
        if entries > TABLE_ENTRIES_MAX {
            return Err(io::Error::from_raw_os_error(libc::EOVERFLOW));
        }
        if entries == 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        words.resize(TABLE_HEAD + entries, 0);
        words[0] = GET_TABLE;
        self.ask(card, &mut words)?;
        let mut receive = [0; RECEIVE_WORDS];
        receive[0] = GET_RECEIVE_QUEUES;
        self.ask(card, &mut receive)?;
        // `data`, 64 bits after the request and the kind of flow.
        let queues = if cfg!(target_endian = "big") {
            receive[3]
        } else {
            receive[2]
        };
        Ok(Table {
            queues,
            entries: words.split_off(TABLE_HEAD),
        })
    }

    /// Whether filters are on; an error where the card has none.
    pub(super) fn filters(&self, card: &str) -> io::Result<bool> {
        let mut receive = [0; RECEIVE_WORDS];
        receive[0] = GET_FILTER_COUNT;
        self.ask(card, &mut receive)?;
        let mut flags = [GET_FLAGS, 0];
        self.ask(card, &mut flags)?;
        Ok(flags[1] & FLAG_NTUPLE != 0)
    }

    /// Sends a request and overwrites it with the answer. Each request's structure fits into the words it is called with:
    /// that of a table has as many entries as its second word tells.
    fn ask(&self, card: &str, words: &mut [u32]) -> io::Result<()> {
        let mut name = [0 as c_char; libc::IFNAMSIZ];
        // Longer names are those of no card; the last byte stays zero.
        if card.len() >= name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, byte) in name.iter_mut().zip(card.bytes()) {
            *to = byte.cast_signed() as c_char;
        }
        let request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_data: words.as_mut_ptr().cast(),
            },
        };
        // SAFETY: the socket is open during the call; the kernel reads `request`, and reads and writes at its pointer no
        // more than the structure of the request, which the callers above give it the words for.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCETHTOOL, &raw const request) };
        if done < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_card_is_reported_as_gone() {
        let ethtool = Ethtool::new().unwrap();
        for name in ["", "none-such", "a-name-longer-than-names-may-be"] {
            let error = ethtool.queues(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name:?}");
        }
    }

    #[test]
    fn loopback_offers_nothing() {
        let ethtool = Ethtool::new().unwrap();
        let unsupported = Some(libc::EOPNOTSUPP);
        assert_eq!(ethtool.queues("lo").unwrap_err().raw_os_error(), unsupported);
        assert_eq!(ethtool.table("lo").unwrap_err().raw_os_error(), unsupported);
        assert_eq!(ethtool.filters("lo").unwrap_err().raw_os_error(), unsupported);
    }

    #[test]
    fn even_tables_are_recognized() {
        let table = |queues, entries: &[u32]| Table {
            queues,
            entries: entries.to_vec(),
        };
        assert!(table(3, &[0, 1, 2, 0]).is_even());
        assert!(!table(4, &[0, 1, 2, 0]).is_even());
        assert!(!table(2, &[1, 0]).is_even());
    }

    #[test]
    fn queue_counts_tell_combined_from_separate_queues() {
        let count = |now, max| Count { now, max };
        let paired = QueueCounts {
            combined: count(1, 8),
            ..QueueCounts::default()
        };
        assert_eq!((paired.max(), paired.is_separate()), (8, false));
        let separate = QueueCounts {
            receive: count(1, 4),
            transmit: count(2, 3),
            combined: count(0, 4),
        };
        assert_eq!((separate.max(), separate.is_separate()), (3, true));
    }
}
