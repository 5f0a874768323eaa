//! Threads that fill one map at once: each file block is filled once, and stays what it was filled with.

#![allow(clippy::cast_possible_truncation, reason = "sizes of a test")]

mod random;

use fastrand::Rng;
use homenode_policy::{Block, MemberId};
use homenode_shared::{BlockMap, Found, Nodes, RUN_BLOCKS};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: u64 = 4;
const MAPS: u64 = if cfg!(miri) { 1 } else { 3000 };
const FILLS: u64 = if cfg!(miri) { 6 } else { 60 };

#[test]
fn each_block_is_filled_once() {
    let seed = random::seed();
    let nodes = Nodes::new(THREADS as usize);
    for number in 0..MAPS {
        let map = BlockMap::default();
        let (next_block, start) = (AtomicU64::new(0), std::sync::Barrier::new(THREADS as usize));
        let fill = |thread: u64| {
            let mut random = Rng::with_seed(seed ^ number << 8 ^ thread);
            start.wait();
            fill(&nodes, &map, thread as usize, &mut random, &next_block)
        };
        let filled: Vec<HashMap<u64, Block>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || fill(thread))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("the thread does not panic"))
                .collect()
        });
        check(&nodes, &map, &filled);
        map.remove(&nodes, 0, 0..BlockMap::LIMIT, &mut |_, _| {})
            .expect("no run is split");
        assert_eq!(nodes.used(), 0, "nodes are lost when two threads make the same one");
    }
}

/// Fills here and there, where the others do; gives what this thread filled.
fn fill(nodes: &Nodes, map: &BlockMap, home: usize, random: &mut Rng, next_block: &AtomicU64) -> HashMap<u64, Block> {
    let mut filled = HashMap::new();
    for _ in 0..FILLS {
        // The first block's entry, its neighbours, whole runs, and places that make the tree higher.
        let at = match random.u64(..8) {
            0 => 0,
            1..=4 => random.u64(..40),
            5 => random.u64(..3) * RUN_BLOCKS,
            6 => RUN_BLOCKS * RUN_BLOCKS + random.u64(..20),
            _ => 4 * RUN_BLOCKS + random.u64(..20),
        };
        let places = if at.is_multiple_of(RUN_BLOCKS) && random.u64(..2) == 0 {
            map.lock_empty_run(nodes, home, at)
        } else {
            map.lock_empty(nodes, home, at, 1 + random.u64(..16))
        };
        let Some(places) = places.expect("map nodes are left") else {
            continue;
        };
        let blocks = places.blocks();
        if random.u64(..4) == 0 {
            std::thread::yield_now();
            drop(places);
            continue;
        }
        let block = Block::new(MemberId(1), next_block.fetch_add(blocks, Ordering::Relaxed));
        places.publish(block);
        for i in 0..blocks {
            let before = filled.insert(at + i, block.plus(i));
            assert_eq!(before, None, "filled twice by one thread");
        }
        assert_eq!(
            map.find_one(nodes, at),
            Some(block),
            "a published block is found at once"
        );
    }
    filled
}

/// The map shows exactly what the threads filled.
fn check(nodes: &Nodes, map: &BlockMap, filled: &[HashMap<u64, Block>]) {
    map.check_invariants(nodes);
    let total: usize = filled.iter().map(HashMap::len).sum();
    let mut all = HashMap::new();
    all.extend(filled.iter().flatten());
    assert_eq!(all.len(), total, "two threads filled the same block");
    let mut at = 0;
    let mut found = 0;
    while at < BlockMap::LIMIT {
        at += match map.find(nodes, at, BlockMap::LIMIT - at) {
            Found::Placed { block, blocks } => {
                for i in 0..blocks {
                    assert_eq!(all.get(&(at + i)), Some(&&block.plus(i)), "other block than filled");
                }
                found += blocks as usize;
                blocks
            }
            Found::Empty { blocks } => blocks,
        };
    }
    assert_eq!(found, total, "something that was filled is not there");
}
