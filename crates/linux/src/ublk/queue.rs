//! Queue of a device: its thread takes requests from the kernel, runs them through the block layer, and tells results.
//!
//! All results that are there go back in one system call, which also waits for the next requests; the kernel copies the data of
//! both in that call, on this thread's CPU. Where the layer still works for a request, the thread looks for its end instead of
//! sleeping, unless the driver has a bell for that; where nothing is under way, it sleeps. After its start it takes nothing from the heap.

use super::abi::{self, IoCommand};
use super::bell::Ear;
use super::descriptors::Descriptors;
use crate::cpu;
use crate::driver::{Arena, RingError, single_issuer};
use homenode_engine::CpuId;
use homenode_engine::blk::{Core, DriverQueue, Errno, Outcome, Refusal};
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// The device and the bell, among the ring's files.
const DEVICE: Fixed = Fixed(0);
const BELL: Fixed = Fixed(1);
const POLLIN: u32 = libc::POLLIN as u32;
/// User data of the entry that listens to the bell; no tag is equal, as tags are 16 bits.
const RUNG: u64 = u64::MAX;
/// User data of the entry that listens to the bell of the device's driver.
const DRIVER_RUNG: u64 = u64::MAX - 1;
/// Longest sleep while the driver has requests: late ones are looked for then.
const SLEEP: Duration = Duration::from_secs(1);
/// Pause for the kernel to find memory.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);
/// How long a thread stays on another CPU until it tries again to get to its own.
const ASTRAY_PAUSE: Duration = Duration::from_millis(1);

/// Parts that a queue is made of.
pub(super) struct Parts<'a, Q: DriverQueue> {
    pub(super) index: u16,
    pub(super) depth: u16,
    /// Bytes of the buffers for each tag.
    pub(super) io_bytes: u32,
    /// Where the first tag's are.
    pub(super) first_buffer: u64,
    pub(super) device: &'a File,
    pub(super) buffers: &'a Arena,
    pub(super) core: Core<Q>,
    pub(super) bell: &'a Ear,
    pub(super) cpus: &'a [CpuId],
    /// Where its thread is to be while those are offline.
    pub(super) near: &'a [CpuId],
    /// Zero of the block layer's time.
    pub(super) began: Instant,
}

/// State that the thread of a queue owns.
pub(super) struct Queue<'a, Q: DriverQueue> {
    // Dropped before everything that its entries name.
    ring: IoUring,
    descriptors: Descriptors,
    parts: Parts<'a, Q>,
    /// Tags whose requests have come.
    arrived: Vec<u16>,
    /// Tags that the kernel still uses.
    live: usize,
    is_over: bool,
    /// Whether the ring listens to the driver's bell.
    listens: bool,
    /// When the thread last tried to get to its CPU; none while it runs there.
    astray: Option<Instant>,
}

impl<Q: DriverQueue> fmt::Debug for Queue<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("index", &self.parts.index)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

impl<'a, Q: DriverQueue> Queue<'a, Q> {
    /// Offers the kernel all tags. To be called by the thread that serves, on its CPU: what is made here is of that CPU's node.
    pub(super) fn new(parts: Parts<'a, Q>) -> io::Result<Self> {
        let depth = usize::from(parts.depth);
        let ring = single_issuer(u32::from(parts.depth) + 2, |_| {})?;
        let files = [parts.device.as_raw_fd(), parts.bell.as_raw_fd()];
        let registered = ring.submitter().register_files(&files);
        registered.map_err(|source| RingError::Files { source })?;
        let mut queue = Self {
            descriptors: Descriptors::map(parts.device, parts.index, depth)?,
            ring,
            parts,
            arrived: Vec::with_capacity(depth),
            live: depth,
            is_over: false,
            listens: false,
            astray: None,
        };
        let listen = opcode::PollAdd::new(BELL, POLLIN);
        push(&mut queue.ring, &listen.build().user_data(RUNG));
        for tag in 0..queue.parts.depth {
            let entry = queue.parts.entry(abi::FETCH_REQ, tag, 0);
            push(&mut queue.ring, &entry);
        }
        queue.ring.submit()?;
        queue.take_completions()?;
        if queue.is_over {
            // Another one's error is why.
            Err(io::Error::from_raw_os_error(libc::ECANCELED))
        } else if queue.live < depth {
            Err(io::Error::from_raw_os_error(libc::ENODEV))
        } else {
            Ok(queue)
        }
    }

    /// Serves until the device ends, or the bell rings.
    pub(super) fn serve(&mut self) -> io::Result<()> {
        while self.live > 0 && !self.is_over {
            self.check_cpu();
            self.work();
            self.wait()?;
            self.take_completions()?;
        }
        Ok(())
    }

    /// Gives what has come to the block layer, and what is finished back to the kernel.
    fn work(&mut self) {
        let began = self.parts.began;
        let now = move || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.parts.core.wake(now());
        for next in 0..self.arrived.len() {
            let tag = self.arrived[next];
            let (buffer, io_bytes) = (self.parts.buffer(tag), self.parts.io_bytes);
            match self.descriptors.read(tag).request(buffer, io_bytes) {
                Ok(request) => {
                    if let Err(rejected) = self.parts.core.submit(request.user(u64::from(tag))) {
                        self.end(tag, Err(errno_of(rejected.why)));
                    }
                }
                Err(errno) => self.end(tag, Err(errno)),
            }
        }
        self.arrived.clear();
        let Self { ring, parts, .. } = self;
        let place = Place::of(parts);
        parts.core.run(now, |completion| {
            let tag = u16::try_from(completion.user).expect("user is the tag given at submission");
            push(ring, &place.commit(tag, completion.outcome));
        });
    }

    fn end(&mut self, tag: u16, outcome: Outcome) {
        let entry = Place::of(&self.parts).commit(tag, outcome);
        push(&mut self.ring, &entry);
    }

    /// Sends results and waits for requests; not when the layer has something to do meanwhile.
    fn wait(&mut self) -> io::Result<()> {
        wait(&mut self.ring, &self.parts.core, &mut self.listens)
    }

    /// Takes what has completed: requests, tags that the kernel uses no more, the bell.
    fn take_completions(&mut self) -> io::Result<()> {
        let mut failed = None;
        for completion in self.ring.completion() {
            let name = completion.user_data();
            match name {
                RUNG => self.is_over = true,
                DRIVER_RUNG => self.listens = false,
                _ => {}
            }
            if name >= DRIVER_RUNG {
                continue;
            }
            let tag = u16::try_from(name).expect("the name is the tag given at submission");
            if completion.result() >= 0 {
                self.arrived.push(tag);
                continue;
            }
            self.live -= 1;
            match -completion.result() {
                // The device is stopped.
                libc::ENODEV | libc::ECANCELED => {}
                errno => failed = Some(errno),
            }
        }
        failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// The scheduler moves a bound thread when its CPU goes offline, and forgets where it was bound.
    fn check_cpu(&mut self) {
        if self.parts.cpus.contains(&cpu::current_cpu()) {
            self.astray = None;
        } else if self.astray.is_none_or(|tried| tried.elapsed() >= ASTRAY_PAUSE) {
            stay(self.parts.cpus, self.parts.near);
            self.astray = Some(Instant::now());
        }
    }
}

impl<Q: DriverQueue> Parts<'_, Q> {
    fn buffer(&self, tag: u16) -> u64 {
        self.first_buffer + u64::from(tag) * u64::from(self.io_bytes)
    }

    fn entry(&self, operation: u32, tag: u16, result: i32) -> squeue::Entry {
        Place::of(self).entry(operation, tag, result)
    }
}

/// Facts about a queue that its entries need.
#[derive(Clone, Copy)]
struct Place {
    queue: u16,
    /// Address of the first tag's data.
    address: u64,
    io_bytes: u32,
}

impl Place {
    fn of<Q: DriverQueue>(parts: &Parts<'_, Q>) -> Self {
        let bytes = usize::from(parts.depth) * parts.io_bytes as usize;
        let start = parts.buffers.range(parts.first_buffer, bytes);
        let start = start.expect("the buffers have a part for each queue");
        Self {
            queue: parts.index,
            address: start.expose_provenance() as u64,
            io_bytes: parts.io_bytes,
        }
    }

    /// A request is finished; its tag may have the next.
    fn commit(&self, tag: u16, outcome: Outcome) -> squeue::Entry {
        let result = match outcome {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Err(Errno(errno)) => -errno.max(1),
        };
        self.entry(abi::COMMIT_AND_FETCH_REQ, tag, result)
    }

    fn entry(&self, operation: u32, tag: u16, result: i32) -> squeue::Entry {
        let command = IoCommand {
            queue: self.queue,
            tag,
            result,
            address: self.address + u64::from(tag) * u64::from(self.io_bytes),
        };
        let entry = opcode::UringCmd16::new(DEVICE, operation).cmd(command.encode());
        entry.build().user_data(u64::from(tag))
    }
}

/// Sends what is in the ring and waits for completions, as long as the core has nothing to do. Whether the ring listens to the driver's bell is
/// in `listens`.
fn wait<Q: DriverQueue>(ring: &mut IoUring, core: &Core<Q>, listens: &mut bool) -> io::Result<()> {
    if core.is_idle() {
        return settled(ring.submit_and_wait(1));
    }
    let most = match core.bell() {
        Some(bell) => {
            if !*listens {
                let listen = opcode::PollAdd::new(Fd(bell), POLLIN);
                push(ring, &listen.build().user_data(DRIVER_RUNG));
                *listens = true;
            }
            Timespec::from(SLEEP)
        }
        None => Timespec::new(),
    };
    settled(ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&most)))
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) {
    // SAFETY: the only memory that a command names is its tag's part of the arena, which the caller of the thread keeps for longer
    // than the ring, and which the kernel only uses in this thread's calls; listening to the bell names none.
    let pushed = unsafe { ring.submission().push(entry) };
    pushed.expect("the ring has room for every tag and both bells, each pushed once");
}

/// Binds this thread to `cpus`, or else `near` them. Where neither may be used it stays where it is: that is slower, not wrong.
pub(super) fn stay(cpus: &[CpuId], near: &[CpuId]) {
    if cpu::pin_to_node_cpus(cpus).is_err() {
        let _ = cpu::pin_to_node_cpus(near);
    }
}

fn errno_of(why: Refusal) -> Errno {
    match why {
        Refusal::NotSupported => Errno::NOT_SUPPORTED,
        Refusal::Misaligned | Refusal::TooLong => Errno(libc::EINVAL),
        _ => Errno::IO,
    }
}

/// Goes on after a signal, when no time is given, and when the kernel has no memory for it just now.
fn settled(waited: io::Result<usize>) -> io::Result<()> {
    match waited {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY) => Ok(()),
            Some(libc::EAGAIN | libc::ENOMEM) => {
                std::thread::sleep(NO_MEMORY_PAUSE);
                Ok(())
            }
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests;
