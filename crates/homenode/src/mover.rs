//! Watching which nodes reach which files of a filesystem, and moving files to them.
//!
//! BPF programs count (`homenode_linux::reach`), [`homenode_policy::mover`] decides, once a second; this carries decisions out.
//! A [`Watch`] works on files of a mount and of any tmpfs alike: the implementor of [`Files`] tells where files lie, and moves them.
//!
//! Cost: a read of the counts a second, and a look where each file lies of which 1 MiB/s or more is reached.

use crate::status::Flow;
use homenode_engine::NodeId;
use homenode_linux::reach::{Filesystem, Reach, Reached};
use homenode_policy::mover::{Decision, Mover, Rates, Reason};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Decisions that are told, the latest ones.
const TOLD_MAX: usize = 16;

/// Mode of the mover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoverMode {
    /// Nothing is counted.
    #[default]
    Off,
    /// Files that would move are told.
    Plan,
    /// Files move.
    On,
    /// A server of a later version told it.
    #[serde(other)]
    Unknown,
}

impl MoverMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Off, Self::Plan, Self::On];

    /// Its name, as it is given and told.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Plan => "plan",
            Self::On => "on",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for MoverMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MoverMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == text);
        named.ok_or_else(|| format!("`{text}` is no mode: write off, plan or on"))
    }
}

/// Files that a [`Watch`] looks at, by inode number.
pub trait Files {
    /// Bytes of a file on each node, ascending; `None` for one that is not there, or that stays where its policy says.
    fn map(&self, file: u64) -> Option<Vec<(NodeId, u64)>>;

    /// Moves a file to a node; returns the bytes moved.
    ///
    /// # Errors
    /// In words.
    fn move_to(&self, file: u64, node: NodeId) -> Result<u64, String>;

    /// Bytes that a node still takes.
    fn room(&self, node: NodeId) -> u64;

    /// Hears the bytes written since the last call, by node of the CPUs.
    fn note_written(&self, _written: &BTreeMap<NodeId, u64>) {}

    /// Hears what was reached since the last call; returns the bytes of it whose place is known.
    fn note_reached(&self, _reached: &[Reached]) -> Vec<Flow> {
        Vec::new()
    }
}

/// A decision, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Number of the file.
    pub inode: u64,
    /// Node whose CPUs reach most of its bytes.
    pub node: NodeId,
    /// Bytes of the file on other nodes.
    pub bytes: u64,
    /// Bytes a second that would no longer be remote.
    pub saved_rate: u64,
    /// Outcome.
    pub outcome: Outcome,
    /// Why it moves or stays, or cannot move.
    pub reason: String,
    #[serde(skip)]
    was_tried: bool,
}

/// Outcome of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The file has moved.
    #[serde(rename = "moved")]
    Moved,
    /// The mode is such that it stays.
    #[serde(rename = "would move")]
    WouldMove,
    /// It does not pay, or cannot be done.
    #[serde(rename = "stays")]
    Stays,
    /// A server of a later version told it.
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Moved => "moved",
            Self::WouldMove => "would move",
            Self::Stays => "stays",
            Self::Unknown => "unknown",
        })
    }
}

/// Bytes that CPUs of a node moved out of files and into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedBytes {
    /// The node.
    pub node: NodeId,
    /// Read.
    pub read_bytes: u64,
    /// Written.
    pub written_bytes: u64,
}

/// Counts and decisions of a [`Watch`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct MoverStatus {
    /// Its mode.
    pub mode: MoverMode,
    /// Reason why nothing is counted.
    pub not_seen: Option<String>,
    /// Bytes by node of the CPUs, ascending; mappings are not seen.
    pub reached: Vec<ReachedBytes>,
    /// Bytes that CPUs reached on their own node, of those in `located_bytes`.
    pub local_bytes: u64,
    /// Reached bytes whose place is known: of files of which 1 MiB or more was reached between two looks.
    pub located_bytes: u64,
    /// Bytes of `located_bytes` by node of the CPUs and node of the file's pages.
    pub located: Vec<Flow>,
    /// The end of the time of which `located` has bytes, in milliseconds since counting began: it is of the last look that was long enough to locate files, and
    /// these are seconds apart.
    pub located_until_ms: u64,
    /// Bytes that found no room among the counts.
    pub missed_bytes: u64,
    /// Files moved.
    pub moves: u64,
    /// Bytes of the moved files.
    pub moved_bytes: u64,
    /// The latest decisions, the last one at the end; a file is in it once.
    pub decisions: VecDeque<Told>,
}

/// Counts of one filesystem, and what follows from them.
#[derive(Debug)]
pub struct Watch {
    reach: Option<Reach>,
    of: (Filesystem, u64),
    mover: Mover,
    begun: Instant,
    counted: Instant,
    status: MoverStatus,
}

impl Watch {
    /// Begins to count for the filesystem of device number `device`. Where that is refused, the status tells why.
    #[must_use]
    pub fn begin(mode: MoverMode, filesystem: Filesystem, device: u64) -> Self {
        let mut watch = Self {
            reach: None,
            of: (filesystem, device),
            mover: Mover::default(),
            begun: Instant::now(),
            counted: Instant::now(),
            status: MoverStatus {
                mode,
                ..MoverStatus::default()
            },
        };
        if mode != MoverMode::Off {
            watch.count_on();
        }
        watch
    }

    /// Counts from now on, also while the mode is off.
    pub(crate) fn count_on(&mut self) {
        if self.reach.is_none() && self.status.not_seen.is_none() {
            let (filesystem, device) = self.of;
            self.reach = Reach::begin(filesystem, device)
                .map_err(|why| self.status.not_seen = Some(why))
                .ok();
        }
    }

    /// Counts no longer, while the mode is off.
    pub(crate) fn rest(&mut self) {
        if self.status.mode == MoverMode::Off {
            self.reach = None;
        }
    }

    /// Seen and done so far.
    #[must_use]
    pub fn status(&self) -> &MoverStatus {
        &self.status
    }

    /// Takes the counts since the last call; returns them, the files that may move, and the bytes written by node of the CPUs.
    fn count(&mut self) -> (Vec<Reached>, Vec<u64>, BTreeMap<NodeId, u64>) {
        let Some(reach) = &mut self.reach else {
            return Default::default();
        };
        let taken = reach.take();
        let period = self.counted.elapsed();
        self.counted = Instant::now();
        match taken {
            Ok((reached, missed)) => {
                let (busy, written) = self.take_in(&reached, missed, period);
                (reached, busy, written)
            }
            Err(why) => {
                self.status.not_seen = Some(why);
                self.reach = None;
                Default::default()
            }
        }
    }

    fn take_in(&mut self, reached: &[Reached], missed: u64, period: Duration) -> (Vec<u64>, BTreeMap<NodeId, u64>) {
        self.status.missed_bytes += missed;
        let mut by_file = BTreeMap::<u64, BTreeMap<NodeId, u64>>::new();
        let mut written = BTreeMap::<NodeId, u64>::new();
        for entry in reached {
            *by_file.entry(entry.file).or_default().entry(entry.node).or_default() +=
                entry.read_bytes + entry.written_bytes;
            *written.entry(entry.node).or_default() += entry.written_bytes;
            let sum = of_node(&mut self.status.reached, entry.node);
            sum.read_bytes += entry.read_bytes;
            sum.written_bytes += entry.written_bytes;
        }
        // A look that moved files took longer than a second.
        let period_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = |(node, bytes): (NodeId, u64)| (node, bytes.saturating_mul(1000) / period_ms);
        let rates = |nodes: BTreeMap<NodeId, u64>| nodes.into_iter().map(rate).collect::<Rates>();
        let by_file = by_file.into_iter().map(|(file, nodes)| (file, rates(nodes))).collect();
        (self.mover.note(self.now_s(), &by_file), written)
    }

    /// Takes note of a decision, and of what became of it.
    fn tell(&mut self, decision: Decision, moved: Option<Result<u64, String>>) {
        if let Some(result) = &moved {
            self.mover.moved(self.now_s(), decision.file);
            self.status.moves += u64::from(result.is_ok());
            self.status.moved_bytes += result.as_ref().unwrap_or(&0);
        }
        let was_tried = moved.is_some();
        let outcome = match (&moved, decision.reason) {
            (Some(Ok(_)), _) => Outcome::Moved,
            (None, Reason::Pays) => Outcome::WouldMove,
            _ => Outcome::Stays,
        };
        let reason = match moved {
            Some(Err(why)) => format!("cannot move: {why}"),
            _ => decision.reason.to_string(),
        };
        let told = &mut self.status.decisions;
        // The latest word on a file, but not over what was done with it.
        told.retain(|told| told.inode != decision.file || told.was_tried && !was_tried);
        told.push_back(Told {
            inode: decision.file,
            node: decision.to,
            bytes: decision.bytes,
            saved_rate: decision.saved_rate,
            outcome,
            reason,
            was_tried,
        });
        while told.len() > TOLD_MAX {
            told.pop_front();
        }
    }

    fn note_located(&mut self, located: &[Flow]) {
        let status = &mut self.status;
        for flow in located {
            status.located_bytes += flow.bytes;
            status.local_bytes += if flow.is_local() { flow.bytes } else { 0 };
        }
        status.located = Flow::sum(status.located.iter().chain(located));
        let until = self.counted.duration_since(self.begun).as_millis();
        status.located_until_ms = u64::try_from(until).unwrap_or(u64::MAX);
    }

    fn now_s(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
}

fn of_node(reached: &mut Vec<ReachedBytes>, node: NodeId) -> &mut ReachedBytes {
    let place = reached.binary_search_by_key(&node, |bytes| bytes.node);
    let place = place.unwrap_or_else(|place| {
        let none = ReachedBytes {
            node,
            read_bytes: 0,
            written_bytes: 0,
        };
        reached.insert(place, none);
        place
    });
    &mut reached[place]
}

/// Counts, decides and moves once; call it once a second. `watch` is not locked while files are mapped and moved, so a status does not wait
/// for that.
pub fn look(watch: &Mutex<Watch>, files: &dyn Files) {
    let (reached, busy, written) = watch.lock().count();
    // Before files are located: that takes long, and files grow meanwhile.
    files.note_written(&written);
    let located = files.note_reached(&reached);
    watch.lock().note_located(&located);
    decide(watch, files, busy);
}

fn decide(watch: &Mutex<Watch>, files: &dyn Files, busy: Vec<u64>) {
    for file in busy {
        if watch.lock().status.mode == MoverMode::Off {
            break;
        }
        let Some(lies) = files.map(file) else { continue };
        let decision = watch.lock().mover.decide(file, &lies, |node| files.room(node));
        let Some(decision) = decision else { continue };
        let moves = watch.lock().status.mode == MoverMode::On && decision.reason == Reason::Pays;
        let moved = moves.then(|| files.move_to(decision.file, decision.to));
        watch.lock().tell(decision, moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const MIB: u64 = 1 << 20;

    /// Files of 10 MiB on node 0, of which a node takes `room` bytes.
    struct Fake {
        room: RefCell<u64>,
        lies: RefCell<BTreeMap<u64, NodeId>>,
    }

    impl Files for Fake {
        fn map(&self, file: u64) -> Option<Vec<(NodeId, u64)>> {
            Some(vec![(*self.lies.borrow().get(&file)?, 10 * MIB)])
        }

        fn move_to(&self, file: u64, node: NodeId) -> Result<u64, String> {
            *self.room.borrow_mut() -= 10 * MIB;
            self.lies.borrow_mut().insert(file, node);
            Ok(10 * MIB)
        }

        fn room(&self, _: NodeId) -> u64 {
            *self.room.borrow()
        }
    }

    fn fake(room: u64) -> Fake {
        Fake {
            room: RefCell::new(room),
            lies: RefCell::new((1..4).map(|file| (file, NodeId(0))).collect()),
        }
    }

    fn read(file: u64, bytes: u64) -> Reached {
        Reached {
            file,
            thread: 1,
            node: NodeId(1),
            read_bytes: bytes,
            written_bytes: 0,
        }
    }

    /// Decides about what was reached in a period, as [`look`] does.
    fn look_at(watch: &Mutex<Watch>, files: &Fake, reached: &[Reached], period: Duration) {
        let (busy, _) = watch.lock().take_in(reached, 0, period);
        decide(watch, files, busy);
    }

    fn watch(mode: MoverMode) -> Mutex<Watch> {
        let watch = Watch::begin(MoverMode::Off, Filesystem::Mount, 0);
        let status = MoverStatus {
            mode,
            ..MoverStatus::default()
        };
        Mutex::new(Watch { status, ..watch })
    }

    #[test]
    fn files_move_while_the_node_has_room_and_then_rest() {
        let (watch, files) = (watch(MoverMode::On), fake(25 * MIB));
        let reached: Vec<_> = (1..5).map(|file| read(file, 100 * MIB)).collect();
        for _ in 0..3 {
            look_at(&watch, &files, &reached, Duration::from_secs(1));
        }
        let status = watch.lock().status().clone();
        assert_eq!((status.moves, status.moved_bytes), (2, 20 * MIB));
        let told = status.decisions.iter();
        let told: Vec<_> = told.map(|told| (told.inode, told.outcome, &*told.reason)).collect();
        let (pays, no_room) = (Reason::Pays.to_string(), Reason::NoRoom.to_string());
        assert_eq!(
            told,
            [
                (1, Outcome::Moved, &*pays),
                (2, Outcome::Moved, &*pays),
                (3, Outcome::Stays, &*no_room)
            ],
            "file 4 is gone"
        );
        let reached = ReachedBytes {
            node: NodeId(1),
            read_bytes: 1200 * MIB,
            written_bytes: 0,
        };
        assert_eq!(status.reached, [reached]);
    }

    #[test]
    fn plan_moves_nothing() {
        let (watch, files) = (watch(MoverMode::Plan), fake(u64::MAX));
        look_at(&watch, &files, &[read(1, 100 * MIB)], Duration::from_secs(1));
        let status = watch.lock().status().clone();
        assert_eq!((status.moves, status.decisions.len()), (0, 1));
        assert_eq!(status.decisions[0].outcome, Outcome::WouldMove);
    }

    #[test]
    fn rates_are_divided_by_the_periods_length() {
        let (watch, files) = (watch(MoverMode::On), fake(u64::MAX));
        look_at(&watch, &files, &[read(1, 100 * MIB)], Duration::from_secs(100));
        assert!(
            watch.lock().status().decisions.is_empty(),
            "1 MiB a second, of which half counts at first"
        );
    }
}
