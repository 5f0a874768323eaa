//! A volume as a device of the block layer: what it takes is copied at once.
//!
//! Cost: data goes through a stage of 64 KiB, which stays in the core's cache, because neither the pool's bytes nor the
//! requests' may be referred to. A discard waits for copies of other threads that are under way in the volume. The node of
//! the thread that runs the hardware queue is the asking node.

use super::Volume;
use crate::blk::{Arena, Done, Driver, DriverQueue, Errno, Late, Limits, Operation, Outcome, Slots, Tag};
use crate::{Error, NodeId};
use homenode_linux::driver::EFAULT;
use std::io;
use std::sync::Arc;

const STAGE_BYTES: usize = 64 << 10;

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
        })
    }
}

/// A hardware queue of it.
#[derive(Debug)]
pub struct VolumeQueue {
    volume: Arc<Attached>,
    buffers: Arc<Arena>,
    /// Made with the first data, by the thread that then uses it: so it lies on that thread's node.
    stage: Vec<u8>,
}

impl DriverQueue for VolumeQueue {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        for tag in batch {
            done.push(*tag, self.carry_out(*tag, slots));
        }
        batch.len()
    }

    fn poll(&mut self, _slots: &mut Slots, _now: u64, _done: &mut Done) {}

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}

impl VolumeQueue {
    fn carry_out(&mut self, tag: Tag, slots: &Slots) -> Outcome {
        let (offset, bytes) = (slots.offset(tag), slots.bytes(tag));
        let volume = &self.volume.0;
        match slots.operation(tag) {
            Operation::Read => self.copy(tag, slots, Self::read)?,
            Operation::Write => self.copy(tag, slots, Self::write)?,
            Operation::Discard => volume.discard(offset, u64::from(bytes)).map_err(errno)?,
            Operation::WriteZeroes => volume.zero(offset, u64::from(bytes)).map_err(errno)?,
            // The pool's bytes are where they stay.
            Operation::Flush => {}
        }
        Ok(bytes)
    }

    /// Calls `copy` with offset, buffer and bytes of one stage after the other.
    fn copy(
        &mut self,
        tag: Tag,
        slots: &Slots,
        copy: fn(&mut Self, u64, u64, usize) -> Result<(), Error>,
    ) -> Result<(), Errno> {
        self.stage.resize(STAGE_BYTES, 0);
        let mut offset = slots.offset(tag);
        for segment in slots.segments(tag) {
            let end = segment.buffer.checked_add(u64::from(segment.bytes));
            let end = end.filter(|end| *end <= self.buffers.bytes()).ok_or(EFAULT)?;
            let mut buffer = segment.buffer;
            while buffer < end {
                let bytes = usize::try_from(end - buffer).map_or(STAGE_BYTES, |left| left.min(STAGE_BYTES));
                copy(self, offset, buffer, bytes).map_err(errno)?;
                offset += bytes as u64;
                buffer += bytes as u64;
            }
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, buffer: u64, bytes: usize) -> Result<(), Error> {
        let stage = &mut self.stage[..bytes];
        self.volume.0.read_at(stage, offset)?;
        self.buffers.write(buffer, stage);
        Ok(())
    }

    fn write(&mut self, offset: u64, buffer: u64, bytes: usize) -> Result<(), Error> {
        let stage = &mut self.stage[..bytes];
        self.buffers.read(buffer, stage);
        self.volume.0.write_all_at(stage, offset)
    }
}

fn errno(error: Error) -> Errno {
    Errno(error.errno())
}
