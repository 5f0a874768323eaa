//! Files that become members of a durable pool while it is mounted, and what the pool is known by.

use super::refusal;
use crate::control::protocol::Refusal;
use crate::failure::{Failure, Result};
use crate::mountinfo::{Device, shown};
use crate::pool::durable::Made;
use crate::pool::known;
use homenode::{Error, MemberId, Pool, PoolError, PoolName};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Adds a file to a pool, made if it is not there. The file of known pools names it first: a file that the pool does not list does no harm.
pub(super) fn add_file(
    pool: &Pool,
    name: Option<&PoolName>,
    path: &Path,
    (size_bytes, unwritten): (Option<u64>, bool),
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
    if device.is_some_and(|device| (rustix::fs::major(device), rustix::fs::minor(device)) == (mount.major, mount.minor))
    {
        let what = format!("cannot add {}: it lies in the pool itself", shown(path));
        return Err(Refusal::new(what));
    }
    if !is_there {
        made.make(path, size_bytes).map_err(refused)?;
    }
    let mut files = pool.files();
    files.push(path.to_owned());
    put(pool, name, files).map_err(refused)?;
    let added = pool.add_file(path, unwritten);
    match &added {
        // The pool may list it when it is opened again.
        Err(Error::Pool(PoolError::Log)) | Ok(_) => made.keep(),
        Err(_) => note(pool, name),
    }
    added.map_err(|error| refusal(&error))
}

/// Has the file of known pools name the members that there are.
pub(super) fn note(pool: &Pool, name: Option<&PoolName>) {
    if let Err(failure) = put(pool, name, pool.files()) {
        tracing::warn!("{failure}; `homenode pool import` makes the pool's members known");
    }
}

/// A pool that is not known under its name any more, or was not mounted by it, is left alone.
fn put(pool: &Pool, name: Option<&PoolName>, members: Vec<PathBuf>) -> Result<()> {
    let (Some(name), Some(uuid)) = (name, pool.uuid()) else {
        return Ok(());
    };
    match known::find(name)? {
        Some(known) if known.uuid == format!("{uuid:032x}") => {
            let uuid = known.uuid;
            known::put(name, &known::Known { uuid, members })
        }
        _ => Ok(()),
    }
}
