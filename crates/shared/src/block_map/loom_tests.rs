//! Every interleaving of two threads that fill and read one map: locking, publishing, and growth of the tree at the first
//! block's entry, which is the root itself until a second block comes.

use super::{BlockMap, Nodes};
use homenode_policy::{Block, MemberId};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

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
            bytes: (0..4).map(|_| UnsafeCell::new(0)).collect(),
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
            let places = self.map.lock_empty(&self.nodes, 0, at, 1).expect("enough nodes");
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
        // SAFETY: loom checks that nobody writes the bytes meanwhile.
        let bytes = self.cell(block).with(|bytes| unsafe { *bytes });
        assert_eq!(bytes, at + 1, "found before it was written");
        Some(block)
    }
}

fn block(index: u64) -> Block {
    Block::new(MemberId(1), index)
}

/// The tree grows while its root is being filled: nothing is lost, and no node.
#[test]
fn filling_the_first_block_while_the_tree_grows() {
    loom::model(|| {
        let world = World::new();
        let other = Arc::clone(&world);
        let second = thread::spawn(move || assert!(other.write(1, block(1))));
        assert!(world.write(0, block(0)));
        second.join().expect("no panic");
        assert_eq!(world.read(0), Some(block(0)));
        assert_eq!(world.read(1), Some(block(1)));
        assert_eq!(world.nodes.used(), 1);
    });
}

/// Both want a taller tree, of different heights, over a first block that is there already.
#[test]
fn two_threads_grow_the_tree_over_a_block() {
    loom::model(|| {
        let world = World::new();
        assert!(world.write(0, block(0)));
        let other = Arc::clone(&world);
        let far = thread::spawn(move || {
            assert!(other.write(600, block(1)));
            assert_eq!(other.read(0), Some(block(0)));
        });
        assert!(world.write(1, block(2)));
        far.join().expect("no panic");
        for (at, index) in [(0, 0), (600, 1), (1, 2)] {
            assert_eq!(world.read(at), Some(block(index)));
        }
    });
}

/// One wins; the other finds the winner's bytes.
#[test]
fn two_threads_fill_the_same_block() {
    for at in [0, 1] {
        loom::model(move || {
            let world = World::new();
            let other = Arc::clone(&world);
            let second = thread::spawn(move || {
                let won = other.write(at, block(1));
                assert!(other.read(at).is_some());
                won
            });
            let won = world.write(at, block(0));
            assert!(world.read(at).is_some());
            let second_won = second.join().expect("no panic");
            assert!(won != second_won, "exactly one fills it");
            assert_eq!(world.read(at), Some(block(u64::from(second_won))));
        });
    }
}

/// A thread that gives up leaves the entry to the one that waits for it.
#[test]
fn an_entry_that_was_locked_for_nothing() {
    loom::model(|| {
        let world = World::new();
        let other = Arc::clone(&world);
        let second = thread::spawn(move || {
            drop(other.map.lock_empty(&other.nodes, 0, 0, 1).expect("enough nodes"));
        });
        assert!(world.write(0, block(0)));
        second.join().expect("no panic");
        assert_eq!(world.read(0), Some(block(0)));
    });
}

/// A reader sees a hole or the whole block. (Loom runs the first thread first, and looks back from a read to the write
/// before it, not the other way round: so the reader is the second.)
#[test]
fn reading_while_a_block_is_filled() {
    for at in [0, 1] {
        loom::model(move || {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                let first = other.read(at);
                let second = other.read(at);
                assert!(first.is_none() || second == first, "a block went away");
            });
            assert!(world.write(at, block(0)));
            reader.join().expect("no panic");
        });
    }
}
