//! A core and a hardware queue, step by step.

use super::memory::{Memory, MemoryQueue};
use homenode_engine::NodeId;
use homenode_engine::blk::conformance::Buffers;
use homenode_engine::blk::{
    Completion, Core, Device, Durability, Errno, JoinError, Limits, MapError, Operation, Options, Outcome, Refusal,
    Request, Scheduling, SoftwareCounts,
};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u32 = 512;

fn limits() -> Limits {
    Limits {
        depth: 8,
        ..Limits::of_bytes(1 << 20)
    }
}

struct World {
    memory: Memory,
    device: Arc<Device<MemoryQueue>>,
    core: Core<MemoryQueue>,
    now: u64,
}

impl World {
    fn new(limits: Limits, options: Options) -> Self {
        let memory = Memory::new(limits, &[Some(NodeId(0))], 1 << 20);
        let device = Device::new(&memory, &[NodeId(0)], |_, _| 10, options).unwrap();
        let core = device.join(0).unwrap();
        Self {
            memory,
            device,
            core,
            now: 0,
        }
    }

    fn submit(&mut self, request: Request) {
        self.core.submit(request).unwrap();
    }

    fn run(&mut self) -> Vec<(u64, Outcome)> {
        self.now += 1_000_000;
        let mut all = Vec::new();
        self.core
            .run(self.now, |Completion { user, outcome }| all.push((user, outcome)));
        self.core.check_invariants();
        all
    }

    /// Until nothing is pending.
    fn finish(&mut self) -> Vec<(u64, Outcome)> {
        let mut all = Vec::new();
        while self.core.pending() > 0 {
            all.extend(self.run());
        }
        all
    }
}

fn write(block: u64) -> Request {
    Request::write(block * u64::from(BLOCK), BLOCK, block * u64::from(BLOCK)).user(block)
}

fn options(plug: usize) -> Options {
    Options {
        plug,
        tags: 16,
        ..Options::default()
    }
}

#[test]
fn neighbours_are_merged_and_complete_one_by_one() {
    let mut world = World::new(limits(), options(4));
    for block in [3, 4, 5, 9, 10] {
        world.memory.fill(
            block * u64::from(BLOCK),
            &[u8::try_from(block).unwrap(); BLOCK as usize],
        );
        world.submit(write(block));
    }
    let done = world.finish();
    assert_eq!(done, [3, 4, 5, 9, 10].map(|block| (block, Ok(BLOCK))));
    let calls = world.memory.calls();
    assert_eq!(calls, [(Operation::Write, 1536, 1536), (Operation::Write, 4608, 1024)]);
    assert_eq!(world.memory.device(10 * 512, 512), [10; 512]);
    assert_eq!(world.device.software_counts()[0].merged, 3);
    assert_eq!(world.device.hardware_counts()[0].requests, 2);
}

#[test]
fn merges_stay_within_the_limits() {
    let limits = Limits {
        segments_max: 3,
        transfer_bytes_max: 4 * BLOCK,
        ..limits()
    };
    let mut world = World::new(limits, options(8));
    (0..7).for_each(|block| world.submit(write(block)));
    world.submit(Request::write(7 * 512, 3 * BLOCK, 0).user(7));
    world.submit(Request::write(10 * 512, 2 * BLOCK, 0).user(8));
    assert_eq!(world.finish().len(), 9);
    let calls: Vec<u32> = world.memory.calls().iter().map(|(_, _, bytes)| bytes / BLOCK).collect();
    assert_eq!(calls, [3, 3, 4, 2]);
}

#[test]
fn refused_requests_are_served_first() {
    for scheduling in [Scheduling::None, Scheduling::Deadline] {
        let options = Options {
            scheduling,
            ..options(2)
        };
        let mut world = World::new(limits(), options);
        world.memory.set_credit(1);
        for block in [20, 30] {
            world.submit(write(block));
        }
        world.run();
        assert_eq!(world.memory.calls().len(), 1);
        for block in [0, 10] {
            world.submit(write(block));
        }
        world.run();
        assert_eq!(world.memory.calls(), []);
        world.memory.set_credit(usize::MAX);
        world.finish();
        let offsets: Vec<u64> = world.memory.calls().iter().map(|(_, offset, _)| offset / 512).collect();
        assert_eq!(offsets, [30, 0, 10]);
        assert!(world.device.hardware_counts()[0].refused > 0);
    }
}

#[test]
fn a_request_without_a_free_tag_is_returned() {
    let mut world = World::new(limits(), options(32));
    for block in 0..16 {
        world.submit(write(block * 2));
    }
    let one_more = write(100);
    let rejected = world.core.submit(one_more).unwrap_err();
    assert_eq!((rejected.request, rejected.why), (one_more, Refusal::NoTag));
    assert_eq!(world.finish().len(), 16);
    world.submit(one_more);
    assert_eq!(world.finish(), [(100, Ok(BLOCK))]);
    assert_eq!(world.device.software_counts()[0].no_tag, 1);
}

#[test]
fn unsupported_requests_are_refused() {
    let mut world = World::new(limits(), options(1));
    let end = 1 << 20;
    for (request, why) in [
        (Request::read(1, BLOCK, 0), Refusal::Misaligned),
        (Request::read(0, 100, 0), Refusal::Misaligned),
        (Request::read(0, 0, 0), Refusal::Misaligned),
        (Request::read(0, 1 << 31, 0), Refusal::TooLong),
        (Request::read(end, BLOCK, 0), Refusal::OutOfRange),
        (Request::read(end - 512, 1024, 0), Refusal::OutOfRange),
        (Request::read(u64::MAX - 511, BLOCK, 0), Refusal::OutOfRange),
        (Request::discard(0, BLOCK), Refusal::NotSupported),
        (Request::write_zeroes(0, BLOCK), Refusal::NotSupported),
    ] {
        let rejected = world.core.submit(request).unwrap_err();
        assert_eq!((rejected.request, rejected.why), (request, why));
    }
    assert_eq!(world.core.pending(), 0);
}

#[test]
fn long_requests_are_done_piece_by_piece() {
    let limits = Limits {
        transfer_bytes_max: 4 * BLOCK,
        ..limits()
    };
    let mut world = World::new(limits, options(1));
    let bytes: Vec<u8> = (0..10 * BLOCK)
        .map(|byte| u8::try_from(byte / 7 % 256).unwrap())
        .collect();
    world.memory.fill(4096, &bytes);
    world.submit(Request::write(512, 10 * BLOCK, 4096).user(1));
    assert_eq!(world.finish(), [(1, Ok(10 * BLOCK))]);
    let calls: Vec<u32> = world.memory.calls().iter().map(|(_, _, bytes)| bytes / BLOCK).collect();
    assert_eq!(calls, [4, 4, 2]);
    assert_eq!(world.memory.device(512, 5120), bytes);
}

#[test]
fn a_flush_makes_completed_writes_durable() {
    let limits = Limits {
        has_cache: true,
        ..limits()
    };
    let mut world = World::new(limits, options(4));
    world.memory.fill(0, &[7; 512]);
    world.submit(write(0));
    world.finish();
    assert_eq!(world.memory.durable(0, 512), [0; 512]);
    world.submit(Request::flush().user(9));
    assert_eq!(world.finish(), [(9, Ok(0))]);
    assert_eq!(world.memory.durable(0, 512), [7; 512]);
}

/// Forced where the device can do that, with a flush behind it where not; and a flush before it if that is asked for.
#[test]
fn forced_writes_are_durable_when_they_are_complete() {
    for can_force in [false, true] {
        let limits = Limits {
            has_cache: true,
            can_force,
            ..limits()
        };
        let mut world = World::new(limits, options(4));
        world.memory.fill(0, &[7; 512]);
        world.memory.fill(512, &[8; 512]);
        world.submit(write(0));
        world.finish();
        world.memory.calls();
        let durability = Durability::FlushBeforeAndForced;
        world.submit(write(1).durability(durability));
        assert_eq!(world.finish(), [(1, Ok(BLOCK))]);
        let durable = [[7; 512], [8; 512]].concat();
        assert_eq!(world.memory.durable(0, 1024), durable);
        let calls: Vec<Operation> = world
            .memory
            .calls()
            .into_iter()
            .map(|(operation, ..)| operation)
            .collect();
        let (flush, write) = (Operation::Flush, Operation::Write);
        let expected: &[Operation] = if can_force {
            &[flush, write]
        } else {
            &[flush, write, flush]
        };
        assert_eq!(calls, expected);
    }
}

/// The driver hears nothing of it.
#[test]
fn a_flush_without_a_cache_completes_at_once() {
    let mut world = World::new(limits(), options(4));
    world.submit(Request::flush().user(1));
    let forced = Durability::FlushBeforeAndForced;
    world.submit(write(2).durability(forced));
    let mut done = world.finish();
    done.sort_unstable_by_key(|(user, _)| *user);
    assert_eq!(done, [(1, Ok(0)), (2, Ok(BLOCK))]);
    assert_eq!(world.memory.calls(), [(Operation::Write, 1024, BLOCK)]);
}

#[test]
fn transient_errors_are_retried() {
    let mut world = World::new(limits(), options(1));
    world.memory.set_errors(&[Errno::AGAIN; 5]);
    world.submit(write(1));
    assert_eq!(world.finish(), [(1, Ok(BLOCK))]);
    assert_eq!(world.device.hardware_counts()[0].retries, 5);
    world.memory.set_errors(&[Errno::AGAIN; 6]);
    world.submit(write(1));
    assert_eq!(world.finish(), [(1, Err(Errno::AGAIN))]);
    world.memory.set_errors(&[Errno::IO]);
    world.submit(write(1));
    assert_eq!(world.finish(), [(1, Err(Errno::IO))]);
    assert_eq!(world.device.software_counts()[0].operations[1].errors, 2);
}

/// Each is tried alone.
#[test]
fn only_the_failing_part_of_a_merged_request_fails() {
    let mut world = World::new(limits(), options(4));
    world.memory.set_errors(&[Errno::NO_SPACE, Errno::IO]);
    (0..4).for_each(|block| world.submit(write(block)));
    let mut done = world.finish();
    done.sort_unstable_by_key(|(user, _)| *user);
    let expected = [
        (0, Err(Errno::NO_SPACE)),
        (1, Ok(BLOCK)),
        (2, Ok(BLOCK)),
        (3, Ok(BLOCK)),
    ];
    assert_eq!(done, expected);
}

#[test]
fn late_requests_count_as_timeouts() {
    let options = Options {
        timeout: Duration::from_millis(10),
        ..options(1)
    };
    let mut world = World::new(limits(), options);
    world.memory.hold(true);
    world.submit(write(1));
    for _ in 0..50 {
        assert_eq!(world.run(), []);
    }
    let timeouts = world.device.hardware_counts()[0].timeouts;
    assert!((2..=5).contains(&timeouts), "{timeouts}");
    world.memory.hold(false);
    assert_eq!(world.finish(), [(1, Ok(BLOCK))]);
}

#[test]
fn an_endless_timeout_makes_no_request_late() {
    let options = Options {
        timeout: Duration::MAX,
        ..options(1)
    };
    let mut world = World::new(limits(), options);
    world.memory.hold(true);
    world.submit(write(1));
    assert_eq!(world.run(), []);
    world.now = u64::MAX / 2;
    assert_eq!(world.run(), []);
    world.now = u64::MAX / 10 * 9;
    assert_eq!(world.run(), []);
    assert_eq!(world.device.hardware_counts()[0].timeouts, 0);
}

#[test]
fn sums_of_times_wrap_around() {
    let mut world = World::new(limits(), options(1));
    world.memory.hold(true);
    (0..3).for_each(|block| world.submit(write(block)));
    assert_eq!(world.run(), []);
    world.now = 3 << 62;
    world.memory.hold(false);
    assert_eq!(world.finish().len(), 3);
    let counts = world.device.software_counts()[0];
    let mut twice = counts;
    twice += counts;
    let time_ns = |counts: SoftwareCounts| counts.operations[Operation::Write as usize].time_ns;
    assert_eq!(time_ns(twice), time_ns(counts).wrapping_mul(2));
}

#[test]
fn a_frozen_device_finishes_its_requests_and_starts_none() {
    let mut world = World::new(limits(), options(1));
    world.memory.hold(true);
    world.submit(write(1));
    world.run();
    world.device.freeze();
    world.submit(write(5));
    world.run();
    assert!(!world.device.is_drained());
    world.memory.hold(false);
    assert_eq!(world.run(), [(1, Ok(BLOCK))]);
    assert!(world.device.is_drained());
    assert_eq!(world.memory.calls().len(), 1);
    world.submit(write(9));
    assert_eq!(world.run(), []);
    world.device.thaw();
    assert_eq!(world.finish().len(), 2);
}

#[test]
fn joining_twice_or_mapping_to_a_missing_queue_is_refused() {
    let mut world = World::new(limits(), options(1));
    assert_eq!(world.device.join(0).unwrap_err(), JoinError::Twice(0));
    assert_eq!(world.device.join(1).unwrap_err(), JoinError::NoCore(1));
    assert_eq!(world.device.remap(0, 1), Err(MapError::NoQueue(1)));
    assert_eq!(world.device.remap(1, 0), Err(MapError::NoCore(1)));
    world.submit(write(1));
    assert_eq!(world.finish(), [(1, Ok(BLOCK))]);
}

/// Two cores on one hardware queue, which the first one owns.
fn shared(limits: Limits, tags: u16) -> Arc<Device<MemoryQueue>> {
    let memory = Memory::new(limits, &[Some(NodeId(0))], 1 << 20);
    let options = Options { tags, ..options(32) };
    Device::new(&memory, &[NodeId(0); 2], |_, _| 10, options).unwrap()
}

/// Alone and merged, four times as many as there are tags, while what is lost is taken back.
#[test]
fn requests_to_a_departed_core_end() {
    for distance in [1, 2] {
        let device = shared(limits(), 64);
        let (owner, mut core) = (device.join(0).unwrap(), device.join(1).unwrap());
        core.submit(read(0)).unwrap();
        core.run(1, |_| {});
        drop(owner);
        let (mut submitted, mut lost) = (1, 0);
        for step in 2..1000 {
            while submitted < 256 && core.submit(read(submitted * distance % 2048)).is_ok() {
                submitted += 1;
            }
            core.run(step, |completion| {
                assert_eq!(completion.outcome, Err(Errno::NO_DEVICE));
                lost += 1;
            });
            core.check_invariants();
        }
        assert_eq!((submitted, lost, core.pending()), (256, 256, 0));
    }
}

/// Chains of which the owner takes a few at a time, because its device has room for no more; their tags come again.
#[test]
fn chains_longer_than_the_device_takes_complete() {
    let device = shared(limits(), 256);
    let (mut owner, mut core) = (device.join(0).unwrap(), device.join(1).unwrap());
    let (mut submitted, mut done) = (0, 0);
    let mut now = 0;
    while done < 20_000 {
        while submitted < 20_000 && core.submit(read(submitted % 2048)).is_ok() {
            submitted += 1;
        }
        now += 1;
        done += core.run(now, |completion| assert!(completion.outcome.is_ok()));
        if now % 3 == 0 {
            owner.run(now, |_| {});
        }
        core.check_invariants();
        owner.check_invariants();
    }
}

#[test]
fn a_core_that_rejoins_keeps_its_counts() {
    let device = shared(limits(), 64);
    let mut owner = device.join(0).unwrap();
    for round in 1..=3 {
        let mut core = device.join(1).unwrap();
        core.submit(read(0)).unwrap();
        let mut now = round * 100;
        while core.pending() > 0 {
            now += 1;
            core.run(now, |_| {});
            owner.run(now, |_| {});
        }
        drop(core);
        assert!(device.is_drained());
        let counts = device.software_counts()[1];
        assert_eq!((counts.submitted, counts.operations[0].requests), (round, round));
    }
}

fn read(block: u64) -> Request {
    Request::read(block * u64::from(BLOCK), BLOCK, 0)
}
