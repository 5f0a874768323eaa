//! Guests, and what the emulator counted in them.

use super::job::{Done, Size, Work};
use crate::error::{During, Error};
use crate::lab::Lab;
use serde::Deserialize;
use std::fs;
use std::io;
use std::iter::Sum;
use std::path::Path;

/// A guest to boot, and what is measured in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guest<'a> {
    pub(super) nodes: u32,
    pub(super) sizes: &'a [Size],
    pub(super) rounds: u32,
    pub(super) interval_ms: u32,
    /// Modelled delay of a remote access that misses the cache.
    pub(super) delay_ns: u32,
    /// The command homenode.
    pub(super) command: &'a Path,
}

/// Work done in an interval, and the accesses meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) work: Work,
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    /// Accesses of each node's CPUs, indexed by the node.
    pub(super) by_node: Vec<Counts>,
}

/// Loads and stores of some CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// All accesses that the CPUs make.
    pub(super) raw: Homes,
    /// Accesses that miss a cache of 1 MiB and eight ways on each CPU.
    pub(super) missed: Homes,
    /// Accesses that miss a direct-mapped cache of 1 MiB on each CPU.
    pub(super) direct_missed: Homes,
}

/// Accesses by whether the memory is of the CPU's node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Homes {
    pub(super) local: f64,
    pub(super) remote: f64,
}

impl Homes {
    pub(super) fn total(self) -> f64 {
        self.local + self.remote
    }

    pub(super) fn local_percent(self) -> f64 {
        100.0 * self.local / self.total()
    }

    fn add(&mut self, is_local: bool, accesses: f64) {
        *(if is_local { &mut self.local } else { &mut self.remote }) += accesses;
    }
}

impl Interval {
    /// Returns the accesses of the whole machine.
    pub(super) fn counts(&self) -> Counts {
        self.by_node.iter().copied().sum()
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        for counts in all {
            for (to, from) in [
                (&mut sum.raw, counts.raw),
                (&mut sum.missed, counts.missed),
                (&mut sum.direct_missed, counts.direct_missed),
            ] {
                to.local += from.local;
                to.remote += from.remote;
            }
        }
        sum
    }
}

/// The counter's document.
#[derive(Debug, Deserialize)]
struct Document {
    intervals: Vec<Vec<Accesses>>,
}

/// Accesses of one CPU to one home, in user or kernel mode.
#[derive(Debug, Deserialize)]
struct Accesses {
    cpu_node: u32,
    /// Node of the memory; none for a device or firmware.
    home: Option<u32>,
    loads: f64,
    stores: f64,
    missed_loads: f64,
    missed_stores: f64,
    direct_missed_loads: f64,
    direct_missed_stores: f64,
}

/// Boots the guest and has everyone measured; calls `tick` after each interval.
pub(super) fn measure(lab: &Lab, guest: &Guest<'_>, tick: impl Fn()) -> Result<Vec<Interval>, Error> {
    let counts = tempfile::NamedTempFile::new().during("making a temporary file")?;
    let mut options = vec![
        "--mem=1G".to_owned(),
        "--kernel=6.18".to_owned(),
        format!("--count={}", counts.path().display()),
    ];
    if guest.delay_ns > 0 {
        options.push(format!("--delay-ns={}", guest.delay_ns));
    }
    let sizes: Vec<String> = guest.sizes.iter().map(|size| size.bytes.to_string()).collect();
    let words = [
        "measure-locality".to_owned(),
        format!("--sizes={}", sizes.join(",")),
        format!("--rounds={}", guest.rounds),
        format!("--interval-ms={}", guest.interval_ms),
        format!("--command={}", guest.command.display()),
    ];
    let done: Vec<Done> = lab.told(lab.guest(guest.nodes, &options, &[guest.command], &words), tick)?;
    let text = fs::read_to_string(counts.path()).during("reading the counts")?;
    let document: Document =
        serde_json::from_str(&text).map_err(|error| Error::system("reading the counts", io::Error::from(error)))?;
    if done.len() != document.intervals.len() {
        let what = format!("{} intervals were counted of {}", document.intervals.len(), done.len());
        return Err(Error::system("the guest", io::Error::other(what)));
    }
    Ok(done.iter().zip(&document.intervals).map(interval).collect())
}

fn interval((done, accesses): (&Done, &Vec<Accesses>)) -> Interval {
    let mut by_node = Vec::new();
    for row in accesses {
        if let Some(home) = row.home {
            let node = row.cpu_node as usize;
            by_node.resize(by_node.len().max(node + 1), Counts::default());
            let counts: &mut Counts = &mut by_node[node];
            let is_local = home == row.cpu_node;
            counts.raw.add(is_local, row.loads + row.stores);
            counts.missed.add(is_local, row.missed_loads + row.missed_stores);
            let direct_missed = row.direct_missed_loads + row.direct_missed_stores;
            counts.direct_missed.add(is_local, direct_missed);
        }
    }
    Interval {
        work: done.work,
        bytes: done.bytes,
        seconds: done.seconds,
        by_node,
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Contestant;
    use super::*;

    #[test]
    fn accesses_count_as_local_remote_or_no_memory() {
        let text = r#"[{"cpu": 0, "cpu_node": 0, "home": 0, "mode": "user", "loads": 30, "stores": 1,
                        "missed_loads": 3, "missed_stores": 0, "direct_missed_loads": 4, "direct_missed_stores": 0},
                       {"cpu": 0, "cpu_node": 0, "home": 1, "mode": "kernel", "loads": 9, "stores": 0,
                        "missed_loads": 1, "missed_stores": 0, "direct_missed_loads": 4, "direct_missed_stores": 0},
                       {"cpu": 3, "cpu_node": 1, "home": null, "mode": "kernel", "loads": 500, "stores": 0,
                        "missed_loads": 500, "missed_stores": 0, "direct_missed_loads": 500, "direct_missed_stores": 0}]"#;
        let done = Done {
            work: Work {
                round: 0,
                contestant: Contestant::Library,
                block_bytes: 4096,
                write: true,
            },
            bytes: 1.0,
            seconds: 1.0,
        };
        let interval = interval((&done, &serde_json::from_str(text).expect("it is well formed")));
        assert_eq!(interval.by_node.len(), 1, "a device is no node");
        let counts = interval.counts();
        for (homes, percent) in [(counts.missed, 75.0), (counts.raw, 77.5), (counts.direct_missed, 50.0)] {
            assert!((homes.local_percent() - percent).abs() < 1e-9);
        }
    }
}
