//! Gates and maps together: threads inside write and read, others close the gate and take away.

use super::{BlockMap, RUN_BLOCKS, World, block, bounded};
use crate::block_map::Extent;
use crate::gate::Gate;
use crate::slots::{Slot, Slots};
use crate::sync::beside;
use loom::sync::Arc;

/// The number of the inode that the map belongs to.
const INODE: u64 = 1;

struct Gated {
    world: Arc<World>,
    slots: std::sync::Arc<Slots>,
    gate: Gate,
}

impl Gated {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            world: World::new(),
            slots: Slots::new(2),
            gate: Gate::default(),
        })
    }

    /// Acts inside, if the gate is open.
    fn inside(&self, slot: &Slot, act: impl FnOnce(&World)) {
        if let Some(_inside) = slot.enter(&self.gate, INODE) {
            act(&self.world);
        }
    }

    /// Acts with the gate closed.
    fn closed<T>(&self, act: impl FnOnce(&World) -> T) -> T {
        self.slots.close(&self.gate, INODE);
        let result = act(&self.world);
        self.slots.open(&self.gate);
        result
    }
}

/// Takes everything out, and writes over the bytes of each block: it is another file's from now on.
fn take_all(world: &World) -> u64 {
    let mut gone = 0;
    let mut take = |_, extent| {
        let Extent::Placed { block, blocks } = extent else {
            panic!("nothing is reserved");
        };
        gone += blocks;
        for i in 0..blocks {
            // SAFETY: loom checks that nobody else accesses the bytes meanwhile: that is the test.
            world.cell(block.plus(i)).with_mut(|bytes| unsafe { *bytes = 77 });
        }
    };
    world
        .map
        .remove(&world.nodes, 0, 0..BlockMap::LIMIT, &mut take)
        .expect("no run is split");
    world.map.check_invariants(&world.nodes);
    assert_eq!(world.nodes.used(), 0);
    gone
}

/// Writes that move the entries into a node, and reads, while all is taken away.
#[test]
fn removing_all_while_the_map_is_filled_and_read() {
    bounded(3).check(|| {
        let gated = Gated::new();
        assert!(gated.world.write(1, block(1)));
        let user = beside(Arc::clone(&gated), move |other| {
            let slot = other.slots.claim().expect("one of two slots is free");
            other.inside(&slot, |world| {
                assert!(world.write(2, block(2)));
                let _ = world.read_more(1, 2);
            });
            other.inside(&slot, |world| _ = world.read_more(1, 2));
        });
        gated.closed(take_all);
        user.join().expect("the thread does not panic");
        take_all(&gated.world);
    });
}

/// A leaf is made a run by a thread inside while another closes the gate, takes all away, and so frees the leaf's node.
#[test]
fn a_run_is_made_while_the_gate_closes() {
    bounded(3).check(|| {
        let gated = Gated::new();
        assert!(gated.world.write(RUN_BLOCKS, block(8)));
        (0..RUN_BLOCKS).for_each(|at| assert!(gated.world.write(at, block(at))));
        let user = beside(Arc::clone(&gated), move |other| {
            let slot = other.slots.claim().expect("one of two slots is free");
            other.inside(&slot, |world| {
                let _ = world.map.make_run(&world.nodes, 0);
                let _ = world.read_more(0, RUN_BLOCKS);
            });
            other.inside(&slot, |world| _ = world.read_more(1, 2));
        });
        assert_eq!(gated.closed(take_all), RUN_BLOCKS + 1);
        user.join().expect("the thread does not panic");
    });
}

/// Room is reserved while a thread fills a block: each block is counted once.
#[test]
fn reserving_while_a_block_is_filled() {
    bounded(3).check(|| {
        let gated = Gated::new();
        let writer = beside(Arc::clone(&gated), move |other| {
            let slot = other.slots.claim().expect("one of two slots is free");
            let mut was_reserved = None;
            other.inside(&slot, |world| {
                let places = world.map.lock_empty(&world.nodes, 0, 1, 1).expect("map nodes are left");
                let places = places.expect("nobody else fills it");
                was_reserved = Some(places.reserved());
                places.publish(block(1));
            });
            was_reserved
        });
        let reserved = gated.closed(|world| {
            let mut reserved = 0;
            world
                .map
                .reserve(&world.nodes, 0, 0..3, &mut reserved)
                .expect("map nodes are left");
            world.map.check_invariants(&world.nodes);
            reserved
        });
        let was_reserved = writer.join().expect("the thread does not panic");
        let expected = if was_reserved == Some(false) { 2 } else { 3 };
        assert_eq!(reserved, expected, "the writer found it reserved: {was_reserved:?}");
    });
}

/// A thread inside one inode does not keep another's gate from closing, and goes to that one next.
#[test]
fn two_gates() {
    bounded(3).check(|| {
        let (gated, second) = (Gated::new(), Arc::new(Gate::default()));
        assert!(gated.world.write(0, block(0)));
        let user = beside((Arc::clone(&gated), Arc::clone(&second)), move |(other, its_second)| {
            let slot = other.slots.claim().expect("one of two slots is free");
            drop(slot.enter(&its_second, 2));
            other.inside(&slot, |world| _ = world.read(0));
        });
        gated.slots.close(&second, 2);
        gated.closed(take_all);
        gated.slots.open(&second);
        user.join().expect("the thread does not panic");
    });
}
