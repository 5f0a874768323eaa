//! A network card of the model machine, as the kernel and virtio-net have it: a table that nobody has set follows the number
//! of queues, except on old kernels; one that somebody has set does not, and does not let queues go that it uses.

use super::model::Both;
use crate::affinity::{Count, QueueCounts, Table};

const ENTRIES: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) index: u32,
    pub(super) queues: Both<u32>,
    /// Entries of the table; `None` when nobody has set the table.
    table: Both<Option<Vec<u32>>>,
    /// For so many queues a table is that nobody has set.
    spread: u32,
    /// Whether that one follows the number of queues.
    pub(super) follows: bool,
    /// Whether the number has changed under a table that was set: the card itself may then have another one.
    pub(super) is_torn: bool,
}

impl Card {
    /// Also what others set, and what is never asked for.
    pub(super) const QUEUES_MAX: u32 = 5;

    pub(super) fn new(index: u32, random: &mut fastrand::Rng) -> Self {
        let queues = random.u32(2..4);
        let table = (random.u8(0..4) == 0).then(|| (0..ENTRIES).map(|_| random.u32(0..2)).collect());
        // What is as if nobody had set it cannot be told from it.
        let table = table.filter(|entries: &Vec<u32>| !spread(queues).eq(entries));
        Self {
            index,
            queues: Both {
                now: queues,
                wanted: queues,
            },
            table: Both {
                now: table.clone(),
                wanted: table,
            },
            spread: queues,
            follows: true,
            is_torn: false,
        }
    }

    pub(super) fn counts(&self) -> QueueCounts {
        QueueCounts {
            combined: Count {
                now: self.queues.now,
                max: Self::QUEUES_MAX,
            },
            ..QueueCounts::default()
        }
    }

    /// Else the errno.
    pub(super) fn may_have(&self, queues: u32) -> Result<(), i32> {
        let used = self.table.now.iter().flatten().max();
        let fits = used.is_none_or(|used| *used < queues) && (1..=Self::QUEUES_MAX).contains(&queues);
        if fits { Ok(()) } else { Err(libc::EINVAL) }
    }

    pub(super) fn set_queues(&mut self, queues: Both<u32>) {
        self.is_torn |= queues.now != self.queues.now && self.table.now.is_some();
        self.queues = queues;
        if self.follows {
            self.spread = queues.now;
        }
    }

    pub(super) fn table(&self) -> Table {
        let queues = self.queues.now;
        Table {
            queues,
            entries: self.table.now.clone().unwrap_or_else(|| spread(self.spread)),
        }
    }

    pub(super) fn set_table(&mut self, entries: &[u32]) -> Result<(), i32> {
        if entries.iter().any(|queue| *queue >= self.queues.now) {
            return Err(libc::EINVAL);
        }
        self.table.now = match entries.len() {
            0 => {
                self.spread = self.queues.now;
                None
            }
            ENTRIES => Some(entries.to_vec()),
            _ => return Err(libc::EINVAL),
        };
        Ok(())
    }

    /// The first queue for all but one entry.
    pub(super) fn set_table_by_others(&mut self) {
        let mut entries = vec![0; ENTRIES];
        entries[ENTRIES - 1] = 1;
        if self.queues.now > 1 {
            self.table = Both {
                now: Some(entries.clone()),
                wanted: Some(entries),
            };
        }
    }

    /// Describes the values of a card that is not as it would be without us.
    pub(super) fn difference(&self) -> Option<String> {
        let is_same = self.queues.now == self.queues.wanted && self.table.now == self.table.wanted;
        (!is_same).then(|| format!("queues {:?}, table {:?}", self.queues, self.table))
    }
}

fn spread(queues: u32) -> Vec<u32> {
    (0..queues).cycle().take(ENTRIES).collect()
}
