//! Two threads and a frame: all interleavings.

use super::*;
use crate::Gate;
use crate::sync::beside;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::yield_now;

/// Model of one disk block, its frame, its file, and the bytes on the disk.
struct World {
    slots: std::sync::Arc<Slots>,
    gate: Gate,
    index: FrameIndex,
    epochs: Epochs,
    stamp: AtomicU32,
    /// Bytes of the frame, which several may copy at once.
    bytes: AtomicU32,
    disk: AtomicU32,
}

const FRAME: u32 = 0;
const BLOCK: u64 = 0;

fn world() -> Arc<World> {
    let world = World {
        slots: Slots::new(3),
        gate: Gate::default(),
        index: FrameIndex::new(1).unwrap(),
        epochs: Epochs::default(),
        stamp: AtomicU32::new(0),
        bytes: AtomicU32::new(0),
        disk: AtomicU32::new(0),
    };
    assert!(world.index.begin_fill(BLOCK, FRAME) && world.index.end_fill(BLOCK, FRAME));
    Arc::new(world)
}

impl World {
    fn stamp(&self, _frame: u32) {
        // Relaxed, as in the cache: the change of the word that follows shows it.
        self.stamp.store(self.epochs.now(), Ordering::Relaxed);
    }

    fn is_out_of_use(&self) -> bool {
        self.epochs.is_over(self.stamp.load(Ordering::Relaxed))
    }

    fn write(&self, value: u32) -> bool {
        self.write_as(value, |index| index.warm(BLOCK).is_ok())
    }

    /// Makes the frame dirty ahead of the store.
    fn write_ready(&self, value: u32) -> bool {
        self.write_as(value, |index| index.warm_to_store(BLOCK).is_ok())
    }

    fn write_as(&self, value: u32, find: impl FnOnce(&FrameIndex) -> bool) -> bool {
        let slot = self.slots.claim().expect("one of two slots is free");
        let Some(_inside) = slot.enter(&self.gate, 1) else {
            return false;
        };
        if !find(&self.index) {
            return false;
        }
        self.bytes.store(value, Ordering::Relaxed);
        self.slots.barrier_inside();
        if !self.index.is_dirty(BLOCK) {
            self.index.mark_dirty(BLOCK);
        }
        true
    }

    fn save(&self) {
        if self.index.begin_save(BLOCK).is_some() {
            self.slots.barrier_outside();
            self.disk.store(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            self.index.end_save(BLOCK, |frame| self.stamp(frame));
        }
    }

    /// Cools the frame and evicts it when nobody uses it any more. True when it is the caller's.
    fn evict(&self) -> bool {
        self.index.cool(BLOCK, FRAME, |frame| self.stamp(frame));
        for _ in 0..4 {
            if self.is_out_of_use() {
                break;
            }
            self.epochs.advance(&self.slots);
            yield_now();
        }
        self.index.evict(BLOCK, FRAME, || self.is_out_of_use())
    }
}

fn bounded(test: impl Fn() + Sync + Send + 'static) {
    bounded_by(4, test);
}

fn bounded_by(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

#[test]
fn a_store_is_saved_or_the_frame_is_dirty() {
    bounded(|| {
        let world = world();
        assert_eq!(world.index.mark_dirty(BLOCK), Some(FRAME));
        let writer = beside(world.clone(), move |world| assert!(world.write(1)));
        world.save();
        world.save();
        writer.join().expect("the thread does not panic");
        let saved = world.disk.load(Ordering::Relaxed) == 1;
        assert!(saved || world.index.is_dirty(BLOCK), "a store is lost");
    });
}

#[test]
fn a_store_into_a_frame_that_was_made_dirty_ahead_is_saved_or_the_frame_is_dirty() {
    bounded(|| {
        let world = world();
        let writer = beside(world.clone(), move |world| assert!(world.write_ready(1)));
        world.save();
        world.save();
        writer.join().expect("the thread does not panic");
        let saved = world.disk.load(Ordering::Relaxed) == 1;
        assert!(saved || world.index.is_dirty(BLOCK), "a store is lost");
        let found = world.index.next_dirty(0, 1).is_some();
        assert_eq!(found, world.index.is_dirty(BLOCK), "the dirty count is wrong");
    });
}

#[test]
fn an_evicted_frame_has_no_user() {
    bounded(|| evict_beside_a_reader(&world()));
    bounded(|| {
        let world = world();
        world.index.cool(BLOCK, FRAME, |frame| world.stamp(frame));
        evict_beside_a_reader(&world);
    });
}

fn evict_beside_a_reader(world: &Arc<World>) {
    {
        let frame = Arc::new(UnsafeCell::new(0_u32));
        let reader = beside((world.clone(), frame.clone()), move |(world, frame)| {
            let slot = world.slots.claim().expect("one of two slots is free");
            for inode in [2, 1] {
                if let Some(_inside) = slot.enter(&world.gate, inode)
                    && world.index.warm(BLOCK).is_ok()
                {
                    // SAFETY: loom checks that nobody writes meanwhile: that is the test.
                    frame.with(|at| assert_eq!(unsafe { *at }, 0));
                }
            }
        });
        // An epoch that has begun before the frame becomes cool says nothing of it.
        world.epochs.advance(&world.slots);
        if world.evict() {
            // SAFETY: as above.
            frame.with_mut(|at| unsafe { *at = 7 });
        }
        reader.join().expect("the thread does not panic");
    }
}

#[test]
fn a_store_into_a_frame_that_is_evicted_is_not_lost() {
    for write in [World::write, World::write_ready] {
        bounded(move || {
            let world = world();
            let writer = beside(world.clone(), move |world| write(&world, 1));
            let evicted = world.evict();
            let written = writer.join().expect("the thread does not panic");
            assert!(!(written && evicted), "evicted with a store in it");
            assert!(!written || world.index.is_dirty(BLOCK));
        });
    }
}

#[test]
fn a_store_beside_write_back_and_eviction_is_not_lost() {
    for write in [World::write, World::write_ready] {
        bounded(move || {
            let world = world();
            assert_eq!(world.index.mark_dirty(BLOCK), Some(FRAME));
            let writer = beside(world.clone(), move |world| write(&world, 1));
            world.save();
            let evicted = world.evict();
            let written = writer.join().expect("the thread does not panic");
            let saved = world.disk.load(Ordering::Relaxed) == 1;
            assert!(
                !written || saved || !evicted && world.index.is_dirty(BLOCK),
                "a store is lost"
            );
        });
    }
}

#[test]
fn a_block_may_be_forgotten_while_it_is_filled() {
    loom::model(|| {
        let index = Arc::new(FrameIndex::new(1).unwrap());
        // Frames in nobody's hands.
        let free = Arc::new(AtomicU32::new(1));
        let filler = beside((index.clone(), free.clone()), move |(index, free)| {
            free.fetch_sub(1, Ordering::Relaxed);
            if !index.begin_fill(BLOCK, FRAME) || !index.end_fill(BLOCK, FRAME) {
                free.fetch_add(1, Ordering::Relaxed);
            }
        });
        if index.forget(BLOCK) != Forgotten::Nothing {
            free.fetch_add(1, Ordering::Relaxed);
        }
        filler.join().expect("the thread does not panic");
        let mapped = u32::from(index.has_frame(BLOCK));
        assert_eq!(
            free.load(Ordering::Relaxed) + mapped,
            1,
            "a frame is lost, or is two people's"
        );
    });
}

#[test]
fn a_store_replaces_a_block_under_its_reader() {
    loom::model(|| {
        let index = Arc::new(FrameIndex::new(1).unwrap());
        let (read, stored) = (0, 1);
        let reader = beside(index.clone(), move |index| {
            index.begin_fill(BLOCK, read) && index.end_fill(BLOCK, read)
        });
        let is_stored = match index.warm(BLOCK) {
            Ok(_) => false,
            Err(away) => {
                if away == Away::Filling {
                    index.interrupt(BLOCK);
                }
                index.begin_fill(BLOCK, stored) && index.end_fill_dirty(BLOCK, stored)
            }
        };
        let is_read = reader.join().expect("the thread does not panic");
        let shown = match (is_read, is_stored) {
            (true, false) => read,
            (false, true) => stored,
            both => panic!("each thread keeps its frame, or shows it: {both:?}"),
        };
        assert_eq!(index.warm(BLOCK), Ok(shown));
        assert_eq!(index.is_dirty(BLOCK), is_stored);
    });
}

#[test]
fn a_dirty_block_is_found_by_its_group() {
    loom::model(|| {
        let world = world();
        let writer = beside(world.clone(), move |world| world.index.mark_dirty(BLOCK));
        let before = world.index.next_dirty(0, 1);
        writer.join().expect("the thread does not panic");
        assert!(before.is_none_or(|at| at == BLOCK));
        assert_eq!(world.index.next_dirty(0, 1), Some(BLOCK), "a dirty block is lost");
    });
}

/// Two readers' worth of looks at a frame, inside one slot.
fn use_frame(world: &World, frame: &UnsafeCell<u32>) {
    let slot = world.slots.claim().expect("one of three slots is free");
    if let Some(_inside) = slot.enter(&world.gate, 1)
        && world.index.warm(BLOCK).is_ok()
    {
        // SAFETY: loom checks that nobody writes meanwhile: that is the test.
        frame.with(|at| assert_eq!(unsafe { *at }, 0));
    }
}

/// Evicts a frame that somebody uses, while `meanwhile` goes on; both epochs may end at any time.
fn evict_beside(world: &Arc<World>, meanwhile: impl FnOnce(&World) + Send + 'static) {
    let frame = Arc::new(UnsafeCell::new(0_u32));
    let reader = beside((world.clone(), frame.clone()), move |(world, frame)| {
        use_frame(&world, &frame)
    });
    let other = beside(world.clone(), move |world| meanwhile(&world));
    (0..2).for_each(|_| world.epochs.advance(&world.slots));
    if world.index.evict(BLOCK, FRAME, || world.is_out_of_use()) {
        // SAFETY: as above.
        frame.with_mut(|at| unsafe { *at = 7 });
    }
    reader.join().expect("the thread does not panic");
    other.join().expect("the thread does not panic");
}

#[test]
fn a_frame_cooled_late_is_not_evicted_early() {
    bounded(|| {
        let world = world();
        assert_eq!(world.index.mark_dirty(BLOCK), Some(FRAME));
        assert_eq!(world.index.begin_save(BLOCK), Some(FRAME));
        evict_beside(&world, |world| {
            world.index.end_save(BLOCK, |frame| world.stamp(frame));
        });
    });
    bounded(|| {
        let world = world();
        evict_beside(&world, |world| {
            let _ = world.index.cool(BLOCK, FRAME, |frame| world.stamp(frame));
        });
    });
}

/// Three preemptions, where the other models have four: four take minutes.
#[test]
fn a_recooled_frame_is_not_evicted_by_its_old_stamp() {
    evict_what_is_cool_anew(3);
}

#[test]
#[ignore = "takes five minutes: run by `make loom`"]
fn a_recooled_frame_is_not_evicted_by_its_old_stamp_with_four_preemptions() {
    evict_what_is_cool_anew(4);
}

fn evict_what_is_cool_anew(preemptions: usize) {
    bounded_by(preemptions, || {
        let world = world();
        world.index.cool(BLOCK, FRAME, |frame| world.stamp(frame));
        (0..2).for_each(|_| world.epochs.advance(&world.slots));
        assert!(world.is_out_of_use());
        evict_beside(&world, |world| {
            if world.write(1) {
                world.save();
            }
        });
    });
}

#[test]
fn a_dirty_block_is_found_by_every_searcher() {
    loom::model(|| {
        let world = world();
        assert_eq!(world.index.mark_dirty(BLOCK), Some(FRAME));
        let other = beside(world.clone(), move |world| {
            assert_eq!(world.index.next_dirty(0, 1), Some(BLOCK), "missed beside another")
        });
        assert_eq!(world.index.next_dirty(0, 1), Some(BLOCK), "missed beside another");
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn a_dirty_block_is_found_until_it_is_being_saved() {
    loom::model(|| {
        let world = world();
        assert_eq!(world.index.mark_dirty(BLOCK), Some(FRAME));
        let saver = beside(world.clone(), move |world| world.save());
        let found = world.index.next_dirty(0, 1);
        assert!(
            found.is_some() || !world.index.is_dirty(BLOCK),
            "a dirty block was missed"
        );
        saver.join().expect("the thread does not panic");
    });
}

#[test]
fn a_block_made_dirty_by_another_thread_is_found() {
    loom::model(|| {
        let world = world();
        let other = beside(world.clone(), move |world| {
            world.index.mark_dirty(BLOCK);
        });
        // As one whose store found it dirty, and who makes that durable.
        if world.index.is_dirty(BLOCK) {
            assert_eq!(world.index.next_dirty(0, 1), Some(BLOCK), "a store is not found");
        }
        other.join().expect("the thread does not panic");
    });
}

#[test]
fn a_forgotten_block_is_not_written_afterwards() {
    loom::model(|| {
        let world = world();
        assert_eq!(world.index.mark_dirty(BLOCK), Some(FRAME));
        let saver = beside(world.clone(), move |world| world.save());
        assert_ne!(world.index.forget(BLOCK), Forgotten::Nothing);
        // It is another file's from now on.
        world.disk.store(9, Ordering::Relaxed);
        saver.join().expect("the thread does not panic");
        assert_eq!(
            world.disk.load(Ordering::Relaxed),
            9,
            "the old block was written over the new one"
        );
    });
}

/// Frame that the block is moved to.
const TO: u32 = 1;

/// Moves the block, with `copy` between; gives the frame that is free then, or `None` where the block has neither. The caller has taken `TO`.
fn move_block(world: &World, copy: impl FnOnce()) -> Option<u32> {
    world.index.cool(BLOCK, FRAME, |frame| world.stamp(frame));
    (0..3).for_each(|_| world.epochs.advance(&world.slots));
    if !world.index.begin_move(BLOCK, FRAME, TO, || world.is_out_of_use()) {
        return Some(TO);
    }
    copy();
    world.index.end_fill(BLOCK, TO).then_some(FRAME)
}

#[test]
fn a_block_that_is_moved_is_read_from_either_frame() {
    bounded(|| {
        let world = world();
        let frames = Arc::new([UnsafeCell::new(5_u32), UnsafeCell::new(0)]);
        let reader = beside((world.clone(), frames.clone()), move |(world, frames)| {
            let slot = world.slots.claim().expect("one of three slots is free");
            for inode in [2, 1] {
                if let Some(_inside) = slot.enter(&world.gate, inode)
                    && let Ok(frame) = world.index.warm(BLOCK)
                {
                    // SAFETY: loom checks that nobody writes meanwhile: that is the test.
                    frames[frame as usize].with(|at| assert_eq!(unsafe { *at }, 5));
                }
            }
        });
        world.epochs.advance(&world.slots);
        let copy = || {
            // SAFETY: as above, here and below.
            let bytes = frames[FRAME as usize].with(|at| unsafe { *at });
            frames[TO as usize].with_mut(|at| unsafe { *at = bytes });
        };
        // It is another block's from now on.
        let free = move_block(&world, copy).expect("the block is not forgotten");
        frames[free as usize].with_mut(|at| unsafe { *at = 7 });
        reader.join().expect("the thread does not panic");
    });
}

#[test]
fn a_store_into_a_block_that_is_moved_is_not_lost() {
    for write in [FrameIndex::warm, |index: &FrameIndex, at| {
        index.warm_to_store(at).map(|(frame, _)| frame)
    }] {
        bounded(move || {
            let world = world();
            let frames = Arc::new([AtomicU32::new(5), AtomicU32::new(0)]);
            let writer = beside((world.clone(), frames.clone()), move |(world, frames)| {
                let slot = world.slots.claim().expect("one of three slots is free");
                let _inside = slot.enter(&world.gate, 1).expect("nobody closes the gate");
                let Ok(frame) = write(&world.index, BLOCK) else {
                    return false;
                };
                frames[frame as usize].store(1, Ordering::Relaxed);
                world.slots.barrier_inside();
                if !world.index.is_dirty(BLOCK) {
                    world.index.mark_dirty(BLOCK);
                }
                true
            });
            let copy = || frames[TO as usize].store(frames[FRAME as usize].load(Ordering::Relaxed), Ordering::Relaxed);
            move_block(&world, copy).expect("the block is not forgotten");
            let is_written = writer.join().expect("the thread does not panic");
            let frame = world.index.warm(BLOCK).expect("the block has a frame");
            let bytes = frames[frame as usize].load(Ordering::Relaxed);
            assert_eq!(
                (bytes, world.index.is_dirty(BLOCK)),
                if is_written { (1, true) } else { (5, false) }
            );
        });
    }
}

/// Cuts the block away; gives how many frames that frees.
fn forget(world: &World) -> u32 {
    u32::from(world.index.forget(BLOCK) != Forgotten::Nothing)
}

fn evict(world: &World) -> u32 {
    u32::from(world.evict())
}

/// Stores all of the block into a third frame if somebody fills one.
fn store_anew(world: &World) -> u32 {
    let other = 2;
    if world.index.warm(BLOCK) == Err(Away::Filling) {
        world.index.interrupt(BLOCK);
        if world.index.begin_fill(BLOCK, other) && world.index.end_fill_dirty(BLOCK, other) {
            assert!(world.index.warm(BLOCK) == Ok(other) && world.index.is_dirty(BLOCK));
            return 0;
        }
    }
    1
}

#[test]
fn frames_of_a_block_that_ends_while_it_is_moved_have_one_owner() {
    let ends: [(fn(&World) -> u32, u32); 3] = [(forget, 2), (evict, 2), (store_anew, 3)];
    for (end, frames) in ends {
        bounded(move || {
            let world = world();
            let other = beside(world.clone(), move |world| end(&world));
            let freed = if move_block(&world, || ()).is_some() { 1 } else { 2 };
            let free = freed + other.join().expect("the thread does not panic");
            let mapped = u32::from(world.index.has_frame(BLOCK));
            assert!(!world.index.is_filling(BLOCK), "the block stays in filling");
            assert_eq!(free + mapped, frames, "a frame is lost, or is two people's");
            assert!(
                end as usize != forget as *const () as usize || mapped == 0,
                "a block is shown that is nobody's"
            );
        });
    }
}
