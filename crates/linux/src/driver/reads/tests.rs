//! Reads that take as long as the test wants: of pipes.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use super::*;
use crate::clock::thread_cpu_time;
use crate::driver::Arena;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const COUNT: usize = 8;
const BYTES: usize = 512;

/// Files whose reads end when the test writes, and memory to read into.
struct Slow {
    // Dropped first.
    reads: Reads<(usize, Transfer)>,
    pipes: Vec<(PipeReader, PipeWriter)>,
    memory: Arc<Arena>,
}

impl Slow {
    fn new() -> Self {
        Self {
            reads: Reads::new().unwrap(),
            pipes: (0..COUNT).map(|_| io::pipe().unwrap()).collect(),
            memory: Arena::new((COUNT * BYTES) as u64, None).unwrap(),
        }
    }

    /// Begins a read of each file, in two pieces.
    fn begin(&mut self) {
        for (nth, (reader, _)) in self.pipes.iter().enumerate() {
            let at = self.memory.range((nth * BYTES) as u64, BYTES).unwrap();
            let transfer = Transfer {
                descriptor: reader.as_raw_fd(),
                offset: 0,
                pieces: vec![(at.addr(), 100), (at.addr() + 100, BYTES - 100)],
                alive: Arc::new(()),
            };
            // SAFETY: the arena stays mapped for longer than the ring, and nobody refers to its bytes.
            unsafe { self.reads.begin((nth, transfer), |(_, transfer)| transfer) }.unwrap();
        }
        self.reads.enter();
    }

    fn write(&mut self, nth: usize, bytes: usize) {
        let fill = u8::try_from(nth + 1).unwrap();
        self.pipes[nth].1.write_all(&vec![fill; bytes]).unwrap();
    }

    fn holds(&self, nth: usize) -> u8 {
        let mut byte = [0];
        self.memory.read((nth * BYTES + BYTES - 1) as u64, &mut byte);
        byte[0]
    }

    /// Whether the bell rings within `most`.
    fn rings(&self, most: Duration) -> bool {
        let fd = self.reads.bell().unwrap();
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let most = i32::try_from(most.as_millis()).unwrap();
        // SAFETY: one structure, which is writable.
        unsafe { libc::poll(&raw mut poll, 1, most) == 1 }
    }

    fn take(&mut self) -> Vec<(usize, bool)> {
        let mut ended = Vec::new();
        self.reads
            .take(|(nth, _), end| ended.push((nth, end == ReadEnd::Whole)));
        ended
    }
}

#[test]
fn reads_run_concurrently_and_complete_in_any_order() {
    let mut slow = Slow::new();
    slow.begin();
    assert_eq!(slow.reads.under_way(), COUNT);
    assert!(!slow.rings(Duration::ZERO), "nothing has ended");
    assert!(slow.take().is_empty());
    for nth in (0..COUNT).rev() {
        slow.write(nth, BYTES);
        assert!(slow.rings(Duration::from_secs(10)), "read {nth} has ended");
        assert_eq!(slow.take(), [(nth, true)]);
        assert_eq!(usize::from(slow.holds(nth)), nth + 1);
        assert!(!slow.rings(Duration::ZERO), "a taken completion rings again");
    }
    assert_eq!(slow.reads.under_way(), 0);
    slow.begin();
    slow.write(0, BYTES - 1);
    slow.write(1, BYTES);
    while slow.reads.under_way() > COUNT - 2 {
        slow.reads.wait();
        for (nth, is_read) in slow.take() {
            assert_eq!(is_read, nth == 1, "a short one is not read");
        }
    }
}

#[test]
fn a_pause_rings_the_bell_once() {
    let mut slow = Slow::new();
    assert!(slow.reads.pause(false));
    assert!(slow.reads.pause(false));
    slow.reads.enter();
    assert!(slow.rings(Duration::from_secs(10)));
    let mut none = |_, _| panic!("nothing was read");
    assert!(slow.reads.take(&mut none));
    assert!(!slow.rings(Duration::from_millis(2)));
    assert!(!slow.reads.take(&mut none));
}

#[test]
fn waiting_for_the_bell_uses_no_cpu_time() {
    let mut slow = Slow::new();
    slow.begin();
    let (_, mut writer) = slow.pipes.pop().unwrap();
    let (start, before) = (Instant::now(), thread_cpu_time());
    let write = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        writer.write_all(&[9; BYTES]).unwrap();
    });
    assert!(slow.rings(Duration::from_secs(10)));
    assert!(start.elapsed() >= Duration::from_millis(150));
    assert!(thread_cpu_time() - before < Duration::from_millis(20));
    assert_eq!(slow.take(), [(COUNT - 1, true)]);
    write.join().unwrap();
}

#[test]
fn closed_reads_write_no_memory_and_all_complete_with_errors() {
    let mut slow = Slow::new();
    slow.begin();
    slow.reads.close();
    for nth in 0..COUNT {
        slow.write(nth, BYTES);
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!((0..COUNT).all(|nth| slow.holds(nth) == 0));
    let mut ended = slow.take();
    ended.sort_unstable();
    assert!(ended.into_iter().eq((0..COUNT).map(|nth| (nth, false))));
    assert!(slow.reads.bell().is_none());
    // Another thread's, whose own thread sleeps.
    let mut slow = Slow::new();
    slow.begin();
    std::thread::scope(|scope| scope.spawn(|| slow.reads.close()).join().unwrap());
    assert_eq!(slow.take().len(), COUNT);
}
