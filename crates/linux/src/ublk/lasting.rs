//! Lasting devices: when their server is killed their users wait, until the next server of the same volume takes the device up.
//!
//! The driver keeps the disk and everything that its users have open, and gives the next server what the one before had under way once
//! more; a volume's requests may be carried out twice. Whose a device is tells its record. Invariants: only the process that has the
//! volume's pool open takes a device up, while that has all that was written to the device; a device is ended here only while no server has it, nor
//! is about to.

use super::abi::{DeviceInfo, F_QUIESCE, LASTING, STATE_DEAD, STATE_LIVE, STATE_QUIESCED};
use super::control::{Control, failed};
use super::error::Error;
use super::leftover::devices;
use super::record::{self, Origin};
use super::server::Tenure;
use super::{Added, TakenUp, disk_path, file_path, mark, server};
use crate::process::goes_on;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Time that the kernel gets to let go of a server that was killed: it waits for the server's rings, and frees its memory.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a server that is not seen here, and has left no note, may be one that was killed just now.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(3);
const END_PAUSE: Duration = Duration::from_millis(20);
/// Directory of a file for each device, locked to share while the device is taken up, and alone while it is ended: the driver says of a device
/// that is being taken up that it waits.
const TURNS: &str = "/run/homenode";

/// A lasting device, of this process or any other.
#[derive(Clone, Debug)]
pub struct Lasting {
    device: u32,
    mark: u64,
    disk: PathBuf,
    origin: Option<Origin>,
    is_waiting: bool,
}

/// All lasting devices of this machine that servers like this one made, ascending by number. A server in another PID namespace looks dead from here. None where the driver may not be asked.
#[must_use]
pub fn lasting_devices() -> Vec<Lasting> {
    let devices = devices();
    if devices.is_empty() {
        return Vec::new();
    }
    let Ok(control) = Control::open() else {
        return Vec::new();
    };
    let start = Instant::now();
    let found = devices.into_iter().filter_map(|device| {
        let info = settled(&control, device, start)?;
        let is_lasting = info.features & LASTING == LASTING && info.state != STATE_DEAD;
        is_lasting.then(|| Lasting {
            device,
            mark: info.mark,
            disk: disk_path(device),
            origin: record::of(device, info.mark),
            is_waiting: info.state == STATE_QUIESCED,
        })
    });
    found.collect()
}

/// State of a device that a server like this one made, as the driver tells it, once it has noticed the end of a server: all are waited for since `start`.
fn settled(control: &Control, device: u32, start: Instant) -> Option<DeviceInfo> {
    loop {
        let info = control.info(device).ok().filter(|info| mark::is_ours(info.mark))?;
        let is_served = u32::try_from(info.server).is_ok_and(goes_on);
        // One of another PID namespace has noted its volume elsewhere.
        let patience = match record::of(device, info.mark) {
            Some(_) => END_TIMEOUT,
            None => STRANGER_TIMEOUT,
        };
        if info.features & LASTING == 0 || info.state != STATE_LIVE || is_served || start.elapsed() > patience {
            return Some(info);
        }
        thread::sleep(END_PAUSE);
    }
}

impl Lasting {
    /// The disk's path.
    #[must_use]
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The volume that the device is of. `None` when no record tells it: the one of an older driver was killed while it took the device up.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// Whether the device has no server, so that its users wait.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Bytes of the disk.
    ///
    /// # Errors
    /// [`Error`] of the driver.
    pub fn bytes(&self) -> Result<u64, Error> {
        Ok(Control::open()?.parameters(self.device)?.device_bytes())
    }

    /// Makes this process the next server, once [`Added::start`] is called with the same volume; `origin` is noted then.
    ///
    /// # Errors
    /// [`Error`]: its users go on waiting then.
    pub fn take_up(&self, origin: Origin) -> Result<Added, Error> {
        let control = Control::open()?;
        let turn = turn(Path::new(TURNS), self.device, false).map_err(failed("let a new server have", self.device))?;
        let taken_up = TakenUp {
            lasting: self.clone(),
            can_repeat: control.features().is_ok_and(|all| all & F_QUIESCE != 0),
            has_begun: false,
        };
        let info = control.info(self.device).map_err(failed("describe", self.device))?;
        let tenure = Tenure::begin(info.mark, || Ok(info.device))?;
        let mut added = Added::of(control, (info, tenure), None, Some(origin), Some(taken_up))?;
        added.turn = turn;
        Ok(added)
    }

    /// Whether it is known that the device has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let info = Control::open().map(|control| control.info(self.device));
        match info {
            Ok(Ok(info)) => matches!(self.waits(&info), Ok(false)),
            Ok(Err(error)) => error.raw_os_error() == Some(libc::ENODEV),
            Err(_) => false,
        }
    }

    /// Has the driver prepare the device for this process.
    fn prepare(&self, control: &Control, can_repeat: bool) -> io::Result<()> {
        if can_repeat {
            return control.start_recovery(self.device);
        }
        // If this process is killed from here on, nobody tries again.
        record::remove(self.device, self.mark);
        control.start_recovery(self.device).inspect_err(|_| {
            if let Some(origin) = &self.origin {
                // Without it the device can be ended by its own name still.
                let _ = record::put(self.device, self.mark, origin);
            }
        })
    }

    /// Ends a device that waits: its users get errors.
    ///
    /// # Errors
    /// [`Error::Served`], or [`Error`] of the driver.
    pub fn end(&self) -> Result<(), Error> {
        let control = Control::open()?;
        let _turn = turn(Path::new(TURNS), self.device, true).map_err(failed("end", self.device))?;
        let info = match control.info(self.device) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
            info => info.map_err(failed("describe", self.device))?,
        };
        if self.waits(&info)? {
            control.delete(self.device)?;
            record::remove(self.device, self.mark);
        }
        Ok(())
    }

    /// Whether the device that has the number now is this one, without a server; false when this one has ended meanwhile.
    fn waits(&self, info: &DeviceInfo) -> Result<bool, Error> {
        match info.state {
            _ if info.mark != self.mark => Ok(false),
            STATE_LIVE => Err(Error::Served(self.disk.clone())),
            state => Ok(state == STATE_QUIESCED),
        }
    }
}

impl TakenUp {
    /// Makes this process the next server, and gives the device's file. A server that is just ending is waited for.
    ///
    /// # Errors
    /// [`Error`]: its users go on waiting then; but where the driver is older than Linux 6.16, the device may have to end.
    pub(super) fn begin(&mut self, control: &Control) -> Result<File, Error> {
        let device = self.lasting.device;
        let start = Instant::now();
        while let Err(error) = self.lasting.prepare(control, self.can_repeat) {
            if error.raw_os_error() != Some(libc::EBUSY) || start.elapsed() > END_TIMEOUT {
                return Err(failed("let a new server have", device)(error));
            }
            thread::sleep(END_PAUSE);
        }
        self.has_begun = true;
        let path = file_path(device);
        server::wait_for(&path, || File::options().read(true).write(true).open(&path))
    }
}

/// Waits for a device's lock in a directory, and has it until the file is dropped. `None` where this process has no such file.
fn turn(directory: &Path, device: u32, is_alone: bool) -> io::Result<Option<File>> {
    let path = directory.join(format!("ublk.{device}.lock"));
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    let Ok(file) = options.open(&path) else {
        return Ok(None);
    };
    let start = Instant::now();
    loop {
        let taken = match is_alone {
            true => file.try_lock(),
            false => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < END_TIMEOUT => thread::sleep(END_PAUSE),
            Err(error) => return Err(io::Error::other(format!("cannot lock {}: {error}", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_ended_while_it_is_taken_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let taking_up = turn(path, 3, false).unwrap().expect("the directory is there");
        let again = turn(path, 3, false).unwrap();
        assert!(turn(path, 4, true).unwrap().is_some(), "another device");
        thread::scope(|scope| {
            let ending = scope.spawn(|| turn(path, 3, true));
            drop(again);
            thread::sleep(10 * END_PAUSE);
            assert!(!ending.is_finished(), "it is taken up still");
            drop(taking_up);
            let ending = ending.join().expect("the thread does not panic").unwrap();
            let file = File::open(path.join("ublk.3.lock")).unwrap();
            assert!(file.try_lock_shared().is_err() && ending.is_some());
        });
        assert!(
            turn(&path.join("missing"), 3, true).unwrap().is_none(),
            "nobody has noted a device"
        );
    }

    #[test]
    fn only_the_waiting_device_itself_is_ended() {
        let waiting = Lasting {
            device: 3,
            mark: 7,
            disk: disk_path(3),
            origin: None,
            is_waiting: true,
        };
        let now = |state, mark| {
            let info = DeviceInfo {
                state,
                mark,
                ..DeviceInfo::default()
            };
            waiting.waits(&info)
        };
        assert!(now(STATE_QUIESCED, 7).unwrap());
        assert!(!now(STATE_DEAD, 7).unwrap(), "it has ended");
        for state in [STATE_DEAD, STATE_LIVE, STATE_QUIESCED] {
            assert!(!now(state, 8).unwrap(), "the number is another device's");
        }
        let served = now(STATE_LIVE, 7).unwrap_err();
        assert_eq!(served.errno(), libc::EBUSY);
        assert_eq!(served.to_string(), "/dev/ublkb3 has a server again");
    }
}
