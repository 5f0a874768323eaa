//! Leftovers of killed servers: the devices' numbers and files, until someone removes them. The disks ended with their servers.
//! A lasting disk does not end, and is no such leftover: see `lasting`.

use super::abi::{LASTING, STATE_DEAD};
use super::control::Control;
use super::error::Error;
use super::{disk_path, file_path, mark};
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const CLASS: &str = "/sys/class/ublk-char";

/// Time that the kernel gets to end the disk of a server that was killed a moment ago.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(20);

/// Removes the devices that servers like this one made and that have none any more. Gives the paths that their disks had.
///
/// Others' devices, and those of servers that live, are not touched; nor is what does not end within some seconds.
///
/// # Errors
/// [`Error`] of the first that cannot be removed; the others are tried all the same.
pub fn clear_leftovers() -> Result<Vec<PathBuf>, Error> {
    let devices = devices();
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    // Whoever may not ask has left none.
    let Ok(control) = Control::open() else {
        return Ok(Vec::new());
    };
    let mut failed = None;
    let mut cleared = Vec::new();
    for device in devices {
        if !is_left(&control, device) {
            continue;
        }
        match control.delete(device) {
            Ok(()) => cleared.push(disk_path(device)),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(cleared), Err)
}

/// The numbers of all devices there are, ascending.
pub(super) fn devices() -> Vec<u32> {
    let entries = fs::read_dir(CLASS).into_iter().flatten();
    let number = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        name.strip_prefix("ublkc")?.parse().ok()
    };
    let mut devices: Vec<u32> = entries.filter_map(number).collect();
    devices.sort_unstable();
    devices
}

/// Waits for the end of a disk whose server has just ended.
fn is_left(control: &Control, device: u32) -> bool {
    let start = Instant::now();
    loop {
        let Ok(info) = control.info(device) else {
            return false;
        };
        if !mark::is_of_the_dead(info.mark) {
            return false;
        }
        if info.state != STATE_DEAD && info.features & LASTING != 0 {
            return false;
        }
        if info.state == STATE_DEAD && !is_served(device) {
            return true;
        }
        // A server in another PID namespace looks dead from here, and its device does not end.
        if start.elapsed() > END_TIMEOUT {
            return false;
        }
        thread::sleep(END_PAUSE);
    }
}

/// Whether some process serves it, or is about to: the driver lets one open its file at a time.
fn is_served(device: u32) -> bool {
    let opened = File::options().read(true).write(true).open(file_path(device));
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}
