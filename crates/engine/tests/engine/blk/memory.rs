//! A device and its requests' memory in plain vectors: slow, and obvious.
//!
//! Its cache is lost when the power fails: only what was flushed, or written by force, is in `durable`.

use homenode_engine::NodeId;
use homenode_engine::blk::conformance::Buffers;
use homenode_engine::blk::{Done, Driver, DriverQueue, Errno, Late, Limits, Operation, Slots, Tag};
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    state: Arc<Mutex<State>>,
    limits: Limits,
    homes: Vec<Option<NodeId>>,
}

#[derive(Debug)]
struct State {
    device: Vec<u8>,
    durable: Vec<u8>,
    buffers: Vec<u8>,
    /// Requests that the driver was given, in order: operation, offset, bytes.
    calls: Vec<(Operation, u64, u32)>,
    /// Requests that the driver still takes; then it refuses.
    credit: usize,
    /// The next ones fail so.
    errors: Vec<Errno>,
    is_held: bool,
    /// More it does not do of one request.
    bytes_max: u32,
}

impl Memory {
    pub(crate) fn new(limits: Limits, homes: &[Option<NodeId>], buffer_bytes: usize) -> Self {
        let device = vec![0; usize::try_from(limits.device_bytes).unwrap()];
        let state = State {
            durable: device.clone(),
            device,
            buffers: vec![0; buffer_bytes],
            calls: Vec::new(),
            credit: usize::MAX,
            errors: Vec::new(),
            is_held: false,
            bytes_max: u32::MAX,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            limits,
            homes: homes.to_vec(),
        }
    }

    pub(crate) fn device(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.state.lock().device[offset..offset + bytes].to_vec()
    }

    pub(crate) fn durable(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.state.lock().durable[offset..offset + bytes].to_vec()
    }

    /// Takes the requests that the driver was given since the last call of this function.
    pub(crate) fn calls(&self) -> Vec<(Operation, u64, u32)> {
        std::mem::take(&mut self.state.lock().calls)
    }

    pub(crate) fn set_credit(&self, credit: usize) {
        self.state.lock().credit = credit;
    }

    /// The next requests fail so, the last one first.
    pub(crate) fn set_errors(&self, errors: &[Errno]) {
        self.state.lock().errors = errors.to_vec();
    }

    /// From now on it does a block of what it is asked for at most.
    pub(crate) fn do_little(&self) {
        self.state.lock().bytes_max = self.limits.block_bytes;
    }

    /// Whether what it has is not finished for now.
    pub(crate) fn hold(&self, is_held: bool) {
        self.state.lock().is_held = is_held;
    }
}

impl Buffers for Memory {
    fn bytes(&self) -> u64 {
        self.state.lock().buffers.len() as u64
    }

    fn fill(&self, buffer: u64, from: &[u8]) {
        let at = usize::try_from(buffer).unwrap();
        self.state.lock().buffers[at..at + from.len()].copy_from_slice(from);
    }

    fn copy(&self, buffer: u64, to: &mut [u8]) {
        let at = usize::try_from(buffer).unwrap();
        to.copy_from_slice(&self.state.lock().buffers[at..at + to.len()]);
    }
}

impl Driver for Memory {
    type Queue = MemoryQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn queue_homes(&self) -> Vec<Option<NodeId>> {
        self.homes.clone()
    }

    fn queue(&self, _index: usize) -> std::io::Result<MemoryQueue> {
        Ok(MemoryQueue {
            memory: self.clone(),
            taken: Vec::new(),
        })
    }
}

#[derive(Debug)]
pub(crate) struct MemoryQueue {
    memory: Memory,
    taken: Vec<(Tag, Result<u32, Errno>)>,
}

impl DriverQueue for MemoryQueue {
    fn queue_batch(&mut self, batch: &[Tag], slots: &mut Slots, _now: u64, done: &mut Done) -> usize {
        let mut state = self.memory.state.lock();
        let count = batch.len().min(state.credit);
        state.credit -= count;
        for tag in &batch[..count] {
            let outcome = match state.errors.pop() {
                Some(errno) => Err(errno),
                None => Ok(state.carry_out(*tag, slots)),
            };
            if state.is_held {
                self.taken.push((*tag, outcome));
            } else {
                done.push(*tag, outcome);
            }
        }
        count
    }

    fn poll(&mut self, _slots: &mut Slots, _now: u64, done: &mut Done) {
        if self.memory.state.lock().is_held {
            return;
        }
        for (tag, outcome) in self.taken.drain(..) {
            done.push(tag, outcome);
        }
    }

    fn timeout(&mut self, _tag: Tag, _slots: &mut Slots) -> Late {
        Late::Wait
    }
}

impl State {
    fn carry_out(&mut self, tag: Tag, slots: &Slots) -> u32 {
        let (operation, offset) = (slots.operation(tag), slots.offset(tag));
        let bytes = slots.bytes(tag).min(self.bytes_max);
        self.calls.push((operation, offset, bytes));
        let start = usize::try_from(offset).unwrap();
        let end = start + bytes as usize;
        let mut at = start;
        match operation {
            Operation::Flush => self.durable.copy_from_slice(&self.device),
            Operation::Discard | Operation::WriteZeroes => self.device[start..end].fill(0),
            Operation::Read | Operation::Write => {
                for segment in slots.segments(tag) {
                    let buffer = usize::try_from(segment.buffer).unwrap();
                    let bytes = (segment.bytes as usize).min(end - at);
                    let (memory, device) = (
                        &mut self.buffers[buffer..buffer + bytes],
                        &mut self.device[at..at + bytes],
                    );
                    match operation {
                        Operation::Read => memory.copy_from_slice(device),
                        _ => device.copy_from_slice(memory),
                    }
                    at += bytes;
                }
                assert_eq!(at, end);
            }
        }
        if slots.is_forced(tag) {
            self.durable[start..end].copy_from_slice(&self.device[start..end]);
        }
        bytes
    }
}
