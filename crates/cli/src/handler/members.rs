//! Files that become members of a durable pool while it is mounted, and what the pool is known by.

use super::refusal;
use crate::control::protocol::Refusal;
use crate::failure::{Failure, Result};
use crate::mountinfo::{Device, shown};
use crate::pool::durable::Made;
use crate::pool::known;
use homenode::{Error, MemberId, NewFile, Pool, PoolError, PoolName};
use parking_lot::Mutex;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Note of a durable pool in the file of known pools, if it was mounted by a name of that.
#[derive(Debug)]
pub(crate) struct Note {
    name: Option<PoolName>,
    /// Files that may be members soon. Held while the file of known pools is written.
    coming: Mutex<Vec<PathBuf>>,
}

/// Adds a file to a pool, made if it is not there. The file of known pools names it first: a file that the pool does not list does no harm.
pub(super) fn add_file(
    pool: &Pool,
    note: &Note,
    path: &Path,
    (size_bytes, new): (Option<u64>, NewFile),
    mount: Device,
) -> std::result::Result<MemberId, Refusal> {
    let refused = |failure: Failure| Refusal::new(failure.to_string());
    if pool.uuid().is_none() {
        return Err(refusal(&Error::VolatilePool));
    }
    let mut made = Made::default();
    let is_there = path.exists();
    // It would have to be there before it is.
    let place = if is_there { Some(path) } else { path.parent() };
    let device = place.and_then(|place| Some(std::fs::metadata(place).ok()?.dev()));
    if device.is_some_and(|device| Device::from(device) == mount) {
        let what = format!("cannot add {}: it lies in the pool itself", shown(path));
        return Err(Refusal::new(what));
    }
    let file = (!is_there).then(|| made.make(path, size_bytes).map_err(refused));
    let new = NewFile {
        made: file.transpose()?,
        ..new
    };
    note.come(pool, path).map_err(refused)?;
    let added = pool.add_file(path, new);
    // The pool may list it when it is opened again.
    let may_be_listed = matches!(added, Err(Error::Pool(PoolError::Log)));
    if may_be_listed || added.is_ok() {
        made.keep();
    }
    if !may_be_listed {
        note.came(pool, path);
    }
    added.map_err(|error| refusal(&error))
}

impl Note {
    pub(crate) fn new(name: Option<PoolName>) -> Self {
        let coming = Mutex::default();
        Self { name, coming }
    }

    pub(super) fn name(&self) -> Option<&PoolName> {
        self.name.as_ref()
    }

    /// Writes the members that there are, and those that are coming.
    pub(crate) fn write(&self, pool: &Pool) {
        warn(self.put(pool, &self.coming.lock()));
    }

    /// Writes a file beside the members, before it may become one.
    fn come(&self, pool: &Pool, path: &Path) -> Result<()> {
        let mut coming = self.coming.lock();
        coming.push(path.to_owned());
        self.put(pool, &coming).inspect_err(|_| {
            coming.pop();
        })
    }

    /// A file is a member now, or will not be one.
    fn came(&self, pool: &Pool, path: &Path) {
        let mut coming = self.coming.lock();
        if let Some(at) = coming.iter().position(|one| one == path) {
            coming.remove(at);
        }
        warn(self.put(pool, &coming));
    }

    /// A pool that is not known under its name any more, or was not mounted by it, is left alone.
    fn put(&self, pool: &Pool, coming: &[PathBuf]) -> Result<()> {
        let (Some(name), Some(uuid)) = (&self.name, pool.uuid()) else {
            return Ok(());
        };
        let mut members = pool.files();
        let others = coming.iter().filter(|path| !members.contains(path)).cloned();
        members.extend(others.collect::<Vec<_>>());
        match known::find(name)? {
            Some(known) if known.uuid == format!("{uuid:032x}") => known::put(name, &known::Known { members, ..known }),
            _ => Ok(()),
        }
    }
}

fn warn(written: Result<()>) {
    if let Err(failure) = written {
        tracing::warn!("{failure}; `homenode pool import` makes the pool's members known");
    }
}
