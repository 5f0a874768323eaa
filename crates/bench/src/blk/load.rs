//! Load on a contestant: a number of requests at random places, and how many are under way at once.

use crate::cpus;
use crate::error::Error;
use crate::pass;
use homenode::NodeId;
use homenode::blk::{Core, DriverQueue, Limits, Null, Request, StampClock, Timing};

/// Size of the no-op device: all of it is random places.
pub(super) const NOOP_BYTES: u64 = 1 << 40;

/// Load of one core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) bytes: u32,
    /// Requests under way.
    pub(crate) depth: usize,
    pub(crate) requests: u64,
}

impl Load {
    /// Where the buffers of the core with this index are: one for each request under way.
    pub(super) fn buffers(&self, index: u64) -> Vec<u64> {
        let depth = self.depth as u64;
        let number = index * depth..(index + 1) * depth;
        number.rev().map(|number| number * u64::from(self.bytes)).collect()
    }
}

/// The no-op device with so many hardware queues.
pub(super) fn null(queues: usize) -> Null {
    Null::new(Limits::of_bytes(NOOP_BYTES), &vec![Some(NodeId(0)); queues])
}

/// Random places (xorshift64*, Vigna 2016): a few cycles each.
#[derive(Clone, Debug)]
pub(super) struct Places {
    state: u64,
    /// A power of two.
    count: u64,
    bytes: u64,
}

impl Places {
    pub(super) fn new(device_bytes: u64, bytes: u32, seed: u64) -> Self {
        let count = device_bytes / u64::from(bytes);
        assert!(count.is_power_of_two());
        Self {
            state: seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            count,
            bytes: u64::from(bytes),
        }
    }

    /// The next one, in bytes from the start.
    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state & (self.count - 1)) * self.bytes
    }
}

/// Reads at random places that follow from `seed`, into the buffers of the core with that `index`; gives how many requests were completed.
pub(super) fn play<Q: DriverQueue, T: Timing>(
    core: &mut Core<Q, T>,
    clock: StampClock,
    load: &Load,
    (index, seed): (u64, u64),
) -> u64 {
    let limits = *core.device().limits();
    let mut places = Places::new(limits.device_bytes, load.bytes, seed);
    let mut buffers = load.buffers(index);
    let (mut submitted, mut done, mut failed) = (0, 0, 0_u64);
    while done < load.requests {
        while submitted < load.requests
            && let Some(buffer) = buffers.pop()
        {
            let request = Request::read(places.next(), load.bytes, buffer).user(buffer);
            core.submit(request).expect("there is a tag for each request in flight");
            submitted += 1;
        }
        done += core.run(clock, |completion| {
            failed += u64::from(completion.outcome.is_err());
            buffers.push(completion.user);
        }) as u64;
    }
    assert_eq!(failed, 0, "no request fails");
    done
}

/// Runs what `prepare` gives for each CPU, each in a thread pinned to it, which prepares it too so that its memory is its own,
/// all from the same moment. M requests per second of all together.
pub(super) fn together<P, F>(cpus: &[usize], prepare: P) -> Result<f64, Error>
where
    P: Fn(usize) -> F + Sync,
    F: FnOnce(StampClock) -> u64,
{
    let clock = StampClock::new();
    let done = pass::together(
        cpus.iter().copied().enumerate().collect(),
        || (),
        |(index, cpu)| {
            cpus::pin(cpu)?;
            let part = prepare(index);
            Ok(move || Ok(part(clock)))
        },
    )?;
    Ok(done.results.iter().sum::<u64>() as f64 * 1e3 / done.elapsed.as_nanos() as f64)
}
