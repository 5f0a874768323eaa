//! Every interleaving of threads that use one map, up to the preemptions that each model names; all, where none is named.
//! A model's nodes have four entries, and a map two of its own.
//!
//! First writes, reads and growth; moving from the map's own entries into a node; runs of writes, and made of leaves;
//! and with the gate: taking away, reserving, and freeing nodes.

mod gate;

use super::{BlockMap, Found, Nodes, RUN_BLOCKS};
use crate::sync::beside;
use homenode_policy::{Block, MemberId};
use loom::cell::UnsafeCell;
use loom::sync::Arc;

/// A map, its nodes, and the bytes of some blocks.
struct World {
    nodes: Nodes,
    map: BlockMap,
    bytes: Vec<UnsafeCell<u64>>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            nodes: Nodes::new(1),
            map: BlockMap::default(),
            bytes: (0..12).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    fn cell(&self, block: Block) -> &UnsafeCell<u64> {
        &self.bytes[usize::try_from(block.index()).expect("one of a few")]
    }

    /// A first write, as the engine does it: until something is placed at `at`. True when it was this one's block.
    fn write(&self, at: u64, block: Block) -> bool {
        loop {
            if self.map.find_one(&self.nodes, at).is_some() {
                return false;
            }
            let places = self.map.lock_empty(&self.nodes, 0, at, 1).expect("map nodes are left");
            if let Some(places) = places {
                // SAFETY: loom checks that nobody else accesses the bytes meanwhile: that is the test.
                self.cell(block).with_mut(|bytes| unsafe { *bytes = at + 1 });
                places.publish(block);
                return true;
            }
        }
    }

    /// A read: what was written must be there when the block is.
    fn read(&self, at: u64) -> Option<Block> {
        let block = self.map.find_one(&self.nodes, at)?;
        self.check(at, block);
        Some(block)
    }

    fn check(&self, at: u64, block: Block) {
        // SAFETY: loom checks that nobody writes the bytes meanwhile.
        let bytes = self.cell(block).with(|bytes| unsafe { *bytes });
        assert_eq!(bytes, at + 1, "found before it was written");
    }

    /// A read of several: each block of what is found has its bytes. Returns how many are placed, 0 where it is empty.
    fn read_more(&self, at: u64, most: u64) -> u64 {
        match self.map.find(&self.nodes, at, most) {
            Found::Placed { block, blocks } => {
                assert!(blocks <= most);
                (0..blocks).for_each(|i| self.check(at + i, block.plus(i)));
                blocks
            }
            Found::Empty { .. } => 0,
        }
    }
}

fn block(index: u64) -> Block {
    Block::new(MemberId(1), index)
}

fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model
}

/// Two writers, of which one moves the entries into a node while the other fills one: nothing is lost, and no node.
#[test]
fn filling_while_the_entries_move() {
    for near in [0, 1] {
        bounded(3).check(move || {
            let world = World::new();
            let second = beside(Arc::clone(&world), move |other| assert!(other.write(2, block(2))));
            assert!(world.write(near, block(near)));
            second.join().expect("the thread does not panic");
            assert_eq!(world.read(near), Some(block(near)));
            assert_eq!(world.read(2), Some(block(2)));
            assert_eq!(world.nodes.used(), 1);
            world.map.check_invariants(&world.nodes);
        });
    }
}

/// Both move the entries, over what is there already: nothing, one block, or all of the map's own.
#[test]
fn two_threads_move_the_entries() {
    for there in 0..3 {
        bounded(3).check(move || {
            let world = World::new();
            (0..there).for_each(|at| assert!(world.write(at, block(at))));
            let second = beside(Arc::clone(&world), move |other| assert!(other.write(3, block(3))));
            assert!(world.write(2, block(2)));
            second.join().expect("the thread does not panic");
            for at in (0..there).chain(2..4) {
                assert_eq!(world.read(at), Some(block(at)));
            }
            assert_eq!(world.nodes.used(), 1, "a node was lost");
        });
    }
}

/// Both want a taller tree, of different heights, over a first block that is there already.
#[test]
fn two_threads_grow_the_tree_over_a_block() {
    bounded(3).check(|| {
        let world = World::new();
        assert!(world.write(0, block(0)));
        let far = beside(Arc::clone(&world), move |other| {
            assert!(other.write(RUN_BLOCKS + 1, block(1)));
            assert_eq!(other.read(0), Some(block(0)));
        });
        assert!(world.write(2, block(2)));
        far.join().expect("the thread does not panic");
        for (at, index) in [(0, 0), (RUN_BLOCKS + 1, 1), (2, 2)] {
            assert_eq!(world.read(at), Some(block(index)));
        }
    });
}

/// Exactly one thread's write wins; the other thread finds the winner's block.
#[test]
fn two_threads_fill_the_same_block() {
    for at in [0, 1, 2] {
        bounded(3).check(move || {
            let world = World::new();
            let second = beside(Arc::clone(&world), move |other| {
                let won = other.write(at, block(1));
                assert!(other.read(at).is_some());
                won
            });
            let won = world.write(at, block(0));
            assert!(world.read(at).is_some());
            let second_won = second.join().expect("the thread does not panic");
            assert!(won != second_won, "exactly one fills it");
            assert_eq!(world.read(at), Some(block(u64::from(second_won))));
        });
    }
}

/// A thread that gives up leaves the entry to the one that waits for it.
#[test]
fn an_unused_lock_of_an_entry_is_released() {
    loom::model(|| {
        let world = World::new();
        let second = beside(Arc::clone(&world), move |other| {
            drop(other.map.lock_empty(&other.nodes, 0, 0, 1).expect("map nodes are left"));
        });
        assert!(world.write(0, block(0)));
        second.join().expect("the thread does not panic");
        assert_eq!(world.read(0), Some(block(0)));
    });
}

/// A reader sees a hole or the whole block. (Loom runs the first thread first, and looks back from a read to the write
/// before it, not the other way round: so the reader is the second.)
#[test]
fn reading_while_a_block_is_filled() {
    for at in [0, 1, 2] {
        loom::model(move || {
            let world = World::new();
            let reader = beside(Arc::clone(&world), move |other| {
                let first = other.read(at);
                let second = other.read(at);
                assert!(first.is_none() || second == first, "a block went away");
            });
            assert!(world.write(at, block(0)));
            reader.join().expect("the thread does not panic");
        });
    }
}

/// A reader of several blocks, while a writer fills them and makes the entries move.
#[test]
fn finding_neighbours_while_the_entries_move() {
    bounded(3).check(|| {
        let world = World::new();
        assert!(world.write(0, block(0)));
        let reader = beside(Arc::clone(&world), move |other| {
            let first = other.read_more(0, 3);
            let second = other.read_more(0, 3);
            assert!(1 <= first && first <= second, "blocks went away");
            assert!(other.read_more(1, 2) + 1 >= second, "found from the middle");
        });
        assert!(world.write(1, block(1)));
        assert!(world.write(2, block(2)));
        reader.join().expect("the thread does not panic");
        assert_eq!(world.read_more(0, 4), 3);
    });
}

/// A run and a single block want the same entry: one of them has it.
#[test]
fn filling_a_run_while_a_block_of_it_is_filled() {
    bounded(3).check(|| {
        let world = World::new();
        let second = beside(Arc::clone(&world), move |other| {
            assert!(other.write(RUN_BLOCKS + 1, block(8)) || other.read(RUN_BLOCKS + 1).is_some())
        });
        let places = world
            .map
            .lock_empty_run(&world.nodes, 0, RUN_BLOCKS)
            .expect("map nodes are left");
        let is_run = places.is_some_and(|places| {
            for i in 0..RUN_BLOCKS {
                // SAFETY: loom checks that nobody else accesses the bytes meanwhile.
                world
                    .cell(block(i))
                    .with_mut(|bytes| unsafe { *bytes = RUN_BLOCKS + i + 1 });
            }
            places.publish(block(0));
            true
        });
        second.join().expect("the thread does not panic");
        let expected = if is_run { block(1) } else { block(8) };
        assert_eq!(world.read(RUN_BLOCKS + 1), Some(expected));
        assert_eq!(
            world.read_more(RUN_BLOCKS, RUN_BLOCKS),
            if is_run { RUN_BLOCKS } else { 0 }
        );
    });
}

/// A leaf becomes a run, by two threads at once, while its last block is filled or read: it reads as before.
#[test]
fn a_leaf_becomes_a_run_under_its_readers() {
    bounded(3).check(|| {
        let world = World::new();
        // The tree has a level for runs.
        assert!(world.write(RUN_BLOCKS, block(8)));
        (0..RUN_BLOCKS - 1).for_each(|at| assert!(world.write(at, block(at))));
        let second = beside(Arc::clone(&world), move |other| {
            let before = other.read_more(1, RUN_BLOCKS - 1);
            let _ = other.map.make_run(&other.nodes, 0);
            let after = other.read_more(1, RUN_BLOCKS - 1);
            assert!(RUN_BLOCKS - 2 <= before && before <= after);
            assert!(other.write(RUN_BLOCKS + 1, block(9)), "a neighbour");
        });
        let last = RUN_BLOCKS - 1;
        assert!(world.write(last, block(last)));
        let _ = world.map.make_run(&world.nodes, 0);
        assert_eq!(world.read_more(0, RUN_BLOCKS), RUN_BLOCKS);
        second.join().expect("the thread does not panic");
        let used = world.nodes.used();
        world.map.settle(&world.nodes);
        assert_eq!(world.nodes.used(), used - 1, "exactly one made the run");
        assert_eq!(world.read_more(0, RUN_BLOCKS), RUN_BLOCKS);
        assert_eq!(world.read(RUN_BLOCKS + 1), Some(block(9)));
    });
}
