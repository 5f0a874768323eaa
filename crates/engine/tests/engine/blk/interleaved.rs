//! The whole layer in one thread and in virtual time, with faults by seed: nothing is lost, nothing comes twice, bytes are
//! where they belong, and the same seed gives the same run.

use super::memory::Memory;
use homenode_engine::NodeId;
use homenode_engine::blk::conformance::Buffers;
use homenode_engine::blk::{
    Completion, Core, Delay, DelayQueue, Device, Distribution, Durability, Errno, Faults, FaultsQueue, Limits,
    Operation, Options, Outcome, Rates, Refusal, Request, Scheduling, Shares, Stream,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u32 = 512;
/// Where one request works at a time: 16 blocks.
const PLACES: u64 = 256;
const PLACE_BYTES: u64 = 16 * 512;

type Queue = DelayQueue<FaultsQueue<super::memory::MemoryQueue>>;

/// A request that was taken.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    /// Every byte of what it writes.
    byte: u8,
}

struct World {
    random: fastrand::Rng,
    memory: Memory,
    device: Arc<Device<Queue>>,
    cores: Vec<Core<Queue>>,
    now: u64,
    pending: BTreeMap<u64, Pending>,
    /// Byte that fills each block, when no request writes the block; `None`: not known.
    content: Vec<Option<u8>>,
    busy: Vec<bool>,
    next: u64,
    frozen: u32,
    log: Vec<(u64, u64, Outcome)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (cores, queues) = (random.usize(1..=4), random.usize(1..=4));
        let nodes: Vec<NodeId> = (0..cores).map(|_| NodeId(random.u16(0..3))).collect();
        let homes: Vec<_> = (0..queues)
            .map(|_| random.bool().then(|| NodeId(random.u16(0..3))))
            .collect();
        let limits = Limits {
            depth: random.u16(1..24),
            transfer_bytes_max: BLOCK * random.u32(1..=24),
            segments_max: random.u16(1..=8),
            has_cache: random.bool(),
            can_force: random.bool(),
            can_discard: true,
            can_zero: true,
            ..Limits::of_bytes(PLACES * PLACE_BYTES)
        };
        let rates = Rates {
            refused: random.u16(0..200),
            failed: random.u16(0..30),
            busy: random.u16(0..100),
            short: random.u16(0..200),
            silent: random.u16(0..50),
        };
        let memory = Memory::new(limits, &homes, usize::try_from(PLACES * PLACE_BYTES).unwrap());
        let faults = Faults::new(memory.clone(), rates, seed);
        // Half of them finish all at once.
        let delay_ns = if random.bool() { 0 } else { random.u64(0..200_000) };
        let driver = Delay::new(faults, Distribution::Uniform(0, delay_ns), seed);
        let scheduling = match random.u8(0..3) {
            0 => Scheduling::None,
            1 => Scheduling::Deadline,
            _ => Scheduling::Fair(vec![Stream::default(); 3], Shares::new()),
        };
        let options = Options {
            tags: limits.depth + random.u16(0..40),
            plug: random.usize(1..=8),
            scheduling,
            timeout: Duration::from_millis(random.u64(2..20)),
            retries_max: random.u8(0..8),
        };
        let latency = |from: NodeId, to: NodeId| u32::from(from.0.abs_diff(to.0)) + 10;
        let device = Device::new(&driver, &nodes, latency, options).unwrap();
        Self {
            cores: (0..cores).map(|core| device.join(core).unwrap()).collect(),
            random,
            memory,
            device,
            now: 0,
            pending: BTreeMap::new(),
            content: vec![Some(0); usize::try_from(PLACES * 16).unwrap()],
            busy: vec![false; usize::try_from(PLACES).unwrap()],
            next: 1,
            frozen: 0,
            log: Vec::new(),
        }
    }

    /// A request for blocks of one place that nobody else uses, next to another one's now and then.
    fn request(&mut self) -> Option<(usize, Request)> {
        let place = self.random.usize(0..self.busy.len());
        let place = if self.random.bool() { place % 16 } else { place };
        if self.busy[place] {
            return None;
        }
        let start = place as u64 * PLACE_BYTES;
        let blocks = self.random.u32(1..=16);
        let first = if self.random.bool() {
            0
        } else {
            self.random.u32(0..=16 - blocks)
        };
        let (offset, bytes) = (start + u64::from(first * BLOCK), blocks * BLOCK);
        let request = match self.random.u8(0..20) {
            0 => Request::flush(),
            1 => Request::discard(offset, bytes),
            2 => Request::write_zeroes(offset, bytes),
            3..10 => Request::read(offset, bytes, offset),
            _ => Request::write(offset, bytes, offset).durability(match self.random.u8(0..30) {
                0 => Durability::FlushBefore,
                1 => Durability::Forced,
                2 => Durability::FlushBeforeAndForced,
                _ => Durability::Later,
            }),
        };
        Some((place, request.stream(self.random.u16(0..3)).user(self.next)))
    }

    fn submit(&mut self) {
        let Some((place, request)) = self.request() else {
            return;
        };
        let core = self.random.usize(0..self.cores.len());
        let byte = self.random.u8(..);
        let bytes = request.bytes as usize;
        match request.operation {
            Operation::Write => self.memory.fill(request.buffer, &vec![byte; bytes]),
            Operation::Read => self.memory.fill(request.buffer, &vec![0xee; bytes]),
            _ => {}
        }
        match self.cores[core].submit(request) {
            Ok(()) => {
                self.busy[place] |= request.operation != Operation::Flush;
                self.pending.insert(self.next, Pending { request, byte });
                self.next += 1;
            }
            Err(rejected) => assert_eq!((rejected.request, rejected.why), (request, Refusal::NoTag)),
        }
    }

    fn run(&mut self, core: usize) {
        let mut done = Vec::new();
        self.cores[core].run(self.now, |completion| done.push(completion));
        self.cores[core].check_invariants();
        for completion in done {
            self.check(completion);
        }
    }

    fn check(&mut self, completion: Completion) {
        let Completion { user, outcome } = completion;
        self.log.push((self.now, user, outcome));
        let Pending { request, byte } = self.pending.remove(&user).expect("each request is completed once");
        let blocks = blocks_of(&request);
        if request.operation != Operation::Flush {
            self.busy[blocks.start / 16] = false;
        }
        match outcome {
            Ok(bytes) => {
                assert_eq!(bytes, request.bytes);
                self.check_bytes(&request, byte);
            }
            Err(errno) => {
                assert!([Errno::IO, Errno::AGAIN, Errno::TIMED_OUT].contains(&errno), "{errno}");
                if request.operation != Operation::Read {
                    self.content[blocks].fill(None);
                }
            }
        }
    }

    fn check_bytes(&mut self, request: &Request, byte: u8) {
        let blocks = blocks_of(request);
        let durable = self.device.limits().has_cache && request.durability.is_forced();
        match request.operation {
            Operation::Flush => {}
            Operation::Discard => self.content[blocks].fill(None),
            Operation::WriteZeroes => self.content[blocks].fill(Some(0)),
            Operation::Write => {
                if durable {
                    let at = usize::try_from(request.offset).unwrap();
                    assert_eq!(
                        self.memory.durable(at, request.bytes as usize),
                        vec![byte; request.bytes as usize]
                    );
                }
                self.content[blocks].fill(Some(byte));
            }
            Operation::Read => {
                for (index, block) in blocks.enumerate() {
                    let mut found = [0; BLOCK as usize];
                    self.memory
                        .copy(request.buffer + index as u64 * u64::from(BLOCK), &mut found);
                    let expected = self.content[block];
                    assert!(
                        expected.is_none_or(|byte| found == [byte; BLOCK as usize]),
                        "block {block}: {found:?}"
                    );
                }
            }
        }
    }

    fn step(&mut self) {
        self.now += self.random.u64(0..20_000);
        let core = self.random.usize(0..self.cores.len());
        match self.random.u8(0..100) {
            0..55 => self.submit(),
            55..95 => self.run(core),
            95..97 => {
                let queue = self.random.usize(0..self.device.hardware_counts().len());
                self.device.remap(core, queue).unwrap();
            }
            97 => {
                self.device.freeze();
                self.frozen += 1;
            }
            _ if self.frozen > 0 => {
                if self.device.is_drained() {
                    self.check_drained();
                }
                self.device.thaw();
                self.frozen -= 1;
            }
            _ => {}
        }
    }

    /// Whatever cores do, the driver hears nothing.
    fn check_drained(&mut self) {
        self.memory.calls();
        for core in 0..self.cores.len() {
            self.submit();
            self.run(core);
        }
        assert_eq!(self.memory.calls(), []);
        assert!(self.device.is_drained());
    }

    fn end(&mut self) {
        for _ in 0..std::mem::take(&mut self.frozen) {
            self.device.thaw();
        }
        let mut rounds = 0;
        while !self.pending.is_empty() {
            self.now += 500_000;
            (0..self.cores.len()).for_each(|core| self.run(core));
            rounds += 1;
            assert!(rounds < 10_000, "these hang: {:?}", self.pending);
        }
        assert!(self.cores.iter().all(Core::is_idle));
        let software = self.device.software_counts();
        let submitted: u64 = software.iter().map(|counts| counts.submitted).sum();
        let completed = software
            .iter()
            .flat_map(|counts| counts.operations)
            .map(|of_one| of_one.requests)
            .sum();
        assert_eq!((submitted, submitted), (self.next - 1, completed));
    }
}

fn blocks_of(request: &Request) -> std::ops::Range<usize> {
    let first = usize::try_from(request.offset / u64::from(BLOCK)).unwrap();
    first..first + (request.bytes / BLOCK) as usize
}

fn play(seed: u64) -> Vec<(u64, u64, Outcome)> {
    let mut world = World::new(seed);
    for _ in 0..1500 {
        world.step();
    }
    world.end();
    world.log
}

#[test]
fn each_request_completes_once() {
    let first = std::env::var("HOMENODE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut completed = 0;
    for seed in first..first + 300 {
        let result = std::panic::catch_unwind(|| (play(seed), play(seed)));
        let (once, again) = result.unwrap_or_else(|_| panic!("HOMENODE_SEED={seed} shows it"));
        assert!(once == again, "HOMENODE_SEED={seed}: two runs of one seed differ");
        completed += once.len();
    }
    assert!(completed > 50_000, "{completed}");
}
