//! A hardware queue of a file: requests become entries of a ring, results become outcomes.
//!
//! Invariants: a tag is under way from when its entry is pushed until its result is taken out; vectors are used again only
//! when the kernel has read all of them; a ring that the kernel does not serve any more is closed, and with it all that was
//! under way ends with [`Errno::NO_DEVICE`].

use super::target::Target;
use crate::driver::ring::{CHUNK_BYTES, FILE, OWN_FILE, Ring};
use crate::driver::{Arena, EFAULT};
use homenode_engine::blk::{Done, DriverQueue, Errno, Late, Limits, Operation, Outcome, Slots, Tag};
use io_uring::types::FsyncFlags;
use io_uring::{opcode, squeue};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A hardware queue.
#[derive(Debug)]
pub struct UringQueue {
    /// For data, and, last, for all else: polled rings take data only. None once they are closed.
    rings: Vec<Ring>,
    /// User data of each tag's entry, by tag; 0 when no request of the tag is under way.
    pushed: Vec<u64>,
    /// Requests pushed ever.
    sequence: u64,
    vectors: Vectors,
    limits: Limits,
    // Behind the rings: these are closed first.
    target: Arc<Target>,
    buffers: Arc<Arena>,
}

/// Where the segments of pushed requests are.
#[derive(Debug)]
struct Vectors(Vec<libc::iovec>);

// SAFETY: addresses of an arena's bytes, the same for every thread; nobody reads or writes through them but the kernel.
unsafe impl Send for Vectors {}

/// User data of the entries of cancellations.
const CANCELLATION: u64 = 0;
/// Bits of a tag in what its entry is pushed with; above is the sequence, which begins with 1.
const TAG_BITS: u32 = 16;

impl UringQueue {
    pub(super) fn new(target: Arc<Target>, buffers: Arc<Arena>, limits: Limits, is_polled: bool) -> io::Result<Self> {
        // The kernel tells each open file once that bytes could not be written.
        let own = target.reopened()?;
        let ring = |is_polled| Ring::new(limits.depth, [&target.file, &own], &buffers, is_polled);
        let mut rings = vec![ring(is_polled)?];
        if is_polled {
            rings.push(ring(false)?);
        }
        let depth = usize::from(limits.depth);
        Ok(Self {
            rings,
            pushed: Vec::new(),
            sequence: 0,
            vectors: Vectors(Vec::with_capacity(depth * usize::from(limits.segments_max))),
            limits,
            target,
            buffers,
        })
    }

    /// Pushes the entry of a request, or finishes it with what is wrong with it.
    fn start(&mut self, tag: Tag, slots: &Slots, done: &mut Done) {
        let operation = slots.operation(tag);
        let index = self.ring_of(operation);
        let pushed = match self.rings.get(index) {
            Some(ring) => {
                let has_buffers = ring.has_buffers;
                self.entry(operation, tag, slots, has_buffers)
            }
            None => Err(Errno::NO_DEVICE),
        };
        let pushed = pushed.and_then(|entry| {
            self.sequence += 1;
            let name = self.sequence << TAG_BITS | u64::from(tag.0);
            // SAFETY: its data is in the arena, which outlives the rings, as do the vectors; these stay as they are until the
            // ring is clear (see `queue_batch`).
            let has_room = unsafe { self.rings[index].push(&entry.user_data(name)) };
            self.pushed[usize::from(tag.0)] = name;
            // Cancellations may have taken the room.
            if has_room { Ok(()) } else { Err(Errno::AGAIN) }
        });
        if let Err(errno) = pushed {
            self.pushed[usize::from(tag.0)] = 0;
            done.push(tag, Err(errno));
        }
    }

    fn entry(
        &mut self,
        operation: Operation,
        tag: Tag,
        slots: &Slots,
        has_buffers: bool,
    ) -> Result<squeue::Entry, Errno> {
        let offset = slots.offset(tag);
        let mode = match operation {
            Operation::Read | Operation::Write => return self.transfer(operation, tag, slots, has_buffers),
            Operation::Flush => return Ok(opcode::Fsync::new(OWN_FILE).flags(FsyncFlags::DATASYNC).build()),
            Operation::Discard => self.target.discard,
            Operation::WriteZeroes => self.target.zero,
        };
        let mode = mode.ok_or(Errno::NOT_SUPPORTED)?.bits().cast_signed();
        let entry = opcode::Fallocate::new(FILE, u64::from(slots.bytes(tag)));
        Ok(entry.offset(offset).mode(mode).build())
    }

    #[inline]
    fn transfer(
        &mut self,
        operation: Operation,
        tag: Tag,
        slots: &Slots,
        has_buffers: bool,
    ) -> Result<squeue::Entry, Errno> {
        let offset = slots.offset(tag);
        let is_write = operation == Operation::Write;
        let (file, flags) = if is_write && slots.is_forced(tag) {
            (OWN_FILE, libc::RWF_DSYNC)
        } else {
            (FILE, 0)
        };
        let vectors = &mut self.vectors.0;
        let (first, mut place) = (vectors.len(), 0);
        for segment in slots.segments(tag) {
            place = segment.buffer;
            let bytes = segment.bytes as usize;
            let Some(start) = self.buffers.range(segment.buffer, bytes) else {
                vectors.truncate(first);
                return Err(EFAULT);
            };
            vectors.push(libc::iovec {
                iov_base: start.cast(),
                iov_len: bytes,
            });
        }
        let all = &vectors[first..];
        if let ([only], true) = (all, has_buffers)
            && let Some(chunk) = chunk(place, only.iov_len)
        {
            let (start, bytes) = (only.iov_base.cast::<u8>(), slots.bytes(tag));
            vectors.truncate(first);
            return Ok(if is_write {
                let entry = opcode::WriteFixed::new(file, start, bytes, chunk);
                entry.offset(offset).rw_flags(flags).build()
            } else {
                opcode::ReadFixed::new(FILE, start, bytes, chunk).offset(offset).build()
            });
        }
        let count = u32::try_from(all.len()).expect("at most segments_max");
        Ok(if is_write {
            let entry = opcode::Writev::new(file, all.as_ptr(), count);
            entry.offset(offset).rw_flags(flags).build()
        } else {
            opcode::Readv::new(FILE, all.as_ptr(), count).offset(offset).build()
        })
    }

    /// Which ring takes it.
    fn ring_of(&self, operation: Operation) -> usize {
        if operation.has_data() {
            0
        } else {
            self.rings.len().saturating_sub(1)
        }
    }

    /// Lets the kernel take what was pushed.
    fn enter(&mut self) {
        let entered = self
            .rings
            .iter_mut()
            .try_for_each(|ring| if ring.is_clear() { Ok(()) } else { ring.enter() });
        if entered.is_err() {
            self.close();
        }
    }

    /// Ends the requests that were under way when the rings were closed, with [`Errno::NO_DEVICE`].
    #[cold]
    fn give_up(&mut self, done: &mut Done) {
        for (tag, pushed) in (0..).map(Tag).zip(&mut self.pushed) {
            if std::mem::take(pushed) != 0 {
                done.push(tag, Err(Errno::NO_DEVICE));
            }
        }
    }

    /// The kernel serves the rings no more, or is to do so.
    fn close(&mut self) {
        self.rings.drain(..).for_each(Ring::close);
    }
}

impl DriverQueue for UringQueue {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        // Once: the number of tags does not change.
        self.pushed.resize(usize::from(slots.tags()), 0);
        self.enter();
        if !self.rings.iter_mut().all(Ring::is_clear) {
            // The kernel has not taken what it was given before: it has no memory for more.
            return 0;
        }
        self.vectors.0.clear();
        for tag in batch {
            self.start(*tag, slots, done);
        }
        self.enter();
        batch.len()
    }

    fn poll(&mut self, slots: &mut Slots, _now: u64, done: &mut Done) {
        let mut is_served = true;
        for ring in &mut self.rings {
            let pushed = &mut self.pushed;
            let taken = ring.take(|name, result| {
                let tag = Tag((name & ((1 << TAG_BITS) - 1)) as u16);
                if name != CANCELLATION {
                    pushed[usize::from(tag.0)] = 0;
                    let mut outcome = outcome(result, tag, slots, self.limits.block_bytes);
                    if let Some(has_lost) = &self.target.has_lost
                        && (slots.operation(tag) == Operation::Flush || slots.is_forced(tag))
                    {
                        // Of another queue, too, whose error came first. Relaxed: this queue's own file tells it by itself.
                        if result < 0 && result != -libc::ECANCELED {
                            has_lost.store(true, Ordering::Relaxed);
                        } else if has_lost.load(Ordering::Relaxed) {
                            outcome = Err(Errno::IO);
                        }
                    }
                    done.push(tag, outcome);
                }
            });
            is_served &= taken.is_ok();
        }
        if !is_served {
            self.close();
        }
        if self.rings.is_empty() {
            self.give_up(done);
        }
    }

    fn timeout(&mut self, tag: Tag, slots: &mut Slots) -> Late {
        let name = self.pushed.get(usize::from(tag.0)).copied().unwrap_or(0);
        let index = self.ring_of(slots.operation(tag));
        if name != 0
            && let Some(ring) = self.rings.get_mut(index)
        {
            let entry = opcode::AsyncCancel::new(name).build().user_data(CANCELLATION);
            // Without room it is asked about again.
            // SAFETY: a cancellation names no memory.
            let _ = unsafe { ring.push(&entry) };
            self.enter();
        }
        Late::Wait
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        self.close();
    }
}

/// The registered buffer that has all these bytes.
fn chunk(place: u64, bytes: usize) -> Option<u16> {
    let (first, last) = (
        place / CHUNK_BYTES as u64,
        (place + bytes as u64).saturating_sub(1) / CHUNK_BYTES as u64,
    );
    u16::try_from(first).ok().filter(|_| first == last)
}

/// Returns the outcome of a request from the kernel's result.
fn outcome(result: i32, tag: Tag, slots: &Slots, block_bytes: u32) -> Outcome {
    match u32::try_from(result) {
        // A file may end within a block.
        Ok(bytes) if slots.operation(tag).has_data() => Ok(bytes & !(block_bytes - 1)),
        Ok(_) => Ok(slots.bytes(tag)),
        Err(_) if result == -libc::ECANCELED => Err(Errno::TIMED_OUT),
        Err(_) => Err(Errno(-result)),
    }
}
