//! The threads that submit.

use homenode::blk::trace::Entry;
use homenode::blk::{ByRequest, Core, Device, DriverQueue, Refusal, Request, StampClock, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a trace is played.
#[derive(Clone, Copy, Debug)]
pub(super) struct Player<'a> {
    pub(super) begin_ns: u64,
    pub(super) asap: bool,
    /// Requests of a core under way at a time.
    pub(super) depth: u64,
    pub(super) bytes_max: u32,
    /// Set when no more is to be submitted.
    pub(super) interrupted: &'a AtomicBool,
}

/// Result of playing a trace, or one core's part of a trace.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) elapsed: Duration,
    /// Longest delay between a request's due time and its submission.
    pub(super) late: Duration,
    /// Requests that were left out when it was interrupted.
    pub(super) not_submitted: u64,
    /// Requests that the device does not take, by the reason.
    pub(super) refused: BTreeMap<String, u64>,
    /// Requests that failed, by the reason.
    pub(super) failed: BTreeMap<String, u64>,
}

/// State of the thread that submits one core's requests.
struct Lane<Q: DriverQueue> {
    core: Core<Q, ByRequest<StampClock>>,
    /// Numbers of the buffers that nobody uses.
    free: Vec<u64>,
    played: Played,
    clock: Instant,
    stamps: StampClock,
}

/// Before a request is due by so much, the thread spins.
const SPIN: Duration = Duration::from_micros(50);

/// The longest sleep: between two it looks whether it is interrupted.
const SLEEP_MAX: Duration = Duration::from_millis(50);

impl Player<'_> {
    pub(super) fn play<Q: DriverQueue>(&self, device: &Arc<Device<Q>>, cores: &[Vec<Entry>]) -> Played {
        let stamps = StampClock::new();
        let clock = Instant::now();
        let parts: Vec<Played> = std::thread::scope(|scope| {
            // Each core has its own hardware queue: it needs no other thread.
            let threads: Vec<_> = cores
                .iter()
                .enumerate()
                .map(|(index, entries)| scope.spawn(move || self.play_core(device, index, entries, clock, stamps)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a core's thread does not panic"))
                .collect()
        });
        let mut all = Played {
            elapsed: clock.elapsed(),
            ..Played::default()
        };
        for part in parts {
            all.late = all.late.max(part.late);
            all.not_submitted += part.not_submitted;
            part.refused
                .into_iter()
                .for_each(|(why, count)| *all.refused.entry(why).or_default() += count);
            part.failed
                .into_iter()
                .for_each(|(why, count)| *all.failed.entry(why).or_default() += count);
        }
        all
    }

    fn play_core<Q: DriverQueue>(
        &self,
        device: &Arc<Device<Q>>,
        index: usize,
        entries: &[Entry],
        clock: Instant,
        stamps: StampClock,
    ) -> Played {
        let first = index as u64 * self.depth;
        let mut lane = Lane {
            core: device.join_timed(index, stamps).expect("each core joins once"),
            free: (first..first + self.depth).collect(),
            played: Played::default(),
            clock,
            stamps,
        };
        // Relaxed: nothing else is told by it.
        let is_interrupted = || self.interrupted.load(Ordering::Relaxed);
        for (number, entry) in entries.iter().enumerate() {
            if !self.asap {
                let due = Duration::from_nanos(entry.time_ns.saturating_sub(self.begin_ns));
                lane.wait_until(due, is_interrupted);
            }
            if is_interrupted() {
                lane.played.not_submitted = (entries.len() - number) as u64;
                break;
            }
            lane.submit(&entry.request, self.bytes_max);
        }
        while lane.core.pending() > 0 {
            lane.run();
        }
        lane.played
    }
}

impl<Q: DriverQueue> Lane<Q> {
    fn run(&mut self) {
        let (free, failed) = (&mut self.free, &mut self.played.failed);
        self.core.run(self.stamps.now(), |completion| {
            free.push(completion.user);
            if let Err(errno) = completion.outcome {
                *failed.entry(errno.to_string()).or_default() += 1;
            }
        });
    }

    fn wait_until(&mut self, due: Duration, is_interrupted: impl Fn() -> bool) {
        while !is_interrupted() {
            self.run();
            let now = self.clock.elapsed();
            if now >= due {
                self.played.late = self.played.late.max(now - due);
                return;
            }
            if self.core.pending() == 0 && due - now > SPIN {
                std::thread::sleep((due - now - SPIN).min(SLEEP_MAX));
            }
        }
    }

    fn submit(&mut self, request: &Request, bytes_max: u32) {
        let buffer = loop {
            match self.free.pop() {
                Some(buffer) => break buffer,
                None => self.run(),
            }
        };
        let request = Request {
            buffer: buffer * u64::from(bytes_max),
            user: buffer,
            ..*request
        };
        while let Err(rejected) = self.core.submit(request) {
            if rejected.why != Refusal::NoTag {
                *self.played.refused.entry(rejected.why.to_string()).or_default() += 1;
                self.free.push(buffer);
                return;
            }
            self.run();
        }
    }
}
