//! The volumes that are block devices: which there are, who uses them, and their end.
//!
//! A volume that is just being attached or detached is in no table; the pool knows it as attached all the same, so nobody else
//! attaches, resizes or removes it meanwhile.

use super::{READ_ONLY, refusal};
use crate::control::protocol::{Outcome, Refusal};
use crate::device_use::{self, Usage};
use crate::failure::chain;
use crate::mountinfo::{Device, locate, shown};
use crate::serve::END_TIMEOUT;
use crate::waiting;
use homenode::{Claim, Export, LastingExport, Pool, Volume};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How it is detached under its users: by the command that was refused, and by another one.
const BY_OPTION: &str = "`--force`";
const BY_COMMAND: &str = "`homenode volume detach --force`";

/// How long the end of a server waits for the ends of its devices, which write to slow disks what was written to them. systemd waits longer.
const DETACH_TIMEOUT: Duration = Duration::from_secs(240);

/// All of a server's. The table is whole between any two lines that could panic. The second tells that one has been detached, or has ended.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<Table>, Condvar);

#[derive(Debug, Default)]
struct Table {
    /// Exports by the volume's name.
    exports: BTreeMap<Box<str>, Export>,
    /// Exports that are being detached, or attached.
    leaving: usize,
    /// Failures to detach them when the server ended.
    failed: Vec<String>,
    /// Set when the server ends, so no more of them come: until then it waits for those that are being detached.
    ends: Option<Instant>,
}

impl Table {
    /// Whether some export is being detached, or attached.
    fn has_leaving(&mut self) -> bool {
        self.leaving > 0
    }
}

/// End of all exports.
pub(crate) struct Detached {
    /// Whether all have ended; else some write on.
    pub(crate) all: bool,
    /// Failures of those that have.
    pub(crate) failed: Vec<String>,
}

/// An export is being detached, or attached.
struct Leaving(Arc<Exports>);

impl Leaving {
    fn begin(exports: &Arc<Exports>) -> Self {
        exports.0.lock().leaving += 1;
        Self(Arc::clone(exports))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.0.lock().leaving -= 1;
        self.0.1.notify_all();
    }
}

impl Exports {
    /// The block device of each attached volume, by its name.
    pub(super) fn devices(self: &Arc<Self>) -> BTreeMap<String, String> {
        let entry = |export: &Export| (export.name().to_owned(), export.device().display().to_string());
        self.living().exports.values().map(entry).collect()
    }

    /// Makes a volume a block device. `pool_device` is the pool's own mount, on `directory`.
    pub(super) fn attach(
        self: &Arc<Self>,
        pool: &Pool,
        name: &str,
        trace: Option<&Path>,
        (pool_device, directory): (Device, &Path),
    ) -> Result<Outcome, Refusal> {
        let volume = pool.volume(name).map_err(|error| refusal(&error))?;
        if let Some(device) = self.devices().get(name) {
            let name = name.escape_debug();
            return Err(Refusal::new(format!(
                "cannot attach the volume {name}: it is attached already, as {device}"
            )));
        }
        if pool.is_read_only() {
            let name = name.escape_debug();
            return Err(Refusal::new(format!("cannot attach the volume {name}: {READ_ONLY}")));
        }
        let waiting = waiting_of(pool, name);
        if let Some(waiting) = &waiting
            && let Err(why) = next_of(waiting, pool, name)
        {
            let (name, device) = (name.escape_debug(), waiting.device().display());
            return Err(Refusal::new(format!(
                "cannot attach the volume {name}: {device} waits for it, and it {why}: `homenode volume detach --force {device}` ends the device, whose users get errors"
            )));
        }
        let file = trace.map(|path| make_trace(path, pool_device)).transpose()?;
        let directory = shown(directory);
        // The server does not end in between.
        let _leaving = Leaving::begin(self);
        let exported = match waiting {
            // Its users waited for another try.
            Some(waiting) => volume.take_up(&waiting, file, &directory),
            None if pool.uuid().is_some() => volume.export_lasting(file, &directory),
            None => volume.export(file),
        };
        let exported = exported.inspect_err(|_| {
            // Nothing is in it.
            trace.map(fs::remove_file);
        });
        let export = exported.map_err(|error| refusal(&error))?;
        let device = export.device().display().to_string();
        if !self.add(name, export) {
            return Err(Refusal::new("the server is ending"));
        }
        tracing::info!("attached volume {name} as {device}");
        Ok(Outcome::VolumeAttached { device })
    }

    /// Takes up the block devices that a killed server of this pool left: their users go on. Ends those whose volume is no more, or may lack
    /// what was written to it. Returns whether there are any.
    pub(crate) fn take_up_all(&self, pool: &Pool, directory: &Path, notice: &mut dyn FnMut(&str)) -> bool {
        let Some(uuid) = pool.uuid().filter(|_| !pool.is_read_only()) else {
            // Who writes the pool takes them up.
            return false;
        };
        // A device that is served is another server's: of a copy of this pool.
        for waiting in waiting::of_pool(uuid) {
            let Some(name) = waiting.volume() else { continue };
            // Somebody has attached it already.
            if self.0.lock().exports.contains_key(name) {
                continue;
            }
            let (device, shown_name) = (waiting.device().display(), name.escape_debug());
            if waiting.is_beside(&pool.files()) {
                notice(&format!(
                    "left {device} of volume {shown_name} alone: this pool is a copy, and the device waits for the original, whose members are all there: {BY_COMMAND} ends it"
                ));
                continue;
            }
            let volume = match next_of(&waiting, pool, name) {
                Ok(volume) => volume,
                Err(why) => {
                    let ended = match waiting.end() {
                        Ok(()) => format!("ended {device}, whose users get errors"),
                        Err(error) => format!("cannot end {device}: {}", chain(&error)),
                    };
                    notice(&format!("volume {shown_name} {why}: {ended}"));
                    continue;
                }
            };
            match volume.take_up(&waiting, None, &shown(directory)) {
                Ok(export) => {
                    self.add(name, export);
                    notice(&format!("took up {device} of volume {shown_name}: its users continue"));
                }
                Err(error) if waiting.has_ended() => {
                    notice(&format!("{}: ended {device}, whose users get errors", chain(&error)));
                }
                Err(error) => notice(&format!(
                    "{}: {device} still waits: `homenode volume attach` tries again, {BY_COMMAND} ends it",
                    chain(&error)
                )),
            }
        }
        !self.0.lock().exports.is_empty()
    }

    /// Notes the pool's members with each device, for the server that takes it up after a crash.
    pub(super) fn note_members(self: &Arc<Self>, pool: &Pool, directory: &Path) {
        for (name, export) in &self.living().exports {
            let noted = pool
                .volume(name)
                .and_then(|volume| export.note_members(&volume, &shown(directory)));
            if let Err(error) = noted {
                tracing::warn!(
                    "a copy of the pool may take {} for its own: {}",
                    export.device().display(),
                    chain(&error)
                );
            }
        }
    }

    /// Adds a device, or ends it when the server ends.
    fn add(&self, name: &str, export: Export) -> bool {
        let mut table = self.0.lock();
        if table.ends.is_some() {
            drop(table);
            end(export);
            return false;
        }
        table.exports.insert(name.into(), export);
        true
    }

    /// Ends a volume's block device: by `force` also under its users.
    pub(super) fn detach(self: &Arc<Self>, pool: &Pool, name: &str, force: bool) -> Result<Outcome, Refusal> {
        // Removed first: to see who uses it may take long, and nobody else waits for that.
        let mut table = self.living();
        let Some(export) = table.exports.remove(name) else {
            drop(table);
            pool.volume(name).map_err(|error| refusal(&error))?;
            let name = name.escape_debug();
            return Err(Refusal::new(format!(
                "the volume {name} is not attached; `homenode volume list` lists attached volumes"
            )));
        };
        table.leaving += 1;
        drop(table);
        let _leaving = Leaving(Arc::clone(self));
        // Until it has ended nobody else begins to use it.
        let claimed = (!force).then(|| claim(&export, BY_OPTION)).transpose();
        let claim = match claimed {
            Ok(claim) => claim.flatten(),
            Err(refusal) => {
                self.add(name, export);
                return Err(refusal);
            }
        };
        let detached = export.detach();
        drop(claim);
        detached.map_err(|error| refusal(&error))?;
        tracing::info!("detached volume {name}");
        Ok(Outcome::VolumeDetached)
    }

    /// Claims all devices, or says which is in use.
    pub(super) fn claim_all(self: &Arc<Self>) -> Result<Vec<Claim>, Refusal> {
        let table = self.living();
        if table.leaving > 0 {
            return Err(Refusal {
                device_busy: true,
                ..Refusal::new("a volume is being attached or detached: try again")
            });
        }
        let claims = table.exports.values().map(|export| claim(export, BY_COMMAND));
        Ok(claims.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Ends all of them, also under their users, and lets no more come. One may never end, as when a disk hangs: it is waited for a while.
    pub(crate) fn detach_all(self: &Arc<Self>) -> Detached {
        let (exports, ends) = {
            let mut table = self.0.lock();
            let exports = std::mem::take(&mut table.exports);
            let patience = if exports.is_empty() {
                END_TIMEOUT
            } else {
                DETACH_TIMEOUT
            };
            let ends = *table.ends.get_or_insert_with(|| Instant::now() + patience);
            (exports, ends)
        };
        for export in exports.into_values() {
            tracing::info!("detaching volume {} from {}", export.name(), export.device().display());
            let all = Arc::clone(self);
            self.aside(move || {
                let name = export.name().to_owned();
                if let Err(error) = export.detach() {
                    let (name, why) = (name.escape_debug(), chain(&error));
                    let failure = format!("the volume {name} was not detached as it should be: {why}");
                    tracing::warn!("{failure}");
                    all.0.lock().failed.push(failure);
                }
            });
        }
        // They write to the pool still, as those do that a command is detaching.
        let mut table = self.0.lock();
        self.1.wait_while_until(&mut table, Table::has_leaving, ends);
        if table.leaving > 0 {
            tracing::warn!("volumes are still being detached: {}", table.leaving);
        }
        Detached {
            all: table.leaving == 0,
            failed: table.failed.clone(),
        }
    }

    /// Runs `detach`, which may wait for a disk that hangs, in a thread of its own.
    fn aside(self: &Arc<Self>, detach: impl FnOnce() + Send + 'static) {
        let leaving = Leaving::begin(self);
        let act = move || {
            detach();
            drop(leaving);
        };
        if let Err(error) = thread::Builder::new().name("detach".into()).spawn(act) {
            tracing::warn!("a volume is not detached: cannot start a thread: {error}");
        }
    }

    /// The table without the devices that others have stopped, or that have failed; these are detached by then, if that does not take long.
    fn living(self: &Arc<Self>) -> MutexGuard<'_, Table> {
        let has_ended = self.end_failed();
        let mut table = self.0.lock();
        if has_ended {
            self.1.wait_while_for(&mut table, Table::has_leaving, END_TIMEOUT);
        }
        table
    }

    /// Begins to detach the devices that others have stopped, or that have failed, so that nobody waits for them. Whether there are any.
    pub(crate) fn end_failed(self: &Arc<Self>) -> bool {
        let mut table = self.0.lock();
        let (ended, living): (BTreeMap<_, _>, _) = std::mem::take(&mut table.exports)
            .into_iter()
            .partition(|(_, export)| export.has_ended());
        table.exports = living;
        drop(table);
        let has_ended = !ended.is_empty();
        for export in ended.into_values() {
            tracing::warn!(
                "volume {} is no longer attached: {} has ended",
                export.name(),
                export.device().display()
            );
            self.aside(move || end(export));
        }
        has_ended
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
            "the trace {name} would lie in the pool itself, which keeps the pool from ending: choose another directory"
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

/// The device of a volume that a killed server left, if there is one.
fn waiting_of(pool: &Pool, name: &str) -> Option<LastingExport> {
    let devices = waiting::of_pool(pool.uuid()?);
    let is_its = |device: &LastingExport| device.volume() == Some(name) && !device.is_beside(&pool.files());
    devices.into_iter().find(is_its)
}

/// Refuses to change a volume whose device waits: its users rely on the size, as those of an attached one.
pub(super) fn require_no_waiting(pool: &Pool, name: &str) -> Result<(), Refusal> {
    let volume = pool.volume(name).map_err(|error| refusal(&error))?;
    let Some(device) = waiting_of(pool, name).filter(|device| device.is_of(&volume)) else {
        return Ok(());
    };
    let (name, device) = (name.escape_debug(), device.device().display());
    Err(Refusal::new(format!(
        "cannot change the volume {name}: {device} waits for it: `homenode volume attach` tries to go on, `homenode volume detach --force {device}` ends the device, whose users get errors"
    )))
}

/// The volume that a device goes on with, or why the volume of its name is no such one.
fn next_of(device: &LastingExport, pool: &Pool, name: &str) -> Result<Volume, String> {
    if !device.is_complete_in(pool) {
        return Err("may lack completed writes, as after a power cut".to_owned());
    }
    let volume = pool.volume(name).map_err(|_| "was removed".to_owned())?;
    if !device.is_of(&volume) {
        return Err("was removed, and made anew".to_owned());
    }
    let bytes = volume.size_bytes();
    match device.bytes() {
        Ok(before) if bytes < before => Err(format!("was made smaller, {bytes} bytes instead of {before}")),
        // Who cannot ask the device cannot take it up either, and is told so then.
        _ => Ok(volume),
    }
}

/// Claims a device for the time of its end; says who uses it. None where it has ended already.
fn claim(export: &Export, forced: &str) -> Result<Option<Claim>, Refusal> {
    let name = export.name().escape_debug();
    device_use::claim(export.device(), &|| export.claim()).map_err(|usage| match usage {
        Usage::Unknown(why) => Refusal {
            device_busy: true,
            ..Refusal::new(format!("cannot see whether the volume {name} is in use: {why}"))
        },
        Usage::Known { users, remedy } => Refusal {
            device_busy: true,
            ..Refusal::new(format!(
                "the volume {name} is in use: {users}: {remedy}, or detach it all the same with {forced}"
            ))
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn the_end_of_all_devices_waits_for_those_that_are_being_detached() {
        let exports = Arc::new(Exports::default());
        let (end, ended) = mpsc::channel::<()>();
        exports.aside(move || ended.recv().unwrap_or(()));
        thread::scope(|scope| {
            let ending = scope.spawn(|| assert!(exports.detach_all().all));
            thread::sleep(Duration::from_millis(200));
            assert!(!ending.is_finished(), "a device writes still");
            end.send(()).unwrap();
        });
        assert!(exports.0.lock().ends.is_some());
    }

    #[test]
    fn a_device_that_is_never_detached_does_not_keep_the_server_from_ending() {
        let exports = Arc::new(Exports::default());
        let (hangs, hung) = mpsc::channel::<()>();
        exports.aside(move || hung.recv().unwrap_or(()));
        // The one behind it ends.
        let (other, is_over) = mpsc::channel();
        exports.aside(move || other.send(()).unwrap());
        is_over.recv_timeout(END_TIMEOUT).expect("it waits for no other");
        let (ended, end) = mpsc::channel();
        thread::spawn(move || {
            assert!(!exports.detach_all().all);
            assert!(!exports.detach_all().all);
            ended.send(())
        });
        let ended = end.recv_timeout(END_TIMEOUT + END_TIMEOUT / 2);
        ended.expect("both calls together wait as long as one");
        drop(hangs);
    }
}
