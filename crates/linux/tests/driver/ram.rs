//! The device in memory, on both kinds of storage.

use crate::whole;
use homenode_engine::blk::conformance::{Data, check};
use homenode_engine::blk::{Delay, Distribution, Driver, Faults, Rates, Request};
use homenode_engine::{Block, MemberId, Memory, NodeId};
use homenode_linux::driver::{Arena, Ram, Storage};
use homenode_linux::memory::NodeMemory;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn buffers() -> Arc<Arena> {
    Arena::new(4 * MIB, Some(NodeId(0))).unwrap()
}

fn member(blocks: u64) -> Storage {
    let memory = Arc::new(NodeMemory::new());
    let id = MemberId(3);
    memory.add(id, NodeId(0), 8 * MIB).unwrap();
    for run in 0..4 {
        memory.populate(id, run * 512, 512).unwrap();
    }
    Storage::Member {
        memory,
        first: Block::new(id, 7),
        blocks,
    }
}

fn storages() -> [Storage; 2] {
    [Storage::Arena(Arena::new(4 * MIB, None).unwrap()), member(1024)]
}

/// Time passes a microsecond at a time.
fn keeps(driver: &impl Driver, buffers: &Arena) {
    let mut now = 0;
    let settle = || {
        now += 1000;
        now
    };
    check(driver, buffers, Data::Kept, settle).unwrap();
}

#[test]
fn the_driver_conforms() {
    for storage in storages() {
        let buffers = buffers();
        let ram = Ram::new(storage, Arc::clone(&buffers), &[None]);
        keeps(&ram, &buffers);
        keeps(&Delay::new(ram.clone(), Distribution::Uniform(0, 5000), 1), &buffers);
        let refused = Rates {
            refused: 300,
            ..Rates::default()
        };
        keeps(&Faults::new(ram, refused, 2), &buffers);
    }
}

#[test]
fn the_device_has_the_whole_blocks_of_its_storage() {
    let bytes = |storage| Ram::new(storage, buffers(), &[None]).limits().device_bytes;
    assert_eq!(bytes(Storage::Arena(Arena::new(5000, None).unwrap())), 4608);
    assert_eq!(bytes(member(3)), 3 * 4096);
}

#[test]
fn only_the_members_blocks_are_changed() {
    let storage = member(2);
    let Storage::Member { memory, first, .. } = storage.clone() else {
        unreachable!()
    };
    let buffers = buffers();
    buffers.write(0, &[9; 8192]);
    let ram = Ram::new(storage, buffers, &[None]);
    let done = whole::carry_out(&ram, &[Request::write(0, 8192, 0), Request::write_zeroes(512, 512)]);
    assert_eq!(done, [Ok(8192), Ok(512)]);
    let mut around = [1; 4 * 4096];
    memory
        .load(Block::new(first.member(), first.index() - 1), 0, &mut around)
        .unwrap();
    let mut expected = [0; 4 * 4096];
    expected[4096..3 * 4096].fill(9);
    expected[4096 + 512..4096 + 1024].fill(0);
    assert!(around == expected);
}

#[test]
fn a_bad_buffer_fails_only_its_request() {
    for storage in storages() {
        let buffers = buffers();
        let ram = Ram::new(storage, Arc::clone(&buffers), &[None]);
        assert_eq!(ram.limits().block_bytes, 512);
        whole::bad_buffers(&ram, &buffers);
    }
}

#[test]
#[should_panic(expected = "a device is not its own buffer")]
fn a_device_is_not_its_own_buffer() {
    let arena = buffers();
    let _ = Ram::new(Storage::Arena(Arc::clone(&arena)), arena, &[None]);
}

#[test]
fn two_cores_read_back_their_writes() {
    for storage in storages() {
        let buffers = buffers();
        let ram = Ram::new(storage, Arc::clone(&buffers), &[None, None]);
        whole::two_cores(&ram, &buffers, 20_000);
        let delayed = Delay::new(ram, Distribution::Uniform(0, 20_000), 3);
        whole::two_cores(&Faults::new(delayed, whole::FAULTS, 4), &buffers, 20_000);
    }
}
