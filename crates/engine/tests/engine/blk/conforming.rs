//! Every driver of the engine keeps the contract.

use super::memory::Memory;
use homenode_engine::NodeId;
use homenode_engine::blk::conformance::{Data, check};
use homenode_engine::blk::{Delay, Distribution, Driver, Faults, Limits, Null, Rates};

fn limits() -> Limits {
    Limits {
        has_cache: true,
        can_force: true,
        can_discard: true,
        can_zero: true,
        depth: 16,
        transfer_bytes_max: 64 << 10,
        ..Limits::of_bytes(4 << 20)
    }
}

fn memory() -> Memory {
    Memory::new(limits(), &[Some(NodeId(0))], 4 << 20)
}

/// Time passes a microsecond at a time.
fn keeps(driver: &impl Driver, memory: &Memory, data: Data) {
    let mut now = 0;
    let settle = || {
        now += 1000;
        now
    };
    check(driver, memory, data, settle).unwrap();
}

#[test]
fn the_model_conforms() {
    let memory = memory();
    keeps(&memory, &memory, Data::Kept);
}

#[test]
fn null_conforms() {
    keeps(&Null::new(limits(), &[None]), &memory(), Data::Forgotten);
}

#[test]
fn delay_conforms() {
    let memory = memory();
    for distribution in [
        Distribution::Constant(0),
        Distribution::Constant(50_000),
        Distribution::Uniform(0, 30_000),
        Distribution::Tail {
            usual: 100,
            rare: 100_000,
            every: 7,
        },
    ] {
        keeps(&Delay::new(memory.clone(), distribution, 1), &memory, Data::Kept);
    }
}

#[test]
fn faults_conform() {
    let memory = memory();
    let rates = Rates {
        refused: 300,
        short: 300,
        ..Rates::default()
    };
    keeps(&Faults::new(memory.clone(), rates, 2), &memory, Data::Kept);
    let stacked = Delay::new(Faults::new(memory.clone(), rates, 3), Distribution::Uniform(0, 5000), 4);
    keeps(&stacked, &memory, Data::Kept);
}

#[test]
fn faults_over_a_minimal_device_conform() {
    let memory = memory();
    memory.do_little();
    let rates = Rates {
        short: 300,
        ..Rates::default()
    };
    keeps(&Faults::new(memory.clone(), rates, 5), &memory, Data::Kept);
}

/// The suite can fail.
mod breaches {
    use super::{limits, memory};
    use homenode_engine::NodeId;
    use homenode_engine::blk::conformance::{Data, check};
    use homenode_engine::blk::{Done, Driver, DriverQueue, Late, Limits, Null, NullQueue, Slots, Tag};

    #[derive(Clone, Copy, PartialEq)]
    enum Breach {
        Twice,
        Reversed,
        Never,
        TooMuch,
    }

    struct Wrong(Null, Breach);

    struct WrongQueue(NullQueue, Breach);

    impl Driver for Wrong {
        type Queue = WrongQueue;
        fn limits(&self) -> Limits {
            self.0.limits()
        }
        fn queue_homes(&self) -> Vec<Option<NodeId>> {
            self.0.queue_homes()
        }
        fn queue(&self, index: usize) -> std::io::Result<WrongQueue> {
            Ok(WrongQueue(self.0.queue(index)?, self.1))
        }
    }

    impl DriverQueue for WrongQueue {
        fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, now: u64, done: &mut Done) -> usize {
            let Some((first, others)) = batch.split_first() else {
                return 0;
            };
            match self.1 {
                Breach::Never => return 0,
                Breach::Reversed if !others.is_empty() => {
                    self.0.queue_batch(others, slots, now, done);
                    return 1;
                }
                Breach::Reversed => done.push(*first, Ok(slots.bytes(*first))),
                Breach::Twice => {
                    done.push(*first, Ok(slots.bytes(*first)));
                    done.push(*first, Ok(slots.bytes(*first)));
                }
                Breach::TooMuch => done.push(*first, Ok(slots.bytes(*first) + 512)),
            }
            1 + self.0.queue_batch(others, slots, now, done)
        }
        fn poll(&mut self, _slots: &mut Slots, _now: u64, _done: &mut Done) {}
        fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
            Late::Wait
        }
    }

    fn check_wrong(breach: Breach) {
        let driver = Wrong(Null::new(limits(), &[None]), breach);
        check(&driver, &memory(), Data::Forgotten, || 0).unwrap();
    }

    #[test]
    #[should_panic(expected = "1: a driver completes each tag once")]
    fn completing_a_tag_twice_is_found() {
        check_wrong(Breach::Twice);
    }

    #[test]
    #[should_panic(expected = "1: each tag once")]
    fn taking_other_than_the_first_requests_is_found() {
        check_wrong(Breach::Reversed);
    }

    #[test]
    #[should_panic(expected = "2: when it has none, it takes one")]
    fn taking_no_request_is_found() {
        check_wrong(Breach::Never);
    }

    #[test]
    #[should_panic(expected = "4: no more than it is asked for")]
    fn completing_more_bytes_than_asked_is_found() {
        check_wrong(Breach::TooMuch);
    }
}
