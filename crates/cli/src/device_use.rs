//! Who uses a block device.

use crate::holders;
use crate::mountinfo::{Device, MountEntry, mounts, shown};
use homenode::Claim;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Looks at a device that somebody has open: udev and blkid look at each new one, and are gone in a moment.
const LOOKS_MAX: u32 = 8;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Use of a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// It cannot be seen.
    Unknown(String),
    /// User of the device, and the command that ends it.
    Known { users: String, remedy: String },
}

/// Claims a device for the time of its end; says who uses it. None where it has ended already. Waits for no server.
pub(crate) fn claim(device: &Path, claim: &dyn Fn() -> io::Result<Option<Claim>>) -> Result<Option<Claim>, Usage> {
    let mut looks = 0;
    loop {
        let claim = match claim() {
            Err(error) if has_ended(&error) => return Ok(None),
            Err(error) => return Err(Usage::Unknown(format!("opening {}: {error}", device.display()))),
            Ok(claim) => claim,
        };
        let holders = holders::of_disk(device);
        if claim.is_some() && holders.is_empty() {
            return Ok(claim);
        }
        looks += 1;
        if looks == LOOKS_MAX {
            return Err(used_by(device, &holders));
        }
        drop(claim);
        thread::sleep(LOOK_PAUSE);
    }
}

/// Whether opening a device has failed because it is no more.
fn has_ended(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NXIO, Errno::NODEV];
    gone.iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn used_by(device: &Path, holders: &[String]) -> Usage {
    let (use_, remedy) = match (mounted_on(device), holders) {
        (Some(place), _) => (format!("mounted on {place}"), format!("`umount {place}` first")),
        (None, []) => (
            "mounted in another namespace, or part of another device".to_owned(),
            "end that first".to_owned(),
        ),
        (None, holders) => (format!("open by {}", holders.join(", ")), "end them first".to_owned()),
    };
    let users = format!("{} is {use_}", device.display());
    Usage::Known { users, remedy }
}

/// Mount point of a block device, or of a partition of it, of those that this process sees.
fn mounted_on(device: &Path) -> Option<String> {
    let number = Device::from(fs::metadata(device).ok()?.rdev());
    let mounts = mounts().ok()?;
    let is_part = |mount: &&MountEntry| mount.device == number || holders::is_on(Path::new(&mount.source), device);
    let mount = mounts.iter().find(is_part)?;
    Some(shown(&mount.mount_point))
}
