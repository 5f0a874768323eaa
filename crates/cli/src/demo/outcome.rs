//! Outcome of a demo: plain data, from which the table, the page and the JSON are made.

use super::contestants::{Case, Contestant, Unit};
use homenode_policy::topology::Topology;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) output_version: u32,
    /// Sentence made of the numbers below.
    pub(super) headline: String,
    /// More such sentences.
    pub(super) findings: Vec<String>,
    /// Limits of the numbers, as sentences.
    pub(super) limits: Vec<String>,
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    /// Absence of files of the kernel and the like: who could not take part, and why.
    pub(super) absent: Vec<Absent>,
    pub(super) transports: Vec<TransportTaken>,
    pub(super) trees: Vec<Tree>,
    pub(super) rows: Vec<Row>,
    pub(super) pools: Vec<PoolReport>,
    #[serde(skip)]
    pub(super) topology: Topology,
}

/// Where it ran.
#[derive(Debug, Default, Serialize)]
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) command_line: String,
    pub(super) homenode: String,
    pub(super) kernel: String,
    pub(super) cpu_model: String,
    pub(super) virtual_machine: bool,
    pub(super) cpus: usize,
    pub(super) nodes: usize,
    pub(super) memory_bytes: u64,
    pub(super) transparent_huge_pages: String,
    pub(super) shmem_huge_pages: String,
    pub(super) enable_uring: String,
    pub(super) fio: String,
    pub(super) rsync: String,
}

/// How it was measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Settings {
    pub(super) rounds: usize,
    pub(super) seconds_per_round: f64,
    pub(super) file_bytes: u64,
    pub(super) size_per_node_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Absent {
    pub(super) contestant: Contestant,
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct TransportTaken {
    pub(super) contestant: Contestant,
    pub(super) reason: String,
}

/// A tree that was copied, found equal to its original.
#[derive(Debug, Serialize)]
pub(super) struct Tree {
    pub(super) path: String,
    pub(super) entries: usize,
    pub(super) bytes: u64,
    /// The mounts whose copy was compared.
    pub(super) verified_on: Vec<Contestant>,
}

/// Row of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) title: String,
    pub(super) unit: Unit,
    pub(super) cells: BTreeMap<Contestant, Samples>,
}

impl Row {
    pub(super) fn new(case: Case) -> Self {
        Self {
            title: case.title(),
            unit: case.unit(),
            case,
            cells: BTreeMap::new(),
        }
    }

    /// The largest spread of anyone in it; `None` after one round, which has none.
    pub(super) fn spread(&self) -> Option<f64> {
        let spreads = self.cells.values().filter(|samples| samples.0.len() > 1);
        spreads.map(Samples::spread).max_by(f64::total_cmp)
    }

    /// How many times `peer`'s rate a contestant reaches; `None` after one round, which nobody should trust.
    pub(super) fn ratio(&self, contestant: Contestant, peer: Contestant) -> Option<f64> {
        let (own, peer) = (self.cells.get(&contestant)?, self.cells.get(&peer)?);
        let is_known = own.0.len() > 1 && peer.median() > 0.0;
        is_known.then(|| own.median() / peer.median())
    }
}

/// The values of one contestant in one case, one for each round. At least one, once it is in a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(into = "SamplesReport")]
pub(super) struct Samples(Vec<f64>);

#[derive(Serialize)]
struct SamplesReport {
    median: f64,
    min: f64,
    max: f64,
    /// `None` after one round.
    spread: Option<f64>,
    rounds: Vec<f64>,
}

impl Samples {
    /// The value of a single round.
    #[cfg(test)]
    pub(super) fn first(value: f64) -> Self {
        Self(vec![value])
    }

    pub(super) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        }
    }

    pub(super) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(super) fn max(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    /// All of the range over the median.
    pub(super) fn spread(&self) -> f64 {
        (self.max() - self.min()) / self.median()
    }
}

impl From<Samples> for SamplesReport {
    fn from(samples: Samples) -> Self {
        Self {
            median: samples.median(),
            min: samples.min(),
            max: samples.max(),
            spread: (samples.0.len() > 1).then(|| samples.spread()),
            rounds: samples.0,
        }
    }
}

/// A pool and where the files on it lie.
#[derive(Debug, Serialize)]
pub(super) struct PoolReport {
    pub(super) contestant: Contestant,
    #[serde(flatten)]
    pub(super) state: homenode::Status,
    pub(super) files: Vec<Files>,
}

/// Bytes by home of some files.
#[derive(Debug, Serialize)]
pub(super) struct Files {
    pub(super) what: String,
    /// The node that a pinned thread wrote them from.
    pub(super) written_from: Option<u16>,
    pub(super) bytes_by_node: BTreeMap<u16, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::contestants::Section;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn median_range_and_spread() {
        let odd = samples(&[4.0, 1.0, 100.0]);
        assert_eq!((odd.median(), odd.min(), odd.max()), (4.0, 1.0, 100.0));
        assert_eq!(odd.spread(), 99.0 / 4.0);
        assert_eq!(samples(&[1.0, 2.0]).median(), 1.5);
        assert_eq!(Samples::first(7.0).spread(), 0.0);
    }

    #[test]
    fn one_round_has_no_spread() {
        let mut row = Row::new(Case::all(Section::Fio).swap_remove(0));
        row.cells.insert(Contestant::Tmpfs, samples(&[2.0]));
        assert_eq!(row.spread(), None);
        row.cells.insert(Contestant::Pool, samples(&[1.0, 2.0, 3.0]));
        row.cells.insert(Contestant::Kernel, samples(&[4.0, 4.0, 4.0]));
        assert_eq!(row.spread(), Some(1.0));
    }

    #[test]
    fn ratios_need_two_contestants_and_two_rounds() {
        let mut row = Row::new(Case::all(Section::Fio).swap_remove(0));
        row.cells.insert(Contestant::Tmpfs, samples(&[2.0, 2.0, 2.0]));
        assert_eq!(row.ratio(Contestant::Pool, Contestant::Tmpfs), None);
        row.cells.insert(Contestant::Pool, samples(&[1.0]));
        assert_eq!(row.ratio(Contestant::Pool, Contestant::Tmpfs), None, "of one round");
        row.cells.insert(Contestant::Pool, samples(&[1.0, 3.0, 0.5]));
        assert_eq!(row.ratio(Contestant::Pool, Contestant::Tmpfs), Some(0.5));
        assert_eq!(row.ratio(Contestant::Pool, Contestant::TmpfsHuge), None);
        row.cells.insert(Contestant::TmpfsHuge, samples(&[0.0, 0.0, 0.0]));
        assert_eq!(
            row.ratio(Contestant::Pool, Contestant::TmpfsHuge),
            None,
            "nothing to divide by"
        );
    }
}
