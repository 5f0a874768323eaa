//! Senses what core affinity is decided from: interrupts, queues and threads, and what they did in a period.
//!
//! Everything is read below a root directory, `/` or that of a recorded machine, from /proc and /sys; on the machine it
//! runs on, programs in the kernel tell the rest (`bpf`): bytes of sockets, and which disks bytes were of. Counts of a
//! period are what two readings differ by: a [`Sensor`] keeps the last one. What vanishes while it is looked at is left
//! out; what cannot be read is told in [`Sensed::unseen`], and is no error.
//!
//! Cost: the settings of interrupts and queues are read in every eighth period only, or when asked for; that of threads is
//! in `threads`. The test `sensing_a_thousand_threads_stays_cheap` prints and bounds it.
//!
//! How cards spread packets over their queues is in [`Sensed::cards`], besides what is decided from.

pub(crate) mod bpf;
mod cards;
pub(super) mod counts;
pub(super) mod cpusets;
mod disks;
mod ethtool;
pub(super) mod gaps;
mod hardware;
mod names;
mod pools;
mod record;
mod restarts;
mod settings;
pub(super) mod thread_files;
mod thread_proc;
pub(super) mod threads;
mod ties;

use crate::topology::{self, sysfs::Tree};
use bpf::Bpf;
pub use cards::Card;
use counts::Counts;
use disks::Disks;
pub use ethtool::{Count, QueueCounts, Table};
use gaps::Gaps;
pub use gaps::Unseen;
pub use hardware::Hardware;
use homenode_policy::CpuId;
use homenode_policy::affinity::{Config, Interrupt, Snapshot};
use homenode_policy::topology::Topology;
use pools::Pools;
pub use pools::{Ask, ByNode, FilePlace, PoolTasks, TaskBytes};
pub(crate) use record::recorded_whole;
pub use record::{record, recorded};
use restarts::{Restarted, Restarts};
use settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use threads::{Pass, TICKS_PER_SECOND, Threads};

pub(super) const INTERRUPTS: &str = "proc/interrupts";
const UPTIME: &str = "proc/uptime";
pub(super) const ONLINE: &str = "sys/devices/system/cpu/online";
/// CPUs that are isolated by the command line, and by partitions of cpusets.
const ISOLATED: [&str; 3] = [
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/nohz_full",
    "sys/fs/cgroup/cpuset.cpus.isolated",
];

/// Settings are read anew after so many periods, in case somebody else has changed them.
const SETTINGS_PERIODS: u32 = 8;

/// Reads a machine once a period.
#[derive(Debug)]
pub struct Sensor {
    tree: Tree,
    last: Reading,
    bpf: Bpf,
    pools: Pools,
    threads: Threads,
    disks: Disks,
    settings: Option<Settings>,
    settings_age: u32,
    settings_unseen: Vec<Unseen>,
    /// Counts when settings were read last.
    restarts: Restarts,
    /// Restarts told then, for once more: drivers may act a moment after a CPU is seen to run.
    restarted: Restarted,
}

/// Result of sensing a machine for one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sensed {
    /// Snapshot of the period.
    pub snapshot: Snapshot,
    /// How network cards spread packets over their queues; those of which nothing is known are not among them.
    pub cards: Vec<Card>,
    /// Data that could not be seen, and why.
    pub unseen: Vec<Unseen>,
}

/// Counts of the whole machine, and when they were read.
#[derive(Debug)]
struct Reading {
    /// Since boot.
    ticks: u64,
    online: Vec<CpuId>,
    isolated: Vec<CpuId>,
    counts: Counts,
}

impl Sensor {
    /// Begins the first period of the machine below `root`. If that is the machine we run on, the servers of its pools are asked by `ask`.
    ///
    /// # Errors
    /// What could not be read without which nothing can be told.
    pub fn new(root: &Path, ask: Ask) -> Result<Self, Error> {
        Self::begin(Tree::new(root), ask)
    }

    fn begin(tree: Tree, ask: Ask) -> Result<Self, Error> {
        // Loading programs takes a while, in which nothing is counted.
        let mut bpf = Bpf::new(&tree);
        let last = Reading::read(&tree)?;
        let restarts = Restarts::read(&tree);
        let mut threads = Threads::default();
        let mut pools = Pools::new(ask);
        let mut gaps = Gaps::default();
        let mut buffers = pools.read(&tree, last.ticks..last.ticks, &mut gaps);
        let counted = bpf.read(&tree, &mut gaps);
        let mut first = Pass {
            tree: &tree,
            online: &last.online,
            since: None,
            period_ns: 0,
            counted: &counted,
            buffers: &mut buffers,
            gaps: &mut gaps,
            disks: &mut Disks::default(),
            card_names: &BTreeMap::new(),
            busy_bytes: u64::MAX,
        };
        threads
            .pass(&mut first)
            .map_err(|source| Error::read(&tree, "proc", source))?;
        Ok(Self {
            tree,
            last,
            bpf,
            pools,
            threads,
            disks: Disks::default(),
            settings: None,
            settings_age: 0,
            settings_unseen: Vec::new(),
            restarts,
            restarted: Restarted::default(),
        })
    }

    /// Returns what happened since the last call, or since the sensor was made. `topology` names the devices, and is that
    /// of the same machine.
    ///
    /// # Errors
    /// What could not be read without which nothing can be told. The next call's period then begins where this one's did.
    pub fn sense(&mut self, topology: &Topology) -> Result<Sensed, Error> {
        let now = Reading::read(&self.tree)?;
        // Counts first: they are of the period that ends now, and settings may take a while.
        let mut gaps = Gaps::default();
        let mut buffers = self.pools.read(&self.tree, self.last.ticks..now.ticks, &mut gaps);
        let counted = self.bpf.read(&self.tree, &mut gaps);
        let restarted = self.read_settings(&now, topology);
        let period_ns = period_ns(self.last.ticks, now.ticks);
        let settings = self.settings.as_ref().expect("the settings were read above");
        let mut pass = Pass {
            tree: &self.tree,
            online: &now.online,
            since: Some(self.last.ticks),
            period_ns,
            counted: &counted,
            buffers: &mut buffers,
            gaps: &mut gaps,
            disks: &mut self.disks,
            card_names: &settings.card_names,
            busy_bytes: busy_bytes(period_ns),
        };
        let ran = self.threads.pass(&mut pass);
        let threads = ran.map_err(|source| Error::read(&self.tree, "proc", source))?;
        let snapshot = Snapshot {
            topology: topology.clone(),
            online: now.online.clone(),
            isolated: now.isolated.clone(),
            period_ns,
            interrupts: interrupts(settings, &now.counts, &self.last.counts),
            queues: settings.queues.clone(),
            threads,
            files: buffers.files,
            has_restarted: restarted.all,
            restarted: restarted.cards,
        };
        let mut unseen = gaps.finish();
        unseen.extend(self.settings_unseen.iter().cloned());
        let cards = settings.cards.clone();
        self.last = now;
        Ok(Sensed {
            snapshot,
            cards,
            unseen,
        })
    }

    /// Reads the settings of interrupts and queues anew in the next call, as they have been changed.
    pub fn settings_changed(&mut self) {
        self.settings = None;
    }

    /// Returns the hardware that was there when the last period ended; disks and cards are read now.
    #[must_use]
    pub fn hardware(&self) -> Hardware {
        Hardware::read(&self.tree, &self.last)
    }

    /// Returns what has restarted since settings were read before last, when they are read now.
    fn read_settings(&mut self, now: &Reading, topology: &Topology) -> Restarted {
        self.settings_age += 1;
        let last = &self.last;
        let same = last.online == now.online && last.interrupts() == now.interrupts();
        let is_quiet = same && self.restarted == Restarted::default();
        if self.settings.is_some() && is_quiet && self.settings_age < SETTINGS_PERIODS {
            return Restarted::default();
        }
        // What restarts while settings are read is told now and the next time: it is not known which of them were set before.
        let before = Restarts::read(&self.tree);
        let mut gaps = Gaps::default();
        self.settings = Some(Settings::read(&self.tree, &now.counts, topology, &mut gaps));
        self.disks = Disks::new(topology);
        self.settings_unseen = gaps.finish();
        self.settings_age = 0;
        let restarted = Restarts::read(&self.tree).since(&self.restarts);
        self.restarts = before;
        let earlier = std::mem::replace(&mut self.restarted, restarted.clone());
        restarted.and(earlier)
    }
}

impl Reading {
    fn read(tree: &Tree) -> Result<Self, Error> {
        let text = |path: &str| tree.try_text(path).map_err(|source| Error::read(tree, path, source));
        let unclear = |path: &str| Error::Unclear { path: tree.path(path) };
        let ticks = uptime_ticks(&text(UPTIME)?).ok_or_else(|| unclear(UPTIME))?;
        let online = topology::sysfs::parse_list(&text(ONLINE)?).ok_or_else(|| unclear(ONLINE))?;
        // Kernels without such a list isolate nothing; `(null)` is one of no CPUs.
        let list = |path| topology::sysfs::parse_list(&tree.try_text(path).ok()?);
        let isolated: BTreeSet<u32> = ISOLATED.iter().filter_map(list).flatten().collect();
        let counts = Counts::parse(&text(INTERRUPTS)?).ok_or_else(|| unclear(INTERRUPTS))?;
        Ok(Self {
            ticks,
            online: online.into_iter().map(CpuId).collect(),
            isolated: isolated.into_iter().map(CpuId).collect(),
            counts,
        })
    }

    /// Numbers and names.
    fn interrupts(&self) -> Vec<(u32, String)> {
        let lines = self.counts.lines.iter();
        lines.map(|(number, line)| (*number, line.name.clone())).collect()
    }
}

/// Returns the interrupts whose settings could be read, ascending by number.
fn interrupts(settings: &Settings, now: &Counts, last: &Counts) -> Vec<Interrupt> {
    let known = now
        .lines
        .iter()
        .filter_map(|(number, line)| Some((number, line, settings.interrupts.get(number)?)));
    known
        .map(|(number, line, setting)| Interrupt {
            number: *number,
            name: line.name.clone(),
            device: setting.device.clone(),
            arrivals: now.since(last, *number),
            affinity: setting.affinity.clone(),
            effective: setting.effective.clone(),
            managed: setting.managed,
        })
        .collect()
}

/// Parses `4711.42 9000.00` to clock ticks since boot: seconds with two places, which are ticks. A clock of our own would
/// not be in recordings.
fn uptime_ticks(text: &str) -> Option<u64> {
    let (seconds, rest) = text.split_ascii_whitespace().next()?.split_once('.')?;
    let seconds: u64 = seconds.parse().ok()?;
    let hundredths: u64 = (rest.len() == 2).then(|| rest.parse().ok())??;
    seconds.checked_mul(TICKS_PER_SECOND)?.checked_add(hundredths)
}

/// At least a tick: two readings are never at the same time.
fn period_ns(last_ticks: u64, now_ticks: u64) -> u64 {
    now_ticks.saturating_sub(last_ticks).max(1) * (1_000_000_000 / TICKS_PER_SECOND)
}

/// Returns how many bytes a thread must move in a period to be planned for, by the default configuration.
fn busy_bytes(period_ns: u64) -> u64 {
    let bytes = u128::from(Config::default().rate_bytes_per_s_min) * u128::from(period_ns) / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => ": are /proc and /sys of the machine there?",
        io::ErrorKind::PermissionDenied => ": run it as root, or as the owner of the recording",
        _ => "",
    }
}

/// A machine cannot be sensed, recorded, or read from a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file without which nothing can be told.
    #[error("cannot read {path}: {source}{remedy}", path = path.display(), remedy = remedy(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file that is not as Linux writes it.
    #[error("cannot understand {path}: it is not as Linux writes it", path = path.display())]
    Unclear {
        /// The file.
        path: PathBuf,
    },
    /// The topology.
    #[error(transparent)]
    Topology(#[from] topology::Error),
    /// There is something already where a recording is to go.
    #[error("{directory} is not empty: name a directory that is empty or not there yet", directory = directory.display())]
    NotEmpty {
        /// Where.
        directory: PathBuf,
    },
    /// Others may put links where a recording is to go.
    #[error("{directory} belongs to another user, or others may write to it: name a directory that is not there yet", directory = directory.display())]
    Shared {
        /// Where.
        directory: PathBuf,
    },
    /// A recording cannot be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// hwloc cannot write the topology down.
    #[error("hwloc cannot write the topology of this machine as XML")]
    Export,
    /// The path of a recording is no directory, or is not there.
    #[error("{path} {problem}: name a directory that `homenode affinity record DIR` made", path = path.display(), problem = if *is_there { "is no directory" } else { "is not there" })]
    NoRecording {
        /// The path.
        path: PathBuf,
        /// Whether there is something of that name.
        is_there: bool,
    },
    /// A directory without what is written last.
    #[error("{directory} is an incomplete recording: it has no file meta, which is written last: was `homenode affinity record` stopped before its end? Record the machine again, into another directory", directory = directory.display())]
    Unfinished {
        /// The recording.
        directory: PathBuf,
    },
    /// A recording lacks a file.
    #[error("the recording {directory} is incomplete: {path} is missing: record the machine again", directory = directory.display(), path = path.display())]
    Incomplete {
        /// The recording.
        directory: PathBuf,
        /// The first file that is missing.
        path: PathBuf,
    },
    /// A recording is of another version's layout.
    #[error("the recording {directory} is of another version of homenode (\"{found}\", not \"{expected}\"): record the machine again, or use that version", directory = directory.display())]
    Version {
        /// The recording.
        directory: PathBuf,
        /// The layout that it has.
        found: String,
        /// The layout that is read.
        expected: &'static str,
    },
    /// A recording's file may not be read.
    #[error("cannot read {path}: {source}: let the recording's owner run this, or root", path = path.display())]
    Denied {
        /// The file.
        path: PathBuf,
        /// The system's refusal.
        source: io::Error,
    },
    /// A recording's file is not what was recorded.
    #[error("the recording {directory} is damaged: {path}: {problem}: record the machine again", directory = directory.display(), path = path.display())]
    Damaged {
        /// The recording.
        directory: PathBuf,
        /// The file.
        path: PathBuf,
        /// Problem with the file.
        problem: String,
    },
}

impl Error {
    fn read(tree: &Tree, path: &str, source: io::Error) -> Self {
        let path = tree.path(path);
        Self::Read { path, source }
    }
}

#[cfg(test)]
mod tests;
