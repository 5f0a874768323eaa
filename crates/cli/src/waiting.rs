//! Block devices of durable pools whose server was killed: their users wait until it is back, or until somebody ends the device.

use crate::device_use::{self, Usage};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::{absolute, locate, shown};
use homenode::{LastingExport, lasting_exports};
use std::path::Path;

/// All of this machine.
pub(crate) fn all() -> Vec<LastingExport> {
    let mut devices = lasting_exports();
    devices.retain(LastingExport::is_waiting);
    devices
}

/// Devices of a pool.
pub(crate) fn of_pool(uuid: u128) -> Vec<LastingExport> {
    let mut devices = all();
    devices.retain(|device| device.pool() == Some(uuid));
    devices
}

/// Devices of the pool that was mounted on a directory.
pub(crate) fn of_directory(directory: &Path) -> Vec<LastingExport> {
    let mut devices = all();
    if !devices.is_empty() {
        let place = place(directory);
        devices.retain(|device| device.directory() == Some(&*place));
    }
    devices
}

/// The one that a volume's name, or the device's own path, means.
pub(crate) fn named(path: &Path) -> Option<LastingExport> {
    let devices = all();
    if devices.is_empty() {
        return None;
    }
    let (directory, name) = (place(path.parent()?), path.file_name()?.to_str()?);
    let is_meant = |device: &LastingExport| {
        device.device() == path || (device.directory(), device.volume()) == (Some(&*directory), Some(name))
    };
    devices.into_iter().find(is_meant)
}

/// The directory of a pool, as servers note it: a mount whose server is dead is not asked.
fn place(directory: &Path) -> String {
    let is_empty = directory.as_os_str().is_empty();
    let directory = if is_empty { Path::new(".") } else { directory };
    shown(&locate(directory).map_or_else(|_| absolute(directory), |located| located.path))
}

/// Ends devices that nobody uses; refuses when one is in use, unless by `force`.
pub(crate) fn end(devices: &[LastingExport], force: bool) -> Result<()> {
    let mut claims = Vec::new();
    for device in devices.iter().filter(|_| !force) {
        match device_use::claim(device.device(), &|| device.claim()) {
            Ok(claim) => claims.extend(claim),
            Err(Usage::Known { users: why, .. } | Usage::Unknown(why)) => {
                fail!("{}, and is in use: {why}: {}", line(device), remedy(device))
            }
        }
    }
    for device in devices {
        device.end().map_err(Failure::from)?;
        complain!("homenode: ended {}", what(device));
    }
    Ok(())
}

/// Says of a device that it waits, and for what.
pub(crate) fn line(device: &LastingExport) -> String {
    format!("{} waits for the pool's server", what(device))
}

/// Says what somebody can do who does not want to wait.
pub(crate) fn remedy(device: &LastingExport) -> String {
    format!(
        "`homenode up` with the pool's name brings the server back, `homenode volume detach --force {}` ends the device",
        device.device().display()
    )
}

fn what(device: &LastingExport) -> String {
    let path = device.device().display();
    match (device.volume(), device.directory()) {
        (Some(volume), Some(directory)) => format!("{path} of volume {directory}/{}", volume.escape_debug()),
        _ => format!("{path} of an unknown volume"),
    }
}
