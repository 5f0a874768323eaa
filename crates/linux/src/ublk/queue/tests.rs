//! How the thread of a queue waits, without the kernel's driver: the ring has no commands, and the device is slow.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use super::*;
use crate::clock::thread_cpu_time;
use homenode_engine::NodeId;
use homenode_engine::blk::{Device, Done, Driver, Late, Limits, Options, Request, Slots, Tag};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{PipeReader, Read, Write};
use std::sync::Mutex;

const SLOW: Duration = Duration::from_millis(200);

/// A device whose requests end when its bell rings; whether it shows the bell.
struct Slow(Mutex<Option<PipeReader>>, bool);

struct SlowQueue {
    bell: PipeReader,
    shows_bell: bool,
    tags: Vec<Tag>,
}

impl Driver for Slow {
    type Queue = SlowQueue;

    fn limits(&self) -> Limits {
        Limits::of_bytes(1 << 20)
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        vec![None]
    }

    fn queue(&self, _index: usize) -> io::Result<SlowQueue> {
        Ok(SlowQueue {
            bell: self.0.lock().unwrap().take().unwrap(),
            shows_bell: self.1,
            tags: Vec::new(),
        })
    }
}

impl DriverQueue for SlowQueue {
    fn queue_batch(&mut self, batch: &[Tag], _slots: &mut Slots, _now: u64, _done: &mut Done) -> usize {
        self.tags.extend(batch);
        batch.len()
    }

    fn poll(&mut self, slots: &mut Slots, _now: u64, done: &mut Done) {
        let at_once = Timespec::default();
        if poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], Some(&at_once)) == Ok(1) {
            self.bell.read_exact(&mut [0]).unwrap();
            let tag = self.tags.pop().unwrap();
            done.push(tag, Ok(slots.bytes(tag)));
        }
    }

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }

    fn bell(&self) -> Option<i32> {
        self.shows_bell.then(|| self.bell.as_raw_fd())
    }
}

/// The turns that two slow requests take, and the thread's time on CPUs.
fn serve(shows_bell: bool) -> (usize, Duration) {
    let (bell, mut rings) = io::pipe().unwrap();
    let driver = Slow(Mutex::new(Some(bell)), shows_bell);
    let device = Device::new(&driver, &[NodeId(0)], |_, _| 1, Options::default()).unwrap();
    let mut core = device.join(0).unwrap();
    let mut ring = single_issuer(4, |_| {}).unwrap();
    core.submit(Request::read(0, 512, 0)).unwrap();
    core.submit(Request::read(4096, 512, 4096)).unwrap();
    let start = Instant::now();
    let ringer = std::thread::spawn(move || {
        for _ in 0..2 {
            std::thread::sleep(SLOW);
            rings.write_all(&[1]).unwrap();
        }
    });
    let (mut ended, mut turns, mut listens) = (0, 0, false);
    let before = thread_cpu_time();
    loop {
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap();
        core.run(now, |completion| {
            assert_eq!(completion.outcome, Ok(512));
            ended += 1;
        });
        if ended == 2 {
            break;
        }
        wait(&mut ring, &core, &mut listens).unwrap();
        for completion in ring.completion() {
            assert_eq!(completion.user_data(), DRIVER_RUNG);
            listens = false;
        }
        turns += 1;
    }
    assert!(start.elapsed() >= 2 * SLOW);
    assert!(core.bell().is_none(), "an idle driver gives no bell");
    ringer.join().unwrap();
    (turns, thread_cpu_time() - before)
}

#[test]
fn a_thread_sleeps_until_the_drivers_bell_rings() {
    let (turns, cpu) = serve(true);
    assert!(turns <= 4, "{turns} turns");
    assert!(cpu < SLOW / 10, "{cpu:?}");
    let (turns, _) = serve(false);
    assert!(turns > 100, "without a bell it looks again and again");
}
