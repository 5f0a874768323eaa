//! The map from cores to hardware queues: its properties on any machine, and examples by hand.

mod seeded;

use homenode_policy::{NodeId, queue_map};
use proptest::prelude::*;
use std::collections::BTreeMap;

const CASES: u32 = 5000;

/// Nodes are numbered 0, 2, 4 …, so that a number is no index.
#[derive(Clone, Debug)]
struct Machine {
    cores: Vec<NodeId>,
    queues: Vec<Option<NodeId>>,
    latency: Vec<Vec<u32>>,
}

impl Machine {
    fn map(&self) -> Vec<usize> {
        queue_map(&self.cores, &self.queues, |from, to| self.latency(from, to))
    }

    fn latency(&self, from: NodeId, to: NodeId) -> u32 {
        self.latency[usize::from(from.0 / 2)][usize::from(to.0 / 2)]
    }

    /// The cores of each node that has any, in their order.
    fn nodes(&self) -> BTreeMap<NodeId, Vec<usize>> {
        let mut nodes: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (core, node) in self.cores.iter().enumerate() {
            nodes.entry(*node).or_default().push(core);
        }
        nodes
    }

    fn queues_of(&self, home: Option<NodeId>) -> Vec<usize> {
        (0..self.queues.len())
            .filter(|queue| self.queues[*queue] == home)
            .collect()
    }
}

fn node(index: u16) -> NodeId {
    NodeId(index * 2)
}

fn machine(cores_max: usize, queues_max: usize, nodes: u16) -> impl Strategy<Value = Machine> {
    let core = (0..nodes).prop_map(node);
    let queue = prop_oneof![3 => core.clone().prop_map(Some), 2 => Just(None)];
    let latency = prop::collection::vec(
        prop::collection::vec(10..14_u32, usize::from(nodes)),
        usize::from(nodes),
    );
    (
        prop::collection::vec(core, 0..=cores_max),
        prop::collection::vec(queue, 1..=queues_max),
        latency,
    )
        .prop_map(|(cores, queues, latency)| Machine { cores, queues, latency })
}

#[test]
fn queues_of_a_node_are_shared_only_if_none_is_idle() {
    seeded::check(CASES, machine(24, 12, 4), |machine| {
        let map = machine.map();
        prop_assert_eq!(map.len(), machine.cores.len());
        prop_assert_eq!(&map, &machine.map(), "same input, same map");
        for (idle, home) in machine.queues.iter().enumerate() {
            prop_assert!(map.iter().all(|queue| *queue < machine.queues.len()));
            if map.contains(&idle) {
                continue;
            }
            for queue in 0..machine.queues.len() {
                let served = (0..map.len()).filter(|core| map[*core] == queue);
                let served = served.filter(|core| home.is_none_or(|home| home == machine.cores[*core]));
                prop_assert!(served.count() < 2, "queue {idle} is idle, {queue} is not: {map:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn cores_use_queues_of_their_node_first() {
    seeded::check(CASES, machine(24, 12, 4), |machine| {
        let map = machine.map();
        let anyones = !machine.queues_of(None).is_empty();
        for (core, node) in machine.cores.iter().enumerate() {
            let Some(home) = machine.queues[map[core]] else {
                continue;
            };
            if machine.queues_of(Some(*node)).is_empty() {
                prop_assert!(!anyones, "core {core} is on another node's queue: {map:?}");
                let nearest = machine
                    .queues
                    .iter()
                    .flatten()
                    .map(|home| machine.latency(*node, *home))
                    .min();
                prop_assert_eq!(Some(machine.latency(*node, home)), nearest);
            } else {
                prop_assert_eq!(home, *node, "core {} has queues at home: {:?}", core, map);
            }
        }
        Ok(())
    });
}

/// On queues that only their own node uses, loads are equal as far as can be, and neighbours are together.
#[test]
fn queues_are_balanced_and_shared_by_neighbours() {
    seeded::check(CASES, machine(24, 12, 4), |machine| {
        let map = machine.map();
        for (node, cores) in machine.nodes() {
            let queues: Vec<usize> = cores.iter().map(|core| map[*core]).collect();
            let mut changes = queues.clone();
            changes.dedup();
            let mut different = changes.clone();
            different.sort_unstable();
            different.dedup();
            prop_assert_eq!(changes.len(), different.len(), "neighbours share: {:?}", queues);
            let foreign = |queue: usize| (0..map.len()).any(|core| map[core] == queue && machine.cores[core] != node);
            let mut own = machine.queues_of(Some(node));
            own.extend(different.iter().filter(|queue| machine.queues[**queue].is_none()));
            if own.iter().any(|queue| foreign(*queue)) || machine.queues_of(Some(node)).is_empty() && own.is_empty() {
                continue;
            }
            let loads = own
                .iter()
                .map(|own| queues.iter().filter(|queue| *queue == own).count());
            let (least, most) = (loads.clone().min(), loads.max());
            prop_assert!(most <= least.map(|least| least + 1), "{node}: {map:?}");
        }
        Ok(())
    });
}

/// Checks that no way to deal queues without a node to the nodes has a smaller largest load.
#[test]
fn queues_without_a_node_serve_the_fullest_node() {
    seeded::check(1000, machine(12, 6, 3), |machine| {
        let nodes = machine.nodes();
        let anyones = machine.queues_of(None).len();
        let own: Vec<usize> = nodes.keys().map(|node| machine.queues_of(Some(*node)).len()).collect();
        let without = own.iter().filter(|queues| **queues == 0).count();
        prop_assume!(anyones >= without && !nodes.is_empty());
        let map = machine.map();
        let load = |queue: usize| map.iter().filter(|mapped| **mapped == queue).count();
        let largest = (0..machine.queues.len()).map(load).max();
        let best = (0..nodes.len().pow(u32::try_from(anyones).expect("the number is small"))).filter_map(|deal| {
            let mut queues = own.clone();
            let mut rest = deal;
            for _ in 0..anyones {
                queues[rest % nodes.len()] += 1;
                rest /= nodes.len();
            }
            let loads = nodes
                .values()
                .zip(&queues)
                .map(|(cores, queues)| (*queues > 0).then(|| cores.len().div_ceil(*queues)));
            loads.collect::<Option<Vec<_>>>()?.into_iter().max()
        });
        prop_assert_eq!(largest, best.min(), "{:?}", map);
        Ok(())
    });
}

/// `cores` and `queues` by node; a queue of node 9 is anyone's.
fn example(cores: &[u16], queues: &[u16], latency: &[&[u32]]) -> Vec<usize> {
    let cores: Vec<NodeId> = cores.iter().copied().map(NodeId).collect();
    let queues: Vec<Option<NodeId>> = queues
        .iter()
        .map(|node| (*node != 9).then_some(NodeId(*node)))
        .collect();
    queue_map(&cores, &queues, |from, to| {
        latency[usize::from(from.0)][usize::from(to.0)]
    })
}

const TWO: &[&[u32]] = &[&[10, 21], &[21, 10]];
/// A square: nodes 0 and 3, and 1 and 2, are opposite.
const FOUR: &[&[u32]] = &[
    &[10, 16, 16, 22],
    &[16, 10, 22, 16],
    &[16, 22, 10, 16],
    &[22, 16, 16, 10],
];
/// Sockets 0 and 2 with memory expanders 1 and 3.
const EXPANDERS: &[&[u32]] = &[
    &[85, 240, 140, 330],
    &[240, 240, 330, 330],
    &[150, 320, 85, 240],
    &[330, 330, 240, 240],
];

#[test]
fn one_node() {
    assert_eq!(example(&[], &[], TWO), [0; 0]);
    assert_eq!(example(&[0, 0, 0, 0], &[9], TWO), [0, 0, 0, 0]);
    assert_eq!(example(&[0, 0, 0, 0], &[9, 9], TWO), [0, 0, 1, 1], "neighbours share");
    assert_eq!(example(&[0, 0, 0, 0, 0], &[0, 9], TWO), [0, 0, 0, 1, 1]);
    assert_eq!(example(&[0, 0, 0, 0], &[0, 0, 0, 0], TWO), [0, 1, 2, 3]);
    assert_eq!(example(&[0, 0], &[0, 0, 9, 0], TWO), [0, 1], "more queues than cores");
}

#[test]
fn two_nodes() {
    assert_eq!(example(&[0, 1, 0, 1], &[1, 0], TWO), [1, 0, 1, 0]);
    assert_eq!(
        example(&[0, 0, 1, 1], &[0, 0, 0], TWO),
        [0, 1, 0, 2],
        "the idle queue and one more"
    );
    assert_eq!(example(&[0, 0, 1, 1], &[1], TWO), [0, 0, 0, 0]);
    assert_eq!(
        example(&[0, 0, 0, 0, 1, 1], &[9, 9, 9], TWO),
        [0, 0, 2, 2, 1, 1],
        "most cores a queue"
    );
    assert_eq!(example(&[0, 0, 1], &[0, 9, 9], TWO), [0, 2, 1], "an idle queue first");
    assert_eq!(example(&[0, 1, 1], &[0, 9], TWO), [0, 1, 1]);
}

#[test]
fn nodes_without_queues_use_the_nearest_nodes_queues() {
    let cores = [0, 0, 1, 1, 2, 2, 3, 3];
    assert_eq!(
        example(&cores, &[0, 0, 3, 3], FOUR),
        [0, 1, 0, 1, 2, 3, 2, 3],
        "equally near queues share"
    );
    assert_eq!(example(&cores, &[1, 1], FOUR), [0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(
        example(&[0, 0, 2, 2], &[1, 1, 3, 3], EXPANDERS),
        [0, 1, 2, 3],
        "queues of nodes without cores"
    );
    assert_eq!(example(&[0, 0, 2, 2], &[1, 0, 3], EXPANDERS), [1, 1, 1, 1]);
}
