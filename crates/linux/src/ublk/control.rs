//! The driver's control device: commands that make devices and take them away.
//!
//! Invariant: a command's memory stays until its command has ended. A command is waited for, however long the kernel takes;
//! if even the waiting fails, the control device is given up.

use super::CONTROL_PATH;
use super::abi::{self, ControlCommand, DeviceInfo, Parameters};
use super::error::Error;
use crate::cpu::CpuMask;
use crate::driver::RingError;
use homenode_engine::CpuId;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::{fmt, io, ptr};

/// The first that takes a device away without waiting for who has it open.
const LEAST_RELEASE: (u32, u32) = (6, 9);

/// The control device, open.
pub(super) struct Control {
    file: File,
    ring: Mutex<Option<IoUring<Entry128, cqueue::Entry>>>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Control {
    pub(super) fn open() -> Result<Self, Error> {
        let file = File::options().read(true).write(true).open(CONTROL_PATH);
        let file = file.map_err(|source| match source.raw_os_error() {
            // The last two: there is a name, and no driver behind it.
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::NoDriver,
            _ => Error::Open {
                path: CONTROL_PATH.into(),
                source,
            },
        })?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        if is_before(&release, LEAST_RELEASE) {
            let release = release.trim().to_owned();
            return Err(Error::TooOld { release });
        }
        let ring = IoUring::builder().build(1);
        let ring = ring.map_err(|source| RingError::Make { source })?;
        Ok(Self {
            file,
            ring: Mutex::new(Some(ring)),
        })
    }

    /// Adds a device. The driver tells in `info` what it made of that.
    pub(super) fn add(&self, info: &mut DeviceInfo) -> Result<(), Error> {
        info.device = abi::NEW_DEVICE;
        self.with(abi::ADD_DEV, abi::NEW_DEVICE, 0, info)
            .map_err(|source| Error::Command {
                doing: "add a block device that this program serves".to_owned(),
                source,
            })
    }

    pub(super) fn info(&self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        self.with(abi::GET_DEV_INFO, device, 0, &mut info)?;
        Ok(info)
    }

    /// The CPUs whose requests come to a queue, ascending; also those that are offline.
    pub(super) fn queue_cpus(&self, device: u32, queue: usize) -> Result<Vec<CpuId>, Error> {
        let mut mask = CpuMask::empty();
        let asked = self.with(abi::GET_QUEUE_AFFINITY, device, queue as u64, &mut mask);
        asked.map_err(failed(&format!("tell the CPUs of queue {queue} of"), device))?;
        Ok(mask.cpus())
    }

    pub(super) fn set_parameters(&self, device: u32, mut parameters: Parameters) -> Result<(), Error> {
        self.with(abi::SET_PARAMS, device, 0, &mut parameters)
            .map_err(failed("take the size and the limits of", device))
    }

    /// Features that the driver has.
    pub(super) fn features(&self) -> io::Result<u64> {
        let mut features = 0_u64;
        self.with(abi::GET_FEATURES, abi::NEW_DEVICE, 0, &mut features)?;
        Ok(features)
    }

    pub(super) fn parameters(&self, device: u32) -> Result<Parameters, Error> {
        let mut parameters = Parameters::room();
        let asked = self.with(abi::GET_PARAMS, device, 0, &mut parameters);
        asked.map_err(failed("tell the size of", device))?;
        Ok(parameters)
    }

    /// Makes it a disk; waits until all queues are served.
    pub(super) fn start(&self, device: u32) -> Result<(), Error> {
        let started = self.as_server(abi::START_DEV, device);
        started.map_err(failed("start", device))
    }

    /// Prepares a disk for its next server. EBUSY while the one before is ending.
    pub(super) fn start_recovery(&self, device: u32) -> io::Result<()> {
        self.on_device(abi::START_USER_RECOVERY, device)
    }

    /// Hands what waits to this process; waits until all queues are served.
    pub(super) fn end_recovery(&self, device: u32) -> Result<(), Error> {
        let taken = self.as_server(abi::END_USER_RECOVERY, device);
        taken.map_err(failed("hand over", device))
    }

    fn as_server(&self, operation: u32, device: u32) -> io::Result<()> {
        let command = ControlCommand {
            device,
            data: u64::from(std::process::id()),
            ..ControlCommand::default()
        };
        self.command(operation, &command)
    }

    /// Ends the disk: what waits is done first, what comes later fails. Then its queues are told.
    pub(super) fn stop(&self, device: u32) -> Result<(), Error> {
        self.on_device(abi::STOP_DEV, device).map_err(failed("stop", device))
    }

    /// Takes the device away: its name at once, its number when nobody has it open any more. Waits for nobody.
    pub(super) fn delete(&self, device: u32) -> Result<(), Error> {
        match self.on_device(abi::DEL_DEV_ASYNC, device) {
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other.map_err(failed("remove", device)),
        }
    }

    fn on_device(&self, operation: u32, device: u32) -> io::Result<()> {
        let command = ControlCommand {
            device,
            ..ControlCommand::default()
        };
        self.command(operation, &command)
    }

    /// A command with memory that the kernel reads or writes.
    fn with<T: Plain>(&self, operation: u32, device: u32, data: u64, memory: &mut T) -> io::Result<()> {
        let command = ControlCommand {
            device,
            address: ptr::from_mut(memory).expose_provenance() as u64,
            bytes: u16::try_from(size_of::<T>()).expect("the structure is smaller than 64 KiB"),
            data,
        };
        self.command(operation, &command)
    }

    fn command(&self, operation: u32, command: &ControlCommand) -> io::Result<()> {
        let mut slot = self.ring.lock();
        let Some(ring) = &mut *slot else {
            return Err(io::Error::other(
                "the control device was given up after an error of io_uring",
            ));
        };
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, operation).cmd(command.encode()).build();
        // SAFETY: the memory it names is borrowed by our caller until we are back, and that is when it has ended, or nothing was
        // given to the kernel and never will be.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.expect("the ring is empty: each command completes before the next");
        loop {
            match ring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => {
                    if ring.submission().is_empty() {
                        // It has it: this cannot be left.
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    } else {
                        *slot = None;
                        return Err(error);
                    }
                }
                _ => {}
            }
            let ended = ring.completion().next();
            if let Some(ended) = ended {
                return match ended.result() {
                    errno @ ..0 => Err(io::Error::from_raw_os_error(-errno)),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// Memory that the kernel may fill with any bytes.
trait Plain {}
impl Plain for DeviceInfo {}
impl Plain for Parameters {}
impl Plain for CpuMask {}
impl Plain for u64 {}

pub(super) fn failed(doing: &str, device: u32) -> impl FnOnce(io::Error) -> Error {
    let doing = format!("{doing} {}", super::disk_path(device).display());
    |source| Error::Command { doing, source }
}

/// Whether a release, `6.8.0-31-generic`, comes before that version. One that is not understood does not.
fn is_before(release: &str, least: (u32, u32)) -> bool {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < least,
        _ => false,
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_as_numbers() {
        for old in ["6.8.0-31-generic", "6.1.0", "5.19", "6.8"] {
            assert!(is_before(old, LEAST_RELEASE), "{old}");
        }
        for new in ["6.9.0", "6.10", "6.18.5+deb13-amd64", "7.0-rc1", "unknown", ""] {
            assert!(!is_before(new, LEAST_RELEASE), "{new}");
        }
    }
}
