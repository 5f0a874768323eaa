//! Senses what a machine is judged by: a period of affinity's sensing, and the memory, settings and helpers around it.
//!
//! As in `affinity`, everything is read below a root directory; what cannot be read is told as unseen, and is no error.
//! A recording that affinity made has these files too: what is read from it is the same.
//! Cost: a few files for each node, one for each process, at the end of the period.

mod memory;
mod settings;

use crate::affinity::{Ask, Card, Error, Sensed, Sensor, Unseen};
use crate::topology::sysfs::Tree;
use crate::topology::{self, Source, nodes};
use homenode_policy::doctor::Facts;
use homenode_policy::topology::Topology;
use memory::PageCounts;
use settings::BalancingCounts;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Findings about a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// Interrupts, queues and threads, and all that could not be seen.
    pub sensed: Sensed,
    /// Memory, settings and helpers.
    pub facts: Facts,
    /// Its version, where it tells.
    pub kernel: Option<String>,
    /// Whether it runs on another machine's CPUs, where they tell.
    pub is_virtual: Option<bool>,
}

/// Looks at the machine below `root`, whose hardware is `source`, for a period. If it is the machine we run on, the servers of its pools are
/// asked by `ask`.
///
/// # Errors
/// What could not be read without which nothing can be told.
pub fn examine(source: &Source, root: &Path, period: Duration, ask: Ask) -> Result<Examined, Error> {
    let tree = Tree::new(root);
    let topology = topology::below(&topology::load(source)?, source, Some(&tree))?;
    let mut sensor = Sensor::new(root, ask)?;
    let before = Before::read(&tree);
    thread::sleep(period);
    let sensed = sensor.sense(&topology)?;
    Ok(Examined::read(&tree, &before, sensed))
}

/// Reads the findings that were recorded into `directory`.
///
/// # Errors
/// The first file that is missing or damaged.
pub fn recorded(directory: &Path) -> Result<Examined, Error> {
    crate::affinity::recorded_whole(directory)
}

/// Counters since boot, at the beginning of a period.
#[derive(Debug)]
pub(crate) struct Before {
    pages: PageCounts,
    balancing: BalancingCounts,
}

impl Before {
    pub(crate) fn read(tree: &Tree) -> Self {
        Self {
            pages: memory::page_counts(tree),
            balancing: settings::balancing_counts(tree),
        }
    }
}

impl Examined {
    /// At the end of the period that `sensed` is of.
    pub(crate) fn read(tree: &Tree, before: &Before, mut sensed: Sensed) -> Self {
        let topology = &sensed.snapshot.topology;
        let facts = Facts {
            memory: memory::nodes(tree, &before.pages),
            tmpfs: memory::tmpfs(tree),
            helpers: settings::helpers(tree),
            balancing: settings::balancing(tree, &before.balancing),
            zone_reclaim: settings::zone_reclaim(tree),
            huge_tmpfs_denied: settings::huge_tmpfs_denied(tree),
            fuse_rings: settings::fuse_rings(tree),
            addresses: settings::addresses(tree, topology),
            ..facts_of_cards(&sensed.cards)
        };
        let gaps = gaps(&facts, topology);
        sensed.unseen.extend(gaps);
        Self {
            sensed,
            facts,
            kernel: tree.text("proc/sys/kernel/osrelease").filter(|text| !text.is_empty()),
            is_virtual: settings::is_virtual(tree),
        }
    }
}

/// Returns the facts about cards alone: how many queues each can have and uses, where the card tells.
#[must_use]
pub fn facts_of_cards(cards: &[Card]) -> Facts {
    let max = |card: &Card| Some((card.device.clone(), card.queues?.max().into()));
    let used = |card: &Card| {
        let is_set = !card.table.as_ref()?.is_even();
        is_set.then(|| (card.device.clone(), card.shares().len() as u64))
    };
    Facts {
        queues_max: cards.iter().filter_map(max).collect(),
        queues_used: cards.iter().filter_map(used).collect(),
        ..Facts::default()
    }
}

/// Returns the missing facts that matter on a machine with several nodes.
fn gaps(facts: &Facts, topology: &Topology) -> Vec<Unseen> {
    let gap = |is_there: bool, what: &str, file: &str| {
        let why = format!("the kernel does not tell, or /{file} cannot be read");
        (!is_there).then(|| Unseen {
            what: what.to_owned(),
            why,
        })
    };
    if topology.nodes().len() < 2 {
        return Vec::new();
    }
    let found = [
        gap(!facts.memory.is_empty(), "memory of nodes", nodes::NODES),
        gap(
            facts.zone_reclaim.is_some(),
            "what a full node does",
            settings::ZONE_RECLAIM,
        ),
        gap(
            facts.balancing.is_some(),
            "whether the kernel moves pages between nodes",
            settings::BALANCING,
        ),
    ];
    found.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
