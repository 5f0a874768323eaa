//! Queue of one CPU: its thread takes requests from the ring and puts answers back.
//!
//! All requests that are there are carried out, up to the first with a long answer or one that took 0.5 ms, before their answers go back together, in
//! one system call that also waits for the next ones. After its start a thread takes nothing from the heap to read and write files.

use super::buffers::Buffers;
use super::going::Going;
use super::parked::{Back, Parked, carry_out};
use super::{Ring, command};
use crate::aside::{Aside, Lane, Served, Way};
use crate::call::{Later, Origin, ROOM_TIMEOUT, ROOM_WAIT};
use crate::device::Device;
use crate::host::Host;
use crate::responder::{Answer, Responder};
use crate::wire::{Field, OutHeader, RingHeader};
use crate::worker::user_of;
use homenode_engine::cache::Fetch;
use homenode_engine::{Clock, CpuId, Memory};
use io_uring::squeue::Entry128;
use io_uring::{cqueue, opcode, types};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Answers to requests that carry a payload are made here first: the largest extended attribute.
const SCRATCH_BYTES: usize = 64 << 10;
/// Pause in which the kernel may find memory.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);
/// How long a thread stays on another CPU until it tries again to get to its own: soon when that is back online, and rarely
/// when it is not allowed.
const ASTRAY_PAUSE: Duration = Duration::from_millis(1);
/// A read-ahead of so much is worth a CPU of its own.
const LONG_BYTES: u32 = 128 << 10;
/// Other users do not wait for another request of a user who had the thread for so long.
const LONG_TIME: Duration = Duration::from_micros(500);
/// After so many in a row the thread leaves its CPU.
const LONG_READS: u32 = 3;

/// The bell's command, among those with the index of an entry.
const BELL: u64 = u64::MAX;
/// Commands that read a disk: above 16 bits for the nth of a request, its number.
const FETCH: u64 = 1 << 62;
/// Times that bytes are read for a request, before it waits for them itself.
const FETCHES_MAX: u8 = 4;
/// Completions that are waited for at the end.
const WAITS_MAX: usize = 10_000;
const POLLIN: u32 = libc::POLLIN as u32;

#[expect(clippy::cast_possible_truncation, reason = "16")]
const OUT_HEADER_BYTES: u32 = OutHeader::BYTES as u32;

/// State that the thread of one queue owns.
#[derive(Debug)]
pub(crate) struct Queue<M: Memory, C: Clock, H> {
    cpu: CpuId,
    // Dropped before the buffers: the kernel copies to and from them only while this thread waits on the ring.
    ring: Ring,
    buffers: Buffers,
    device: Arc<Device>,
    pub(crate) responder: Responder<M, C, H>,
    scratch: Box<[u8]>,
    spin: Duration,
    /// Entries whose requests have come.
    ready: Vec<Ready>,
    /// Entries whose requests have come a step further, and go on after those that come meanwhile.
    going: Going<Ready>,
    /// Users who got long answers, or whose requests took long, last.
    long: Served,
    /// Entries whose requests wait for room.
    waiting: Vec<Ready>,
    /// When they were last carried out.
    waited: Option<Instant>,
    /// Threads that carry out what waits for the disk, in a durable pool.
    aside: Option<Desk>,
    /// Whether reads may wait for disks.
    reads_disks: bool,
    /// Requests for which bytes are being read.
    fetching: Vec<Option<Fetching>>,
    /// Reads that have completed.
    read: Vec<(u64, i32)>,
    /// Entries that still get requests.
    live: usize,
    /// When the thread last tried to get to its CPU; none while it runs there.
    astray: Option<Instant>,
    /// Long read-aheads in a row.
    long_reads: u32,
}

/// The way to threads that carry out what waits for the disk, and back.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) aside: Aside<Parked>,
    pub(super) back: Arc<Back>,
    /// Answers that have come back.
    pub(super) answered: Vec<(Parked, Answer)>,
}

/// An entry with a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    index: usize,
    /// Number of the user who asks.
    user: u32,
    /// When it was first carried out, and not to its end.
    since: Option<Instant>,
    /// How far it came.
    done: u64,
    /// How often bytes were read for it.
    fetched: u8,
}

/// A request for which bytes are being read.
#[derive(Debug)]
struct Fetching {
    ready: Ready,
    reads: Vec<Option<Reading>>,
    left: usize,
}

/// A read of a disk.
struct Reading {
    fetch: Fetch,
    /// Memory that is read into. The kernel reads this list until the read completes.
    pieces: Box<[libc::iovec]>,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reading").field(&self.fetch).finish()
    }
}

// SAFETY: the addresses in the list are numbers to this process: only the kernel stores there.
unsafe impl Send for Reading {}

impl Reading {
    fn new(fetch: Fetch) -> Self {
        let pieces = fetch.transfer().pieces.iter().map(|(address, bytes)| libc::iovec {
            iov_base: std::ptr::without_provenance_mut(*address),
            iov_len: *bytes,
        });
        Self {
            pieces: pieces.collect(),
            fetch,
        }
    }
}

impl<M: Memory, C: Clock, H: Host> Queue<M, C, H> {
    pub(super) fn new(
        cpu: CpuId,
        ring: Ring,
        buffers: Buffers,
        device: Arc<Device>,
        responder: Responder<M, C, H>,
        spin: Duration,
        aside: Option<Desk>,
    ) -> Self {
        let depth = buffers.depth();
        Self {
            reads_disks: responder.service.fs.reads_disks(),
            fetching: Vec::with_capacity(depth),
            read: Vec::with_capacity(depth),
            cpu,
            ring,
            buffers,
            device,
            responder,
            scratch: vec![0; SCRATCH_BYTES].into(),
            spin,
            ready: Vec::with_capacity(depth),
            going: Going::new(depth),
            long: Served::default(),
            waiting: Vec::with_capacity(depth),
            waited: None,
            aside,
            live: depth,
            astray: None,
            long_reads: 0,
        }
    }

    /// Requests that other threads are to carry out.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Arc<Lane<Parked>>> {
        self.aside.iter().flat_map(|desk| desk.aside.lanes())
    }

    pub(crate) fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Gives the kernel all entries. Until every queue has done so, callers wait.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        self.stay_on_cpu();
        let submitter = self.ring.0.submitter();
        submitter.register_enable_rings()?;
        submitter.register_files(&[self.device.raw()])?;
        let depth = self.buffers.depth();
        for index in 0..depth {
            self.buffers.give(index);
            let entry = command::register(self.cpu, self.buffers.vectors(index), index as u64);
            self.push(&entry);
        }
        let submitted = self.ring.0.submit()?;
        self.keep_workers_near();
        self.listen();
        self.take_completions()?;
        // Fewer also when the mount has gone meanwhile: then nothing more is to come.
        if submitted == depth {
            Ok(())
        } else {
            Err(io::Error::other(format!("it took {submitted} of {depth} entries")))
        }
    }

    /// Serves until the filesystem is unmounted.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let served = self.serve_all();
        // The kernel may still store into frames: they are nobody else's until it has ended.
        let mut waits = 0;
        while self.fetching.iter().any(Option::is_some) && waits < WAITS_MAX {
            waits += 1;
            let _ = self.ring.0.submit_and_wait(1);
            let _ = self.take_completions();
        }
        served
    }

    fn serve_all(&mut self) -> io::Result<()> {
        while self.live > 0 {
            self.check_cpu();
            if self.waited.is_some_and(|waited| waited.elapsed() >= ROOM_WAIT) {
                self.waited = None;
                // Before those that have just come, which could take their places among half of the entries.
                std::mem::swap(&mut self.ready, &mut self.waiting);
                self.ready.append(&mut self.waiting);
            }
            let mut was_long = false;
            while !was_long && !self.ready.is_empty() {
                let next = self.ready.remove(0);
                // Whoever waits for so much does not wait for the rest.
                was_long = self.serve(next);
                if was_long || next.done > 0 {
                    self.long.note(next.user);
                }
            }
            self.wait()?;
            self.take_completions()?;
            // One long request goes on by a step, before others of its user; the others after those that came meanwhile.
            if !self.ready.iter().any(|ready| ready.done > 0)
                && let Some(step) = self.going.pop()
            {
                let own = self.ready.iter().position(|ready| ready.user == step.user);
                self.ready.insert(own.unwrap_or(self.ready.len()), step);
            }
            // Other users do not wait for the rest either, and come next.
            let turn = || self.long.turn(self.ready.iter().map(|ready| ready.user));
            if let Some(at) = was_long.then(turn).flatten() {
                self.ready[..=at].rotate_right(1);
            }
        }
        Ok(())
    }

    /// Has the bell heard in the ring.
    fn listen(&mut self) {
        if let Some(desk) = &self.aside {
            let bell = opcode::PollAdd::new(types::Fd(desk.back.bell()), POLLIN).multi(true);
            self.push(&bell.build().user_data(BELL).into());
        }
    }

    /// Carries out the request of an entry, and prepares its answer. Returns whether it moved much payload, or took long.
    fn serve(&mut self, ready: Ready) -> bool {
        let Ready {
            index,
            since,
            done,
            fetched,
            ..
        } = ready;
        let header = self.buffers.header(index);
        let origin = Origin::Ring {
            cpu: self.cpu,
            is_aside: false,
            // No more than half of the entries wait for room: others want to be served, which is what may bring it.
            waited: since
                .map(|since| since.elapsed())
                .or((self.waiting.len() >= self.buffers.depth().div_ceil(2)).then_some(ROOM_TIMEOUT)),
            is_new: since.is_none(),
            done,
            may_fetch: self.reads_disks && fetched < FETCHES_MAX,
            is_reading: self.fetching.iter().any(Option::is_some),
        };
        self.choose_cpu(&header);
        let start = Instant::now();
        let begun = since.unwrap_or(start);
        let payload = self.buffers.payload(index);
        let answer = carry_out(&self.responder, &header, payload, &mut self.scratch, origin);
        self.conclude(ready, header, answer, begun) >= LONG_BYTES || start.elapsed() >= LONG_TIME
    }

    /// Prepares the answer to a request that was first carried out at the time `begun`, or keeps it for later. Returns the bytes of payload it moved.
    fn conclude(&mut self, ready: Ready, mut header: RingHeader, answer: Answer, begun: Instant) -> u32 {
        let Ready {
            index,
            since,
            done,
            fetched,
            ..
        } = ready;
        let entry = header.entry();
        let out = match answer {
            Answer::Due(out) => out,
            // Requests that want no answer come by the device. If one came here, its entry would have to go back all the same.
            Answer::None => OutHeader {
                len: OUT_HEADER_BYTES,
                error: 0,
                unique: entry.commit_id,
            },
            Answer::Later(why) => {
                let ready = |done| Ready {
                    since: Some(begun),
                    done,
                    ..ready
                };
                match why {
                    Later::Step(so_far) => self
                        .going
                        .push(user_of(&header.request()), ready(so_far), since.is_none()),
                    Later::Fetch => self.fetch(Ready {
                        fetched: fetched + 1,
                        ..ready(done)
                    }),
                    Later::Room => {
                        self.waited.get_or_insert_with(Instant::now);
                        self.waiting.push(ready(done));
                    }
                    Later::Disk(way) => self.send_aside(ready(done), header, way),
                }
                return 0;
            }
        };
        self.responder
            .counters
            .count_time(header.request().opcode, begun.elapsed());
        let payload_bytes = out.len - OUT_HEADER_BYTES;
        header.answer(out, payload_bytes);
        self.buffers.set_header(index, &header);
        self.buffers.give(index);
        self.push(&command::commit(self.cpu, entry.commit_id, index as u64));
        payload_bytes.max(entry.payload_sz)
    }

    /// Reads what a request asks for; it is carried out again then.
    fn fetch(&mut self, ready: Ready) {
        let fetches = self.responder.fetches.take();
        let reads: Vec<Reading> = fetches.into_iter().map(Reading::new).collect();
        let place = self.fetching.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| {
            self.fetching.push(None);
            self.fetching.len() - 1
        });
        for (nth, reading) in reads.iter().enumerate() {
            let transfer = reading.fetch.transfer();
            let pieces = u32::try_from(reading.pieces.len()).expect("there are at most as many pieces as frames");
            let read = opcode::Readv::new(types::Fd(transfer.descriptor), reading.pieces.as_ptr(), pieces);
            let entry = read.offset(transfer.offset).build();
            let what = FETCH | (place as u64) << 16 | nth as u64;
            self.push(&entry.user_data(what).into());
        }
        self.fetching[place] = Some(Fetching {
            ready,
            left: reads.len(),
            reads: reads.into_iter().map(Some).collect(),
        });
    }

    /// Ends a read; when it was the last one of a request, that is carried out again.
    fn end_read(&mut self, what: u64, result: i32) {
        let place = usize::try_from((what & !FETCH) >> 16).expect("the number of requests fits a usize");
        let nth = usize::try_from(what & 0xffff).expect("a masked 16-bit number fits a usize");
        let Some(fetching) = self.fetching.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        let Some(reading) = fetching.reads[nth].take() else {
            return;
        };
        let bytes: usize = reading.pieces.iter().map(|piece| piece.iov_len).sum();
        // One that is short is read once more, by the request itself, which tells the error.
        let is_read = usize::try_from(result).is_ok_and(|read| read == bytes);
        self.responder.service.fs.end_fetch(reading.fetch, is_read);
        fetching.left -= 1;
        if !is_read {
            fetching.ready.fetched = FETCHES_MAX;
        }
        if fetching.left == 0 {
            self.ready
                .extend(self.fetching[place].take().map(|fetching| fetching.ready));
        }
    }

    /// Has another thread carry out the request of an entry.
    fn send_aside(&mut self, ready: Ready, header: RingHeader, way: Way) {
        let desk = self.aside.as_ref().expect("durable pools have a desk");
        let parked = Parked {
            ready,
            header,
            lent: self.buffers.lend(ready.index),
            origin: Origin::Ring {
                cpu: self.cpu,
                is_aside: true,
                waited: ready.since.map(|since| since.elapsed()),
                is_new: false,
                done: ready.done,
                may_fetch: false,
                is_reading: false,
            },
            back: Arc::clone(&desk.back),
        };
        desk.aside.send(parked, way);
    }

    /// Prepares the answers of requests that others have carried out.
    fn take_answered(&mut self) {
        let Some(desk) = &mut self.aside else { return };
        let mut answered = std::mem::take(&mut desk.answered);
        desk.back.take(&mut answered);
        for (parked, answer) in answered.drain(..) {
            self.buffers.return_lent(parked.lent);
            let begun = parked.ready.since.expect("it was carried out before");
            self.conclude(parked.ready, parked.header, answer, begun);
        }
        if let Some(desk) = &mut self.aside {
            desk.answered = answered;
        }
    }

    fn push(&mut self, entry: &Entry128) {
        // It has room for every entry and the bell; but reads of disks are more.
        while self.ring.0.submission().is_full() {
            if settled(self.ring.0.submit()).is_err() {
                break;
            }
        }
        let mut queue = self.ring.0.submission();
        // SAFETY: the buffers behind the entry stay mapped for as long as the ring exists, and nothing touches them until the
        // command completes (`Buffers::give`); what a registration points to lives as long
        // (`Buffers::vectors`). A read of a disk names frames that are nobody else's, a list and a descriptor, all kept until it completes (`Reading`).
        let pushed = unsafe { queue.push(entry) };
        pushed.expect("submitting made room in the queue");
    }

    /// Sends the answers that are prepared and waits for requests; for a moment when some wait for room, and not at all when some
    /// go on or are there.
    fn wait(&mut self) -> io::Result<()> {
        // A wait that is over at once may still be a change of context.
        if !self.ready.is_empty() && !self.ring.0.submission().taskrun() {
            return settled(self.ring.0.submit());
        }
        let is_going = !(self.going.is_empty() && self.ready.is_empty());
        let submitter = self.ring.0.submitter();
        let waited = if is_going || !self.waiting.is_empty() {
            let moment = types::Timespec::from(if is_going { Duration::ZERO } else { ROOM_WAIT });
            submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&moment))
        } else if self.spin.is_zero() {
            submitter.submit_and_wait(1)
        } else {
            return self.spin();
        };
        settled(waited)
    }

    /// Waits like [`Self::wait`], but looks for requests for a while before the thread sleeps.
    fn spin(&mut self) -> io::Result<()> {
        let start = Instant::now();
        settled(self.ring.0.submit())?;
        while start.elapsed() < self.spin {
            if self.ring.0.submission().taskrun() {
                return settled(self.ring.0.submit_and_wait(1));
            }
            if !self.ring.0.completion().is_empty() {
                return Ok(());
            }
            // The caller runs on this very CPU.
            std::thread::yield_now();
        }
        settled(self.ring.0.submit_and_wait(1))
    }

    /// Takes what has completed: requests, or entries that get no more.
    fn take_completions(&mut self) -> io::Result<()> {
        let (mut rang, mut is_deaf, mut failed) = (false, false, None);
        let mut read = std::mem::take(&mut self.read);
        for completion in self.ring.0.completion() {
            if completion.user_data() == BELL {
                rang = true;
                is_deaf = !cqueue::more(completion.flags());
                continue;
            }
            if completion.user_data() & FETCH != 0 {
                read.push((completion.user_data(), completion.result()));
                continue;
            }
            let index = usize::try_from(completion.user_data()).expect("user_data is the index given at submission");
            self.buffers.take_back(index);
            if completion.result() >= 0 {
                self.ready.push(Ready {
                    index,
                    user: user_of(&self.buffers.header(index).request()),
                    since: None,
                    done: 0,
                    fetched: 0,
                });
                continue;
            }
            self.live -= 1;
            match -completion.result() {
                // Aborted while it was answered.
                libc::ENOENT => tracing::debug!(cpu = self.cpu.0, "an answer came to no request"),
                // Unmounted or aborted.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => {}
                errno => _ = failed.get_or_insert(errno),
            }
        }
        // Others wait for these bytes, also when an entry has failed.
        for (what, result) in read.drain(..) {
            self.end_read(what, result);
        }
        self.read = read;
        if rang {
            self.take_answered();
        }
        if is_deaf {
            self.listen();
        }
        failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    /// Reading ahead is the one thing a caller does not wait for: it copies what came before meanwhile. On the caller's CPU the
    /// two would take turns. So after a row of long ones the thread may use the other CPUs of the node, where the scheduler
    /// finds an idle one, until anything else is asked for: whoever waits is served fastest on his own CPU.
    fn choose_cpu(&mut self, header: &RingHeader) {
        let roamed = self.roams();
        self.long_reads = match header.read_ahead_bytes() {
            Some(LONG_BYTES..) => self.long_reads.saturating_add(1),
            _ => 0,
        };
        if self.roams() == roamed {
            return;
        }
        if roamed {
            self.stay_on_cpu();
        } else if let Err(error) = self.responder.service.host.pin_near_cpu(self.cpu) {
            tracing::debug!(%error, cpu = self.cpu.0, "a ring's thread stays where it is");
        }
    }

    fn roams(&self) -> bool {
        self.long_reads >= LONG_READS
    }

    /// The scheduler moves a pinned thread when its CPU goes offline, and forgets where it was pinned. Requests come to this
    /// queue only when its CPU is online.
    fn check_cpu(&mut self) {
        if self.roams() || self.responder.service.host.current_cpu() == self.cpu {
            self.astray = None;
            return;
        }
        if self.astray.is_none_or(|tried| tried.elapsed() >= ASTRAY_PAUSE) {
            self.stay_on_cpu();
            self.astray = Some(Instant::now());
        }
    }

    /// Keeps the kernel's threads that carry out what blocks for this thread (io-wq), such as reads of files, on the CPU's node. The kernel notes it with
    /// the thread, once that has submitted.
    fn keep_workers_near(&self) {
        let host = &self.responder.service.host;
        let kept = host.pin_near_cpu(self.cpu).and_then(|()| {
            // SAFETY: a set of bits, of which none is set.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: the set is writable; 0 names the calling thread.
            let found = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
            if found < 0 {
                return Err(io::Error::last_os_error());
            }
            self.ring.0.submitter().register_iowq_aff(&set)
        });
        if let Err(error) = kept {
            tracing::debug!(%error, cpu = self.cpu.0, "the kernel's helpers of a ring run on any node");
        }
        self.stay_on_cpu();
    }

    fn stay_on_cpu(&self) {
        if let Err(error) = self.responder.service.host.pin_to_cpu(self.cpu) {
            tracing::debug!(%error, cpu = self.cpu.0, "a ring's thread runs elsewhere: its CPU is offline or not allowed");
        }
    }
}

/// Goes on after a signal, when the moment is over, and when the kernel has no memory for it just now: what was not submitted
/// then goes with the next call.
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
