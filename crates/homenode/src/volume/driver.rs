//! A volume as a device of the block layer.
//!
//! Copies each request at once, except reads of blocks that are only on a disk. Such a read keeps its tag until its blocks are cached, whoever reads them;
//! other requests go on. If the blocks do not come that way (no frame is free for some milliseconds, blocks are taken away all the time), the
//! thread waits, as it does for partial writes of uncached blocks, writes without a free frame, discards, zeros and flushes.
//!
//! After a read that failed, the request is read block by block: with the block that fails alone it has failed.
//!
//! Invariant: the thread finishes its own reads before it waits, because another thread may wait for them.
//!
//! Cost: data is copied once, between the request's memory and the volume's blocks. Where there are no blocks yet (a first write), or
//! they are being taken away, it goes through a stage of 64 KiB, which stays in the core's cache. A discard waits for copies of other threads that are under way in the volume. The node of
//! the thread that runs the hardware queue is the asking node.

use super::Volume;
use crate::blk::{Arena, Done, Driver, DriverQueue, Errno, Late, Limits, Operation, Outcome, Slots, Tag};
use crate::{Error, MemberId, NodeId};
use homenode_engine::cache::Cached;
use homenode_engine::fs::{Asking, Stretch};
use homenode_linux::clock::CoarseClock;
use homenode_linux::cpu::current_cpu;
use homenode_linux::driver::{Came, EFAULT, FrameReads};
use homenode_linux::memory::NodeMemory;
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const STAGE_BYTES: usize = 64 << 10;
/// Bytes that are copied before others can take blocks of the volume away.
const STEP_BYTES: usize = 1 << 20;
/// Times that a read looks in vain for its next bytes in the cache, with nobody reading them, before it waits for them: some milliseconds.
const TRIES_MAX: u32 = 50;
/// Looks in short pauses while others read.
const LOOKS_MAX: u32 = 50;

/// A volume that is attached: a device for [`crate::blk::Device`]. While this or one of its queues is there, the volume keeps its
/// size and cannot be removed, or attached again.
///
/// A request that finds the pool full fails with [`Errno::NO_SPACE`]; others go on.
#[derive(Clone, Debug)]
pub struct VolumeDriver {
    volume: Arc<Attached>,
    buffers: Arc<Arena>,
    limits: Limits,
    homes: Box<[Option<NodeId>]>,
}

/// Detaches when dropped.
#[derive(Debug)]
pub(super) struct Attached(Volume);

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.pool.fs.detach_volume(&self.0.volume);
    }
}

impl VolumeDriver {
    pub(super) fn new(volume: Attached, buffers: Arc<Arena>, queues: &[Option<NodeId>]) -> Self {
        let limits = Limits {
            // Whole runs of 2 MiB are discarded at once.
            transfer_bytes_max: 64 << 20,
            can_discard: true,
            can_zero: true,
            // In memory the bytes are where they stay.
            has_cache: volume.0.pool.fs.is_durable(),
            ..Limits::of_bytes(volume.0.size_bytes())
        };
        Self {
            volume: Arc::new(volume),
            buffers,
            limits,
            homes: queues.into(),
        }
    }
}

impl Volume {
    /// Attaches it: a device with a hardware queue for each of `queues`, for requests that name memory of `buffers`.
    ///
    /// # Errors
    /// EBUSY when it is attached already, ENOENT when it is removed.
    pub fn attach(&self, buffers: Arc<Arena>, queues: &[Option<NodeId>]) -> Result<VolumeDriver, Error> {
        Ok(VolumeDriver::new(self.hold()?, buffers, queues))
    }

    /// Keeps it as it is.
    pub(super) fn hold(&self) -> Result<Attached, Error> {
        let attached = self.pool.fs.attach_volume(&self.volume);
        attached.map_err(|source| self.failed("attach", source))?;
        Ok(Attached(self.clone()))
    }
}

impl Driver for VolumeDriver {
    type Queue = VolumeQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        self.homes.to_vec()
    }

    fn queue(&self, _index: usize) -> io::Result<VolumeQueue> {
        Ok(VolumeQueue {
            volume: Arc::clone(&self.volume),
            buffers: Arc::clone(&self.buffers),
            stage: Vec::new(),
            reads: Reads::Unmade,
            going: Vec::new(),
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct VolumeQueue {
    // Dropped first.
    reads: Reads,
    volume: Arc<Attached>,
    buffers: Arc<Arena>,
    /// Made with the first data that needs it, by the thread that then uses it: so it lies on that thread's node.
    stage: Vec<u8>,
    /// Reads that wait for blocks.
    going: Vec<Going>,
}

/// The way to disks.
#[derive(Debug)]
enum Reads {
    /// Made when it is needed, as the stage.
    Unmade,
    Made(Box<FrameReads<Cached<NodeMemory>, CoarseClock>>),
    /// There are no disks, or the kernel makes no ring.
    None,
}

/// A read that is carried out bit by bit.
#[derive(Clone, Copy, Debug)]
struct Going {
    tag: Tag,
    /// Bytes from its start that it has.
    done: u64,
    /// Times that it looked for the next ones while nobody read them, and in all.
    tries: u32,
    looks: u32,
    /// Disk whose read for it has failed just now.
    failed: Option<MemberId>,
    /// It is read block by block, after a failure.
    is_by_block: bool,
    /// Reads of disks under way for it.
    reads: usize,
    /// Whether it waits for a pause to be over.
    is_pausing: bool,
}

impl Going {
    fn note(all: &mut [Self], came: Came) {
        match came {
            Came::Read(tag, failed) => {
                let going = Self::of_ended_read(all, tag);
                going.failed = going.failed.or(failed);
            }
            // The queue's own thread reads it.
            Came::Refused(tag) => Self::of_ended_read(all, tag).tries = TRIES_MAX,
            Came::Pause => all.iter_mut().for_each(|going| going.is_pausing = false),
        }
    }

    fn of_ended_read(all: &mut [Self], tag: Tag) -> &mut Self {
        let of_tag = all.iter_mut().find(|going| going.tag == tag);
        let going = of_tag.expect("a request keeps its tag while reads are under way for it");
        going.reads -= 1;
        going
    }

    fn is_ready(&self) -> bool {
        self.reads == 0 && !self.is_pausing
    }
}

impl DriverQueue for VolumeQueue {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        for tag in batch {
            if slots.operation(*tag) == Operation::Read {
                let going = Going {
                    tag: *tag,
                    done: 0,
                    tries: 0,
                    looks: 0,
                    failed: None,
                    is_by_block: false,
                    reads: 0,
                    is_pausing: false,
                };
                self.go_on(going, slots, done);
            } else {
                done.push(*tag, self.carry_out(*tag, slots));
            }
        }
        self.enter();
        batch.len()
    }

    fn poll(&mut self, slots: &mut Slots, _now: u64, done: &mut Done) {
        if self.going.is_empty() {
            return;
        }
        if let Reads::Made(reads) = &mut self.reads {
            reads.take(|came| Going::note(&mut self.going, came));
        }
        while let Some(ready) = self.going.iter().position(Going::is_ready) {
            let going = self.going.swap_remove(ready);
            self.go_on(going, slots, done);
        }
        self.enter();
    }

    fn bell(&self) -> Option<i32> {
        match &self.reads {
            Reads::Made(reads) if !self.going.iter().any(Going::is_ready) => reads.bell(),
            _ => None,
        }
    }

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}

impl VolumeQueue {
    fn carry_out(&mut self, tag: Tag, slots: &Slots) -> Outcome {
        let (offset, bytes) = (slots.offset(tag), slots.bytes(tag));
        if !matches!(slots.operation(tag), Operation::Read | Operation::Write) {
            self.end_reads();
        }
        let volume = &self.volume.0;
        match slots.operation(tag) {
            Operation::Read => unreachable!("reads are carried out in steps elsewhere"),
            Operation::Write => self.copy(tag, slots, Self::write)?,
            Operation::Discard => volume.discard(offset, u64::from(bytes)).map_err(errno)?,
            Operation::WriteZeroes => volume.zero(offset, u64::from(bytes)).map_err(errno)?,
            Operation::Flush => volume.sync().map_err(errno)?,
        }
        Ok(bytes)
    }

    /// Calls `copy` with offset, buffer and bytes of one step after the other; it returns the bytes it did.
    fn copy(
        &mut self,
        tag: Tag,
        slots: &Slots,
        copy: fn(&mut Self, u64, u64, usize) -> Result<usize, Error>,
    ) -> Result<(), Errno> {
        let mut offset = slots.offset(tag);
        for segment in slots.segments(tag) {
            let end = segment.buffer.checked_add(u64::from(segment.bytes));
            let end = end.filter(|end| *end <= self.buffers.bytes()).ok_or(EFAULT)?;
            let mut buffer = segment.buffer;
            while buffer < end {
                let bytes = usize::try_from(end - buffer).map_or(STEP_BYTES, |left| left.min(STEP_BYTES));
                let done = copy(self, offset, buffer, bytes).map_err(errno)?;
                offset += done as u64;
                buffer += done as u64;
            }
        }
        Ok(())
    }

    /// Goes on with a read until it is finished or must wait for a disk.
    fn go_on(&mut self, mut going: Going, slots: &Slots, done: &mut Done) {
        match self.read_on(&mut going, slots) {
            Some(outcome) => done.push(going.tag, outcome),
            None => self.going.push(going),
        }
    }

    fn read_on(&mut self, going: &mut Going, slots: &Slots) -> Option<Outcome> {
        let tag = going.tag;
        let mut first = 0;
        for segment in slots.segments(tag) {
            let end = segment.buffer.checked_add(u64::from(segment.bytes));
            let Some(end) = end.filter(|end| *end <= self.buffers.bytes()) else {
                return Some(Err(EFAULT));
            };
            while going.done < first + u64::from(segment.bytes) {
                let (offset, buffer) = (slots.offset(tag) + going.done, segment.buffer + (going.done - first));
                let bytes = usize::try_from(end - buffer).map_or(STEP_BYTES, |left| left.min(STEP_BYTES));
                let mut read = self.read(offset, buffer, bytes);
                if read == 0 {
                    let failed = going.failed.take();
                    if let (Some(member), true, Reads::Made(reads)) = (failed, going.is_by_block, &self.reads)
                        && reads.bell().is_some()
                    {
                        self.volume.0.pool.fs.pool().memory().below().note_error(member);
                        return Some(Err(Errno::IO));
                    }
                    going.is_by_block |= failed.is_some();
                    let wanted = if going.is_by_block { 1 } else { bytes as u64 };
                    if going.tries < TRIES_MAX && self.begin_reads(going, offset..offset + wanted) {
                        return None;
                    }
                    match self.read_waiting(offset, buffer, bytes) {
                        Ok(bytes) => read = bytes,
                        Err(error) => return Some(Err(errno(error))),
                    }
                }
                going.done += read as u64;
                (going.tries, going.looks, going.failed) = (0, 0, None);
            }
            first += u64::from(segment.bytes);
        }
        Some(Ok(slots.bytes(tag)))
    }

    /// Begins to read what is away of some bytes for a request, or has it pause where that is not possible now. False: it never is.
    fn begin_reads(&mut self, going: &mut Going, bytes: Range<u64>) -> bool {
        let volume = &self.volume.0;
        let fs = &volume.pool.fs;
        if matches!(self.reads, Reads::Unmade) {
            let made = fs.reads_disks().then(|| FrameReads::new(Arc::clone(fs)));
            self.reads = match made {
                Some(Ok(reads)) => Reads::Made(Box::new(reads)),
                Some(Err(error)) => {
                    tracing::debug!(%error, "reads of disks hold other requests up");
                    Reads::None
                }
                None => Reads::None,
            };
        }
        let Reads::Made(reads) = &mut self.reads else {
            return false;
        };
        let begin = |asking: &Asking<'_>| {
            let inode = volume.volume.inode();
            let begun = reads.begin(asking, inode, bytes.clone(), going.tag);
            Ok::<_, Infallible>((begun, begun > 0 || fs.is_coming(asking, inode, bytes.clone())))
        };
        let Ok((begun, is_coming)) = volume.pool.asking(begin);
        going.reads = begun;
        going.looks += 1;
        going.is_pausing = begun == 0 && reads.pause(going.looks > LOOKS_MAX);
        // Without a pause it looks at once.
        going.tries += u32::from(!is_coming || begun == 0 && !going.is_pausing);
        reads.bell().is_some()
    }

    /// Gives the kernel the reads that were begun.
    fn enter(&mut self) {
        if let Reads::Made(reads) = &mut self.reads
            && !self.going.is_empty()
        {
            reads.enter();
        }
    }

    /// Waits until no read of a disk is under way.
    fn end_reads(&mut self) {
        if let Reads::Made(reads) = &mut self.reads {
            reads.end_all(|came| Going::note(&mut self.going, came));
        }
    }

    /// Copies what is in the cache; 0 when the next byte is not.
    fn read(&self, offset: u64, buffer: u64, bytes: usize) -> usize {
        let (volume, buffers) = (&self.volume.0, &self.buffers);
        let copy = |memory: &Cached<NodeMemory>, stretch: Stretch| {
            let at = buffer + stretch.done as u64;
            match stretch.place {
                Some(place) => buffers.load(at, memory.below(), place, stretch.bytes),
                None => buffers.zero(at, stretch.bytes),
            }
        };
        let Some(slot) = volume.pool.current_slot() else {
            return 0;
        };
        let asking = (slot, current_cpu());
        let fs = &volume.pool.fs;
        fs.read_straight(asking, &volume.volume, offset, bytes, copy)
    }

    fn read_waiting(&mut self, offset: u64, buffer: u64, bytes: usize) -> Result<usize, Error> {
        self.end_reads();
        let stage = staged(&mut self.stage, bytes);
        self.volume.0.read_at(stage, offset)?;
        self.buffers.write(buffer, stage);
        Ok(stage.len())
    }

    fn write(&mut self, offset: u64, buffer: u64, bytes: usize) -> Result<usize, Error> {
        let (volume, buffers) = (&self.volume.0, &self.buffers);
        let copy = |memory: &Cached<NodeMemory>, stretch: Stretch| {
            let place = stretch.place.expect("only stretches with blocks are written in place");
            buffers.store(buffer + stretch.done as u64, memory.below(), place, stretch.bytes);
        };
        if let Some(slot) = volume.pool.current_slot() {
            let asking = (slot, current_cpu());
            let done = volume
                .pool
                .fs
                .write_straight(asking, &volume.volume, offset, bytes, copy);
            if done > 0 {
                return Ok(done);
            }
        }
        let stage = staged(&mut self.stage, bytes);
        self.buffers.read(buffer, stage);
        // Where it needs no disk, reads of one go on.
        let at_once = volume.pool.asking(|asking| {
            let asking = Asking {
                waits: false,
                ..*asking
            };
            volume.pool.fs.write_volume(&asking, &volume.volume, offset, stage)
        });
        match at_once {
            Ok(done) if done > 0 => return Ok(done),
            _ => {}
        }
        self.end_reads();
        let stage = staged(&mut self.stage, bytes);
        self.volume.0.write_all_at(stage, offset)?;
        Ok(stage.len())
    }
}

/// Returns the part of the stage that `bytes` bytes need, at most all of it.
fn staged(stage: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    stage.resize(STAGE_BYTES, 0);
    &mut stage[..bytes.min(STAGE_BYTES)]
}

fn errno(error: Error) -> Errno {
    Errno(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blk::{Core, Device, Options, Request};
    use crate::{Placement, Pool, PoolOptions, Size};
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    const BLOCK: usize = 4096;

    fn queue(volume: &Volume, buffers: &Arc<Arena>) -> VolumeQueue {
        let driver = volume.attach(Arc::clone(buffers), &[None]).unwrap();
        driver.queue(0).unwrap()
    }

    fn volume() -> Volume {
        let options = PoolOptions::new().size_per_node(Size::Bytes(8 << 20)).node(NodeId(0));
        let pool = Pool::create(&options).unwrap();
        pool.create_volume("v", 1 << 20, Placement::Local).unwrap()
    }

    #[test]
    fn placed_bytes_are_copied_once() {
        let (volume, buffers) = (volume(), Arena::new(1 << 20, None).unwrap());
        volume.write_all_at(&[7; 4 * BLOCK], 0).unwrap();
        let mut queue = queue(&volume, &buffers);
        assert_eq!(queue.read(512, 100, 2 * BLOCK), 2 * BLOCK);
        buffers.write(0, &[9; BLOCK]);
        assert_eq!(queue.write(512, 0, BLOCK).unwrap(), BLOCK);
        assert!(queue.stage.is_empty(), "the stage was used");
        let (mut read, mut written) = ([0; 2 * BLOCK], [0; 2 * BLOCK]);
        buffers.read(100, &mut read);
        // Its first bytes are overwritten above.
        assert!(read[BLOCK..].iter().all(|byte| *byte == 7));
        volume.read_at(&mut written, 0).unwrap();
        assert!(written[512..512 + BLOCK].iter().all(|byte| *byte == 9));
        assert!(
            written[..512]
                .iter()
                .chain(&written[512 + BLOCK..])
                .all(|byte| *byte == 7)
        );
    }

    #[test]
    fn blocks_and_holes_of_one_request_are_both_served() {
        let (volume, buffers) = (volume(), Arena::new(1 << 20, None).unwrap());
        // Blocks 1 and 3 are there.
        for block in [1, 3] {
            volume
                .write_all_at(&[block; BLOCK], u64::from(block) * BLOCK as u64)
                .unwrap();
        }
        let mut queue = queue(&volume, &buffers);
        let all = 5 * BLOCK;
        let mut found = vec![0; all];
        buffers.write(0, &vec![0xff; all]);
        assert_eq!(queue.read(0, 0, all), all);
        buffers.read(0, &mut found);
        for (block, bytes) in found.chunks_exact(BLOCK).enumerate() {
            let expected = if [1, 3].contains(&block) { block } else { 0 };
            assert!(bytes.iter().all(|byte| usize::from(*byte) == expected), "block {block}");
        }
        let pattern: Vec<u8> = (0..=250).cycle().take(all).collect();
        buffers.write(0, &pattern);
        let mut done = 0;
        while done < all {
            done += queue.write(done as u64, done as u64, all - done).unwrap();
        }
        volume.read_at(&mut found, 0).unwrap();
        assert!(found == pattern);
    }

    #[test]
    fn ranges_beyond_the_volume_are_errors() {
        let (volume, buffers) = (volume(), Arena::new(1 << 20, None).unwrap());
        let mut queue = queue(&volume, &buffers);
        let end = volume.size_bytes();
        assert_eq!(queue.read(end - 512, 0, BLOCK), 0);
        assert!(queue.read_waiting(end - 512, 0, BLOCK).is_err());
        assert!(queue.write(u64::MAX - 10, 0, BLOCK).is_err());
    }

    const BYTES: u64 = 16 << 20;

    /// A volume of a pool on a disk, with an empty cache, and the disk's file. Beside the target: /tmp may be a tmpfs, which has no page cache to be passed.
    fn on_disk() -> (Pool, Volume, tempfile::NamedTempFile) {
        let member = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        member.as_file().set_len(96 << 20).unwrap();
        let members = [member.path().to_owned()];
        let mut options = PoolOptions::new().cache(8 << 20);
        options.direct = true;
        let pool = Pool::create_on(&members, &options).unwrap();
        let volume = pool.create_volume("v", BYTES, Placement::Local).unwrap();
        volume
            .write_all_at(&vec![7; usize::try_from(BYTES).unwrap()], 0)
            .unwrap();
        drop(volume);
        pool.put_away().unwrap();
        drop(pool);
        let pool = Pool::open_on(&members, &options).unwrap();
        let volume = pool.volume("v").unwrap();
        (pool, volume, member)
    }

    fn core(volume: &Volume, buffers: &Arc<Arena>) -> Core<VolumeQueue> {
        let driver = volume.attach(Arc::clone(buffers), &[Some(NodeId(0))]).unwrap();
        let device = Device::new(&driver, &[NodeId(0)], |_, _| 1, Options::default()).unwrap();
        device.join(0).unwrap()
    }

    /// Runs until `count` requests have ended; their outcomes by user, and the longest turn.
    fn run(core: &mut Core<VolumeQueue>, count: usize) -> (BTreeMap<u64, Outcome>, Duration) {
        let (start, mut ended, mut longest) = (Instant::now(), BTreeMap::new(), Duration::ZERO);
        while ended.len() < count {
            assert!(start.elapsed() < Duration::from_secs(20), "it hangs with {ended:?}");
            let turn = Instant::now();
            core.run(0, |completion| {
                ended.insert(completion.user, completion.outcome);
            });
            longest = longest.max(turn.elapsed());
        }
        (ended, longest)
    }

    #[test]
    fn a_read_that_waits_for_anothers_read_holds_up_no_other_request() {
        const HELD_MS: u64 = 300;
        let (pool, volume, _member) = on_disk();
        let buffers = Arena::new(1 << 20, None).unwrap();
        let mut core = core(&volume, &buffers);
        core.submit(Request::read(0, 4096, 0).user(0)).unwrap();
        run(&mut core, 1);
        let held = 8 << 20;
        let inode = volume.volume.inode();
        let begin =
            |asking: &Asking<'_>| Ok::<_, Infallible>(volume.pool.fs.begin_fetches(asking, inode, held..held + 4096));
        let Ok(fetches) = pool.inner.asking(begin);
        assert_eq!(fetches.len(), 1, "it is away");
        std::thread::scope(|scope| {
            let fs = &volume.pool.fs;
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(HELD_MS));
                // Nobody has read it: the one who waits does then.
                fetches.into_iter().for_each(|fetch| fs.end_fetch(fetch, false));
            });
            core.submit(Request::read(held, 4096, 4096).user(1)).unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(HELD_MS / 2) {
                core.submit(Request::read(0, 4096, 0).user(2)).unwrap();
                let (ended, longest) = run(&mut core, 1);
                assert_eq!(ended.get(&2), Some(&Ok(4096)));
                assert!(longest < Duration::from_millis(HELD_MS / 3), "a turn took {longest:?}");
            }
            assert_eq!(run(&mut core, 1).0.get(&1), Some(&Ok(4096)));
        });
    }

    #[test]
    fn a_block_that_cannot_be_read_fails_its_request_alone_and_is_counted() {
        let (pool, volume, member) = on_disk();
        let buffers = Arena::new(4 << 20, None).unwrap();
        let mut core = core(&volume, &buffers);
        // Of a file that was cut off nothing comes from there on: half of the volume and more.
        member.as_file().set_len(24 << 20).unwrap();
        let errors = || pool.status().members[0].errors;
        assert_eq!(errors(), 0);
        let mut outcomes = BTreeMap::new();
        for at in (0..BYTES).step_by(512 << 10) {
            core.submit(Request::read(at, 512 << 10, 0).user(at)).unwrap();
            outcomes.extend(run(&mut core, 1).0);
        }
        let failed = outcomes.values().filter(|outcome| **outcome == Err(Errno::IO)).count();
        let good = outcomes.values().filter(|outcome| **outcome == Ok(512 << 10)).count();
        assert_eq!((failed + good, failed > 0, good > 0), (32, true, true), "{outcomes:?}");
        assert_eq!(errors(), failed as u64);
    }
}
