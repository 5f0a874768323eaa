//! Block devices of durable pools whose server was killed: their users wait until it is back, or until somebody ends the device.

use crate::control::client::Connection;
use crate::control::protocol::{Access, StatusReport};
use crate::device_use::{self, Usage};
use crate::failure::{Failure, Result, fail};
use crate::mountinfo::{absolute, locate, shown};
use homenode::{LastingExport, MemberKind, MemberStatus, lasting_exports};
use std::path::{Path, PathBuf};

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

/// Devices of the pool that was mounted on a directory. Where a server answers for it: of its pool, if that was mounted there.
pub(crate) fn of_directory(directory: &Path) -> Vec<LastingExport> {
    let mut devices = all();
    if devices.is_empty() {
        return devices;
    }
    let place = place(directory);
    devices.retain(|device| device.directory() == Some(&*place));
    if !devices.is_empty()
        && let Some((uuid, files)) = pool_mounted_on(directory)
    {
        devices.retain(|device| device.pool() == uuid && !device.is_beside(&files));
    }
    devices
}

/// Status of the pool whose server answers for a directory.
fn report_of(directory: &Path) -> Option<StatusReport> {
    let located = locate(directory).ok()?;
    if !located.mount.is_homenode() || !located.is_mount_point() {
        return None;
    }
    Connection::open(located.mount.device).ok()?.status().ok()
}

/// Whether a server answers for a directory whose pool is mounted to be read only: it takes up no device.
pub(crate) fn is_read_only(directory: &Path) -> bool {
    let durable = report_of(directory).and_then(|report| report.durable);
    durable.is_some_and(|durable| durable.access == Access::ReadOnly)
}

/// Identity and members' files of the pool whose server answers for a directory. A pool of memory has no identity.
fn pool_mounted_on(directory: &Path) -> Option<(Option<u128>, Vec<PathBuf>)> {
    let report = report_of(directory)?;
    let uuid = report
        .durable
        .and_then(|durable| u128::from_str_radix(&durable.uuid, 16).ok());
    let is_file = |member: &&MemberStatus| member.kind != MemberKind::Dram;
    let members = report.pool.members.iter().filter(is_file);
    Some((uuid, members.map(|member| PathBuf::from(&member.backing)).collect()))
}

/// The one that a volume's name, or the device's own path, means.
pub(crate) fn named(path: &Path) -> Option<LastingExport> {
    if let Some(device) = all().into_iter().find(|device| device.device() == path) {
        return Some(device);
    }
    let mut devices = of_directory(path.parent()?).into_iter();
    let name = path.file_name()?.to_str();
    devices.find(|device| device.volume().is_some() && device.volume() == name)
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
