//! The volumes that are block devices: which there are, who uses them, and their end.
//!
//! A volume that is just being attached or detached is in no table; the pool knows it as attached all the same, so nobody else
//! attaches, resizes or removes it meanwhile.

use super::refusal;
use crate::control::protocol::{Outcome, Refusal};
use crate::failure::chain;
use crate::holders;
use crate::mountinfo::{Device, locate, mounts, shown};
use homenode::{Claim, Export, Pool};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Looks at a device that somebody has open: udev and blkid look at each new one, and are gone in a moment.
const LOOKS_MAX: u32 = 8;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How it is detached under its users: by the command that was refused, and by another one.
const BY_OPTION: &str = "`--force`";
const BY_COMMAND: &str = "`homenode volume detach --force`";

/// All of a server's.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// By the volume's name.
    exports: BTreeMap<Box<str>, Export>,
    /// The server ends: no more of them.
    is_over: bool,
}

impl Exports {
    /// The block device of each attached volume, by its name.
    pub(super) fn devices(&self) -> BTreeMap<String, String> {
        let entry = |export: &Export| (export.name().to_owned(), export.device().display().to_string());
        self.living().exports.values().map(entry).collect()
    }

    /// Makes a volume a block device. `pool_device` is the pool's own mount.
    pub(super) fn attach(
        &self,
        pool: &Pool,
        name: &str,
        trace: Option<&Path>,
        pool_device: Device,
    ) -> Result<Outcome, Refusal> {
        let volume = pool.volume(name).map_err(|error| refusal(&error))?;
        if let Some(device) = self.devices().get(name) {
            let name = name.escape_debug();
            return Err(Refusal::new(format!(
                "cannot attach the volume {name}: it is attached already, as {device}"
            )));
        }
        let file = trace.map(|path| make_trace(path, pool_device)).transpose()?;
        let exported = volume.export(file).inspect_err(|_| {
            // Nothing is in it.
            trace.map(fs::remove_file);
        });
        let export = exported.map_err(|error| refusal(&error))?;
        let device = export.device().display().to_string();
        let mut table = self.table();
        if table.is_over {
            drop(table);
            end(export);
            return Err(Refusal::new("the server is ending"));
        }
        tracing::info!("attached volume {name} as {device}");
        table.exports.insert(name.into(), export);
        Ok(Outcome::VolumeAttached { device })
    }

    /// Ends a volume's block device: by `force` also under its users.
    pub(super) fn detach(&self, pool: &Pool, name: &str, force: bool) -> Result<Outcome, Refusal> {
        let mut table = self.living();
        let Some(export) = table.exports.get(name) else {
            drop(table);
            pool.volume(name).map_err(|error| refusal(&error))?;
            let name = name.escape_debug();
            return Err(Refusal::new(format!(
                "the volume {name} is not attached; `homenode volume list` tells which are"
            )));
        };
        // Until it has ended nobody else begins to use it.
        let claim = if force { None } else { claim(export, BY_OPTION)? };
        let export = table.exports.remove(name).expect("it was there");
        drop(table);
        let detached = export.detach();
        drop(claim);
        detached.map_err(|error| refusal(&error))?;
        tracing::info!("detached volume {name}");
        Ok(Outcome::VolumeDetached)
    }

    /// Claims all devices, or says which is in use.
    pub(super) fn claim_all(&self) -> Result<Vec<Claim>, Refusal> {
        let table = self.living();
        let claims = table.exports.values().map(|export| claim(export, BY_COMMAND));
        Ok(claims.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Ends all of them, also under their users, and lets no more come.
    pub(crate) fn detach_all(&self) {
        let exports = {
            let mut table = self.table();
            table.is_over = true;
            std::mem::take(&mut table.exports)
        };
        for export in exports.into_values() {
            tracing::info!("detaching volume {} from {}", export.name(), export.device().display());
            end(export);
        }
    }

    /// The table without the devices that others have stopped, or that have failed.
    fn living(&self) -> MutexGuard<'_, Table> {
        let mut table = self.table();
        let (ended, living): (BTreeMap<_, _>, _) = std::mem::take(&mut table.exports)
            .into_iter()
            .partition(|(_, export)| export.has_ended());
        table.exports = living;
        for export in ended.into_values() {
            tracing::warn!(
                "volume {} is attached no more: {} has ended",
                export.name(),
                export.device().display()
            );
            end(export);
        }
        table
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // It is whole between any two lines that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(export: Export) {
    if let Err(error) = export.detach() {
        tracing::warn!("{}", chain(&error));
    }
}

/// Makes the file: none that exists is touched.
fn make_trace(path: &Path, pool_device: Device) -> Result<File, Refusal> {
    let name = shown(path);
    let place = path.parent().map(locate);
    if let Some(Ok(place)) = place
        && place.mount.device == pool_device
    {
        return Err(Refusal::new(format!(
            "the trace {name} would lie in the pool itself, which could not end then: choose another directory"
        )));
    }
    File::create_new(path).map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AlreadyExists => ": choose another name, or remove it",
            _ => "",
        };
        Refusal::new(format!("cannot write the trace {name}: {error}{advice}"))
    })
}

/// Claims a device for the time of its end; says who uses it. None where it has ended already.
fn claim(export: &Export, forced: &str) -> Result<Option<Claim>, Refusal> {
    let mut looks = 0;
    loop {
        let claim = match export.claim() {
            Err(error) if has_ended(&error) => return Ok(None),
            Err(error) => {
                let (name, device) = (export.name().escape_debug(), export.device().display());
                return Err(Refusal::new(format!(
                    "cannot see whether the volume {name} is in use: opening {device}: {error}"
                )));
            }
            Ok(claim) => claim,
        };
        let holders = holders::of_file(export.device());
        if claim.is_some() && holders.is_empty() {
            return Ok(claim);
        }
        looks += 1;
        if looks == LOOKS_MAX {
            return Err(in_use(export, &holders, forced));
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

fn in_use(export: &Export, holders: &[String], forced: &str) -> Refusal {
    let (name, device) = (export.name().escape_debug(), export.device().display());
    let mut message = format!("the volume {name} is in use: {device} is ");
    match (mounted_on(export.device()), holders) {
        (Some(place), _) => message.push_str(&format!("mounted on {place}: `umount {place}` first")),
        (None, []) => message.push_str("mounted in another namespace, or part of another device: end that first"),
        (None, holders) => message.push_str(&format!("open by {}: end that first", holders.join(", "))),
    }
    message.push_str(&format!(", or take it away from under its users with {forced}"));
    Refusal {
        device_busy: true,
        ..Refusal::new(message)
    }
}

/// Where a block device is mounted, of what this process sees.
fn mounted_on(device: &Path) -> Option<String> {
    let number = fs::metadata(device).ok()?.rdev();
    let number = Device {
        major: rustix::fs::major(number),
        minor: rustix::fs::minor(number),
    };
    let mounts = mounts().ok()?;
    let mount = mounts.iter().find(|mount| mount.device == number)?;
    Some(shown(&mount.mount_point))
}
