//! A bare loop of memcpy: the same copies as a device in memory makes, at the same random places, with nothing around them. No floor: a
//! device that knows its next requests has the processor fetch them meanwhile.

use super::contestants::Case;
use super::load::{Places, together};
use crate::error::Error;
use crate::populated::memory;
use memmap2::MmapMut;
use std::sync::{Mutex, PoisonError};

/// Size of the device that all cores share, larger than any cache.
pub(super) const DEVICE_BYTES: u64 = 256 << 20;
pub(super) const BUFFER_BYTES: u64 = 16 << 20;

/// Memory for each core.
#[derive(Debug)]
pub(super) struct Memcpy {
    device: MmapMut,
    buffers: Vec<Mutex<MmapMut>>,
}

impl Memcpy {
    /// Maps and touches it.
    pub(super) fn new(case: &Case) -> Result<Self, Error> {
        Ok(Self {
            device: memory(DEVICE_BYTES)?,
            buffers: (0..case.cores)
                .map(|_| memory(BUFFER_BYTES).map(Mutex::new))
                .collect::<Result<_, _>>()?,
        })
    }

    /// M copies per second of all cores.
    pub(super) fn run(&mut self, case: &Case, cpus: &[usize], divisor: u64) -> Result<f64, Error> {
        let load = case.load(divisor);
        let bytes = load.bytes as usize;
        let (device, buffers) = (&self.device, &self.buffers);
        together(cpus, |index| {
            move |_| {
                let mut places = Places::new(DEVICE_BYTES, load.bytes, index as u64);
                let mut buffers = buffers[index].lock().unwrap_or_else(PoisonError::into_inner);
                let requests = usize::try_from(load.requests).expect("addresses have 64 bits");
                for to in load.buffers(0).into_iter().cycle().take(requests) {
                    let from = usize::try_from(places.next()).expect("a place in memory");
                    let to = usize::try_from(to).expect("a place in memory");
                    buffers[to..to + bytes].copy_from_slice(&device[from..from + bytes]);
                }
                load.requests
            }
        })
    }
}
