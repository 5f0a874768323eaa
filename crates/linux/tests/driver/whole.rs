//! A whole device over a driver.

use homenode_engine::NodeId;
use homenode_engine::blk::{Core, Device, Driver, DriverQueue, Operation, Options, Outcome, Rates, Request};
use homenode_linux::driver::{Arena, EFAULT};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rates of faults that the layer above mends.
pub(crate) const FAULTS: Rates = Rates {
    refused: 100,
    failed: 0,
    busy: 20,
    short: 200,
    silent: 0,
};

pub(crate) fn device<D: Driver>(driver: &D, cores: usize) -> Arc<Device<D::Queue>> {
    Device::new(driver, &vec![NodeId(0); cores], |_, _| 1, Options::default()).unwrap()
}

/// Carries requests out one after the other, and tells what became of each.
pub(crate) fn carry_out<D: Driver>(driver: &D, requests: &[Request]) -> Vec<Outcome> {
    let mut core = device(driver, 1).join(0).unwrap();
    requests.iter().map(|request| one(&mut core, *request)).collect()
}

/// Requests whose buffers are not in the arena fail, and those beside them do not.
pub(crate) fn bad_buffers(driver: &impl Driver, buffers: &Arena) {
    let block = driver.limits().block_bytes;
    buffers.write(0, &vec![5; block as usize]);
    let end = buffers.bytes();
    let requests = [
        Request::write(0, block, 0),
        Request::write(0, block, end),
        Request::read(0, block, end - u64::from(block) + 1),
        Request::read(0, block, u64::MAX),
        Request::read(0, block, u64::MAX - u64::from(block) + 1),
        Request::read(0, block, 65_536),
    ];
    let wrong: Outcome = Err(EFAULT);
    let expected = [Ok(block), wrong, wrong, wrong, wrong, Ok(block)];
    assert_eq!(carry_out(driver, &requests), expected);
    let mut read = vec![0; block as usize];
    buffers.read(65_536, &mut read);
    assert!(read.iter().all(|byte| *byte == 5));
}

/// Carries one request out.
pub(crate) fn one<Q: DriverQueue>(core: &mut Core<Q>, request: Request) -> Outcome {
    core.submit(request).unwrap();
    let mut outcome = None;
    let start = Instant::now();
    while outcome.is_none() {
        core.run(ns(start), |completion| outcome = Some(completion.outcome));
        assert!(start.elapsed() < PATIENCE, "{request:?} hangs");
    }
    outcome.unwrap()
}

pub(crate) fn ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap()
}

/// Two threads write and read blocks of their halves of the device at random, many at a time, and check what they read.
pub(crate) fn two_cores<D: Driver>(driver: &D, buffers: &Arena, operations: u64) {
    let device = device(driver, 2);
    std::thread::scope(|scope| {
        for index in 0..2 {
            let core = device.join(index).unwrap();
            scope.spawn(move || Half::new(core, buffers, index).run(operations));
        }
    });
}

/// Places that are worked on at a time, each with a buffer of its own.
const PLACES: u64 = 64;

struct Half<'a, Q: DriverQueue> {
    core: Core<Q>,
    buffers: &'a Arena,
    random: fastrand::Rng,
    /// Offset of the half's first place, on the device and in the buffers.
    first: (u64, u64),
    piece: u32,
    /// Number of the last write to each place, and the operation under way there.
    content: Vec<u64>,
    busy: Vec<Option<Operation>>,
}

impl<'a, Q: DriverQueue> Half<'a, Q> {
    fn new(core: Core<Q>, buffers: &'a Arena, index: usize) -> Self {
        let limits = *core.device().limits();
        let room = limits.device_bytes.min(buffers.bytes()) / 2;
        let piece = u32::try_from(room / PLACES).unwrap().min(16 << 10) / limits.block_bytes * limits.block_bytes;
        assert!(piece > 0, "room for two halves");
        let first = index as u64 * u64::from(piece) * PLACES;
        Self {
            core,
            buffers,
            random: fastrand::Rng::with_seed(index as u64),
            first: (first, first),
            piece,
            content: vec![0; PLACES as usize],
            busy: vec![None; PLACES as usize],
        }
    }

    fn run(mut self, operations: u64) {
        let start = Instant::now();
        let (mut given, mut finished) = (0, 0);
        while finished < operations {
            let place = self.random.u64(0..PLACES);
            if given < operations && self.busy[place as usize].is_none() {
                self.submit(place, given + 1);
                given += 1;
                if self.random.u8(0..8) > 0 {
                    continue;
                }
            }
            finished += self.collect(ns(start));
            assert!(start.elapsed() < PATIENCE, "{finished} of {given} finished");
        }
        self.core.check_invariants();
        // The other thread may still need this one's hardware queue.
        while !self.core.is_idle() {
            self.core.run(ns(start), |_| {});
        }
    }

    fn submit(&mut self, place: u64, number: u64) {
        let (at, buffer) = self.at(place);
        let is_write = self.content[place as usize] == 0 || self.random.bool();
        let request = if is_write {
            self.content[place as usize] = number;
            self.buffers.write(buffer, &self.pattern(place));
            Request::write(at, self.piece, buffer)
        } else {
            self.buffers.write(buffer, &vec![0; self.piece as usize]);
            Request::read(at, self.piece, buffer)
        };
        self.busy[place as usize] = Some(request.operation);
        self.core.submit(request.user(place)).unwrap();
    }

    fn collect(&mut self, now: u64) -> u64 {
        let mut done = Vec::new();
        self.core.run(now, |completion| done.push(completion));
        for completion in &done {
            assert_eq!(completion.outcome, Ok(self.piece));
            let place = completion.user;
            if self.busy[place as usize].take() == Some(Operation::Read) {
                let mut found = vec![0; self.piece as usize];
                self.buffers.read(self.at(place).1, &mut found);
                assert!(found == self.pattern(place), "place {place} holds something else");
            }
        }
        done.len() as u64
    }

    fn at(&self, place: u64) -> (u64, u64) {
        let behind = place * u64::from(self.piece);
        (self.first.0 + behind, self.first.1 + behind)
    }

    /// Returns the bytes that a place holds.
    fn pattern(&self, place: u64) -> Vec<u8> {
        let word = self.first.0 ^ place << 48 ^ self.content[place as usize];
        word.to_le_bytes().repeat(self.piece as usize / 8)
    }
}
