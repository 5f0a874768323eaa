//! Which hardware queue each core submits to (of the blk-mq paper: software queues are mapped to hardware queues).
//!
//! Node first: a core uses queues of its own node, and a queue whose node is not known is anyone's. Then balance: the cores
//! of a node are spread over its queues, neighbours together, as they share caches. A node without any queue uses the
//! nearest ones.
//! Invariants: every core has a queue; no queue is idle while another queue serves two cores of its node, or, if its node is
//! not known, any two cores; the same input gives the same map.
//! Cost: cores times queues, when a device is opened or the map changes.

use crate::NodeId;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The index of the hardware queue of each core. `cores` has the node of each core, those that share a cache side by side;
/// `queues` the node of each hardware queue, if it is known; `latency` tells how far the second node's memory is from the
/// first one's cores. With more queues than cores on a node, some of them are not used.
///
/// # Panics
/// When there are cores and no queue.
#[must_use]
pub fn queue_map(cores: &[NodeId], queues: &[Option<NodeId>], latency: impl Fn(NodeId, NodeId) -> u32) -> Vec<usize> {
    assert!(cores.is_empty() || !queues.is_empty(), "a device has a queue");
    let mut nodes: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
    for (core, node) in cores.iter().enumerate() {
        nodes.entry(*node).or_default().push(core);
    }
    let users = deal(&nodes, queues);
    let mut spread = Spread {
        map: vec![0; cores.len()],
        load: vec![0; queues.len()],
    };
    let with_queues = |node: &NodeId| users.contains(&Some(*node));
    for (node, cores) in nodes.iter().filter(|(node, _)| with_queues(node)) {
        let own = (0..queues.len()).filter(|queue| users[*queue] == Some(*node));
        spread.over(&own.collect::<Vec<_>>(), cores);
    }
    for (node, cores) in nodes.iter().filter(|(node, _)| !with_queues(node)) {
        // None, a queue that is anyone's, is nearer than any.
        let distance = |queue: &usize| queues[*queue].map(|home| latency(*node, home));
        let nearest = (0..queues.len()).map(|queue| distance(&queue)).min();
        let near = (0..queues.len()).filter(|queue| Some(distance(queue)) == nearest);
        spread.over(&near.collect::<Vec<_>>(), cores);
    }
    spread.map
}

/// Whose each queue is, when those without a node went, one after another, to the node with most cores a queue.
fn deal(nodes: &BTreeMap<NodeId, Vec<usize>>, queues: &[Option<NodeId>]) -> Vec<Option<NodeId>> {
    let mut users = queues.to_vec();
    let mut shares: Vec<Share> = nodes
        .iter()
        .map(|(node, cores)| Share {
            node: *node,
            cores: cores.len(),
            queues: queues.iter().filter(|home| **home == Some(*node)).count(),
        })
        .collect();
    for user in users.iter_mut().filter(|user| user.is_none()) {
        let crowded = shares.iter_mut().filter(|share| share.queues < share.cores);
        let Some(share) = crowded.reduce(|a, b| if b.is_more_crowded(a) { b } else { a }) else {
            break;
        };
        share.queues += 1;
        *user = Some(share.node);
    }
    users
}

/// Numbers of cores and queues of a node.
struct Share {
    node: NodeId,
    cores: usize,
    queues: usize,
}

impl Share {
    /// More cores a queue; of two nodes without a queue, more cores.
    fn is_more_crowded(&self, other: &Self) -> bool {
        if self.queues + other.queues == 0 {
            return self.cores > other.cores;
        }
        self.cores * other.queues > other.cores * self.queues
    }
}

/// The map as it grows.
struct Spread {
    map: Vec<usize>,
    /// Cores of each queue.
    load: Vec<usize>,
}

impl Spread {
    /// Maps `cores` to `queues` so that these have equal loads as far as can be.
    fn over(&mut self, queues: &[usize], cores: &[usize]) {
        let mut added = vec![0; queues.len()];
        for _ in cores {
            let load = |at: &usize| self.load[queues[*at]] + added[*at];
            if let Some(least) = (0..queues.len()).min_by_key(load) {
                added[least] += 1;
            }
        }
        let each = queues
            .iter()
            .zip(&added)
            .flat_map(|(queue, cores)| core::iter::repeat_n(*queue, *cores));
        for (core, queue) in cores.iter().zip(each) {
            self.map[*core] = queue;
            self.load[queue] += 1;
        }
    }
}
