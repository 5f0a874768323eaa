//! The mover: decides which files move to the node that reads and writes them.
//!
//! A file moves when the CPUs of one node reach far more of its bytes than all others do, and when the remote bytes that this saves within
//! [`HORIZON_S`] outweigh the copy. After a move the file rests: [`DWELL_S`] at first, twice as long after each further move, so
//! that two nodes that take turns do not send it back and forth.
//!
//! Invariants: without clock, files and randomness; among equals the lowest file comes first. History of a file that nobody reaches is
//! forgotten once its rest is over.
//! Cost: a map entry for each file that was reached lately.
//! [`weigh`] is the cost alone, without history: core affinity moves files by it as well.
//! Source: MBS-LVM, section 4, leaves moving bytes to their readers as future work.

use crate::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

/// Seconds of use that a move has to pay for itself.
pub const HORIZON_S: u64 = 10;
/// Seconds that a file stays after its first move.
pub const DWELL_S: u64 = 10;
/// Longest rest after a move, in seconds.
const DWELL_S_MAX: u64 = 3600;
/// Bytes of remote access that moving a byte costs: it is read on one node and written on another, and its page is locked meanwhile.
const MOVE_COST: u64 = 4;
/// Bytes that the CPUs of the new node have to reach for each byte that those of other nodes do.
const DOMINANCE: u64 = 3;
/// Least bytes a second for which a file is looked at: less than 1 MiB/s costs nobody time.
pub const RATE_MIN: u64 = 1 << 20;

/// Bytes that CPUs of each node read and wrote in a second, ascending by node.
pub type Rates = Vec<(NodeId, u64)>;

/// Bytes of a file on each node, ascending by node.
pub type Lies = [(NodeId, u64)];

/// Smoothed use of files, and their last moves.
#[derive(Debug, Default)]
pub struct Mover {
    files: BTreeMap<u64, History>,
}

#[derive(Debug, Default)]
struct History {
    rates: BTreeMap<NodeId, u64>,
    moves: u32,
    /// Seconds since some beginning.
    rests_until_s: u64,
}

/// A move, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Number of the file.
    pub file: u64,
    /// Node whose CPUs reach most of its bytes.
    pub to: NodeId,
    /// Bytes of the file on other nodes.
    pub bytes: u64,
    /// Bytes a second that would be local, and are remote now.
    pub saved_rate: u64,
    /// Why it moves or stays.
    pub reason: Reason,
}

/// Why a file moves or stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It saves more remote bytes within [`HORIZON_S`] than moving costs.
    Pays,
    /// The copy costs more than the move saves.
    TooDear,
    /// The node has no room.
    NoRoom,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pays => write!(f, "saves more remote bytes within {HORIZON_S} s than moving costs"),
            Self::TooDear => write!(f, "saves fewer remote bytes within {HORIZON_S} s than moving costs"),
            Self::NoRoom => f.write_str("that node has no room"),
        }
    }
}

impl Mover {
    /// Adds the bytes a second of the last period, by file and node; returns the files that may move, ascending: at least [`RATE_MIN`] of
    /// such a file are reached, most of them from one node, and it does not rest.
    pub fn note(&mut self, now_s: u64, reached: &BTreeMap<u64, Rates>) -> Vec<u64> {
        for history in self.files.values_mut() {
            history.rates.values_mut().for_each(|rate| *rate /= 2);
        }
        for (file, rates) in reached {
            let history = self.files.entry(*file).or_default();
            for (node, rate) in rates {
                *history.rates.entry(*node).or_default() += rate / 2;
            }
        }
        self.files.retain(|_, history| {
            history.rates.retain(|_, rate| *rate > 0);
            !history.rates.is_empty() || history.rests_until_s > now_s
        });
        let may_move = |history: &History| dominant(&history.rates).is_some() && history.rests_until_s <= now_s;
        let busy = self.files.iter().filter(|(_, history)| may_move(history));
        busy.map(|(file, _)| *file).collect()
    }

    /// Decides about a file that may move and lies on `lies`; `None` where its bytes are where they are reached. `room` tells the bytes that a
    /// node still takes.
    pub fn decide(&self, file: u64, lies: &Lies, room: impl Fn(NodeId) -> u64) -> Option<Decision> {
        weigh(file, &self.files.get(&file)?.rates, lies, room)
    }

    /// Takes note of a move: the file rests.
    pub fn moved(&mut self, now_s: u64, file: u64) {
        let history = self.files.entry(file).or_default();
        let rest = DWELL_S.saturating_mul(1 << history.moves.min(16)).min(DWELL_S_MAX);
        history.moves += 1;
        history.rests_until_s = now_s + rest;
    }
}

/// Returns the node from which far more bytes a second of a file are reached than from all others, if at least [`RATE_MIN`] are.
#[must_use]
pub fn dominant(rates: &BTreeMap<NodeId, u64>) -> Option<NodeId> {
    let (to, main) = most(rates)?;
    let total = rates.values().fold(0, |sum: u64, rate| sum.saturating_add(*rate));
    (total >= RATE_MIN && (total - main).saturating_mul(DOMINANCE) <= main).then_some(to)
}

/// Node that reaches most, the lowest of equals, with its bytes a second.
fn most(rates: &BTreeMap<NodeId, u64>) -> Option<(NodeId, u64)> {
    let most = rates.iter().rev().max_by_key(|(_, rate)| **rate);
    most.map(|(node, rate)| (*node, *rate))
}

/// Decides about a file that is reached by `rates` and lies on `lies`, whatever was before; `None` where its bytes are where they are
/// reached. `room` tells the bytes that a node still takes.
pub fn weigh(file: u64, rates: &BTreeMap<NodeId, u64>, lies: &Lies, room: impl Fn(NodeId) -> u64) -> Option<Decision> {
    let (to, rate) = most(rates)?;
    let all = lies.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    let on = |node: NodeId| lies.iter().find(|(on, _)| *on == node).map_or(0, |(_, bytes)| *bytes);
    let bytes = all - on(to);
    let others = rates.iter().filter(|(node, _)| **node != to);
    let lost = others.map(|(node, rate)| share(*rate, on(*node), all));
    let lost = lost.fold(0, u64::saturating_add);
    let saved_rate = share(rate, bytes, all).saturating_sub(lost);
    if bytes == 0 || saved_rate == 0 {
        return None;
    }
    let reason = if saved_rate <= price(bytes) {
        Reason::TooDear
    } else if room(to) < bytes {
        Reason::NoRoom
    } else {
        Reason::Pays
    };
    Some(Decision {
        file,
        to,
        bytes,
        saved_rate,
        reason,
    })
}

/// Remote bytes a second that moving so many bytes of a file must save.
#[must_use]
pub const fn price(bytes: u64) -> u64 {
    bytes.saturating_mul(MOVE_COST) / HORIZON_S
}

/// Part of a file's `rate` that its `bytes` on a node have, of `all`: nobody tells offsets, so all are taken as equally busy.
pub(crate) fn share(rate: u64, bytes: u64, all: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(bytes) / u128::from(all.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const MIB: u64 = 1 << 20;
    const N0: NodeId = NodeId(0);
    const N1: NodeId = NodeId(1);

    /// A mover after ten seconds of the same use of file 7.
    fn after_use(rates: &[(NodeId, u64)]) -> Mover {
        let mut mover = Mover::default();
        for second in 0..10 {
            mover.note(second, &BTreeMap::from([(7, rates.to_vec())]));
        }
        mover
    }

    fn reason(mover: &Mover, lies: &Lies) -> Option<Reason> {
        mover.decide(7, lies, |_| u64::MAX).map(|decision| decision.reason)
    }

    #[test]
    fn a_file_read_by_one_other_node_moves_there() {
        let mut mover = after_use(&[(N0, 10 * MIB), (N1, 500 * MIB)]);
        assert_eq!(
            mover.note(10, &BTreeMap::from([(7, vec![(N0, 10 * MIB), (N1, 500 * MIB)])])),
            [7]
        );
        let decision = mover.decide(7, &[(N0, 1000 * MIB)], |_| u64::MAX).unwrap();
        assert_eq!(
            (decision.to, decision.bytes, decision.reason),
            (N1, 1000 * MIB, Reason::Pays)
        );
        assert!(decision.saved_rate.abs_diff(490 * MIB) < 2 * MIB, "{decision:?}");
    }

    #[test]
    fn a_file_stays_at_its_users_or_if_moving_does_not_pay() {
        let mover = after_use(&[(N1, 500 * MIB)]);
        assert_eq!(reason(&mover, &[(N1, 1000 * MIB)]), None);
        assert_eq!(reason(&mover, &[(N0, 2000 * MIB)]), Some(Reason::TooDear));
        assert_eq!(mover.decide(7, &[(N0, MIB)], |_| 0).unwrap().reason, Reason::NoRoom);
        assert_eq!(reason(&mover, &[]), None, "an empty file");
    }

    #[test]
    fn a_shared_or_rarely_used_file_is_ignored() {
        for (rates, is_busy) in [
            ([(N0, 200 * MIB), (N1, 500 * MIB)], false),
            ([(N0, 100 * MIB), (N1, 500 * MIB)], true),
            ([(N0, 0), (N1, MIB / 2)], false),
        ] {
            let mut mover = after_use(&rates);
            let busy = mover.note(10, &BTreeMap::from([(7, rates.to_vec())]));
            assert_eq!(!busy.is_empty(), is_busy, "{rates:?}");
        }
    }

    #[test]
    fn a_file_rests_twice_as_long_after_each_move() {
        let mut mover = after_use(&[(N1, 500 * MIB)]);
        let reached = BTreeMap::from([(7, vec![(N1, 500 * MIB)])]);
        for (moved_s, rest_s) in [(10, 10), (100, 20), (1000, 40), (5000, 80)] {
            mover.moved(moved_s, 7);
            assert!(mover.note(moved_s + rest_s - 1, &reached).is_empty());
            assert_eq!(mover.note(moved_s + rest_s, &reached), [7]);
        }
    }

    #[test]
    fn ended_use_is_forgotten_but_a_rest_is_not() {
        let mut mover = after_use(&[(N1, 500 * MIB)]);
        assert_eq!(mover.note(10, &BTreeMap::new()), vec![7]);
        for second in 11..50 {
            mover.note(second, &BTreeMap::new());
        }
        assert!(mover.files.is_empty());
        mover.moved(50, 7);
        assert!(mover.note(59, &BTreeMap::new()).is_empty() && mover.files.len() == 1);
        mover.note(60, &BTreeMap::new());
        assert!(mover.files.is_empty());
    }
}
