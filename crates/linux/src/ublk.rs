//! Block devices of the kernel that this process serves, by its ublk driver: `/dev/ublkbN` over any device of the block layer.
//!
//! A queue for each CPU, as the kernel maps them, with a thread that is bound to it and data on its node: a request is taken, carried
//! out and answered on the CPU that asked. A request of the driver becomes a [`Request`](homenode_engine::blk::Request) of the same
//! thread's [`Core`](homenode_engine::blk::Core).
//!
//! Invariants: a device without its server ends with errors and waits for nobody, but for a lasting one, whose users wait for the next
//! server of the same volume; when one queue
//! ends, all do; nothing of a device that is not ours is touched, nor of one whose server lives. Cost: a system call for all that
//! is finished and all that comes meanwhile; the kernel copies data between its pages and our buffers.
//!
//! Source: the kernel's Documentation/block/ublk.rst.

mod abi;
mod bell;
mod control;
mod descriptors;
mod error;
mod lasting;
mod leftover;
mod mark;
mod queue;
mod record;
mod server;

pub use error::Error;
pub use lasting::{Lasting, lasting_devices};
pub use leftover::clear_leftovers;
pub use record::Origin;
pub use server::{Server, Setup, claim, end_by, end_disk};

use crate::cpu::present_cpus;
use crate::driver::Arena;
use abi::DeviceInfo;
use control::Control;
use homenode_engine::blk::Limits;
use homenode_engine::{CpuId, NodeId};
use server::Tenure;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONTROL_PATH: &str = "/dev/ublk-control";

/// Most memory for the data of all queues of a device together, unless they are so many that each has the least.
const BUFFERS_BYTES: u64 = 128 << 20;
/// Data of one request: at most, and what that is reduced to at most where there are many queues.
const IO_BYTES_MAX: u32 = 512 << 10;
const IO_BYTES_LEAST: u32 = 128 << 10;
/// Requests of a queue under way: at most, and what is given up data for.
const DEPTH_MAX: u64 = 64;
const DEPTH_LEAST: u64 = 16;

/// Path of a disk, without its number.
const DISK: &str = "/dev/ublkb";

fn disk_path(device: u32) -> PathBuf {
    format!("{DISK}{device}").into()
}

/// The number of a disk.
fn device_of(disk: &Path) -> Option<u32> {
    disk.to_str()?.strip_prefix(DISK)?.parse().ok()
}

fn file_path(device: u32) -> PathBuf {
    format!("/dev/ublkc{device}").into()
}

/// A device that the kernel knows and this process does not serve yet. A new one is seen by nobody, and goes when this is dropped; one that is
/// taken up goes on waiting then, unless an older driver has begun with it.
#[derive(Debug)]
pub struct Added {
    /// The driver's control device; `None` once a [`Server`] has it.
    control: Option<Control>,
    info: DeviceInfo,
    tenure: Tenure,
    /// The device's file: who has it open serves the device, or is about to. `None` while that is to be taken up.
    file: Option<File>,
    queue_cpus: Vec<Vec<CpuId>>,
    /// The volume that a lasting device is of.
    origin: Option<Origin>,
    /// For a device that had a server before.
    taken_up: Option<TakenUp>,
    /// Held until this is dropped: nobody ends the device while it is taken up.
    turn: Option<File>,
}

/// A device that had a server before.
#[derive(Debug)]
struct TakenUp {
    lasting: Lasting,
    /// Whether it can have another one when this process fails.
    can_repeat: bool,
    has_begun: bool,
}

impl Added {
    /// Adds a device with a queue for each CPU.
    ///
    /// # Errors
    /// [`Error`]: there is no such driver, or it refuses; nothing is left behind.
    pub fn new() -> Result<Self, Error> {
        Self::with(None)
    }

    /// [`Added::new`]; users of this device wait when this process dies, until [`Lasting::take_up`]. Where the driver cannot do that it is like
    /// any other.
    ///
    /// # Errors
    /// The errors of [`Added::new`].
    pub fn lasting(origin: Origin) -> Result<Self, Error> {
        Self::with(Some(origin))
    }

    fn with(origin: Option<Origin>) -> Result<Self, Error> {
        let control = Control::open()?;
        let can_last = || control.features().is_ok_and(|all| all & abi::LASTING == abi::LASTING);
        let origin = origin.filter(|_| can_last());
        let queues = u16::try_from(present_cpus()).unwrap_or(u16::MAX);
        let (depth, io_bytes) = shape(u64::from(queues));
        let mut info = DeviceInfo {
            queues,
            depth,
            io_bytes_max: io_bytes,
            features: abi::FEATURES | origin.as_ref().map_or(0, |_| abi::LASTING),
            mark: mark::own(),
            ..DeviceInfo::default()
        };
        let tenure = Tenure::begin(info.mark, || control.add(&mut info).map(|()| info.device))?;
        let path = file_path(info.device);
        let opened = server::wait_for(&path, || File::options().read(true).write(true).open(&path));
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                // What stays is cleared with the leftovers of this process.
                let _ = control.delete(info.device);
                return Err(error);
            }
        };
        Self::of(control, (info, tenure), Some(file), origin, None)
    }

    fn of(
        control: Control,
        (info, tenure): (DeviceInfo, Tenure),
        file: Option<File>,
        origin: Option<Origin>,
        taken_up: Option<TakenUp>,
    ) -> Result<Self, Error> {
        let mut added = Self {
            control: Some(control),
            info,
            tenure,
            file,
            queue_cpus: Vec::new(),
            origin,
            taken_up,
            turn: None,
        };
        let cpus_of = |queue| added.control().queue_cpus(info.device, queue);
        added.queue_cpus = (0..usize::from(info.queues)).map(cpus_of).collect::<Result<_, _>>()?;
        Ok(added)
    }

    /// The CPUs whose requests come to each queue, ascending. All of them may be offline.
    #[must_use]
    pub fn queue_cpus(&self) -> &[Vec<CpuId>] {
        &self.queue_cpus
    }

    /// Memory for the data of all queues, each queue's of its home where that has any.
    ///
    /// # Errors
    /// [`Error::Buffers`].
    ///
    /// # Panics
    /// When there is not one home for each queue.
    pub fn buffers(&self, homes: &[NodeId]) -> Result<Arc<Arena>, Error> {
        assert_eq!(homes.len(), self.queue_cpus.len(), "each queue has a home");
        Ok(Arena::parted(self.queue_bytes(), homes)?)
    }

    /// Returns the bytes that each queue has of the buffers.
    fn queue_bytes(&self) -> u64 {
        u64::from(self.info.depth) * u64::from(self.info.io_bytes_max)
    }

    fn control(&self) -> &Control {
        self.control.as_ref().expect("only ending the device takes `control`")
    }

    /// Tells the kernel what the device is.
    fn set_limits(&self, limits: &Limits) -> Result<(), Error> {
        let parameters = abi::Parameters::of(limits, self.info.io_bytes_max);
        self.control().set_parameters(self.info.device, parameters)
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        let waits = |taken_up: &TakenUp| taken_up.can_repeat || !taken_up.has_begun;
        if let Some(control) = &self.control
            && !self.taken_up.as_ref().is_some_and(waits)
        {
            // What stays is cleared with the leftovers of this process.
            let _ = control.delete(self.info.device);
        }
    }
}

/// Requests under way in each of `queues` queues, and the bytes of each at most.
fn shape(queues: u64) -> (u16, u32) {
    let of_queue = BUFFERS_BYTES / queues.max(1);
    let mut io_bytes = IO_BYTES_MAX;
    while io_bytes > IO_BYTES_LEAST && of_queue / u64::from(io_bytes) < DEPTH_LEAST {
        io_bytes /= 2;
    }
    // Such multiples make a queue's part whole huge pages.
    let depth = of_queue / u64::from(io_bytes) / DEPTH_LEAST * DEPTH_LEAST;
    let depth = depth.clamp(DEPTH_LEAST, DEPTH_MAX);
    (u16::try_from(depth).expect("at most DEPTH_MAX"), io_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_stay_within_the_budget_or_at_the_minimum() {
        assert_eq!(shape(1), (64, IO_BYTES_MAX));
        assert_eq!(shape(2), (64, IO_BYTES_MAX));
        assert_eq!(shape(8), (32, IO_BYTES_MAX));
        assert_eq!(shape(16), (16, IO_BYTES_MAX));
        assert_eq!(shape(64), (16, IO_BYTES_LEAST));
        assert_eq!(shape(1024), (16, IO_BYTES_LEAST));
        for queues in 1..4096 {
            let (depth, io_bytes) = shape(queues);
            let queue_bytes = u64::from(depth) * u64::from(io_bytes);
            assert!(queues * queue_bytes <= BUFFERS_BYTES || queue_bytes == 2 << 20);
            assert!(queue_bytes.is_multiple_of(2 << 20), "parts are whole huge pages");
        }
    }

    #[test]
    fn a_missing_driver_has_one_message() {
        if std::path::Path::new(CONTROL_PATH).exists() {
            crate::skip("this kernel has the driver");
            return;
        }
        let error = Added::new().unwrap_err();
        assert!(matches!(error, Error::NoDriver), "{error}");
        assert_eq!(clear_leftovers().unwrap(), Vec::<PathBuf>::new());
    }
}
